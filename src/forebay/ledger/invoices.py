"""What a maker's invoice says, brought into the books: what is booked of a time is corrected to its total, or by an
amount, shared out by what each paid. Nothing that is booked is changed: corrections are adjustments. Calls block.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, Final, NamedTuple

import msgspec
from sqlalchemy import Connection, Select, func, select, text

from forebay.errors import shown
from forebay.ledger.asked import LABEL, Asked, Wrong
from forebay.ledger.book import Book
from forebay.ledger.corrections import INVOICES, Correction, correct, source_id
from forebay.ledger.money import MOST, NANO, shown_money
from forebay.ledger.names import Names
from forebay.ledger.pricing import price_from
from forebay.ledger.reports import cover, singles
from forebay.ledger.run import NO_CALL
from forebay.ledger.schema import (
    ACCOUNT,
    GRAINS,
    SHAPE,
    accounts,
    adjustments,
    dimension_labels,
    dimensions,
    entries,
    prices,
    rollups,
)
from forebay.ledger.sql import among

MOST_PARTS: Final = 500_000
MOST_REASON: Final = 200
_DIGITS: Final = 9
SELF_HOSTED: Final = "self-hosted"


@dataclass(frozen=True, slots=True)
class Wanted:
    """Of `asked`: its time and `where`. Exactly one of `total` and `amount` is given, in nano-units."""

    asked: Asked
    reason: str
    total: int | None = None
    """What all that was booked is to come to."""
    amount: int | None = None
    """What is to be added to it."""
    provider: str = ""
    """Only what `engines` served, those that it priced; "": whatever."""
    engines: frozenset[str] = frozenset()
    """As `engines_of` says."""
    key: str = ""
    """The amount is this key's alone, whatever it used; "": it is shared out."""
    again: bool = False
    """Also where a correction for this time, with this reason, is booked already."""


class Part(NamedTuple):
    """Of one account: nano-units."""

    account: tuple[str, ...]
    """In the order of `ACCOUNT`."""
    booked: int
    added: int


@dataclass(frozen=True, slots=True)
class Plan:
    booked: int
    added: int
    parts: tuple[Part, ...]
    """The largest correction first."""
    corrections: tuple[Correction, ...]
    unpriced: int
    """Attempts of that time without a price: nothing is laid on them."""


def amount_of(field: str, text: str) -> int:
    """Nano-units. Raises Wrong."""
    try:
        value = Decimal(text.replace("_", ""))
    except InvalidOperation:
        raise Wrong(field, f"is an amount like 1234.56, without a currency, not '{shown(text)}'") from None
    if not value.is_finite() or abs(value) * NANO >= MOST:
        raise Wrong(field, f"is below {MOST // NANO:,}, not {shown(text)}")
    exact = value * NANO
    if exact != int(exact):
        raise Wrong(field, f"has at most {_DIGITS} digits behind the point, not '{shown(text)}'")
    return int(exact)


def share_out(amount: int, weights: Sequence[int]) -> list[int]:
    """`amount` by positive weights, to the last unit: odd ones go to the largest remainders, the first of equals."""
    whole = sum(weights)
    size, sign = abs(amount), 1 if amount >= 0 else -1
    parts = [divmod(size * weight, whole) for weight in weights]
    left = size - sum(share for share, _ in parts)
    more = set(sorted(range(len(parts)), key=lambda i: -parts[i][1])[:left])
    return [sign * (share + (i in more)) for i, (share, _) in enumerate(parts)]


def engines_of(connection: Connection, provider: str, since: float, until: float) -> frozenset[str]:
    """Which engines served something at this provider's prices. Looks through the entries of that time, so it is asked
    in a transaction that only reads."""
    if connection.dialect.name != "sqlite":
        connection.execute(text("SET LOCAL statement_timeout = 0"))
    numbers = []
    for number, snapshot in connection.execute(select(prices.c.id, prices.c.price)):
        try:
            price = price_from(snapshot)
        except msgspec.MsgspecError:
            continue  # `forebay ledger verify` names it
        if price.provider == provider:
            numbers.append(number)
    e = entries.c
    used = select(e.dimension_id).where(e.at >= since, e.at < until, among(connection, e.price_id, numbers)).distinct()
    query = select(dimensions.c.engine).where(dimensions.c.id.in_(used)).distinct()
    return frozenset(connection.execute(query).scalars())


