"""What the file of answers is to SQLite: its tables, and what is asked of them."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Final

from forebay.cache.messages import Purge
from forebay.cache.stores.presence import Presence

PACKED: Final = {
    "exact": "SELECT record FROM packed JOIN records USING (id) WHERE exact = ? AND until > ?",
    "entry": "SELECT record FROM packed JOIN records USING (id) WHERE entry = ? AND until > ?",
}
KNOWN: Final = "SELECT entry, scope, question, partition, coalesce(reading, x'') FROM records WHERE until > ? AND entry"
IDS: Final = {
    "exact": "SELECT id FROM records WHERE exact = ?",
    "entry": "SELECT id FROM records WHERE entry = ?",
}
HAS: Final = {
    "tags": "EXISTS (SELECT 1 FROM json_each(tags) WHERE value = ?)",
    "sources": "EXISTS (SELECT 1 FROM json_each(sources) WHERE value = ?)",
}

TABLES: Final = """
CREATE TABLE records (
    id INTEGER PRIMARY KEY, entry TEXT NOT NULL UNIQUE, exact BLOB NOT NULL UNIQUE, scope BLOB NOT NULL,
    question TEXT NOT NULL, partition TEXT NOT NULL, model TEXT NOT NULL, version TEXT NOT NULL,
    tags TEXT NOT NULL, sources TEXT NOT NULL, until REAL NOT NULL, used REAL NOT NULL, reading BLOB
);
CREATE INDEX by_until ON records (until);
CREATE INDEX by_used ON records (used);
CREATE TABLE packed (id INTEGER PRIMARY KEY, record BLOB NOT NULL);
"""


def text(value: bytes) -> str:
    """Damaged text is no error: what it belongs to is not believed, and the rest is."""
    return value.decode("utf-8", "replace")


def delete(db: sqlite3.Connection, chosen: str, values: Sequence[object]) -> tuple[str, ...]:
    """What the query `chosen` names by its ids; the entries that went."""
    db.execute(f"DELETE FROM packed WHERE id IN ({chosen})", values)  # noqa: S608
    gone = db.execute(f"DELETE FROM records WHERE id IN ({chosen}) RETURNING entry", values).fetchall()  # noqa: S608
    return tuple(row[0] for row in gone)


def where(purge: Purge) -> tuple[str, list[object]]:
    """As `fits`."""
    wanted: list[str] = []
    values: list[object] = []
    for column in ("entry", "model", "version"):
        if value := getattr(purge, column):
            wanted.append(f"{column} = ?")
            values.append(value)
    for column, value in (("tags", purge.tag), ("sources", purge.source)):
        if value:
            wanted.append(HAS[column])
            values.append(value)
    if purge.partition:
        below = purge.partition.rstrip("/") + "/"
        wanted.append("(partition = ? OR substr(partition, 1, ?) = ?)")
        values += [purge.partition, len(below), below]
    return (" WHERE " + " AND ".join(wanted) if wanted else ""), values


def taken(db: sqlite3.Connection) -> int:
    """Bytes of the pages that hold something."""
    return (number(db, "page_count") - number(db, "freelist_count")) * number(db, "page_size")


def keys_of(db: sqlite3.Connection, room: int = 0) -> Presence:
    """Of all answers that are there; a million take half a second."""
    count = db.execute("SELECT count(*) FROM records").fetchone()[0]
    found = Presence(max(room, 2 * count))
    found.update(row[0] for row in db.execute("SELECT exact FROM records"))
    return found


def number(db: sqlite3.Connection, pragma: str) -> int:
    return int(db.execute(f"PRAGMA {pragma}").fetchone()[0])


def damaged(problem: sqlite3.Error) -> bool:
    code = getattr(problem, "sqlite_errorcode", None)
    if code is None:  # ours, of `_prepare`
        return type(problem) is sqlite3.DatabaseError
    return (code & 0xFF) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def unwritable(problem: sqlite3.Error) -> bool:
    """The disk is full, read-only or broken."""
    code = getattr(problem, "sqlite_errorcode", 0) & 0xFF
    return code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN)
