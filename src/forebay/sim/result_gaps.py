"""The gaps between tokens (ITL) of a whole run in bounded memory, counted without a look at each."""

from __future__ import annotations

from math import ceil, inf, log
from typing import Final

_GROWTH: Final = log(1.01)
_LEAST: Final = 1e-6
_BUCKETS: Final = 2_550
"""1 µs to over a day in steps of 1 %."""
_EDGES: Final = tuple(_LEAST * 1.01**i for i in range(_BUCKETS))
"""Bucket i holds _EDGES[i-1] < gap ≤ _EDGES[i]; the last is open."""


class Gaps:
    """Durations in seconds in buckets 1 % wide: a percentile is right to 0.5 %; count, mean and extremes are exact."""

    __slots__ = ("_counts", "count", "largest", "least", "total")

    def __init__(self) -> None:
        self._counts = [0] * _BUCKETS
        self.count = 0
        self.total = 0.0
        self.least = inf
        self.largest = 0.0

    def add_run(self, jobs: int, steps: int, first: float, last: float) -> None:
        """`steps` steps of `jobs` sequences each, whose lengths go linearly from `first` to `last` seconds."""
        if first > last:
            first, last = last, first
        count = jobs * steps
        if not count:
            return
        self.count += count
        self.total += count * (first + last) * 0.5
        if first < self.least:
            self.least = first
        if last > self.largest:
            self.largest = last
        low, high = _bucket(first), _bucket(last)
        if low == high or steps == 1:
            self._counts[high] += count
            return
        # Step k of 0 … steps-1 lasts first + k·rise: how many lie at or below each bucket's edge?
        rise = (last - first) / (steps - 1)
        counts, below = self._counts, 0
        for i in range(low, high):
            reached = min(steps - 1, int((_EDGES[i] - first) / rise) + 1)
            if reached > below:
                counts[i] += jobs * (reached - below)
                below = reached
        counts[high] += jobs * (steps - below)

    @property
    def mean(self) -> float | None:
        return self.total / self.count if self.count else None

    def percentile(self, percent: float) -> float | None:
        """The smallest gap that `percent` of all do not exceed; None without gaps."""
        if not self.count:
            return None
        rank = max(1, ceil(self.count * percent / 100))
        if rank == self.count:
            return self.largest
        seen = 0
        for i, n in enumerate(self._counts):
            seen += n
            if seen >= rank:
                return self._middle(i)
        return self.largest

    def cdf(self) -> tuple[list[float], list[float]]:
        """Gaps that rise, in seconds, and for each the fraction of all gaps that do not exceed it."""
        xs, ys, seen = [], [], 0
        for i, n in enumerate(self._counts):
            if n:
                seen += n
                xs.append(self._middle(i))
                ys.append(seen / self.count)
        return xs, ys

    def _middle(self, i: int) -> float:
        middle = _LEAST * 1.01 ** (i - 0.5) if i else 0.0
        return min(max(middle, self.least), self.largest)

    def __repr__(self) -> str:
        if not self.count:
            return "<Gaps empty>"
        p50, p99 = self.percentile(50) or 0.0, self.percentile(99) or 0.0
        return f"<Gaps n={self.count} p50={p50 * 1e3:.3f} ms p99={p99 * 1e3:.3f} ms>"


def _bucket(seconds: float) -> int:
    if seconds <= _LEAST:
        return 0
    return min(int(log(seconds / _LEAST) / _GROWTH) + 1, _BUCKETS - 1)
