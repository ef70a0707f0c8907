"""An index's vectors on disk: one SQLite file, a row a slot.

Rows are independent of each other: what changed is written in batches. Nothing in the file is believed because it is
there: its head names the space it belongs to, and each row carries a checksum of its own, since SQLite would hand out a
flipped bit.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from xxhash import xxh3_64_digest

from forebay.cache.semantic.index import SCOPE_BYTES, Space

__all__ = ["Row", "Unreadable", "VectorsFile"]

_FORMAT = 1
_BATCH = 4_096
_NOT_OURS = frozenset(
    {
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_NOTADB,
        sqlite3.SQLITE_FORMAT,
        sqlite3.SQLITE_ERROR,
        sqlite3.SQLITE_MISMATCH,
    }
)
"""SQLite's primary codes for a file that is damaged, or laid out otherwise."""
_LATEST = 1 << 60
_WAIT = 5.0
"""Seconds for a process that ends to let go of the file."""


class Unreadable(Exception):
    """The file is damaged, or of another space or version. Says which."""


class Row(NamedTuple):
    slot: int
    entry: str
    scope: bytes
    used: int
    """Order of use: the higher, the later."""
    vector: bytes


class VectorsFile:
    """Calls come from one thread at a time. No other process can open the file meanwhile. Raises Unreadable, and
    OSError where the disk is full, the folder cannot be written, or another process has the file."""

    def __init__(self, path: Path, space: Space, vector_bytes: int) -> None:
        self.path = path
        self._vector_bytes = vector_bytes
        head: dict[str, str | int] = {"format": _FORMAT, "embedder": space.embedder}
        head |= {"dimensions": space.dimensions, "policy": space.policy}
        os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
        with _told(path):
            self._db = sqlite3.connect(path, timeout=_WAIT, isolation_level=None, check_same_thread=False)
        self._db.text_factory = bytes  # what is not UTF-8 is damage, not an error of its own
        try:
            with _told(path):
                self._begin(head)
        except BaseException:
            self._db.close()
            raise

    def _begin(self, head: dict[str, str | int]) -> None:
        run = self._db.execute
        run("PRAGMA locking_mode=EXCLUSIVE")
        run("PRAGMA page_size=8192")
        run("PRAGMA journal_mode=WAL")
        run("PRAGMA synchronous=NORMAL")
        run("PRAGMA journal_size_limit=67108864")
        run("PRAGMA secure_delete=ON")  # a purged question's vector tells of the question
        run("BEGIN EXCLUSIVE")
        if not run("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            run("CREATE TABLE head (told TEXT NOT NULL)")
            run(
                "CREATE TABLE vectors (slot INTEGER PRIMARY KEY, entry BLOB NOT NULL, scope BLOB NOT NULL,"
                " used INTEGER NOT NULL, vector BLOB NOT NULL, checksum BLOB NOT NULL)"
            )
            run("INSERT INTO head VALUES (?)", (json.dumps(head),))
        told = run("SELECT told FROM head").fetchone()
        run("COMMIT")
        try:
            found = json.loads(told[0]) if told else None
        except (TypeError, ValueError):
            found = None
        if not isinstance(found, dict):
            raise Unreadable("its head is damaged")
        for name, value in head.items():
            if found.get(name) != value:
                raise Unreadable(f"it is of {name} {str(found.get(name))[:100]}, not of {value}")

    def newest(self, most: int) -> int:
        """The `used` from which on there are at most so many rows."""
        with _told(self.path):
            if (self._db.execute("SELECT max(slot) FROM vectors").fetchone()[0] or 0) < most:
                return 0
            last = "SELECT used FROM vectors ORDER BY used DESC LIMIT 1 OFFSET ?"
            found = self._db.execute(last, (most,)).fetchone()
            if found and not isinstance(found[0], int):
                raise Unreadable("its order of use is damaged")
            return found[0] + 1 if found else 0

    def rows(self) -> Iterator[list[Row | int]]:
        """All of them in batches, by slot. A damaged one comes as its slot alone."""
        with _told(self.path):
            found = self._db.execute("SELECT slot, entry, scope, used, vector, checksum FROM vectors ORDER BY slot")
            while batch := found.fetchmany(_BATCH):
                yield [self._checked(*row) for row in batch]

    def _checked(
        self, slot: int, entry: object, scope: object, used: object, vector: object, told: object
    ) -> Row | int:
        if not (isinstance(entry, bytes) and isinstance(scope, bytes) and isinstance(vector, bytes)):
            return slot
        if (
            not (isinstance(used, int) and 0 < used < _LATEST)
            or len(scope) != SCOPE_BYTES
            or len(vector) != self._vector_bytes
        ):
            return slot
        if not entry.isascii() or told != _checksum(slot, entry, scope, vector):
            return slot
        return Row(slot, entry.decode(), scope, used, vector)

    def write(self, rows: Iterable[Row], used: Iterable[tuple[int, int]], gone: Iterable[int]) -> None:
        """All of it or nothing: rows in place of what was in their slots, (`used`, slot) of others, slots to empty."""
        with _told(self.path):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                self._db.executemany(
                    "INSERT OR REPLACE INTO vectors VALUES (?, ?, ?, ?, ?, ?)",
                    (_written(row) for row in rows),
                )
                self._db.executemany("UPDATE vectors SET used = ? WHERE slot = ?", used)
                self._db.executemany("DELETE FROM vectors WHERE slot = ?", ((slot,) for slot in gone))
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    def close(self) -> None:
        self._db.close()


def _written(row: Row) -> tuple[int, bytes, bytes, int, bytes, bytes]:
    slot, entry, scope, used, vector = row
    name = entry.encode("ascii")
    return slot, name, scope, used, vector, _checksum(slot, name, scope, vector)


def _checksum(slot: int, entry: bytes, scope: bytes, vector: bytes) -> bytes:
    return xxh3_64_digest(b"%d %b%b%b" % (slot, scope, vector, entry))


@contextlib.contextmanager
def _told(path: Path) -> Iterator[None]:
    """SQLite's errors as ours."""
    try:
        yield
    except sqlite3.DatabaseError as e:
        whole = getattr(e, "sqlite_errorcode", sqlite3.SQLITE_MISUSE)
        code = whole & 0xFF
        if code in _NOT_OURS or whole == sqlite3.SQLITE_IOERR_SHORT_READ:
            raise Unreadable(f"it is damaged ({e})") from e
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise OSError(f"{path} is in use by another process") from e
        raise OSError(f"{path}: {e}") from e
