"""What was used and what it cost: sums of the ledger by who, what and when.

Sums come from the rollups, the longest that fit; what is left at the edges comes from the entries. So a report over
any span is exact, and one over months reads little. An adjustment counts at the time of what it corrects. Steps of one
size are read in one query, which tells them apart by arithmetic on the rollups' slots.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from math import isfinite
from typing import Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from sqlalchemy import ColumnElement, Connection, FromClause, Select, Table, case, func, literal, select

from forebay.errors import shown
from forebay.ledger.entries import How
from forebay.ledger.schema import (
    ACCOUNT,
    DAY,
    GRAINS,
    HOUR,
    SHAPE,
    SUMS,
    accounts,
    adjustments,
    dimension_labels,
    dimensions,
    entries,
    rollups,
)
from forebay.ledger.sql import among
from forebay.ledger.tokens import KINDS, Tokens

DIMENSIONS: Final = (*ACCOUNT, *SHAPE, "how", "outcome")
"""What sums are taken by, and `label:NAME` besides. A level or label that was not given is ""; end-users and labels'
values beyond their bound (`ledger.names`) are `_other`."""
LABEL: Final = "label:"
MOST_STEPS: Final = 2_400
"""A hundred days by the hour."""
MOST_ROWS: Final = 100_000
MOST_NAMES: Final = 40
"""All of DIMENSIONS and the labels of a configuration at once."""


class BadQuery(Exception):
    """What was asked for is not possible. `field` is the query's field."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


class Step(StrEnum):
    HOUR = "hour"
    DAY = "day"
    WEEK = "week"
    """From Monday."""
    MONTH = "month"


