"""Requests and tokens a minute: a bucket that drains evenly, in exact fractions beside the real one."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.ledger.gates import Who
from forebay.ledger.limit_state import standing
from forebay.ledger.limits import Denied, Held, Limits, Why
from forebay.ledger.rules import Hold, Level, Rule

WALL = 1_793_534_400.0
WHO = Who("k1", "one", "acme")

steps = st.lists(
    st.one_of(
        st.tuples(st.just("hold"), st.integers(0, 80), st.integers(0, 80)),
        st.tuples(st.just("settle"), st.integers(0, 9), st.integers(0, 200)),
        st.tuples(st.just("release"), st.integers(0, 9), st.just(0)),
        st.tuples(st.just("wait"), st.integers(0, 240), st.just(0)),  # quarters of a second
    ),
    max_size=60,
)


class Bucket:
    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = Fraction(0)
        self.lives = 0
        """How often it was found empty: what was taken in an earlier life is not given back."""

    def drain(self, seconds: Fraction) -> None:
        self.used = max(Fraction(0), self.used - seconds * self.limit / 60)

    def change(self, life: int, amount: int) -> None:
        if amount > 0:
            self.used += amount
        elif life == self.lives:
            self.used = max(Fraction(0), self.used + amount)


@settings(max_examples=150, deadline=None)
@given(steps=steps)
def test_rates_are_what_exact_fractions_say(steps: list[tuple[str, int, int]]) -> None:
    book = Limits()
    book.configure([Rule(name="r", each=Level.KEY, requests_per_minute=5, tokens_per_minute=120)], 0.0, WALL)
    gate = book.gate(WHO)
    requests, tokens = Bucket(5), Bucket(120)
    now = 0.0
    holds: list[tuple[Held, int, int, int]] = []
    open_holds: set[int] = set()
    for what, a, b in steps:
        if what == "wait":
            now += a / 4
            for bucket in (requests, tokens):
                bucket.drain(Fraction(a, 4))
        if what == "hold":
            for bucket in (requests, tokens):
                bucket.lives += bucket.used == 0
            fits = requests.used + 1 <= 5 and tokens.used + min(a + b, 120) <= 120
            found = book.hold(gate, "m", a, b, None, "", now, WALL)
            assert isinstance(found, Held) == fits
            if isinstance(found, Held):
                requests.used += 1
                tokens.used += a + b
                open_holds.add(len(holds))
                holds.append((found, a + b, requests.lives, tokens.lives))
        if what in ("settle", "release") and holds:
            i = a % len(holds)
            held, took, life_r, life_t = holds[i]
            if what == "settle":
                book.settle(held, b, 0, now)
            else:
                book.release(held, now)
            if i in open_holds:
                open_holds.remove(i)
                requests.lives += requests.used == 0
                tokens.lives += tokens.used == 0
                if what == "release":
                    requests.change(life_r, -1)
                tokens.change(life_t, (b if what == "settle" else 0) - took)
        if gate.base.all:
            list(standing(book, now, WALL))  # looks, and so finds what is empty
            for bucket in (requests, tokens):
                bucket.lives += bucket.used == 0
            got = [m.used for m in (*gate.base.requests, *gate.base.rates)]
            assert got == pytest.approx([float(requests.used), float(tokens.used)], abs=1e-6)


@settings(max_examples=80, deadline=None)
@given(gaps=st.lists(st.floats(0, 20), min_size=1, max_size=80), limit=st.integers(1, 12))
def test_no_stretch_of_time_admits_more_than_a_minute_s_worth_and_its_share(gaps: list[float], limit: int) -> None:
    book = Limits()
    book.configure([Rule(name="r", each=Level.KEY, requests_per_minute=limit)], 0.0, WALL)
    gate, now, times = book.gate(WHO), 0.0, []
    for gap in gaps:
        now += gap
        found = book.hold(gate, "m", 1, 1, None, "", now, WALL)
        if isinstance(found, Held):
            times.append(now)
        else:
            # The reset is exact, to what a float of today has: just before it there is no room, then there is.
            exact = found.resets - WALL
            assert 0 <= exact <= 60 / limit + 1e-6
            if exact > 1e-3:
                early = book.hold(gate, "m", 1, 1, None, "", now + exact * 0.99, WALL)
                assert isinstance(early, Denied)
            now += exact
            assert isinstance(book.hold(gate, "m", 1, 1, None, "", now + 1e-6, WALL), Held)
            times.append(now)
    for i, first in enumerate(times):
        for j in range(i, len(times)):
            assert j - i + 1 <= limit + (times[j] - first) * limit / 60 + 1e-4


def test_each_who_is_refused_is_told_a_time_of_its_own() -> None:
    book = Limits()
    book.configure([Rule(name="r", each=Level.KEY, requests_per_minute=10)], 0.0, WALL)
    gate = book.gate(WHO)
    found = [book.hold(gate, "m", 1, 1, None, "", 0.0, WALL) for _ in range(32)]
    waits = [round(d.retry_after, 3) for d in found if isinstance(d, Denied)]
    assert waits[:10] == [6.0 * n for n in range(1, 11)]
    assert waits[10:12] == [6.0, 12.0]  # after a minute's worth it begins anew
    assert {round(d.resets - WALL, 3) for d in found if isinstance(d, Denied)} == {6.0}
    assert isinstance(book.hold(gate, "m", 1, 1, None, "", 6.0, WALL), Held)


def test_a_prompt_that_no_minute_has_room_for() -> None:
    book = Limits()
    book.configure([Rule(name="r", each=Level.KEY, tokens_per_minute=1_000)], 0.0, WALL)
    gate = book.gate(WHO)
    denied = book.hold(gate, "m", 1_001, 1, None, "", 0.0, WALL)
    assert isinstance(denied, Denied)
    assert (denied.why, denied.needs) == (Why.TOO_LARGE, 1_001)
    # A long answer passes a bucket that is empty, and is paid back.
    held = book.hold(gate, "m", 900, 5_000, None, "", 0.0, WALL)
    assert isinstance(held, Held)
    assert held.max_tokens is None
    book.settle(held, 1_900, 0, 0.0)
    after = book.hold(gate, "m", 1, 1, None, "", 0.0, WALL)
    assert isinstance(after, Denied)
    assert after.why is Why.RATE
    assert after.resets - WALL == pytest.approx(902 * 60 / 1_000)


def test_a_rate_may_hold_the_predicted() -> None:
    book = Limits()
    book.configure([Rule(name="r", each=Level.KEY, tokens_per_minute=1_000, hold=Hold.PREDICTED)], 0.0, WALL)
    gate = book.gate(WHO)
    for _ in range(5):
        assert isinstance(book.hold(gate, "m", 100, 4_000, None, "", 0.0, WALL, predicted=100), Held)
    assert isinstance(book.hold(gate, "m", 100, 4_000, None, "", 0.0, WALL, predicted=100), Denied)


def test_a_wall_clock_that_jumps_does_not_matter_to_rates() -> None:
    book = Limits()
    book.configure([Rule(name="r", each=Level.KEY, requests_per_minute=1)], 0.0, WALL)
    gate = book.gate(WHO)
    assert isinstance(book.hold(gate, "m", 1, 1, None, "", 0.0, WALL), Held)
    for wall in (WALL + 1e7, WALL - 1e7):
        assert isinstance(book.hold(gate, "m", 1, 1, None, "", 1.0, wall), Denied)
