"""What a search finds, on models so small that it takes a second."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from forebay.plan.simulate import Setup
from forebay.plan.simulate_hardware import Wanted
from forebay.plan.tune.asked import Asked, wish_of
from forebay.plan.tune.formula import expect, mix_of
from forebay.plan.tune.result import interval, loss
from forebay.plan.tune.run import run
from forebay.plan.tune.search import Wish, begin, neighbours, screen
from forebay.plan.tune.space import Setting, TuneError, layouts, parse_axes, settings, why_not
from forebay.plan.tune.trial import GRID, Lab, Problem, Trial, climb, keeps
from forebay.sim.results import Slo
from forebay.sim.workload import Ask

WORKLOAD = "poisson:rate=8,requests=400,tenants=2,system=800,prompt=200,output=60"


def a_problem(**slo: float) -> Problem:
    base = Setup(
        workload=WORKLOAD,
        placement="least_requests",
        hardware=Wanted(gpu="a10", model="Qwen/Qwen2.5-7B"),
        slo=Slo(**({"ttft": 2.0, "tpot": 0.2} | slo)),
    )
    return Problem(base=base)


FIXED = ("max_num_batched_tokens=2048", "gpu_memory_utilization=0.9", "enable_chunked_prefill=true")
ONE = Setting(max_model_len=2048, max_num_seqs=16)


class TestCapacity:
    def test_the_slo_is_kept_there_and_not_at_the_next_load_up(self) -> None:
        lab = Lab(a_problem())
        trial = lab.capacity(ONE, 1.0, 150, 0.0)
        assert trial.at is not None
        assert keeps(trial.at, 0.95)
        assert trial.capacity == trial.at.offered
        above = lab.measure(ONE, trial.at.speed * GRID, 150)
        assert not keeps(above, 0.95)

    def test_it_does_not_depend_on_the_guess(self) -> None:
        lab = Lab(a_problem())
        found = {round(lab.capacity(ONE, guess, 120, 0.0).capacity, 6) for guess in (0.05, 0.7, 30.0)}
        assert len(found) == 1

    def test_an_slo_that_no_load_keeps_has_none(self) -> None:
        trial = Lab(a_problem(ttft=1e-3)).capacity(ONE, 1.0, 60, 0.1)
        assert trial.capacity == 0
        assert trial.at is None
        assert trial.simulations < 20

    @pytest.mark.parametrize("edge", [-300, -7, 0, 5, 120])
    @pytest.mark.parametrize("width", [1, 5])
    def test_climbing_ends_beneath_the_edge(self, edge: int, width: int) -> None:
        calls: list[int] = []

        def good(i: int) -> bool:
            calls.append(i)
            return i <= edge

        best = climb(good, 0, width=width, runs=lambda: len(calls))
        assert best is not None
        assert edge - width < best <= edge
        assert len(calls) <= 24

    def test_a_full_engine_is_told_from_one_that_keeps_up(self) -> None:
        lab = Lab(a_problem(ttft=1e5, tpot=math.inf))
        calm, flooded = lab.measure(ONE, 0.05, 150), lab.measure(ONE, 40.0, 150)
        assert calm.attainment == flooded.attainment == 1.0
        assert calm.keeps_up
        assert not flooded.keeps_up
        assert flooded.output > calm.output

    def test_what_a_request_costs_is_the_hour_over_its_valid_ones(self) -> None:
        problem = replace(a_problem(), price=3.6)
        point = Lab(problem).measure(replace(ONE, engines=2), 0.2, 100)
        assert point.dollars_per_valid == pytest.approx(2 * 3.6 / 3600 / point.goodput)
        assert point.dollars_per_million == pytest.approx(2 * 3.6 / 3600 / point.output * 1e6)


class TestFormula:
    def test_a_mix_counts_what_earlier_prompts_share(self) -> None:
        asks = [
            Ask(0.0, 100, 10, (("a", 60),), keeps="chat"),
            Ask(1.0, 100, 20, (("a", 60),)),
            Ask(2.0, 130, 30, (("chat", 110),)),
        ]
        mix = mix_of(asks)
        assert (mix.requests, mix.rate, mix.longest) == (3, 1.0, 160)
        assert mix.shared == pytest.approx((60 + 110) / 330)

    def test_it_ranks_as_the_simulator_does(self) -> None:
        problem = a_problem()
        lab = Lab(problem)
        mix = mix_of(lab.asks(400, 0))
        tried = [replace(ONE, max_num_seqs=n, enable_prefix_caching=on) for n in (2, 8, 32) for on in (True, False)]
        formula = [expect(s, lab.prepare(s), mix, problem).rate for s in tried]
        simulated = [lab.capacity(s, 0.3, 150, 0.05).capacity for s in tried]
        assert sorted(range(6), key=formula.__getitem__)[-1] == sorted(range(6), key=simulated.__getitem__)[-1]
        assert all(0.2 < s / f < 1.6 for f, s in zip(formula, simulated, strict=True))


class TestSpace:
    def test_layouts_leave_no_gpu_over(self) -> None:
        found = list(layouts(8, {}, split=True))
        assert {Setting(tp=a, engines=b, decode_engines=c, decode_tp=d).gpus for a, b, c, d in found} == {8}
        assert (4, 2, 0, 0) in found
        assert (1, 4, 1, 4) in found
        assert len(set(found)) == len(found)
        assert all(c == 0 for _, _, c, _ in layouts(8, {}, split=False))

    def test_what_no_engine_takes_is_not_among_the_settings(self) -> None:
        _, found = settings(2, {}, needs=4096, split=False, drafts=True)
        assert all(why_not(s) is None for s in found)
        assert all(s.max_num_batched_tokens >= 4096 for s in found if not s.enable_chunked_prefill)
        assert why_not(Setting(max_num_seqs=1024, max_num_batched_tokens=512)) is not None

    def test_neighbours_differ_in_one_field_and_know_both_sides_of_a_switch(self) -> None:
        axes, _ = settings(2, {"enable_prefix_caching": (True,)}, needs=4096, split=False, drafts=False)
        setting = Setting(max_model_len=4096, max_num_batched_tokens=2048)
        found = neighbours(setting, axes)
        assert replace(setting, enable_prefix_caching=False) in found
        assert replace(setting, enable_chunked_prefill=False, max_num_batched_tokens=4096) in found
        assert all(why_not(s) is None for s in found)

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("max_num_seq=3", "nearest are max_num_seqs"),
            ("max_num_seqs", "must be FIELD=A"),
            ("max_num_seqs=many", "must be a whole number, not 'many'"),
            ("tp=0", "tp must be at least 1"),
            ("gpu_memory_utilization=1.5", "at most 1, not 1.5"),
            ("enable_prefix_caching=yes", "must be true or false"),
        ],
    )
    def test_values_that_cannot_be_tried_are_named(self, text: str, said: str) -> None:
        with pytest.raises(TuneError, match=said.replace("(", r"\(")):
            parse_axes([text])


class TestIntervals:
    def test_student_s_t_of_four(self) -> None:
        found = interval([1.0, 2.0, 3.0, 4.0])
        assert found["mean"] == 2.5
        assert found["high"] == pytest.approx(2.5 + 3.182 * math.sqrt(5 / 3) / 2, rel=1e-3)

    def test_a_loss_is_of_the_same_seeds(self) -> None:
        def trials(*capacities: float) -> list[Trial]:
            return [
                Trial(setting=ONE, capacity=c, at=None, points=(), simulations=1, seed=i)
                for i, c in enumerate(capacities)
            ]

        sure = loss(trials(10, 20, 40), trials(9, 18.1, 35.9))
        assert sure["verdict"] == "worse"
        assert sure["mean"] == pytest.approx(0.0992, abs=1e-3)
        assert loss(trials(10, 20, 40), trials(10, 21, 39))["verdict"] == "even"
        assert loss(trials(10), trials(9))["verdict"] is None


def a_wish(**more: Any) -> Wish:
    asked: dict[str, Any] = {
        "workload": WORKLOAD, "model": "Qwen/Qwen2.5-7B", "gpu": "a10", "gpus": 2, "slo_ttft": 2.0, "slo_tpot": 0.2,
        "requests": 60, "seeds": 2, "settings": 6, "jobs": 1,
        "tries": (*FIXED, "max_num_seqs=4,32"),
    }  # fmt: skip
    return replace(wish_of(Asked(**(asked | more))), spans=(2.0, 3.0, 4.0))


def test_a_search_finds_the_larger_batch_and_the_cache_and_says_what_the_others_cost() -> None:
    wish = a_wish(current="vllm serve Qwen/Qwen2.5-7B --max-num-seqs 4 --max-model-len 2048", split=False)
    rounds: list[str] = []
    found = run(wish, None, lambda name, done, of: rounds.append(name))
    assert found is not None
    best = found["best"]
    assert (best["setting"]["max_num_seqs"], best["setting"]["enable_prefix_caching"]) == (32, True)
    costs = {(row["field"], row["value"]): row["loss"] for row in found["choices"]}
    assert costs["max_num_seqs", 4]["verdict"] == "worse"
    assert costs["enable_prefix_caching", False]["mean"] > 0.05
    assert found["current"]["capacity_per_s"]["mean"] < best["capacity_per_s"]["mean"]
    late = [row["point"]["e2e"]["p95"] for row in found["frontier"]]
    assert late == sorted(late)
    assert all(command["notes"] == [] for command in found["commands"])
    assert {"finalists", "what each choice costs", "over all loads"} <= set(rounds)


def test_a_search_twice_is_the_same() -> None:
    wish = a_wish(
        split=False, seeds=1, settings=2, tries=(*FIXED, "max_num_seqs=8,16", "tp=2", "enable_prefix_caching=true")
    )
    first, second = (run(replace(wish, jobs=jobs), None, lambda *_: None) for jobs in (1, 2))
    assert first == second


def test_what_was_not_to_be_tried_does_not_win() -> None:
    tries = ("max_num_seqs=16", "max_num_batched_tokens=512", "gpu_memory_utilization=0.9", "kv_dtype=auto", "tp=1")
    found = run(
        a_wish(split=False, seeds=1, settings=4, tries=(*tries, "enable_prefix_caching=false")), None, lambda *_: None
    )
    assert found is not None
    assert found["best"]["setting"]["enable_prefix_caching"] is False
    costs = {(row["field"], row["value"]): row["loss"]["mean"] for row in found["choices"]}
    assert costs["enable_prefix_caching", True] < 0  # it would bear more, which is told


def test_a_search_that_is_broken_off_tells_what_it_has() -> None:
    def stop(name: str, done: int, of: int) -> None:
        if name == "what each choice costs":
            raise KeyboardInterrupt

    found = run(a_wish(split=False, seeds=1, settings=2), None, stop)
    assert found is not None
    assert found["interrupted"]
    assert found["best"] is not None
    assert found["curves"] == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"slo_ttft": 0.01}, "--slo-ttft: 0.01 s is out of reach, even for a request that is alone"),
        ({"slo_tpot": 0.001}, "--slo-tpot: 0.001 s is out of reach"),
        ({"model": "Qwen/Qwen2.5-72B"}, "leaves no room for KV cache|does not fit"),
        ({"model": "Qwen/Qwen9"}, "nearest are"),
        ({"gpu": "l5"}, "nearest are"),
        ({"tries": ("tp=16",)}, "tp 16 is more than the 2 GPUs"),
        ({"workload": "nothing.csv"}, "no such file"),
        ({"workload": None}, "a workload is needed"),
        ({"attainment": 1.5}, "--attainment must be more than 0 and at most 1, not 1.5"),
        ({"preset": "clasic"}, "known are classic"),
        ({"current": "vllm serve M --max-num-sequences 3"}, "knows no flag --max-num-sequences; did you mean"),
        ({"current": "vllm serve M -tp 4"}, "tp 4 is more than the 2 GPUs"),
    ],
)
def test_what_cannot_be_tuned_is_said(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(TuneError, match=said):
        begin(a_wish(**changes))


def test_screening_keeps_some_of_each_layout() -> None:
    wish, _, expected = begin(a_wish(tries=("max_num_batched_tokens=2048",)))
    chosen = screen(expected, 12)
    assert len(chosen) == 12
    assert {s.layout for s in chosen} == {s.layout for s in expected}
    assert max(expected, key=lambda s: expected[s].rate) in chosen
    assert wish.gpus == 2
