"""The formulas of a plan: by hand where steps take a constant time, and against the simulator."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from forebay.hardware.catalogue import find_gpu, find_named
from forebay.hardware.roofline import RooflineSteps
from forebay.hardware.steptime import Chunk
from forebay.plan import capacity_check
from forebay.plan.capacity_lengths import independent
from forebay.plan.capacity_question import PlanError, Promise
from forebay.plan.capacity_queue import state
from forebay.plan.capacity_rates import Engine, Lane
from forebay.plan.capacity_slo import floor, sustain


class Constant:
    """10 ms a step, and 0.1 ms for each prompt token."""

    warnings: Sequence[str] = ()

    def decode(self, n: int, context: int, longest: int) -> float:
        return 0.01

    def mixed(self, chunks: Sequence[Chunk], n: int, context: int, longest: int) -> float:
        return 0.01 + 1e-4 * sum(chunk.tokens for chunk in chunks)


def engine(prompt: str = "100", output: str = "101", **lane: float) -> Engine:
    settings = {"kv_tokens": 1e6, "max_num_seqs": 64, "max_num_batched_tokens": 1024} | lane
    return Engine(Lane(steps=Constant(), **settings), independent(prompt, output))  # type: ignore[arg-type]


def test_places_limit_throughput_as_by_hand() -> None:
    # a place: 1 step of prefill, 100 of decode, 1 until the next is in; 8 of them; a step is 10 ms and a prompt's 10 ms
    found = engine(max_num_seqs=8).most
    arrivals = 8 / 102
    step = 0.01 + arrivals * 0.01
    assert found.name == "max_num_seqs"
    assert found.rate == pytest.approx(arrivals / step, rel=0.01)
    assert found.decoding == pytest.approx(8 * 100 / 102)


def test_kv_limits_sequences() -> None:
    # decoding sequences hold 101 to 200 tokens, and half a block; half of a prompt and what was put back are not used
    found = engine(kv_tokens=5_000)
    assert found.held == pytest.approx(150.5 + 8, rel=0.01)
    assert found.preempted == pytest.approx(1 - math.exp(-1))
    assert found.slots_of_kv == pytest.approx((5_000 - 16 - 50 * (2 - math.exp(-1))) / found.held, rel=0.01)
    assert found.most.name == "kv"


def test_little_s_law_holds_at_a_rate() -> None:
    found = engine()
    at = state(found, 10)
    # of each second, 10 prompts take 10 ms each; what is left is steps of 10 ms
    assert at.step == pytest.approx(0.01 / (1 - 10 * 0.01), rel=0.02)
    assert at.decoding == pytest.approx(10 * 100 * at.step, rel=0.02)
    assert at.at("ttft", 50) == pytest.approx(0.01 * 0.5 + 0.011 + 0.02, rel=0.25)


def test_shared_prefixes_cost_neither_prefill_nor_kv() -> None:
    plain, cached = engine(), Engine(engine().lane, engine().lengths, cache_hit=0.5)
    assert cached.prompt == 50
    assert cached.held == plain.held - 50
    assert cached.most.rate > plain.most.rate


def test_over_the_most_there_is_no_steady_state() -> None:
    found = engine()
    at = state(found, found.most.rate * 1.01)
    assert not at.stable
    assert at.at("ttft", 50) == math.inf


LLAMA = RooflineSteps(find_named("llama-3.1-8b"), find_gpu("a100"))


@pytest.mark.parametrize(
    ("prompt", "output", "lane"),
    [
        ("mean=700,p95=2000", "mean=250,p95=700", {"kv_tokens": 4e5}),
        ("300", "150", {"kv_tokens": 4e4, "max_num_batched_tokens": 1024}),
    ],
)
def test_formulas_agree_with_the_simulator(prompt: str, output: str, lane: dict[str, float]) -> None:
    found = Engine(Lane(steps=LLAMA, **lane), independent(prompt, output))  # type: ignore[arg-type]
    promise = Promise()
    rate = 0.6 * found.most.rate
    at, run = state(found, rate), capacity_check.run(found, rate, promise, count=2500)
    assert run.throughput == pytest.approx(rate, rel=0.05)
    assert at.at("ttft", 50) == pytest.approx(run.ttft_p50, rel=0.1)
    assert at.at("ttft", 95) == pytest.approx(run.ttft, rel=0.1)
    assert at.at("tpot", 50) == pytest.approx(run.tpot_p50, rel=0.1)
    over = capacity_check.run(found, 1.5 * found.most.rate, promise, count=2500)
    assert over.throughput == pytest.approx(found.most.rate, rel=0.1)


def test_the_rate_at_the_promise_is_simulated() -> None:
    found = Engine(Lane(steps=LLAMA, kv_tokens=4e5), independent("600", "200"))
    promise = Promise(ttft=0.5, tpot=0.03)
    first = sustain(found, promise)
    runs = capacity_check.sustain(found, promise, first.state)
    assert runs[-1].kept(promise)
    assert runs[-1].rate == pytest.approx(first.rate, rel=0.1)
    assert runs == capacity_check.sustain(found, promise, first.state)


def test_a_promise_below_the_hardware_is_refused_with_the_limit() -> None:
    with pytest.raises(PlanError, match=r"--slo-ttft 0.01 .* P95 of TTFT is 0.02 s .* give 0.02"):
        floor(engine(), Promise(ttft=0.01))
    with pytest.raises(PlanError, match=r"--slo-tpot 0.005 .* a token every 0.01 s"):
        floor(engine(), Promise(tpot=0.005))


@pytest.mark.parametrize(
    ("short", "lane"),
    [
        ("kv", {"kv_tokens": 3_000}),
        ("max_num_seqs", {"max_num_seqs": 4}),
    ],
)
def test_what_is_short_is_what_gives_the_most(short: str, lane: dict[str, float]) -> None:
    found = sustain(engine(**lane), Promise(ttft=2)).binding
    assert found.name == short
    assert found.gains[short] > 0.1
    assert found.gains[short] == max(found.gains.values())


def test_prefill_is_short_where_answers_are() -> None:
    assert sustain(engine("500", "3"), Promise(ttft=1)).binding.name == "prefill"


def test_decode_is_short_where_tokens_must_come_fast() -> None:
    found = sustain(engine("10", "400", max_num_seqs=1000), Promise(tpot=0.0108))
    assert (found.binding.name, found.binding.slo) == ("decode", "tpot")
