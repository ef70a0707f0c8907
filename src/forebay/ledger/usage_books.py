"""Reports on usage out of the database: as asked for, and of one key for its owner. Calls block."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from zoneinfo import ZoneInfo

import msgspec
from sqlalchemy import Connection, select

from forebay.config.ledger import Ledger
from forebay.errors import shown
from forebay.ledger.asked import LABEL, TIMES, Asked, Wrong, asked
from forebay.ledger.database import Database
from forebay.ledger.focus import NEEDS
from forebay.ledger.intake import bytes_behind, journal_folders, owner_of
from forebay.ledger.journal_format import JournalError
from forebay.ledger.reports import BadQuery, Query, Row, report
from forebay.ledger.schema import journals
from forebay.ledger.steps import Step
from forebay.ledger.tokens import KINDS
from forebay.ledger.usage import Line, Report, exact, moment

DAYS: Final = 30
"""Of a key's own usage, today included."""
_RECENT: Final = 86_400.0
"""Seconds after a report's end in which attempts of its time may still be in a journal alone."""
_EACH: Final = 500
"""Bytes of an attempt in a journal, about."""


def answer(
    database: Database, given: Mapping[str, Sequence[str]], books: Ledger, now: float, root: Path, slack: int = 0
) -> Report:
    """What is asked for in `given`: `asked.PARAMETERS`, and `focus`, which asks for what an export as FOCUS needs.
    `root`: of this host's journals; `slack`: bytes of them that may be missing without a word. Raises Wrong,
    DatabaseError."""
    given = dict(given)
    focus = given.pop("focus", None)
    found = asked(given, now, books.zone)
    if focus is not None:
        found = _for_focus(found, books.labels)
    with database.read() as connection:
        made = _report(connection, found, books.currency, now)
        if found.until > now - _RECENT:
            made = msgspec.structs.replace(made, notes=tuple(_missing(connection, root, slack)))
    return made


def _missing(connection: Connection, root: Path, slack: int) -> Iterator[str]:
    """What the journals hold and the database does not."""
    positions = {row.owner: row.position for row in connection.execute(select(journals.c.owner, journals.c.position))}
    behind = 0
    try:
        for folder in journal_folders(root):
            behind += bytes_behind(folder, positions.get(owner_of(folder), 0))
    except (OSError, JournalError) as e:
        yield f"What the journals hold beyond this is not known: {shown(e, 300)}. `forebay ledger status` shows more."
    if behind > slack:
        yield (
            f"{behind:,} bytes of this host's journals are not booked yet, some {max(1, behind // _EACH):,} attempts: "
            "they are missing here until `forebay serve` has booked them."
        )


def _for_focus(found: Asked, labels: Iterable[str]) -> Asked:
    step = "hour" if "hour" in found.by else "day"
    more = [name for name in found.by if name == "end_user" or name.startswith(LABEL)]
    by = dict.fromkeys((step, *NEEDS, *(LABEL + label for label in labels), *more))
    return replace(found, by=tuple(by))


def _report(connection: Connection, found: Asked, currency: str, now: float) -> Report:
    where: dict[str, tuple[str, ...]] = {}
    for name, value in found.where:
        where[name] = (*where.get(name, ()), value)
    step = next((name for name in found.by if name in TIMES), None)
    names = tuple(name for name in found.by if name not in TIMES)
    query = Query(found.since, found.until, names, Step(step) if step is not None else None, found.zone, where)
    try:
        rows = report(connection, query)
    except BadQuery as e:
        raise Wrong(e.field, str(e).partition(": ")[2]) from e
    return Report(
        by=found.by,
        where=found.where,
        since=found.since,
        until=found.until,
        zone=found.zone,
        period=found.period,
        currency=currency,
        lines=tuple(_line(row, found.by, names, found.zone) for row in rows),
        at=now,
    )


def _line(row: Row, by: Sequence[str], names: Sequence[str], zone: str) -> Line:
    values = dict(zip(names, row.group, strict=True))
    return Line(
        of=tuple(moment(row.since, zone) if name in TIMES else values[name] for name in by),
        attempts=row.attempts,
        requests=row.requests,
        succeeded=row.succeeded,
        unpriced=row.unpriced,
        estimated=row.estimated,
        hits=row.cached,
        tokens=row.tokens,
        cost=row.cost,
        adjusted=row.adjusted,
        avoided=row.avoided,
    )


def of_key(connection: Connection, key_id: str, books: Ledger, now: float) -> dict[str, Any]:
    """GET /v1/usage but for its limits: a key's use today, this month, and in the last DAYS days by day."""
    zone = ZoneInfo(books.zone)
    today = datetime.fromtimestamp(now, zone).replace(hour=0, minute=0, second=0, microsecond=0, fold=0)
    month, first, end = today.replace(day=1), today - timedelta(days=DAYS - 1), today + timedelta(days=1)
    span = min(month, first).timestamp(), end.timestamp()
    rows = report(connection, Query(*span, step=Step.DAY, zone=books.zone, where={"key": (key_id,)}))
    lines = [(row.since, _line(row, (), (), books.zone)) for row in rows]

    def period(since: datetime) -> dict[str, Any]:
        from_ = since.timestamp()
        sums = sum((line for at, line in lines if at >= from_), Line())
        return {"since": moment(from_, books.zone), "until": moment(end.timestamp(), books.zone)} | _numbers(sums)

    days = [
        {"day": datetime.fromtimestamp(at, zone).date().isoformat()} | _numbers(line)
        for at, line in lines
        if at >= first.timestamp()
    ]
    return {
        "object": "usage",
        "key": key_id,
        "at": datetime.fromtimestamp(now, UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        "currency": books.currency,
        "zone": books.zone,
        "periods": {"today": period(today), "month": period(month), "last_30_days": period(first) | {"days": days}},
    }


def _numbers(line: Line) -> dict[str, Any]:
    """For whoever pays: what it came to, corrections included."""
    return {
        "requests": line.requests,
        "succeeded": line.succeeded,
        "tokens": {kind: getattr(line.tokens, kind) for kind in KINDS} | {"total": line.tokens.total},
        "cost": None if line.costless else exact(line.total),
        "estimated": line.estimated,
        "unpriced": line.unpriced,
    }
