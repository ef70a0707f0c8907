from __future__ import annotations

import asyncio
import math
import time

import pytest
import uvloop

from forebay.clock import Clock, ManualClock, SystemClock


def test_the_system_clock_is_asyncios_time_base() -> None:
    clock: Clock = SystemClock()

    async def bracket() -> tuple[float, float, float]:
        return clock.now(), asyncio.get_running_loop().time(), clock.now()

    before, loop, after = asyncio.run(bracket())
    assert before <= loop <= after


def test_the_system_clock_is_uvloops_time_base() -> None:
    clock: Clock = SystemClock()
    before = clock.now()

    async def bracket() -> tuple[float, float]:
        return asyncio.get_running_loop().time(), clock.now()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        loop, after = runner.run(bracket())
    # uvloop's reading is of the start of the loop's turn, in whole milliseconds, and may be rounded to either side.
    assert before - 0.001 <= loop <= after + 0.001


def test_the_system_clock_reads_the_wall() -> None:
    before = time.time()
    wall = SystemClock().wall()
    assert before <= wall <= time.time()


def test_a_manual_clock_stands_until_told() -> None:
    clock = ManualClock()
    assert (clock.now(), clock.wall()) == (0.0, 1_700_000_000.0)
    clock.advance(1.5)
    clock.advance(0)
    assert (clock.now(), clock.wall()) == (1.5, 1_700_000_001.5)
    assert repr(clock) == "<ManualClock 1.500>"


def test_a_manual_clock_starts_where_told() -> None:
    clock: Clock = ManualClock(now=7.0, wall=0.0)
    assert (clock.now(), clock.wall()) == (7.0, 0.0)


@pytest.mark.parametrize("step", [-1e-9, -math.inf, math.nan])
def test_no_clock_runs_backward(step: float) -> None:
    clock = ManualClock(now=1.0, wall=2.0)
    with pytest.raises(ValueError, match="cannot be advanced by"):
        clock.advance(step)
    assert (clock.now(), clock.wall()) == (1.0, 2.0)
