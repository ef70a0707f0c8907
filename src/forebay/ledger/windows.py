"""Calendar days and months of a time zone, as spans of Unix time.

A window begins at the first instant of its date and ends at the first instant of the next, so windows of a zone never
overlap and leave no gap: a day of a DST change has 23 or 25 hours, and a date that a zone skipped has none.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from math import floor
from typing import Final
from zoneinfo import ZoneInfo

_DAY: Final = timedelta(days=1)
_LEAST: Final = 86_400.0 * 366
_MOST: Final = 253_000_000_000.0
"""Seconds since the epoch that a date can be told of in every zone: years 1971 to 9987. A clock beyond is read as
these."""


class Span(StrEnum):
    DAY = "day"
    MONTH = "month"


class Calendar:
    """The days or months of a zone. Remembers the window it told of last."""

    __slots__ = ("_first", "_until", "span", "zone")

    def __init__(self, span: Span, zone: str) -> None:
        """Raises zoneinfo.ZoneInfoNotFoundError for a zone that there is not."""
        self.span = span
        self.zone = ZoneInfo(zone)
        self._first = self._until = 0.0

    def window(self, at: float) -> tuple[float, float]:
        """First instant, and first instant after it, of the window that has the Unix time `at`."""
        if not self._first <= at < self._until:
            self._first, self._until = self._find(at)
        return self._first, self._until

    def _find(self, at: float) -> tuple[float, float]:
        at = floor(min(max(at, _LEAST), _MOST))  # datetime rounds to microseconds: over midnight, too
        begins = self._begin(datetime.fromtimestamp(at, self.zone).date())
        first, until = self._instant(begins), self._instant(self._after(begins))
        # Where clocks were put back over midnight, a date's last hour comes again when the next has already begun.
        while until <= at:
            begins = self._after(begins)
            first, until = until, self._instant(self._after(begins))
        return first, until

    def _begin(self, day: date) -> date:
        return day if self.span is Span.DAY else day.replace(day=1)

    def _after(self, begins: date) -> date:
        if self.span is Span.DAY:
            return begins + _DAY
        return date(begins.year + begins.month // 12, begins.month % 12 + 1, 1)

    def _instant(self, day: date) -> float:
        """Of its midnight; of the end of the gap where clocks are put forward over it; of the first where it comes
        twice. All three are what `fold=0` means."""
        return datetime(day.year, day.month, day.day, tzinfo=self.zone).timestamp()

    def __repr__(self) -> str:
        return f"<Calendar {self.span.value}s of {self.zone.key}>"


def iso(at: float) -> str:
    """A Unix time in UTC, to the second, as people and programs read it."""
    return datetime.fromtimestamp(min(max(at, 0.0), _MOST), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
