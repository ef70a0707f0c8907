"""The driver: tokens to whoever asked, in real or scaled time; one follower's defect is its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.sim.driver import Driver, Follower
from forebay.sim.jobs import Job, QueueFull
from forebay.sim.rates import RateStepTime
from forebay.sim.settings import EngineSettings

ROOMY = EngineSettings(num_blocks=10_000)
NARROW = EngineSettings(num_blocks=10_000, max_num_seqs=1)


class Ear(Follower):
    """Notes what it is told."""

    def __init__(self, prompt: int, output: int, *, fails: bool = False, **more: Any) -> None:
        super().__init__(Job(prompt, output, **more))
        self.fails = fails
        self.broken = 0
        self.scheduled = 0
        self.tokens = 0
        self.times: list[tuple[float, float]] = []  # (said to be, seen)
        self.done = asyncio.Event()

    def on_scheduled(self, at: float) -> None:
        self.scheduled += 1

    def on_tokens(self, n: int, at: float) -> None:
        if self.fails:
            raise RuntimeError("a defect")
        self.tokens += min(n, self.job.output_tokens - self.tokens)
        self.times.append((at, time.monotonic()))
        if self.tokens == self.job.output_tokens:
            self.done.set()

    def on_broken(self) -> None:
        self.broken += 1


def run(
    story: Callable[[Driver], Coroutine[Any, Any, None]],
    settings: EngineSettings,
    steps: RateStepTime,
    *,
    speed: float = 1.0,
) -> None:
    async def whole() -> None:
        driver = Driver(settings, steps, asyncio.get_running_loop(), speed=speed)
        await asyncio.wait_for(story(driver), 20)
        driver.close()

    asyncio.run(whole())


def test_tokens_come_in_order_and_not_before_their_time() -> None:
    async def story(driver: Driver) -> None:
        ears = [Ear(1, 10) for _ in range(20)]
        for ear in ears:
            driver.submit(ear)
        await asyncio.gather(*(ear.done.wait() for ear in ears))
        for ear in ears:
            assert (ear.scheduled, ear.tokens) == (1, 10)
            said = [at for at, _ in ear.times]
            assert said == sorted(said) and all(seen >= at - 0.001 for at, seen in ear.times)
            assert said[-1] - said[0] == pytest.approx(9 / 200, rel=0.01)  # in the model's time, however slow we are
        assert (driver.engine.running, driver.engine.kv_usage) == (0, 0.0)

    run(story, ROOMY, RateStepTime(decode_rate=200.0, prefill_rate=1e6))


def test_at_a_hundred_times_the_speed_a_long_answer_takes_a_moment() -> None:
    async def story(driver: Driver) -> None:
        ear = Ear(100, 1001)
        began = time.monotonic()
        driver.submit(ear)
        await ear.done.wait()
        took = time.monotonic() - began
        assert 0.2 <= took < 10  # of 20 seconds
        assert ear.times[-1][0] - ear.times[0][0] == pytest.approx(0.2, rel=0.05) or driver.lag > 0

    run(story, ROOMY, RateStepTime(decode_rate=50.0), speed=100.0)


def test_an_engine_that_this_machine_cannot_keep_up_with_is_slower_and_does_not_hold_the_loop() -> None:
    async def story(driver: Driver) -> None:
        ear = Ear(1, 100_000)
        driver.submit(ear)
        turns = 0
        while not ear.done.is_set():
            turns += 1
            await asyncio.sleep(0)
        assert ear.tokens == 100_000
        assert driver.lag > 0
        assert turns > 3  # though by the model's clock all of it was overdue at once

    run(story, ROOMY, RateStepTime(decode_rate=1e9, prefill_rate=1e9))


def test_one_broken_follower_frees_its_slot_and_harms_no_other(caplog: pytest.LogCaptureFixture) -> None:
    async def story(driver: Driver) -> None:
        broken, sound = Ear(1, 1000, fails=True), Ear(1, 3)
        driver.submit(broken)
        driver.submit(sound)
        await sound.done.wait()
        assert broken.broken == 1
        assert driver.engine.running == 0

    run(story, NARROW, RateStepTime(decode_rate=1000.0))
    assert "RuntimeError: a defect" in caplog.text


def test_nothing_comes_after_a_cancel() -> None:
    async def story(driver: Driver) -> None:
        left, next_one = Ear(1, 1000), Ear(1, 3)
        driver.submit(left)
        driver.submit(next_one)
        driver.cancel(left)
        driver.cancel(left)
        await next_one.done.wait()
        assert (left.tokens, left.scheduled) == (0, 0)
        assert driver.engine.stats.cancelled == 1

    run(story, NARROW, RateStepTime(decode_rate=1000.0))


def test_a_full_queue_is_told_at_once_and_leaves_nothing() -> None:
    async def story(driver: Driver) -> None:
        driver.submit(Ear(1, 5))
        with pytest.raises(QueueFull, match="max_num_queued_reqs"):
            driver.submit(Ear(1, 5))
        assert driver.engine.running + driver.engine.waiting == 1

    run(story, EngineSettings(num_blocks=10, max_num_queued_reqs=1), RateStepTime())


@pytest.mark.parametrize("speed", [0.0, -1.0, float("inf"), float("nan")])
def test_a_speed_that_is_none_is_refused(speed: float) -> None:
    async def story(driver: Driver) -> None:
        with pytest.raises(ValueError, match="speed"):
            Driver(ROOMY, RateStepTime(), asyncio.get_running_loop(), speed=speed)

    run(story, ROOMY, RateStepTime())


loads = st.lists(
    st.tuples(
        st.integers(1, 60),  # prompt
        st.integers(1, 30),  # output
        st.integers(0, 2),  # priority
        st.booleans(),  # of the shared content
        st.sampled_from([None, None, None, 0.0, 0.003]),  # leaves after so long
    ),
    min_size=1,
    max_size=25,
)
engines = st.builds(
    EngineSettings,
    num_blocks=st.integers(24, 60),
    block_size=st.just(4),
    max_num_seqs=st.sampled_from([2, 8]),
    max_num_batched_tokens=st.sampled_from([32, 256]),
    policy=st.sampled_from(["fcfs", "priority"]),
    async_scheduling=st.booleans(),
    preemption=st.sampled_from(["recompute", "swap"]),
    swap_blocks=st.just(12),
    speculative_tokens=st.sampled_from([0, 3]),
    acceptance=st.just(0.6),
)


@given(engines, loads)
def test_whoever_stays_gets_every_token_whatever_is_preempted(
    settings: EngineSettings, load: list[tuple[int, int, int, bool, float | None]]
) -> None:
    async def story(driver: Driver) -> None:
        ears = []
        for prompt, output, priority, shared, leaves in load:
            prefix = tuple((f"block {i}", 4) for i in range(prompt // 4)) if shared else ()
            ear = Ear(prompt, output, priority=priority, prefix=prefix)
            driver.submit(ear)
            if leaves is not None:
                asyncio.get_running_loop().call_later(leaves, driver.cancel, ear)
            else:
                ears.append(ear)
        await asyncio.gather(*(ear.done.wait() for ear in ears))
        for _ in range(2000):  # those that left go at the end of a step
            if not driver.engine.running + driver.engine.waiting:
                break
            await asyncio.sleep(0.001)
        assert all(ear.tokens == ear.job.output_tokens for ear in ears)
        assert driver.engine.kv_usage == 0.0

    run(story, settings, RateStepTime(prefill_rate=100_000.0, decode_rate=5_000.0))
