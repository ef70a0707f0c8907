"""How long answers get: an online survival estimate of output lengths, by group.

A group is a path from coarse to fine, such as (model, task, tenant); any other value is a path of one step. Each prefix
of a path, and the empty one, has a curve of its own: per bucket of lengths the hazard, the share of the answers that
reach the bucket and end in it. A curve leans on the next coarser one, the coarsest on a Lomax prior:

    hazard = (ended + strength · coarser hazard) / (at risk + strength)

which is the posterior mean under a beta process prior (N. L. Hjort, Annals of Statistics 18, 1990), bucket by bucket:
where a group has few answers of that length it follows its parent. A bucket forgets by the answers that reach it, and
four times slower by all answers of all groups: the tail of a group with few long ones rests on enough of them, and a
group with few answers does not lag behind a drift that all share.

Answers that were cancelled or cut count as at risk as far as they got (the actuarial estimate).

Traffic drifts, so that the lengths of answers at one time go together and their sum varies by more than the sum of the
variances. That factor is measured over blocks of answers that ended one after another, and variances are multiplied by
it.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Hashable
from math import exp, log
from typing import Final

LONGEST: Final = 1 << 18
"""Tokens; longer answers count as this long."""


def bucket(tokens: int) -> int:
    """The bucket of a length ≥ 0: one of its own up to 15, then eight an octave."""
    shift = tokens.bit_length() - 4
    return tokens if shift <= 0 else (shift << 3) + (tokens >> shift)


def first_of(index: int) -> int:
    """The smallest length of a bucket."""
    return index if index < 16 else (8 + (index & 7)) << ((index >> 3) - 1)


BUCKETS: Final = bucket(LONGEST)
CAPS: Final = 64
"""Values of max_tokens whose first residual a group remembers until it learns."""
BLOCK: Final = 64
"""Answers to a block by which the spread is measured; of the spread each block makes up 1/32."""


class _Curve:
    """The survival of one group. Of bucket b, with lengths first < T ≤ next first: `alive[b]`, the share of those that
    reach it and outlive it; `mean[b]`, `square[b]`, first and second moment of T − first given T > first; `fall[b]`,
    −log of the share of those that reach it and outlive all buckets.

    Mutable state: what ended and what was at risk in each bucket, aged; what came since `learn`; the four curves."""

    __slots__ = (
        "alive",
        "cut",
        "due",
        "ended",
        "fall",
        "fresh",
        "learned_at",
        "mean",
        "new_ended",
        "risk",
        "seen",
        "square",
        "top",
    )

    alive: array[float]
    mean: array[float]
    square: array[float]
    fall: array[float]

    def __init__(self, parent: _Curve | None) -> None:
        self.seen = 0
        self.learned_at = 0
        self.due = 1
        self.top = -1
        self.new_ended: dict[int, int] = {}
        self.cut: dict[int, list[float]] = {}  # bucket → answers, and the sum of the shares of it that they saw
        self.fresh: dict[int, tuple[float, float]] = {}  # by cap, (mean, variance) of an answer that has not begun
        self.ended = array("d", bytes(8 * BUCKETS))
        self.risk = array("d", bytes(8 * BUCKETS))
        if parent is not None:  # it is like its parent until it learns
            self.alive, self.mean, self.square, self.fall = parent.alive, parent.mean, parent.square, parent.fall

    def add(self, tokens: int, censored: bool) -> bool:
        """Whether it is time to learn."""
        if censored:
            at = bucket(tokens)
            first = first_of(at)
            cut = self.cut.setdefault(at, [0.0, 0.0])
            cut[0] += 1.0
            cut[1] += (tokens - first) / (first_of(at + 1) - first)
        else:
            at = bucket(tokens - 1)
            self.new_ended[at] = self.new_ended.get(at, 0) + 1
        if at > self.top:
            self.top = at
        self.seen += 1
        self.due -= 1
        return self.due <= 0

    def learn(self, parent: _Curve, memory: float, strength: float, everyone: int) -> None:
        """Take in what is new, age what is known (`everyone`: answers of all groups so far), and draw the curves anew
        up to the longest answer; beyond it they are the parent's."""
        self.due = min(64, 1 + self.seen // 16)
        top = self.top
        ended, risk, new_ended, cut = self.ended, self.risk, self.new_ended, self.cut
        reached = 0.0
        age = memory + (everyone - self.learned_at) / 4.0
        for b in range(top, -1, -1):
            died = new_ended.get(b, 0)
            seen_here = reached + died
            reached = seen_here
            if b in cut:
                left, shares = cut[b]
                seen_here += shares
                reached += left
            kept = memory / (age + seen_here)
            ended[b] = ended[b] * kept + died
            risk[b] = risk[b] * kept + seen_here
        self.learned_at = everyone
        new_ended.clear()
        cut.clear()
        above = parent.alive
        alive = array("d", above)
        for b in range(top + 1):
            alive[b] = (max(0.0, risk[b] - ended[b]) + strength * above[b]) / (risk[b] + strength)
        self.draw(alive, parent)

    def draw(self, alive: array[float], parent: _Curve | None) -> None:
        """Moments backwards from the last bucket. Within a bucket lengths are spread evenly. For whole numbers R ≥ 0:
        E[R] = Σ P(R > k), E[R²] = Σ (2k + 1) P(R > k)."""
        self.alive = alive
        self.fresh.clear()
        if parent is None:
            top = BUCKETS - 1
            self.mean, self.square, self.fall = (array("d", bytes(8 * BUCKETS)) for _ in range(3))
            mean = square = fall = 0.0
        else:
            top = self.top
            self.mean, self.square, self.fall = (
                array("d", parent.mean),
                array("d", parent.square),
                array("d", parent.fall),
            )
            end = top + 1 == BUCKETS
            mean = 0.0 if end else self.mean[top + 1]
            square = 0.0 if end else self.square[top + 1]
            fall = 0.0 if end else self.fall[top + 1]
        means, squares, falls = self.mean, self.square, self.fall
        for b in range(top, -1, -1):
            s = alive[b]
            w = 1 if b < 16 else 1 << ((b >> 3) - 1)
            died = 1.0 - s
            square = w * w - died * (w - 1) * (4 * w + 1) / 6.0 + s * (2 * w * mean + square)
            mean = w - died * (w - 1) / 2.0 + s * mean
            fall -= log(s)
            squares[b] = square
            means[b] = mean
            falls[b] = fall

    def at(self, produced: int) -> tuple[float, float, float]:
        """(mean, second moment of the rest, −log of survival as `fall`), given that more than `produced` come."""
        b = bucket(produced)
        if b < 16:
            return self.mean[b], self.square[b], self.fall[b]
        shift = (b >> 3) - 1
        into = produced - ((8 + (b & 7)) << shift)
        if not into:
            return self.mean[b], self.square[b], self.fall[b]
        w = 1 << shift
        left = w - into
        s = self.alive[b]
        slope = (1.0 - s) / w
        here = 1.0 - slope * into
        mean = square = fall = 0.0
        if b + 1 < BUCKETS:
            mean, square, fall = self.mean[b + 1], self.square[b + 1], self.fall[b + 1]
        square = here * left * left - slope * left * (left - 1) * (4 * left + 1) / 6.0 + s * (2 * left * mean + square)
        mean = here * left - slope * left * (left - 1) / 2.0 + s * mean
        return mean / here, square / here, fall - log(s / here)


class Lengths:
    """Mutable state: at most `groups` curves beside that of all answers; the least recently observed goes first.

    memory: an answer's weight in a bucket is 1/e after so many others reached it, or after four times as many
    of all groups.
    strength: answers that a coarser group's word is worth.
    prior_tokens: mean length where nothing was observed; S(t) = (1 + t / 3·mean)^−4, so that the deviation of a
    new answer is 1.4 means and the expected rest grows by a third of what came.
    """

    __slots__ = (
        "_all",
        "_curves",
        "_error",
        "_groups",
        "_in_block",
        "_memory",
        "_prior",
        "_spread",
        "_strength",
        "_variance",
    )

    def __init__(
        self, *, groups: int = 512, memory: float = 500.0, strength: float = 3.0, prior_tokens: float = 256.0
    ) -> None:
        if groups < 1 or memory < 1 or strength <= 0 or prior_tokens <= 0:
            raise ValueError(
                f"lengths need groups, memory, strength, a mean: {groups}, {memory}, {strength}, {prior_tokens}"
            )
        self._groups = groups
        self._memory = memory
        self._strength = strength
        scale = 3.0 * prior_tokens
        self._prior = _Curve(None)
        self._prior.draw(
            array("d", (((scale + first_of(b)) / (scale + first_of(b + 1))) ** 4 for b in range(BUCKETS))), None
        )
        self._all = _Curve(self._prior)
        self._curves: OrderedDict[Hashable, _Curve] = OrderedDict()
        self._in_block = 0
        self._error = self._variance = 0.0
        self._spread = 1.0

    @property
    def spread(self) -> float:
        """Variance of the sum of answers that ran together, over the sum of their variances; at least 1."""
        return max(1.0, self._spread)

    def observe(self, group: Hashable, tokens: int, *, censored: bool) -> None:
        """An answer ended after `tokens`; `censored`: it was cancelled or cut then, and would have gone on."""
        if tokens < 1:
            if censored:
                return
            tokens = 1
        tokens = min(tokens, LONGEST - 1 if censored else LONGEST)
        self._measure(group, tokens, censored)
        parent = self._all
        learned = parent.add(tokens, censored)
        if learned:
            parent.learn(self._prior, self._memory, self._strength, parent.seen)
        curves = self._curves
        paths = _paths(group)
        for path in paths:
            curve = curves.get(path)
            if curve is None:
                curve = curves[path] = _Curve(parent)
            # One curve an answer learns, so that no answer's end costs more than that.
            if curve.add(tokens, censored) and not learned:
                learned = True
                curve.learn(parent, self._memory, self._strength, self._all.seen)
            parent = curve
        for path in reversed(paths):
            curves.move_to_end(path)
        while len(curves) > self._groups:
            curves.popitem(last=False)

    def residual(self, group: Hashable, produced: int, cap: int | None) -> tuple[float, float]:
        """(mean, variance) of the tokens still to come when `produced` are there and no end; `cap` (max_tokens) bounds
        what there can be in all. (0, 0) where the cap is reached."""
        curve = self._curves.get(group) or self._coarser(group)
        spread = self._spread
        if produced:
            mean, variance = self._rest(curve, min(produced, LONGEST - 1), cap)
        else:
            found = curve.fresh.get(-1 if cap is None else cap)
            if found is None:
                found = self._rest(curve, 0, cap)
                if len(curve.fresh) < CAPS:
                    curve.fresh[-1 if cap is None else cap] = found
            mean, variance = found
        return mean, variance * spread if spread > 1.0 else variance

    @staticmethod
    def _rest(curve: _Curve, produced: int, cap: int | None) -> tuple[float, float]:
        mean, square, fall = curve.at(produced)
        if cap is not None and cap < LONGEST:
            more = cap - produced
            if more <= 0:
                return 0.0, 0.0
            mean_then, square_then, fall_then = curve.at(cap)
            reach = exp(fall_then - fall)
            mean -= reach * mean_then
            square -= reach * (2 * more * mean_then + square_then)
        variance = square - mean * mean
        return mean, variance if variance > 0.0 else 0.0

    def _measure(self, group: Hashable, tokens: int, censored: bool) -> None:
        curve = self._curves.get(group) or self._coarser(group)
        mean = curve.mean[0]
        # A censored answer counts with what was still expected of it.
        self._error += tokens - mean + (curve.at(tokens)[0] if censored else 0.0)
        self._variance += curve.square[0] - mean * mean
        self._in_block += 1
        if self._in_block == BLOCK:
            # One block tells of no more than a spread of 8: an outlier is no drift.
            self._spread += (min(8.0, self._error**2 / self._variance) - self._spread) / 32.0
            self._in_block = 0
            self._error = self._variance = 0.0

    def _coarser(self, group: Hashable) -> _Curve:
        for path in reversed(_paths(group)):
            curve = self._curves.get(path)
            if curve is not None:
                return curve
        return self._all

    def __repr__(self) -> str:
        mean, _ = self.residual((), 0, None)
        return (
            f"<Lengths {self._all.seen:,} answers, {len(self._curves)} of {self._groups} groups | "
            f"mean {mean:,.0f} tokens, spread {self.spread:.1f}>"
        )


def _paths(group: Hashable) -> list[tuple[Hashable, ...]]:
    path = group if isinstance(group, tuple) else (group,)
    return [path[: i + 1] for i in range(len(path))]
