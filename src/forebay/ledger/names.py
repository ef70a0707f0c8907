"""Texts that repeat, each kept once and named by its row's number: who pays, what for, at which price.

A dimension's end-user and labels are what clients typed, so their number in the sums is bounded: beyond `MOST_VALUES`
a day of one account, a new value counts as `OTHER`. The entry keeps the exact one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence, Set
from typing import Any, Final

import msgspec
from sqlalchemy import Connection, Table, bindparam, insert, select

from forebay.counters import OVERFLOW as OTHER
from forebay.ledger.entries import Account, Reserved
from forebay.ledger.rolling import Place
from forebay.ledger.schema import (
    ACCOUNT,
    DAY,
    SERVICE,
    SHAPE,
    USE,
    accounts,
    dimension_labels,
    dimensions,
    prices,
    rollups,
    services,
    use_labels,
    uses,
)
from forebay.ledger.sql import among, insert_rows
from forebay.ledger.texts import clean

MOST_VALUES: Final = 1_000
"""Different end-users, and values of one label, that are told apart a day, of one account."""
MOST_PAIRS: Final = 4_000
"""Different combinations of these."""
_CACHED: Final = 200_000
"""Numbers kept in memory, of each kind."""

Labels = tuple[tuple[str, str], ...]


class Where(msgspec.Struct, frozen=True, gc=False):
    """A dimension, and what it does not tell of a request: None where it does."""

    dimension: int
    end_user: str | None
    labels: str | None


def labels_json(labels: Labels) -> str:
    return json.dumps(labels, ensure_ascii=False, separators=(",", ":"))


class Names:
    """Numbers of rows. What was made in a transaction that failed must be forgotten."""

    def __init__(self) -> None:
        self._accounts: dict[tuple[str, ...], int] = {}
        self._dimensions: dict[tuple[Any, ...], Where] = {}
        self._prices: dict[bytes, int] = {}
        self._uses: dict[tuple[str, ...], int] = {}
        self._services: dict[tuple[str, ...], int] = {}
        self._of: dict[int, tuple[str, ...]] = {}
        """An account's names, by its number."""
        self._places: dict[int, Place] = {}
        self._values: dict[tuple[int, int], _Values] = {}
        self._day = 0

    def forget(self) -> None:
        for cache in (
            self._accounts,
            self._dimensions,
            self._prices,
            self._uses,
            self._services,
            self._of,
            self._places,
            self._values,
        ):
            cache.clear()

    def account(self, connection: Connection, who: Account) -> int:
        key = (who.key, who.key_name, who.organisation, who.department, who.project, who.user)
        found = self._accounts.get(key)
        if found is None:
            values = tuple(map(clean, key))
            found = _intern(connection, accounts, values, dict(zip(ACCOUNT, values, strict=True)))
            _keep(self._accounts, key, found)
        return found

    def price(self, connection: Connection, price: bytes) -> int:
        found = self._prices.get(price)
        if found is None:
            text = clean(price.decode(errors="replace"))
            found = _intern(connection, prices, (text,), {"price": text})
            _keep(self._prices, price, found)
        return found

    def dimension(self, connection: Connection, account: int, call: Reserved, at: float) -> Where:
        """Where an attempt of this time counts; its account is the row `account`."""
        plain = not (call.end_user or call.labels)
        day = 0 if plain else int(at) // DAY
        key = (
            account,
            call.route,
            call.model,
            call.served,
            call.engine,
            call.tier,
            call.class_,
            call.end_user,
            call.labels,
            day,
        )
        found = self._dimensions.get(key)
        if found is None:
            shape = [clean(text) for text in key[1:8]]
            labels: Labels = tuple((clean(n), clean(v)) for n, v in call.labels)
            found = self._fold(connection, account, day, shape, labels)
            _keep(self._dimensions, key, found)
        return found

    def places(self, connection: Connection, wanted: Set[int]) -> dict[int, Place]:
        """What these dimensions count to besides."""
        found = {dimension: self._places[dimension] for dimension in wanted if dimension in self._places}
        if unknown := wanted - found.keys():
            d = dimensions.c
            query = select(d.id, d.account_id, d.use_id, d.service_id).where(among(connection, d.id, unknown))
            for dimension, *place in connection.execute(query):
                found[dimension] = Place(*place)
                _keep(self._places, dimension, found[dimension])
        return found

    def _fold(self, connection: Connection, account: int, day: int, shape: list[str], labels: Labels) -> Where:
        end_user, exact = shape[-1], labels
        if day:
            shape[-1], labels = self._told_apart(connection, account, day).fold(end_user, labels)
        return Where(
            self._row(connection, account, shape, labels),
            end_user if end_user != shape[-1] else None,
            labels_json(exact) if exact != labels else None,
        )

    def _told_apart(self, connection: Connection, account: int, day: int) -> _Values:
        found = self._values.get((account, day))
        if found is None:
            if day > self._day:
                self._day = day
                self._values = {k: v for k, v in self._values.items() if k[1] >= day - 1}
            query = (
                select(dimensions.c.end_user, dimensions.c.labels)
                .join(rollups, rollups.c.dimension_id == dimensions.c.id)
                .where(rollups.c.grain == DAY, rollups.c.slot == day * DAY, dimensions.c.account_id == account)
                .distinct()
            )
            seen = connection.execute(query)
            found = _Values((end_user, tuple((n, v) for n, v in json.loads(text))) for end_user, text in seen)
            _keep(self._values, (account, day), found)
        return found

    def _row(self, connection: Connection, account: int, shape: Sequence[str], labels: Labels) -> int:
        text = labels_json(labels)
        told = dict(zip(SHAPE, shape, strict=True))
        use = self._use(connection, account, told | {"labels": text}, labels)
        service = self._service(connection, told)
        values = {"account_id": account, **told, "labels": text, "use_id": use, "service_id": service}
        found, new = _find_or_make(connection, dimensions, (str(account), *shape, text), values)
        _keep(self._places, found, Place(account, use, service))
        if new:
            _say_labels(connection, dimension_labels, found, labels)
        return found

    def _use(self, connection: Connection, account: int, shape: dict[str, str], labels: Labels) -> int:
        of = self._of.get(account)
        if of is None:
            row = connection.execute(select(*(accounts.c[name] for name in ACCOUNT)).where(accounts.c.id == account))
            of = tuple(row.one())
            _keep(self._of, account, of)
        values = dict(zip(ACCOUNT, of, strict=True)) | shape
        key = tuple(values[name] for name in USE)
        found = self._uses.get(key)
        if found is None:
            found, new = _find_or_make(connection, uses, key, dict(zip(USE, key, strict=True)))
            if new:
                _say_labels(connection, use_labels, found, labels)
            _keep(self._uses, key, found)
        return found

    def _service(self, connection: Connection, shape: dict[str, str]) -> int:
        key = tuple(shape[name] for name in SERVICE)
        found = self._services.get(key)
        if found is None:
            found = _intern(connection, services, key, dict(zip(SERVICE, key, strict=True)))
            _keep(self._services, key, found)
        return found

    def __repr__(self) -> str:
        return f"<Names {len(self._accounts)} accounts, {len(self._dimensions)} dimensions, {len(self._prices)} prices>"


