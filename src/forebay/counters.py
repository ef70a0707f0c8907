"""Plain counters and histograms: ints that are bumped on the token path and read at scrape time.

No locks and no label objects on the hot path: a caller resolves its series once (`Family.series`) and then bumps it.
Label values come from configuration or from enums, never from what a client typed; each family is bounded all the same
and folds what is beyond its bound into the series `OVERFLOW`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from math import isfinite
from typing import Generic, TypeVar

OVERFLOW = "_other"


class Counter:
    """One number that goes up (or, for a gauge, up and down)."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0

    def add(self, n: int = 1) -> None:
        self.value += n

    def __repr__(self) -> str:
        return f"<Counter {self.value}>"


class Histogram:
    """Counts of observations by upper edge, Prometheus' `le`: bucket i holds edges[i-1] < x ≤ edges[i]."""

    __slots__ = ("counts", "edges", "total")

    def __init__(self, edges: Sequence[float]) -> None:
        if list(edges) != sorted(set(edges)) or not all(map(isfinite, edges)):
            raise ValueError(f"histogram edges must be finite and rise: {edges}")
        self.edges = tuple(edges)
        self.counts = [0] * (len(self.edges) + 1)
        self.total = 0.0

    def observe(self, x: float) -> None:
        self.counts[bisect_left(self.edges, x)] += 1
        self.total += x

    def __repr__(self) -> str:
        return f"<Histogram n={sum(self.counts)} sum={self.total:.6g}>"


S = TypeVar("S", Counter, Histogram)


class Family(Generic[S]):
    """One metric with its labels: series are made on first use, at most `bound` of them and `OVERFLOW`."""

    __slots__ = ("_bound", "_make", "_series", "help", "labels", "name")

    def __init__(
        self, name: str, text: str, labels: tuple[str, ...], make: Callable[[], S], *, bound: int = 4096
    ) -> None:
        self.name = name
        self.help = text
        self.labels = labels
        self._make: Callable[[], S] = make
        self._bound = bound
        self._series: dict[tuple[str, ...], S] = {}

    def series(self, *values: str) -> S:
        """The series of these label values, made on first use. Raises ValueError where their number is wrong."""
        found = self._series.get(values)
        if found is not None:
            return found
        if len(values) != len(self.labels):
            raise ValueError(f"{self.name} has labels {self.labels}, not {values}")
        if len(self._series) >= self._bound:
            values = (OVERFLOW,) * len(self.labels)
            found = self._series.get(values)
            if found is not None:
                return found
        made: S = self._make()
        self._series[values] = made
        return made

    def items(self) -> Iterator[tuple[tuple[str, ...], S]]:
        return iter(self._series.items())

    def __repr__(self) -> str:
        return f"<Family {self.name} {len(self._series)} series>"


def counters(name: str, text: str, *labels: str) -> Family[Counter]:
    return Family(name, text, labels, Counter)


def histograms(name: str, text: str, edges: Sequence[float], *labels: str) -> Family[Histogram]:
    return Family(name, text, labels, lambda: Histogram(edges))
