"""Requests made up: their rates, their lengths, who asks, and conversations."""

from __future__ import annotations

import math
from collections import Counter
from itertools import islice, pairwise
from pathlib import Path
from random import Random
from statistics import fmean, pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.sim.workload import Ask
from forebay.sim.workloads import Tally, WorkloadError, open_workload
from forebay.sim.workloads.arrivals import Arrivals, AtOnce, Diurnal, Even, Gamma, OnOff, Poisson, Weighted
from forebay.sim.workloads.bounds import MAX_TOKENS
from forebay.sim.workloads.distributions import (
    Cdf,
    Constant,
    Distribution,
    Exponential,
    Geometric,
    Lognormal,
    Uniform,
    whole,
)
from forebay.sim.workloads.lengths import Drawn, Independent, Split
from forebay.sim.workloads.mix import Mix, Who, zipf
from forebay.sim.workloads.synthetic import Sessions, Single
from forebay.sim.workloads.transforms import Limited

rates = st.floats(0.01, 1000)
arrivals = st.one_of(
    st.builds(Poisson, rates),
    st.builds(Gamma, rates, st.floats(0.1, 20)),
    st.builds(Even, rates),
    st.builds(lambda low, more, on, off, r: OnOff(low, low + more, on, off, r), *[rates] * 4, st.booleans()),
    st.builds(Diurnal, rates, st.floats(0, 1), st.floats(1, 1e5)),
    st.builds(Weighted, rates, st.lists(st.floats(0.01, 9), min_size=1, max_size=24), st.floats(1, 1e5)),
    st.just(AtOnce()),
)


def up_to(most: float) -> st.SearchStrategy[Distribution]:
    return st.one_of(
        st.builds(Constant, st.floats(0, most)),
        st.builds(lambda a, b: Uniform(min(a, b), max(a, b)), st.floats(0, most), st.floats(0, most)),
        st.builds(Lognormal, st.floats(1, most), st.floats(0.01, 3)),
        st.builds(Exponential, st.floats(1, most)),
        st.builds(Geometric, st.floats(1, most)),
        st.just(Cdf((4, 8, most), (0.25, 0.25, 1))),
    )


def times(process: Arrivals, n: int, seed: int = 1) -> list[float]:
    return list(islice(process.times(Random(seed)), n))


@given(arrivals, st.integers())
def test_arrivals_never_step_back_and_are_the_same_for_a_seed(process: Arrivals, seed: int) -> None:
    at = times(process, 300, seed)
    assert at[0] >= 0
    assert all(a <= b for a, b in pairwise(at))
    assert at == times(process, 300, seed)


@pytest.mark.parametrize(
    ("process", "cv"),
    [(Poisson(5), 1), (Gamma(5, 3), 3), (Gamma(5, 0.5), 0.5), (Even(5), 0), (OnOff(5, 5, 1, 1), 1)],
)
def test_rate_and_variation_of_gaps(process: Arrivals, cv: float) -> None:
    at = times(process, 40_000)
    gaps = [b - a for a, b in pairwise(at)]
    # Five standard errors of the mean, and of the variation where gaps are gamma distributed.
    assert fmean(gaps) == pytest.approx(0.2, rel=5 * max(cv, 1e-6) / 200)
    assert pstdev(gaps) / fmean(gaps) == pytest.approx(cv, rel=0.12 if cv > 1 else 0.04, abs=1e-6)


@pytest.mark.parametrize("random", [False, True])
def test_floods_come_and_go(random: bool) -> None:
    process = OnOff(2, 50, 20, 60, random)
    assert process.rate == 14
    at = [t for t in times(process, 60_000) if t < 4000]
    assert len(at) == pytest.approx(4000 * 14, rel=0.25 if random else 0.03)
    if not random:
        high = sum(t % 80 >= 60 for t in at)
        assert high == pytest.approx(1000 * 50, rel=0.03)


def test_a_flood_out_of_nothing() -> None:
    at = times(OnOff(0, 50, 20, 60), 3000)
    assert min(t % 80 for t in at) >= 60


def test_the_day_has_its_peak_where_it_was_put() -> None:
    day = 1000.0
    at = times(Diurnal(20, 0.8, day, 600), 100_000)
    assert at[-1] == pytest.approx(5000, rel=0.02)
    peak = sum(abs(t % day - 600) < 50 for t in at)
    trough = sum(abs(t % day - 100) < 50 for t in at)
    # The mean of cos over 50 s each way is 0.984.
    assert peak / trough == pytest.approx((1 + 0.8 * 0.984) / (1 - 0.8 * 0.984), rel=0.1)


