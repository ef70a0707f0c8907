"""The benchmark of placement: its yardsticks by hand, and of each rival the rule that one decision shows."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import numpy as np
import pytest
from benchmarks.placement.cells import present
from benchmarks.placement.pooled import hits
from benchmarks.placement.rivals.aibrix import PrefixCache
from benchmarks.placement.rivals.base import Rival, Sent
from benchmarks.placement.rivals.dynamo import KvCost
from benchmarks.placement.rivals.llmd import Scorers
from benchmarks.placement.rivals.sglang import CacheAware
from benchmarks.placement.rivals.vllm import PrefixAware
from benchmarks.placement.scenarios import Change, Scenario
from benchmarks.placement.work import Prefill, Work, balance

from forebay.hardware.steptime import Chunk
from forebay.sim.cluster import Cluster, Policy
from forebay.sim.engine import EngineModel
from forebay.sim.results import Requests
from forebay.sim.settings import EngineSettings
from forebay.sim.workload import Ask

SETTINGS = EngineSettings(num_blocks=1_001, max_num_seqs=4, max_num_batched_tokens=1_000, max_model_len=8_192)


class Steps:
    """10 ms a step, and 1 ms a prompt token."""

    warnings: Sequence[str] = ()

    def decode(self, n: int, context: int, longest: int) -> float:
        return 0.01

    def mixed(self, chunks: Sequence[Chunk], n: int, context: int, longest: int) -> float:
        return 0.01 + 0.001 * sum(chunk.tokens for chunk in chunks)


def ask(at: float, tokens: int, *keys: int) -> Ask:
    """A prompt that begins with these pieces of 512 tokens."""
    return Ask(at, tokens, 10, tuple((key, 512) for key in keys))


def place(policy: Policy, *asks: Ask) -> list[int]:
    return [policy.on_arrival(one, row, one.arrival) for row, one in enumerate(asks)]


def test_a_pooled_cache_forgets_what_was_used_least_recently_and_ends_before_begins() -> None:
    both, other = ask(0, 1_024, 1, 2), ask(1, 1_024, 3, 4)
    assert hits([both, other, both], inf) == {"tokens": 1_024 / 3_072, "blocks": 2 / 6}
    assert hits([both, other, both], 1_536)["tokens"] == 512 / 3_072  # piece 2 had to go, piece 1 is there
    assert hits([both, other, both], 1_024)["tokens"] == 0


def test_what_is_a_prompts_own_takes_room_in_the_pooled_cache() -> None:
    short, long = ask(0, 512, 1), ask(1, 1_024)
    assert hits([short, long, short], 1_536)["blocks"] == 1 / 2
    assert hits([short, long, short], 1_535)["blocks"] == 0


def test_work_is_prefill_until_the_first_token_and_blocks_after_it() -> None:
    requests = Requests()
    requests.arrived(Ask(0.0, 1_600, 160))
    requests.engine[0], requests.scheduled[0], requests.first[0], requests.end[0] = 1, 5.0, 15.0, 25.0
    requests.cached[0] = 600
    work = Work(requests, 2, Prefill(Steps(), SETTINGS, 2_000), SETTINGS, [0.0, 10.0, 20.0, 30.0])
    assert work.tokens == pytest.approx(np.array([[0, 500], [0, 500], [0, 0]]))
    assert work.prefill.sum() == pytest.approx(1_000 * 1.01 / 1_000)  # a full step takes 1.01 s
    blocks = np.array([0, (100 + 105) / 2 * 5, (105 + 110) / 2 * 5])  # 1,600 tokens grow to 1,760
    assert work.decode[:, 1] == pytest.approx(blocks / 1_001)
    assert work.all[:, 1] == pytest.approx(work.prefill[:, 1] + work.decode[:, 1])


def test_balance_counts_engines_where_they_are_there_all_through_a_window() -> None:
    scenario = Scenario(
        name="x", title="", kind="zipf", engines=3, changes=(Change(0.0, 2, False), Change(15.0, 2, True))
    )
    here = present(scenario, [0.0, 10.0, 20.0, 30.0])
    assert here.tolist() == [[True, True, False], [True, True, False], [True, True, True]]
    found = balance(np.array([[1.0, 3.0, 9.0], [2.0, 2.0, 0.0], [1.0, 1.0, 4.0]]), here)
    assert (found["windows"], found["max"]) == (3, 2.0)
    assert found["mean"] == pytest.approx((1.5 + 1.0 + 2.0) / 3)
    assert found["whole"] == pytest.approx(6 / 5)


def test_an_engine_tells_what_its_cache_holds_as_a_job_would_find_it() -> None:
    class First(Rival):
        def watch(self, model: EngineModel) -> None:
            self.model = model

        def choose(self, ask: Ask, row: int, now: float) -> int:
            seen.append(self.model.cached(ask.prefix))
            return 0

    seen: list[int] = []
    policy = First(1)

    def make(to: object, i: int) -> EngineModel:
        model = EngineModel(SETTINGS, Steps(), to, name=i)  # type: ignore[arg-type]
        policy.watch(model)
        return model

    cluster = Cluster(make, 1, policy, max_model_len=8_192)
    cluster.run([ask(0, 1_100, 1, 2), ask(10, 1_100, 1, 2), ask(20, 1_100, 1, 3), ask(30, 1_100, 4)])
    assert seen == [0, 1_024, 512, 0]
    assert seen == list(cluster.record.requests.cached)


def test_a_table_of_what_was_sent_forgets_per_engine() -> None:
    sent = Sent(2, most=1_024)
    sent.note(0, ask(0, 0, 1, 2).prefix)
    sent.note(1, ask(0, 0, 1).prefix)
    assert sent.match(ask(0, 0, 1, 2).prefix, [0, 1]) == {0: 1_024, 1: 512}
    sent.note(0, ask(0, 0, 3).prefix)
    assert sent.match(ask(0, 0, 1, 2).prefix, [0, 1]) == {0: 512, 1: 512}
    sent.forget(0)
    assert sent.match(ask(0, 0, 1, 2).prefix, [0, 1]) == {1: 512}


def test_sglang_goes_where_over_the_threshold_matches_until_loads_differ() -> None:
    same = [ask(i, 1_000, 1) for i in range(66)]
    assert place(CacheAware(2), *same) == [0] * 65 + [1]  # 65 more than the other's none are over 64, and over 1.5 ×
    assert place(CacheAware(2), ask(0, 2_000, 1), ask(1, 2_000, 1)) == [0, 1]  # 512 of 2,000 are not over 0.3


def test_vllm_stays_with_who_had_the_first_block() -> None:
    chosen = place(PrefixAware(4), *[ask(i, 1_024, 1, i + 2) for i in range(20)])
    assert len(set(chosen)) == 1


def test_aibrix_leaves_a_match_that_is_a_deviation_over_the_mean() -> None:
    asks = [ask(i, 1_024, 1, 2) for i in range(2)]
    first, second = place(PrefixCache(4), *asks)
    assert second != first  # counts 1, 0, 0, 0: 1 is over 0.25 + 0.5
    first, second = place(PrefixCache(2), *asks)
    assert second == first  # counts 1, 0: 1 is under 0.5 + 0.71


def test_dynamo_weighs_what_is_cached_against_what_is_active() -> None:
    class Model:
        def __init__(self, cached: int) -> None:
            self._cached = cached

        def cached(self, prefix: object) -> int:
            return self._cached

    policy = KvCost(2, block=16)
    for tokens in (0, 512):
        policy.watch(Model(tokens))  # type: ignore[arg-type]
    # engine 1: 512 of 1,024 to compute and 1,024 active; then as much again, while engine 0 has nothing
    assert place(policy, ask(0, 1_024, 1, 2), ask(1, 1_024, 3, 4)) == [1, 0]
    policy.on_first_token(0, 1, 2.0)
    policy.on_end(0, 1, 2.0, 10)
    assert policy.on_arrival(ask(3, 1_024, 5, 6), 2, 3.0) == 1


def test_llm_d_adds_up_queue_kv_and_prefix() -> None:
    class Look:
        def __init__(self, waiting: int, kv_usage: float) -> None:
            self.waiting, self.kv_usage = waiting, kv_usage

    policy = Scorers(2, 100_000)
    policy.on_report(0, Look(0, 0.5), {}, 0.0)  # type: ignore[arg-type]
    policy.on_report(1, Look(0, 0.0), {}, 0.0)  # type: ignore[arg-type]
    assert place(policy, ask(0, 1_024, 1, 2)) == [1]
    policy.on_report(1, Look(3, 0.9), {}, 1.0)  # type: ignore[arg-type]
    # engine 0: 2 + 1 + 0; engine 1: 0 + 0.2 + 3
    assert place(policy, ask(1, 1_024, 1, 2)) == [1]
    assert place(policy, ask(1, 2_048, 1, 2, 7, 8)) == [0]
