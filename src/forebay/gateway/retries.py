"""A bound on retries as a share of traffic, so that a failing engine is not answered with twice the load."""

from __future__ import annotations

import random
from typing import Final

WINDOW = 10.0
"""Seconds."""
ALWAYS = 10
"""Retries a window that are allowed whatever the traffic."""


class RetryBudget:
    """Counts requests and retries of the current window and the one before it."""

    def __init__(self, share: float) -> None:
        self.share = share
        self._began = float("-inf")
        self.requests = 0
        """Of this window; counted by whoever sends them."""
        self._before = 0
        self._retries = [0, 0]

    def take(self, now: float) -> bool:
        """One retry, if there is budget for it. `now` is monotonic seconds."""
        if now - self._began >= WINDOW:
            stale = now - self._began >= 2 * WINDOW
            self._began = now
            self._before, self.requests = 0 if stale else self.requests, 0
            self._retries = [0, 0 if stale else self._retries[0]]
        if sum(self._retries) >= ALWAYS + self.share * (self.requests + self._before):
            return False
        self._retries[0] += 1
        return True

    def __repr__(self) -> str:
        return f"<RetryBudget {sum(self._retries)} of {ALWAYS} + {self.share:g} × {(self.requests + self._before)}>"


class Spread:
    """When a retry goes. The first few at once; the many that one engine's end sends off at the same moment are spread,
    so that they do not fall upon the others as one wave of prefills."""

    FREE: Final = 8
    """Retries within `LULL` seconds of the last one that go at once."""
    LULL: Final = 0.25
    EACH: Final = 0.002
    """Seconds that each retry beyond those widens the spread by."""
    MOST: Final = 0.25
    """Seconds."""

    def __init__(self, seed: int = 0) -> None:
        self._rng = random.Random(seed)  # noqa: S311 - spreads load, guards nothing
        self._last = float("-inf")
        self._count = 0

    def delay(self, now: float) -> float:
        """Seconds that the next retry waits; `now` is monotonic seconds."""
        if now - self._last > self.LULL:
            self._count = 0
        self._last = now
        self._count += 1
        wide = min(self.MOST, (self._count - self.FREE) * self.EACH)
        return self._rng.uniform(0.0, wide) if wide > 0 else 0.0

    def __repr__(self) -> str:
        return f"<Spread {self._count} in a row>"
