"""Which points nobody beats, and where the curve through them bends."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def frontier(points: Sequence[T], costs: Callable[[T], tuple[float, ...]]) -> list[T]:
    """Those that no other is at least as good as in every cost and better in one (Pareto). Of equal ones the first.
    In order of the first cost. `costs`: less is better; a point with a NaN among them is never one."""
    known = [(costs(p), i) for i, p in enumerate(points)]
    known = sorted((c, i) for c, i in known if not any(map(math.isnan, c)))
    best: list[tuple[tuple[float, ...], int]] = []
    for c, i in known:  # in lexical order nothing that comes later can beat what is in
        if not any(all(x <= y for x, y in zip(b, c, strict=True)) for b, _ in best):
            best.append((c, i))
    return [points[i] for _, i in best]


def knee(points: Sequence[tuple[float, float]]) -> int | None:
    """Of a curve (latency, throughput) in order of latency, the index of the point farthest above the straight line
    from its first to its last, both axes logarithmic and scaled to 0..1: beyond it more throughput costs more latency
    than it is worth, in proportion (V. Satopaa et al., "Finding a 'Kneedle' in a Haystack", 2011, sections II and III).
    None for fewer than three points, and where none lies above."""
    if len(points) < 3 or any(x <= 0 or y <= 0 for x, y in points):
        return None
    xs, ys = ([math.log(p[axis]) for p in points] for axis in (0, 1))
    wide, high = xs[-1] - xs[0], ys[-1] - ys[0]
    if wide <= 0 or high <= 0:
        return None
    above = [(y - ys[0]) / high - (x - xs[0]) / wide for x, y in zip(xs, ys, strict=True)]
    best = max(range(len(above)), key=above.__getitem__)
    return best if above[best] > 1e-9 else None
