"""The database for those who only read it, on threads of their own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # SQLAlchemy takes 0.4 s to import: done on a thread, when something is read
    from forebay.ledger.database import Database


class Opened:
    """Opened when it is first asked for, and anew where another has taken its place."""

    def __init__(self, url: str, state_dir: Path) -> None:
        self._url = url
        self._state_dir = state_dir
        self._database: Database | None = None

    def get(self) -> Database:
        """Blocks. Raises DatabaseError."""
        from forebay.ledger.database import Database, DatabaseError, DatabaseGone

        database = self._database
        if database is not None:
            try:
                database.still_there()
            except DatabaseGone:
                database.close()
            else:
                return database
        database = Database(self._url, self._state_dir)
        try:
            if database.file is not None and not database.file.exists():
                raise DatabaseGone(f"{database} is not there yet")
            database.check()
        except DatabaseError:
            database.close()
            raise
        self._database = database
        return database

    def close(self) -> None:
        """Blocks."""
        database, self._database = self._database, None
        if database is not None:
            database.close()

    def __repr__(self) -> str:
        return f"<Opened {self._database or 'not yet'}>"
