"""One coarse clock for every time-out of an event loop.

A timer a connection costs more than the bytes it guards. So a deadline is a float on the object it belongs to, and the
ticker looks at all of them a few times a second: a time-out never fires early, and at most two periods late. Where the
whole process stood still (a host that is paused, or far too busy), it is a period more, and what came meanwhile is read
first.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from math import inf
from typing import Final

log = logging.getLogger("forebay.wire")

PERIOD: Final = 0.5
"""Seconds between two looks."""

NEVER: Final = inf


class Ticker:
    """Calls its sweepers every `PERIOD` with the time. `now` is for deadlines: never behind the true time, and at most
    one period ahead of it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._sweepers: dict[Callable[[float], None], None] = {}  # in the order they came
        self._handle: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._late = False
        self.now = loop.time() + PERIOD

    def add(self, sweeper: Callable[[float], None]) -> None:
        self._sweepers[sweeper] = None

    def remove(self, sweeper: Callable[[float], None]) -> None:
        """Nothing happens where it is not there any more."""
        self._sweepers.pop(sweeper, None)

    def start(self) -> None:
        self._late = False
        self.now = self._due = self._loop.time() + PERIOD
        self._handle = self._loop.call_later(PERIOD, self._tick)

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _tick(self) -> None:
        self._handle = self._loop.call_later(PERIOD, self._tick)
        now = self._loop.time()
        late = not self._late and now - self._due > PERIOD
        self._late = late
        self.now = self._due = now + PERIOD
        if late:  # a loop runs its timers before it reads: the silence may be its own
            return
        for sweep in tuple(self._sweepers):
            try:
                sweep(now)
            except Exception:  # the others' time-outs are not its to hold up
                log.exception("a look at time-outs failed")
