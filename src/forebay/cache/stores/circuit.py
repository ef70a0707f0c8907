"""Whether a server is asked at all: after some failures in a row it rests, and one call at a time tries it again."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

__all__ = ["Circuit"]

_log = logging.getLogger("forebay.cache")


class Circuit:
    """From several threads. `now`: monotonic seconds."""

    FAILURES: Final = 3
    """In a row that open it."""
    REST: Final = 0.5
    """Seconds; doubles with each try that fails, up to MOST_REST."""
    MOST_REST: Final = 8.0

    def __init__(self, what: str, now: Callable[[], float]) -> None:
        self.what = what
        """For the log; without a password."""
        self._now = now
        self._lock = threading.Lock()
        self._streak = 0
        self._rest = self.REST
        self._until: float | None = None
        self._logged = ""
        self.problem = ""
        """Of the last call that failed, until one succeeds."""

    @property
    def is_open(self) -> bool:
        return self._until is not None

    def admits(self) -> bool:
        """Whether a call may be made now. Where it is a try, the others rest on meanwhile."""
        if not self.is_open:
            return True
        with self._lock:
            now = self._now()
            if self._until is None:
                return True
            if now < self._until:
                return False
            self._until = now + self._rest
            return True

    def succeeded(self) -> None:
        if not self.problem:
            return
        with self._lock:
            if self._until is not None:
                _log.info("%s answers again", self.what)
            self._streak = 0
            self._rest = self.REST
            self._until = None
            self.problem = ""

    def refused(self, problem: str) -> None:
        """It answers, and says no: no reason to let it rest. Logged once."""
        with self._lock:
            self.problem = problem
            if problem != self._logged:
                self._logged = problem
                _log.warning("%s: %s", self.what, problem)

    def failed(self, problem: str) -> None:
        with self._lock:
            self._streak += 1
            self.problem = problem
            if self._until is not None:
                self._rest = min(self.MOST_REST, self._rest * 2)
                self._until = self._now() + self._rest
            elif self._streak >= self.FAILURES:
                self._until = self._now() + self._rest
                _log.warning("%s: %s; it rests, and look-ups there are misses meanwhile", self.what, problem)

    def __repr__(self) -> str:
        return f"<Circuit {'open' if self.is_open else 'closed'} {self.problem}>"
