"""Time as an argument: the one place that reads the machine's clocks."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Two readings: `now` for measuring, `wall` for stamping."""

    def now(self) -> float:
        """Seconds since an arbitrary origin; never runs backward."""
        ...

    def wall(self) -> float:
        """Seconds since the Unix epoch; may jump."""
        ...


class SystemClock:
    """The machine's own clocks. `now` is the event loop's time base (CLOCK_MONOTONIC)."""

    __slots__ = ()
    now = staticmethod(time.monotonic)
    wall = staticmethod(time.time)


class ManualClock:
    """A clock that moves when told: for tests and simulated time."""

    __slots__ = ("_now", "_wall")

    def __init__(self, now: float = 0.0, wall: float = 1_700_000_000.0) -> None:
        self._now = now
        self._wall = wall

    def now(self) -> float:
        return self._now

    def wall(self) -> float:
        return self._wall

    def advance(self, seconds: float) -> None:
        """Move both readings forward. Raises ValueError for a step that is negative or no number."""
        if not seconds >= 0:
            raise ValueError(f"a clock cannot be advanced by {seconds} s")
        self._now += seconds
        self._wall += seconds

    def __repr__(self) -> str:
        return f"<ManualClock {self._now:.3f}>"
