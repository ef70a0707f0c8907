"""The driver: events to whoever asked, in real time; one listener's defect is its own."""

from __future__ import annotations

import asyncio
import time

import pytest

from forebay.sim.driver import Driver
from forebay.sim.model import Ask, Event, RateModel, Rates


class Listener:
    def __init__(self, driver: Driver, *, fails: bool = False) -> None:
        self.driver = driver
        self.fails = fails
        self.broken = 0
        self.events: list[tuple[Event, float]] = []
        self.done = asyncio.get_running_loop().create_future()

    def on_event(self, event: Event) -> None:
        if self.fails:
            raise RuntimeError("a defect")
        self.events.append((event, time.monotonic()))
        if event.last:
            self.done.set_result(None)

    def on_broken(self) -> None:
        self.broken += 1


def test_events_come_in_order_and_not_before_their_time() -> None:
    async def story() -> None:
        driver = Driver(RateModel(Rates(decode_rate=200.0)), asyncio.get_running_loop())
        listeners = [Listener(driver) for _ in range(20)]
        for listener in listeners:
            driver.submit(Ask(1, 10), listener)
        await asyncio.gather(*(x.done for x in listeners))
        for listener in listeners:
            assert [e.n for e, _ in listener.events] == list(range(11))
            assert all(seen >= event.at - 0.001 for event, seen in listener.events)
        assert (driver.engine.running, driver.engine.next_event()) == (0, None)

    asyncio.run(story())


def test_one_broken_listener_frees_its_slot_and_harms_no_other(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        driver = Driver(RateModel(Rates(max_num_seqs=1, decode_rate=1000.0)), asyncio.get_running_loop())
        broken, sound = Listener(driver, fails=True), Listener(driver)
        driver.submit(Ask(1, 1000), broken)
        driver.submit(Ask(1, 3), sound)
        await asyncio.wait_for(sound.done, 5)
        assert broken.broken == 1
        assert driver.engine.running == 0

    asyncio.run(story())
    assert "RuntimeError: a defect" in caplog.text


def test_nothing_comes_after_a_cancel() -> None:
    async def story() -> None:
        driver = Driver(RateModel(Rates(max_num_seqs=1, decode_rate=1000.0)), asyncio.get_running_loop())
        left, next_one = Listener(driver), Listener(driver)
        seq = driver.submit(Ask(1, 1000), left)
        driver.submit(Ask(1, 3), next_one)
        driver.cancel(seq)
        driver.cancel(seq)
        await asyncio.wait_for(next_one.done, 5)
        assert left.events == []
        driver.close()

    asyncio.run(story())
