"""What was used and what it cost: sums of the ledger by who, what and when.

Sums come from the coarsest rollups that tell what is asked for (`_CUBES`), the longest that fit; what is left at the
edges comes from the entries. So a report over any span is exact, and one over months reads little. An adjustment counts
at the time of what it corrects. Steps of one size are read in one query, which tells them apart by arithmetic on the
rollups' slots.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import isfinite
from operator import add, itemgetter
from typing import Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    FromClause,
    Integer,
    Select,
    Table,
    and_,
    case,
    cast,
    func,
    literal,
    or_,
    select,
)

from forebay.errors import shown
from forebay.ledger.rolling import FULL
from forebay.ledger.schema import (
    ACCOUNT,
    COARSE,
    COUNTS,
    DAY,
    GRAINS,
    HOUR,
    HOWS,
    SERVICE,
    SHAPE,
    SUMS,
    USE,
    account_rollups,
    accounts,
    adjustments,
    dimension_labels,
    dimensions,
    entries,
    rollups,
    service_rollups,
    services,
    use_labels,
    use_rollups,
    uses,
)
from forebay.ledger.sql import among
from forebay.ledger.steps import Step, edges
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


class Row(msgspec.Struct, frozen=True, gc=False):
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


_SELDOM: Final = (*KINDS, "kv", "corrections", *HOWS)
"""Those of COUNTS that are often 0 in every row. None of them is below 0 in a row: so what comes to 0 over days is 0 in
each of their hours. `adjusted` may come to 0 over days and not in each of them; it is 0 where `corrections` is."""
_KINDS: Final = slice(SUMS.index(KINDS[0]), SUMS.index(KINDS[-1]) + 1)
_SIZES: Final = {Step.HOUR: HOUR, Step.DAY: DAY, Step.WEEK: 7 * DAY}
_SINGLE: Final = 24
"""Steps of single entries that are read in one query: PostgreSQL ends one that takes long."""
_MANY: Final = DAY
"""Seconds whose sums are worth a look at what is 0 in them."""


@dataclass(frozen=True, slots=True)
class _Cube:
    """Rollups, and what they tell apart."""

    table: Table
    grains: tuple[int, ...]
    of: Table | None = None
    """What `of_id` names; None: there is a `dimension_id`."""
    names: frozenset[str] = frozenset()
    labels: Table | None = None
    """Of the rows of `of`."""

    def has(self, names: Iterable[str]) -> bool:
        return self.of is None or all(
            name in self.names or (self.labels is not None and name.startswith(LABEL)) for name in names
        )

    @property
    def keys(self) -> tuple[str, ...]:
        """What says what a row is of."""
        of = "dimension_id" if self.of is None else "of_id"
        return (of, "how", "outcome") if "how" in self.table.c else (of,)


_CUBES: Final = (
    _Cube(service_rollups, COARSE, services, frozenset((*SERVICE, "how", "outcome"))),
    _Cube(account_rollups, COARSE, accounts, frozenset(ACCOUNT)),
    _Cube(use_rollups, COARSE, uses, frozenset(USE), use_labels),
    _Cube(rollups, GRAINS),
)
"""The one with the fewest rows first."""
_FEWEST: Final = _CUBES[0]


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

    def spans(self) -> Iterator[tuple[float, float]]:
        """The time that it covers, as (since, until)s."""
        if self.width < self.size:
            for n in range(len(self.steps)):
                yield self.since + n * self.size, self.since + n * self.size + self.width
        else:
            yield self.since, self.until

    def step(self, slot: int) -> int:
        return self.steps[(slot - int(self.since)) // self.size] if self.size else self.steps[0]


def report(connection: Connection, query: Query) -> list[Row]:
    """Rows by time, then by cost, the highest first. Only what there was has a row. Raises BadQuery."""
    _check(query)
    names = tuple(dict.fromkeys((*query.by, *query.where)))
    cube = next(cube for cube in _CUBES if cube.has(names))
    steps = tuple(spans(query))  # too many are refused before anything is read
    parts = list(_parts(steps, _SIZES.get(query.step) if query.step else None, cube.grains))
    counts = _wanted(connection, cube, parts)
    found: dict[tuple[int, tuple[str, ...]], tuple[int, ...]] = {}
    width = 1 + len(query.by)
    for part in parts:
        for statement in _statements(connection, cube, part, names, counts, query):
            for count, row in enumerate(connection.execute(statement)):
                if count == MOST_ROWS:
                    raise _too_many()
                key, sums = (part.step(row[0]), row[1:width]), row[width:]
                if sums[0] is None:  # of no rows at all
                    continue
                before = found.get(key)
                found[key] = sums if before is None else tuple(map(add, before, sums))
    all_counts = itemgetter(*(counts.index(name) if name in counts else -1 for name in COUNTS))
    rows = [_row(steps[step], group, all_counts((*sums, 0))) for (step, group), sums in found.items() if any(sums)]
    if len(rows) > MOST_ROWS:
        raise _too_many()
    return sorted(rows, key=lambda r: (r.since, -r.total, r.group))


def _too_many() -> BadQuery:
    return BadQuery("by", f"over {MOST_ROWS:,} rows; choose a shorter span, longer steps, or fewer names")


def _parts(steps: Sequence[tuple[float, float]], size: int | None, grains: tuple[int, ...]) -> Iterator[_Part]:
    """What makes up the steps, each part once, in as few queries as there are ways to cover a step: of one size, they
    differ where the clocks change, and at both ends."""
    last: dict[tuple[int, float, float], _Part] = {}
    for n, (since, until) in enumerate(steps):
        for grain, begin, end in cover(since, until, grains):
            key = (grain, begin - since, end - begin)
            before = last.get(key)
            if (
                size
                and before
                and (grain or len(before.steps) < _SINGLE)
                and before.steps.stop == n
                and begin == before.since + len(before.steps) * size
            ):
                before.steps = range(before.steps.start, n + 1)
                before.until, before.size, before.width = end, size, end - begin
            else:
                last[key] = part = _Part(grain, begin, end, range(n, n + 1))
                yield part


def _wanted(connection: Connection, cube: _Cube, parts: Sequence[_Part]) -> tuple[str, ...]:
    """Those of COUNTS that are not 0 throughout, whatever is asked for: each one costs a fifth of what reading a row
    does, and there may be millions. What tells them are sums by service, which are few."""
    if cube is _FEWEST or sum(part.until - part.since for part in parts) < _MANY:
        return COUNTS
    since, until = min(part.since for part in parts), max(part.until for part in parts)
    whole = _rolled(connection, _FEWEST, _Part(DAY, since // DAY * DAY, -(-until // DAY) * DAY, range(1)))
    sums = counted(whole)
    row = connection.execute(select(*(func.sum(sums[name]) for name in _SELDOM))).one()
    none = {name for name, n in zip(_SELDOM, row, strict=True) if not n}
    if "corrections" in none:
        none.add("adjusted")
    return tuple(name for name in COUNTS if name not in none)


def spans(query: Query) -> Iterator[tuple[float, float]]:
    """The steps of a query, as (since, until). Raises BadQuery."""
    if query.step is None:
        yield query.since, query.until
        return
    start = query.since
    for count, edge in enumerate(edges(query.since, query.until, query.step, ZoneInfo(query.zone))):
        if count >= MOST_STEPS:
            raise BadQuery("step", f"over {MOST_STEPS:,} steps; choose longer ones or a shorter span")
        yield start, edge
        start = edge


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


def _rolled(connection: Connection, cube: _Cube, part: _Part) -> FromClause:
    """Rows of (slot, *cube.keys, counts)."""
    r, since = cube.table.c, int(part.since)
    if part.width < part.size:
        slots = [slot for begin, end in part.spans() for slot in range(int(begin), int(end), part.grain)]
        where = [among(connection, r.slot, slots)]
    else:
        where = [r.slot >= since, r.slot < int(part.until)]
    # Where a slot is a step, SQLite groups by it in the order of the key, and need not sort.
    slot = r.slot if part.size <= part.grain else r.slot - (r.slot - since) % part.size
    return (
        select(slot.label("slot"), *(r[name] for name in cube.keys), *(r[name] for name in COUNTS if name in r))
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


def whole(connection: Connection, at: ColumnElement[float]) -> ColumnElement[Any]:
    """The second of a time, which is never negative."""
    if connection.dialect.name == "sqlite":  # whose CAST cuts; PostgreSQL's rounds
        return cast(at, Integer)
    return cast(func.floor(at), BigInteger)


def _single(connection: Connection, part: _Part) -> Iterator[FromClause]:
    """As `_rolled` of the finest cube."""
    for table, at, sums in singles():
        c = table.c
        slot: ColumnElement[Any] = literal(0)
        if part.size:
            second = whole(connection, at)
            slot = second - (second - int(part.since)) % part.size
        yield (
            select(slot.label("slot"), c.dimension_id, c.how, c.outcome, *(sums[n].label(n) for n in SUMS))
            .where(or_(*(and_(at >= since, at < until) for since, until in part.spans())))
            .subquery()
        )


def counted(source: FromClause) -> dict[str, ColumnElement[Any]]:
    """Name as in COUNTS → what a row adds to it."""
    s = source.c
    if "how" not in s:
        return {name: s[name] for name in COUNTS}
    return {
        **{name: s[name] for name in SUMS},
        "succeeded": case((s.outcome.in_(FULL), s.attempts), else_=0),
        **{how: case((s.how == how, s.attempts), else_=0) for how in HOWS},
    }


def _statements(
    connection: Connection, cube: _Cube, part: _Part, names: tuple[str, ...], counts: tuple[str, ...], query: Query
) -> Iterator[Select[Any]]:
    """Rows of a slot of the step, the group's columns, then `counts`."""
    if not part.grain:
        for source in _single(connection, part):
            yield _summed(source, *_named(source, names), part, counts, query)
    else:
        source = _rolled(connection, cube, part)
        if cube.of is None:
            yield _summed(source, *_named(source, names), part, counts, query)
        else:
            columns: dict[str, ColumnElement[Any]] = {n: source.c[n] for n in cube.keys if n in names}
            columns |= {n: cube.of.c[n] for n in names if n in cube.of.c}
            joined = source.join(cube.of, cube.of.c.id == source.c.of_id) if names else source
            if cube.labels is not None:
                joined = _labelled(joined, cube.labels, source.c.of_id, names, columns)
            yield _summed(source, joined, columns, part, counts, query)


