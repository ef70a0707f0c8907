"""Whether the books hold together: every sum taken again from what it is made of.

All in one state of the database, so that it can be done while the gateway runs. What is checked:

- rollups, by all and by account, use and service: the shortest against the entries and adjustments, longer ones against
  shorter;
- uses and services: what dimensions count to against what they say;
- prices: each entry's cost against its tokens at the price it was settled at;
- hours of engines that were reconciled: what is allocated and idle against their bills;
- attempts: none is open and settled; an adjustment of an attempt has it; none has a number its journal has not reached;
- journals of this host: what they say up to the position that is booked is booked so.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec
from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Select,
    Table,
    and_,
    func,
    or_,
    select,
    text,
    union_all,
)

from forebay.ledger.corrections import HOURS
from forebay.ledger.database import Database
from forebay.ledger.entries import Hit, How, Settled
from forebay.ledger.intake import journal_folders, owner_of
from forebay.ledger.journal_format import JournalError
from forebay.ledger.journal_read import Reader
from forebay.ledger.pricing import Price, price_from
from forebay.ledger.reports import counted, singles, whole
from forebay.ledger.schema import (
    ACCOUNT,
    COARSE,
    COUNTS,
    GRAINS,
    HOUR,
    SERVICE,
    SUMS,
    USE,
    account_rollups,
    accounts,
    adjustments,
    dimensions,
    engine_hours,
    entries,
    journals,
    prices,
    reservations,
    rollups,
    service_rollups,
    services,
    use_rollups,
    uses,
)
from forebay.ledger.sql import among
from forebay.ledger.tokens import KINDS, Tokens

SHOWN: Final = 50
"""Differences of one kind that are told one by one."""
_CHUNK: Final = 10_000


@dataclass(slots=True)
class Check:
    """One thing that was looked at. `differences`: the first ones; `count`: of all."""

    name: str
    looked_at: int = 0
    count: int = 0
    differences: list[str] = field(default_factory=list)

    def differs(self, how: str) -> None:
        self.count += 1
        if len(self.differences) < SHOWN:
            self.differences.append(how)


@dataclass(slots=True)
class Verified:
    """Money in nano-units."""

    checks: list[Check]
    entries: int
    by_how: dict[str, int]
    cost: int
    adjustments: int
    adjusted: int
    open: int
    held: int
    tokens: Tokens

    @property
    def differences(self) -> int:
        return sum(check.count for check in self.checks)

    @property
    def total(self) -> int:
        return self.cost + self.adjusted


def verify(database: Database, root: Path) -> Verified:
    """`root` has the journals' folders. Raises DatabaseError; OSError where it cannot be read."""
    with database.read() as connection:
        if not database.sqlite:
            connection.execute(text("SET LOCAL statement_timeout = 0"))
        found = _sums(connection)
        for kind in _KINDS_OF_SUMS:
            found.checks += [_rollups(connection, kind, grain, finer) for grain, finer in kind.pairs()]
        found.checks += [_uses(connection), _costs(connection), _engine_hours(connection), _attempts(connection)]
        found.checks.append(_positions(connection, root))
    return found


def _sums(connection: Connection) -> Verified:
    by_how: dict[str, int] = {}
    cost, tokens = 0, [0] * len(KINDS)
    kinds = [func.sum(entries.c[kind]) for kind in KINDS]
    for how, count, paid, *counts in connection.execute(
        select(entries.c.how, func.count(), func.sum(entries.c.cost), *kinds).group_by(entries.c.how)
    ):
        by_how[how] = int(count)
        cost += int(paid or 0)
        tokens = [a + int(b) for a, b in zip(tokens, counts, strict=True)]
    kinds = [func.sum(adjustments.c[kind]) for kind in KINDS]
    corrected = connection.execute(select(func.count(), func.sum(adjustments.c.cost), *kinds)).one()
    tokens = [a + int(b or 0) for a, b in zip(tokens, corrected[2:], strict=True)]
    still = connection.execute(select(func.count(), func.sum(reservations.c.held))).one()
    return Verified(
        checks=[],
        entries=sum(by_how.values()),
        by_how=by_how,
        cost=cost,
        adjustments=int(corrected[0]),
        adjusted=int(corrected[1] or 0),
        open=int(still[0]),
        held=int(still[1] or 0),
        tokens=Tokens(*tokens),
    )


