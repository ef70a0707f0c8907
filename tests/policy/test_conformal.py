"""The margin: against its formula, and with scores that shift, burst or are cut off."""

from __future__ import annotations

import math
import random
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.policy.conformal import Residuals


class PlainResiduals:
    """The formula, and nothing kept."""

    def __init__(self, target: float, size: int, rate: float, prior: float, enough: int) -> None:
        self.given = (target, size, rate, prior, enough)
        self.scores: list[float] = []
        self.alpha = 1 - target
        self.margin = prior

    def observe(self, score: float, missed: bool) -> None:
        target, size, rate, prior, enough = self.given
        self.scores.append(score)
        self.alpha += rate * ((1 - target) - missed)
        self.alpha = min(max(self.alpha, -4 * rate), 2 * (1 - target) + 4 * rate)
        known = sorted(self.scores[-size:])
        n, least = len(known), (1 - target) / 4
        rank = math.ceil((n + 1) * (1 - max(self.alpha, least)))
        rank = min(max(rank, 1), max(n - 1, math.ceil((n + 1) * target)), n)
        if n < enough:
            self.margin = max(prior, known[-1])
        else:
            self.margin = known[rank - 1]
            if self.alpha < least:
                self.margin = max(0.1, self.margin) * 1.15 ** ((least - self.alpha) / rate)


@given(
    st.lists(st.tuples(st.floats(-100, 100), st.booleans()), max_size=80),
    st.sampled_from([0.5, 0.8, 0.99]),
    st.integers(1, 12),
)
def test_the_margin_is_the_quantile_of_the_last_scores(
    steps: list[tuple[float, bool]], target: float, size: int
) -> None:
    residuals = Residuals(target, size=size, rate=0.02, prior=2.0, enough=min(5, size))
    plain = PlainResiduals(target, size, 0.02, 2.0, min(5, size))
    for score, missed in steps:
        residuals.observe(score, missed)
        plain.observe(score, missed)
        assert residuals.margin == pytest.approx(plain.margin)
        assert residuals.alpha == pytest.approx(plain.alpha)
    assert len(residuals) == min(len(steps), size)


@pytest.mark.parametrize("wrong", [{"target": 1.0}, {"rate": 0.0}, {"size": 10, "enough": 11}])
def test_settings_that_cannot_work(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="target and rate must be in"):
        Residuals(**wrong)  # type: ignore[arg-type]


def test_the_margin_follows_scores_that_shift() -> None:
    rng = random.Random(3)
    residuals = Residuals()
    hits: list[bool] = []
    margins: list[float] = []
    for i in range(24_000):
        score = rng.lognormvariate(0.0 if i // 4000 % 2 == 0 else 0.4, 0.2 + 0.1 * (i // 6000 % 3))
        missed = score > residuals.margin
        residuals.observe(score, missed)
        hits.append(not missed)
        margins.append(residuals.margin)
    for i in range(0, len(hits), 2000):
        assert 0.985 <= sum(hits[i : i + 2000]) / 2000 <= 0.995
    assert 1.3 < median(margins) < 3


def test_a_burst_of_misses_is_not_paid_for_long() -> None:
    residuals = Residuals()
    for _ in range(1000):
        residuals.observe(1.0, False)
    for _ in range(60):
        residuals.observe(1.2, True)
    assert 1.2 < residuals.margin < 1.2 * 1.15**6
    for _ in range(600):
        residuals.observe(1.0, False)
    assert residuals.margin == 1.2
    for _ in range(1000):
        residuals.observe(1.0, False)
    assert residuals.margin == 1.0


def test_censored_scores_stand_for_the_larger_ones() -> None:
    rng = random.Random(4)
    true, cut = Residuals(size=4000, rate=1e-9), Residuals(size=4000, rate=1e-9)
    for _ in range(4000):
        score, left = rng.lognormvariate(0, 0.4), rng.lognormvariate(0.3, 0.4)
        true.observe(score, score > true.margin)
        if left < score:
            cut.censored(left, cut.margin)
        else:
            cut.observe(score, score > cut.margin)
    assert 2000 < len(cut) < 4000
    assert cut.margin == pytest.approx(true.margin, rel=0.15)  # 1,000 of 4,000 were cut off, the long ones first


def test_what_left_early_tells_nothing_and_what_left_late_is_a_miss() -> None:
    residuals = Residuals()
    residuals.censored(0.5, 2.0)
    assert len(residuals) == 0
    residuals.censored(2.5, 2.0)
    assert (len(residuals), residuals.margin) == (1, 2.5)
    assert residuals.alpha < 0.01
    for i in range(200):
        residuals.observe(1 + i / 1000, False)
    residuals.censored(1.05, residuals.margin)
    assert len(residuals) == 201
    assert repr(residuals) == "<Residuals 201 scores, 99.0% within 1.2, alpha 0.0201>"


def test_a_margin_that_was_relaxed_keeps_the_scores_below_it() -> None:
    residuals = Residuals(size=200, prior=2.0)
    for i in range(250):
        residuals.observe(3.0 if i % 4 == 0 else 1.5, False)
    residuals.relax()
    assert (len(residuals), residuals.margin) == (150, 2.0)
    assert residuals.alpha == pytest.approx(0.01)
    residuals.observe(1.0, False)
    assert residuals.margin == 1.5
    residuals.relax()
    assert len(residuals) == 151
    for _ in range(200):
        residuals.observe(1.0, False)
    assert (len(residuals), residuals.margin) == (200, 1.0)
