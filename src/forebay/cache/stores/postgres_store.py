"""Answers in the PostgreSQL that `database` names, which hosts share.

Two tables, made where they are missing: forebay_answers, and forebay_answer_drops with what was dropped (`sharing`).
Putting an answer and numbering a drop exclude each other by an advisory lock, so that an answer is there before a purge
looks for it, or knows of it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

from forebay.cache.messages import Purge
from forebay.cache.stores.postgres_client import Connection, PostgresClient
from forebay.cache.stores.sharing import KEPT_DROPS, News, Sharing, read_news
from forebay.cache.stores.store import (
    FORMAT,
    PAGE,
    BadRecord,
    Known,
    OtherFormat,
    Position,
    Record,
    Stats,
    StoreGone,
    pack,
    unpack,
)

__all__ = ["PostgresStore"]

_LOCK: Final = 0x666F726562617963  # "forebayc"
_CHANNEL: Final = "forebay_answer_drops"
_MOST_TOUCHED: Final = 2_048
_MEASURED: Final = 60.0
"""Seconds between looks at how much there is."""

_TABLES: Final = (
    """CREATE TABLE IF NOT EXISTS forebay_answers (
        entry text PRIMARY KEY, format integer NOT NULL, exact bytea NOT NULL, scope bytea NOT NULL,
        question bytea NOT NULL, partition text NOT NULL, model text NOT NULL, version text NOT NULL,
        tags text[] NOT NULL, sources text[] NOT NULL, until double precision NOT NULL,
        used double precision NOT NULL, size integer NOT NULL, record bytea NOT NULL, UNIQUE (exact, format))""",
    "CREATE INDEX IF NOT EXISTS forebay_answers_until ON forebay_answers (until)",
    "CREATE INDEX IF NOT EXISTS forebay_answers_used ON forebay_answers (used)",
    """CREATE TABLE IF NOT EXISTS forebay_answer_drops (
        n bigint PRIMARY KEY, word text NOT NULL, by text NOT NULL, at double precision NOT NULL,
        said bytea NOT NULL)""",
)


class PostgresStore(Sharing):
    """`most_bytes`: of records, over all hosts; what is longest unused goes first, some time after there are more.
    `position`: as SharedStore has it, of an earlier life of this process."""

    name = "postgres"

    def __init__(
        self,
        url: str,
        wall: Callable[[], float],
        *,
        most_bytes: int = 1 << 30,
        wait: float = 0.025,
        change_wait: float = 2.0,
        position: Position | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Tries to connect, 2 s at most. Raises StoreError for a URL that is none."""
        super().__init__(wall, position)
        self.most_bytes = most_bytes
        self.client = PostgresClient(url, _prepare, wait=wait, change_wait=change_wait, channel=_CHANNEL, now=now)
        self._touched: dict[str, float] = {}
        self._touching = threading.Lock()
        self._measured_at = float("-inf")
        self._now = now
        with suppress(StoreGone):  # counted, and tried again
            self._changed(lambda _: None)

    @property
    def state(self) -> str:
        return self.client.circuit.problem or "ok"

    @property
    def _resting(self) -> bool:
        return self.client.circuit.is_open

    # --- look-ups ----------------------------------------------------------------------------------------------------

    def exact(self, key: bytes) -> Record | None:
        return self._one("SELECT record FROM forebay_answers WHERE exact = %s AND format = %s", (key, FORMAT))

    def get(self, entry: str) -> Record | None:
        return self._one("SELECT record FROM forebay_answers WHERE entry = %s", (_text(entry),))

    def _one(self, sql: Any, values: Sequence[object]) -> Record | None:
        found = self._looked_up(sql, values)
        if found:
            try:
                record = unpack(bytes(found[0][0]))
                if values[0] not in (record.exact, record.entry):
                    raise BadRecord("another one's record")
            except OtherFormat:
                self._tally.other_format += 1
            except BadRecord:
                self._tally.damaged += 1
            else:
                if record.until > self._wall():
                    self._tally.hits += 1
                    return record
        self._tally.misses += 1
        return None

    def known(self, entries: Sequence[str]) -> dict[str, Known]:
        found = self._looked_up(
            "SELECT entry, scope, question, partition FROM forebay_answers WHERE entry = ANY(%s) AND until > %s",
            ([_text(entry) for entry in entries], self._wall()),
        )
        return {row[0]: _known(row) for row in found}

    def _looked_up(self, sql: Any, values: Sequence[object]) -> list[tuple[Any, ...]]:
        resting = self._resting
        try:
            return self.client.look_up(lambda connection: connection.execute(sql, values, binary=True).fetchall())
        except StoreGone:
            self._failed(resting)
            return []

    # --- changes -----------------------------------------------------------------------------------------------------

    def _put(self, record: Record, known: Position) -> tuple[str, ...] | None:
        packed = pack(record)

        def ask(connection: Connection) -> tuple[str, ...] | None:
            with connection.transaction():
                connection.execute("SELECT pg_advisory_xact_lock_shared(%s)", (_LOCK,))
                if _last(connection) != known:
                    return None
                gone = connection.execute(
                    "DELETE FROM forebay_answers WHERE (exact = %s AND format = %s) OR entry = %s RETURNING entry",
                    (record.exact, FORMAT, record.entry),
                ).fetchall()
                made = connection.execute(
                    "INSERT INTO forebay_answers VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"
                    " ON CONFLICT DO NOTHING",
                    (
                        record.entry,
                        FORMAT,
                        record.exact,
                        record.scope,
                        record.question.encode(),
                        _text(record.partition),
                        _text(record.model),
                        _text(record.version),
                        [_text(tag) for tag in record.tags],
                        [_text(source) for source in record.sources],
                        record.until,
                        self._wall(),
                        len(packed),
                        packed,
                    ),
                )
                if not made.rowcount:  # another host put an equal one at the same time: again
                    return None
            return tuple(row[0] for row in gone if row[0] != record.entry)

        return self.client.change(ask)

    def _remove(self, purge: Purge) -> tuple[str, ...]:
        where, values = _where(purge)
        return self._delete_all(where, values)

    def _discard(self, entries: Sequence[str]) -> int:
        return len(self._delete_all("entry = ANY(%s)", [[_text(entry) for entry in entries]]))

    def _delete_all(self, where: str, values: Sequence[object]) -> tuple[str, ...]:
        """Some thousands at a time, so that each statement ends in time."""
        gone: list[str] = []
        while page := self._delete_some(where, values, PAGE * 4):
            gone += page
        return tuple(gone)

    def _delete_some(self, where: str, values: Sequence[object], most: int) -> list[str]:
        sql: Any = (
            "DELETE FROM forebay_answers WHERE ctid = ANY(ARRAY("  # noqa: S608
            f"SELECT ctid FROM forebay_answers WHERE {where} LIMIT {most})) RETURNING entry"
        )
        return [row[0] for row in self._changed(lambda connection: connection.execute(sql, values).fetchall())]

    def questions(self) -> Iterator[Sequence[Known]]:
        last = ""
        while True:
            values = (last, self._wall(), PAGE)
            page = self._changed(
                lambda connection, values=values: connection.execute(  # type: ignore[misc]
                    "SELECT entry, scope, question, partition FROM forebay_answers"
                    " WHERE entry > %s AND scope != ''::bytea AND until > %s ORDER BY entry LIMIT %s",
                    values,
                    binary=True,
                ).fetchall()
            )
            if not page:
                return
            last = page[-1][0]
            yield [_known(row) for row in page]

    def touch(self, entries: Sequence[str]) -> None:
        now = self._wall()
        with self._touching:
            for entry in entries:
                if entry in self._touched or len(self._touched) < _MOST_TOUCHED:
                    self._touched[_text(entry)] = now

    def expire(self) -> tuple[str, ...]:
        with self._touching:
            touched, self._touched = self._touched, {}
        if touched:
            self._changed(
                lambda connection: connection.execute(
                    "UPDATE forebay_answers SET used = new.used"
                    " FROM unnest(%s::text[], %s::float8[]) AS new (entry, used)"
                    " WHERE forebay_answers.entry = new.entry",
                    (list(touched), list(touched.values())),
                )
            )
        gone = self._delete_some("until <= %s", (self._wall(),), PAGE)
        return tuple(gone or self._make_room())

    def _make_room(self) -> list[str]:
        if self._now() < self._measured_at + _MEASURED:
            return []
        size, count = self._measure()
        if size <= self.most_bytes:
            self._measured_at = self._now()
            return []
        share = min(PAGE, 1 + (size - self.most_bytes) * count // size)
        gone = self._delete_some("true ORDER BY used", (), share)
        self._tally.evicted += len(gone)
        return gone

    def _measure(self) -> tuple[int, int]:
        """Bytes of records, and how many."""
        size, count = self._changed(
            lambda connection: connection.execute(
                "SELECT coalesce(sum(size), 0)::bigint, count(*) FROM forebay_answers"
            ).fetchone()
        )
        return size, count

    def _changed(self, ask: Callable[[Connection], Any]) -> Any:
        try:
            return self.client.change(ask, anyway=True)
        except StoreGone:
            self._tally.failed += 1
            raise

    # --- other hosts -------------------------------------------------------------------------------------------------

    def _tell(self, word: str, by: str, at: float, drop: bytes) -> None:
        def ask(connection: Connection) -> None:
            with connection.transaction():
                connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
                n = _last(connection).n + 1
                connection.execute(
                    "INSERT INTO forebay_answer_drops VALUES (%s, %s, %s, %s, %s)", (n, word, by, at, drop)
                )
                connection.execute("DELETE FROM forebay_answer_drops WHERE n <= %s", (n - KEPT_DROPS,))
                connection.execute(f"NOTIFY {_CHANNEL}")

        self._changed(ask)

    def _await_drop(self, known: Position, wait: float) -> None:
        try:
            self.client.listen(0.0)  # from here on, nothing is missed
            if self._changed(_last) == known:
                self.client.listen(min(wait, 1.0))
        except StoreGone:
            self._tally.failed += 1
            raise

    def _news(self, known: Position) -> News:
        def ask(connection: Connection) -> tuple[Position, Any, list[tuple[Any, ...]]]:
            rows = connection.execute(
                "SELECT n, word, by, at, said FROM forebay_answer_drops WHERE n >= %s ORDER BY n", (known.n,)
            ).fetchall()
            last = Position(rows[-1][0], rows[-1][1]) if rows else _last(connection)
            then = rows.pop(0) if rows and rows[0][0] == known.n else None
            return last, then, rows

        last, then, rows = self._changed(ask)
        drops = ((row[2], row[3], bytes(row[4])) for row in rows)
        return read_news(known, last, then[1] if then else "", drops)

    # --- people ------------------------------------------------------------------------------------------------------

    def stats(self) -> Stats:
        try:
            size, count = self._measure()
        except StoreGone as e:
            return self._tally.stats(self.name, str(e), None, None, self.most_bytes)
        return self._tally.stats(self.name, "ok", count, size, self.most_bytes)

    def close(self) -> None:
        self.client.close()

    def __repr__(self) -> str:
        return f"<PostgresStore {self.client}>"


def _prepare(connection: Connection) -> None:
    found = connection.execute("SELECT to_regclass('forebay_answers'), to_regclass('forebay_answer_drops')").fetchone()
    if found is not None and all(found):  # a user that may not make tables can use them
        return
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
        for table in _TABLES:
            connection.execute(table)


def _last(connection: Connection) -> Position:
    found = connection.execute("SELECT n, word FROM forebay_answer_drops ORDER BY n DESC LIMIT 1").fetchone()
    return Position(*found) if found else Position()


def _text(value: str) -> str:
    """PostgreSQL's text has no NUL."""
    return value.replace("\0", "\ufffd")


def _known(row: tuple[Any, ...]) -> Known:
    return Known(row[0], bytes(row[1]), bytes(row[2]).decode(), row[3])


def _where(purge: Purge) -> tuple[str, list[object]]:
    """As `fits`."""
    wanted = ["true"]
    values: list[object] = []
    for column in ("entry", "model", "version"):
        if value := getattr(purge, column):
            wanted.append(f"{column} = %s")
            values.append(_text(value))
    for column, value in (("tags", purge.tag), ("sources", purge.source)):
        if value:
            wanted.append(f"%s = ANY({column})")
            values.append(_text(value))
    if purge.partition:
        wanted.append("(partition = %s OR starts_with(partition, %s))")
        values += [_text(purge.partition), _text(purge.partition.rstrip("/") + "/")]
    return " AND ".join(wanted), values
