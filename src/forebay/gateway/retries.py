"""A bound on retries as a share of traffic, so that a failing engine is not answered with twice the load."""

from __future__ import annotations

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
