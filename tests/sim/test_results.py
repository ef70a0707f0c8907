"""From rows to numbers: against counts made by hand, and against every gap looked at one by one."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.sim.result_gaps import Gaps
from forebay.sim.result_series import COUNTERS, GAUGES, Series
from forebay.sim.result_summary import TOP, curves, summary, tidy
from forebay.sim.results import OTHERS, Names, Outcome, Requests, Slo
from forebay.sim.workload import Ask

runs = st.lists(
    st.tuples(st.integers(1, 50), st.integers(1, 300), st.floats(1e-5, 5.0), st.floats(1e-5, 5.0)).map(
        lambda run: run if run[1] > 1 else (*run[:3], run[2])
    ),
    max_size=8,
)


def every_gap(drawn: list[tuple[int, int, float, float]]) -> np.ndarray:
    return np.concatenate([np.repeat(np.linspace(a, b, steps), jobs) for jobs, steps, a, b in drawn])


@given(runs.filter(bool))
def test_gaps_are_as_if_each_had_been_looked_at(drawn: list[tuple[int, int, float, float]]):
    gaps = Gaps()
    for run in drawn:
        gaps.add_run(*run)
    each = every_gap(drawn)
    assert gaps.count == each.size
    assert gaps.mean == pytest.approx(each.mean(), rel=1e-9)
    for p in (1, 50, 90, 99, 99.9, 100):
        want = float(np.percentile(each, p, method="inverted_cdf"))
        assert gaps.percentile(p) == pytest.approx(want, rel=0.0101)
    xs, ys = gaps.cdf()
    assert ys[-1] == 1.0 and xs == sorted(xs) and ys == sorted(ys)
    assert gaps.least <= xs[0] and xs[-1] <= gaps.largest


def test_gaps_without_gaps():
    gaps = Gaps()
    gaps.add_run(0, 5, 0.1, 0.2)
    assert repr(gaps) == "<Gaps empty>"
    assert gaps.mean is None and gaps.percentile(50) is None and gaps.cdf() == ([], [])


def test_names_have_numbers_up_to_a_bound():
    names = Names(2)
    assert [names.number(name) for name in ("a", "b", "a", "c", "d", OTHERS)] == [0, 1, 0, 2, 2, 2]
    assert names.names == ["a", "b", OTHERS]


class Row:
    """What became of one request; None: it never came to that."""

    def __init__(self, at: float, first: float | None, end: float | None, **more: object) -> None:
        self.at, self.first, self.end, self.more = at, first, end, more


def booked(*rows: Row) -> Requests:
    requests = Requests()
    for row in rows:
        more = {"prompt": 100, "output": 11, "tenant": "", "cls": "normal", "outcome": Outcome.FINISHED} | row.more
        i = requests.arrived(Ask(row.at, more["prompt"], more["output"], tenant=more["tenant"], cls=more["cls"]))
        requests.outcome[i] = more["outcome"]
        if row.first is not None:
            requests.scheduled[i] = row.at
            requests.first[i] = row.first
        if row.end is not None:
            requests.end[i] = row.end
    return requests


def test_a_request_meets_the_slo_by_ttft_prompt_length_and_tpot():
    requests = booked(
        Row(0.0, 1.5, 2.5),  # TTFT 1.5, TPOT 0.1
        Row(1.0, 2.6, 3.0),  # TTFT 1.6
        Row(2.0, 3.6, 4.0, prompt=1000),  # TTFT 1.6, long
        Row(3.0, 3.1, 8.1),  # TPOT 0.5
        Row(4.0, None, 6.0, outcome=Outcome.ABANDONED),
        Row(5.0, 5.1, None, outcome=Outcome.UNFINISHED),
        Row(6.0, 6.5, 6.5, output=1),  # no TPOT at all
    )

    def met(slo: Slo) -> int:
        return summary(requests, Gaps(), slo, 10.0)["met_slo"]

    assert met(Slo()) == 3
    assert met(Slo(per_1k=0.1)) == 4
    assert met(Slo(tpot=0.2)) == 2
    found = summary(requests, Gaps(), Slo(), 10.0)
    assert found["slo_attainment"] == tidy(3 / 7) and found["goodput_per_s"] == 0.3
    assert found["goodput_output_tokens_per_s"] == (11 + 11 + 1) / 10
    assert found["requests"]["finished"] == 5 and found["requests"]["abandoned"] == 1
    assert found["tpot_s"]["count"] == 4 and found["ttft_s"]["count"] == 6


def test_percentiles_are_nearest_rank():
    requests = booked(*(Row(float(i), i + (i + 1) / 1000, i + 1.0) for i in range(100)))
    found = summary(requests, Gaps(), Slo(), 100.0)["ttft_s"]
    assert (found["p50"], found["p90"], found["p99"], found["max"]) == (0.05, 0.09, 0.099, 0.1)
    assert found["mean"] == 0.0505


def test_classes_in_the_order_of_their_rank_and_tenants_in_the_order_of_their_tokens():
    rows = [
        Row(float(i), i + 0.1, i + 1.0, tenant=f"t{i % 14}", cls=("low", "vip", "batch")[i % 3]) for i in range(140)
    ]
    rows += [Row(200.0, 200.1, 201.0, tenant="whale", prompt=10_000_000)]
    found = summary(booked(*rows), Gaps(), Slo(), 300.0)
    assert [c["name"] for c in found["classes"]] == ["vip", "normal", "low", "batch"]
    tenants = found["tenants"]
    assert tenants[0]["name"] == "whale" and len(tenants) == TOP + 1
    assert tenants[-1]["name"] is None and tenants[-1]["tenants"] == 15 - TOP
    assert sum(t["requests"]["arrived"] for t in tenants) == 141


def test_fairness_is_jains_index_of_slo_attainment():
    rows = [Row(float(i), i + 0.1, i + 1.0, tenant="a") for i in range(4)]
    rows += [Row(10.0 + i, 10 + i + (0.1 if i < 2 else 9.0), 20.0 + i, tenant="b") for i in range(4)]
    found = summary(booked(*rows), Gaps(), Slo(), 30.0)
    assert found["fairness_jain"] == tidy(1.5**2 / (2 * (1 + 0.25)))
    assert summary(booked(*rows[:4]), Gaps(), Slo(), 30.0)["fairness_jain"] is None


def test_a_distributions_curve_is_bounded_and_ends_at_the_largest():
    requests = booked(*(Row(float(i), i + (i + 1) / 1e4, i + 1.0) for i in range(10_000)))
    found = curves(requests, Gaps(), Slo())
    ttft = found["distributions"]["ttft"]
    assert len(ttft["seconds"]) < 500
    assert ttft["seconds"][-1] == 1.0 and ttft["fraction"][-1] == 1.0
    for x, y in zip(ttft["seconds"], ttft["fraction"], strict=True):
        assert x == pytest.approx(y, abs=1e-5)  # uniform from 0 to 1 s
    arrivals = found["arrivals"]
    assert sum(arrivals["offered_per_s"]) * arrivals["width"] == pytest.approx(10_000, rel=1e-4)
    assert sum(arrivals["goodput_per_s"]) * arrivals["width"] == pytest.approx(10_000, rel=1e-4)


def test_nothing_at_all_is_a_result_too():
    found = summary(Requests(), Gaps(), Slo(), 0.0) | curves(Requests(), Gaps(), Slo())
    assert found["slo_attainment"] is None and found["ttft_s"]["p99"] is None and found["tenants"] == []
    json.dumps(found, allow_nan=False)


class Still:
    """An engine that looks the same at every sample, and whose counters stand where they are put."""

    running, waiting, kv_usage, kv_wasted = 3, 1, 0.5, 0.1

    def __init__(self) -> None:
        self.preemptions = self.prefill_tokens = self.decode_tokens = self.prefix_queries = self.prefix_hits = 0
        self.busy_seconds = 0.0
        self.stats = self


def test_series_halve_and_keep_their_sums():
    engine = Still()
    series = Series(1, 1.0, bound=8)
    for i in range(1, 101):
        if i >= series.next:
            engine.decode_tokens = i * 10
            series.sample(float(i), [engine], i, i // 2)
    assert len(series.times) < 8 and series.interval == 16.0
    assert sum(series.values["decode_tokens"]) == series.times[-1] * 10
    assert sum(series.values["arrived"]) == series.times[-1]
    assert set(series.values["running"]) == {3} and set(series.values["kv_mean"]) == {0.5}
    assert len({len(series.values[name]) for name in (*GAUGES, *COUNTERS)} | {len(series.each[0]["kv"])}) == 1
    assert series.times == sorted(series.times)


def test_series_know_the_emptiest_and_the_fullest():
    engines = [Still(), Still(), Still()]
    engines[0].kv_usage, engines[2].kv_usage = 0.1, 0.9
    series = Series(3, 1.0, each=2)
    series.sample(1.0, engines, 0, 0)
    values = {name: series.values[name][0] for name in GAUGES}
    assert (values["kv_low"], values["kv_mean"], values["kv_high"]) == (0.1, 0.5, 0.9)
    assert values["running"] == 9 and values["kv_wasted"] == pytest.approx(0.1) and len(series.each) == 2


@pytest.mark.parametrize(("bound", "interval"), [(3, 1.0), (0, 1.0), (8, 0.0), (8, math.nan)])
def test_series_refuse_what_they_could_not_halve(bound: int, interval: float):
    with pytest.raises(ValueError, match="must be"):
        Series(1, interval, bound=bound)
