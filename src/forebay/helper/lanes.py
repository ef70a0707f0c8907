"""A thread with a bounded line of work before it.

The helper has two: look-ups, which are worth nothing after some milliseconds, and chores (what is stored, purged or
looked at), which may take long. So no look-up waits for a chore.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Generic, TypeVar

log = logging.getLogger("forebay.cache")

T = TypeVar("T")
SOON: Final = 3_600.0
"""Seconds that a thread with nothing to do sleeps at most."""


class Lane(Generic[T]):
    """`work` gets what has come together, `batch` at most, in order. `idle` is called in between, and says in how many
    seconds it wants to be called again. `most` counts items, `most_bytes` what `put` is told of them. `gather`: seconds
    from one beginning to the next in which more may come together, where all that wait are patient; what comes alone
    is done at once.
    Mutable state: the line, and how much of it was refused."""

    def __init__(
        self,
        name: str,
        work: Callable[[list[T]], None],
        *,
        batch: int,
        most: int,
        most_bytes: int = 1 << 62,
        idle: Callable[[], float] = lambda: SOON,
        gather: float = 0.0,
    ) -> None:
        self._work = work
        self._idle = idle
        self._batch = batch
        self._gather = gather
        self._most, self._most_bytes = most, most_bytes
        self._line: deque[tuple[T, int]] = deque()
        self._bytes = 0
        self._changed = threading.Condition()
        self._leaving = False
        self._gathers = False
        self._impatient = False
        """One of those that wait does not wait for others."""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.refused = 0
        self._began = 0.0
        """When what it does now was begun, on the monotonic clock; 0: it does nothing."""
        self._rests = threading.Event()
        """Nothing waits, and nothing is done."""
        self._rests.set()

    def start(self) -> None:
        self._thread.start()

    def put(self, item: T, size: int = 0, *, anyway: bool = False, patient: bool = False) -> bool:
        """False where the line is full, unless it must be done `anyway`, or the thread is leaving: it is not done.
        `patient`: others may be waited for, to be done with it."""
        with self._changed:
            full = len(self._line) >= self._most or self._bytes + size > self._most_bytes
            if self._leaving or (full and not anyway):
                self.refused += 1
                return False
            self._rests.clear()
            self._line.append((item, size))
            self._bytes += size
            self._impatient = self._impatient or not patient
            if not self._gathers or self._impatient or len(self._line) >= self._batch:
                self._changed.notify()
            return True

    def close(self, seconds: float) -> bool:
        """What waits is still done. False where that takes longer than `seconds`: it is left behind."""
        with self._changed:
            self._leaving = True
            self._changed.notify()
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def drop(self) -> None:
        """What waits is not done any more; the thread leaves after what it does now, and is not waited for."""
        with self._changed:
            self._leaving = True
            self._line.clear()
            self._bytes = 0
            self._changed.notify()

    def _run(self) -> None:
        due, gathered = 0.0, -self._gather
        while True:
            with self._changed:
                if not self._line:
                    self._rests.set()
                if not self._line and not self._leaving:
                    self._changed.wait(min(max(0.0, due - time.monotonic()), SOON))
                if self._gather and self._line:
                    self._gathers = True
                    self._changed.wait_for(self._ripe, max(0.0, gathered + self._gather - time.monotonic()))
                    self._gathers = False
                    gathered = time.monotonic()
                items = [self._line.popleft() for _ in range(min(len(self._line), self._batch))]
                if not self._line:
                    self._impatient = False
                self._bytes -= sum(size for _, size in items)
                if not items and self._leaving:
                    return
            self._began = time.monotonic()
            try:
                if items:
                    self._work([item for item, _ in items])
                if not self._leaving and time.monotonic() >= due:
                    due = time.monotonic() + self._idle()
            except Exception:
                log.exception("%s failed", self._thread.name)
                due = time.monotonic() + 1.0
            finally:
                self._began = 0.0

    def _ripe(self) -> bool:
        return self._leaving or self._impatient or len(self._line) >= self._batch

    def let_pass(self, seconds: float) -> None:
        """Return when nothing waits or is done here, or after so many seconds: for another thread, which has time."""
        self._rests.wait(seconds)

    def at_it(self) -> float:
        """Seconds that it has been at what it does now."""
        began = self._began
        return time.monotonic() - began if began else 0.0

    def __len__(self) -> int:
        return len(self._line)

    def __repr__(self) -> str:
        return f"<Lane {self._thread.name} {len(self._line)} waiting>"
