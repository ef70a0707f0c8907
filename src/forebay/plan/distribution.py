"""Percentiles of any number of observations in bounded memory."""

from __future__ import annotations

import math
from array import array
from operator import add
from typing import Final

_GROWTH: Final = math.log(1.01)
_LEAST: Final = 1e-6
_BUCKETS: Final = 2_550
"""1 µs to over a day in steps of 1 %."""


def _bucket(seconds: float) -> int:
    return min(_BUCKETS - 1, int(math.log(seconds / _LEAST) / _GROWTH) + 1) if seconds > _LEAST else 0


class Distribution:
    """Durations in seconds, counted in buckets 1 % wide: a percentile is right to 0.5 % (or to 1 µs)."""

    __slots__ = ("_counts", "count", "largest", "least", "total")

    def __init__(self) -> None:
        self._counts = array("Q", bytes(8 * _BUCKETS))
        self.count = 0
        self.total = 0.0
        self.least = math.inf
        self.largest = 0.0

    def add(self, seconds: float, times: int = 1) -> None:
        i = int(math.log(seconds / _LEAST) / _GROWTH) + 1 if seconds > _LEAST else 0
        self._counts[i if i < _BUCKETS else _BUCKETS - 1] += times
        self.count += times
        self.total += seconds * times
        if seconds < self.least:
            self.least = seconds
        if seconds > self.largest:
            self.largest = seconds

    @property
    def mean(self) -> float | None:
        return self.total / self.count if self.count else None

    def percentile(self, percent: float) -> float | None:
        """The smallest duration that `percent` of the observations do not exceed; None without observations. Raises
        ValueError for a percentage outside 0 to 100."""
        if not 0 <= percent <= 100:
            raise ValueError(f"a percentage is 0 to 100, not {percent}")
        if not self.count:
            return None
        rank = max(1, math.ceil(self.count * percent / 100))
        if rank == self.count:
            return self.largest
        seen = 0
        for i, n in enumerate(self._counts):
            seen += n
            if seen >= rank:
                middle = _LEAST * math.exp((i - 0.5) * _GROWTH) if i else 0.0
                return min(max(middle, self.least), self.largest)
        return self.largest

    def merge(self, other: Distribution) -> None:
        """Take the other's observations in."""
        if not other.count:
            return
        low, high = _bucket(other.least), _bucket(other.largest) + 1  # the rest of it is 0
        self._counts[low:high] = array("Q", map(add, self._counts[low:high], other._counts[low:high]))
        self.count += other.count
        self.total += other.total
        self.least = min(self.least, other.least)
        self.largest = max(self.largest, other.largest)

    def below(self, seconds: float) -> float:
        """The share of the observations that do not exceed the bucket of `seconds`; 0.0 without observations."""
        return sum(self._counts[: _bucket(seconds) + 1]) / self.count if self.count else 0.0

    def curve(self, points: int = 200) -> tuple[list[float], list[float]]:
        """Durations in rising order and the share of the observations that do not exceed each: at most `points`."""
        xs: list[float] = []
        ys: list[float] = []
        seen, drawn = 0, -1.0
        for i, n in enumerate(self._counts):
            seen += n
            share = seen / self.count if n else 0.0
            if n and (share - drawn >= 1 / points or seen == self.count):
                xs.append(min(max(_LEAST * math.exp(i * _GROWTH), self.least), self.largest))
                ys.append(share)
                drawn = share
        return xs, ys

    def __repr__(self) -> str:
        if not self.count:
            return "<Distribution empty>"
        p50, p99 = self.percentile(50) or 0.0, self.percentile(99) or 0.0
        return f"<Distribution n={self.count} p50={p50 * 1e3:.3f} ms p99={p99 * 1e3:.3f} ms>"
