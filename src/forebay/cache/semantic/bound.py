"""How strict to be, so that at most a share δ of what is served is wrong. Pure.

Every look-up has a score in [0, 1] of how sure the verifier is. A *rung* is a threshold on it; a pool learns from
labelled samples which rungs keep their wrong hits at or below δ. Since labels come from a judge that overlooks some of
what is wrong, they are held against a target below δ.

A rung is certified by betting (Waudby-Smith and Ramdas 2024, section 4; Ville's inequality): a gambler who stakes
against "the risk is above the target δ" starts with 1 and multiplies by 1 - λ·w·(wrong - δ) at every label, which under
that hypothesis is a supermartingale; once it has 1/α, the hypothesis is rejected, at whatever moment one looks. λ =
(δ - r)/(δ(1 - δ)) is the stake of somebody who believes in a risk r < δ; several such beliefs are mixed. w corrects for
scores that are labelled more often than others: the least propensity among the rung's scores, over this one's.

Rungs are tested in fixed sequences, so that any number of them costs nothing: from the shipped rung to laxer ones with
ALPHA_DOWN, and from the strictest to the shipped with ALPHA_UP; α's sum is 0.05. A rung that was certified is watched
by the opposite bet, restarted whenever it has lost (e-CUSUM, Shin, Ramdas and Rinaldo 2024): once that has won, the
rung and laxer ones have to be earned anew. Part of the capital is held back and put in each time the labels have
doubled, so that a rung that was bad once and is not any more can still win.

Questions that differ in nothing but form, not even in words of one meaning, are a rung of their own, open from the
start and closed by evidence.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import msgspec

__all__ = ["ALPHA", "BEGUN", "CLEAN", "IDENTICAL", "Pool", "Rung", "enough", "interval"]

ALPHA: Final = 0.05
ALPHA_DOWN: Final = 0.035
ALPHA_UP: Final = 0.015
ALARM: Final = 100.0
"""Labels, at least, between two false alarms of a rung that is as wrong as it may be, on average (e-CUSUM)."""
SUSPECTED: Final = 30.0
"""The same of a rung that is served on trust, and was not earned by labels: it may be closed on less."""
BEGUN: Final = 100
HASTY: Final = 5.0
"""As SUSPECTED, for a partition's own first BEGUN labels of what is served on trust: one that was wrong ends it, since
such a label is one of several hits that were, and other partitions' trust does not rest on it."""
CLEAN: Final = 300
"""Labels before which nothing is believed, however clean."""
IDENTICAL: Final = 1.0
"""Score of a question that differs in nothing but form."""

_BELIEFS: Final = ((0.0, 0.8), (0.1, 0.08), (0.3, 0.06), (0.6, 0.06))
"""Risk as a share of δ, and the part of the capital that bets on it."""
_RESERVE: Final = 0.15
_REFRESH: Final = 1_000
"""Labels at which half of the reserve is put in; then at twice as many, and so on."""
_SUSPICIONS: Final = (2.0, 6.0, 20.0)
"""Risk as a multiple of what it may be."""
_BROKE: Final = -1e9
"""Logarithm of a capital that is gone; finite, since JSON has no infinity."""


def _log_sum(logs: Sequence[float]) -> float:
    top = max(logs)
    return top + math.log(sum(math.exp(x - top) for x in logs))


class Rung(msgspec.Struct, gc=False):
    """A threshold, and what bets for and against it have won (logarithms)."""

    threshold: float
    bets: list[float] = msgspec.field(default_factory=lambda: [math.log((1 - _RESERVE) * part) for _, part in _BELIEFS])
    reserve: float = _RESERVE
    alarm: list[float] = msgspec.field(default_factory=lambda: [0.0] * len(_SUSPICIONS))
    peak: float = 0.0
    """The most the bets ever stood at, once there were CLEAN labels."""
    labels: float = 0.0
    wrong: float = 0.0
    """Both weighted."""

    def learn(self, wrong: float, weight: float, target: float, between: float = ALARM) -> bool:
        """A label in [0, 1]. `target`: the most of them that may be wrong. `between`: labels between false alarms.
        True: the alarm goes off."""
        self.labels += weight
        self.wrong += weight * wrong
        for i, (share, part) in enumerate(_BELIEFS):
            factor = 1 - (1 - share) / (1 - target) * weight * (wrong - target)
            self.bets[i] = self.bets[i] + math.log(factor) if factor > 1e-12 else _BROKE
            if self.labels >= _REFRESH * _RESERVE / self.reserve:
                fresh = math.log(self.reserve / 2 * part)
                self.bets[i] = max(self.bets[i], fresh) + math.log1p(math.exp(-abs(self.bets[i] - fresh)))
        if self.labels >= _REFRESH * _RESERVE / self.reserve:
            self.reserve /= 2
        if self.labels >= CLEAN:
            self.peak = max(self.peak, _log_sum(self.bets))
        for i, times in enumerate(_SUSPICIONS):
            risk = min(times * target, 0.95)
            stake = max(0.0, (risk - target) / (target * (1 - target)))
            self.alarm[i] = max(0.0, self.alarm[i] + math.log1p(stake * weight * (wrong - target)))
        if max(self.alarm) >= math.log(between * len(_SUSPICIONS)):
            self.alarm = [0.0] * len(_SUSPICIONS)
            return True
        return False

    def won(self, alpha: float) -> bool:
        """Whether the bets have reached 1/alpha. Later losses do not take that back; the alarm does."""
        return self.peak >= -math.log(alpha)

    def forget(self) -> None:
        fresh = Rung(self.threshold)
        self.bets, self.reserve, self.alarm = fresh.bets, fresh.reserve, fresh.alarm
        self.peak = self.labels = self.wrong = 0.0


