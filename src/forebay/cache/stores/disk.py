"""Answers in a file of the state directory: SQLite with a write-ahead log.

Two connections, each under its own lock: a look-up never waits for a purge. What is put survives the process at once
and a power cut after a moment; a purge survives both when it returns, and its bytes are overwritten. A file that is
damaged or somebody else's is set aside (`.damaged`, the last one) and a new one begun.
"""

from __future__ import annotations

import json
import logging
import os
import sqlite3
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from forebay.cache.messages import Drop, Purge
from forebay.cache.stores.disk_sql import (
    IDS,
    KNOWN,
    PACKED,
    TABLES,
    damaged,
    delete,
    keys_of,
    number,
    taken,
    text,
    unwritable,
    where,
)
from forebay.cache.stores.presence import Presence
from forebay.cache.stores.store import (
    PAGE,
    BadRecord,
    Known,
    OtherFormat,
    Purged,
    Put,
    Record,
    Stats,
    StoreError,
    StoreGone,
    Tally,
    checked,
    pack,
    unpack,
)

__all__ = ["Disk", "answers_file"]

_log = logging.getLogger("forebay.cache")

_APPLICATION: Final = 0x66626163  # "fbac"
_LAYOUT: Final = 1
"""Of the tables (user_version). A file with another one is emptied: what a cache holds can be had again."""
_MOST_TOUCHED: Final = 2_048
_FEW: Final = 64
"""Entries that are asked for by one statement."""
_ROUNDED: Final = 8_192
"""Bytes that an answer takes beyond its own, at most: pages that are not full, and indexes."""
_MOST_EVICTED: Final = 256
"""Entries that one put may take away to make room."""
_LARGEST: Final = 4
"""A record may take this part of the file, at most: a quarter."""


def answers_file(state_dir: Path) -> Path:
    return state_dir / "answers.db"


