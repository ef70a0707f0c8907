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
        self._requests = [0, 0]
        self._retries = [0, 0]

    def request(self) -> None:
        self._requests[0] += 1

    def take(self, now: float) -> bool:
        """One retry, if there is budget for it. `now` is monotonic seconds."""
        if now - self._began >= WINDOW:
            stale = now - self._began >= 2 * WINDOW
            self._began = now
            self._requests = [0, 0 if stale else self._requests[0]]
            self._retries = [0, 0 if stale else self._retries[0]]
        if sum(self._retries) >= ALWAYS + self.share * sum(self._requests):
            return False
        self._retries[0] += 1
        return True

    def __repr__(self) -> str:
        return f"<RetryBudget {sum(self._retries)} of {ALWAYS} + {self.share:g} × {sum(self._requests)}>"
