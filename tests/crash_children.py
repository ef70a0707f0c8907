"""`forebay serve` whose processes kill themselves at chosen calls of the journal's disk and of the database.

    python -m crash_children serve --config FILE     with CRASH_PLAN=folder; started by campaigns.crash

The program is the real one; three things of it are changed from outside, here. The back-off of restarts is short.
Segments of a journal are small, so that they are begun and removed all the time. And the journal gets a disk that ends
the process by SIGKILL before, within or after a call, as does the database around a commit: instants chosen by a clock
would rarely fall between a write and its fsync; these always do. What a process does next is in the folder's
`plan.json`; each death leaves a line in its `deaths`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

SEGMENT = 16 << 10
"""Bytes of a journal's segment: some thirty attempts."""


ENDLESS = ("", "", 0, False)


class Fate:
    """How this life of a process ends: at the `n`th call of `call`, `when`; `tree`: with all its family."""

    def __init__(self, who: str) -> None:
        self.folder = Path(os.environ["CRASH_PLAN"])
        self.who = who
        plan: list[tuple[str, str, int, bool]] = json.loads((self.folder / "plan.json").read_text())[who]
        lives = sum(line.split()[0] == who for line in deaths(self.folder))
        self.call, self.when, self.n, self.tree = plan[lives] if lives < len(plan) else ENDLESS

    def comes(self, call: str, when: str) -> bool:
        """Whether it ends here. The last `when` of a call counts it."""
        if call != self.call:
            return False
        found = self.n <= 0 and when == self.when
        if when == "after":
            self.n -= 1
        return found

    def die(self) -> NoReturn:
        line = f"{self.who} {time.monotonic():.6f} {self.call} {self.when} {'tree' if self.tree else self.who}\n"
        fd = os.open(self.folder / "deaths", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(fd, line.encode())
        if self.tree:
            parent = os.getppid()
            family = [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]
            for pid in (parent, *(pid for pid in family if pid != os.getpid())):
                os.kill(pid, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("still alive")

    def point(self, call: str, when: str) -> None:
        if self.comes(call, when):
            self.die()


def deaths(folder: Path) -> list[str]:
    """The lines of those who died: who, when (monotonic seconds), call, when, what died."""
    file = folder / "deaths"
    return file.read_text().splitlines() if file.exists() else []


def _serve() -> None:
    from forebay.cli import children, supervisor
    from forebay.cli.main import main

    children.FIRST_DELAY = children.MAX_DELAY = 0.05
    vars(supervisor)["python"] = lambda module, *args: [sys.executable, "-m", "crash_children", module, *args]
    main()


def _worker() -> None:
    from forebay.gateway import worker
    from forebay.ledger.journal import Journal, Tuning
    from forebay.ledger.journal_disk import Disk

    fate = Fate("worker")

    class Mortal(Disk):
        def create(self, path: Path) -> int:
            fate.point("create", "before")
            fd = super().create(path)
            fate.point("create", "after")
            return fd

        def write(self, fd: int, data: memoryview) -> int:
            fate.point("write", "before")
            if fate.comes("write", "half"):
                super().write(fd, data[: len(data) // 2])
                fate.die()
            done = super().write(fd, data)
            fate.point("write", "after")
            return done

        def sync(self, fd: int) -> None:
            fate.point("sync", "before")
            super().sync(fd)
            fate.point("sync", "after")

        def rename(self, old: Path, new: Path) -> None:
            fate.point("rename", "before")
            super().rename(old, new)
            fate.point("rename", "after")

        def sync_folder(self, folder: Path) -> None:
            fate.point("sync_folder", "before")
            super().sync_folder(folder)
            fate.point("sync_folder", "after")

    opened = Journal.open

    def mortal(folder: Path, **named: Any) -> Journal:
        return opened(folder, **named, disk=Mortal(), tuning=Tuning(segment_bytes=SEGMENT))

    Journal.open = mortal  # type: ignore[method-assign]
    worker.main()


def _admin() -> None:
    from sqlalchemy import Connection

    from forebay.admin import main as admin
    from forebay.ledger import intake, journal_read
    from forebay.ledger.book import Book

    fate = Fate("admin")
    writing, ingest, forget = Book._writing, Book.ingest, journal_read.forget

    @contextmanager
    def mortal(book: Book) -> Iterator[Connection]:
        with writing(book) as connection:
            yield connection
            fate.point("commit", "before")

    def booked(book: Book, *args: Any) -> Any:
        done = ingest(book, *args)
        fate.point("commit", "after")
        return done

    def forgotten(folder: Path, position: int) -> int:
        fate.point("forget", "before")
        removed = forget(folder, position)
        fate.point("forget", "after")
        return removed

    Book._writing = mortal  # type: ignore[assignment]
    Book.ingest = booked  # type: ignore[method-assign, assignment]
    vars(intake)["forget"] = forgotten
    admin.main()


ENTRIES: dict[str, Callable[[], None]] = {
    "serve": _serve,
    "forebay.gateway.worker": _worker,
    "forebay.admin.main": _admin,
}

if __name__ == "__main__":
    entry = ENTRIES[sys.argv[1]]
    if sys.argv[1] != "serve":
        del sys.argv[1]
    entry()
