"""The database as the task of alerts reads it: on a thread of its own, by connections of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from forebay.admin.alerting import Unreadable
from forebay.admin.threads import Busy, Threads
from forebay.ledger.alerts import Alert, Usage
from forebay.ledger.rules import Rule

if TYPE_CHECKING:  # SQLAlchemy takes 0.4 s to import: done on the thread
    from forebay.ledger.alert_usage import Memory
    from forebay.ledger.database import Database

LOOK: Final = 60.0
"""Seconds that a look may take."""
CALL: Final = 8.0
"""Seconds that a list of alerts may take."""
T = TypeVar("T")


class DatabaseBooks:
    """`alerting.Books`. Mutable state: the open database, and what is remembered of days that are over."""

    def __init__(
        self,
        url: str,
        state_dir: Path,
        zone: Callable[[], str],
        status: Callable[[], str],
        rules: Callable[[], Sequence[Rule]],
    ) -> None:
        """`zone`: `ledger.zone`. `status`: why the database cannot be used; empty where it can, its tables being up to
        date. `rules`: the limits in force."""
        self._zone = zone
        self._url = url
        self._state_dir = state_dir
        self._status = status
        self._rules = rules
        self._threads = Threads("alerts-database", count=1, bound=4)
        self._database: Database | None = None
        self._memory: Memory | None = None
        self._pruned = 0.0

    async def look(
        self, find: Callable[[Usage], list[Alert]], owner: str, now: float, since: float | None
    ) -> list[Alert]:
        rules, zone = tuple(self._rules()), self._zone()

        def look(database: Database) -> list[Alert]:
            from forebay.ledger import alert_book
            from forebay.ledger.alert_usage import Memory, SqlUsage

            memory = self._memory = self._memory or Memory()
            with database.read() as connection:
                found = find(SqlUsage(connection, rules, zone, memory))
                taken = alert_book.known(connection, [alert.id for alert in found])
                ours = [] if since is None else alert_book.of_owner(connection, owner, since)
            new = [alert for alert in found if alert.id not in taken]
            if new or now - self._pruned > 86_400:
                with database.write() as connection:
                    alert_book.claim(connection, new, owner)
                    owners = alert_book.known(connection, [alert.id for alert in new])
                    alert_book.prune(connection, now - alert_book.KEEP)
                self._pruned = now
                ours += [alert for alert in new if owners[alert.id] == owner]
            return ours

        return await self._call(look, LOOK)

    async def history(self, most: int) -> list[Alert]:
        def read(database: Database) -> list[Alert]:
            from forebay.ledger import alert_book

            with database.read() as connection:
                return alert_book.newest(connection, most)

        return await self._call(read, CALL)

    async def _call(self, call: Callable[[Database], T], within: float) -> T:
        if status := self._status():
            self._drop()
            raise Unreadable(status)

        def explained() -> T:
            from forebay.ledger.database import Database, DatabaseError
            from forebay.ledger.reports import BadQuery

            if self._database is None:
                self._database = Database(self._url, self._state_dir)
            try:
                return call(self._database)
            except DatabaseError as e:
                raise Unreadable(str(e)) from e
            except BadQuery as e:  # more callers than are summed at once
                raise Unreadable(f"there is too much to sum: {e}") from e

        try:
            return await self._threads.run(explained, within)
        except TimeoutError as e:
            raise Unreadable(f"the database did not answer within {within:g} s") from e
        except Busy as e:
            raise Unreadable(str(e)) from e

    def _drop(self) -> None:
        """Its file may be another when it is back."""
        database, self._database = self._database, None
        if database is not None:
            database.close()

    async def close(self) -> None:
        self._drop()

    def __repr__(self) -> str:
        return f"<DatabaseBooks {self._database or 'not open'}>"
