"""Texts that repeat, each kept once and named by its row's number: who pays, what for, at which price.

A dimension's end-user and labels are what clients typed, so their number in the sums is bounded: beyond `MOST_VALUES`
a day of one account, a new value counts as `OTHER`. The entry keeps the exact one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
from sqlalchemy import Connection, Table, bindparam, insert, select

from forebay.counters import OVERFLOW as OTHER
from forebay.ledger.entries import Account, Reserved
from forebay.ledger.schema import ACCOUNT, DAY, SHAPE, accounts, dimension_labels, dimensions, prices, rollups

MOST_VALUES: Final = 1_000
"""Different end-users, and values of one label, that are told apart a day, of one account."""
MOST_PAIRS: Final = 4_000
"""Different combinations of these."""
_CACHED: Final = 200_000
"""Numbers kept in memory, of each kind."""

Labels = tuple[tuple[str, str], ...]


class Where(msgspec.Struct, frozen=True):
    """A dimension, and what it does not tell of a request: None where it does."""

    dimension: int
    end_user: str | None
    labels: str | None


def clean(value: str) -> str:
    """PostgreSQL takes no NUL in a text."""
    return value.replace("\0", "\ufffd") if "\0" in value else value


def labels_json(labels: Labels) -> str:
    return json.dumps(labels, ensure_ascii=False, separators=(",", ":"))


class Names:
    """Numbers of rows. What was made in a transaction that failed must be forgotten."""

    def __init__(self) -> None:
        self._accounts: dict[tuple[str, ...], int] = {}
        self._dimensions: dict[tuple[Any, ...], Where] = {}
        self._prices: dict[bytes, int] = {}
        self._values: dict[tuple[int, int], _Values] = {}
        self._day = 0

    def forget(self) -> None:
        for cache in (self._accounts, self._dimensions, self._prices, self._values):
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
        values = {"account_id": account, **dict(zip(SHAPE, shape, strict=True)), "labels": text}
        found, new = _find_or_make(connection, dimensions, (str(account), *shape, text), values)
        if new and labels:
            rows = [{"dimension_id": found, "name": name, "value": value} for name, value in dict(labels).items()]
            connection.execute(insert(dimension_labels), rows)
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
