"""The index in PostgreSQL: pgvector, in the database that `database` names, which hosts share.

One table a space, so that what another embedder made is never compared. A scope of up to SMALL questions is compared
with one by one, which is exact; a larger one is found in a graph (HNSW), scanned on until enough of that scope have
come (pgvector 0.8).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

import numpy as np
import psycopg

from forebay.cache.semantic.index import SCOPE_BYTES, BadVector, IndexUnavailable, Near, Space, Vectors, checked
from forebay.cache.stores.postgres_client import Connection, PostgresClient
from forebay.cache.stores.store import StoreGone

__all__ = ["SMALL", "PgvectorIndex"]

_T = TypeVar("_T")

SMALL: Final = 1_000
"""Questions of a scope that are compared one by one: some milliseconds."""
_LARGE_FOR: Final = 600.0
"""Seconds after which a scope that was large is looked at again."""
_MOST_LARGE: Final = 1_000
_LAYOUT: Final = 1
_LOCK: Final = 0x666F726562617976  # "forebayv"
_ABANDONED: Final = 30 * 86_400.0
"""Seconds after which a space that nobody opened is removed."""
_COUNTED: Final = 60.0
"""Seconds after which questions are counted again: other hosts add, too."""
_MOST_TOUCHED: Final = 2_048
_MOST_NEAR: Final = 10_000
_LEAST: Final = (0, 8)
"""Version of pgvector."""


class PgvectorIndex:
    """`Index`, of at most `most` entries over all hosts, or a few more for a minute. `wait`: seconds for a search;
    `change_wait`: for all else."""

    def __init__(
        self,
        url: str,
        space: Space,
        most: int,
        wall: Callable[[], float],
        *,
        wait: float = 0.025,
        change_wait: float = 2.0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Makes the table where it is missing; takes seconds where the server does not answer. Raises StoreError for a
        URL that is none; IndexUnavailable, whose message says what is missing."""
        self._space = space
        self._most = most
        self._wall = wall
        self._now = now
        self._table = f"forebay_vectors_{space.name}_{_LAYOUT}"
        self._touched: dict[str, float] = {}
        self._large: dict[bytes, float] = {}
        self._lock = threading.Lock()
        self._length = 0
        self._counted_at = float("-inf")
        self._client = PostgresClient(url, self._prepare, self._ready, wait=wait, change_wait=change_wait, now=now)
        try:
            self._changed(lambda _: None)
            self._count()
        except IndexUnavailable:
            self._client.close()
            raise

    @property
    def space(self) -> Space:
        return self._space

    def _prepare(self, connection: Connection) -> None:
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
            _need_pgvector(connection)
            connection.execute(
                "CREATE TABLE IF NOT EXISTS forebay_vector_spaces (name text PRIMARY KEY, used float8 NOT NULL)"
            )
            abandoned = connection.execute(
                "DELETE FROM forebay_vector_spaces WHERE used < %s RETURNING name", (self._wall() - _ABANDONED,)
            ).fetchall()
            for (name,) in abandoned:
                _run(connection, f'DROP TABLE IF EXISTS "{name}"')
            connection.execute(
                "INSERT INTO forebay_vector_spaces VALUES (%s, %s)"
                " ON CONFLICT (name) DO UPDATE SET used = excluded.used",
                (self._table, self._wall()),
            )
            table = self._table
            _run(
                connection,
                f"CREATE TABLE IF NOT EXISTS {table} (entry text PRIMARY KEY, scope bytea NOT NULL,"
                f" used float8 NOT NULL, vector halfvec({self._space.dimensions}) NOT NULL)",
            )
            _run(connection, f"CREATE INDEX IF NOT EXISTS {table}_scope ON {table} (scope)")
            _run(connection, f"CREATE INDEX IF NOT EXISTS {table}_used ON {table} (used)")
            _run(
                connection,
                f"CREATE INDEX IF NOT EXISTS {table}_near ON {table} USING hnsw (vector halfvec_ip_ops)"
                " WITH (m = 16, ef_construction = 64)",
            )

    def _ready(self, connection: Connection) -> None:
        connection.execute("SET hnsw.iterative_scan = strict_order")
        connection.execute("SET hnsw.ef_search = 100")

    # --- questions ---------------------------------------------------------------------------------------------------

    def search(self, scope: bytes, vectors: Vectors, k: int) -> list[list[Near]]:
        asked = checked(vectors, self._space.dimensions)
        return self._asked(lambda: self._client.look_up(lambda connection: self._nearest(connection, scope, asked, k)))

    def _nearest(self, connection: Connection, scope: bytes, asked: Vectors, k: int) -> list[list[Near]]:
        return [self._nearest_to(connection, scope, row, min(k, _MOST_NEAR)) for row in asked]

    def _nearest_to(self, connection: Connection, scope: bytes, asked: Vectors, k: int) -> list[Near]:
        values = {"scope": scope, "asked": _text(asked), "k": k, "most": SMALL + 1}
        with self._lock:
            large = self._now() < self._large.get(scope, float("-inf"))
        if not large:
            rows = _run(
                connection,
                "WITH mine AS MATERIALIZED ("  # noqa: S608
                f"SELECT entry, vector FROM {self._table} WHERE scope = %(scope)s LIMIT %(most)s)"
                " SELECT entry, halfvec_send(vector), n FROM (SELECT entry, vector, (SELECT count(*) FROM mine) AS n"
                " FROM mine ORDER BY vector <#> %(asked)s::halfvec LIMIT %(k)s) AS best",
                values,
            ).fetchall()
            if not rows or rows[0][2] <= SMALL:
                return self._read(asked, rows)
            self._is_large(scope)
        return self._graph(connection, "WHERE scope = %(scope)s", asked, values)

    def _is_large(self, scope: bytes) -> None:
        with self._lock:
            self._large.pop(scope, None)
            self._large[scope] = self._now() + _LARGE_FOR
            if len(self._large) > _MOST_LARGE:
                del self._large[next(iter(self._large))]

    def _graph(self, connection: Connection, where: str, asked: Vectors, values: dict[str, Any]) -> list[Near]:
        rows = _run(
            connection,
            f"SELECT entry, halfvec_send(vector) FROM (SELECT entry, vector FROM {self._table} {where}"  # noqa: S608
            " ORDER BY vector <#> %(asked)s::halfvec LIMIT %(k)s) AS best",
            values,
        ).fetchall()
        return self._read(asked, rows)

    def _read(self, asked: Vectors, rows: Sequence[tuple[Any, ...]]) -> list[Near]:
        """halfvec_send says two 16-bit numbers, then halves, all big-endian (pgvector, src/halfvec.c)."""
        joined = np.frombuffer(b"".join(bytes(row[1])[4:] for row in rows), ">f2")
        vectors = joined.reshape(len(rows), self._space.dimensions).astype(np.float32)
        found = [
            Near(row[0], cosine, vector)
            for row, cosine, vector in zip(rows, (vectors @ asked).tolist(), vectors, strict=True)
        ]
        return sorted(found, key=lambda near: -near.cosine)

    def like(self, vector: Vectors, at_least: float, most: int) -> list[Near]:
        asked = checked(vector, self._space.dimensions)[0]
        values = {"asked": _text(asked), "k": min(most, _MOST_NEAR)}
        found = self._changed(lambda connection: self._graph(connection, "", asked, values))
        return [near for near in found if near.cosine >= at_least]

    # --- changes -----------------------------------------------------------------------------------------------------

    def add(self, scope: bytes, entry: str, vector: Vectors) -> None:
        if len(scope) != SCOPE_BYTES:
            raise ValueError(f"a scope has {SCOPE_BYTES} bytes, not {len(scope)}")
        rows = checked(vector, self._space.dimensions)
        if len(rows) != 1:
            raise BadVector(f"one vector is added at a time, not {len(rows)}")
        self._write_uses()
        new = self._changed(
            lambda connection: _run(
                connection,
                f"INSERT INTO {self._table} VALUES (%s, %s, %s, %s::halfvec) ON CONFLICT (entry) DO UPDATE"  # noqa: S608
                " SET scope = excluded.scope, used = excluded.used, vector = excluded.vector RETURNING xmax = 0",
                (entry, scope, self._wall(), _text(rows[0])),
            ).fetchone()
        )
        if new is not None and new[0]:
            with self._lock:
                self._length += 1
        self._make_room()

    def _make_room(self) -> None:
        if self._now() > self._counted_at + _COUNTED:
            self._count()
        beyond = self._length - self._most
        if beyond > 0:
            self._delete(
                f"entry IN (SELECT entry FROM {self._table} ORDER BY used LIMIT %s)",  # noqa: S608
                (min(beyond, 1_000),),
            )

    def touch(self, entries: Iterable[str]) -> None:
        now = self._wall()
        with self._lock:
            for entry in entries:
                if entry in self._touched or len(self._touched) < _MOST_TOUCHED:
                    self._touched[entry] = now

    def _write_uses(self) -> None:
        with self._lock:
            touched, self._touched = self._touched, {}
        if touched:
            self._changed(
                lambda connection: _run(
                    connection,
                    f"UPDATE {self._table} SET used = new.used FROM unnest(%s::text[], %s::float8[])"  # noqa: S608
                    f" AS new (entry, used) WHERE {self._table}.entry = new.entry",
                    (list(touched), list(touched.values())),
                )
            )

    def remove(self, entries: Iterable[str]) -> int:
        gone = list(dict.fromkeys(entries))
        return self._delete("entry = ANY(%s)", (gone,)) if gone else 0

    def _delete(self, where: str, values: Sequence[object]) -> int:
        count = self._changed(
            lambda connection: _run(connection, f"DELETE FROM {self._table} WHERE {where}", values).rowcount  # noqa: S608
        )
        with self._lock:
            self._length -= count
        return count

    def missing(self, entries: Sequence[str]) -> list[str]:
        rows = self._changed(
            lambda connection: _run(
                connection,
                f"SELECT entry FROM {self._table} WHERE entry = ANY(%s)",  # noqa: S608
                (list(entries),),
            ).fetchall()
        )
        there = {row[0] for row in rows}
        return [entry for entry in entries if entry not in there]

    def clear(self) -> int:
        count = self._count()
        self._changed(lambda connection: _run(connection, f"TRUNCATE {self._table}"))
        with self._lock:
            self._length = 0
        return count

    # --- how much ----------------------------------------------------------------------------------------------------

    def _count(self) -> int:
        found = self._changed(lambda connection: _run(connection, f"SELECT count(*) FROM {self._table}").fetchone())  # noqa: S608
        count = int(found[0]) if found else 0
        with self._lock:
            self._length = count
            self._counted_at = self._now()
        return count

    def __len__(self) -> int:
        """As it was last known, where the server is gone."""
        try:
            return self._count()
        except IndexUnavailable:
            return self._length

    def memory_bytes(self) -> int:
        """On the server's disk."""
        found = self._changed(
            lambda connection: _run(connection, "SELECT pg_total_relation_size(%s)", (self._table,)).fetchone()
        )
        return int(found[0]) if found else 0

    def save(self) -> None:
        """What was touched; the rest is there."""
        self._write_uses()

    def close(self) -> None:
        with suppress(IndexUnavailable):  # it only says what makes room first
            self._write_uses()
        self._client.close()

    def _changed(self, ask: Callable[[Connection], _T]) -> _T:
        return self._asked(lambda: self._client.change(ask, anyway=True))

    def _asked(self, ask: Callable[[], _T]) -> _T:
        try:
            return ask()
        except StoreGone as e:
            raise IndexUnavailable(str(e)) from e

    def __repr__(self) -> str:
        return f"<PgvectorIndex {self._space.embedder} {self._client}>"


def _run(connection: Connection, sql: str, values: Any = None) -> psycopg.Cursor[tuple[Any, ...]]:
    """Tables have names of our own making."""
    return connection.execute(sql.encode(), values, binary=True)


def _need_pgvector(connection: Connection) -> None:
    connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
    found = connection.execute("SELECT extversion FROM pg_extension WHERE extname = 'vector'").fetchone()
    version = str(found[0]) if found else "none"
    if tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) < _LEAST:
        raise psycopg.NotSupportedError(
            f"pgvector there is {version}, and 0.8 or later is needed: ALTER EXTENSION vector UPDATE, or "
            "cache.semantic.index: faiss"
        )


def _text(vector: Vectors) -> str:
    return "[" + ",".join(f"{x:.6g}" for x in vector.tolist()) + "]"
