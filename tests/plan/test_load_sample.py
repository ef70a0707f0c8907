"""Intervals: they hold the truth as often as they say, for independent observations and for those of one queue."""

from __future__ import annotations

import math
from random import Random

import pytest

from forebay.plan.load.result import MAX_GROUPS, OTHERS, SLICES, Group, Timeline, group
from forebay.plan.load.sample import BATCHES, Sample, ranks, share_interval


def test_batches_are_bounded_and_lose_nothing() -> None:
    sample = Sample()
    for i in range(5_000):
        sample.add(0.001 * (i + 1))
    assert len(sample._batches) <= BATCHES
    assert (sample.count, sample.least, sample.largest) == (5_000, 0.001, 5.0)
    assert sample.mean == pytest.approx(2.5005)
    assert sample.percentile(50) == pytest.approx(2.5, rel=0.01)
    assert sample.whole().below(1.0) == pytest.approx(0.2, abs=0.005)


def test_the_ranks_around_a_median_are_those_of_the_binomial() -> None:
    # n = 100: P(Binomial(100, 1/2) ≤ 39) = 0.0176, ≤ 40: 0.0284. So the 40th and the 61st of a hundred.
    assert ranks(100, 0.5) == (pytest.approx(0.40), pytest.approx(0.61))


def test_a_percentile_that_too_few_observations_lie_beyond_has_no_upper_bound() -> None:
    assert ranks(100, 0.99)[1] is None, "0.99^100 = 37 %"
    assert ranks(368, 0.99)[1] == 1.0, "0.99^368 = 2.5 %"
    assert ranks(367, 0.99)[1] is None
    assert ranks(1, 0.5) == (0.0, None)


@pytest.mark.parametrize("percent", [50.0, 95.0])
@pytest.mark.parametrize("memory", [0.0, 0.95])
def test_an_interval_holds_the_truth_about_as_often_as_it_says(percent: float, memory: float) -> None:
    """Observations exp(x) of an autoregressive x with standard deviation 1: `memory` 0.95 is a queue's likeness."""
    z = {50.0: 0.0, 95.0: 1.6449}[percent]
    truth, held, runs = math.exp(z), 0, 40
    rng = Random(7)
    for _ in range(runs):
        sample, x = Sample(), rng.gauss(0, 1)
        for _ in range(1_000):
            sample.add(math.exp(x))
            x = memory * x + math.sqrt(1 - memory**2) * rng.gauss(0, 1)
        found = sample.interval(percent)
        assert found is not None
        held += found.low <= truth * 1.01 and (found.high is None or found.high >= truth * 0.99)
    assert held / runs >= 0.87, "of 95 %; with independence taken for granted it would be under half"


def test_the_interval_of_a_share_is_wilson_s() -> None:
    found = share_interval(95, 100)
    assert found is not None
    assert found == (pytest.approx(0.8882, abs=1e-3), pytest.approx(0.9785, abs=1e-3))
    assert share_interval(0, 0) is None


def test_a_timeline_halves_itself_and_keeps_its_sums() -> None:
    timeline = Timeline()
    for i in range(10_000):
        timeline.at(i * 0.1).arrived += 1
    assert len(timeline.slices) <= SLICES
    assert sum(one.arrived for one in timeline.slices) == 10_000
    assert timeline.width == 8.0
    assert timeline.slices[0].arrived == 80


def test_groups_are_bounded() -> None:
    groups: dict[str, Group] = {}
    for i in range(200):
        group(groups, f"t{i}").sent += 1
    assert len(groups) == MAX_GROUPS + 1
    assert groups[OTHERS].sent == 200 - MAX_GROUPS
