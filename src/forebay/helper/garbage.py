"""When the garbage collector runs: between look-ups, a little at a time, and over what is new alone.

Left to itself it runs in the middle of one, and once in some hundred over everything that was kept since the start,
which takes milliseconds. Here what survives a collection is frozen, so that none looks at it again. Reference counts
free nearly everything; what is in a cycle and outlived a collection waits for the next whole one. A collection stops
all threads: so it begins when an answer has left, not when it was found.
"""

from __future__ import annotations

import gc
import threading
from typing import Final

from forebay.clock import Clock

__all__ = ["Garbage"]

NEW: Final = 1_000
"""Objects more than at the last collection, after which there is one: 0.3 ms."""
MOST_NEW: Final = 8_000
"""The same, while look-ups are under way."""
WHOLE: Final = 3_600.0
"""Seconds between collections of everything: some 50 ms, which a look-up that comes meanwhile waits."""
QUIET: Final = 1.0
"""Seconds without a look-up after which such a one is due; without such a pause, it waits for as long again."""


class Garbage:
    """Turns the automatic collector off. From several threads."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._collecting = threading.Lock()
        self._asked_at = self._whole_at = clock.now()
        gc.disable()

    def asked(self, *, busy: bool = False) -> None:
        """Look-ups were answered. `busy`: others are under way."""
        self._asked_at = self._clock.now()
        self.little(MOST_NEW if busy else NEW)

    def little(self, new: int = NEW) -> None:
        """Between two pieces of work, where there are `new` objects."""
        if gc.get_count()[0] >= new and self._collecting.acquire(blocking=False):
            try:
                gc.collect(0)
                gc.freeze()
            finally:
                self._collecting.release()

    def whole(self) -> None:
        """With nothing to do."""
        now = self._clock.now()
        since = now - self._whole_at
        if since < WHOLE or (now - self._asked_at < QUIET and since < 2 * WHOLE):
            return
        self.everything()

    def everything(self) -> None:
        with self._collecting:
            self._whole_at = self._clock.now()
            gc.unfreeze()
            gc.collect()
            gc.freeze()

    def __repr__(self) -> str:
        return f"<Garbage {gc.get_count()[0]} new, {gc.get_freeze_count()} kept>"
