"""Soft caps and the replicas that are desired: by hand, by property, and in simulated time."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import ceil, exp, inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.config.models import Class
from forebay.policy.admission import Admission
from forebay.policy.asks import Ask
from forebay.policy.decisions import Admit, Wait
from forebay.policy.facts import Facts, Report
from forebay.policy.prior import PrefillPrior
from forebay.policy.rules import Rules, ScaleRules
from forebay.policy.scale import SPAN, Factor, Replicas

PRIOR = PrefillPrior(
    base_s=0.02, per_token_s=1e-4, per_token_context_s=0.0, decode_step_s=0.02, per_sequence_s=1e-4, budget_tokens=2048
)
FACTS = Facts(kv_tokens=200_000, max_num_seqs=64, prefill=PRIOR)
PATIENT = Rules(ttft=dict.fromkeys(Class, 1e3), wait=dict.fromkeys(Class, 1e3))


# --- a factor ---------------------------------------------------------------------------------------------------------


def factors(waiting: list[int], cap: int = 10, **more: Any) -> list[float]:
    factor = Factor(ScaleRules())
    return [factor.check(n, cap, 60.0 * (i + 1), **more) for i, n in enumerate(waiting)]


def test_many_who_wait_raise_the_factor_and_few_bring_it_back_to_1() -> None:
    assert factors([51] * 6 + [9] * 12) == [
        *(1.2, 1.4, 1.6, 1.8, 2.0, 2.0),
        *(1.9, 1.8, 1.7, 1.6, 1.5, 1.4, 1.3, 1.2, 1.1, 1.0, 1.0, 1.0),
    ]


def test_between_one_and_five_times_the_cap_it_stays() -> None:
    assert factors([51, 10, 50, 30]) == [1.2] * 4


def test_an_engine_that_preempts_is_handed_less_whoever_waits() -> None:
    assert factors([500, 0, 30, 500, 0, 500, 0], preempted=True) == [0.9, 0.8, 0.7, 0.6, 0.5, 0.5, 0.5]


def test_one_that_sheds_is_not_handed_more() -> None:
    assert factors([500, 500], full=True) == [1.0, 1.0]


def test_once_it_does_not_preempt_any_more_it_gets_its_cap_back() -> None:
    factor = Factor(ScaleRules())
    for i in range(5):
        factor.check(0, 10, 60.0 * i, preempted=True)
    assert [factor.check(n, 10, 400.0 + 60 * i) for i, n in enumerate((0, 20, 51, 20))] == [0.7, 0.9, 1.1, 1.1]


def test_it_is_due_once_a_minute() -> None:
    factor = Factor(ScaleRules())
    assert not factor.due(5.0)
    assert [factor.due(now) for now in (64.9, 65.0)] == [False, True]
    factor.check(0, 10, 65.0)
    assert [factor.due(now) for now in (124.9, 125.0)] == [False, True]


@given(st.lists(st.tuples(st.integers(0, 200), st.booleans(), st.booleans()), max_size=60))
def test_it_never_leaves_its_bounds(checks: list[tuple[int, bool, bool]]) -> None:
    factor = Factor(ScaleRules())
    seen = [1.0]
    for i, (waiting, preempted, full) in enumerate(checks):
        seen.append(factor.check(waiting, 10, 60.0 * i, preempted=preempted, full=full))
        assert 0.5 <= seen[-1] <= 2.0
        if not preempted:
            assert seen[-1] >= min(1.0, seen[-2])
    assert all(-0.1 - 1e-9 <= b - a <= 0.2 + 1e-9 for a, b in pairwise(seen))


# --- an engine's cap --------------------------------------------------------------------------------------------------


def crowd(admission: Admission, n: int, now: float, first: int = 0) -> list[Ask]:
    asks = [Ask(first + i, prompt_tokens=50, arrival=now, max_tokens=50) for i in range(n)]
    for ask in asks:
        admission.offer(ask, now)
    return asks


def capped(concurrency: int | None, rules: Rules = PATIENT) -> Admission:
    return Admission(rules, {"a": replace(FACTS, concurrency=concurrency)})


def running(admission: Admission) -> int:
    return admission.books["a"].sequences


def settle(admission: Admission, now: float) -> float:
    """Let all go that may: first tokens come as soon as they can."""
    for _ in range(200):
        gone = admission.due(now)
        for ask in list(admission.books["a"].asks.values()):
            admission.on_first_token(ask, now)
        now += 0.05
        if not gone:
            return now
    raise AssertionError("it never settles")


def test_a_soft_cap_holds_and_moves_with_those_who_wait_up_to_what_the_engine_runs() -> None:
    admission = capped(20)
    crowd(admission, 300, 0.0)
    now = settle(admission, 0.0)
    caps = []
    for _ in range(14):
        admission.on_report("a", Report(), now)
        now = settle(admission, now) + 60.0
        caps.append(running(admission))
    assert caps == [20, 24, 28, 32, 36, 40, 40, 40, 40, 40, 40, 40, 40, 40]
    admission = capped(50)
    crowd(admission, 600, 0.0)
    now = settle(admission, 0.0)
    for _ in range(10):
        admission.on_report("a", Report(), now)
        now = settle(admission, now) + 60.0
    assert admission.books["a"].factor.value > 64 / 50
    assert running(admission) == 64, "what is beyond would wait in the engine"


def test_without_a_soft_cap_nothing_moves() -> None:
    admission = capped(None)
    crowd(admission, 600, 0.0)
    now = settle(admission, 0.0)
    for _ in range(5):
        admission.on_report("a", Report(), now)
        now = settle(admission, now) + 60.0
    assert running(admission) == 64
    assert admission.books["a"].factor.value == 1.0


def test_an_idle_engine_keeps_its_cap_for_the_next_flood() -> None:
    admission = capped(20)
    for i in range(60):
        admission.on_report("a", Report(preemptions=3), 60.0 * i)
    crowd(admission, 30, 3_600.0)
    settle(admission, 3_600.0)
    assert running(admission) == 20


def test_preemptions_between_two_checks_lower_the_cap_though_the_level_has_fallen() -> None:
    admission = capped(20)
    admission.on_report("a", Report(preemptions=0), 0.0)
    admission.on_report("a", Report(preemptions=1), 10.0)
    admission.on_report("a", Report(preemptions=1), 60.0)
    assert admission.books["a"].shed.level == 0
    assert admission.books["a"].cap == 18
    admission.on_report("a", Report(preemptions=1), 120.0)
    assert admission.books["a"].cap == 20


def test_a_request_of_more_answers_than_the_cap_goes_when_the_engine_is_empty() -> None:
    admission = capped(2)
    small = Ask(1, prompt_tokens=50, arrival=0.0)
    wide = Ask(2, prompt_tokens=50, arrival=0.0, n=8)
    assert isinstance(admission.offer(small, 0.0), Admit)
    assert isinstance(admission.offer(wide, 0.0), Wait)
    admission.on_end(small, 1.0, tokens=1)
    assert [(a, type(d)) for a, d in admission.due(1.0)] == [(wide, Admit)]


def test_a_reload_keeps_the_factor_within_the_new_bounds() -> None:
    admission = capped(20)
    crowd(admission, 300, 0.0)
    now = settle(admission, 0.0)
    for _ in range(6):
        admission.on_report("a", Report(), now)
        now += 60.0
    assert admission.books["a"].cap == 40
    admission.configure(replace(PATIENT, scale=ScaleRules(most=1.5)), now)
    assert admission.books["a"].cap == 30


# --- replicas ---------------------------------------------------------------------------------------------------------


def test_more_replicas_are_desired_as_the_mean_says_and_fewer_later() -> None:
    replicas = Replicas(ScaleRules())
    replicas.told(4.0, 0, 0, 0.0)
    assert replicas.desired == 1
    replicas.told(4.0, 0, 0, 1e3)
    assert replicas.desired == 5  # 4 / 0.8
    replicas.told(8.0, 0, 0, 1e3 + SPAN)
    assert replicas.demand == pytest.approx(8 - 4 * exp(-1))
    assert replicas.desired == 9
    replicas.told(0.0, 0, 0, 1e3 + SPAN + 299)
    assert replicas.desired == 9
    replicas.told(0.0, 0, 0, 1e3 + SPAN + 300.1)
    assert replicas.desired == 1


def test_what_was_not_taken_counts_as_what_was() -> None:
    replicas = Replicas(ScaleRules())
    for now in range(200):
        replicas.told(2.0, 900, 300, float(now))
    assert replicas.demand == pytest.approx(6.0, rel=1e-3)
    for now in range(200, 400):
        replicas.told(2.0, 100, 300, float(now))
    assert replicas.demand == pytest.approx(2.0, rel=1e-3), "who comes back and is taken is not less load"
    for now in range(400, 600):
        replicas.told(2.0, 900, 0, float(now))
    assert replicas.demand == pytest.approx(20.0, rel=1e-3)


@given(st.lists(st.tuples(st.floats(0, 1e9), st.floats(0, 1e9), st.floats(0, 1e9)), max_size=20))
def test_no_demand_breaks_the_bounds(told: list[tuple[float, float, float]]) -> None:
    replicas = Replicas(ScaleRules(least_replicas=0, most_replicas=7))
    assert replicas.desired == 0
    for i, (load, asked, taken) in enumerate(told):
        replicas.told(load, asked, taken, 1.0 + i // 2)  # now and then no time has passed
        assert 0 <= replicas.desired <= 7


@given(st.lists(st.tuples(st.floats(0, 30), st.floats(0.5, 60)), min_size=1, max_size=60))
def test_the_replicas_are_the_most_of_the_window(told: list[tuple[float, float]]) -> None:
    replicas = Replicas(ScaleRules())
    now, seen = 0.0, []
    for load, passed in told:
        now += passed
        replicas.told(load, 0, 0, now)
        seen.append((now, max(1, ceil(replicas.demand / 0.8 - 1e-9))))
        assert replicas.desired == max(n for t, n in seen if t >= now - 300)


def test_each_model_has_the_load_of_its_own_requests() -> None:
    """One engine is half full of `x`, the other of `x` and `y` by three to one."""
    admission = Admission(PATIENT, {"a": FACTS, "b": FACTS})
    now, key = 0.0, 0
    for engine, model, count in (("a", "x", 32), ("b", "x", 24), ("b", "y", 8)):
        for _ in range(count):
            key += 1
            ask = Ask(key, prompt_tokens=10, arrival=now, model=model, engines=(engine,), max_tokens=10)
            assert isinstance(admission.offer(ask, now), Admit)
            admission.on_first_token(ask, now + 0.01)
            now += 0.02
    for i in range(200):
        for engine in ("a", "b"):
            admission.on_report(engine, Report(), now + i)
    models = admission.scaling.models
    assert [models[m].demand for m in ("x", "y")] == pytest.approx([0.5 + 0.375, 0.125], rel=1e-3)
    assert [admission.scaling.desired(m) for m in ("x", "y", "never seen")] == [2, 1, 1]


def test_a_burst_that_is_over_at_once_asks_for_nothing() -> None:
    admission = Admission(PATIENT, {"a": FACTS})
    admission.on_report("a", Report(), 0.0)
    asks = crowd(admission, 60, 0.9)
    admission.on_report("a", Report(), 1.0)
    for ask in asks:
        admission.on_end(ask, 1.5, tokens=1)
    for i in range(10):
        admission.on_report("a", Report(), 2.0 + i)
        assert admission.scaling.desired("") == 1


# --- rules ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rules", "field"),
    [
        ({"every_s": 0.0}, "every_s"),
        ({"target": inf}, "target"),
        ({"least": 1.5}, "least"),
        ({"most": 0.9}, "most"),
        ({"down_under": 6.0}, "down_under"),
        ({"settle_s": -1.0}, "settle_s"),
        ({"least_replicas": 300}, "least_replicas"),
    ],
)
def test_rules_that_contradict_themselves_are_refused_by_name(rules: dict[str, Any], field: str) -> None:
    with pytest.raises(ValueError, match=field):
        ScaleRules(**rules)
