"""The collector runs when it is told to, over what is new, and now and then over all."""

from __future__ import annotations

import asyncio
import gc
import select
import socket
import weakref
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from cache_helper import ACME, config_of, peer, stored
from forebay.cache.messages import Find, cache_socket
from forebay.clock import ManualClock, SystemClock
from forebay.config.models import Config
from forebay.helper.garbage import MOST_NEW, NEW, WHOLE, Garbage
from forebay.helper.process import Helper


class Knot:
    """In a cycle with itself."""

    def __init__(self) -> None:
        self.own = self


@pytest.fixture
def clock() -> Iterator[ManualClock]:
    yield ManualClock()
    gc.enable()
    gc.unfreeze()


def test_a_cycle_that_is_new_goes_with_the_next_little_one(clock: ManualClock) -> None:
    garbage = Garbage(clock)
    assert not gc.isenabled()
    garbage.everything()
    gone = weakref.ref(Knot())
    assert gone() is not None
    kept = [[n] for n in range(2 * NEW)]  # what other threads give back meanwhile is taken off
    frozen = gc.get_freeze_count()
    garbage.asked()
    assert gone() is None
    assert gc.get_freeze_count() >= frozen + len(kept)  # and is not looked at again
    garbage.asked()
    assert gc.get_count()[0] < NEW


def test_one_that_was_frozen_goes_with_a_whole_one_in_a_pause(clock: ManualClock) -> None:
    garbage = Garbage(clock)
    knot: Knot | None = Knot()
    gone = weakref.ref(knot)
    garbage.everything()
    del knot
    garbage.whole()
    clock.advance(WHOLE)
    garbage.asked()
    garbage.whole()  # just asked: not now
    assert gone() is not None
    clock.advance(2.0)
    garbage.whole()
    assert gone() is None


def test_without_a_pause_a_whole_one_comes_all_the_same(clock: ManualClock) -> None:
    garbage = Garbage(clock)
    knot: Knot | None = Knot()
    gone = weakref.ref(knot)
    garbage.everything()
    del knot
    clock.advance(2 * WHOLE)
    garbage.asked()
    garbage.whole()
    assert gone() is None


def test_while_look_ups_are_under_way_it_waits_for_more(clock: ManualClock) -> None:
    garbage = Garbage(clock)
    garbage.everything()
    gone = weakref.ref(Knot())
    kept = [[n] for n in range(NEW)]
    garbage.asked(busy=True)
    assert gone() is not None
    kept += [[n] for n in range(MOST_NEW)]
    garbage.asked(busy=True)
    assert gone() is None


def test_an_answer_has_left_when_garbage_is_collected(clock: ManualClock, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir(mode=0o700)
    config = Config.model_validate_json(config_of(tmp_path, semantic={"enabled": False}, disk_bytes=1 << 20))
    asking = socket.socket(socket.AF_UNIX)
    here: list[bool] = []

    async def story() -> None:
        done = asyncio.Event()

        class Watched(Garbage):
            def asked(self, *, busy: bool = False) -> None:
                here.append(bool(select.select([asking], [], [], 0)[0]))
                loop.call_soon_threadsafe(done.set)

        loop = asyncio.get_running_loop()
        helper = Helper(config, SystemClock())
        helper._garbage = Watched(clock)
        await helper.start()
        await helper.opened.wait()
        _, message = stored("q", "a", exact=b"k" * 16)
        try:
            async with peer(tmp_path) as worker:
                worker.say(message)
                await worker.look("stats")
            asking.connect(str(cache_socket(tmp_path)))
            found = msgspec.msgpack.encode(Find(1, b"k" * 16, b"", "", ACME, 5.0))
            asking.sendall(len(found).to_bytes(4, "big") + found)
            await done.wait()
        finally:
            await helper.close()

    with asking:
        asyncio.run(asyncio.wait_for(story(), 30))
    assert here == [True]
