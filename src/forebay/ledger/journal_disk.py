"""A journal's folder: the right to write to it, and the thread that puts its groups on disk, one write and one fsync
each."""

from __future__ import annotations

import fcntl
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from forebay.ledger.journal_format import (
    JournalBusy,
    JournalError,
    bytes_on_disk,
    group,
    groups,
    position,
    segment_file,
)


class Disk:
    """The calls of the operating system that a journal is written with."""

    def create(self, path: Path) -> int:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)

    def write(self, fd: int, data: memoryview) -> int:
        return os.write(fd, data)

    def sync(self, fd: int) -> None:
        os.fdatasync(fd)

    def rename(self, old: Path, new: Path) -> None:
        old.replace(new)

    def sync_folder(self, folder: Path) -> None:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


class Opening(msgspec.Struct, frozen=True):
    """The begin of a new segment: `Began` and what is said again."""

    segment: int
    parts: Sequence[bytes]


class Work(msgspec.Struct, frozen=True):
    """Records to be put on disk together. None at all: only to look at what the folder takes."""

    opening: Opening | None
    parts: Sequence[bytes]
    last: int
    """The number of the last of them."""


class Done(msgspec.Struct, frozen=True):
    work: Work
    position: int
    """Behind its last group, as readers count."""
    on_disk: int
    """Bytes of all segments, not older than a look."""
    synced: int
    """fsyncs it took."""
    seconds: float


class DiskWriter(threading.Thread):
    """Takes one `Work` after another and says of each whether it is on disk. After a failure the segment is not written
    to any more, since it cannot be known what of it is safe: the next work must bring an opening."""

    def __init__(
        self,
        folder: Path,
        disk: Disk,
        look: float,
        done: Callable[[Done], object],
        failed: Callable[[Work, str], object],
    ) -> None:
        """`look`: seconds between two looks at what the folder takes. `done` and `failed` are called in this thread."""
        super().__init__(name="journal-writer", daemon=True)  # a disk that hangs does not keep the process
        self._folder = folder
        self._disk = disk
        self._every = look
        self._done = done
        self._failed = failed
        self._queue: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._fd = -1
        self._segment = 0
        self._end = 0
        self._on_disk = 0
        self._looked = float("-inf")

    def put(self, work: Work | None) -> None:
        """None ends the thread."""
        self._queue.put(work)

    def run(self) -> None:
        while (work := self._queue.get()) is not None:
            try:
                done = self._commit(work)
            except Exception as e:  # whatever it was, nothing is known of what is on disk
                self._give_up()
                self._failed(work, _said(e))
            else:
                self._done(done)
        self._give_up()

    def _commit(self, work: Work) -> Done:
        began = time.perf_counter()
        synced = 0
        if work.opening is not None:
            self._begin(work.opening, work.parts)
            synced = 2
        elif work.parts:
            data = group(self._segment, self._end, work.parts)
            self._write(self._fd, data)
            self._disk.sync(self._fd)
            synced = 1
            self._end += len(data)
            self._on_disk += len(data)
        seconds = time.perf_counter() - began
        self._look(always=not work.parts)
        return Done(work, position(self._segment, self._end), self._on_disk, synced, seconds)

    def _begin(self, opening: Opening, parts: Sequence[bytes]) -> None:
        self._give_up()
        data = groups(opening.segment, 0, opening.parts)
        if parts:
            data += group(opening.segment, len(data), parts)
        path = segment_file(self._folder, opening.segment)
        new = path.with_suffix(".new")
        try:
            self._fd = self._disk.create(new)
            self._write(self._fd, data)
            self._disk.sync(self._fd)
            self._disk.rename(new, path)
        except BaseException:
            new.unlink(missing_ok=True)  # the room it took, on a full disk
            raise
        self._disk.sync_folder(self._folder)
        self._segment, self._end = opening.segment, len(data)
        self._looked = float("-inf")

    def _write(self, fd: int, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[self._disk.write(fd, view) :]

    def _look(self, *, always: bool) -> None:
        now = time.monotonic()
        if always or now - self._looked >= self._every:
            self._looked = now
            self._on_disk = bytes_on_disk(self._folder)

    def _give_up(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _said(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return f"{type(error).__name__}: {error}"


def _make(folder: Path) -> None:
    """With the folders it is in, their names on disk. Raises OSError."""
    missing = [one for one in (folder, *folder.parents) if not one.is_dir()]
    for one in reversed(missing):
        one.mkdir(mode=0o700, exist_ok=True)
        Disk().sync_folder(one.parent)


def take(folder: Path) -> int:
    """The right to write to the journal in `folder`. The kernel drops it with the process. Raises
    JournalBusy; JournalError: the folder cannot be made."""
    try:
        _make(folder)
        fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as e:
        raise JournalError(f"{folder} cannot be written to: {e.strerror}") from e
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise JournalBusy(f"{folder} is in use: another process writes to this journal") from None
    return fd
