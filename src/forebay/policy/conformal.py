"""A margin that keeps its promise: adaptive conformal inference over a bounded window of scores.

A score says how far an outcome was beyond its prediction, in some unit; it may be negative. The margin is the quantile
1 - α_t of the last scores, and α_t follows the misses (I. Gibbs, E. Candès, "Adaptive conformal inference under
distribution shift", NeurIPS 2021, arXiv:2106.00170, eq. 2):

    α_t+1 = α_t + γ (α - err_t)          err_t: 1 where the outcome was beyond the margin that it was given, else 0

In the paper the margin is without a bound at α_t ≤ 0, and over T outcomes the share of misses then differs from α by
at most (range of α_t) / (γ T), whatever the scores do (prop. 4.1). Here, where α_t falls below α / 4, the margin is the
quantile 1 - α / 4 times `_STRETCH` for each γ that α_t is short of that, so that a lone outlier is never the margin;
and α_t keeps within bounds. That costs the guarantee in a fault that lasts, and keeps the margin of use after it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right, insort
from math import ceil
from typing import Final

_STRETCH: Final = 1.15
_FURTHEST: Final = 4.0
"""How many γ α_t may lie below 0 or above 2α: more would only be slow to come back."""
_LEAST_STRETCHED: Final = 0.1
"""A margin below this is stretched as if it were this much: one of 0 would stay there."""
_GOLDEN: Final = 0.6180339887498949


class Residuals:
    """Mutable state: the last `size` scores, in order of time and sorted, and α_t.

    `target`: the share of outcomes that shall be within the margin. `rate`: γ. `prior`: the margin before `enough`
    scores are there, raised by any score beyond it.
    """

    __slots__ = ("_alpha", "_at", "_draw", "_full", "_prior", "_rate", "_ring", "_sorted", "enough", "margin", "target")

    def __init__(
        self, target: float = 0.99, *, size: int = 1000, rate: float = 0.01, prior: float = 2.0, enough: int = 100
    ) -> None:
        if not 0 < target < 1 or not 0 < rate < 1 or not 1 <= enough <= size:
            given = f"{target}, {rate}, {enough}, {size}"
            raise ValueError(f"target and rate must be in (0, 1), enough in 1..size: {given}")
        self.target = target
        self.enough = enough
        self.margin = prior
        """What the next outcome is to be within."""
        self._rate = rate
        self._alpha = 1 - target
        self._prior = prior
        self._ring = array("d")
        self._sorted = array("d")
        self._full = size
        self._at = 0
        self._draw = 0.0

    def __len__(self) -> int:
        return len(self._ring)

    @property
    def alpha(self) -> float:
        """α_t."""
        return self._alpha

    def observe(self, score: float, missed: bool) -> None:
        """`missed`: it was beyond the margin that it was given, which need not be the present one."""
        ring, ordered = self._ring, self._sorted
        if len(ring) < self._full:
            ring.append(score)
        else:
            at = self._at
            del ordered[bisect_left(ordered, ring[at])]
            ring[at] = score
            self._at = at + 1 if at + 1 < self._full else 0
        insort(ordered, score)
        goal, rate = 1 - self.target, self._rate
        alpha = self._alpha + rate * (goal - 1.0 if missed else goal)
        most = _FURTHEST * rate
        self._alpha = alpha = min(max(alpha, -most), 2 * goal + most)
        n = len(ordered)
        if n < self.enough:
            self.margin = max(self._prior, ordered[-1])
            return
        least = goal / 4
        rank = ceil((n + 1) * (1 - (alpha if alpha > least else least)))
        rank = min(max(rank, 1), max(n - 1, ceil((n + 1) * self.target)), n)
        margin = ordered[rank - 1]
        if alpha < least:
            margin = (margin if margin > _LEAST_STRETCHED else _LEAST_STRETCHED) * _STRETCH ** ((least - alpha) / rate)
        self.margin = margin

    def censored(self, score: float, given: float) -> None:
        """An outcome that was cut off when it stood at `score`, of the margin `given`.

        Beyond the margin it is a miss. Below the median of what is known it tells nothing and is left out. Else a score
        is put in its place, from those known that are larger: each as likely as the others (Efron's redistribution to
        the right, which gives the Kaplan-Meier estimate), in a sequence that is even instead of random.
        """
        ordered = self._sorted
        n = len(ordered)
        i = bisect_right(ordered, score)
        if score <= given and 2 * i < n:
            return
        if i < n:
            self._draw = draw = (self._draw + _GOLDEN) % 1.0
            score = ordered[i + int(draw * (n - i))]
        elif score <= given and n < self.enough:
            return
        self.observe(score, score > given)

    def relax(self) -> None:
        """Where a margin beyond the prior lets nobody in, nobody can prove it wrong: back to the prior, without the
        scores beyond that."""
        if self.margin <= self._prior:
            return
        ring = self._ring
        kept = [score for score in (*ring[self._at :], *ring[: self._at]) if score <= self._prior]
        self._ring, self._sorted = array("d", kept), array("d", sorted(kept))
        self._at = 0
        self._alpha = 1 - self.target
        self.margin = self._prior

    def __repr__(self) -> str:
        return f"<Residuals {len(self)} scores, {self.target:.1%} within {self.margin:.3g}, alpha {self._alpha:.4f}>"
