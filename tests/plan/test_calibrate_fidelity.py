"""The fidelity benchmark's own arithmetic: its workload, its percentiles, and what it has the simulator predict."""

from __future__ import annotations

import dataclasses

import pytest
from benchmarks.common import BenchError
from benchmarks.fidelity_live.__main__ import figures, knee
from benchmarks.fidelity_live.predict import Answer, Request, predict, workload

from forebay.hardware.fitted import Coefficients, EngineFacts, FitError, FittedProfile, FittedStepTime, Host, Ranges

PROFILE = FittedProfile(
    engine=EngineFacts("vllm", "0", "m", 16, 64_000, 4, 1_024, 4_096, False),
    date="",
    coefficients=Coefficients(((1, 0.010), (1_001, 1.010))),
    host=Host(0.005, 1e-5),
    ranges=Ranges(4, 16_000, 1_024, 4_096),
    error=FitError(1.0),
)


def test_the_workload_is_the_same_at_every_rate_but_for_its_spacing() -> None:
    slow, fast = workload(1.0, 200, 1_500), workload(4.0, 200, 1_500)
    assert [(r.prompt_tokens, r.output_tokens) for r in slow] == [(r.prompt_tokens, r.output_tokens) for r in fast]
    assert [r.at for r in slow] == pytest.approx([4 * r.at for r in fast])
    assert slow[0].at == 0.0 and slow[-1].at == pytest.approx(200, rel=0.25)
    assert {r.prompt_tokens > 240 for r in slow} == {True, False}
    assert max(r.prompt_tokens for r in workload(1.0, 200, 512)) == 512


def test_a_request_alone_costs_the_host_and_its_steps() -> None:
    (alone,) = predict([Request(0.0, 100, 11)], FittedStepTime(PROFILE))
    assert alone.ttft == pytest.approx(0.005 + 100e-5 + 0.109)
    assert alone.tpot == pytest.approx(0.010)


def test_who_comes_while_a_step_runs_waits_for_its_end() -> None:
    first, second, single = predict(
        [Request(0.0, 500, 2), Request(0.1, 100, 2), Request(50.0, 10, 1)], FittedStepTime(PROFILE)
    )
    assert first.ttft == pytest.approx(0.005 + 500e-5 + 0.509)
    # Its step has 100 tokens of prefill and one that decodes.
    assert second.ttft == pytest.approx(first.ttft + 0.110 - 0.1)
    assert first.tpot == pytest.approx(0.110)
    assert single.tpot is None


def test_the_knee_is_where_the_p99_reaches_the_slo() -> None:
    steps = FittedStepTime(PROFILE)
    rate = knee(steps, 100, 1_500)
    assert figures(predict(workload(rate, 100, 1_500), steps))["TTFT P99"] == pytest.approx(1.5, rel=0.05)


def test_percentiles_lie_between_their_neighbours() -> None:
    found = figures([Answer(float(i), None if i else 2.0) for i in range(101)])
    assert (found["TTFT P50"], found["TTFT P99"], found["TTFT mean"]) == (50.0, 99.0, 50.0)


def test_a_profile_that_does_not_say_how_the_engine_is_set_up_is_refused() -> None:
    engine = dataclasses.replace(PROFILE.engine, max_num_batched_tokens=None)
    with pytest.raises(BenchError, match="did not find max_num_batched_tokens"):
        predict([Request(0.0, 1, 1)], FittedStepTime(dataclasses.replace(PROFILE, engine=engine)))
