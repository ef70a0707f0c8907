"""Faults of databases and disks that begin and end while a gateway serves, and what it showed of them."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import signal
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from crash_lane import Lane
from forebay.ledger.database import Database
from postgres_server import Postgres

LEDGER, JOURNAL = "forebay_ledger_alarm", 'forebay_ledger_journal_state{state="failing"}'
HOLD = 3.0
"""Seconds that a fault lasts once its alarm is seen."""
SET, CLEARED = 60.0, 90.0
"""Seconds within which an alarm must come, and go: time-outs and back-offs of 5 to 30 s are in them."""


@dataclass
class Outcome:
    name: str
    alarm: str
    lasted: float = 0.0
    requests: int = 0
    failed: int = 0
    set_after: float | None = None
    cleared_after: float | None = None
    wrong: list[str] = field(default_factory=list)


@dataclass
class Fault:
    """`alarm`: the metric that says so; without one it only lasts. `begin` may return what undoes it."""

    name: str
    alarm: str
    begin: Callable[[Lane], Callable[[], object]]

    async def run(self, lane: Lane) -> Outcome:
        outcome = Outcome(f"{lane.name}: {self.name}", self.alarm)
        began = time.monotonic()
        undo = await asyncio.to_thread(self.begin, lane)
        try:
            if self.alarm:
                look = lambda: lane.metric(self.alarm) == 1  # noqa: E731
                outcome.set_after = await lane.until(look, SET, f"{self.alarm} to be set: {self.name}")
            await asyncio.sleep(HOLD)
        finally:
            await asyncio.to_thread(undo)
        ended = time.monotonic()
        outcome.cleared_after = await lane.until(
            lambda: all(lane.metric(name) == 0 for name in (LEDGER, JOURNAL, "forebay_ledger_journal_waiting_bytes")),
            CLEARED,
            f"the alarms to be cleared: {self.name}",
        )
        await asyncio.sleep(1)
        outcome.lasted = ended - began
        outcome.requests = lane.came(began, ended)
        outcome.failed = lane.failed_since(began, ended)
        if outcome.failed or not outcome.requests:
            outcome.wrong.append(f"{outcome.name}: {outcome.failed} of {outcome.requests} requests were not answered")
        return outcome


# --- disks -----------------------------------------------------------------------------------------------------------


def small_disk(stack: contextlib.ExitStack, size: str) -> Path | None:
    """A file system of its own; None where this user may not mount one."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fb-disk-")))
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], capture_output=True)
    if done.returncode:
        return None
    stack.callback(lambda: subprocess.run(["umount", "-l", folder], check=True))
    return folder


def fill(disk: Path) -> Callable[[], object]:
    """To the last byte."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        for size in (1 << 20, 4096, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(size))
    return ballast.unlink


def both(*undo: Callable[[], object]) -> Callable[[], object]:
    return lambda: [one() for one in undo]


def _writes_fail(lane: Lane) -> Callable[[], object]:
    """EFBIG at each write: what the kernel says first where a file may have no more bytes."""
    pid = lane.worker().pid
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, before[1]))
    return lambda: resource.prlimit(pid, resource.RLIMIT_FSIZE, before)


def _read_only(lane: Lane) -> Callable[[], object]:
    folder = lane.state / "journal" / "worker-0"
    folder.chmod(0o500)
    return lambda: folder.chmod(0o700)


def _frozen_admin(lane: Lane) -> Callable[[], object]:
    admin = lane.admin()
    admin.suspend()
    return admin.resume


def _locked(lane: Lane) -> Callable[[], object]:
    """Another program has the file for itself."""
    file = Database(lane.url, lane.state).file
    assert file is not None
    connection = sqlite3.connect(file, isolation_level=None, timeout=30, check_same_thread=False)
    connection.execute("BEGIN IMMEDIATE")

    def undo() -> None:
        connection.execute("ROLLBACK")
        connection.close()

    return undo


# --- PostgreSQL ------------------------------------------------------------------------------------------------------


def _killed(server: Postgres) -> Callable[[], object]:
    server.crash()
    return server.start


def _frozen(server: Postgres) -> Callable[[], object]:
    pids = server.freeze()
    return lambda: server.thaw(pids)


def _default_read_only(server: Postgres) -> Callable[[], object]:
    def say(value: str) -> None:
        server.sql(
            "SET default_transaction_read_only = off", f"ALTER SYSTEM SET default_transaction_read_only = {value}"
        )
        server.process.send_signal(signal.SIGHUP)

    say("on")
    return lambda: say("off")


def faults_of(
    database: str, here: Path, stack: contextlib.ExitStack, *, rate: float, seed: int
) -> tuple[Lane, list[Fault]]:
    """A gateway whose disk, or whose database's, is small, and what happens to it."""
    url, state, plan = "", None, []
    if database == "SQLite":
        state, database_disk = small_disk(stack, "96m"), small_disk(stack, "96m")
        plan = [
            Fault("the journal's writes fail (EFBIG)", JOURNAL, _writes_fail),
            Fault("the journal's folder is read-only", JOURNAL, _read_only),
            Fault("another program locks the file", LEDGER, _locked),
            Fault("the admin process is stopped", "", _frozen_admin),
        ]
        if state is not None and database_disk is not None:
            disk, other = state, database_disk
            url = f"sqlite:///{database_disk}/forebay.db"
            plan += [
                Fault("the journal's disk is full", JOURNAL, lambda _: fill(disk)),
                Fault("the database's disk is full", LEDGER, lambda _: fill(other)),
                Fault("both are full", JOURNAL, lambda _: both(fill(disk), fill(other))),
            ]
    else:
        small = small_disk(stack, "512m")
        folder = small or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="forebay-pg-")))
        server = Postgres(folder)
        stack.callback(server.close)
        url = server.new()
        plan = [
            Fault("PostgreSQL is killed", LEDGER, lambda _: _killed(server)),
            Fault("PostgreSQL is stopped (SIGSTOP)", LEDGER, lambda _: _frozen(server)),
            Fault("PostgreSQL is read-only", LEDGER, lambda _: _default_read_only(server)),
        ]
        if small is not None:
            plan.append(Fault("PostgreSQL's disk is full", LEDGER, lambda _: fill(small)))
    lane = Lane(
        f"{database} faults",
        here / f"{database}-faults",
        url,
        {"worker": [], "admin": []},
        rate=rate,
        seed=seed,
        wait=0.05,
        state=state / "state" if state is not None else None,
    )
    return lane, plan
