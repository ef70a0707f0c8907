"""A run of a journal's records, turned into rows of the ledger: what `ledger.book` does within a transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, TypeAlias

from msgspec.structs import astuple, replace
from sqlalchemy import Connection, delete, select, update

from forebay.errors import Outcome
from forebay.ledger.entries import Account, Adjusted, Began, Hit, How, Priced, Progress, Record, Reserved, Settled
from forebay.ledger.names import Names, Where
from forebay.ledger.rolling import Sums
from forebay.ledger.rows import counts_of, kv_of, moment, money, sound, sound_call
from forebay.ledger.schema import (
    DAY,
    QUARTER,
    SUMS,
    adjustments,
    engine_hours,
    entries,
    journal_names,
    journals,
    prices,
    reservations,
)
from forebay.ledger.sql import among, insert_rows, mark, put_rows
from forebay.ledger.texts import clean
from forebay.ledger.tokens import KINDS, MOST_TOKENS, NO_TOKENS, Tokens
from forebay.ledger.underway import Attempt, stored

UNKNOWN: Final = Account(0, "unknown", "", "", "", "", "")
"""Pays for what was settled without its reservation, or under a number that its segment never explained."""
NO_CALL: Final = Reserved(0, 0, 0.0, "", 0, "", "", "", "", "", "", "", (), 0, 0, 0)
_COST: Final = SUMS.index("cost")
_ADJUSTED: Final = SUMS.index("adjusted")
_AVOIDED: Final = SUMS.index("avoided")
_KV: Final = SUMS.index("kv")
_CORRECTIONS: Final = SUMS.index("corrections")
_FIRST_KIND: Final = SUMS.index(KINDS[0])
_ENTRY: Final = entries.columns.keys().index
_SEQ: Final[int] = _ENTRY("seq")
_AT: Final[int] = _ENTRY("at")
_DIMENSION: Final[int] = _ENTRY("dimension_id")
_SHAPE_FROM: Final = Reserved.__struct_fields__.index("route")
_SHAPE_TO: Final = Reserved.__struct_fields__.index("labels") + 1
_fields: Final = astuple
_WORDS: Final = {how: how.value for how in How}
_ESTIMATED: Final = How.ESTIMATED.value
_UNPRICED: Final = How.UNPRICED.value

Estimate: TypeAlias = Callable[[str, Tokens], int | None]
"""(a price as JSON, tokens) → nano-units; None: it has no price for these."""


class WrongCurrency(Exception):
    """A journal's money is not in the currency of the books."""


class Ingested:
    """What was done."""

    def __init__(self, position: int) -> None:
        self.position = position
        """Up to which all is booked."""
        self.records = 0
        self.settled = 0
        self.again = 0
        """Settlements of what was settled already."""
        self.late = 0
        """Settlements after a survivor's, booked as adjustments."""
        self.strays = 0
        """Settlements without a reservation, booked to `UNKNOWN`."""
        self.unpriced = 0


class JournalState:
    """A row of `journals`, and what numbers mean in the segment that is being read."""

    def __init__(self, id_: int, boot: str, booted: float, segment: int, position: int, next_seq: int) -> None:
        self.id = id_
        self.boot = boot
        self.booted = booted
        self.segment = segment
        self.position = position
        self.next_seq = next_seq
        self.accounts: dict[int, int] = {}
        self.prices: dict[int, int] = {}


