"""The prefix index: by hand, and against a plain model of it."""

from __future__ import annotations

import gc
import tracemalloc
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.policy import prefix
from forebay.policy.prefix import (
    BLOCK_BYTES,
    BYTES_A_BLOCK,
    LEAST_SCALE,
    MOST_BLOCKS,
    MOST_BYTES,
    UNKNOWN,
    PrefixIndex,
    chain,
    salted,
)

SALT = salted(b"tenant", b"model")


def index(most_bytes: int = 1 << 20, **engines: int) -> PrefixIndex:
    found = PrefixIndex(most_bytes)
    for name, blocks in engines.items():
        found.engine(name, blocks * found.block_tokens)
    return found


# --- chains ----------------------------------------------------------------------------------------------------------


@given(st.binary(max_size=4 * BLOCK_BYTES), st.binary(max_size=4 * BLOCK_BYTES))
def test_chains_agree_as_far_as_the_texts_do_in_full_blocks(one: bytes, other: bytes) -> None:
    head = bytes(BLOCK_BYTES * 2)
    a, b = chain(head + one, SALT), chain(head + other, SALT)
    assert len(a) == (len(head) + len(one)) // BLOCK_BYTES
    for i, (x, y) in enumerate(zip(a, b, strict=False), 1):
        assert (x == y) == ((head + one)[: i * BLOCK_BYTES] == (head + other)[: i * BLOCK_BYTES])


def test_a_chain_depends_on_its_salt_and_on_the_parts_of_that_in_order() -> None:
    text = b"x" * BLOCK_BYTES
    assert chain(text, salted(b"a", b"b")) != chain(text, salted(b"b", b"a"))
    assert chain(text, salted(b"tenant a")) != chain(text, salted(b"tenant b"))
    assert chain(text, SALT) == chain(text, salted(b"tenant", b"model"))


def test_a_chain_is_bounded() -> None:
    assert len(chain(bytes((MOST_BLOCKS + 5) * BLOCK_BYTES), SALT)) == MOST_BLOCKS


# --- by hand ---------------------------------------------------------------------------------------------------------


def test_what_was_sent_is_found_as_far_as_it_is_the_same() -> None:
    found = index(a=100, b=100)
    found.sent("a", [1, 2, 3, 4])
    found.sent("b", [1, 2, 30])
    assert found.match([1, 2, 3, 9]) == {"a": 3, "b": 2}
    assert found.match([1, 2, 30, 40]) == {"a": 2, "b": 3}
    assert found.match([7]) == found.match([]) == {}


def test_the_least_recently_used_goes_first_and_the_end_before_the_beginning() -> None:
    found = index(a=8)
    found.sent("a", [1, 2, 3, 4])
    found.sent("a", [11, 12, 13])
    found.sent("a", [1, 2])
    found.sent("a", [21, 22])
    assert found.match([1, 2, 3, 4]) == {"a": 3}
    assert found.match([11, 12, 13]) == {"a": 3}
    found.sent("a", [31, 32])
    assert found.match([1, 2, 3, 4]) == {"a": 2}
    assert found.match([11, 12, 13]) == {"a": 2}


def test_an_engine_that_is_gone_or_forgotten_holds_nothing() -> None:
    found = index(a=10, b=10)
    for name in "ab":
        found.sent(name, [1, 2])
    found.forget("a")
    assert found.match([1, 2]) == {"b": 2}
    found.gone("b")
    assert found.match([1, 2]) == {} and len(found) == 0
    found.sent("b", [1, 2])
    assert len(found) == 0
    found.engine("c", None)  # in the place of b
    found.sent("c", [1])
    assert found.match([1, 2]) == {"c": 1}


def test_lost_blocks_are_taken_out_by_name() -> None:
    found = index(a=10, b=10)
    for name in "ab":
        found.sent(name, [1, 2, 3, 4])
    found.lost("a", [1, 2, 3, 4], keep=1)
    found.lost("a", [1, 2, 3, 4], keep=1)
    found.lost("nobody", [1], keep=0)
    assert found.match([1, 2, 3, 4]) == {"a": 1, "b": 4}


def test_a_smaller_capacity_is_heeded_at_once() -> None:
    found = index(a=100)
    found.sent("a", list(range(100)))
    found.engine("a", 10 * found.block_tokens)
    assert found.held("a") <= 10
    found.engine("a", None)
    assert found.held("a") <= 10
    assert found.match([0, 1, 2]) == {"a": 3}


