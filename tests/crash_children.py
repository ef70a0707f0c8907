"""`forebay serve` whose processes kill themselves at chosen calls of the journal's disk and of the database.

    python -m crash_children serve --config FILE     with CRASH_PLAN=folder; started by campaigns.crash

The program is the real one; three things of it are changed from outside, here. The back-off of restarts is short.
Segments of a journal are small, so that they are begun and removed all the time. And the journal gets a disk that ends
the process by SIGKILL before, within or after a call, as does the database around a commit: instants chosen by a clock
would rarely fall between a write and its fsync; these always do. What a process does next is in the folder's
`plan.json`; each death leaves a line in its `deaths`. That of a worker leaves one in `memory` besides: what its journal
had not on disk at that instant, which nobody can know afterwards (`crash_books.Death`). Its next life keeps the
segments that it finds (`kept`).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
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
        self.lives = lives
        self.last_words: Callable[[], dict[str, Any]] | None = None

    def comes(self, call: str, when: str) -> bool:
        """Whether it ends here. The last `when` of a call counts it."""
        if call != self.call:
            return False
        found = self.n <= 0 and when == self.when
        if when == "after":
            self.n -= 1
        return found

    def die(self) -> NoReturn:
        words = self.last_words() if self.last_words is not None else None
        now = time.monotonic()
        if words is not None:
            words |= {"at": now, "wall": time.time(), "call": self.call, "when": self.when}
            self._leave("memory", json.dumps(words))
        self._leave("deaths", f"{self.who} {now:.6f} {self.call} {self.when} {'tree' if self.tree else self.who}")
        if self.tree:
            parent = os.getppid()
            family = [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]
            for pid in (parent, *(pid for pid in family if pid != os.getpid())):
                os.kill(pid, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("still alive")

    def _leave(self, name: str, line: str) -> None:
        fd = os.open(self.folder / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(fd, f"{line}\n".encode())
        os.close(fd)

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
    import msgspec

    from forebay.gateway import open_books, worker
    from forebay.ledger.entries import Record, Reserved, Settled
    from forebay.ledger.journal import Journal, Tuning
    from forebay.ledger.journal_disk import Disk

    fate = Fate("worker")

    class Mortal(Disk):
        """`opening`: what is written is a segment that cannot be seen yet. `written`: the group is in the kernel."""

        opening = written = False

        def create(self, path: Path) -> int:
            self.opening, self.written = True, False
            fate.point("create", "before")
            fd = super().create(path)
            fate.point("create", "after")
            return fd

        def write(self, fd: int, data: memoryview) -> int:
            self.written = False
            fate.point("write", "before")
            if fate.comes("write", "half"):
                super().write(fd, data[: len(data) // 2])
                fate.die()
            done = super().write(fd, data)
            self.written = not self.opening
            fate.point("write", "after")
            return done

        def sync(self, fd: int) -> None:
            fate.point("sync", "before")
            super().sync(fd)
            fate.point("sync", "after")

        def rename(self, old: Path, new: Path) -> None:
            fate.point("rename", "before")
            super().rename(old, new)
            self.opening, self.written = False, True
            fate.point("rename", "after")

        def sync_folder(self, folder: Path) -> None:
            fate.point("sync_folder", "before")
            super().sync_folder(folder)
            fate.point("sync_folder", "after")

    class Watched(Journal):
        """From `last_words` on nothing is reserved or settled: the loop stands still until the process is gone."""

        def __init__(self, *args: Any, disk: Mortal, **named: Any) -> None:
            super().__init__(*args, disk=disk, **named)
            self._mortal = disk
            self._taking = threading.Lock()
            self._said: dict[int, tuple[str, float]] = {}
            fate.last_words = self.last_words

        @classmethod
        def open(cls, folder: Path, **named: Any) -> Journal:
            _keep(folder, fate)
            return super().open(folder, **named, disk=Mortal(), tuning=Tuning(segment_bytes=SEGMENT))

        def reserve(self, reserved: Reserved) -> int:
            with self._taking:
                self._said[reserved.seq] = (reserved.id, time.monotonic())
                return super().reserve(reserved)

        def settle(self, settled: Settled) -> int:
            with self._taking:
                return super().settle(settled)

        def last_words(self) -> dict[str, Any]:
            self._taking.acquire()
            flying = self._flying
            parts = [*(flying.parts if flying is not None and not self._mortal.written else ()), *self._parts]
            records = [decode(part) for part in parts]
            reserved = {record.seq for record in records if isinstance(record, Reserved)}
            settled = {record.seq for record in records if isinstance(record, Settled)}
            said = self._said
            return {
                "unsaved": [said[seq] for seq in said if seq in reserved],
                "unsettled": [said[seq][0] for seq in said if seq in self._open or seq in settled],
            }

    decode = msgspec.msgpack.Decoder(Record).decode
    vars(open_books)["Journal"] = Watched
    worker.main()


def _keep(folder: Path, fate: Fate) -> None:
    """The segments that there are, under a second name: nobody writes to them again."""
    from forebay.ledger.journal_format import segment_file, segments

    if folder.exists() and (there := segments(folder)):
        kept = fate.folder / "kept" / f"before-{fate.lives}"
        kept.mkdir(parents=True, exist_ok=True)
        for n in there:
            with contextlib.suppress(FileNotFoundError):  # whoever ingests removes them
                os.link(segment_file(folder, n), segment_file(kept, n))


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
