"""One clock for all time-outs of a loop, which does not take its own standing still for the others' silence."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from forebay.wire.ticker import PERIOD, Ticker


class Loop(asyncio.AbstractEventLoop):
    """Its time is told; what shall be called is kept."""

    def __init__(self) -> None:
        self.at = 100.0
        self.due = 0.0
        self.tick: Callable[..., object] | None = None

    def time(self) -> float:
        return self.at

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any, context: Any = None) -> Any:
        self.due, self.tick = self.at + delay, callback
        return asyncio.TimerHandle(self.due, callback, (), self)

    def get_debug(self) -> bool:
        return False

    def run(self, late: float = 0.0) -> None:
        assert self.tick is not None
        self.at = self.due + late
        self.tick()


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def looks(loop: Loop) -> list[float]:
    """Times at which deadlines were looked at."""
    seen: list[float] = []
    ticker = Ticker(loop)
    ticker.add(seen.append)
    ticker.start()
    return seen


def test_every_period(loop: Loop, looks: list[float]) -> None:
    for _ in range(3):
        loop.run(late=0.1)
    assert looks == pytest.approx([100 + n * PERIOD + n * 0.1 for n in (1, 2, 3)])


def test_after_it_stood_still_what_waits_is_read_first(loop: Loop, looks: list[float]) -> None:
    loop.run()
    loop.run(late=3.0)
    assert looks == [100 + PERIOD]
    loop.run()
    assert looks == [100 + PERIOD, 103 + 3 * PERIOD]


def test_a_loop_that_is_always_late_has_time_outs_too(loop: Loop, looks: list[float]) -> None:
    for _ in range(6):
        loop.run(late=3.0)
    assert len(looks) == 3