def test_an_unknown_capacity_is_bounded() -> None:
    found = PrefixIndex()
    found.engine("a", None)
    found.sent("a", list(range(2 * UNKNOWN)))
    assert found.held("a") <= UNKNOWN


def test_engines_share_the_bound_by_their_capacity() -> None:
    found = index(1_000 * BYTES_A_BLOCK, a=3_000, b=1_000)
    for name in "ab":
        for i in range(20):
            found.sent(name, [i * 1_000 + j for j in range(500)])
    assert 700 <= found.held("a") <= 750 and 230 <= found.held("b") <= 250
    found.resize(100 * BYTES_A_BLOCK)
    found.sent("a", [1])
    assert found.held("a") <= 75


# --- what engines say ------------------------------------------------------------------------------------------------


def test_an_engine_that_never_has_what_it_should_is_believed_less_and_less() -> None:
    found = index(a=100, b=100)
    for _ in range(100):
        found.observe("a", 10, 0)
        found.observe("b", 10, 10)
    assert found.trust("a") < 0.01
    assert found.trust("b") == 1.0
    for _ in range(100):
        found.observe("a", 10, 9.5)
    assert found.trust("a") > 0.9


def test_an_engine_without_any_of_what_it_should_have_is_taken_to_have_started_anew() -> None:
    found = index(a=100)
    for _ in range(5):
        found.observe("a", 3, 0)
    found.sent("a", [1, 2, 3])
    found.observe("a", 3, 0)
    assert found.match([1, 2, 3]) == {}


def test_capacity_follows_how_far_back_the_engine_remembers() -> None:
    found = index(a=1_000)
    for _ in range(1_000):
        found.observe("a", 10, 5)
    found.sent("a", list(range(1_000)))
    assert 0.95 * 1_000 * LEAST_SCALE <= found.held("a") <= 1_000 * LEAST_SCALE
    for _ in range(1_000):
        found.observe("a", 0, 10)
    found.sent("a", list(range(1_000)))
    assert found.held("a") == 1_000


# --- against a model -------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 2), st.lists(st.integers(0, 5), min_size=1, max_size=6)), max_size=60))
def test_it_is_a_set_of_prefixes_and_an_lru_of_blocks_an_engine(sent: list[tuple[int, list[int]]]) -> None:
    capacity = 12
    found = index(a=capacity, b=capacity, c=capacity)
    orders: dict[str, list[int]] = {name: [] for name in "abc"}
    for engine, words in sent:
        name = "abc"[engine]
        numbers: list[int] = []
        for word in words:
            numbers.append(hash((numbers[-1] if numbers else 0, word)) % (1 << 60))
        found.sent(name, numbers)
        order = orders[name]
        for number in reversed(numbers):
            if number in order:
                order.remove(number)
            order.append(number)
        del order[: max(0, len(order) - capacity)]
        expected = {}
        for one, known in orders.items():
            depth = next((i for i, number in enumerate(numbers) if number not in known), len(numbers))
            if depth:
                expected[one] = depth
        assert found.match(numbers) == expected
    assert len(found) == len(set().union(*orders.values()))


def test_a_block_takes_no_more_than_it_is_reckoned_at() -> None:
    dice = Random(3)
    ours = [tracemalloc.Filter(True, path) for path in (prefix.__file__, __file__)]

    def traced() -> int:
        gc.collect()
        found = tracemalloc.take_snapshot().filter_traces(ours)
        return sum(trace.size for trace in found.traces)

    tracemalloc.start()
    try:
        found = PrefixIndex()
        for i in range(8):
            found.engine(str(i), 1_000 * found.block_tokens)
        before = traced()
        most = 0.0
        for round_ in range(2_000):
            found.sent(str(dice.randrange(8)), [dice.getrandbits(60) for _ in range(16)])
            if round_ > 400 and round_ % 100 == 0:
                most = max(most, (traced() - before) / len(found))
    finally:
        tracemalloc.stop()
    assert len(found) == pytest.approx(8_000, rel=0.05)
    assert most <= BYTES_A_BLOCK


def test_an_engine_that_says_it_holds_everything_leaves_the_others_what_they_know() -> None:
    found = index(MOST_BYTES, a=500, boasts=1 << 50)
    for i in range(2_000):
        found.sent("a", [i])
        found.sent("boasts", [i])
    assert found.held("a") > 300