def enough(target: float) -> int:
    """Labels, all clean, that certify the shipped rung: CLEAN or what the bets need."""
    needed = -math.log(ALPHA_DOWN * (1 - _RESERVE) * _BELIEFS[0][1]) / -math.log1p(-target)
    return max(CLEAN, math.ceil(needed))


class Pool(msgspec.Struct):
    """Of one language (and one partition, or all of them): its rungs from strict to lax."""

    rungs: list[Rung]
    shipped: int
    """Index of the rung that the verifier's own calibration asks for."""
    same: Rung
    """Of what differs in nothing but form; its threshold has no meaning."""
    refuted: bool = False
    """What was served was wrong too often: nothing is believed any more that was not earned here."""
    same_closed: bool = False

    @classmethod
    def of(cls, thresholds: Sequence[float], shipped: float) -> Pool:
        """`thresholds` from strict to lax; `shipped` is one of them, or lies between: the next stricter counts."""
        found = [i for i, t in enumerate(thresholds) if t >= shipped]
        return cls([Rung(t) for t in thresholds], found[-1] if found else 0, Rung(IDENTICAL))

    def certified(self) -> int:
        """Index of the laxest certified rung; -1: none."""
        down = -1
        for i in range(self.shipped, len(self.rungs)):
            if not self.rungs[i].won(ALPHA_DOWN):
                break
            down = i
        if down >= 0:
            return down
        up = -1
        for i in range(self.shipped + 1):
            if not self.rungs[i].won(ALPHA_UP):
                break
            up = i
        return up

    def starting(self, target: float) -> bool:
        """Whether the shipped rung may still be believed without labels of one's own."""
        return not self.refuted and self.rungs[self.shipped].labels < enough(target)

    def serving(self, target: float, trust_shipped: bool) -> int:
        """Index of the rung that is served; -1: only what differs in nothing but form."""
        rung = self.certified()
        return max(rung, self.shipped) if trust_shipped and self.starting(target) else rung

    def learn(
        self, score: float, wrong: float, weight: float, target: float, serving: int, hasty: bool = False
    ) -> bool:
        """A label of a score below IDENTICAL, while rung `serving` was served; `hasty`: on nothing but trust, so that
        one wrong label may end it here. True: a rung was given up for it."""
        fell = False
        earned = self.certified()
        trusted = HASTY if hasty and self.rungs[serving].labels < BEGUN else SUSPECTED
        for i, rung in enumerate(self.rungs):
            between = trusted if earned < i <= serving else ALARM
            if score >= rung.threshold and rung.learn(wrong, weight, target, between) and i <= serving:
                self.refuted = True
                for laxer in self.rungs[i:]:
                    if laxer.won(ALPHA_DOWN):
                        laxer.forget()
                fell = True
        return fell

    def learn_same(self, wrong: float, weight: float, target: float) -> None:
        """A label of questions that differ in nothing but form."""
        if self.same.learn(wrong, weight, target, ALARM if self.same.won(ALPHA) else SUSPECTED):
            self.same.forget()
            self.same_closed = True
        elif self.same_closed and self.same.won(ALPHA):
            self.same_closed = False


def interval(labels: int, wrong: float, alpha: float = ALPHA) -> tuple[float, float]:
    """A confidence sequence of a share: holds at all times at once with 1 - alpha.

    Robbins' mixture over Beta(1/2, 1/2): shares p at which B(½+k, ½+n-k)/B(½, ½) < p^k (1-p)^(n-k) / alpha.
    """
    if labels <= 0:
        return 0.0, 1.0
    right = max(labels - wrong, 0.0)
    mixture = (
        math.lgamma(0.5 + wrong) + math.lgamma(0.5 + right) - math.lgamma(1.0 + labels) - 2 * math.lgamma(0.5)
    )  # fmt: skip
    floor = mixture + math.log(alpha)

    def inside(p: float) -> bool:
        log_p = wrong * math.log(p) if wrong else 0.0
        log_q = right * math.log1p(-p) if right else 0.0
        return log_p + log_q > floor

    middle = min(max(wrong / labels, 1e-9), 1 - 1e-9)
    low, high = 0.0, 1.0
    if wrong:
        outside, within = 1e-12, middle
        for _ in range(60):
            half = (outside + within) / 2
            outside, within = (outside, half) if inside(half) else (half, within)
        low = outside
    if right:
        within, outside = middle, 1 - 1e-12
        for _ in range(60):
            half = (outside + within) / 2
            within, outside = (half, outside) if inside(half) else (within, half)
        high = outside
    return low, high
