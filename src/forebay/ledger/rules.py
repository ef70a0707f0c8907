"""What may be used, by whom: rules as workers, the database and the configuration have them alike."""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType
from typing import Final

import msgspec


class Level(StrEnum):
    """Whose use a rule counts together, from the top."""

    ALL = "all"
    ORGANISATION = "organisation"
    DEPARTMENT = "department"
    PROJECT = "project"
    USER = "user"
    KEY = "key"
    END_USER = "end_user"


class Measure(StrEnum):
    REQUESTS_MINUTE = "requests_per_minute"
    TOKENS_MINUTE = "tokens_per_minute"
    CONCURRENT = "concurrent"
    TOKENS_DAY = "tokens_per_day"
    TOKENS_MONTH = "tokens_per_month"
    MONEY_DAY = "money_per_day"
    MONEY_MONTH = "money_per_month"


class Over(StrEnum):
    """What becomes of a request that a limit has no room for."""

    REFUSE = "refuse"
    WARN = "warn"
    DEGRADE = "degrade"


class Holding(StrEnum):
    """What a running request holds of tokens and money until it is settled."""

    MOST = "most"
    PREDICTED = "predicted"


class Window(StrEnum):
    CALENDAR = "calendar"
    SLIDING = "sliding"


class Unpriced(StrEnum):
    REFUSE = "refuse"
    PASS = "pass"  # noqa: S105


SELECTORS: Final = (
    Level.ORGANISATION,
    Level.DEPARTMENT,
    Level.PROJECT,
    Level.USER,
    Level.KEY,
    Level.END_USER,
)


class Rule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
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
    hold: Holding = Holding.MOST
    answer: int = 4_096
    """Completion tokens of a request without max_tokens, where this holds the most."""
    least_answer: int = 16
    """Completion tokens below which a request is refused instead of its max_tokens being lowered."""
    unpriced: Unpriced = Unpriced.REFUSE

    @property
    def id(self) -> str:
        """What use is kept by when rules change: the name and the scope, not the amounts."""
        parts = [self.name, self.each.value, *(f"{s.value}={self.selector(s)}" for s in SELECTORS if self.selector(s))]
        if self.models:
            parts.append("models=" + ",".join(sorted(self.models)))
        return " ".join(parts)

    def selector(self, level: Level) -> str:
        return str(getattr(self, level.value))

    def limit(self, measure: Measure) -> int | None:
        found: int | None = getattr(self, measure.value)
        return found


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
