"""One engine's breaker: whether new requests may go to it, by how those before ended. Pure; time comes in as seconds.

    closed ──too many failures──▶ open ──its back-off is over──▶ half-open ──`probes` good ones──▶ closed, slowly
                                    ▲                              │
                                    └────────── one bad one ───────┘   with twice the back-off

Two rules. What is not a probe of this half-open time says nothing once the breaker is not closed: it was sent
before. And a failure costs a
look at the counts, a success hardly anything: where the breaker is closed and untouched (`tender` is false), its owner
only adds 1 to `good`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


@dataclass(frozen=True, slots=True)
class BreakerRules:
    failures: int = 5
    """Failures in a row that open it."""
    error_share: float = 0.5
    """Failures as a share of what ended within the window that open it: more than this."""
    error_least: int = 20
    """What must have ended within the window before the share says anything."""
    window_s: float = 10.0
    open_s: float = 1.0
    """The first back-off; it doubles with each failed probe."""
    open_most_s: float = 60.0
    probes: int = 2
    """Requests sent while half-open, and good ends that close it."""
    slow_start_s: float = 10.0
    """From its least share of traffic to all of it."""
    least_share: float = 0.1


class Breaker:
    """`good` counts successes while closed; its owner adds to it. Every method with a verdict returns whether `admits`
    may have changed."""

    __slots__ = (
        "_bad",
        "_before",
        "_began",
        "_era",
        "_good_then",
        "_next_open_s",
        "_passed",
        "_sent",
        "_warm_from",
        "good",
        "rules",
        "state",
        "streak",
        "tender",
        "until",
    )

    def __init__(self, rules: BreakerRules) -> None:
        self.rules = rules
        self.state = State.CLOSED
        self.good = 0
        self.streak = 0
        self.tender = False
        """A success must be told by `succeeded`, not only counted."""
        self.until = 0.0
        """While open: when it may be tried again."""
        self._began = float("-inf")
        self._good_then = 0
        self._bad = 0
        self._before = (0, 0)
        self._next_open_s = rules.open_s
        self._era = 0
        self._sent = 0
        self._passed = 0
        self._warm_from = float("-inf")

    @property
    def admits(self) -> bool:
        return self.state is State.CLOSED or (self.state is State.HALF_OPEN and self._sent < self.rules.probes)

    def share(self, now: float) -> float:
        """Of the traffic that it would get otherwise, in (0, 1]."""
        rules = self.rules
        if self.state is not State.CLOSED:
            return rules.least_share
        warm = now - self._warm_from
        if warm >= rules.slow_start_s:
            return 1.0
        return min(1.0, rules.least_share + (1.0 - rules.least_share) * max(0.0, warm) / rules.slow_start_s)

    def warm_up(self, now: float) -> None:
        """It is new, or back: a slow start."""
        self._warm_from = now

    # --- verdicts ----------------------------------------------------------------------------------------------------

    def succeeded(self, now: float, *, probe: int = 0) -> bool:
        """For a closed one that is `tender`, and for probes; `good` is counted by the owner. `probe` is what `sent`
        said."""
        if self.state is State.CLOSED:
            self.streak = 0
            self.tender = False
            return False
        if not self._is_mine(probe):
            return False
        self._passed += 1
        if self._passed < self.rules.probes:
            return False
        self._close(now)
        self._next_open_s = self.rules.open_s
        self.warm_up(now)
        return True

    def failed(self, now: float, *, probe: int = 0, may_open: bool = True) -> bool:
        """Without `may_open` it is only counted: there is nobody else."""
        if self._is_mine(probe):
            self._next_open_s = min(2 * self._next_open_s, self.rules.open_most_s)
            self._open(now)
            return True
        if self.state is not State.CLOSED:
            return False
        self._roll(now)
        self.streak += 1
        self._bad += 1
        self.tender = True
        if not (may_open and self.overdue):
            return False
        self._open(now)
        return True

    @property
    def overdue(self) -> bool:
        """Closed, and its failures would open it."""
        rules = self.rules
        if self.state is not State.CLOSED:
            return False
        bad = self._bad + self._before[0]
        ended = bad + self.good - self._good_then + self._before[1]
        return self.streak >= rules.failures or (ended >= rules.error_least and bad > rules.error_share * ended)

    def trip(self, now: float) -> bool:
        """Open at once, whatever was counted."""
        if self.state is State.OPEN:
            return False
        self._open(now)
        return True

    def heal(self, now: float) -> bool:
        """What it was opened for was not so: closed at once, and with all its traffic."""
        if self.state is State.CLOSED:
            return False
        self._close(now)
        return True

    def sent(self) -> int:
        """A request goes there: 0, or the number of this half-open time, whose probe it is."""
        if self.state is not State.HALF_OPEN:
            return 0
        self._sent += 1
        return self._era

    def void(self, probe: int) -> bool:
        """It ended and says nothing: its client left, say."""
        if not self._is_mine(probe):
            return False
        self._sent -= 1
        return True

    def look(self, now: float) -> bool:
        """Half-open once its back-off is over."""
        if self.state is not State.OPEN or now < self.until:
            return False
        self.state = State.HALF_OPEN
        self._era += 1
        self._sent = self._passed = 0
        return True

    # --- inside ------------------------------------------------------------------------------------------------------

    def _is_mine(self, probe: int) -> bool:
        return self.state is State.HALF_OPEN and probe == self._era

    def _open(self, now: float) -> None:
        self.state = State.OPEN
        self.tender = True
        self.until = now + self._next_open_s

    def _close(self, now: float) -> None:
        self.state = State.CLOSED
        self.streak = 0
        self.tender = False
        self._began, self._good_then, self._bad, self._before = now, self.good, 0, (0, 0)

    def _roll(self, now: float) -> None:
        """Counts are of the present window and the one before it, as those of the retry budget."""
        window = self.rules.window_s
        age = now - self._began
        if age >= window:
            self._before = (self._bad, self.good - self._good_then) if age < 2 * window else (0, 0)
            self._began, self._good_then, self._bad = now, self.good, 0

    def __repr__(self) -> str:
        ended = self.good - self._good_then + self._before[1]
        return f"<Breaker {self.state.value} [{self._bad + self._before[0]} bad, {ended} good, {self.streak} in a row]>"
