"""Clients that obey: a refused one comes back when its Retry-After says, and not at all where that says so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

from forebay.errors import retry_headers
from forebay.policy.decisions import Refuse
from forebay.sim.admitted import Admitted
from forebay.sim.cluster import REFUSE, WAIT
from forebay.sim.workload import Ask as Arrival


@dataclass(slots=True)
class Tale:
    """One client and what became of it; seconds."""

    ask: Arrival
    tries: list[float] = field(default_factory=list)
    """When it came."""
    told: list[int] = field(default_factory=list)
    """Retry-After of each refusal."""
    reasons: list[str] = field(default_factory=list)
    given_up: bool = False
    """It was told not to come back, or has come often enough."""


class Returning(Admitted):
    """A `cluster.Policy`: to the cluster, whoever is to come back merely waits."""

    def __init__(self, *args: Any, most_tries: int = 10, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.tales: dict[int, Tale] = {}
        self._most = most_tries
        self._away: list[tuple[float, int]] = []

    def on_arrival(self, ask: Arrival, row: int, now: float) -> int:
        self.tales[row] = Tale(ask)
        return self._try(row, now)

    def due(self, now: float) -> Sequence[tuple[int, int]]:
        found = list(self._settled(now))
        away = self._away
        while away and away[0][0] <= now:
            _, row = heappop(away)
            answer = self._try(row, now)
            if answer != WAIT:
                found.append((row, answer))
        return found

    def next_due(self) -> float:
        due = self.admission.next_due()
        return min(due, self._away[0][0]) if self._away else due

    def _settled(self, now: float) -> Sequence[tuple[int, int]]:
        found = []
        for ask, decision in self.admission.due(now):
            row = ask.key
            answer = self._refused(row, decision, now) if isinstance(decision, Refuse) else self._answer(decision)
            if answer != WAIT:
                found.append((row, answer))
        return found

    def _try(self, row: int, now: float) -> int:
        tale = self.tales[row]
        tale.tries.append(now)
        asked = self._asks[row] = self._asked(tale.ask, row, now)
        decision = self.admission.offer(asked, now)
        return self._refused(row, decision, now) if isinstance(decision, Refuse) else self._answer(decision)

    def _refused(self, row: int, decision: Refuse, now: float) -> int:
        del self._asks[row]
        tale = self.tales[row]
        headers = dict(retry_headers(decision.retry_after))
        tale.reasons.append(decision.reason)
        tale.told.append(int(headers[b"retry-after"]))
        if b"x-should-retry" in headers or len(tale.tries) >= self._most:
            tale.given_up = True
            return REFUSE
        heappush(self._away, (now + tale.told[-1], row))
        return WAIT
