"""The task that fills the book from the workers' journals.

The work is done on one thread (`ledger.intake`), in bounded runs with a time-out. What the database cannot do is said
in `status` and tried again, with a back-off; the journals hold what is booked meanwhile. Readiness does not hang on it.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from forebay.admin.keys import OPENING
from forebay.admin.metrics import gauge
from forebay.admin.threads import Busy, Threads
from forebay.clock import Clock
from forebay.state.messages import FamilySnapshot, journals

if TYPE_CHECKING:  # SQLAlchemy: imported on the thread
    from forebay.ledger.database import Database
    from forebay.ledger.enginehours import Engines
    from forebay.ledger.intake import Followed, Intake, Swept

POLL: Final = 0.25
"""Seconds between looks at the journals while a worker does not say when there is more."""
SELDOM: Final = 2.0
"""And while all do: there may be journals of others."""
MUCH: Final = 32
"""Records of a run from which on more gather for the next (`gather`): a transaction takes 4 ms of CPU however little it
books."""
GATHER, GATHER_MUCH = 0.2, 2.0
"""Seconds that records wait for others where nobody waits for them."""
CALL: Final = 30.0
"""Seconds a run may take: each of its statements is bounded by the database's own."""
BACK_OFF: Final = (0.25, 10.0)
LAST: Final = 8
"""Runs that are done before leaving, at most."""
HUNG: Final = 10.0
"""Seconds without an answer of the database at which it is one, before CALL is over,"""
LATE: Final = 60.0
"""and seconds behind."""

_log = logging.getLogger("forebay.admin")


