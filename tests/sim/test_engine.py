"""The engine model: by hand on small cases, and by properties on any."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from forebay.hardware.steptime import Chunk
from forebay.sim.engine import EngineModel
from forebay.sim.jobs import Job, QueueFull, State, TooLong
from forebay.sim.settings import EngineSettings


class Linear:
    """10 ms a step, 1 ms a prompt token, 1 ms a sequence, 1 µs a token of context."""

    warnings: Sequence[str] = ()

    def decode(self, n: int, context: int, longest: int) -> float:
        assert n > 0 and n <= context and longest <= context
        return 0.010 + 0.001 * n + 1e-6 * context

    def mixed(self, chunks: Sequence[Chunk], n: int, context: int, longest: int) -> float:
        assert chunks and all(c.tokens > 0 and c.context >= 0 for c in chunks)
        return 0.010 + 0.001 * (n + sum(c.tokens for c in chunks)) + 1e-6 * context


class Steps:
    """Every step takes a second."""

    warnings: Sequence[str] = ()

    def decode(self, n: int, context: int, longest: int) -> float:
        return 1.0

    def mixed(self, chunks: Sequence[Chunk], n: int, context: int, longest: int) -> float:
        return 1.0


class Log:
    def __init__(self) -> None:
        self.lines: list[tuple[float, str, int]] = []
        self.tokens = 0
        self.gaps = 0.0

    def on_scheduled(self, job: Job, at: float) -> None:
        self.lines.append((at, "scheduled", job.number))

    def on_first_token(self, job: Job, at: float) -> None:
        self.tokens += 1
        self.lines.append((at, "first", job.number))

    def on_tokens(self, n: int, steps: int, first: float, last: float, jobs: Sequence[Job] | None, at: float) -> None:
        assert n > 0 and steps > 0 and first > 0 and last > 0
        self.tokens += n * steps
        self.gaps += n * steps * (first + last) / 2

    def on_preempt(self, job: Job, at: float) -> None:
        self.lines.append((at, "preempted", job.number))

    def on_finish(self, job: Job, at: float) -> None:
        self.lines.append((at, "finished", job.number))

    def told(self, number: int) -> list[str]:
        return [f"{what} {at:g}" for at, what, who in self.lines if who == number]


BASE = EngineSettings(num_blocks=1001, block_size=4, max_num_seqs=4, max_num_batched_tokens=8)


def engine(steps: Any = None, **kw: Any) -> tuple[EngineModel, Log]:
    log = Log()
    limits = {k: kw.pop(k) for k in ("max_run", "track") if k in kw}
    return EngineModel(replace(BASE, **kw), steps or Steps(), log, **limits), log


def finish(model: EngineModel) -> None:
    while (due := model.due()) < math.inf:
        model.advance(due)


# --- by hand ---------------------------------------------------------------------------------------------------------


def test_a_job_alone_gets_its_first_token_with_its_last_chunk() -> None:
    model, log = engine()
    model.submit(Job(10, 3), 0.0)  # chunks of 8 and 2, then two decode steps
    finish(model)
    assert log.told(0) == ["scheduled 0", "first 2", "finished 4"]
    assert model.stats.steps == 4
    assert model.stats.prefill_tokens == 10
    assert log.tokens == 3


def test_with_asynchronous_scheduling_an_arrival_runs_in_the_second_step_from_then() -> None:
    model, log = engine()
    model.submit(Job(4, 10), 0.0)
    model.submit(Job(4, 10), 1.5)  # step 2 runs, and step 3 is scheduled
    finish(model)
    assert log.told(1)[:2] == ["scheduled 2", "first 4"]


def test_without_it_an_arrival_runs_in_the_next_step() -> None:
    model, log = engine(async_scheduling=False)
    model.submit(Job(4, 10), 0.0)
    model.submit(Job(4, 10), 1.5)
    finish(model)
    assert log.told(1)[:2] == ["scheduled 2", "first 3"]


def test_a_place_that_becomes_free_is_filled_two_steps_on() -> None:
    model, log = engine(max_num_seqs=1)
    model.submit(Job(4, 2), 0.0)
    model.submit(Job(4, 2), 0.5)
    finish(model)
    assert log.told(0) == ["scheduled 0", "first 1", "finished 2"]
    assert log.told(1) == ["scheduled 2", "first 3", "finished 4"]
    model, log = engine(max_num_seqs=2)
    for at in (0.0, 0.1, 0.2):
        model.submit(Job(4, 3 if at else 6), at)
    finish(model)
    assert log.told(1) == ["scheduled 1", "first 3", "finished 5"]
    assert log.told(2)[:2] == ["scheduled 5", "first 7"]


def test_the_budget_goes_to_running_jobs_first_and_the_rest_is_filled_with_chunks() -> None:
    seen: list[tuple[list[int], int]] = []

    class Seeing(Steps):
        def mixed(self, chunks: Sequence[Chunk], n: int, context: int, longest: int) -> float:
            seen.append(([c.tokens for c in chunks], n))
            return 1.0

    model, _ = engine(Seeing(), async_scheduling=False)
    model.submit(Job(4, 10), 0.0)
    model.submit(Job(12, 1), 0.5)
    model.submit(Job(3, 1), 0.6)
    finish(model)
    assert seen == [([4], 0), ([7], 1), ([5, 2], 1), ([1], 1)]


def test_a_long_prompt_takes_no_more_than_its_threshold_beside_others() -> None:
    model, log = engine(async_scheduling=False, long_prefill_token_threshold=2)
    model.submit(Job(8, 1), 0.0)  # alone: all at once
    finish(model)
    assert log.told(0)[-1] == "finished 1"
    model.submit(Job(1, 9), 10.0)
    model.submit(Job(8, 1), 10.5)
    finish(model)
    assert log.told(2) == ["scheduled 11", "first 15", "finished 15"]


def test_the_first_that_does_not_fit_stops_admission() -> None:
    model, log = engine(num_blocks=6, async_scheduling=False)  # 5 blocks of 4 tokens
    model.submit(Job(8, 4), 0.0)  # 2 blocks, then a third
    model.submit(Job(14, 1), 0.1)  # 4 blocks
    model.submit(Job(2, 1), 0.2)  # would fit
    finish(model)
    assert log.told(0)[-1] == "finished 4"
    assert log.told(1)[0] == "scheduled 4"
    assert log.told(2)[0] == "scheduled 5"  # behind it: the step at 4 had room for 8 tokens only


def test_only_the_first_chunk_must_fit_where_whole_prompts_are_not_reserved() -> None:
    model, log = engine(num_blocks=6, async_scheduling=False, reserve_full_isl=False)
    model.submit(Job(8, 4), 0.0)
    model.submit(Job(14, 1), 0.1)
    finish(model)
    assert log.told(1)[0] == "scheduled 1"


@pytest.mark.parametrize(("watermark", "admitted"), [(0.0, 1), (0.3, 1), (0.5, 20)])
def test_the_watermark_stays_free_when_jobs_are_admitted(watermark: float, admitted: int) -> None:
    model, log = engine(num_blocks=13, watermark=watermark, async_scheduling=False)
    model.submit(Job(4, 20), 0.0)
    model.submit(Job(20, 1), 0.5)  # 5 blocks of the 10 that are free from the second step on
    finish(model)
    assert log.told(1)[0] == f"scheduled {admitted}"


def test_the_last_running_job_is_preempted_and_finds_its_blocks_again() -> None:
    model, log = engine(num_blocks=7, async_scheduling=False)  # 6 blocks
    model.submit(Job(8, 6), 0.0)
    model.submit(Job(8, 9), 0.5)
    finish(model)
    assert log.told(0)[-1] == "finished 6"
    assert log.told(1) == ["scheduled 1", "first 3", "preempted 5", "finished 12"]
    assert model.stats.preemptions == 1
    assert model.stats.prefill_tokens < 8 + 8 + 11, "what it had computed was found again"
    assert log.tokens == 15


def test_the_lowest_priority_is_preempted_where_priorities_decide() -> None:
    model, log = engine(num_blocks=7, async_scheduling=False, policy="priority")
    model.submit(Job(8, 9, priority=5), 0.0)
    model.submit(Job(8, 9, priority=1), 0.5)
    finish(model)
    assert any(line.startswith("preempted") for line in log.told(0))
    assert not any(line.startswith("preempted") for line in log.told(1))


def test_priorities_order_the_line_and_lower_goes_first() -> None:
    model, log = engine(max_num_seqs=1, policy="priority")
    model.submit(Job(4, 3, priority=0), 0.0)
    for at, priority in ((0.1, 7), (0.2, -1), (0.3, 7)):
        model.submit(Job(4, 1, priority=priority), at)
    finish(model)
    order = [who for _, what, who in log.lines if what == "scheduled"]
    assert order == [0, 2, 1, 3]


def test_swapping_keeps_what_was_computed_and_takes_its_time() -> None:
    plain, _ = engine(num_blocks=7, async_scheduling=False)
    swapping, log = engine(
        num_blocks=7, async_scheduling=False, preemption="swap", swap_blocks=10, swap_seconds_per_block=0.25
    )
    for model in (plain, swapping):
        model.submit(Job(8, 6), 0.0)
        model.submit(Job(8, 9), 0.5)
        finish(model)
    assert swapping.stats.swapped_out == swapping.stats.swapped_in == 3
    assert swapping.stats.prefill_tokens == 16
    assert log.tokens == 15
    assert swapping.now == pytest.approx(plain.now + 2 * 3 * 0.25 - 1, abs=1.01)


def test_what_does_not_fit_into_swap_space_is_recomputed() -> None:
    model, _ = engine(num_blocks=7, async_scheduling=False, preemption="swap", swap_blocks=2)
    model.submit(Job(8, 6), 0.0)
    model.submit(Job(8, 9), 0.5)
    finish(model)
    assert model.stats.swapped_out == 0
    assert model.stats.preemptions == 1


def test_a_prefix_seen_before_needs_no_prefill() -> None:
    model, _ = engine()
    model.submit(Job(8, 1, prefix=(("system", 4),)), 0.0)
    finish(model)
    job = Job(8, 1, prefix=(("system", 4),))
    model.submit(job, 10.0)
    finish(model)
    assert job.cached_tokens == 4
    assert (model.stats.prefix_queries, model.stats.prefix_hits) == (16, 4)
    assert model.stats.prefill_tokens == 12


def test_a_conversation_finds_its_former_turns() -> None:
    model, _ = engine()
    model.submit(Job(8, 4, keeps="talk"), 0.0)
    finish(model)
    job = Job(20, 4, prefix=(("talk", 12),), keeps="talk")
    model.submit(job, 10.0)
    finish(model)
    assert job.cached_tokens == 8, "of 12 tokens 11 have KV, of which two blocks are full"


def test_limits_of_the_queue() -> None:
    model, _ = engine(max_num_seqs=1, max_num_queued_reqs=2)
    model.submit(Job(4, 9), 0.0)
    model.submit(Job(4, 9), 0.1)
    with pytest.raises(QueueFull, match=r"2 requests are waiting or running \(max_num_queued_reqs\)"):
        model.submit(Job(4, 9), 0.2)
    assert model.stats.refused == 1
    model, _ = engine(max_num_seqs=1, max_num_queued_tokens=10)
    model.submit(Job(4, 9), 0.0)
    model.submit(Job(4, 9), 0.1)
    model.submit(Job(6, 9), 0.2)
    with pytest.raises(QueueFull, match=r"10 prompt tokens wait for prefill \(max_num_queued_tokens\)"):
        model.submit(Job(1, 9), 0.3)
    finish(model)
    model.submit(Job(50, 9), model.now)  # one over the limit alone is taken


def test_what_can_never_fit_is_refused() -> None:
    model, _ = engine(max_model_len=20)
    with pytest.raises(TooLong, match=r"15 prompt and 6 output tokens are more than 20, the model's context"):
        model.submit(Job(15, 6), 0.0)
    model, _ = engine(num_blocks=4)
    with pytest.raises(TooLong, match=r"9 prompt and 4 output tokens are more than 12, the engine's KV cache"):
        model.submit(Job(9, 4), 0.0)
    model.submit(Job(9, 3), 0.0)
    finish(model)
    assert model.stats.finished == 1


def test_what_never_fits_beside_the_watermark_is_refused() -> None:
    model, _ = engine(num_blocks=11, watermark=0.5)  # 10 blocks, of which 5 stay free
    with pytest.raises(TooLong, match=r"16 prompt and 5 output tokens are more than 20, the engine's KV cache"):
        model.submit(Job(16, 5), 0.0)
    model.submit(Job(16, 4), 0.0)
    finish(model)
    assert model.stats.finished == 1


@pytest.mark.parametrize("batching", ["static", "dynamic"])
def test_a_batch_ends_though_its_members_are_held_and_what_is_held_is_released(batching: str) -> None:
    model, log = engine(batching=batching, batch_wait=0.0, role="prefill", max_num_seqs=2, lease_seconds=50.0)
    jobs = [Job(4, 9) for _ in range(4)]
    for job in jobs:
        model.submit(job, 0.0)
    model.advance(10.0)
    assert [job.state for job in jobs] == [State.HELD] * 4
    model.release(jobs[0], 10.0)
    assert model.kv_usage > 0
    finish(model)
    assert model.kv_usage == 0
    assert model.stats.leases_expired == 3
    assert sum(what == "finished" for _, what, _ in log.lines) == 4


def test_static_batches_wait_until_full_and_end_together() -> None:
    model, log = engine(batching="static", batch_wait=100.0, max_num_seqs=2, async_scheduling=False)
    model.submit(Job(4, 2), 0.0)
    model.advance(3.0)
    assert model.running == 0
    model.submit(Job(4, 6), 3.0)
    model.submit(Job(4, 1), 3.5)
    model.submit(Job(4, 1), 3.6)
    finish(model)
    assert log.told(0) == ["scheduled 3", "first 4", "finished 5"]
    assert log.told(1)[-1] == "finished 9"
    assert log.told(2)[0] == "scheduled 9"
    assert model._scheduler.pool.used == 0
    assert log.tokens == model.stats.decode_tokens + 4 == 10


def test_dynamic_batches_wait_no_longer_than_they_may() -> None:
    model, log = engine(batching="dynamic", batch_wait=2.0)
    model.submit(Job(4, 2), 1.0)
    finish(model)
    assert log.told(0)[0] == "scheduled 3"


def test_fixed_batches_reserve_room_for_the_answer() -> None:
    model, _ = engine(batching="dynamic", batch_wait=0.0)
    model.submit(Job(4, 36), 0.0)
    assert model.kv_usage == pytest.approx(10 / 1000)
    assert model.kv_wasted == pytest.approx(0.875)


def test_a_prefill_engine_holds_the_blocks_until_they_are_fetched_or_the_lease_ends() -> None:
    model, log = engine(role="prefill", lease_seconds=30.0)
    fetched, left = Job(8, 100), Job(8, 100)
    model.submit(fetched, 0.0)
    model.submit(left, 0.0)
    model.advance(10.0)
    assert [line for line in log.told(0) if "finished" in line] == ["finished 1"]
    assert model.kv_usage == pytest.approx(4 / 1000)
    model.release(fetched, 10.0)
    assert model.kv_usage == pytest.approx(2 / 1000)
    finish(model)
    assert model.kv_usage == 0
    assert model.stats.leases_expired == 1


def test_a_decode_engine_waits_for_the_transfer_and_computes_one_token_of_the_prompt() -> None:
    model, log = engine(role="decode", transfer_latency=0.5, transfer_seconds_per_token=0.25)
    model.submit(Job(8, 3, remote=True), 0.0)
    finish(model)
    assert log.told(0) == ["scheduled 2.5", "first 3.5", "finished 5.5"]
    assert model.stats.prefill_tokens == 1


def test_accepted_drafts_come_several_a_step() -> None:
    model, log = engine(speculative_tokens=1, acceptance=1.0)
    model.submit(Job(4, 9), 0.0)
    finish(model)
    assert log.told(0) == ["scheduled 0", "first 1", "finished 5"]
    assert model.stats.decode_tokens == 8


def test_a_step_verifies_its_drafts_and_pays_for_drafting() -> None:
    model, _ = engine(Linear(), speculative_tokens=1, acceptance=0.0, draft_seconds=0.5)
    model.submit(Job(4, 2), 0.0)
    finish(model)
    assert model.now == pytest.approx(0.014 + 0.012 + 4e-6 + 0.5)


def test_time_does_not_run_backward() -> None:
    model, _ = engine()
    model.submit(Job(4, 2), 5.0)
    with pytest.raises(ValueError, match=r"time ran backward: 4\.0 after 5\.0"):
        model.advance(4.0)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("num_blocks", 0, "num_blocks must be at least 1"),
        ("max_num_batched_tokens", 3, "must not be less than max_num_seqs"),
        ("watermark", 1.0, "watermark must be at least 0 and less than 1"),
        ("acceptance", 1.5, "acceptance must be between 0 and 1"),
        ("max_num_queued_reqs", 0, "max_num_queued_reqs must be at least 1"),
        ("transfer_latency", math.nan, "transfer_latency must be a number of seconds"),
        ("batch_wait", -1.0, "batch_wait must be a number of seconds"),
        ("speculative_tokens", 2, r"must be at least max_num_seqs × \(1 \+ speculative_tokens\) = 12"),
        ("swap_blocks", -1, "swap_blocks must be at least 0"),
    ],
)
def test_settings_no_engine_could_have(field: str, value: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        replace(BASE, **{field: value})


# --- by properties ---------------------------------------------------------------------------------------------------

JOB = st.tuples(
    st.floats(0, 0.2),  # after the one before
    st.integers(1, 60),
    st.integers(1, 40),
    st.integers(0, 3),  # priority, and which prefix
    st.one_of(st.none(), st.floats(0, 0.5)),  # when the client leaves, after its arrival
)
SETTINGS = st.fixed_dictionaries(
    {
        "num_blocks": st.sampled_from([28, 40, 80, 1000]),
        "max_num_seqs": st.integers(1, 8),
        "max_num_batched_tokens": st.sampled_from([16, 32, 64]),
        "long_prefill_token_threshold": st.sampled_from([0, 0, 7]),
        "policy": st.sampled_from(["fcfs", "priority"]),
        "async_scheduling": st.booleans(),
        "enable_prefix_caching": st.booleans(),
        "reserve_full_isl": st.booleans(),
        "watermark": st.sampled_from([0.0, 0.1]),
        "preemption": st.sampled_from(["recompute", "swap"]),
        "swap_blocks": st.sampled_from([0, 20]),
        "swap_seconds_per_block": st.just(0.001),
        "batching": st.sampled_from(["continuous", "continuous", "continuous", "static", "dynamic"]),
        "speculative_tokens": st.sampled_from([0, 0, 1]),
        "acceptance": st.just(0.6),
    }
)


def run(
    jobs: list[tuple[float, int, int, int, float | None]], kw: dict[str, Any], *, cancels: bool, max_run: int = 512
) -> tuple[EngineModel, Log, list[Job]]:
    model, log = engine(Linear(), max_run=max_run, **kw)
    made = []
    calls: list[tuple[float, int, Job]] = []
    at = 0.0
    for gap, prompt, output, kind, leaves in jobs:
        at += gap
        prefix = ((kind, min(prompt, 10 * kind)),) if kind else ()
        job = Job(prompt, output, priority=kind, prefix=prefix)
        made.append(job)
        calls.append((at, len(calls), job))
        if cancels and leaves is not None:
            calls.append((at + leaves, len(calls), job))
    for at, _, job in sorted(calls, key=lambda c: c[:2]):
        if job.state is State.NEW:
            model.submit(job, at)
        else:
            model.cancel(job, at)
    finish(model)
    return model, log, made


@examples(max_examples=300, deadline=None)
@given(st.lists(JOB, min_size=1, max_size=25), SETTINGS)
def test_all_that_goes_in_comes_out_and_nothing_is_left_behind(
    jobs: list[tuple[float, int, int, int, float | None]], kw: dict[str, Any]
) -> None:
    model, log, made = run(jobs, kw, cancels=False)
    assert all(job.state is State.DONE for job in made)
    if not kw["speculative_tokens"]:
        assert log.tokens == sum(job.output_tokens for job in made)
    assert model.stats.finished == len(made)
    assert (model.running, model.waiting, model.kv_usage) == (0, 0, 0.0)
    assert model._scheduler.prefill_backlog == 0
    times = [at for at, _, _ in log.lines]
    assert times == sorted(times)
    first = {who: at for at, what, who in log.lines if what == "first"}
    last = {who: at for at, what, who in log.lines if what == "finished"}
    assert all(first[j.number] <= last[j.number] and j.scheduled_at <= first[j.number] for j in made)
    if kw["policy"] == "fcfs":
        begun = [job.scheduled_at for job in made]
        assert begun == sorted(begun), "nobody overtakes"


@examples(max_examples=300, deadline=None)
@given(st.lists(JOB, min_size=1, max_size=25), SETTINGS)
def test_a_run_of_steps_is_what_its_steps_are(
    jobs: list[tuple[float, int, int, int, float | None]], kw: dict[str, Any]
) -> None:
    one, one_log, one_jobs = run(jobs, kw, cancels=True, max_run=1)
    many, many_log, many_jobs = run(jobs, kw, cancels=True)
    assert [line[1:] for line in one_log.lines] == [line[1:] for line in many_log.lines]
    assert [a for a, _, _ in one_log.lines] == pytest.approx([a for a, _, _ in many_log.lines], abs=1e-9)
    assert one_log.tokens == many_log.tokens
    assert one_log.gaps == pytest.approx(many_log.gaps, abs=1e-6)
    assert replace(one.stats, busy_seconds=0.0) == replace(many.stats, busy_seconds=0.0)
    assert [j.generated for j in one_jobs] == [j.generated for j in many_jobs]


@examples(max_examples=300, deadline=None)
@given(st.lists(JOB, min_size=1, max_size=25), SETTINGS)
def test_a_client_that_leaves_at_any_moment_leaves_nothing_behind(
    jobs: list[tuple[float, int, int, int, float | None]], kw: dict[str, Any]
) -> None:
    model, log, made = run(jobs, kw, cancels=True)
    assert {job.state for job in made} <= {State.DONE, State.CANCELLED}
    assert model.stats.finished + model.stats.cancelled == len(made)
    assert (model.running, model.waiting, model.kv_usage) == (0, 0, 0.0)
    assert model._scheduler.prefill_backlog == 0
    assert model._scheduler.n == model._scheduler._sum_base == 0
    assert not any(model._scheduler._need)
    for job in made:
        assert 0 <= job.generated <= job.output_tokens
        if job.state is State.CANCELLED:
            assert not any(line.startswith("finished") for line in log.told(job.number))


@examples(max_examples=100, deadline=None)
@given(st.lists(JOB, min_size=1, max_size=25), SETTINGS)
def test_equal_inputs_give_equal_outputs(
    jobs: list[tuple[float, int, int, int, float | None]], kw: dict[str, Any]
) -> None:
    assert run(jobs, kw, cancels=True)[1].lines == run(jobs, kw, cancels=True)[1].lines


@pytest.mark.parametrize(("chunked", "first"), [(True, [1.0, 2.0, 3.0, 3.0]), (False, [1.0, 2.0, 3.0, 4.0])])
def test_without_chunked_prefill_a_prompt_waits_for_a_step_that_holds_all_of_it(
    chunked: bool, first: list[float]
) -> None:
    settings = EngineSettings(
        num_blocks=1000, max_num_batched_tokens=100, max_model_len=100, max_num_seqs=8, async_scheduling=False,
        enable_chunked_prefill=chunked,
    )  # fmt: skip
    log = Log()
    engine = EngineModel(settings, Steps(), log)
    for _ in range(4):
        engine.submit(Job(60, 2, arrival=0.0), 0.0)
    while engine.due() < math.inf:
        engine.advance(engine.due())
    assert [at for at, what, _ in log.lines if what == "first"] == first


def test_without_chunked_prefill_a_step_must_hold_the_longest_prompt() -> None:
    with pytest.raises(ValueError, match="must not be less than max_model_len"):
        EngineSettings(num_blocks=10, max_num_batched_tokens=2048, max_model_len=4096, enable_chunked_prefill=False)
