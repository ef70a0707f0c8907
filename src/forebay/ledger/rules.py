"""What may be used, by whom: rules as workers, the database and the configuration have them alike."""

from __future__ import annotations

from decimal import Decimal
from enum import StrEnum
from functools import cached_property
from types import MappingProxyType
from typing import Final

import msgspec

from forebay.config.quotas import Each, Hold, Over, Quota, Unpriced, Window
from forebay.ledger.money import nano

__all__ = ["BUDGETS", "MONEY", "SELECTORS", "WORDS", "Hold", "Level", "Measure", "Over", "Rule", "Unpriced", "Window"]

Level = Each


class Measure(StrEnum):
    REQUESTS_MINUTE = "requests_per_minute"
    TOKENS_MINUTE = "tokens_per_minute"
    CONCURRENT = "concurrent"
    TOKENS_DAY = "tokens_per_day"
    TOKENS_MONTH = "tokens_per_month"
    MONEY_DAY = "money_per_day"
    MONEY_MONTH = "money_per_month"


MONEY: Final = (Measure.MONEY_DAY, Measure.MONEY_MONTH)
BUDGETS: Final = (Measure.TOKENS_DAY, Measure.TOKENS_MONTH, *MONEY)
"""Those that the books know the use of, too."""
SELECTORS: Final = tuple(Level)[1:]


class Rule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, dict=True):
    """Limits that count the same use. A selector that is empty fits everybody; a measure that is None has no limit."""

    name: str
    each: Level
    """Everything of one of these is counted together; ALL: of everybody that the selectors fit."""
    organisation: str = ""
    department: str = ""
    project: str = ""
    user: str = ""
    key: str = ""
    """A key's id or its name."""
    end_user: str = ""
    models: tuple[str, ...] = ()
    """Only requests for these, by the engine's own name; empty: for any."""
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrent: int | None = None
    tokens_per_day: int | None = None
    tokens_per_month: int | None = None
    money_per_day: int | None = None
    """Nano-units of the ledger's currency."""
    money_per_month: int | None = None
    window: Window = Window.CALENDAR
    """Of days and months. Sliding ones are the last 24 hours and the last 30 days."""
    zone: str = "UTC"
    over: Over = Over.REFUSE
    degrade_class: str = ""
    degrade_model: str = ""
    hold: Hold = Hold.MOST
    answer: int = 4_096
    """Completion tokens of a request without max_tokens, where this holds the most."""
    least_answer: int = 16
    """Completion tokens below which a request is refused instead of its max_tokens being lowered."""
    unpriced: Unpriced = Unpriced.REFUSE

    @classmethod
    def of(cls, quota: Quota, zone: str) -> Rule:
        """`zone`: where it names none."""
        return cls(
            name=quota.name,
            each=quota.counted,
            models=quota.models,
            window=quota.window,
            zone=quota.zone or zone,
            over=quota.over,
            degrade_class=quota.degrade_class.value if quota.degrade_class is not None else "",
            degrade_model=quota.degrade_model or "",
            hold=quota.hold,
            answer=quota.answer_tokens,
            least_answer=quota.least_answer_tokens,
            unpriced=quota.unpriced,
            organisation=quota.organisation or "",
            department=quota.department or "",
            project=quota.project or "",
            user=quota.user or "",
            key=quota.key or "",
            end_user=quota.end_user or "",
            requests_per_minute=quota.requests_per_minute,
            tokens_per_minute=quota.tokens_per_minute,
            concurrent=quota.concurrent,
            tokens_per_day=quota.tokens_per_day,
            tokens_per_month=quota.tokens_per_month,
            money_per_day=_nano(quota.money_per_day),
            money_per_month=_nano(quota.money_per_month),
        )

    @cached_property
    def id(self) -> str:
        """What use is kept by when rules change: the name and the scope, not the amounts."""
        parts = [self.name, self.each.value, *(f"{s.value}={self.selector(s)}" for s in SELECTORS if self.selector(s))]
        if self.models:
            parts.append("models=" + ",".join(sorted(self.models)))
        return " ".join(parts)

    def selector(self, level: Level) -> str:
        return str(getattr(self, level.value))

    @property
    def has_budget(self) -> bool:
        return any(self.limit(measure) is not None for measure in BUDGETS)

    def limit(self, measure: Measure) -> int | None:
        found: int | None = getattr(self, measure.value)
        return found


def _nano(amount: float | None) -> int | None:
    return None if amount is None else nano(Decimal(repr(amount)))


WORDS: Final = MappingProxyType(
    {
        Measure.REQUESTS_MINUTE: "requests a minute",
        Measure.TOKENS_MINUTE: "tokens a minute",
        Measure.CONCURRENT: "requests at once",
        Measure.TOKENS_DAY: "tokens a day",
        Measure.TOKENS_MONTH: "tokens a month",
        Measure.MONEY_DAY: "a day",
        Measure.MONEY_MONTH: "a month",
    }
)
"""For messages, behind the amount."""