# --- rollups ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Sums:
    """A table of sums. `of`: the column of `dimensions` that its rows are by; None: they are by dimension."""

    by: str
    table: Table
    keys: tuple[str, ...]
    counts: tuple[str, ...]
    grains: tuple[int, ...]
    of: Column[int] | None = None

    def pairs(self) -> Iterator[tuple[int, int]]:
        """(a grain, the one that it is made of), the finest first; 0: the entries."""
        finer = 0
        for grain in reversed(self.grains):
            yield grain, finer
            finer = grain

    def stored(self, slot: ColumnElement[Any], grain: int, sign: int) -> Select[Any]:
        c = self.table.c
        sums = ((c[name] * sign).label(name) for name in self.counts)
        return select(slot.label("slot"), *(c[key] for key in self.keys), *sums).where(c.grain == grain)

    def single(self, connection: Connection, grain: int) -> Iterator[Select[Any]]:
        for table, at, sums in singles():
            c = table.c
            columns = c.dimension_id, c.how, c.outcome, *(sums[name].label(name) for name in SUMS)
            one = select(_slot(connection, at, grain).label("slot"), *columns)
            if self.of is None:
                yield one
                continue
            source = one.subquery()
            added = counted(source)
            key = source.c.slot, self.of.label("of_id"), *(source.c[name] for name in self.keys[1:])
            yield select(*key, *(added[n].label(n) for n in self.counts)).join_from(
                source, dimensions, dimensions.c.id == source.c.dimension_id
            )


_KINDS_OF_SUMS: Final = (
    _Sums("dimension", rollups, ("dimension_id", "how", "outcome"), SUMS, GRAINS),
    _Sums("account", account_rollups, ("of_id",), COUNTS, COARSE, dimensions.c.account_id),
    _Sums("use", use_rollups, ("of_id",), COUNTS, COARSE, dimensions.c.use_id),
    _Sums("service", service_rollups, ("of_id", "how", "outcome"), SUMS, COARSE, dimensions.c.service_id),
)


def _rollups(connection: Connection, kind: _Sums, grain: int, finer: int) -> Check:
    of = f"those by {_length(finer)}" if finer else "the entries"
    check = Check(f"sums by {kind.by} and {_length(grain)} against {of}")
    c = kind.table.c
    count = select(func.count()).select_from(kind.table).where(c.grain == grain)
    check.looked_at = int(connection.execute(count).scalar_one())
    parts = [kind.stored(c.slot, grain, -1)]
    if finer:
        parts.append(kind.stored(c.slot - c.slot % grain, finer, 1))  # whole numbers: the division cuts
    else:
        parts += kind.single(connection, grain)
    both = union_all(*parts).subquery()
    key = [both.c[name] for name in ("slot", *kind.keys)]
    missing = [func.sum(both.c[name]) for name in kind.counts]
    query = select(*key, *missing).group_by(*key).having(or_(*(m != 0 for m in missing)))
    for slot, *row in _stream(connection, query):
        (which, *more), off = row[: len(kind.keys)], row[len(kind.keys) :]
        wrong = [f"{name} {int(n):+,}" for name, n in zip(kind.counts, off, strict=True) if n]
        of = f"{kind.by} {which}" + (f", {' '.join(more)}" if more else "")
        check.differs(f"{_length(grain)} from {_shown(slot)}, {of}: the sum lacks {', '.join(wrong)}")
    return check


def _length(grain: int) -> str:
    return f"{grain // HOUR} h" if grain % HOUR == 0 else f"{grain // 60} min"


def _slot(connection: Connection, at: ColumnElement[float], grain: int = HOUR) -> ColumnElement[Any]:
    second = whole(connection, at)
    return second - second % grain


def _uses(connection: Connection) -> Check:
    check = Check("dimensions against what they count to")
    check.looked_at = int(connection.execute(select(func.count()).select_from(dimensions)).scalar_one())
    said = {name: accounts.c[name] if name in ACCOUNT else dimensions.c[name] for name in USE}
    query = (
        select(dimensions.c.id)
        .join(accounts, accounts.c.id == dimensions.c.account_id)
        .outerjoin(uses, uses.c.id == dimensions.c.use_id)
        .where(or_(uses.c.id.is_(None), *(uses.c[name] != column for name, column in said.items())))
    )
    for (dimension,) in _stream(connection, query):
        check.differs(f"dimension {dimension} counts to another use than it says")
    query = (
        select(dimensions.c.id)
        .outerjoin(services, services.c.id == dimensions.c.service_id)
        .where(or_(services.c.id.is_(None), *(services.c[name] != dimensions.c[name] for name in SERVICE)))
    )
    for (dimension,) in _stream(connection, query):
        check.differs(f"dimension {dimension} counts to another service than it says")
    return check


# --- entries ---------------------------------------------------------------------------------------------------------


def _costs(connection: Connection) -> Check:
    check = Check("costs against the prices they name")
    known: dict[int, Price | None] = {}
    kinds = [entries.c[kind] for kind in KINDS]
    query = (
        select(entries.c.journal_id, entries.c.seq, entries.c.cost, entries.c.price_id, entries.c.kv, *kinds)
        .where(entries.c.price_id.is_not(None), entries.c.how != How.CACHE.value)
        .order_by(entries.c.journal_id, entries.c.seq)
    )
    for journal, seq, cost, number, kv, *counts in _stream(connection, query):
        check.looked_at += 1
        if number not in known:
            known[number] = _price(connection, number)
        price = known[number]
        if price is None:
            check.differs(f"{journal}/{seq}: price {number} cannot be read")
            continue
        expected = price.cost(Tokens(*counts), kv)
        if cost != expected:
            check.differs(f"{journal}/{seq}: costs {cost}, but {expected} by {price.id}")
    return check