class Disk:
    """`wait` and `write_wait`: seconds that look-ups and changes wait for the file's lock, which only another process
    can hold."""

    name = "disk"

    def __init__(
        self,
        file: Path,
        most_bytes: int,
        wall: Callable[[], float],
        *,
        wait: float = 0.01,
        write_wait: float = 2.0,
    ) -> None:
        """Raises StoreError where the file cannot be made or opened."""
        self.file = file
        self.most_bytes = most_bytes
        self._wall = wall
        self._wait = wait
        self._write_wait = write_wait
        self._tally = Tally()
        self._purged = Purged()
        self._touched: dict[str, float] = {}
        self._touching = threading.Lock()
        self._owes = False
        """A purge could not be done (a full disk): what it fits may be in the file still, and is not given."""
        self.state = "ok"
        self._failing = False
        """Nothing could be written since."""
        self._reading = threading.Lock()
        self._writing = threading.RLock()
        self._together = False
        self._room = 0
        """Bytes that there certainly are without looking."""
        self._keys = Presence()
        self._open()

    # --- look-ups ----------------------------------------------------------------------------------------------------

    def exact(self, key: bytes) -> Record | None:
        if self._keys.absent(key):
            self._tally.misses += 1
            return None
        return self._one("exact", key)

    def absent(self, key: bytes) -> bool:
        return self._keys.absent(key)

    def get(self, entry: str) -> Record | None:
        return self._one("entry", entry)

    def _one(self, column: str, value: str | bytes) -> Record | None:
        found = self._looked_up(PACKED[column], (value, self._wall()))
        if found:
            try:
                record = unpack(found[0][0])
                if getattr(record, column) != value:
                    raise BadRecord("another one's record")
            except BadRecord as e:
                self._bad(e, column, value)
            else:
                if self._owes and self._purged.forbids(record):
                    self._tally.misses += 1
                    return None
                self._tally.hits += 1
                return record
        self._tally.misses += 1
        return None

    def _bad(self, problem: BadRecord, column: str, value: str | bytes) -> None:
        """Its row goes, so that it is met once."""
        if isinstance(problem, OtherFormat):
            self._tally.other_format += 1
        else:
            self._tally.damaged += 1
        with suppress(StoreGone), self._write() as db:  # met again, and counted again, where that failed
            delete(db, IDS[column], (value,))

    def known(self, entries: Sequence[str]) -> dict[str, Known]:
        found: dict[str, Known] = {}
        for start in range(0, len(entries), _FEW):
            some = entries[start : start + _FEW]
            marks = "?, " * (len(some) - 1) + "?"
            rows = self._looked_up(f"{KNOWN} IN ({marks})", (self._wall(), *some))
            found.update({row[0]: Known(*row) for row in rows})
        return found

    def _looked_up(self, sql: str, values: Sequence[object]) -> list[Any]:
        try:
            return self._read(sql, values)
        except StoreGone:  # counted
            return []

    def _read(self, sql: str, values: Sequence[object] = ()) -> list[Any]:
        """Raises StoreGone."""
        with self._reading:
            db = self._reader
            try:
                return db.execute(sql, values).fetchall()
            except sqlite3.Error as e:
                problem = e
        raise self._gone(problem, db)

    # --- changes -----------------------------------------------------------------------------------------------------

    def put(self, record: Record, reading: bytes = b"") -> Put:
        packed = pack(record)
        now = self._wall()
        if record.until <= now or len(packed) > self.most_bytes // _LARGEST or self._purged.forbids(record):
            self._tally.refused += 1
            return Put(False, ())
        try:
            with self._write() as db:
                gone, made_room, kept = self._put(db, record, packed, now, reading)
        except StoreGone:
            self._tally.refused += 1
            return Put(False, ())
        self._tally.evicted += len(made_room)
        if kept:
            self._tally.puts += 1
        else:
            self._tally.refused += 1
        return Put(kept, tuple(one for one in gone if not (kept and one == record.entry)))

    def _put(
        self, db: sqlite3.Connection, record: Record, packed: bytes, now: float, reading: bytes
    ) -> tuple[tuple[str, ...], tuple[str, ...], bool]:
        """What went, what of it to make room, and whether it is kept."""
        size = len(packed) + len(record.question) * 4 + len(reading)
        new = self._keys.absent(record.exact)
        if self._keys.full:
            self._keys = keys_of(db, 4 * self._keys.count)
        self._keys.add(record.exact)  # before it can be there
        if new and size + _ROUNDED < self._room:
            try:
                self._insert(db, record, packed, now, reading)
            except sqlite3.IntegrityError:  # its entry is there, under another key
                pass
            else:
                self._room -= size + _ROUNDED
                return (), (), True
        gone = delete(db, "SELECT id FROM records WHERE exact = ? OR entry = ?", (record.exact, record.entry))
        made_room, kept = self._make_room(db, size)
        if kept:
            self._insert(db, record, packed, now, reading)
        return gone + made_room, made_room, kept

    @contextmanager
    def together(self) -> Iterator[None]:
        """What is put within is one transaction: a third of the time. Where the file fails in it, all of it may be
        lost, whatever `put` said. Raises StoreGone then."""
        with self._write():
            self._together = True
            try:
                yield
            finally:
                self._together = False

    def _insert(self, db: sqlite3.Connection, record: Record, packed: bytes, now: float, reading: bytes) -> None:
        made = db.execute(
            "INSERT INTO records (entry, exact, scope, question, partition, model, version, tags, sources, until, used,"
            " reading) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                record.entry,
                record.exact,
                record.scope,
                record.question,
                record.partition,
                record.model,
                record.version,
                json.dumps(record.tags) if record.tags else "[]",
                json.dumps(record.sources) if record.sources else "[]",
                record.until,
                now,
                reading or None,
            ),
        )
        db.execute("INSERT INTO packed (id, record) VALUES (?, ?)", (made.lastrowid, packed))

    def _make_room(self, db: sqlite3.Connection, size: int) -> tuple[tuple[str, ...], bool]:
        """For `size` bytes: what went, and whether there is room now."""
        gone: tuple[str, ...] = ()
        self._room = 0
        while (used := taken(db)) + size > self.most_bytes:
            if len(gone) >= _MOST_EVICTED:
                return gone, False
            longest_unused = delete(db, "SELECT id FROM records ORDER BY used LIMIT 16", ())
            if not longest_unused:
                return gone, False
            gone += longest_unused
        self._room = self.most_bytes - used - size - _ROUNDED
        return gone, True

    def remove(self, purge: Purge) -> tuple[str, ...]:
        self._purged.add(checked(purge), self._wall())
        wanted, values = where(purge)
        return self._delete_for_good(f"SELECT id FROM records{wanted}", values)  # noqa: S608

    def discard(self, entries: Sequence[str]) -> int:
        self._purged.discarded(entries, self._wall())
        return len(
            self._delete_for_good(
                "SELECT id FROM records WHERE entry IN (SELECT value FROM json_each(?))", (json.dumps(list(entries)),)
            )
        )

    def _delete_for_good(self, chosen: str, values: Sequence[object]) -> tuple[str, ...]:
        try:
            with self._write(durable=True) as db:
                gone = delete(db, chosen, values)
        except StoreGone:
            self._owes = True
            raise
        if gone:
            # The log still has the pages as they were. Where a reader is in its way, the next checkpoint does it.
            with self._alone() as db:
                db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return gone

    def questions(self) -> Iterator[Sequence[Known]]:
        last = ""
        while True:
            page = self._read(
                "SELECT entry, scope, question, partition FROM records"
                " WHERE entry > ? AND scope != x'' AND until > ? ORDER BY entry LIMIT ?",
                (last, self._wall(), PAGE),
            )
            if not page:
                return
            last = page[-1][0]
            yield [Known(*row) for row in page]

    def touch(self, entries: Sequence[str]) -> None:
        now = self._wall()
        with self._touching:
            for entry in entries:
                if entry in self._touched or len(self._touched) < _MOST_TOUCHED:
                    self._touched[entry] = now

    def expire(self) -> tuple[str, ...]:
        with self._write() as db:
            gone = delete(db, "SELECT id FROM records WHERE until <= ? LIMIT ?", (self._wall(), PAGE))
            if not gone:  # also after `most_bytes` was lowered
                made_room, _ = self._make_room(db, 0)
                self._tally.evicted += len(made_room)
                gone = made_room
        with self._alone() as db:
            # Pages that are free are given back to the file system, 4 MB at a time; some stay for the next answers.
            if number(db, "freelist_count") * 8 > number(db, "page_count"):
                db.executescript("PRAGMA incremental_vacuum(1000)")  # `execute` would step once: one page
        return gone

    def dropped(self, wait: float) -> Sequence[Drop]:
        """Nothing: no other host has this file."""
        return ()

    # --- the file ----------------------------------------------------------------------------------------------------

    def stats(self) -> Stats:
        try:
            count = self._read("SELECT count(*) FROM records")[0][0]
            taken = self._read(
                "SELECT (page_count - freelist_count) * page_size"
                " FROM pragma_page_count, pragma_freelist_count, pragma_page_size"
            )[0][0]
        except StoreGone as e:
            return self._tally.stats(self.name, str(e), None, None, self.most_bytes)
        return self._tally.stats(self.name, self.state, count, taken, self.most_bytes)

    def close(self) -> None:
        with suppress(StoreGone), self._write():  # what was touched; it only says what makes room first
            pass
        with self._writing, self._reading:
            self._writer.close()
            self._reader.close()

    def _open(self) -> None:
        """Raises StoreError. Called with both locks, or before anyone else has this."""
        try:
            self.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Mode 0600 before SQLite makes it with the umask's; its -wal and -shm follow.
            with suppress(FileExistsError):
                os.mknod(self.file, stat.S_IFREG | 0o600)
            self._writer = self._connect(self._write_wait)
            try:
                self._prepare(self._writer)
                self._reader = self._connect(self._wait)
                self._keys, self._room = keys_of(self._writer), 0
            except sqlite3.Error:
                self._writer.close()
                raise
        except OSError as e:
            raise StoreError(
                f"{self.file}: {e.strerror}; answers are kept there since cache.disk_bytes is not 0"
            ) from e
        except sqlite3.Error as e:
            if not damaged(e):
                raise StoreError(f"{self.file}: {e}; answers are kept there since cache.disk_bytes is not 0") from e
            self._set_aside(e)
            self._open()

    def _connect(self, wait: float) -> sqlite3.Connection:
        db = sqlite3.connect(self.file, timeout=wait, isolation_level=None, check_same_thread=False)
        db.text_factory = text
        return db

    def _prepare(self, db: sqlite3.Connection) -> None:
        found = (number(db, "application_id"), number(db, "user_version"))
        if found == (0, 0) and not db.execute("SELECT 1 FROM sqlite_master").fetchone():
            db.execute("PRAGMA auto_vacuum = INCREMENTAL")
            db.execute("PRAGMA journal_mode = WAL")
            db.executescript(
                f"BEGIN IMMEDIATE; {TABLES} PRAGMA application_id = {_APPLICATION};"
                f" PRAGMA user_version = {_LAYOUT}; COMMIT"
            )
        elif found != (_APPLICATION, _LAYOUT):
            raise sqlite3.DatabaseError(f"its layout is {found[1]}, and this version of Forebay has {_LAYOUT}")
        if not any(row[1] == "reading" for row in db.execute("PRAGMA table_info(records)")):
            db.execute("ALTER TABLE records ADD COLUMN reading BLOB")  # an older version leaves it alone
        db.execute("PRAGMA journal_size_limit = 16777216")
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute("PRAGMA secure_delete = ON")  # always: a page that is split leaves copies behind otherwise
        db.execute("SELECT count(*) FROM (SELECT id FROM records LIMIT 1)").fetchone()

    def _set_aside(self, problem: sqlite3.Error) -> None:
        aside = self.file.with_name(self.file.name + ".damaged")
        _log.warning(
            "%s cannot be used (%s): it is set aside as %s, and the cache of answers begins anew",
            self.file,
            problem,
            aside.name,
        )
        try:
            self.file.replace(aside)
            for rest in ("-wal", "-shm"):
                self.file.with_name(self.file.name + rest).unlink(missing_ok=True)
        except OSError as e:
            raise StoreError(f"{self.file} is damaged ({problem}) and cannot be set aside: {e.strerror}") from e

    @contextmanager
    def _write(self, *, durable: bool = False) -> Iterator[sqlite3.Connection]:
        """A transaction, with what was touched until now; or a part of one (`together`). Raises StoreGone."""
        with self._alone() as db:
            if self._together:
                yield db
                return
            with self._touching:
                touched, self._touched = self._touched, {}
            if durable:
                db.execute("PRAGMA synchronous = FULL")
            try:
                db.execute("BEGIN IMMEDIATE")
                db.executemany(
                    "UPDATE records SET used = ? WHERE entry = ?", [(at, one) for one, at in touched.items()]
                )
                before = db.total_changes
                yield db
                db.commit()
                if self._failing and db.total_changes > before:
                    self._failing, self.state = False, "ok"
                    _log.info("%s: answers are kept again", self.file)
            finally:
                if db.in_transaction:
                    db.rollback()
                if durable:
                    db.execute("PRAGMA synchronous = NORMAL")

    @contextmanager
    def _alone(self) -> Iterator[sqlite3.Connection]:
        """The connection that writes. Raises StoreGone."""
        with self._writing:
            db = self._writer
            try:
                yield db
                return
            except sqlite3.Error as e:
                problem = e
        raise self._gone(problem, db)

    def _gone(self, problem: sqlite3.Error, db: sqlite3.Connection) -> StoreGone:
        """To be raised, without a lock. A damaged file is no more when this returns."""
        self._tally.failed += 1
        if damaged(problem):
            with self._writing, self._reading:
                if db is self._writer or db is self._reader:  # else another thread has met it, too
                    self._begin_anew(problem)
        elif db is self._writer and unwritable(problem) and not self._failing:
            self._failing, self.state = True, f"{self.file}: {problem}; no answer is kept"
            _log.error("%s", self.state)
        error = StoreGone(f"{self.file}: {problem}")
        error.__cause__ = problem
        return error

    def _begin_anew(self, problem: sqlite3.Error) -> None:
        self._tally.damaged += 1
        self._writer.close()
        self._reader.close()
        try:
            self._set_aside(problem)
            self._open()
        except StoreError as e:
            self.state = str(e)
            _log.error("%s", e)

    def __repr__(self) -> str:
        return f"<Disk {self.file} {self.most_bytes:,} bytes>"