def test_hours_have_their_weights() -> None:
    at = times(Weighted(10, (1, 0, 3), 300), 30_000)
    counts = Counter(int(t % 300 // 100) for t in at)
    assert counts[1] == 0
    assert counts[2] / counts[0] == pytest.approx(3, rel=0.1)
    assert at[-1] == pytest.approx(3000, rel=0.05)


@given(up_to(1e5), st.integers())
def test_whole_numbers_are_in_their_bounds(distribution: Distribution, seed: int) -> None:
    draw = whole(distribution, Random(seed))
    drawn = [draw() for _ in range(50)]
    assert all(type(n) is int and 1 <= n <= MAX_TOKENS for n in drawn)
    again = whole(distribution, Random(seed))
    assert drawn == [again() for _ in range(50)]


@pytest.mark.parametrize(
    "distribution",
    [
        Constant(7),
        Uniform(10, 90),
        Lognormal(100, 0.5),
        Exponential(30),
        Geometric(1),
        Geometric(6),
        Cdf((64, 128, 256), (0.25, 0.25, 1)),
    ],
)
def test_means(distribution: Distribution) -> None:
    draw = distribution.sampler(Random(3))
    assert fmean(draw() for _ in range(40_000)) == pytest.approx(distribution.mean, rel=0.03)


def test_a_cdf_has_its_fractions_and_leaves_its_gaps() -> None:
    draw = Cdf((64, 128, 256), (0.25, 0.25, 1)).sampler(Random(3))
    drawn = [draw() for _ in range(20_000)]
    assert sum(x <= 64 for x in drawn) / len(drawn) == pytest.approx(0.25, abs=0.02)
    assert not any(64 < x <= 128 for x in drawn)
    assert min(drawn) >= 1
    assert max(drawn) <= 256


def test_lognormal_has_its_median_and_its_most() -> None:
    draw = Lognormal(512, 1.0, 2000).sampler(Random(3))
    drawn = sorted(draw() for _ in range(20_001))
    assert drawn[10_000] == pytest.approx(512, rel=0.05)
    assert drawn[-1] == 2000


def test_a_request_drawn_whole_is_split() -> None:
    draw = Split(Cdf((2, 100), (0.5, 1)), 0.8).sampler(Random(1))
    drawn = [draw() for _ in range(1000)]
    assert all(prompt >= 1 and output >= 1 for prompt, output in drawn)
    assert max(prompt + output for prompt, output in drawn) <= 100
    assert sum(p for p, _ in drawn) / sum(p + o for p, o in drawn) == pytest.approx(0.8, abs=0.02)


def test_pairs_stay_together_when_drawn_from_a_workload() -> None:
    draw = Drawn(Ask(0.0, n, 10 * n) for n in range(1, 6)).sampler(Random(1))
    assert {draw() for _ in range(200)} == {(n, 10 * n) for n in range(1, 6)}


def test_tenants_are_skewed_as_zipf_has_it() -> None:
    draw = zipf(100, 1.2).sampler(Random(1))
    counts = Counter(draw() for _ in range(50_000))
    assert counts["tenant-1"] / counts["tenant-4"] == pytest.approx(4**1.2, rel=0.1)
    with pytest.raises(ValueError, match="tenants must be from 1 to 1,000,000"):
        zipf(0, 1)


def test_classes_are_mixed_and_told_to_the_engine() -> None:
    spec = "poisson:rate=9,requests=9000,classes=(vip=1;normal=7;low=1),priorities=(vip=-1;low=5),tenants=3,system=50"
    counts = Counter((a.cls, a.priority) for a in open_workload(spec))
    assert set(counts) == {("vip", -1), ("normal", 0), ("low", 5)}
    assert counts["normal", 0] == pytest.approx(7000, rel=0.03)
    with pytest.raises(ValueError, match="class 'gold' is unknown; allowed are vip, normal, low"):
        Who(classes=Mix(("gold",), (1,)))


def test_a_system_prompt_is_shared_by_a_tenant() -> None:
    asks = list(open_workload("poisson:rate=9,requests=500,tenants=4,system=uniform(10;5000),prompt=7"))
    assert len({a.prefix for a in asks}) == 4
    assert all(a.prefix[0][0] == f"system/{a.tenant}" and a.prompt_tokens == a.prefix[0][1] + 7 for a in asks)


@given(
    st.builds(Poisson, st.floats(0.1, 100)),
    up_to(50),
    up_to(1000),
    up_to(1000),
    st.integers(),
    st.sampled_from([None, 3000, 20_000]),
)
def test_conversations_build_on_what_was_said(
    process: Arrivals, turns: Distribution, lengths: Distribution, think: Distribution, seed: int, context: int | None
) -> None:
    who = Who(zipf(3, 1.0), Mix(("vip", "low"), (1, 1)))
    sessions = Sessions(
        process, Independent(lengths, lengths), turns, think, 0.01, Constant(100), context, who, f"{seed}"
    )
    asks = list(islice(sessions.stream(Tally()), 200))
    assert all(a.arrival <= b.arrival for a, b in pairwise(asks))
    last: dict[object, Ask] = {}
    for ask in asks:
        assert ask.output_tokens >= 1
        assert sum(tokens for _, tokens in ask.prefix) < ask.prompt_tokens
        assert ask.prefix[0] == (f"system/{ask.tenant}", 100)
        assert context is None or ask.prompt_tokens + ask.output_tokens <= context
        before = last.get(ask.keeps)
        if before is None:
            assert len(ask.prefix) == 1
        else:
            assert ask.prefix[1:] == ((ask.keeps, before.prompt_tokens + before.output_tokens - 100),)
            assert (ask.tenant, ask.cls) == (before.tenant, before.cls)
            assert ask.arrival >= before.arrival + 0.01 * before.output_tokens
        last[ask.keeps] = ask


def test_an_endless_workload_of_which_nothing_fits_is_given_up() -> None:
    spec = "poisson:rate=9,prompt=500,context=100,requests=3"
    for more in ("", ",turns=2"):
        with pytest.raises(WorkloadError, match="none of 100,000 requests in a row fits into a context of 100 tokens"):
            list(open_workload(spec + more))


def test_conversations_have_their_turns_and_end_at_the_context() -> None:
    spec = "poisson:rate=2,turns=3,duration=4h,think=1,prompt=100,output=100"
    counts = Counter(a.keeps for a in open_workload(spec))
    assert Counter(counts.values())[3] > 0.99 * len(counts)
    tally = Tally()
    fits = Counter(a.keeps for a in open_workload(f"{spec},context=450").asks(tally))
    assert max(fits.values()) == 2
    assert tally.dropped == pytest.approx(len(fits), rel=0.01)


def test_estimates_are_near_what_comes() -> None:
    for spec in (
        "poisson:rate=5,duration=1000",
        "gamma:rate=5,cv=2,requests=5000",
        "onoff:low=1,high=9,on=10,off=10,duration=1000,speed=2,scale=0.5",
        "poisson:rate=1,turns=5,think=1,duration=1000",
        "burst:requests=100",
        "poisson:rate=5,duration=1000 + constant:rate=5,duration=500",
    ):
        workload = open_workload(spec)
        asks = list(workload)
        assert workload.requests == pytest.approx(len(asks), rel=0.1), spec
        assert workload.duration == pytest.approx(asks[-1].arrival, rel=0.1), spec


def test_lengths_do_not_change_when_tenants_do() -> None:
    plain = list(open_workload("gamma:rate=5,cv=2,requests=200", seed=4))
    mixed = list(open_workload("gamma:rate=5,cv=2,requests=200,tenants=9,classes=(vip=1;low=1)", seed=4))
    assert [a[:3] for a in plain] == [a[:3] for a in mixed]
    assert plain != list(open_workload("gamma:rate=5,cv=2,requests=200", seed=5))


def test_a_source_is_endless_until_it_is_limited() -> None:
    single = Single(AtOnce(), Independent(Constant(1), Constant(1)))
    assert single.size.requests == math.inf
    assert len(list(Limited(single, 7).stream(Tally()))) == 7


@pytest.mark.parametrize(
    "content",
    [
        "{}",
        '{"cdf": 5}',
        "[]",
        "[[64, 0.5]]",
        "[[64, 0.5], [32, 1]]",
        "[[64, 0.7], [128, 0.5], [256, 1]]",
        "[[64]]",
    ],
)
def test_files_that_are_no_cdf(tmp_path: Path, content: str) -> None:
    path = tmp_path / "cdf.json"
    path.write_text(content)
    with pytest.raises(WorkloadError, match=r"cdf\.json: .*"):
        open_workload(f"poisson:rate=1,requests=5,prompt=cdf({path})")
