"""Who asks: tenants of unequal size, priority classes, and what the engine is told of them."""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from random import Random

from forebay.sim.workload import Ask
from forebay.sim.workloads.bounds import CLASSES
from forebay.sim.workloads.dice import dice
from forebay.sim.workloads.source import Size, Source, Tally

MAX_TENANTS = 1_000_000


@dataclass(frozen=True, slots=True, repr=False)
class Mix:
    """Names with their weights. Raises ValueError where the weights are negative or all 0."""

    names: Sequence[str]
    weights: Sequence[float]

    def __post_init__(self) -> None:
        if not self.names or len(self.names) != len(self.weights):
            raise ValueError("a mix is names with a weight each")
        if not all(0 <= w < math.inf for w in self.weights) or not 0 < sum(self.weights) < math.inf:
            raise ValueError("the weights of a mix are numbers of at least 0, and not all 0")

    def sampler(self, rng: Random) -> Callable[[], str]:
        names = list(self.names)
        if len(names) == 1:
            only = names[0]
            return lambda: only
        sums = list(accumulate(self.weights))
        total, draw, last = sums[-1], rng.random, len(names) - 1
        return lambda: names[bisect(sums, draw() * total, 0, last)]

    def __repr__(self) -> str:
        n = len(self.names)
        some = ", ".join(f"{name} {w:g}" for name, w in zip(self.names[:3], self.weights[:3], strict=True))
        return f"<Mix {some}{f', … of {n:,}' if n > 3 else ''}>"


def one(name: str) -> Mix:
    return Mix((name,), (1.0,))


def zipf(n: int, skew: float) -> Mix:
    """Tenants `tenant-1` to `tenant-n`; the k-th asks in proportion to 1 / k^skew (Zipf's law; 0: all alike). Raises
    ValueError for an n outside 1 to MAX_TENANTS and a skew outside 0 to 10."""
    if not 1 <= n <= MAX_TENANTS:
        raise ValueError(f"tenants must be from 1 to {MAX_TENANTS:,}, not {n:,}")
    if not 0 <= skew <= 10:
        raise ValueError(f"skew must be from 0 to 10, not {skew:g}")
    return Mix(tuple(f"tenant-{k}" for k in range(1, n + 1)), tuple(k**-skew for k in range(1, n + 1)))


@dataclass(frozen=True, slots=True)
class Who:
    """What is drawn for each request, or for each conversation: None leaves the source's own. Raises ValueError for a
    class that there is not."""

    tenants: Mix | None = None
    classes: Mix | None = None
    priorities: Mapping[str, int] | None = None
    """What the engine is told for each class; a class that is not here is told 0."""

    def __post_init__(self) -> None:
        for name in (*(self.classes.names if self.classes else ()), *(self.priorities or ())):
            if name not in CLASSES:
                raise ValueError(f"class '{name}' is unknown; allowed are {', '.join(CLASSES)}")

    def sampler(self, seed: str) -> Callable[[], tuple[str, str, int]]:
        """Draws (tenant, class, priority), with a new ask's values for what is None."""
        tenant = (self.tenants or one("")).sampler(dice(seed, "tenants"))
        cls = (self.classes or one("normal")).sampler(dice(seed, "classes"))
        priorities = self.priorities or {}

        def draw() -> tuple[str, str, int]:
            name = cls()
            return tenant(), name, priorities.get(name, 0)

        return draw


@dataclass(frozen=True, slots=True)
class Assigned:
    """A source whose requests get tenants, classes and priorities, each for itself."""

    source: Source
    who: Who
    seed: str

    @property
    def size(self) -> Size:
        return self.source.size

    def stream(self, tally: Tally) -> Iterator[Ask]:
        who = self.who
        draw = who.sampler(self.seed)
        for ask in self.source.stream(tally):
            tenant, cls, priority = draw()
            if who.tenants is None:
                tenant = ask.tenant
            if who.classes is None:
                cls = ask.cls
            if who.priorities is None:
                priority = ask.priority
            elif who.classes is None:
                priority = who.priorities.get(cls, 0)
            yield Ask(ask.arrival, ask.prompt_tokens, ask.output_tokens, ask.prefix, tenant, cls, priority, ask.keeps)
