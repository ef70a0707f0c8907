"""How many requests an engine may run under a soft cap, and how many engines would do.

An engine may be given a cap under what it can run at once (`Facts.concurrency`), to keep its TPOT, say. While the queue
is long that is paid for by those who wait, so the cap is multiplied by a factor, checked once in `every_s`:

    the engine preempted since the last check        − down, not under `least`
    over `up_over` × the cap wait                    + up, not over `most`
    under `down_under` × the cap wait                − down, not under 1
    it is under 1 and did not preempt                + up, not over 1

So it is under 1 only where the engine shows that the cap itself is too high: an empty queue is no reason to be slow to
take the next flood. The cap never gets over what the engine runs at once, since what is beyond that would wait in the
engine, where nobody knows of classes.

The replicas of a model that would carry its load at `target`, alike as its engines are:

    Σ load · max(1, asked / taken) / target

The load of an engine is the most of its predicted KV use, of the share of time that it prefills, and of its places in
use; what it has of each model counts by tokens. `asked` are the prompt tokens of new requests: who was told to come
back is not new, and `low` waits for idle engines. `taken` are those of all that were admitted. Means over `SPAN` count,
so that a burst that is over at once asks for little.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from math import ceil, exp, inf
from typing import TYPE_CHECKING, Final

from forebay.policy.rules import ScaleRules

if TYPE_CHECKING:
    from forebay.policy.drain import Drain
    from forebay.policy.engine_books import EngineBooks
    from forebay.policy.queue import WaitingRoom

LOOK_EVERY: Final = 1.0
"""Seconds between two looks at what models need."""
SPAN: Final = 15.0
"""Seconds after which what was seen counts 1/e."""
MOST_ASKED: Final = 10.0
"""Times what was taken that what was asked for counts: nobody knows what of it is one client that does not wait."""


class Factor:
    """One engine's. Mutable state: the factor, and when it is next checked."""

    __slots__ = ("_next_at", "rules", "value")

    def __init__(self, rules: ScaleRules) -> None:
        self.rules = rules
        self.value = 1.0
        self._next_at: float | None = None

    def due(self, now: float) -> bool:
        """Whether it is to be checked; for the first time `every_s` after it was first asked."""
        if self._next_at is None:
            self._next_at = now + self.rules.every_s
        return now >= self._next_at

    def check(self, waiting: float, cap: int, now: float, *, preempted: bool = False, full: bool = False) -> float:
        """What a cap of `cap` is to be multiplied by, where `waiting` wait for the engine. `preempted`: since the last
        check; `full`: it sheds now, so that more would do no good."""
        rules, value = self.rules, self.value
        self._next_at = now + rules.every_s
        if preempted:
            value = max(rules.least, value - rules.down)
        elif waiting > rules.up_over * cap:
            value = value if full else min(rules.most, value + rules.up)
        elif value < 1:
            value = min(1.0, value + rules.up)
        elif waiting < rules.down_under * cap:
            value = max(1.0, value - rules.down)
        self.value = round(value, 9)
        return self.value

    def configure(self, rules: ScaleRules) -> None:
        self.rules = rules
        self.value = min(rules.most, max(rules.least, self.value))

    def __repr__(self) -> str:
        return f"<Factor ×{self.value:g}>"


class Replicas:
    """One model's. Mutable state: the means, and the numbers desired of late."""

    __slots__ = ("_asked", "_at", "_load", "_recent", "_taken", "rules")

    def __init__(self, rules: ScaleRules) -> None:
        self.rules = rules
        self._load = self._asked = self._taken = 0.0
        self._at = -inf
        self._recent: deque[tuple[float, int]] = deque()
        """(time, replicas), falling: the first is the most of the last `settle_s`."""

    @property
    def demand(self) -> float:
        """In the capacity of one engine."""
        return self._load * min(MOST_ASKED, max(1.0, self._asked / max(1.0, self._taken)))

    def told(self, load: float, asked: float, taken: float, now: float) -> None:
        """`load` now, and prompt tokens since the last time. More is desired as soon as the means say so, less once it
        has done for `settle_s`."""
        rules = self.rules
        passed = now - self._at if self._at > -inf else LOOK_EVERY
        if passed <= 0:
            return
        self._at = now
        keep = exp(-passed / SPAN)
        self._load = self._load * keep + (1 - keep) * load
        self._asked = self._asked * keep + asked
        self._taken = self._taken * keep + taken
        want = ceil(min(self.demand / rules.target, rules.most_replicas) - 1e-9)
        want = min(rules.most_replicas, max(rules.least_replicas, want))
        recent = self._recent
        while recent and recent[-1][1] <= want:
            recent.pop()
        recent.append((now, want))
        while recent[0][0] < now - rules.settle_s:
            recent.popleft()

    @property
    def desired(self) -> int:
        rules = self.rules
        return min(rules.most_replicas, max(rules.least_replicas, self._recent[0][1] if self._recent else 0))

    def __repr__(self) -> str:
        return f"<Replicas {self.desired} for {self.demand:.2f}>"


class Scaling:
    """Mutable state: what each model needs, and when that was last looked at."""

    __slots__ = ("_looked_at", "models", "rules")

    def __init__(self, rules: ScaleRules) -> None:
        self.rules = rules
        self.models: dict[str, Replicas] = {}
        self._looked_at = -inf

    def desired(self, model: str) -> int:
        found = self.models.get(model)
        return found.desired if found is not None else self.rules.least_replicas

    def reported(
        self,
        engine: EngineBooks,
        books: Mapping[str, EngineBooks],
        rooms: Mapping[str, WaitingRoom],
        drains: Mapping[str, Drain],
        now: float,
    ) -> None:
        """An engine's report was taken in."""
        if engine.facts.concurrency is not None and engine.factor.due(now):
            engine.check_cap(_waiting_for(engine, books, rooms), now)
        if not now - self._looked_at < LOOK_EVERY:
            self._looked_at = now
            self._look(books, drains, now)

    def _look(self, books: Mapping[str, EngineBooks], drains: Mapping[str, Drain], now: float) -> None:
        loads = dict.fromkeys(drains, 0.0)
        for engine in books.values():
            for model, share in engine.shares().items():
                loads[model] = loads.get(model, 0.0) + engine.load * share
        models = self.models
        for gone in [m for m in models if m not in loads]:
            loads[gone] = 0.0
        for model, load in loads.items():
            found = models.get(model)
            if found is None:
                found = models[model] = Replicas(self.rules)
            asked, taken = drains[model].since() if model in drains else (0, 0)
            found.told(load, asked, taken, now)
            if model not in drains and not load and found.desired == self.rules.least_replicas:
                del models[model]

    def configure(self, rules: ScaleRules) -> None:
        self.rules = rules
        for found in self.models.values():
            found.rules = rules

    def __repr__(self) -> str:
        return f"<Scaling {self.models}>"


def _waiting_for(engine: EngineBooks, books: Mapping[str, EngineBooks], rooms: Mapping[str, WaitingRoom]) -> float:
    """Its part of those who wait and could go to it."""
    found = 0.0
    for room in rooms.values():
        first = room.first()
        if first is not None:
            able = [name for name in first.engines if name in books] if first.engines else list(books)
            if engine.name in able:
                found += len(room) / len(able)
    return found