def _named(source: FromClause, names: tuple[str, ...]) -> tuple[FromClause, dict[str, ColumnElement[Any]]]:
    """Rows with a dimension, with what says its names; the columns of the names."""
    s = source.c
    joined: Any = source
    columns: dict[str, ColumnElement[Any]] = {"how": s.how, "outcome": s.outcome}
    if any(name not in columns for name in names):
        joined = joined.join(dimensions, dimensions.c.id == s.dimension_id)
        columns |= {name: dimensions.c[name] for name in SHAPE}
    if any(name in ACCOUNT for name in names):
        joined = joined.join(accounts, accounts.c.id == dimensions.c.account_id)
        columns |= {name: accounts.c[name] for name in ACCOUNT}
    return _labelled(joined, dimension_labels, s.dimension_id, names, columns), columns


def _labelled(
    joined: Any, labels: Table, of: ColumnElement[int], names: Iterable[str], columns: dict[str, ColumnElement[Any]]
) -> FromClause:
    """With the labels among the names, whose columns are put into `columns`. `labels` are rows of (of, name, value)."""
    for name in names:
        if name.startswith(LABEL):
            label = labels.alias()
            joined = joined.outerjoin(label, (label.c[0] == of) & (label.c.name == name.removeprefix(LABEL)))
            columns[name] = func.coalesce(label.c.value, "")
    found: FromClause = joined
    return found


def _summed(
    source: FromClause,
    joined: FromClause,
    columns: Mapping[str, ColumnElement[Any]],
    part: _Part,
    counts: tuple[str, ...],
    query: Query,
) -> Select[Any]:
    group = [columns[name] for name in query.by]
    slot = [source.c.slot] if part.size else []
    sums = counted(source)
    # What PostgreSQL sums is a numeric, which takes five times as long to read.
    added = (cast(func.sum(sums[name]), BigInteger).label(f"sum_{name}") for name in counts)
    return (
        select(*(slot or [literal(0)]), *group, *added)
        .select_from(joined)
        .where(*(columns[name].in_(values) for name, values in query.where.items()))
        .group_by(*slot, *group)
        .limit(MOST_ROWS + 1)
    )


def _row(span: tuple[float, float], group: tuple[str, ...], n: tuple[int, ...]) -> Row:
    """`n`: in the order of COUNTS."""
    attempts, requests = n[: _KINDS.start]
    cost, adjusted, avoided, kv, corrections, succeeded, *hows = n[_KINDS.stop :]
    tokens = Tokens(*n[_KINDS])
    return Row(*span, group, attempts, requests, succeeded, tokens, cost, adjusted, avoided, kv, corrections, *hows)
