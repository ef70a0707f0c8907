"""The entries of `quotas`: who may use how much. Kept in the database they have the same fields and checks."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

from pydantic import BeforeValidator, Field, StringConstraints, model_validator

from forebay.config.amounts import written
from forebay.config.section import Class, Name, Section, Zone, clash

__all__ = ["MEASURES", "SELECTORS", "Each", "Hold", "Over", "Quota", "Unpriced", "Window"]

Requests = Annotated[int, Field(ge=1, le=1_000_000_000), BeforeValidator(written)]
Tokens = Annotated[int, Field(ge=1, le=1 << 50), BeforeValidator(written)]
Money = Annotated[float, Field(gt=0, le=4_000_000_000, allow_inf_nan=False), BeforeValidator(written)]
EndUser = Annotated[str, StringConstraints(min_length=1, max_length=256)]


class Each(StrEnum):
    """Whose use is counted together, from the top."""

    ALL = "all"
    ORGANISATION = "organisation"
    DEPARTMENT = "department"
    PROJECT = "project"
    USER = "user"
    KEY = "key"
    END_USER = "end_user"


class Window(StrEnum):
    CALENDAR = "calendar"
    SLIDING = "sliding"


class Over(StrEnum):
    """What becomes of a request that there is no room for."""

    REFUSE = "refuse"
    WARN = "warn"
    DEGRADE = "degrade"


class Hold(StrEnum):
    """How long an answer a running request holds tokens and money for."""

    MOST = "most"
    PREDICTED = "predicted"


class Unpriced(StrEnum):
    REFUSE = "refuse"
    PASS = "pass"  # noqa: S105 - no password


SELECTORS: Final = tuple(Each)[1:]
MEASURES: Final = (
    "requests_per_minute",
    "tokens_per_minute",
    "concurrent",
    "tokens_per_day",
    "tokens_per_month",
    "money_per_day",
    "money_per_month",
)


class Quota(Section):
    name: Name
    """What refusals, headers and reports call it."""
    organisation: Name | None = None
    """Only callers of this organisation; without any such field: all callers."""
    department: Name | None = None
    """Only of this department."""
    project: Name | None = None
    """Only of this project."""
    user: Name | None = None
    """Only of this user."""
    key: Name | None = None
    """Only with this key, by its id or name; `anonymous` for callers without one."""
    end_user: EndUser | None = None
    """Only for this end user: the `user` field of the request."""
    models: tuple[Name, ...] = ()
    """Only requests for these models, by the engine's own name; empty: for any."""
    each: Each | None = None
    """Whose use is counted together: each one of these has the whole quota. Without it, what the fields above name; of
    all callers where they name none."""
    requests_per_minute: Requests | None = None
    """Requests; after a pause at most a minute's worth at once."""
    tokens_per_minute: Tokens | None = None
    """Tokens of prompts and answers, likewise."""
    concurrent: Requests | None = None
    """Requests at once, waiting ones too."""
    tokens_per_day: Tokens | None = None
    """Tokens of prompts and answers."""
    tokens_per_month: Tokens | None = None
    """The same a month."""
    money_per_day: Money | None = None
    """In ledger.currency."""
    money_per_month: Money | None = None
    """The same a month."""
    window: Window = Window.CALENDAR
    """Of days and months: `calendar`, or `sliding`, which is the last 24 hours and the last 30 days."""
    zone: Zone | None = None
    """Time zone of calendar days and months; none: ledger.zone."""
    over: Over = Over.REFUSE
    """A request that there is no room for is refused; or it is served with a warning in a header; or served, degraded
    as below, with the warning."""
    degrade_class: Class | None = None
    """With `over: degrade`: the class it gets, where its own is better."""
    degrade_model: Name | None = None
    """With `over: degrade`: the model that answers instead."""
    hold: Hold = Hold.MOST
    """What a running request holds: prompt and max_tokens, so that a budget is never exceeded; or the prompt and the
    answer as predicted, so that more run at once and the last ones may exceed it."""
    answer_tokens: Annotated[int, Field(ge=1, le=1 << 24)] = 4_096
    """What is held for an answer where the request has no max_tokens. A budget that refuses and holds the most also
    sets max_tokens to it."""
    least_answer_tokens: Annotated[int, Field(ge=1, le=1 << 24)] = 16
    """max_tokens is lowered to what is left of a budget, but not below this: then the request is refused."""
    unpriced: Unpriced = Unpriced.REFUSE
    """A model without a price under a limit of money that refuses: 403, or pass uncounted with a warning."""

    @property
    def counted(self) -> Each:
        """`each`, or what stands for it."""
        return self.each or self._deepest()

    def _deepest(self) -> Each:
        return next((level for level in reversed(SELECTORS) if getattr(self, level.value) is not None), Each.ALL)

    @model_validator(mode="after")
    def _fits(self) -> Quota:
        if all(getattr(self, measure) is None for measure in MEASURES):
            raise clash(f"a quota needs at least one of {', '.join(MEASURES)}")
        levels = tuple(Each)
        if self.each is not None and levels.index(self.each) < levels.index(self._deepest()):
            raise clash(f"each is above {self._deepest().value}, which is all that it counts; leave it out")
        degrades = self.degrade_class is not None or self.degrade_model is not None
        if degrades and self.over is not Over.DEGRADE:
            raise clash("degrade_class and degrade_model need over: degrade")
        if self.over is Over.DEGRADE and not degrades:
            raise clash("over: degrade needs degrade_class or degrade_model")
        if self.degrade_model is not None and self.degrade_model in self.models:
            raise clash("degrade_model is one of the models that the quota is for")
        if self.zone is not None and self.window is Window.SLIDING:
            raise clash("a sliding window has no time zone")
        if self.least_answer_tokens > self.answer_tokens:
            raise clash("least_answer_tokens must not be more than answer_tokens")
        return self
