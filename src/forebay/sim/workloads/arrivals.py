"""When requests (or conversations) come: endless processes that never step back, in seconds from 0."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from random import Random
from typing import Final, Protocol

DAY: Final = 86_400.0
_LEAST: Final = 1e-6
_MOST: Final = 1e9
"""Bounds of rates, durations and coefficients."""
_PHASE: Final = 1e-3


class Arrivals(Protocol):
    @property
    def rate(self) -> float:
        """Arrivals a second over a long time; inf where all come at once."""
        ...

    def times(self, rng: Random) -> Iterator[float]: ...


def _positive(**values: float) -> None:
    for name, value in values.items():
        if not _LEAST <= value <= _MOST:
            raise ValueError(f"{name} must be from {_LEAST:g} to {_MOST:g}, not {value:g}")


@dataclass(frozen=True, slots=True)
class Poisson:
    """Independent of each other. Raises ValueError for a rate out of bounds."""

    rate: float

    def __post_init__(self) -> None:
        _positive(rate=self.rate)

    def times(self, rng: Random) -> Iterator[float]:
        now, rate, gap = 0.0, self.rate, rng.expovariate
        while True:
            now += gap(rate)
            yield now


@dataclass(frozen=True, slots=True)
class Gamma:
    """Gaps are gamma distributed with this coefficient of variation: over 1 in bursts, 1 is Poisson, under 1 evener.
    Shape 1 / cv², scale cv² / rate. Raises ValueError for a rate or cv out of bounds."""

    rate: float
    cv: float

    def __post_init__(self) -> None:
        _positive(rate=self.rate, cv=self.cv)
        if self.cv > 30:
            raise ValueError(f"cv must be at most 30, not {self.cv:g}")

    def times(self, rng: Random) -> Iterator[float]:
        now, gap = 0.0, rng.gammavariate
        shape, scale = self.cv**-2, self.cv**2 / self.rate
        while True:
            now += gap(shape, scale)
            yield now


@dataclass(frozen=True, slots=True)
class Even:
    """The same gap between all. Raises ValueError for a rate out of bounds."""

    rate: float

    def __post_init__(self) -> None:
        _positive(rate=self.rate)

    def times(self, rng: Random) -> Iterator[float]:
        n, rate = 0, self.rate
        while True:
            yield n / rate
            n += 1


@dataclass(frozen=True, slots=True)
class AtOnce:
    """All at 0: a closed burst, as many as are taken."""

    @property
    def rate(self) -> float:
        return math.inf

    def times(self, rng: Random) -> Iterator[float]:
        return repeat(0.0)


@dataclass(frozen=True, slots=True)
class OnOff:
    """Floods: Poisson at `low` for `off` seconds, then at `high` for `on` seconds, and so on. With `random` the phases
    are exponentially distributed with these means (a Markov-modulated Poisson process). Raises ValueError for a high
    rate or a duration out of bounds, and unless 0 ≤ low ≤ high."""

    low: float
    high: float
    on: float
    off: float
    random: bool = False

    def __post_init__(self) -> None:
        _positive(high=self.high, on=self.on, off=self.off)
        if min(self.on, self.off) < _PHASE:
            raise ValueError(f"on and off must be at least {_PHASE:g} s, not {min(self.on, self.off):g}")
        if not 0 <= self.low <= self.high:
            raise ValueError(f"low must be from 0 to high ({self.high:g}), not {self.low:g}")

    @property
    def rate(self) -> float:
        return (self.low * self.off + self.high * self.on) / (self.on + self.off)

    def times(self, rng: Random) -> Iterator[float]:
        gap = rng.expovariate
        begin = 0.0
        while True:
            for rate, length in ((self.low, self.off), (self.high, self.on)):
                end = begin + (gap(1 / length) if self.random else length)
                if rate:
                    # Gaps have no memory, so each phase may begin with a new one.
                    now = begin + gap(rate)
                    while now < end:
                        yield now
                        now += gap(rate)
                begin = end


@dataclass(frozen=True, slots=True)
class Diurnal:
    """Poisson with a rate that follows the day: rate · (1 + swing · cos(2π (t - peak) / period)), by thinning. Raises
    ValueError for a rate or period out of bounds and a swing outside 0 to 1."""

    rate: float
    swing: float = 0.8
    period: float = DAY
    peak: float = DAY * 14 / 24

    def __post_init__(self) -> None:
        _positive(rate=self.rate, period=self.period)
        if not 0 <= self.swing <= 1:
            raise ValueError(f"swing must be from 0 to 1, not {self.swing:g}")
        if not math.isfinite(self.peak):
            raise ValueError(f"peak must be a number of seconds, not {self.peak}")

    def times(self, rng: Random) -> Iterator[float]:
        now, swing, draw, gap, cos = 0.0, self.swing, rng.random, rng.expovariate, math.cos
        most, turn, peak = self.rate * (1 + swing), 2 * math.pi / self.period, self.peak
        while True:
            now += gap(most)
            if draw() * (1 + swing) < 1 + swing * cos(turn * (now - peak)):
                yield now


@dataclass(frozen=True, slots=True)
class Weighted:
    """Poisson at `rate` on average, in each of the equal parts of the period in proportion to its weight (24 weights
    and a day: the hours). Raises ValueError for weights that are negative, all 0 or more than 10,000."""

    rate: float
    weights: Sequence[float]
    period: float = DAY

    def __post_init__(self) -> None:
        _positive(rate=self.rate, period=self.period)
        if not 1 <= len(self.weights) <= 10_000 or not all(0 <= w < math.inf for w in self.weights):
            raise ValueError("weights are 1 to 10,000 numbers of at least 0")
        if not 0 < sum(self.weights) < math.inf:
            raise ValueError("weights must not all be 0")
        if self.period < _PHASE * len(self.weights):
            raise ValueError(f"period must be at least {_PHASE:g} s for each weight, not {self.period:g}")

    def times(self, rng: Random) -> Iterator[float]:
        gap = rng.expovariate
        part = self.period / len(self.weights)
        scale = self.rate * len(self.weights) / sum(self.weights)
        n = 0
        while True:
            for weight in self.weights:
                if weight:
                    rate = weight * scale
                    now, end = n * part + gap(rate), (n + 1) * part
                    while now < end:
                        yield now
                        now += gap(rate)
                n += 1
