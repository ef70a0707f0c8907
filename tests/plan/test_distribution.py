from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.plan.distribution import Distribution


@given(
    st.lists(st.floats(min_value=0, max_value=100_000, allow_nan=False), min_size=1, max_size=300),
    st.floats(min_value=0, max_value=100),
)
def test_a_percentile_is_right_to_half_a_percent_or_a_microsecond(values: list[float], percent: float) -> None:
    d = Distribution()
    for v in values:
        d.add(v)
    exact = sorted(values)[max(1, math.ceil(len(values) * percent / 100)) - 1]
    found = d.percentile(percent)
    assert found is not None
    assert abs(found - exact) <= max(1e-6, exact * 0.0051)


def test_the_mean_and_the_extremes_are_exact() -> None:
    d = Distribution()
    d.add(0.25)
    d.add(0.75, times=3)
    assert (d.count, d.mean, d.least, d.largest) == (4, 0.625, 0.25, 0.75)
    assert d.percentile(100) == 0.75


def test_what_is_over_a_day_still_counts() -> None:
    d = Distribution()
    for _ in range(3):
        d.add(1e7)
    assert d.percentile(50) == 1e7


def test_nothing_observed_has_no_percentile() -> None:
    d = Distribution()
    assert (d.percentile(50), d.mean, repr(d)) == (None, None, "<Distribution empty>")


@pytest.mark.parametrize("percent", [-0.1, 100.1])
def test_a_percentage_outside_its_range_is_refused(percent: float) -> None:
    with pytest.raises(ValueError, match="0 to 100"):
        Distribution().percentile(percent)


def test_it_tells_what_it_holds() -> None:
    d = Distribution()
    d.add(0.002)
    assert repr(d) == "<Distribution n=1 p50=2.000 ms p99=2.000 ms>"


def test_two_distributions_become_one() -> None:
    a, b, both = Distribution(), Distribution(), Distribution()
    for i, x in enumerate((0.0, 0.5e-6, 0.001, 0.2, 3.0, 90_000.0, 0.2)):
        (a if i % 2 else b).add(x)
        both.add(x)
    a.merge(b)
    a.merge(Distribution())
    assert (a.count, a.total, a.least, a.largest) == (both.count, both.total, both.least, both.largest)
    assert a._counts == both._counts


def test_a_curve_is_short_and_ends_with_all_of_them() -> None:
    d = Distribution()
    for i in range(1, 10_001):
        d.add(i * 0.001)
    xs, ys = d.curve(50)
    assert len(xs) <= 51
    assert xs == sorted(xs)
    assert ys[-1] == 1.0
    assert dict(zip(xs, ys, strict=True))[min(xs, key=lambda x: abs(x - 5))] == pytest.approx(0.5, abs=0.02)
    assert Distribution().curve() == ([], [])