class _Values:
    """What clients typed, of one account on one day, as far as it is told apart."""

    def __init__(self, seen: Iterable[tuple[str, Labels]]) -> None:
        self._by_name: dict[str, set[str]] = {}
        self._pairs: set[tuple[str, Labels]] = set()
        for end_user, labels in seen:
            self._pairs.add((end_user, labels))
            for name, value in (("", end_user), *labels):
                self._by_name.setdefault(name, set()).add(value)

    def fold(self, end_user: str, labels: Labels) -> tuple[str, Labels]:
        pair = (self._value("", end_user), tuple((name, self._value(name, value)) for name, value in labels))
        if pair not in self._pairs:
            if len(self._pairs) >= MOST_PAIRS:
                return OTHER if end_user else "", tuple((name, OTHER) for name, _ in labels)
            self._pairs.add(pair)
        return pair

    def _value(self, name: str, value: str) -> str:
        known = self._by_name.setdefault(name, set())
        if not value or value in known:
            return value
        if len(known) >= MOST_VALUES:
            return OTHER
        known.add(value)
        return value


def _keep(cache: dict[Any, Any], key: Any, value: Any) -> None:
    if len(cache) >= _CACHED:
        cache.clear()
    cache[key] = value


def _say_labels(connection: Connection, table: Table, of: int, labels: Labels) -> None:
    insert_rows(connection, table, [(of, name, value) for name, value in dict(labels).items()])


def _intern(connection: Connection, table: Table, texts: Sequence[str], values: dict[str, Any]) -> int:
    return _find_or_make(connection, table, texts, values)[0]


def _find_or_make(
    connection: Connection, table: Table, texts: Sequence[str], values: dict[str, Any]
) -> tuple[int, bool]:
    """(row id, whether it is new)"""
    digest = hashlib.blake2b(msgspec.msgpack.encode(texts), digest_size=16).digest()
    found = connection.execute(
        select(table.c.id).where(table.c.digest == bindparam("digest")), {"digest": digest}
    ).scalar()
    if found is not None:
        return int(found), False
    made = connection.execute(insert(table).values(digest=digest, **values).returning(table.c.id)).scalar_one()
    return int(made), True
