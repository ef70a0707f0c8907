"""Price lists as plain data: what is listed, of which names, when it is in force."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal
from typing import Final
from zoneinfo import ZoneInfo

import msgspec


class Scale(msgspec.Struct, frozen=True, omit_defaults=True):
    """Prices for requests of more than `above` prompt tokens."""

    prices: dict[str, Decimal]
    """By kind (`PRICED_KINDS`). A tier has those that differ from the tier below it."""
    above: int = 0


class Window(msgspec.Struct, frozen=True, omit_defaults=True):
    """Hours of the day by the wall clock of a zone. Of an hour that comes twice both count; of one that is left out
    there is nothing."""

    start: int
    """Minutes since midnight, from there on."""
    end: int
    """To there, exclusive; at or before `start`: the next day's."""
    days: tuple[int, ...] = ()
    """Days on which it starts, Monday 0; empty: all."""

    def holds(self, minute: int, day: int) -> bool:
        if self.start < self.end:
            return self.start <= minute < self.end and (not self.days or day in self.days)
        if minute >= self.start:
            return not self.days or day in self.days
        return minute < self.end and (not self.days or (day - 1) % 7 in self.days)

    def __str__(self) -> str:
        days = "".join(_DAYS[day] + " " for day in self.days)
        return f"{days}{self.start // 60:02d}:{self.start % 60:02d}-{self.end // 60:02d}:{self.end % 60:02d}"


_DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


class Period(msgspec.Struct, frozen=True, omit_defaults=True):
    """Prices and when they are in force: from `since` to before `until` (seconds since the epoch), and, where there are
    windows, in these only."""

    scales: tuple[Scale, ...]
    """Ascending; the first is above 0."""
    since: float | None = None
    until: float | None = None
    windows: tuple[Window, ...] = ()
    zone: str = "UTC"
    """Of the windows."""
    currency: str = "USD"

    def holds(self, at: float) -> bool:
        if (self.since is not None and at < self.since) or (self.until is not None and at >= self.until):
            return False
        if not self.windows:
            return True
        local = datetime.fromtimestamp(at, ZoneInfo(self.zone))
        minute, day = local.hour * 60 + local.minute, local.weekday()
        return any(window.holds(minute, day) for window in self.windows)


class Clause(msgspec.Struct, frozen=True, array_like=True):
    """Which names, in small letters, are meant. `kind`: equals, starts_with, ends_with, contains, regex, or, and."""

    kind: str
    text: str = ""
    of: tuple[Clause, ...] = ()

    def matches(self, name: str) -> bool:
        match self.kind:
            case "equals":
                return name == self.text
            case "starts_with":
                return name.startswith(self.text)
            case "ends_with":
                return name.endswith(self.text)
            case "contains":
                return self.text in name
            case "regex":
                return re.search(self.text, name) is not None
            case "or":
                return any(clause.matches(name) for clause in self.of)
            case "and":
                return all(clause.matches(name) for clause in self.of)
        raise ValueError(f"no such clause: {self.kind}")


class Listed(msgspec.Struct, frozen=True, omit_defaults=True):
    """An entry of a price list."""

    model: str
    match: Clause
    periods: tuple[Period, ...]
    source: str = ""
    """Where its prices are from, for people."""
    service_tiers: dict[str, tuple[Period, ...]] = {}
    """In a maker's other tiers (flex, priority, …), by the tier's name; `periods` are of the ordinary one."""


class Vendor(msgspec.Struct, frozen=True, omit_defaults=True):
    """A provider's price list."""

    id: str
    models: tuple[Listed, ...] = ()
    """The first that matches and is in force counts."""
    urls: str = ""
    """A regular expression that the start of its API's URL matches."""
    names: Clause | None = None
    """Other names it goes by."""
    others: tuple[str, ...] = ()
    """Vendors whose models it sells, at their prices, where it lists none."""

    def matching(self, name: str) -> Iterator[Listed]:
        """Best first."""
        for listed in self.models:
            if listed.match.matches(name):
                yield listed


class Exchange(msgspec.Struct, frozen=True):
    """One unit of `of` is worth `rate` units of `into`, from `since` on (seconds since the epoch)."""

    of: str
    into: str
    rate: Decimal
    since: float | None = None