def _price(connection: Connection, number: int) -> Price | None:
    found = connection.execute(select(prices.c.price).where(prices.c.id == number)).scalar_one()
    try:
        return price_from(found.encode())
    except msgspec.MsgspecError:
        return None


def _engine_hours(connection: Connection) -> Check:
    check = Check("hours of engines: allocated and idle against their bills")
    h, r, a, d, j = engine_hours.c, rollups.c, adjustments.c, dimensions.c, journals.c
    done = h.again == 0
    check.looked_at = int(connection.execute(select(func.count()).select_from(engine_hours).where(done)).scalar_one())
    booked = (
        select(h.slot, h.engine, (r.cost + r.adjusted).label("off"))
        .join(rollups, and_(r.grain == HOUR, r.slot == h.slot))
        .join(dimensions, and_(d.id == r.dimension_id, d.engine == h.engine))
    )
    others = (  # neither allocated nor idle
        select(h.slot, h.engine, (-a.cost).label("off"))
        .select_from(adjustments)
        .join(dimensions, d.id == a.dimension_id)
        .join(journals, and_(j.id == a.journal_id, j.owner != HOURS))
        .join(engine_hours, and_(h.slot == _slot(connection, a.counts_at), h.engine == d.engine))
        .where(a.adjusts == 0)
    )
    billed = select(h.slot, h.engine, (-h.bill).label("off"))
    both = union_all(*(query.where(done) for query in (booked, others, billed))).subquery()
    off = func.sum(both.c.off)
    query = select(both.c.slot, both.c.engine, off).group_by(both.c.slot, both.c.engine).having(off != 0)
    for slot, engine, nanos in _stream(connection, query):
        check.differs(f"{engine}, the hour from {_shown(slot)}: {int(nanos):+,} against its bill")
    return check


def _attempts(connection: Connection) -> Check:
    check = Check("attempts under way and adjustments against the entries")
    for table in (reservations, adjustments):
        check.looked_at += int(connection.execute(select(func.count()).select_from(table)).scalar_one())
    r, e, a, j = reservations.c, entries.c, adjustments.c, journals.c
    both = select(r.journal_id, r.seq).join(entries, and_(e.journal_id == r.journal_id, e.seq == r.seq))
    for journal, seq in _stream(connection, both):
        check.differs(f"{journal}/{seq} is open, and settled")
    entry = and_(e.journal_id == a.journal_id, e.seq == a.adjusts)
    lost = select(a.journal_id, a.seq, a.adjusts).outerjoin(entries, entry).where(a.adjusts != 0, e.seq.is_(None))
    for journal, seq, adjusts in _stream(connection, lost):
        check.differs(f"{journal}/{seq} adjusts {adjusts}, which is not there")
    for table in (entries, reservations, adjustments):
        highest = select(table.c.journal_id, func.max(table.c.seq)).group_by(table.c.journal_id).subquery()
        query = select(journals.c.owner, highest.c[1], j.next_seq).join(journals, j.id == highest.c.journal_id)
        for owner, seq, following in connection.execute(query.where(highest.c[1] >= j.next_seq)):
            check.differs(f"{table.name}: {owner} has number {seq}, but {following} was not read of yet")
    return check


# --- journals --------------------------------------------------------------------------------------------------------


def _positions(connection: Connection, root: Path) -> Check:
    check = Check("journals on this host against the entries")
    for folder in journal_folders(root):
        try:
            owner = owner_of(folder)
            row = connection.execute(select(journals).where(journals.c.owner == owner)).one_or_none()
            if row is not None:
                _journal(connection, check, folder, row)
        except JournalError as e:
            check.differs(f"{folder.name}: {e}")
    return check


def _journal(connection: Connection, check: Check, folder: Path, journal: Any) -> None:
    for batch in Reader(folder).batches():
        if batch.position > journal.position:
            return
        said = [r.settled if isinstance(r, Hit) else r for r in batch.records if isinstance(r, Hit | Settled)]
        first = {settled.seq: settled for settled in reversed(said)}
        if not first:
            continue
        query = select(entries.c.seq, entries.c.cost, entries.c.survivor).where(
            entries.c.journal_id == journal.id, among(connection, entries.c.seq, first)
        )
        found = {row.seq: row for row in connection.execute(query)}
        for seq, settled in first.items():
            check.looked_at += 1
            row = found.get(seq)
            if row is None:
                check.differs(f"{folder.name}: attempt {seq} is settled in the journal, and not in the database")
            elif row.cost != settled.cost and not row.survivor:
                check.differs(f"{folder.name}: attempt {seq} costs {settled.cost} in the journal, {row.cost} booked")


def _stream(connection: Connection, query: Select[Any]) -> Iterator[Any]:
    return iter(connection.execution_options(yield_per=_CHUNK).execute(query))


def _shown(slot: int) -> str:
    return datetime.fromtimestamp(slot, UTC).strftime("%Y-%m-%d %H:%M UTC")
