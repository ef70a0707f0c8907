"""The collector runs when it is told to, over what is new, and now and then over all."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from forebay.clock import ManualClock
from forebay.helper.garbage import NEW, WHOLE, Garbage


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
