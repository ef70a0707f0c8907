"""Fitting the host's two constants: seconds each step, and seconds more for a step with prefill in it.

Two unknowns, two equations: over the requests fitted on, the median relative error of TTFT and the mean relative error
of the time from first to last token are to be 0. Where no pair of non-negative constants solves both, the one with the
least a² + (2 b)²: a step's time is in every token, TTFT is mostly the queue's.

Coarse grid, then halving pattern search from its best: deterministic, about 100 replays.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache

from benchmarks.fidelity.runs import Request

Constants = tuple[float, float]
NONE: Constants = (0.0, 0.0)

_FINEST: Constants = (31.25e-6, 125e-6)
"""Seconds of one unit of the search, of each constant."""
_COARSE = 16
_POINTS = 7


@dataclass(frozen=True, slots=True)
class Fitted:
    constants: Constants
    ttft: float
    """Median relative error over the requests fitted on."""
    decode: float
    """Mean relative error of the time from first to last token over them."""
    replays: int


def residuals(real: Sequence[Request], simulated: Sequence[Request]) -> tuple[float, float]:
    """The two that are to be 0, of requests in equal order."""
    ttft, decode = [], []
    for r, s in zip(real, simulated, strict=True):
        if r.first > r.arrival:
            ttft.append((s.first - s.arrival) / (r.first - r.arrival) - 1)
        if r.last > r.first:
            decode.append((s.last - s.first) / (r.last - r.first) - 1)
    return statistics.median(ttft) if ttft else 0.0, statistics.fmean(decode) if decode else 0.0


def fit(real: Sequence[Request], simulate: Callable[[Constants], Sequence[Request]]) -> Fitted:
    """`simulate` gives the requests of `real` under constants of the host."""

    @cache
    def errors(i: int, j: int) -> tuple[float, float]:
        return residuals(real, simulate((i * _FINEST[0], j * _FINEST[1])))

    def cost(point: tuple[int, int]) -> float:
        a, b = errors(*point)
        return a * a + 4 * b * b

    def best(points: Iterable[tuple[int, int]]) -> tuple[int, int]:
        return min(points, key=lambda p: (cost(p), p))

    at = best((i * _COARSE, j * _COARSE) for i in range(_POINTS) for j in range(_POINTS))
    step = _COARSE
    while step:
        i, j = at
        around = [
            (p, q)
            for p in (i - step, i, i + step)
            for q in (j - step, j, j + step)
            if p >= 0 and q >= 0 and (p, q) != at
        ]
        found = best([at, *around])
        if found == at:
            step //= 2
        else:
            at = found
    a, b = errors(*at)
    return Fitted((at[0] * _FINEST[0], at[1] * _FINEST[1]), a, b, errors.cache_info().currsize)
