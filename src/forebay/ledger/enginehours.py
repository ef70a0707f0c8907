"""Hours of self-hosted engines, reconciled in the books: allocated + idle = the bill (`ledger.gpuhours`).

Theory of operation. Each host says now and then which engines with a GPU-hour price its configuration has
(`engine_spans`). An engine is billed from the first time that it was seen so until it is taken out of the
configuration, in between also while Forebay did not run: its GPUs cost all the same. What hosts on one database call
by one name is one engine, billed once. An hour that is over is reconciled in one transaction with its row in
`engine_hours`, which keeps the bill. Whoever books something into such an hour afterwards marks it (`ledger.run`), and
it is reconciled again: what is added to the books then is the difference. Corrections of another source (invoices) are
neither allocated nor part of the bill.

What is added to or taken off an entry's cost is booked as an adjustment of its dimension, so that sums by whatever name
are right; what is idle, of the account `IDLE` with the engine's name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import nsmallest
from itertools import pairwise
from typing import Any, Final

import msgspec
from sqlalchemy import Connection, func, select

from forebay.config.engine import GpuPrice
from forebay.ledger.book import Book
from forebay.ledger.corrections import HOURS, Correction, correct, source_id
from forebay.ledger.entries import Account
from forebay.ledger.gpuhours import HOUR, bill, reconcile
from forebay.ledger.names import Names
from forebay.ledger.pricing import PriceBook
from forebay.ledger.rows import MOST_COST
from forebay.ledger.run import NO_CALL
from forebay.ledger.schema import adjustments, dimensions, engine_hours, engine_spans, rollups
from forebay.ledger.sql import put_rows

SETTLE: Final = 60.0
"""Seconds that an hour is over before it is reconciled."""
GAP: Final = 600.0
"""Seconds that an engine may be missing without having been taken out: an address that DNS leaves out once."""
AT_ONCE: Final = 64
"""Hours in one transaction."""
MOST: Final = 256
"""Hours in one look."""
REASON: Final = "GPU hour"
IDLE: Final = Account(0, *["_idle"] * 6)
"""Pays for what nobody used. It is called so on every level, so that every report shows it by itself."""


class Span(msgspec.Struct, frozen=True):
    """An engine with a price, from `since` to before `until`."""

    since: float
    until: float
    price: GpuPrice
    host: str = ""


@dataclass(frozen=True, slots=True)
class Engines:
    """What a configuration has: `priced` by name, an address of an engine with `discover` by its own."""

    priced: Mapping[str, GpuPrice] = field(default_factory=dict)
    prices: PriceBook = field(default_factory=PriceBook)
    """For exchange rates."""


class EngineHours:
    """For one thread. Mutable state: up to which hour all is done."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self._done: tuple[int, PriceBook] | None = None

    def look(self, host: str, engines: Engines, now: float) -> tuple[int, bool]:
        """Say which engines this host has, and reconcile what is to be; returns how many hours, and whether there may
        be more. Raises DatabaseError."""
        with self._book.reading() as connection:
            known = connection.execute(select(engine_spans).where(engine_spans.c.host == host)).all()
            again = connection.execute(select(engine_hours.c.slot).where(engine_hours.c.again == 1).limit(1)).scalar()
        self._say(host, engines.priced, now, known)
        ours = {row.engine for row in known} | engines.priced.keys()
        upto = (int((now - SETTLE) // HOUR * HOUR), engines.prices)
        if again is None and (not ours or self._done == upto):
            return 0, False
        with self._book.reading() as connection:
            spans = _spans(connection, now, ours)
            pending = nsmallest(MOST + 1, _pending(connection, spans, engines.prices, upto[0]))
        done = 0
        for at in range(0, len(pending), AT_ONCE):
            with self._book.writing() as (connection, names):
                for slot, engine in pending[at : at + AT_ONCE]:
                    hour = _Hour(connection, names, engine, slot)
                    done += hour.reconcile(spans.get(engine, ()), engines.prices, self._book.currency, now)
        if len(pending) > MOST:
            return done, True
        self._done = upto
        return done, False

    def _say(self, host: str, priced: Mapping[str, GpuPrice], now: float, known: Iterable[Any]) -> None:
        latest: dict[str, Any] = {}
        for row in known:
            if row.engine not in latest or row.since > latest[row.engine].since:
                latest[row.engine] = row
        # The row as it is to be: `engine_spans` in the order of its columns.
        rows = [
            row
            for engine in sorted(priced.keys() | latest.keys())
            for row in _told(host, engine, priced.get(engine), latest.get(engine), now)
        ]
        if rows:
            with self._book.writing() as (connection, _):
                put_rows(connection, engine_spans, rows)


def _told(host: str, engine: str, price: GpuPrice | None, last: Any, now: float) -> Iterator[tuple[Any, ...]]:
    """Rows of `engine_spans` that change; `last` is this host's last one."""
    told = price.model_dump_json() if price is not None else ""
    if last is not None:
        if told == last.price and (last.until is None or now - last.until <= GAP):
            yield host, engine, last.since, None, max(now, last.seen), told
            return
        if last.until is None:
            # The price was changed just now; or the engine was taken out, after it was last seen.
            ends = max(last.since, now if price is not None else last.seen)
            yield host, engine, last.since, ends, last.seen, last.price
    if price is not None and (last is None or now > last.since):
        yield host, engine, now, None, now, told


def _spans(connection: Connection, now: float, engines: set[str]) -> dict[str, tuple[Span, ...]]:
    """Of all hosts. One that says nothing any more counts up to when it last did."""
    found: dict[str, list[Span]] = {}
    for row in connection.execute(select(engine_spans).order_by(engine_spans.c.since, engine_spans.c.host)):
        if row.engine in engines:
            until = row.until if row.until is not None else min(row.seen, now)
            found.setdefault(row.engine, []).append(
                Span(row.since, until, GpuPrice.model_validate_json(row.price), row.host)
            )
    return {engine: tuple(spans) for engine, spans in found.items()}


def _pending(
    connection: Connection, spans: Mapping[str, tuple[Span, ...]], prices: PriceBook, last: int
) -> Iterator[tuple[int, str]]:
    """(hour, engine) that something was booked into since, or, before `last`, that was not reconciled yet."""
    h = engine_hours.c
    for slot, engine in connection.execute(select(h.slot, h.engine).where(h.again == 1)):
        yield slot, engine
    latest = connection.execute(select(h.engine, func.max(h.slot).label("slot")).group_by(h.engine))
    done = {row.engine: row.slot for row in latest}
    for engine, those in spans.items():
        first = int(min(span.since for span in those) // HOUR * HOUR)
        for slot in range(max(first, done.get(engine, -HOUR) + HOUR), last, HOUR):
            there = any(span.since < slot + HOUR and span.until > slot for span in those)
            if there and billed(those, prices, slot, slot + HOUR) is not None:
                yield slot, engine


def billed(spans: Iterable[Span], prices: PriceBook, since: float, until: float) -> tuple[int, bool] | None:
    """What an engine costs between the two, and whether what is idle is shared out. Where hosts differ, the price that
    was told last counts. None: there is no exchange rate."""
    those = [span for span in spans if span.since < until and span.until > since]
    edges = sorted({since, until} | {t for span in those for t in (span.since, span.until) if since < t < until})
    pieces: list[Span] = []
    for begin, end in pairwise(edges):
        there = [span for span in those if span.since <= begin and span.until >= end]
        if not there:
            continue
        price = max(there, key=lambda span: (span.since, span.host)).price
        if pieces and pieces[-1].until == begin and pieces[-1].price == price:
            begin = pieces.pop().since
        pieces.append(Span(begin, end, price))
    total = 0
    for piece in pieces:
        cost = bill(piece.price, prices, piece.since, piece.until)
        if cost is None:
            return None
        total += cost
    return min(total, MOST_COST), bool(pieces) and pieces[-1].price.spread_idle


class _Hour:
    """One hour of one engine, in a transaction of `Book.writing`."""

    def __init__(self, connection: Connection, names: Names, engine: str, slot: int) -> None:
        self._connection = connection
        self._names = names
        self._engine = engine
        self._slot = slot
        account = names.account(connection, IDLE)
        self._idle = names.dimension(
            connection, account, msgspec.structs.replace(NO_CALL, engine=engine), slot
        ).dimension

    def reconcile(self, spans: Iterable[Span], prices: PriceBook, currency: str, now: float) -> bool:
        """False: another process did, or there is no exchange rate to bill it with."""
        h = engine_hours.c
        row = self._connection.execute(
            select(engine_hours).where(h.slot == self._slot, h.engine == self._engine)
        ).one_or_none()
        if row is not None and not row.again:
            return False
        found = (
            (row.bill, bool(row.spread)) if row is not None else billed(spans, prices, self._slot, self._slot + HOUR)
        )
        if found is None:
            return False
        whole, spread = found
        booked = self._booked()
        costs = self._costs()
        wanted = reconcile(whole, costs, spread_idle=spread)
        targets = wanted.adjustments | {self._idle: wanted.idle}
        since, until = self._slot, self._slot + HOUR
        corrections = [
            Correction(dimension, since, targets.get(dimension, 0) - booked.get(dimension, 0), since, until)
            for dimension in sorted(targets.keys() | booked.keys())
        ]
        correct(self._connection, self._names, HOURS, currency, REASON, corrections, now)
        values = (self._slot, self._engine, whole, whole - wanted.idle, wanted.idle, int(spread), now, 0)
        put_rows(self._connection, engine_hours, [values])
        return True

    def _costs(self) -> dict[int, int]:
        """By dimension, as settled, with what was settled late."""
        r, a = rollups.c, adjustments.c
        settled = (
            select(r.dimension_id, func.sum(r.cost))
            .join(dimensions, dimensions.c.id == r.dimension_id)
            .where(r.grain == HOUR, r.slot == self._slot, dimensions.c.engine == self._engine)
            .group_by(r.dimension_id)
        )
        late = self._adjusted().where(a.adjusts != 0)
        costs: dict[int, int] = {}
        for query in (settled, late):
            for dimension, cost in self._connection.execute(query):
                costs[dimension] = costs.get(dimension, 0) + int(cost)
        return dict(sorted(costs.items()))  # so that odd nano-units stay where they are when it is done again

    def _booked(self) -> dict[int, int]:
        """By dimension, what was added by reconciling before."""
        source = source_id(self._connection, HOURS)
        if source is None:
            return {}
        query = self._adjusted().where(adjustments.c.journal_id == source)
        return {dimension: int(cost) for dimension, cost in self._connection.execute(query)}

    def _adjusted(self) -> Any:
        a = adjustments.c
        return (
            select(a.dimension_id, func.sum(a.cost))
            .join(dimensions, dimensions.c.id == a.dimension_id)
            .where(a.counts_at >= self._slot, a.counts_at < self._slot + HOUR, dimensions.c.engine == self._engine)
            .group_by(a.dimension_id)
        )