@dataclass(frozen=True, slots=True)
class Query:
    """What settlements from `since` until before `until` (seconds since 1970) come to."""

    since: float
    until: float
    by: tuple[str, ...] = ()
    """Of `DIMENSIONS`, or `label:NAME`."""
    step: Step | None = None
    """A row for each; None: one over all of it."""
    zone: str = "UTC"
    """Of the steps."""
    where: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Name as in `by` → the values that count."""


@dataclass(frozen=True, slots=True)
class Row:
    """Money in nano-units."""

    since: float
    """The step's beginning (of the query where it begins later); the query's without steps."""
    until: float
    group: tuple[str, ...]
    """In the order of `Query.by`."""
    attempts: int
    """Calls of engines, and answers from a cache."""
    requests: int
    """Of them, first ones: retries, fallbacks and climbs are attempts of the same request."""
    succeeded: int
    """Attempts that were answered in full, from a cache too."""
    tokens: Tokens
    """As settled, late settlements included."""
    cost: int
    """As settled."""
    adjusted: int
    """To be added to it."""
    avoided: int
    """What answers from a cache would have cost."""
    kv: int
    """KV token-seconds."""
    corrections: int
    """Adjustments in `adjusted`."""
    exact: int
    estimated: int
    unpriced: int
    """Attempts whose cost is not known and not in `cost`."""
    cached: int

    @property
    def total(self) -> int:
        return self.cost + self.adjusted


_HOWS: Final = tuple(how.value for how in How)
_COUNTS: Final = (*SUMS, "succeeded", *_HOWS)
_SELDOM: Final = (*KINDS, "adjusted", "kv", "corrections", *_HOWS)
"""Those of `_COUNTS` that are often 0 in every row. None of them is below 0 in a row, but for `adjusted`, which is 0
where `corrections` is: so what comes to 0 over days is 0 in each of their hours."""
_SIZES: Final = {Step.HOUR: HOUR, Step.DAY: DAY, Step.WEEK: 7 * DAY}
_MANY: Final = DAY
"""Seconds of rollups shorter than a day that are worth a look at what is 0 in them."""

Sums = dict[str, int]
"""Name as in `_COUNTS`; what is not in it is 0."""


@dataclass(slots=True)
class _Part:
    """What is read in one query: rows of a grain (0: single entries) from `since` until before `until`, where the
    steps of a row are told apart by its slot."""

    grain: int
    since: float
    until: float
    steps: range
    size: int = 0
    """Seconds from one step's beginning to the next one's; 0: there is one step."""
    width: float = 0.0
    """Seconds of each step that count, from `since` and every `size` later."""

    def step(self, slot: int) -> int:
        return self.steps[(slot - int(self.since)) // self.size] if self.size else self.steps[0]


def report(connection: Connection, query: Query) -> list[Row]:
    """Rows by time, then by cost, the highest first. Only what there was has a row. Raises BadQuery."""
    _check(query)
    names = tuple(dict.fromkeys((*query.by, *query.where)))
    steps = tuple(spans(query))  # too many are refused before anything is read
    parts = list(_parts(steps, _SIZES.get(query.step) if query.step else None))
    counts = _wanted(connection, parts)
    found: dict[tuple[int, tuple[str, ...]], list[int]] = {}
    width = 1 + len(query.by)
    for part in parts:
        for source in _sources(connection, part):
            for count, row in enumerate(connection.execute(_summed(source, part, names, counts, query))):
                if count == MOST_ROWS:
                    raise _too_many()
                key, sums = (part.step(row[0]), tuple(row[1:width])), [int(n or 0) for n in row[width:]]
                before = found.get(key)
                found[key] = sums if before is None else [a + b for a, b in zip(before, sums, strict=True)]
    rows = [
        _row(*steps[step], group, dict(zip(counts, sums, strict=True)))
        for (step, group), sums in found.items()
        if any(sums)
    ]
    if len(rows) > MOST_ROWS:
        raise _too_many()
    return sorted(rows, key=lambda r: (r.since, -r.total, r.group))


def _too_many() -> BadQuery:
    return BadQuery("by", f"over {MOST_ROWS:,} rows; choose a shorter span, longer steps, or fewer names")


def _parts(steps: Sequence[tuple[float, float]], size: int | None) -> Iterator[_Part]:
    """What makes up the steps, each part once, in as few queries as there are ways to cover a step: of one size, they
    differ where the clocks change, and at both ends."""
    last: dict[tuple[int, float, float], _Part] = {}
    for n, (since, until) in enumerate(steps):
        for grain, begin, end in cover(since, until, GRAINS):
            key = (grain, begin - since, end - begin)
            before = last.get(key)
            if (
                size
                and before
                and grain
                and before.steps.stop == n
                and begin == before.since + len(before.steps) * size
            ):
                before.steps = range(before.steps.start, n + 1)
                before.until, before.size, before.width = end, size, end - begin
            else:
                last[key] = part = _Part(grain, begin, end, range(n, n + 1))
                yield part


def _wanted(connection: Connection, parts: Sequence[_Part]) -> tuple[str, ...]:
    """Those of `_COUNTS` that are not 0 throughout: each one costs a fifth of what reading a row does, and there may be
    millions."""
    fine = [part for part in parts if 0 < part.grain < DAY]
    if sum(part.until - part.since for part in fine) < _MANY:
        return _COUNTS
    since, until = min(part.since for part in parts), max(part.until for part in parts)
    whole = _rolled(connection, _Part(DAY, since // DAY * DAY, -(-until // DAY) * DAY, range(1)))
    sums = _sums(whole)
    row = connection.execute(select(*(func.sum(sums[name]) for name in _SELDOM))).one()
    none = {name for name, n in zip(_SELDOM, row, strict=True) if not n}
    return tuple(name for name in _COUNTS if name not in none)


def spans(query: Query) -> Iterator[tuple[float, float]]:
    """The steps of a query, as (since, until). Raises BadQuery."""
    if query.step is None:
        yield query.since, query.until
        return
    start = query.since
    for count, edge in enumerate(_edges(query.since, query.until, query.step, ZoneInfo(query.zone))):
        if count >= MOST_STEPS:
            raise BadQuery("step", f"over {MOST_STEPS:,} steps; choose longer ones or a shorter span")
        yield start, edge
        start = edge


def _edges(since: float, until: float, step: Step, zone: ZoneInfo) -> Iterator[float]:
    """Where steps end, after `since`; the last is `until`."""
    if step is Step.HOUR:
        # Hours go on through a change of the clocks; zones are off UTC by quarters of an hour.
        offset = datetime.fromtimestamp(since, zone).utcoffset() or timedelta()
        past = offset.total_seconds() % HOUR
        edge = (since + past) // HOUR * HOUR - past + HOUR
        while edge < until:
            yield edge
            edge += HOUR
    else:
        day = datetime.fromtimestamp(since, zone).date()
        while True:
            if step is Step.MONTH:
                day = (day.replace(day=1) + timedelta(days=32)).replace(day=1)
            elif step is Step.WEEK:
                day += timedelta(days=7 - day.weekday())
            else:
                day += timedelta(days=1)
            edge = datetime(day.year, day.month, day.day, tzinfo=zone).timestamp()
            if edge >= until:
                break
            if edge > since:
                yield edge
    yield until


def _check(query: Query) -> None:
    for name, value in (("since", query.since), ("until", query.until)):
        if not isfinite(value) or not 0 <= value < 32_503_680_000:
            raise BadQuery(name, f"a time from 1970 to 2999 in seconds since 1970, not {value!r}")
    if query.until <= query.since:
        moments = [datetime.fromtimestamp(t, UTC).isoformat() for t in (query.since, query.until)]
        raise BadQuery("until", f"must be after since ({moments[0]}), not {moments[1]}")
    try:
        ZoneInfo(query.zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise BadQuery("zone", f"a time zone like UTC or Asia/Shanghai, not {shown(query.zone)!r}") from None
    for where, names in (("by", query.by), ("where", tuple(query.where))):
        for name in names:
            if name not in DIMENSIONS and not (name.startswith(LABEL) and len(name) > len(LABEL)):
                raise BadQuery(where, f"{shown(name)!r} is none of {', '.join(DIMENSIONS)}, {LABEL}NAME")
        if len(set(names)) != len(names):
            raise BadQuery(where, "names one twice")
        if len(names) > MOST_NAMES:
            raise BadQuery(where, f"at most {MOST_NAMES} names, not {len(names)}")
    for name, values in query.where.items():
        if not 0 < len(values) <= 500:
            raise BadQuery("where", f"1 to 500 values of {name}, not {len(values)}")


def _sources(connection: Connection, part: _Part) -> Iterator[FromClause]:
    """Rows of (slot, dimension_id, how, outcome, *SUMS); the slot of a single entry is 0."""
    if part.grain:
        yield _rolled(connection, part)
    else:
        yield from _single(part.since, part.until)


def cover(since: float, until: float, grains: tuple[int, ...]) -> Iterator[tuple[int, float, float]]:
    """(grain, since, until): as much of the span as the longest grain has, then the edges; grain 0: single entries."""
    if since >= until:
        return
    if not grains:
        yield 0, since, until
        return
    grain, *finer = grains
    first, last = -(-since // grain) * grain, until // grain * grain
    if first >= last:
        yield from cover(since, until, tuple(finer))
        return
    yield grain, first, last
    yield from cover(since, first, tuple(finer))
    yield from cover(last, until, tuple(finer))


def _rolled(connection: Connection, part: _Part) -> FromClause:
    r, since = rollups.c, int(part.since)
    if part.width < part.size:
        each = range(0, int(part.width), part.grain)
        slots = [since + n * part.size + more for n in range(len(part.steps)) for more in each]
        where = [among(connection, r.slot, slots)]
    else:
        where = [r.slot >= since, r.slot < int(part.until)]
    # Where a slot is a step, SQLite groups by it in the order of the key, and need not sort.
    slot = r.slot if part.size <= part.grain else r.slot - (r.slot - since) % part.size
    return (
        select(slot.label("slot"), r.dimension_id, r.how, r.outcome, *(r[name] for name in SUMS))
        .where(r.grain == part.grain, *where)
        .subquery()
    )


def singles() -> Iterator[tuple[Table, ColumnElement[float], dict[str, ColumnElement[Any]]]]:
    """Entries and adjustments one by one: (table, when it counts, what it adds to each of SUMS)."""
    e, a, zero = entries.c, adjustments.c, literal(0)
    ours: dict[str, ColumnElement[Any]] = {
        "attempts": literal(1),
        "requests": case((e.request == e.seq, 1), else_=0),
        **{kind: e[kind] for kind in KINDS},
        "cost": func.coalesce(e.cost, 0),
        "avoided": e.avoided,
        "kv": e.kv,
    }
    corrected: dict[str, ColumnElement[Any]] = {
        **{kind: a[kind] for kind in KINDS},
        "adjusted": a.cost,
        "kv": a.kv,
        "corrections": literal(1),
    }
    yield entries, e.at, {name: ours.get(name, zero) for name in SUMS}
    yield adjustments, a.counts_at, {name: corrected.get(name, zero) for name in SUMS}


def _single(since: float, until: float) -> Iterator[FromClause]:
    for table, at, sums in singles():
        c = table.c
        yield (
            select(literal(0).label("slot"), c.dimension_id, c.how, c.outcome, *(sums[n].label(n) for n in SUMS))
            .where(at >= since, at < until)
            .subquery()
        )


def _sums(source: FromClause) -> dict[str, ColumnElement[Any]]:
    """Name as in `_COUNTS` → what a row adds to it."""
    s = source.c
    return {
        **{name: s[name] for name in SUMS},
        "succeeded": case((s.outcome.in_(("ok", "hit")), s.attempts), else_=0),
        **{how: case((s.how == how, s.attempts), else_=0) for how in _HOWS},
    }


def _summed(
    source: FromClause, part: _Part, names: tuple[str, ...], counts: tuple[str, ...], query: Query
) -> Select[Any]:
    """`source` by step and by the names of the query: a slot of the step, the group's columns, then `counts`."""
    s = source.c
    joined: Any = source
    columns: dict[str, ColumnElement[Any]] = {"how": s.how, "outcome": s.outcome}
    if any(name not in columns for name in names):
        joined = joined.join(dimensions, dimensions.c.id == s.dimension_id)
        columns |= {name: dimensions.c[name] for name in SHAPE}
    if any(name in ACCOUNT for name in names):
        joined = joined.join(accounts, accounts.c.id == dimensions.c.account_id)
        columns |= {name: accounts.c[name] for name in ACCOUNT}
    for name in names:
        if name.startswith(LABEL):
            label = dimension_labels.alias()
            joined = joined.outerjoin(
                label, (label.c.dimension_id == s.dimension_id) & (label.c.name == name.removeprefix(LABEL))
            )
            columns[name] = func.coalesce(label.c.value, "")
    group = [columns[name] for name in query.by]
    slot = [s.slot] if part.size else []
    sums = _sums(source)
    return (
        select(*(slot or [literal(0)]), *group, *(func.sum(sums[name]).label(f"sum_{name}") for name in counts))
        .select_from(joined)
        .where(*(columns[name].in_(values) for name, values in query.where.items()))
        .group_by(*slot, *group)
        .limit(MOST_ROWS + 1)
    )


def _row(since: float, until: float, group: tuple[str, ...], sums: Sums) -> Row:
    n = dict.fromkeys(_COUNTS, 0) | sums
    return Row(
        since=since,
        until=until,
        group=group,
        attempts=n["attempts"],
        requests=n["requests"],
        succeeded=n["succeeded"],
        tokens=Tokens(*(n[kind] for kind in KINDS)),
        cost=n["cost"],
        adjusted=n["adjusted"],
        avoided=n["avoided"],
        kv=n["kv"],
        corrections=n["corrections"],
        exact=n["exact"],
        estimated=n["estimated"],
        unpriced=n["unpriced"],
        cached=n["cache"],
    )