def plan(connection: Connection, names: Names, wanted: Wanted, currency: str, now: float) -> Plan:
    """What would be booked; `names` may make rows where `key` is given. Raises Wrong."""
    _check(connection, wanted, now)
    if wanted.key:
        return _of_one(connection, names, wanted)
    found = _Booked(connection, wanted)
    booked = sum(found.costs.values())
    weights = {place: cost for place, cost in sorted(found.costs.items()) if cost > 0}
    added = wanted.amount if wanted.amount is not None else (wanted.total or 0) - booked
    field = "amount" if wanted.amount is not None else "total"
    if not weights and added:
        more = f", but {found.unpriced:,} attempts without a price: give them one first" if found.unpriced else ""
        raise Wrong(field, f"nothing that cost something is booked of {_what(wanted)}{more}")
    paid = sum(weights.values())
    if -added > paid:
        raise Wrong(field, f"takes off more than the {shown_money(paid, currency)} that is booked of {_what(wanted)}")
    shares = share_out(added, list(weights.values())) if added else [0] * len(weights)
    since, until = wanted.asked.since, wanted.asked.until
    corrections = [
        Correction(dimension, at, share, since, until)
        for (at, dimension), share in zip(weights, shares, strict=True)
        if share
    ]
    return Plan(booked, added, found.parts(corrections), tuple(corrections), found.unpriced)


def book(books: Book, wanted: Wanted, now: float, expected: Plan | None = None) -> Plan:
    """Do it. Raises Wrong where it would be another than the expected one; DatabaseError."""
    with books.writing() as (connection, names):
        made = plan(connection, names, wanted, books.currency, now)
        if expected is not None and made != expected:
            raise Wrong("period", "something was booked into it just now: look at it again")
        correct(connection, names, INVOICES, books.currency, wanted.reason, made.corrections, now)
    return made


def _check(connection: Connection, wanted: Wanted, now: float) -> None:
    asked = wanted.asked
    if (wanted.total is None) == (wanted.amount is None):
        raise Wrong("total", "or amount is needed, and not both")
    if not wanted.reason.strip() or len(wanted.reason) > MOST_REASON or not wanted.reason.isprintable():
        raise Wrong("reason", f"is needed: up to {MOST_REASON} characters that say why, such as the invoice's number")
    if wanted.amount == 0:
        raise Wrong("amount", "is not 0")
    if wanted.total is not None:
        if wanted.total < 0:
            raise Wrong("total", "is not negative; a credit is an amount below 0")
        if wanted.key:
            raise Wrong("total", "is of what was used, and a key alone is given an amount")
        if asked.until > now:
            raise Wrong("total", f"is of a time that is over, and {asked.period} is not: what comes would be beside it")
        if not wanted.provider and not asked.where:
            raise Wrong("provider", "or where is needed: an invoice is of somebody")
    if wanted.key and (wanted.provider or asked.where):
        raise Wrong("key", "is corrected as a whole: leave provider and where out, or take --where key=ID")
    for name, _ in asked.where:
        if name in ("how", "outcome"):
            raise Wrong("where", f"{name} is not of a correction")
    if wanted.provider and wanted.provider != SELF_HOSTED and not wanted.engines:
        raise Wrong("provider", f"nothing was booked at prices of '{shown(wanted.provider)}' in that time")
    if wanted.provider == SELF_HOSTED:
        raise Wrong("provider", "engines of your own are reconciled with their price each hour; change that")
    source = source_id(connection, INVOICES)
    if wanted.amount is not None and not wanted.again and source is not None:
        a = adjustments.c
        before = connection.execute(
            select(a.at)
            .where(a.journal_id == source, a.reason == wanted.reason)
            .where(a.since == asked.since, a.until == asked.until)
            .limit(1)
        ).scalar()
        if before is not None:
            raise Wrong("reason", "a correction of this time for this reason is booked already; --again books another")


def _what(wanted: Wanted) -> str:
    of = [f"provider {shown(wanted.provider)}"] if wanted.provider else []
    of += [f"{name} {shown(value) or 'none'}" for name, value in wanted.asked.where]
    return ", ".join([wanted.asked.period, *of])


