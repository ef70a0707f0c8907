"""Coefficients that are learned: they are found, followed, kept near their prior where nothing tells, and physical."""

from __future__ import annotations

import math
import operator
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.policy.leastsquares import LeastSquares

ONES = (1.0, 1.0, 1.0, 1.0, 1.0)
Five = tuple[float, float, float, float, float]


def learn(fit: LeastSquares, seen: Five, outcome: float) -> None:
    plain = sum(map(operator.mul, seen, fit.coefficients))
    fit.learn(seen, outcome / plain, plain)


def test_least_squares_find_the_coefficients() -> None:
    rng = random.Random(5)
    true = (0.4, 3.0, 0.0, 1.0, 2.0)
    fit = LeastSquares(ONES, ONES)
    for _ in range(4000):
        seen = tuple(rng.uniform(0, 10) for _ in range(5))
        learn(fit, seen, sum(map(operator.mul, seen, true)) * rng.lognormvariate(0, 0.05))  # type: ignore[arg-type]
    assert fit.coefficients == pytest.approx(true, abs=0.08)
    assert fit.deviation == pytest.approx(0.05, rel=0.3)
    assert fit.learned == 4000
    assert repr(fit).startswith("<LeastSquares [0.")


def test_least_squares_follow_a_change() -> None:
    rng = random.Random(6)
    fit = LeastSquares(ONES, ONES)
    for true in (ONES, (1.0, 1.0, 2.0, 0.5, 1.0)):
        for _ in range(3000):
            seen = tuple(rng.uniform(0.1, 10) for _ in range(5))
            learn(fit, seen, sum(map(operator.mul, seen, true)))  # type: ignore[arg-type]
    assert fit.coefficients == pytest.approx((1.0, 1.0, 2.0, 0.5, 1.0), abs=0.1)


def test_what_cannot_be_told_apart_stays_near_its_prior() -> None:
    rng = random.Random(7)
    fit = LeastSquares(ONES, ONES)
    for _ in range(20_000):
        x = rng.uniform(1, 10)
        learn(fit, (1.0, 0.0, x, x, 0.0), (1.0 + 3 * x) * rng.lognormvariate(0, 0.1))
    _, unseen, a, b, other = fit.coefficients
    assert (unseen, other) == (1.0, 1.0)
    assert a + b == pytest.approx(3.0, abs=0.15)
    assert abs(a - b) < 0.3


def test_rounding_does_not_add_up() -> None:
    """Which it did after some 35,000 outcomes like these: of steps with 200 sequences and a prompt or two."""
    rng = random.Random(9)
    units = (0.0077, 2.5e-5, 4.5e-4, 2.1e-5, 1e-10)
    true = (1.0, 2.6, 1.0, 1.1, 0.5)
    fit = LeastSquares(units, units)
    worst = 0.0
    for i in range(60_000):
        steps, tokens = 2.5 + rng.random(), rng.uniform(2_000, 6_000)
        seen = (steps, steps * rng.uniform(190, 230), 3.0, tokens, tokens * 500)
        actual = sum(x * u * t for x, u, t in zip(seen, units, true, strict=True))
        if i > 1_000:
            worst = max(worst, abs(sum(map(operator.mul, seen, fit.coefficients)) / actual - 1))
        learn(fit, seen, actual * rng.lognormvariate(0, 0.1))
    assert worst < 0.3


def test_what_was_told_apart_once_goes_back_to_its_prior() -> None:
    rng = random.Random(8)
    fit = LeastSquares(ONES, ONES)
    for _ in range(1000):
        x, y = rng.uniform(1, 10), rng.uniform(1, 10)
        learn(fit, (1.0, 0.0, x, y, 0.0), 1.0 + 2.5 * x + 0.5 * y)
    assert fit.coefficients[2:4] == pytest.approx((2.5, 0.5), abs=0.05)
    for _ in range(20_000):
        x = rng.uniform(1, 10)
        learn(fit, (1.0, 0.0, x, x, 0.0), 1.0 + 3 * x)
    assert fit.coefficients[2:4] == pytest.approx((1.5, 1.5), abs=0.15)


@given(st.lists(st.tuples(st.lists(st.floats(0, 1e4), min_size=5, max_size=5), st.floats(1e-6, 1e6)), max_size=60))
def test_coefficients_stay_physical(outcomes: list[tuple[list[float], float]]) -> None:
    fit = LeastSquares((1.0, 0.0, 0.5, 2.0, 0.0), ONES)
    for seen, ratio in outcomes:
        plain = max(sum(map(operator.mul, seen, fit.coefficients)), 1e-9)
        fit.learn(tuple(seen), ratio, plain)  # type: ignore[arg-type]
        assert all(0 <= value < math.inf for value in fit.coefficients)
        assert max(fit.coefficients) > 0


def test_units_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="units must be more than 0"):
        LeastSquares(ONES, (1.0, 1.0, 0.0, 1.0, 1.0))
