"""Whom the drain was promised to: by hand, and by properties."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.config.models import Class
from forebay.policy.drain import MAX_RETRY, NEVER, Drain, Supply

SUPPLY = Supply(prefill=10_000, places=10_000, kv=1e9, speed=100, backlog=0, running=0, held=0)
SLOW = Supply(prefill=10_000, places=16, kv=1e9, speed=10, backlog=0, running=16, held=0)


def at(drain: Drain, now: float, *, waiting: bool = False) -> Drain:
    drain.passes(now, waiting=waiting)
    return drain


def slots(drain: Drain, n: int, tokens: int = 1_000, supply: Supply = SUPPLY, cls: Class = Class.NORMAL) -> list[float]:
    return [drain.slot(tokens, 1, 100.0, None, supply, cls=cls) for _ in range(n)]


def turn_over(drain: Drain, *, n: int, every: float, lasting: float, begin: float = 0.0) -> float:
    """`n` answers one after another, `lasting` / `every` at once; the end."""
    events = sorted([(begin + i * every, 1) for i in range(n)] + [(begin + i * every + lasting, -1) for i in range(n)])
    for when, what in events:
        at(drain, when)
        if what > 0:
            drain.came()
            drain.admitted(10, 1, 100.0, None, SUPPLY.prefill)
        else:
            drain.ended(1)
    return events[-1][0]


def test_nobody_is_ahead_of_the_first() -> None:
    assert slots(at(Drain(), 0.0), 1) == [1.0]


def test_each_second_is_promised_what_the_engines_prefill_in_it() -> None:
    told = slots(at(Drain(), 0.0), 200)
    for second in range(1, 20):
        assert told.count(second) * 1_000 <= Drain.KEPT * SUPPLY.prefill + 1_000
    assert told == sorted(told)
    assert len(told) / max(told) > 0.65 * SUPPLY.prefill / 1_000  # and not much less


def test_places_bind_where_answers_are_long() -> None:
    quick, slow = (slots(at(Drain(), 0.0), 40, 10, supply)[-1] for supply in (SUPPLY, SLOW))
    assert quick < 3
    assert slow > 20


def test_kv_binds_where_it_is_short() -> None:
    short = SUPPLY._replace(kv=5_000)
    assert slots(at(Drain(), 0.0), 40, 1_000, short)[-1] > 2 * slots(at(Drain(), 0.0), 40, 1_000)[-1]


def test_what_is_under_way_beyond_its_part_ends_first() -> None:
    full = SLOW._replace(held=0)
    assert slots(at(Drain(), 0.0), 1, 10, full)[0] > slots(at(Drain(), 0.0), 1, 10, full._replace(running=4))[0]
    held = SUPPLY._replace(kv=20_000, held=30_000)
    assert slots(at(Drain(), 0.0), 1, 10, held)[0] > slots(at(Drain(), 0.0), 1, 10, held._replace(held=0))[0]


def test_who_waits_goes_first_but_for_no_longer_than_they_wait() -> None:
    def first(tokens: float, patience: float) -> float:
        return at(Drain(), 0.0).slot(100, 1, 10.0, None, SUPPLY, ahead=(1, tokens), patience=patience)

    assert first(0, 10.0) == 1
    assert first(35_000, 10.0) == 4
    assert first(35_000, 3.0) == 3
    assert first(1e9, 3.0) == 3


def test_beyond_a_minute_nobody_is_told_to_come_and_nothing_is_booked() -> None:
    drain = at(Drain(), 0.0)
    told = slots(drain, 2_000)
    assert set(told) == {float(s) for s in range(1, MAX_RETRY + 1)} | {NEVER}
    assert told[-1] == NEVER
    at(drain, 30.0)
    assert (
        drain.slot(1_000, 1, 100.0, None, SUPPLY) == 31
    )  # the seconds that were promised by now are over, no others free


def test_a_second_that_has_passed_is_promised_to_others() -> None:
    drain = at(Drain(), 0.0)
    slots(drain, 2_000)
    assert slots(at(drain, 200.0), 1) == [1.0]


def test_low_comes_where_there_is_room_and_vip_before_the_others() -> None:
    drain = at(Drain(), 0.0)
    normal = slots(drain, 47)[-1]
    low = slots(drain, 7, cls=Class.LOW)
    assert slots(drain, 1, cls=Class.VIP)[0] < normal < low[-1]


def test_newcomers_take_their_part_of_each_second_and_a_flood_is_not_taken_for_them() -> None:
    def last(a_second: int, flood: int = 0) -> float:
        drain = Drain()
        slots(at(drain, 0.0), 1)
        for second in range(1, 61):
            at(drain, second)
            for _ in range(a_second):
                drain.came()
        for _ in range(flood):
            drain.came()
        return slots(at(drain, 61.0), 40)[-1]

    alone = last(0)
    assert last(4) > 1.4 * alone
    assert last(20) == NEVER
    assert last(0, flood=500) <= alone + 2


def test_nor_is_a_flood_whose_first_refusal_comes_seconds_later() -> None:
    drain = Drain()
    for now in (0.1, 0.9, 1.5, 2.4):
        at(drain, now)
        for _ in range(200):
            drain.came()
    assert slots(at(drain, 3.2), 40)[-1] <= slots(at(Drain(), 3.2), 40)[-1] + 4


def test_those_who_come_when_told_are_no_newcomers() -> None:
    drain = at(Drain(), 0.0)
    told = slots(drain, 200)
    for second in range(1, 23):
        at(drain, second)
        for _ in range(told.count(second)):
            drain.came()
    assert slots(at(drain, 30.0), 20)[-1] <= 3


def test_the_turnover_is_learned_from_ends_and_from_those_that_do_not_end() -> None:
    def places(drain: Drain) -> float:
        return drain.gives(SUPPLY)[1]

    learned = Drain()
    turn_over(learned, n=200, every=0.1, lasting=2.0)
    assert places(learned) == pytest.approx(10_000 / 2.0, rel=0.3)
    stuck = Drain()
    at(stuck, 0.0)
    stuck.admitted(10, 50, 100.0, None, SUPPLY.prefill)
    before = places(at(stuck, 1.0))
    assert places(at(stuck, 30.0)) < before / 5


def test_before_the_first_end_answers_are_thought_to_get_long_but_not_beyond_their_bound() -> None:
    def places(most: int | None) -> float:
        drain = at(Drain(), 0.0)
        drain.slot(1_000, 1, 100.0, most, SUPPLY)
        return drain.gives(SUPPLY)[1]

    assert places(101) > 2 * places(None)
    assert places(10_000) == places(None)


def test_the_turnover_does_not_depend_on_how_long_answers_were_thought_to_be() -> None:
    short, long = Drain(), Drain()
    for drain, length in ((short, 10.0), (long, 1_000.0)):
        for i in range(200):
            at(drain, i * 0.1)
            drain.admitted(10, 1, length, None, SUPPLY.prefill)
            if i >= 20:
                drain.ended(1)
    assert short.gives(SUPPLY)[1] == pytest.approx(long.gives(SUPPLY)[1], rel=0.5)


def test_the_prefill_rate_is_what_went_while_somebody_waited() -> None:
    drain = at(Drain(), 0.0)
    assert drain.prefill(10_000) == 8_000
    for i in range(100):
        at(drain, i * 0.1, waiting=True).admitted(300, 0, 100.0, None, SUPPLY.prefill)
    assert drain.prefill(10_000) == pytest.approx(3_000, rel=0.4)
    at(drain, 11.0)
    before = drain.prefill(10_000)
    assert at(drain, 500.0).prefill(10_000) == before  # nobody waits: nothing is learned


REFUSALS = st.tuples(st.integers(1, 20_000), st.integers(1, 8), st.floats(0, 2_000), st.sampled_from(Class))


@given(
    st.lists(REFUSALS, min_size=2, max_size=40),
    st.floats(1, 1e5),
    st.integers(1, 512),
    st.floats(1_000, 1e7),
    st.floats(0.1, 1_000),
)
def test_whole_seconds_within_bounds_and_never_earlier_than_those_of_the_same_class_before(
    refusals: list[tuple[int, int, float, Class]], prefill: float, places: int, kv: float, speed: float
) -> None:
    """As long as nothing else changes."""
    supply = Supply(prefill, places, kv, speed, 0, 0, 0)
    drain = at(Drain(), 5.5)
    told: dict[Class, list[float]] = {cls: [] for cls in Class}
    for tokens, n, length, cls in refusals:
        wait = drain.slot(tokens, n, length, None, supply, cls=cls)
        assert wait == int(wait)
        assert 1 <= wait <= NEVER
        told[cls].append(wait)
    for waits in told.values():
        assert all(a <= b for a, b in pairwise(waits))


EVENTS = st.tuples(st.floats(-50, 100), st.sampled_from(["came", "admitted", "ended", "slot"]), st.booleans())


@given(st.lists(EVENTS, max_size=60))
def test_a_clock_that_jumps_backwards_does_no_harm(events: list[tuple[float, str, bool]]) -> None:
    """It stands still until the time has caught up."""
    jumping, standing = Drain(), Drain()
    latest = float("-inf")
    for now, what, waiting in events:
        latest = max(latest, now)
        for drain, when in ((jumping, now), (standing, latest)):
            at(drain, when, waiting=waiting)
            if what == "came":
                drain.came()
            elif what == "admitted":
                drain.admitted(100, 1, 50.0, None, SUPPLY.prefill)
            elif what == "ended":
                drain.ended(1)
        if what == "slot":
            assert jumping.slot(500, 1, 50.0, None, SUPPLY) == standing.slot(500, 1, 50.0, None, SUPPLY)
    assert repr(jumping) == repr(standing)