class Run:
    """`read` (or `survive`), then `book`."""

    def __init__(self, connection: Connection, names: Names, journal: JournalState, currency: str, now: float) -> None:
        self._connection = connection
        self._names = names
        self._journal = journal
        self._currency = currency
        self._now = now
        self._open: dict[int, Attempt] = {}
        self._settled: dict[int, tuple[Settled, int | None]] = {}
        self._rows: dict[int, tuple[Any, ...]] = {}
        """New entries. One whose reservation is of this run is made as it is read, and the records are let go."""
        self._survivor = 0
        self._progress: dict[int, int] = {}
        self._adjusted: dict[int, tuple[Adjusted, int | None]] = {}
        self._suspects: set[int] = set()
        self._renamed = False
        self._new_names: dict[tuple[str, int], int] = {}
        self._sums = Sums()
        self._sums_of: dict[tuple[int, int, str, str], list[int]] = {}
        """Rows of `_sums` by quarter, dimension, `how` and outcome."""
        self._where: dict[tuple[Any, ...], Where] = {}
        """What `_names` said, by account, shape and day."""
        self.done = Ingested(journal.position)

    def read(self, records: Iterable[tuple[int, Record]]) -> None:
        """Raises WrongCurrency."""
        journal, done = self._journal, self.done
        since = journal.position
        for position, record in records:
            if position <= since:
                continue
            journal.position = position
            done.records += 1
            if isinstance(record, Settled):
                self._settle(record)
            elif isinstance(record, Reserved):
                self._reserve(record)
            elif isinstance(record, Progress):
                self._progress.update(record.live)
            elif isinstance(record, Hit):
                self._reserve(record.reserved)
                self._settle(record.settled)
            else:
                self._seldom(record)
        done.position = journal.position

    def _seldom(self, record: Record) -> None:
        journal = self._journal
        match record:
            case Account():
                journal.accounts[record.n] = ref = self._names.account(self._connection, record)
                self._new_names["a", record.n] = ref
            case Priced():
                journal.prices[record.n] = ref = self._names.price(self._connection, record.price)
                self._new_names["c", record.n] = ref
            case Adjusted():
                account = journal.accounts.get(record.account) if record.account else None
                self._adjusted.setdefault(record.seq, (record, account))
                journal.next_seq = max(journal.next_seq, record.seq + 1)
            case Began():
                if record.currency != self._currency:
                    raise WrongCurrency(
                        f"a journal is in {record.currency}, the books are in {self._currency}: give back "
                        f"`ledger.currency: {record.currency}`, or begin with an empty database and state_dir"
                    )
                if record.boot != journal.boot:
                    journal.boot, journal.booted = clean(record.boot), self._now
                journal.segment = record.segment
                journal.accounts.clear()
                journal.prices.clear()
                self._new_names.clear()
                self._renamed = True

    def _reserve(self, record: Reserved) -> None:
        journal, seq = self._journal, record.seq
        if seq >= journal.next_seq:
            journal.next_seq = seq + 1
        elif seq in self._open or seq in self._settled or seq in self._rows:
            return
        else:
            self._suspects.add(seq)  # read out of order, or again
        account = journal.accounts.get(record.account)
        if account is None:
            account = self._names.account(self._connection, UNKNOWN)
        call = sound_call(record)
        said: tuple[Any, ...] = _fields(call)
        shape = said[_SHAPE_FROM:_SHAPE_TO]
        day = int(call.at) // DAY if call.end_user or call.labels else 0
        key = (account, day, shape)
        where = self._where.get(key)
        if where is None:
            where = self._where[key] = self._names.dimension(self._connection, account, call, call.at)
        self._open[seq] = Attempt(call, where, journal.prices.get(record.price), journal.boot)

    def _settle(self, record: Settled) -> None:
        seq, journal = record.seq, self._journal
        if seq in self._rows or seq in self._settled:
            self.done.again += 1
            return
        price = journal.prices.get(record.price) if record.price else None
        if seq in self._open and seq not in self._suspects:  # else it may be booked already
            self._entry(record, price, self._open.pop(seq))
            return
        if seq >= journal.next_seq:
            journal.next_seq = seq + 1
        self._settled[seq] = (record, price)

    def survive(self, rows: Iterable[Any], estimate: Estimate) -> None:
        """Settle `reservations` rows by what was delivered, at the time they were reserved at."""
        self._survivor = 1
        texts: dict[int, str] = {}
        for row in rows:
            self._open[row.seq] = stored(row)
            tokens = Tokens(input=row.prompt, output=row.progress) if row.progress else NO_TOKENS
            cost: int | None = 0
            if row.progress:
                cost = None
                if row.price_id is not None:
                    if row.price_id not in texts:
                        query = select(prices.c.price).where(prices.c.id == row.price_id)
                        texts[row.price_id] = self._connection.execute(query).scalar_one()
                    cost = estimate(texts[row.price_id], tokens)
            how = How.UNPRICED if cost is None else How.ESTIMATED
            settled = Settled(row.seq, row.reserved, tokens, how, cost, 0, Outcome.INTERNAL, note="orphan")
            self._settled[row.seq] = (settled, row.price_id if row.progress and cost is not None else None)

    def book(self) -> None:
        """Write it all."""
        self._look_up_reservations()
        booked = self._look_up_entries()
        for seq in self._suspects & booked.keys():
            self._open.pop(seq, None)
        gone = []
        corrections: list[tuple[Any, ...]] = []
        for seq, (settled, price) in self._settled.items():
            before = booked.get(seq) if booked else None
            if before is not None:
                if before.survivor and not self._survivor:
                    corrections += self._late(settled, before)
                else:
                    self.done.again += 1
                continue
            attempt = self._open.pop(seq, None)
            if attempt is None:
                self.done.strays += 1
                attempt = self._stray(settled)
            elif attempt.stored:
                gone.append(seq)
            self._entry(settled, price, attempt)
        rows = list(self._rows.values())
        corrections += self._corrections(booked, rows)
        self.done.settled = len(rows)
        connection, journal = self._connection, self._journal
        insert_rows(connection, entries, rows)
        insert_rows(connection, adjustments, corrections)
        self._sums.write(connection, self._names.places(connection, self._sums.dimensions()))
        if hours := self._sums.hours():  # those of them that were reconciled are again
            done = among(connection, engine_hours.c.slot, hours)
            connection.execute(update(engine_hours).where(done, engine_hours.c.again == 0).values(again=1))
        if gone:
            mine = reservations.c.journal_id == journal.id
            connection.execute(delete(reservations).where(mine, among(connection, reservations.c.seq, gone)))
        self._keep_open()
        self._keep_journal()

    def _look_up_reservations(self) -> None:
        """Attempts that were reserved in an earlier run."""
        wanted = self._suspects | (self._settled.keys() | self._progress.keys()) - self._open.keys() - self._rows.keys()
        if not wanted:
            return
        query = select(reservations).where(
            reservations.c.journal_id == self._journal.id, among(self._connection, reservations.c.seq, wanted)
        )
        for row in self._connection.execute(query):
            self._open[row.seq] = stored(row)

    def _look_up_entries(self) -> dict[int, Any]:
        """Attempts that are settled already, as far as this run may touch them."""
        wanted = self._settled.keys() - self._open.keys()
        wanted |= {seq for seq in self._suspects if not self._open[seq].stored}
        wanted |= {adjusted.adjusts for adjusted, _ in self._adjusted.values() if adjusted.adjusts}
        if not wanted:
            return {}
        query = select(entries).where(
            entries.c.journal_id == self._journal.id, among(self._connection, entries.c.seq, wanted)
        )
        return {row.seq: row for row in self._connection.execute(query)}

    def _stray(self, settled: Settled) -> Attempt:
        account = self._names.account(self._connection, UNKNOWN)
        call = replace(NO_CALL, seq=settled.seq, request=settled.seq, at=moment(settled.at))
        where = self._names.dimension(self._connection, account, call, call.at)
        return Attempt(call, where, None, self._journal.boot)

    def _entry(self, settled: Settled, price: int | None, attempt: Attempt) -> None:
        settled = sound(settled)
        call, where = attempt.call, attempt.where
        at, cost, how, outcome = settled.at, settled.cost, _WORDS[settled.how], settled.outcome
        if cost is None:
            how = _UNPRICED
            self.done.unpriced += 1
        elif how == _UNPRICED:
            how = _ESTIMATED  # it has a price after all, though nobody vouches for it
        seq, request, counts, kv, avoided = (
            settled.seq,
            call.request,
            counts_of(settled.tokens),
            settled.kv,
            settled.avoided,
        )
        self._rows[seq] = (
            self._journal.id,
            seq,
            request,
            call.at,
            at,
            call.id,
            where.dimension,
            how,
            outcome,
            *counts,
            cost,
            price,
            settled.ttft,
            settled.seconds,
            kv,
            avoided,
            settled.note,
            self._survivor,
            where.end_user,
            where.labels,
        )
        key = (int(at) // QUARTER, where.dimension, how, outcome)
        sums = self._sums_of.get(key)
        if sums is None:
            sums = self._sums_of[key] = self._sums.row(at, where.dimension, how, outcome)
        sums[0] += 1
        if seq == request:
            sums[1] += 1
        place = _FIRST_KIND
        for n in counts:
            if n:
                sums[place] += n
            place += 1
        if cost:
            sums[_COST] += cost
        if avoided:
            sums[_AVOIDED] += avoided
        if kv:
            sums[_KV] += kv

    def _corrections(self, booked: dict[int, Any], new: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        if not self._adjusted:
            return []
        known = self._known_adjustments(self._adjusted)
        places = {seq: (row.at, row.dimension_id, row.how, row.outcome) for seq, row in booked.items()}
        places |= {row[_SEQ]: (row[_AT], *row[_DIMENSION : _DIMENSION + 3]) for row in new}
        rows = []
        for seq, (adjusted, account) in self._adjusted.items():
            if seq in known:
                self.done.again += 1
                continue
            where = places.get(adjusted.adjusts)
            if where is None:
                account = account or self._names.account(self._connection, UNKNOWN)
                at = moment(adjusted.since or adjusted.at)
                where = (at, self._names.dimension(self._connection, account, NO_CALL, at).dimension, "", "")
            rows.append(self._correction(adjusted, where, NO_TOKENS, 0))
        return rows

    def _late(self, settled: Settled, entry: Any) -> list[tuple[Any, ...]]:
        """The true settlement of what a survivor settled."""
        if self._known_adjustments((settled.seq,)):
            self.done.again += 1
            return []
        delta = [n - getattr(entry, kind) for kind, n in zip(KINDS, counts_of(settled.tokens), strict=True)]
        kv = kv_of(settled.kv) - entry.kv
        cost = 0 if settled.cost is None else settled.cost - (entry.cost or 0)
        if not any((*delta, cost, kv)):
            self.done.again += 1
            return []
        self.done.late += 1
        adjusted = Adjusted(settled.seq, settled.at, settled.seq, cost, "settled late")
        where = (entry.at, entry.dimension_id, entry.how, entry.outcome)
        return [self._correction(adjusted, where, Tokens(*delta), kv)]

    def _known_adjustments(self, seqs: Iterable[int]) -> set[int]:
        wanted = list(seqs)
        if not wanted:
            return set()
        query = select(adjustments.c.seq).where(
            adjustments.c.journal_id == self._journal.id, among(self._connection, adjustments.c.seq, wanted)
        )
        return set(self._connection.execute(query).scalars())

    def _correction(
        self, adjusted: Adjusted, where: tuple[float, int, str, str], tokens: Tokens, kv: int
    ) -> tuple[Any, ...]:
        """`where`: (at, dimension, how, outcome) of what is corrected."""
        at, dimension, how, outcome = where
        cost, counts = money(adjusted.cost), astuple(tokens)
        sums = self._sums.row(at, dimension, how, outcome)
        for i, n in enumerate(counts, _FIRST_KIND):
            sums[i] += n
        sums[_ADJUSTED] += cost
        sums[_KV] += kv
        sums[_CORRECTIONS] += 1
        return (
            self._journal.id,
            adjusted.seq,
            moment(adjusted.at),
            at,
            adjusted.adjusts,
            dimension,
            how,
            outcome,
            *counts,
            cost,
            kv,
            clean(adjusted.reason),
            moment(adjusted.since),
            moment(adjusted.until),
        )

    def _keep_open(self) -> None:
        rows, moved = [], []
        for seq, attempt in self._open.items():
            progress = min(max(self._progress.get(seq, 0), attempt.progress), MOST_TOKENS)
            if attempt.stored:
                if progress > attempt.progress:
                    moved.append((progress, self._journal.id, seq))
                continue
            call, where = attempt.call, attempt.where
            rows.append(
                (
                    self._journal.id,
                    seq,
                    call.request,
                    call.at,
                    call.id,
                    where.dimension,
                    where.end_user,
                    where.labels,
                    call.prompt,
                    call.most,
                    call.held,
                    attempt.price,
                    attempt.boot,
                    progress,
                )
            )
        insert_rows(self._connection, reservations, rows)
        if moved:
            m = mark(self._connection)
            self._connection.exec_driver_sql(
                f"UPDATE reservations SET progress = {m} WHERE journal_id = {m} AND seq = {m}",  # noqa: S608 - marks
                moved,
            )

    def _keep_journal(self) -> None:
        connection, journal = self._connection, self._journal
        if self._renamed:
            connection.execute(delete(journal_names).where(journal_names.c.journal_id == journal.id))
        put_rows(connection, journal_names, [(journal.id, k, n, ref) for (k, n), ref in self._new_names.items()])
        connection.execute(
            update(journals)
            .where(journals.c.id == journal.id)
            .values(
                boot=journal.boot,
                booted=journal.booted,
                segment=journal.segment,
                position=journal.position,
                next_seq=journal.next_seq,
                **({} if self._survivor else {"seen": self._now}),
            )
        )
