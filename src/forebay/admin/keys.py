"""Keys, accounts and limits between the database and the workers.

The database is opened in the background and asked every ten seconds whether the list changed (another host, or a
command, may have changed it): one list with one version for all three. A new one goes to the workers and into
`keys.snapshot`, from which workers start while there is no database. What the database cannot do is said in `status`
and tried again, with a back-off.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from forebay.admin.snapshot import write_snapshot
from forebay.admin.threads import Busy, Threads
from forebay.admin.workers import Workers
from forebay.clock import Clock
from forebay.ledger.operations import Operation
from forebay.ledger.rules import Rule
from forebay.state.messages import SetKeys, keys_snapshot

if TYPE_CHECKING:  # SQLAlchemy takes 0.4 s to import: done on the database's thread, while the listeners answer already
    from forebay.ledger.database import Database, DatabaseLock
    from forebay.ledger.directory import Directory

POLL: Final = 10.0
"""Seconds between looks at the list's version."""
CALL: Final = 8.0
"""Seconds a call to the database may take."""
OPEN: Final = 30.0
"""Seconds that opening may take, migrations included."""
BACK_OFF: Final = (0.1, 15.0)
TELL: Final = 2.0
"""Seconds a change waits for the workers before it is answered as pending."""
HELD: Final = 20.0
"""Seconds another process may have the database before the last known list counts: no command takes longer."""
OPENING: Final = "not opened yet, which takes a moment after a start"
"""The status of a start: nothing is wrong yet."""

T = TypeVar("T")
_log = logging.getLogger("forebay.admin")


class Unavailable(Exception):
    """The database cannot be used now. The message says why."""


class Held(Unavailable):
    """Another process, a command say, has the database and may be changing the list."""


class Keys:
    """The key list: where it is kept, who knows it."""

    def __init__(self, url: str, state_dir: Path, workers: Workers, clock: Clock) -> None:
        self._url = url
        self._state_dir = state_dir
        self._workers = workers
        self._clock = clock
        self._threads = Threads("database", count=4, bound=64)
        self._files = Threads("files", count=1, bound=8)
        self._lock: DatabaseLock | None = None
        self._database: Database | None = None
        self._store: Directory | None = None
        self._publishing = asyncio.Lock()
        self._reopened = False
        self._current: SetKeys | None = None
        self._saved: SetKeys | None = None
        self._held_since: float | None = None
        self.pending = True
        """True until the database was read for the first time, or was found not to be usable."""
        self.status = OPENING
        """Empty while the database works, else what is wrong."""

    @property
    def up(self) -> bool:
        return not self.status

    @property
    def version(self) -> int | None:
        """The version of the list that the workers are told; None before there is one."""
        return None if self._current is None else self._current.version

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The limits that the database keeps, as the workers are told them."""
        return () if self._current is None else self._current.rules

    async def run(self) -> None:
        """Runs until it is cancelled."""
        delay, most = BACK_OFF
        while True:
            try:
                if self._store is None:
                    await self._open()
                await self._refresh()
            except Unavailable as e:
                self.pending = self.pending and self._may_be_changing(e)
                if str(e) != self.status:
                    _log.error("database: %s", e)
                    self.status = str(e)
                self._store = None
                await asyncio.sleep(delay * random.uniform(0.5, 1.0))  # noqa: S311 - spreads retries, hides nothing
                delay = min(delay * 2, most)
            else:
                self.pending, self._held_since = False, None
                if self.status:
                    _log.info(
                        "database: %s is in use, %d keys",
                        self._database,
                        0 if self._current is None else len(self._current.keys),
                    )
                    self.status = ""
                delay = BACK_OFF[0]
                await asyncio.sleep(POLL)

    def _may_be_changing(self, why: Unavailable) -> bool:
        if not isinstance(why, Held):
            return False
        if self._held_since is None:
            self._held_since = self._clock.now()
        return self._clock.now() - self._held_since < HELD

    async def ask(self, operation: Operation, fields: Mapping[str, object], key_id: str) -> tuple[dict[str, Any], bool]:
        """(its answer, whether every connected worker knows of the change). Raises Unavailable, BadField, Missing."""
        store = self._ready()
        if not operation.changes:
            return await self._call(lambda: store.run(operation, fields, key_id), CALL), True
        answer = await self._change(lambda: store.run(operation, fields, key_id))
        return answer, await self._spread()

    async def close(self) -> None:
        """Give the database back. A call that hangs is left behind."""
        database, lock = self._database, self._lock
        self._store = None
        if database is not None:
            try:
                await self._call(database.close, 2.0)
            except Unavailable as e:
                _log.warning("database: left open: %s", e)
        if lock is not None:
            lock.release()

    def _ready(self) -> Directory:
        if self._store is None:
            raise Unavailable(self.status)
        return self._store

    async def _open(self) -> None:
        def open_() -> tuple[DatabaseLock, Database, Directory]:
            from forebay.ledger.database import Database, DatabaseLock
            from forebay.ledger.directory import Directory

            lock = self._lock or DatabaseLock(self._state_dir)
            if not lock.take():
                raise Held(f"{lock.path} is held by another process")
            self._lock = lock
            if self._database is not None:  # its file may have been replaced since
                self._database.close()
            self._database = database = Database(self._url, self._state_dir)
            database.migrate()
            return lock, database, Directory(database, self._clock.wall)

        self._lock, self._database, self._store = await self._call(open_, OPEN)
        self._reopened = True

    async def _call(self, call: Callable[[], T], within: float) -> T:
        def explained() -> T:
            from forebay.ledger.database import DatabaseError

            try:
                return call()
            except DatabaseError as e:
                raise Unavailable(str(e)) from e

        try:
            return await self._threads.run(explained, within)
        except TimeoutError as e:
            raise Unavailable(f"{self._database or 'the database'} did not answer within {within:g} s") from e
        except Busy as e:
            raise Unavailable(str(e)) from e

    async def _change(self, call: Callable[[], T]) -> T:
        try:
            return await self._call(call, CALL)
        except Unavailable as e:
            if isinstance(e.__cause__, TimeoutError):
                raise Unavailable(f"{e}; the change may still be made: look with `forebay key list`") from e
            raise

    async def _refresh(self) -> None:
        """Look whether the list changed, and if so publish it."""
        store, database = self._ready(), self._database
        assert database is not None

        def look() -> int:
            database.still_there()
            return store.version()

        async with self._publishing:
            version = await self._call(look, CALL)
            if self._reopened or self._current is None or self._current.version != version:
                self._current = SetKeys(*await self._call(store.known, CALL))
                self._reopened = False
                self._workers.set_keys(self._current)
            if self._saved is not self._current:
                await self._save(self._current)

    async def _save(self, keys: SetKeys) -> None:
        path = keys_snapshot(self._state_dir)
        try:
            await self._files.run(lambda: write_snapshot(self._state_dir, keys), CALL)
        except (OSError, TimeoutError, Busy) as e:
            _log.error("%s cannot be written, so a worker would start with an older key list: %s", path, e)
        else:
            self._saved = keys

    async def _spread(self) -> bool:
        """After a change that is in the database: tell the workers. False where that is still going on."""
        try:
            await self._refresh()
        except Unavailable as e:
            _log.warning("database: changed, but not read back yet: %s", e)
            return False
        return await self._workers.told(TELL)

    def __repr__(self) -> str:
        return f"<Keys version {self.version}, database {self.status or 'up'}>"