def _of_one(connection: Connection, names: Names, wanted: Wanted) -> Plan:
    columns = [accounts.c[name] for name in ACCOUNT]
    query = select(accounts.c.id, *columns).where(accounts.c.key == wanted.key).order_by(accounts.c.id.desc()).limit(1)
    row = connection.execute(query).one_or_none()
    if row is None:
        raise Wrong("key", f"nothing was ever booked for a key with the id '{shown(wanted.key)}'")
    amount, asked = wanted.amount or 0, wanted.asked
    dimension = names.dimension(connection, row[0], NO_CALL, asked.since).dimension
    one = Correction(dimension, asked.since, amount, asked.since, asked.until)
    return Plan(0, amount, (Part(tuple(row[1:]), 0, amount),), (one,), 0)


class _Booked:
    """What was booked of a time. Its rows are as the rollups have them: by day, at the edges by hour or less."""

    def __init__(self, connection: Connection, wanted: Wanted) -> None:
        self.costs: dict[tuple[float, int], int] = {}
        """(when it counts, dimension) → nano-units, corrections included."""
        self.unpriced = 0
        where: dict[str, tuple[str, ...]] = {}
        for name, value in wanted.asked.where:
            where[name] = (*where.get(name, ()), value)
        since, until = wanted.asked.since, wanted.asked.until
        engines = wanted.engines if wanted.provider else None
        self._accounts = {row[0]: tuple(row[1:]) for row in connection.execute(_matching(where, engines))}
        for at, query in _rows(since, until):
            for slot, dimension, cost, unpriced in connection.execute(query):
                if dimension in self._accounts:
                    place = (max(at, float(slot)), dimension)
                    self.costs[place] = self.costs.get(place, 0) + int(cost or 0)
                    self.unpriced += int(unpriced or 0)
                    if len(self.costs) > MOST_PARTS:
                        raise Wrong("period", f"over {MOST_PARTS:,} parts; take a shorter one, or divide it by where")

    def parts(self, corrections: Sequence[Correction]) -> tuple[Part, ...]:
        sums: dict[tuple[str, ...], list[int]] = {}
        for (_, dimension), cost in self.costs.items():
            sums.setdefault(self._accounts[dimension], [0, 0])[0] += cost
        for one in corrections:
            sums[self._accounts[one.dimension]][1] += one.cost
        found = [Part(account, booked, added) for account, (booked, added) in sums.items()]
        return tuple(sorted(found, key=lambda part: (-abs(part.added), -part.booked, part.account)))


def _matching(where: Mapping[str, tuple[str, ...]], engines: frozenset[str] | None) -> Select[Any]:
    """Rows of (dimension, *ACCOUNT)."""
    joined: Any = dimensions.join(accounts, accounts.c.id == dimensions.c.account_id)
    columns: dict[str, Any] = {name: dimensions.c[name] for name in SHAPE} | {n: accounts.c[n] for n in ACCOUNT}
    for name in where:
        if name.startswith(LABEL):
            label = dimension_labels.alias()
            of = (label.c.dimension_id == dimensions.c.id) & (label.c.name == name.removeprefix(LABEL))
            joined = joined.outerjoin(label, of)
            columns[name] = func.coalesce(label.c.value, "")
    query = select(dimensions.c.id, *(accounts.c[name] for name in ACCOUNT)).select_from(joined)
    query = query.where(*(columns[name].in_(values) for name, values in where.items()))
    return query if engines is None else query.where(dimensions.c.engine.in_(sorted(engines)))


def _rows(since: float, until: float) -> Iterator[tuple[float, Select[Any]]]:
    """(when it begins, a query for (slot, dimension, cost, unpriced attempts)) of parts that make up the time."""
    for grain, begin, end in cover(since, until, GRAINS):
        if grain:
            r = rollups.c
            unpriced = func.sum(r.attempts).filter(r.how == "unpriced")
            yield (
                begin,
                select(r.slot, r.dimension_id, func.sum(r.cost + r.adjusted), unpriced)
                .where(r.grain == grain, r.slot >= int(begin), r.slot < int(end))
                .group_by(r.slot, r.dimension_id),
            )
            continue
        for table, at, sums in singles():
            c = table.c
            unpriced = func.sum(sums["attempts"]).filter(c.how == "unpriced")
            yield (
                begin,
                select(func.min(0), c.dimension_id, func.sum(sums["cost"] + sums["adjusted"]), unpriced)
                .where(at >= begin, at < end)
                .group_by(c.dimension_id),
            )
