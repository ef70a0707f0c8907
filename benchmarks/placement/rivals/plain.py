"""Placement that knows nothing of prefixes."""

from __future__ import annotations

from benchmarks.placement.rivals.base import Rival
from forebay.sim.workload import Ask


class Random(Rival):
    """Any engine."""

    def choose(self, ask: Ask, row: int, now: float) -> int:
        return self.random.choice(self.live)


class RoundRobin(Rival):
    """Each in turn."""

    def __init__(self, engines: int, seed: int = 0) -> None:
        super().__init__(engines, seed)
        self._turn = -1

    def choose(self, ask: Ask, row: int, now: float) -> int:
        self._turn += 1
        return self.live[self._turn % len(self.live)]


class LeastRequests(Rival):
    """Where the fewest run and wait, among equals in turn: `sim.cluster.LeastRequests` for engines that come and go."""

    def __init__(self, engines: int, seed: int = 0) -> None:
        super().__init__(engines, seed)
        self._turn = 0

    def choose(self, ask: Ask, row: int, now: float) -> int:
        counts, n = self.counts, len(self.counts)
        chosen = min(self.live, key=lambda i: (counts[i], (i - self._turn) % n))
        self._turn = chosen + 1
        return chosen
