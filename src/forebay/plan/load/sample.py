"""Observations of one run, with intervals that hold although neighbours in time are alike.

Latencies of requests that meet in one queue are not independent, and an interval that takes them for it is far too
narrow. So observations are kept in batches in the order in which they come (between BATCHES / 2 and BATCHES of them:
when there are more, neighbours are merged). How much the batches differ says how many independent observations the run
is worth (batch means: Law, Simulation Modeling and Analysis, §9.5.3), and of so many the order statistics around a
percentile bound it (David and Nagaraja, Order Statistics, §7.1), whatever the distribution is.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from forebay.plan.distribution import Distribution

BATCHES: Final = 32
CONFIDENCE: Final = 0.95
_T: Final = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
"""Student's t for 95 %, two-sided, with 1, 2, … degrees of freedom."""
_Z: Final = 1.96
_LARGE: Final = 5_000
"""Observations beyond a percentile from which the normal approximation of the binomial does."""


class Interval(NamedTuple):
    """`high` is None where the run is too short to bound it."""

    low: float
    high: float | None


class Sample:
    """Durations in seconds, in batches by order of arrival here. Memory: 20 kB a batch."""

    __slots__ = ("_batches", "_now", "_size")

    def __init__(self) -> None:
        self._now = Distribution()
        self._batches: list[Distribution] = [self._now]
        self._size = 1

    def add(self, seconds: float, times: int = 1) -> None:
        now = self._now
        if now.count >= self._size:
            now = self._next()
        now.add(seconds, times)

    def _next(self) -> Distribution:
        batches = self._batches
        if len(batches) == BATCHES:
            for a, b in zip(batches[::2], batches[1::2], strict=True):
                a.merge(b)
            self._batches = batches = batches[::2]
            self._size *= 2
        self._now = Distribution()
        batches.append(self._now)
        return self._now

    def whole(self) -> Distribution:
        """All of them."""
        found = Distribution()
        for batch in self._batches:
            found.merge(batch)
        return found

    @property
    def count(self) -> int:
        return sum(batch.count for batch in self._batches)

    @property
    def largest(self) -> float:
        return max(batch.largest for batch in self._batches)

    @property
    def least(self) -> float:
        return min(batch.least for batch in self._batches)

    @property
    def total(self) -> float:
        return sum(batch.total for batch in self._batches)

    @property
    def mean(self) -> float | None:
        n = self.count
        return self.total / n if n else None

    def percentile(self, percent: float) -> float | None:
        return self.whole().percentile(percent)

    def mean_interval(self) -> Interval | None:
        """Of the mean, 95 %; None with fewer than three batches."""
        full = self._full()
        if len(full) < 3:
            return None
        means = [batch.total / batch.count for batch in full]
        mean = self.total / self.count
        half = _t(len(means) - 1) * math.sqrt(_variance(means) / len(means))
        return Interval(max(0.0, mean - half), mean + half)

    def interval(self, percent: float) -> Interval | None:
        """Of a percentile, 95 %; None without observations."""
        whole = self.whole()
        at = whole.percentile(percent)
        if at is None:
            return None
        independent = self._independent(at, percent / 100)
        low, high = ranks(independent, percent / 100)
        found = whole.percentile(100 * low) if low > 0 else whole.least
        return Interval(whole.least if found is None else found, None if high is None else whole.percentile(100 * high))

    def _independent(self, at: float, share: float) -> int:
        """How many independent observations tell as much about the share at or below `at`: no more than there are."""
        n, full = self.count, self._full()
        if len(full) < 3 or not 0 < share < 1:
            return n
        variance = _variance([batch.below(at) for batch in full]) / len(full)
        # Student's t for the few batches that the variance is taken from.
        variance *= (_t(len(full) - 1) / _Z) ** 2
        alone = share * (1 - share)
        return n if variance <= alone / n else max(1, round(alone / variance))

    def _full(self) -> list[Distribution]:
        """The batches that are as large as the others."""
        return [batch for batch in self._batches if batch.count >= self._size]

    def __repr__(self) -> str:
        return f"<Sample of {len(self._batches)} batches, {self.whole()!r}>"


def ranks(n: int, share: float) -> tuple[float, float | None]:
    """The shares of `n` ordered independent observations between which the quantile of `share` lies with 95 %: the
    first 0 where no observation bounds it from below, the second None where none does from above."""
    tail = (1 - CONFIDENCE) / 2
    above, below = _least_sure(n, 1 - share, tail), _least_sure(n, share, tail)
    # At most `above` observations lie beyond the quantile with no more than `tail`; likewise below it.
    high = None if above is None else (n - above) / n
    low = 0.0 if below is None else (below + 1) / n
    return min(low, share), None if high is None else max(high, share)


def _least_sure(n: int, p: float, tail: float) -> int | None:
    """The largest k with P(Binomial(n, p) ≤ k) ≤ tail; None where even none of n is likelier."""
    if n * min(p, 1 - p) > _LARGE:
        k = math.floor(n * p - _Z * math.sqrt(n * p * (1 - p)))
        return k if k >= 0 else None
    if p >= 1:
        return n - 1 if n else None
    if p <= 0:
        return None
    total, k = 0.0, -1
    log_p, log_q = math.log(p), math.log1p(-p)
    for i in range(n + 1):
        log = math.lgamma(n + 1) - math.lgamma(i + 1) - math.lgamma(n - i + 1) + i * log_p + (n - i) * log_q
        total += math.exp(log)
        if total > tail:
            break
        k = i
    return k if k >= 0 else None


def share_interval(of: int, n: int) -> Interval | None:
    """Of a share `of` / `n`, 95 % (Wilson, 1927); None where n is 0."""
    if not n:
        return None
    p, z2 = of / n, _Z**2
    middle = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = _Z / (1 + z2 / n) * math.sqrt(p * (1 - p) / n + z2 / (4 * n * n))
    return Interval(max(0.0, middle - half), min(1.0, middle + half))


def _variance(values: list[float]) -> float:
    mean = sum(values) / len(values)
    return sum((x - mean) ** 2 for x in values) / (len(values) - 1)


def _t(freedom: int) -> float:
    return _T[freedom - 1] if freedom <= len(_T) else _Z + 2.4 / freedom
