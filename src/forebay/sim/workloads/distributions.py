"""Distributions of lengths (tokens) and durations (seconds). Each draws from a generator that is handed in."""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final, Protocol

from forebay.hardware.files import read
from forebay.sim.workloads.bounds import MAX_TOKENS
from forebay.sim.workloads.errors import WorkloadError

_MAX_CDF: Final = 1 << 20
"""Bytes of a file with a distribution."""


class Distribution(Protocol):
    @property
    def mean(self) -> float:
        """Of the numbers, without what rounding and the bounds of a token count change."""
        ...

    def sampler(self, rng: Random) -> Callable[[], float]:
        """Draws numbers of at least 0."""
        ...


def whole(distribution: Distribution, rng: Random, least: int = 1) -> Callable[[], int]:
    """Draws whole numbers from `least` to MAX_TOKENS: rounded to the nearest, those beyond moved to the bound."""
    if isinstance(distribution, Constant):
        n = min(MAX_TOKENS, max(least, round(distribution.value)))
        return lambda: n
    draw = distribution.sampler(rng)

    def one() -> int:
        n = int(draw() + 0.5)
        return least if n < least else n if n < MAX_TOKENS else MAX_TOKENS

    return one


@dataclass(frozen=True, slots=True)
class Constant:
    value: float

    @property
    def mean(self) -> float:
        return self.value

    def sampler(self, rng: Random) -> Callable[[], float]:
        return lambda: self.value


NOTHING: Final[Distribution] = Constant(0)


@dataclass(frozen=True, slots=True)
class Uniform:
    """Raises ValueError unless 0 ≤ low ≤ high."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.high < math.inf:
            raise ValueError(f"uniform(LOW;HIGH) needs 0 <= LOW <= HIGH, not {self.low:g} and {self.high:g}")

    @property
    def mean(self) -> float:
        return (self.low + self.high) / 2

    def sampler(self, rng: Random) -> Callable[[], float]:
        low, width, draw = self.low, self.high - self.low, rng.random
        return lambda: low + width * draw()


@dataclass(frozen=True, slots=True)
class Lognormal:
    """exp of a normal distribution: half the draws are below `median`; `sigma` is the standard deviation of the
    logarithm. Draws over `most` are cut to it. Raises ValueError for a median, sigma or most that is not positive."""

    median: float
    sigma: float
    most: float = math.inf

    def __post_init__(self) -> None:
        if not (0 < self.median < math.inf and 0 < self.sigma <= 10 and self.most > 0):
            raise ValueError("lognormal(MEDIAN;SIGMA[;MOST]) needs MEDIAN > 0, 0 < SIGMA <= 10 and MOST > 0")

    @property
    def mean(self) -> float:
        """Without the cut."""
        return self.median * math.exp(self.sigma**2 / 2)

    def sampler(self, rng: Random) -> Callable[[], float]:
        mu, sigma, most, gauss, exp = math.log(self.median), self.sigma, self.most, rng.gauss, math.exp

        def one() -> float:
            x = exp(gauss(mu, sigma))
            return x if x < most else most

        return one


@dataclass(frozen=True, slots=True)
class Exponential:
    """Raises ValueError for a mean that is not positive."""

    mean: float

    def __post_init__(self) -> None:
        if not 0 < self.mean < math.inf:
            raise ValueError(f"exp(MEAN) needs MEAN > 0, not {self.mean:g}")

    def sampler(self, rng: Random) -> Callable[[], float]:
        draw, rate = rng.expovariate, 1 / self.mean
        return lambda: draw(rate)


@dataclass(frozen=True, slots=True)
class Geometric:
    """1, 2, 3 …: after each, another follows with probability 1 - 1 / mean. Raises ValueError for a mean under 1."""

    mean: float

    def __post_init__(self) -> None:
        if not 1 <= self.mean < math.inf:
            raise ValueError(f"geometric(MEAN) needs MEAN >= 1, not {self.mean:g}")

    def sampler(self, rng: Random) -> Callable[[], float]:
        if self.mean == 1:
            return lambda: 1.0
        draw, scale = rng.random, 1 / math.log1p(-1 / self.mean)
        return lambda: 1.0 + math.floor(math.log(1.0 - draw()) * scale)


@dataclass(frozen=True, slots=True)
class Cdf:
    """An empirical distribution: `fractions[i]` of the values are at most `values[i]`; even between two of them, and
    between 1 and the first. Raises ValueError unless values rise, fractions do not fall, and the last is 1."""

    values: Sequence[float]
    fractions: Sequence[float]

    def __post_init__(self) -> None:
        if not self.values or len(self.values) != len(self.fractions):
            raise ValueError("a CDF is pairs of a value and the fraction of values up to it")
        if not all(map(math.isfinite, (*self.values, *self.fractions))) or self.values[0] < 1:
            raise ValueError("a CDF's values are finite and at least 1")
        if any(b <= a for a, b in zip(self.values, self.values[1:], strict=False)):
            raise ValueError("a CDF's values rise")
        if any(b < a for a, b in zip(self.fractions, self.fractions[1:], strict=False)) or self.fractions[0] < 0:
            raise ValueError("a CDF's fractions are at least 0 and do not fall")
        if abs(self.fractions[-1] - 1) > 1e-6:
            raise ValueError(f"a CDF's last fraction is 1, not {self.fractions[-1]:g}")

    @property
    def mean(self) -> float:
        total, low, below = 0.0, 1.0, 0.0
        for value, fraction in zip(self.values, self.fractions, strict=True):
            total += (fraction - below) * (low + value) / 2
            low, below = value, fraction
        return total

    def sampler(self, rng: Random) -> Callable[[], float]:
        draw = rng.random
        values, fractions = [1.0, *self.values], [0.0, *self.fractions]
        last = len(values) - 1

        def one() -> float:
            u = draw()
            i = min(last, bisect_left(fractions, u, 1))
            low, below = values[i - 1], fractions[i - 1]
            width = fractions[i] - below
            return low + (values[i] - low) * ((u - below) / width if width > 0 else 1.0)

        return one

    @classmethod
    def read(cls, path: str) -> Cdf:
        """From JSON: `[[tokens, fraction], …]`, or an object that has this as `cdf`. Raises WorkloadError."""
        try:
            text = read(Path(path), _MAX_CDF)
        except OSError as e:
            raise WorkloadError(f"cannot be read: {e.strerror or e}", file=path) from e
        try:
            data = json.loads(text)
            pairs = data["cdf"] if isinstance(data, dict) else data
            return cls(tuple(float(v) for v, _ in pairs), tuple(float(f) for _, f in pairs))
        except KeyError:
            raise WorkloadError("an object without the field cdf: [[tokens, fraction], …]", file=path) from None
        except (ValueError, TypeError, RecursionError) as e:
            raise WorkloadError(f"not a CDF, [[tokens, fraction], …]: {e}", file=path) from e
