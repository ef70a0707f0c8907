"""A report on usage: what was asked, its lines, their sum; and its JSON, in which money is decimal text, exactly, and
null where nothing has a price.

Money is in nano-units of the books' currency (`ledger.money`); times are seconds since the Unix epoch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from functools import reduce
from typing import Any, Final
from zoneinfo import ZoneInfo

import msgspec

from forebay.ledger.money import nano, units
from forebay.ledger.tokens import KINDS, NO_TOKENS, Tokens

COUNTS: Final = ("attempts", "requests", "succeeded", "unpriced", "estimated", "hits")
MONEY: Final = ("cost", "adjusted", "avoided")
SPLITS: Final = ("engine", "served", "tier", "how", "outcome")
"""What the attempts of one request may differ in."""


class Line(msgspec.Struct, frozen=True):
    """What falls together in all that was asked by."""

    of: tuple[str, ...] = ()
    """Values in the order of `Report.by`; "" where nothing was given. Times are the first second, as ISO 8601."""
    attempts: int = 0
    """Calls of engines, and answers from a cache."""
    requests: int = 0
    """First attempts."""
    succeeded: int = 0
    """Attempts that were answered in full."""
    unpriced: int = 0
    """Attempts whose tokens are known and whose price is not: they are not in `cost`."""
    estimated: int = 0
    """Attempts whose tokens are an estimate."""
    hits: int = 0
    """Answers from a cache."""
    tokens: Tokens = NO_TOKENS
    cost: int = 0
    """As settled, without adjustments."""
    adjusted: int = 0
    """Later corrections: more where positive."""
    avoided: int = 0
    """What hits would have cost."""

    @property
    def total(self) -> int:
        return self.cost + self.adjusted

    @property
    def costless(self) -> bool:
        """Nothing in it has a price: its cost is not known, which is not 0."""
        return self.attempts > 0 and self.unpriced == self.attempts and not self.cost and not self.adjusted

    def __add__(self, other: Line) -> Line:
        sums = {field: getattr(self, field) + getattr(other, field) for field in (*COUNTS, *MONEY)}
        tokens = Tokens(*(getattr(self.tokens, kind) + getattr(other.tokens, kind) for kind in KINDS))
        return Line(self.of, tokens=tokens, **sums)


class Report(msgspec.Struct, frozen=True):
    by: tuple[str, ...]
    where: tuple[tuple[str, str], ...]
    since: float
    until: float
    """Not included."""
    zone: str
    period: str
    """`since` to `until` in words."""
    currency: str
    lines: tuple[Line, ...]
    notes: tuple[str, ...] = ()
    """What a reader should know: entries that are not booked yet, say."""
    at: float = 0.0
    """When it was made."""

    @property
    def total(self) -> Line:
        return reduce(Line.__add__, self.lines, Line())

    @property
    def split(self) -> bool:
        """Whether the attempts of one request may be in different lines: then attempts are what is counted."""
        return any(name in SPLITS for name in (*self.by, *(name for name, _ in self.where)))

    def counted(self, line: Line) -> int:
        """What a share or a mean of `line` is of."""
        return line.attempts if self.split else line.requests


def cut(report: Report, most: int) -> Report:
    """The dearest `most` lines, the others as one line, "(N others)": their sum stays what it was."""
    if len(report.lines) <= most:
        return report
    kept = set(sorted(range(len(report.lines)), key=lambda i: _weight(report.lines[i]), reverse=True)[: most - 1])
    rest = [line for i, line in enumerate(report.lines) if i not in kept]
    others = reduce(Line.__add__, rest, Line((f"({len(rest):,} others)", *["…"] * (len(report.by) - 1))))
    lines = (*(line for i, line in enumerate(report.lines) if i in kept), others)
    return msgspec.structs.replace(report, lines=lines)


def _weight(line: Line) -> tuple[int, int]:
    return line.total, line.tokens.total


def as_json(report: Report) -> dict[str, Any]:
    return {
        "currency": report.currency,
        "zone": report.zone,
        "since": moment(report.since, report.zone),
        "until": moment(report.until, report.zone),
        "period": report.period,
        "at": moment(report.at, report.zone),
        "by": list(report.by),
        "where": [{"dimension": name, "value": value} for name, value in report.where],
        "rows": [{"of": dict(zip(report.by, line.of, strict=True))} | numbers(line) for line in report.lines],
        "total": numbers(report.total),
        "notes": list(report.notes),
    }


def numbers(line: Line) -> dict[str, Any]:
    return {
        **{field: getattr(line, field) for field in COUNTS},
        "tokens": {kind: getattr(line.tokens, kind) for kind in KINDS} | {"total": line.tokens.total},
        **money(line),
    }


def money(line: Line) -> dict[str, str | None]:
    """`MONEY` and the total, exactly; a cost of which nothing is known is None."""
    said: dict[str, str | None] = {field: exact(getattr(line, field)) for field in MONEY}
    said["total"] = exact(line.total)
    return said | {"cost": None, "total": None} if line.costless else said


def from_json(found: Mapping[str, Any]) -> Report:
    """Raises KeyError, TypeError or ValueError for what `as_json` did not make."""
    by = tuple(found["by"])
    return Report(
        by=by,
        where=tuple((w["dimension"], w["value"]) for w in found["where"]),
        since=datetime.fromisoformat(found["since"]).timestamp(),
        until=datetime.fromisoformat(found["until"]).timestamp(),
        zone=found["zone"],
        period=found["period"],
        currency=found["currency"],
        lines=tuple(_line(row, by) for row in found["rows"]),
        notes=tuple(found["notes"]),
        at=datetime.fromisoformat(found["at"]).timestamp(),
    )


def _line(row: Mapping[str, Any], by: Iterable[str]) -> Line:
    return Line(
        of=tuple(row["of"][name] for name in by),
        tokens=Tokens(*(row["tokens"][kind] for kind in KINDS)),
        **{field: int(row[field]) for field in COUNTS},
        **{field: nano(Decimal(row[field] or 0)) for field in MONEY},
    )


def exact(nanos: int) -> str:
    """As units of currency, with as many digits as lose nothing and two at least."""
    text = f"{units(nanos):f}"
    whole, _, rest = text.partition(".")
    return f"{whole}.{rest.rstrip('0').ljust(2, '0')}"


def moment(seconds: float, zone: str) -> str:
    """ISO 8601, whole seconds, with the zone's offset; UTC as Z."""
    text = datetime.fromtimestamp(seconds, UTC if zone == "UTC" else ZoneInfo(zone)).isoformat(timespec="seconds")
    return text.replace("+00:00", "Z") if zone == "UTC" else text