class Ingest:
    """How far the books are, and what stops them."""

    def __init__(
        self,
        url: str,
        state_dir: Path,
        currency: str,
        workers: int,
        clock: Clock,
        unusable: Callable[[], str],
        engines: Callable[[], Engines] | None = None,
    ) -> None:
        """`unusable` says why the database cannot be opened, "" where it can: what has been said is not tried here too.
        `engines` says which engines with a price there are; it is called on the thread."""
        self._url = url
        self._state_dir = state_dir
        self._currency = currency
        self._workers = workers
        self._clock = clock
        self._unusable = unusable
        self._engines = engines
        self._threads = Threads("ledger", count=1, bound=2)
        self._intake: Intake | None = None
        self._database: Database | None = None
        self._nudged = asyncio.Event()
        self._stand: Swept | None = None
        self._stood = 0.0
        self._began: float | None = None
        """When the run that is under way began."""
        self._said: dict[str, str] = {}
        self._swept = asyncio.Event()
        """Set, and another put in its place, after each sweep."""
        self.heard: set[int] = set()
        """Workers that say when there is more in their journals."""
        self.gather = GATHER
        """Seconds that what is said to be there may wait for more."""
        self.status = OPENING
        """Empty while the database takes what the journals hold, else what is wrong."""

    @property
    def up(self) -> bool:
        return not self.status

    def nudge(self) -> None:
        """There is something in a journal that somebody waits for."""
        self._nudged.set()

    async def booked(self, worker: int, owner: str, position: int, within: float) -> int:
        """Up to where a worker's journal is in the database: as soon as that is `position`, or after `within` seconds.
        0: nothing of it, or the worker has another journal than that of `owner` by now."""
        try:
            async with asyncio.timeout(within):
                while (found := self._position(worker, owner)) < position:
                    await self._swept.wait()
        except TimeoutError:
            pass
        return found

    def _position(self, worker: int, owner: str) -> int:
        return next((j.position for j in self._journals() if _number(j) == worker and j.owner == owner), 0)

    async def run(self) -> None:
        """Runs until it is cancelled."""
        delay, most = BACK_OFF
        while True:
            if self._database is None and (why := self._unusable()):
                self.status = why
                await asyncio.sleep(POLL)
                continue
            self._nudged.clear()
            before = self._records()
            more = await self._sweep(CALL)
            self.gather = GATHER_MUCH if self._records() - before >= MUCH else GATHER
            if self.status:
                wait, delay = delay * random.uniform(0.5, 1.0), min(delay * 2, most)  # noqa: S311 - spreads retries
                await asyncio.sleep(wait)
                continue
            delay = BACK_OFF[0]
            if not more:
                try:
                    async with asyncio.timeout(SELDOM if len(self.heard) == self._workers else POLL):
                        await self._nudged.wait()
                except TimeoutError:
                    pass

    def _records(self) -> int:
        return self._stand.totals.records if self._stand is not None else 0

    async def close(self) -> None:
        """Book what is there, if that is quick, and give the database back. A call that hangs is left behind."""
        for _ in range(LAST):
            if not self.up or not await self._sweep(2.0):
                break
        try:
            await self._threads.run(self._close_database, 2.0)
        except (TimeoutError, Busy):
            _log.warning("ledger: the database was left open: it does not answer")

    async def _sweep(self, within: float) -> bool:
        """True where there is more."""
        self._began = self._clock.now()
        try:
            found = await self._threads.run(self._call, within)
        except TimeoutError:
            self._fail(f"the database did not answer within {within:g} s")
            return False
        except Busy:
            self._fail("the database does not answer")
            return False
        finally:
            self._began = None
        if isinstance(found, Exception):
            self._fail(str(found))
            return False
        if self.status:
            _log.info("ledger: the books are open in %s", self._database)
            self.status = ""
        self._stand, self._stood = found, self._clock.wall()
        self._tell(found)
        return found.more

    def _call(self) -> Swept | Exception:
        """On the thread; an exception says why it cannot be done now."""
        from forebay.ledger.database import Database, DatabaseError, DatabaseGone
        from forebay.ledger.intake import Intake

        try:
            if self._database is None:
                database = Database(self._url, self._state_dir)
                try:
                    if database.file is not None and not database.file.exists():
                        raise DatabaseGone(f"{database} is not there")  # and is not ours to make
                    database.check()
                except BaseException:
                    database.close()
                    raise
                self._database = database
                if self._intake is not None:
                    self._intake.reopen(database)
            if self._intake is None:
                self._intake = Intake(
                    self._database,
                    journals(self._state_dir),
                    self._currency,
                    wall=self._clock.wall,
                    alive=lambda worker: worker < self._workers,
                    engines=self._engines,
                )
            return self._intake.sweep()
        except (DatabaseError, OSError) as e:
            self._close_database()
            return e

    def _close_database(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None

    def _fail(self, why: str) -> None:
        if why != self.status:
            _log.error("ledger: %s; the journals hold what is booked meanwhile", why)
            self.status = why

    def _tell(self, stand: Swept) -> None:
        for journal in stand.journals:
            name = journal.folder.name
            if journal.why != self._said.get(name, ""):
                self._said[name] = journal.why
                if journal.why:
                    _log.error("ledger: the journal of %s is not booked: %s", name, journal.why)
                else:
                    _log.info("ledger: the journal of %s is booked again", name)
        self._swept.set()
        self._swept = asyncio.Event()

    # --- what is shown -----------------------------------------------------------------------------------------------

    def alarms(self) -> list[str]:
        """What keeps the books from being up to date."""
        found = [self.status] if self.status else []
        waited = 0.0 if self._began is None else self._clock.now() - self._began
        if not found and waited > HUNG:
            found.append(f"the database has not answered for {waited:.0f} s")
        now = self._clock.wall()
        for journal in self._journals():
            if journal.why:
                found.append(f"{journal.folder.name}: {journal.why}")
            elif (late := self._late(journal, now)) > LATE:
                found.append(f"{journal.folder.name}: {journal.behind:,} bytes behind, for {late:.0f} s")
        return found

    def health(self) -> dict[str, Any]:
        alarms = self.alarms()
        behind = None if self._stand is None else sum(j.behind for j in self._journals())  # None: it cannot be known
        found: dict[str, Any] = {"up": not alarms, "bytes_behind": behind}
        if alarms:
            found["why"] = "; ".join(alarms)
            found["meanwhile"] = "requests go on; the journals hold what is booked"
        return found

    def families(self) -> tuple[FamilySnapshot, ...]:
        now = self._clock.wall()
        journals = self._journals()
        found = [
            gauge("forebay_ledger_up", "1 where the database takes what the journals hold.", [((), float(self.up))]),
            gauge(
                "forebay_ledger_alarm",
                "1 where the books are not up to date; /health says why.",
                [((), float(bool(self.alarms())))],
            ),
            gauge(
                "forebay_ledger_lag_bytes",
                "Bytes of a worker's journal that are not in the database.",
                [((str(_number(j)),), float(j.behind)) for j in journals],
                "worker",
            ),
            gauge(
                "forebay_ledger_lag_seconds",
                "Seconds since a worker's journal was in the database to its end.",
                [((str(_number(j)),), self._late(j, now)) for j in journals],
                "worker",
            ),
        ]
        totals = self._stand.totals if self._stand is not None else None
        for field, name, text in _TOTALS:
            value = float(getattr(totals, field)) if totals is not None else 0.0
            found.append(FamilySnapshot(name, text, "counter", (), (), (((), value),)))
        return tuple(found)

    def _late(self, journal: Followed, now: float) -> float:
        held = journal.behind or journal.why or self.status
        return max(0.0, now - journal.since) if held else 0.0

    def _journals(self) -> tuple[Followed, ...]:
        if self._stand is None:
            return ()
        if not self.status and self._began is None:
            return self._stand.journals
        from forebay.ledger.intake import Followed, bytes_behind, journal_folders

        known = {journal.folder: journal for journal in self._stand.journals}
        with suppress(OSError):  # the last run is long ago, and the workers went on
            for folder in journal_folders(journals(self._state_dir)):
                journal = known.get(folder) or Followed(folder, since=self._stood)
                known[folder] = replace(journal, behind=bytes_behind(folder, journal.position))
        return tuple(known.values())

    def __repr__(self) -> str:
        return f"<Ingest {self.status or 'up'}>"


_TOTALS: Final = (
    ("records", "forebay_ledger_ingested_total", "Journal records that were read into the database."),
    ("settled", "forebay_ledger_settled_total", "Attempts that were settled in the database."),
    ("again", "forebay_ledger_again_total", "Settlements that were ignored: their attempt was settled already."),
    ("late", "forebay_ledger_late_total", "Settlements after a survivor's estimate; booked as adjustments."),
    ("strays", "forebay_ledger_strays_total", "Settlements without a reservation; booked to the key `unknown`."),
    ("unpriced", "forebay_ledger_unpriced_total", "Attempts that were settled without a price."),
    ("orphans", "forebay_ledger_orphans_total", "Attempts that nobody settled in time and were settled by estimate."),
    ("hours", "forebay_ledger_engine_hours_total", "Hours of engines with a price of their own that were reconciled."),
)


def _number(journal: Followed) -> int:
    return int(journal.folder.name.removeprefix("worker-"))
