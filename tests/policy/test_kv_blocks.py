"""An engine's blocks and the chains linked to them: what a removed block says of a prompt's bytes."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.policy.kv_blocks import LAG_S, KvBlocks

SIZE = 16
"""Tokens an engine's block."""
PIECE = 64
"""Bytes a number of a chain: at 4 bytes a token, one engine's block."""


class Told:
    """What the index was told: the calls, and for each chain how much of it is left."""

    def __init__(self) -> None:
        self.calls: list[tuple[tuple[int, ...], int]] = []
        self.forgotten = 0

    def lost(self, name: str, numbers: Sequence[int], keep: int) -> None:
        assert name == "e" and 0 <= keep < len(numbers)
        self.calls.append((tuple(numbers), keep))

    def forget(self, name: str) -> None:
        assert name == "e"
        self.forgotten += 1


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def blocks(told: Told) -> KvBlocks:
    return KvBlocks("e", told, piece_bytes=PIECE)


def ask(
    blocks: KvBlocks,
    key: str,
    chain: list[int],
    hashes: list[int],
    now: float,
    *,
    parent: int | None = None,
    before: int = 0,
    cached: int | None = None,
    owner: bool = False,
) -> float:
    """One request alone on its engine: `hashes` are stored for it under `before` blocks. Returns when all is
    settled."""
    tokens = (before + len(hashes)) * SIZE + 3
    blocks.sent(key, chain, tokens * 4, now)
    if hashes:
        blocks.stored(hashes, parent, SIZE, now + 0.01, key if owner else None)
    blocks.first_token(key, now + 0.02)
    blocks.ended(key, tokens, cached, now + 1)
    return now + 2


@pytest.mark.parametrize("owner", [False, True])
def test_a_removed_block_takes_the_pieces_from_it_on(blocks: KvBlocks, told: Told, owner: bool) -> None:
    now = ask(blocks, "a", [1, 2, 3, 4], [11, 12, 13, 14], 0.0, owner=owner)
    assert (blocks.linked, told.calls) == (1, [])
    blocks.removed([14], now)
    blocks.removed([12], now)
    assert told.calls == [((1, 2, 3, 4), 3), ((1, 2, 3, 4), 1)]
    blocks.removed([13], now)  # it could not be reached any more
    blocks.removed([11], now)
    assert told.calls[2:] == [((1, 2, 3, 4), 0)]
    assert repr(blocks) == "<KvBlocks e: 0 blocks of 16, 1 linked, 0 not, 0 strays>"


def test_pieces_are_counted_in_bytes(told: Told) -> None:
    blocks = KvBlocks("e", told, piece_bytes=512)
    blocks.sent("a", list(range(1, 9)), 8 * 512 + 100, 0.0)  # 4,196 bytes in 2,098 tokens: 131 blocks, 16 a piece
    blocks.stored(range(100, 231), None, SIZE, 0.01)
    blocks.first_token("a", 0.02)
    blocks.ended("a", 2098, None, 1.0)
    blocks.removed([230, 229, 228], 2.0)
    assert told.calls == []
    blocks.removed([227], 2.0)  # 127 are left: 2,032 tokens, 4,064 bytes
    assert [keep for _, keep in told.calls] == [7]
    blocks.removed(range(226, 99, -1), 2.0)
    assert [keep for _, keep in told.calls] == [7, 6, 5, 4, 3, 2, 1, 0]


def test_a_shared_block_is_lost_to_all_that_go_through_it(blocks: KvBlocks, told: Told) -> None:
    now = ask(blocks, "a", [1, 2, 3, 4], [11, 12, 13, 14], 0.0)
    now = ask(blocks, "b", [1, 2, 5, 6], [15, 16], now, parent=12, before=2, cached=32)
    assert blocks.linked == 2
    blocks.removed([12], now)
    assert sorted(told.calls) == [((1, 2, 3, 4), 1), ((1, 2, 5, 6), 1)]


def test_what_an_answer_adds_is_not_taken_for_a_prompts_end(blocks: KvBlocks, told: Told) -> None:
    """Its own blocks follow at once; the way is cut where the prompt ends."""
    blocks.sent("a", [1, 2], 35 * 4, 0.0)
    blocks.stored([11, 12], None, SIZE, 0.01, "a")
    blocks.first_token("a", 0.02)
    for i in range(5):
        blocks.stored([13 + i], 12 + i, SIZE, 0.1 + i, "a")
    blocks.ended("a", 35, None, 6.0)
    blocks.removed([17, 16, 15, 14, 13], 7.0)
    assert (blocks.linked, told.calls) == (1, [])
    blocks.removed([12], 7.0)
    assert told.calls == [((1, 2), 1)]


def test_two_that_could_be_meant_are_not_linked(blocks: KvBlocks, told: Told) -> None:
    for key, chain in (("a", [1, 2]), ("b", [3, 4])):
        blocks.sent(key, chain, 35 * 4, 0.0)
    blocks.stored([11, 12], None, SIZE, 0.01)
    blocks.stored([21, 22], None, SIZE, 0.02)
    for key in ("a", "b"):
        blocks.first_token(key, 0.03)
        blocks.ended(key, 35, 0, 1.0)
    blocks.removed([12, 22], 2.0)
    assert (blocks.linked, blocks.unlinked, told.calls) == (0, 2, [])


def test_cached_tokens_tell_them_apart(blocks: KvBlocks, told: Told) -> None:
    now = ask(blocks, "z", [1], [10], 0.0)
    for key, chain in (("a", [1, 2, 3]), ("b", [4, 5, 6])):
        blocks.sent(key, chain, 51 * 4, now)
    blocks.stored([11], 10, SIZE, now + 0.01)
    blocks.stored([21, 22, 23], None, SIZE, now + 0.01)
    blocks.stored([12], 11, SIZE, now + 0.02)  # a prompt in chunks
    for key, cached in (("a", 16), ("b", 0)):
        blocks.first_token(key, now + 0.03)
        blocks.ended(key, 51, cached, now + 1)
    blocks.removed([12, 23], now + 2)
    assert sorted(told.calls) == [((1, 2, 3), 2), ((4, 5, 6), 2)]


def test_a_run_that_two_prompts_claim_is_neithers(blocks: KvBlocks, told: Told) -> None:
    """The second was all cached, so nothing was stored for it, and the other's run is the only one there is."""
    blocks.sent("a", [1, 2], 35 * 4, 0.0)
    blocks.sent("b", [3, 4], 35 * 4, 0.0)
    blocks.stored([11, 12], None, SIZE, 0.01)
    for key in ("a", "b"):
        blocks.first_token(key, 0.03)
        blocks.ended(key, 35, None, 1.0)
    blocks.removed([12], 2.0)
    assert told.calls == []


def test_an_answer_under_way_is_no_candidate(blocks: KvBlocks, told: Told) -> None:
    now = ask(blocks, "a", [1], [11], 0.0)
    blocks.stored([12], 11, SIZE, now)  # a's answer
    blocks.sent("b", [5, 6, 7], 51 * 4, now + 1)
    blocks.stored([13], 12, SIZE, now + 1.01)  # and on
    blocks.stored([21, 22, 23], None, SIZE, now + 1.02)
    blocks.first_token("b", now + 1.1)
    blocks.ended("b", 51, None, now + 2)
    blocks.removed([23], now + 3)
    assert told.calls == [((5, 6, 7), 2)]


def test_the_next_ones_blocks_are_not_taken_for_its_own(blocks: KvBlocks, told: Told) -> None:
    """One after the other, faster than `lag_s`."""
    for i, (key, chain) in enumerate((("a", [1, 2]), ("b", [3, 4]), ("c", [5, 6]))):
        at = i * LAG_S / 4
        blocks.sent(key, chain, 35 * 4, at)
        blocks.stored([10 * i + 1, 10 * i + 2], None, SIZE, at + 0.001)
        blocks.first_token(key, at + 0.002)
        blocks.ended(key, 35, None, at + 0.003)
    blocks.removed([2, 12, 22], 2.0)
    assert told.calls == [((1, 2), 1), ((3, 4), 1), ((5, 6), 1)]


def test_events_later_than_the_end_are_waited_for(blocks: KvBlocks, told: Told) -> None:
    blocks.sent("a", [1, 2], 35 * 4, 0.0)
    blocks.ended("a", 35, None, 0.1)
    blocks.stored([11, 12], None, SIZE, 0.1 + LAG_S / 2)
    blocks.removed([12], 0.1 + LAG_S * 0.9)
    assert told.calls == []  # gone before it was linked
    blocks.sent("b", [1, 2], 35 * 4, 1.0)
    blocks.stored([12], 11, SIZE, 1.01)
    blocks.ended("b", 35, 16, 1.1)
    blocks.removed([12], 1.2 + LAG_S)
    assert told.calls == [((1, 2), 1)]


def test_the_same_blocks_computed_twice_are_there_until_both_are_removed(blocks: KvBlocks, told: Told) -> None:
    now = ask(blocks, "a", [1, 2, 3], [11, 12, 13], 0.0)
    blocks.stored([11, 12, 19], None, SIZE, now)
    blocks.removed([12], now)
    assert told.calls == []
    blocks.removed([19, 12], now)
    assert told.calls == [((1, 2, 3), 1)]
    blocks.removed([11, 11], now)
    assert told.calls[1:] == [((1, 2, 3), 0)]


def test_an_engine_that_cleared_its_cache_is_forgotten(blocks: KvBlocks, told: Told) -> None:
    now = ask(blocks, "a", [1, 2], [11, 12], 0.0)
    blocks.cleared()
    blocks.removed([12], now)
    assert (told.forgotten, told.calls) == (1, [])
    blocks.stored([31], None, 128, now)  # blocks of another size from here on
    assert repr(blocks) == "<KvBlocks e: 1 blocks of 128, 1 linked, 0 not, 0 strays>"


def test_missed_events_leave_what_the_index_believes(blocks: KvBlocks, told: Told) -> None:
    now = ask(blocks, "a", [1, 2], [11, 12], 0.0)
    blocks.unknown()
    blocks.removed([12], now)
    blocks.stored([13], 12, SIZE, now)
    assert (told.forgotten, told.calls, blocks.strays) == (0, [], 1)


def test_what_contradicts_the_tree_is_left_out(blocks: KvBlocks, told: Told) -> None:
    now = ask(blocks, "a", [1, 2], [11, 12], 0.0)
    blocks.stored([12], None, SIZE, now)  # the second block as a first
    blocks.stored([40, 12], None, SIZE, now)
    blocks.stored([41], 12, 32, now)
    assert blocks.strays == 4
    blocks.removed([12], now)
    assert told.calls == [((1, 2), 1)]


def test_requests_that_say_nothing_are_left_alone(blocks: KvBlocks, told: Told) -> None:
    blocks.sent("none", [], 0, 0.0)
    blocks.sent("twice", [1], 100, 0.0)
    blocks.sent("twice", [1], 100, 0.0)
    blocks.sent("cancelled", [1], 100, 0.0)
    blocks.stored([11], None, SIZE, 0.1)
    for key in ("none", "twice", "cancelled", "unheard-of"):
        blocks.first_token(key, 0.1)
        blocks.ended(key, 17 if key == "twice" else None, None, 0.2)
    blocks.sent("short", [1], 20, 1.0)
    blocks.ended("short", 5, None, 1.1)
    blocks.removed([11], 2.0)
    assert (blocks.linked, blocks.unlinked, told.calls) == (0, 0, [])


def test_all_is_bounded(told: Told) -> None:
    blocks = KvBlocks("e", told, piece_bytes=PIECE, most_blocks=1000)
    now, parent = 0.0, None
    for i in range(20_000):
        blocks.sent(i, [i + 1], 20 * 4, now)
        if i % 3:
            now = ask(blocks, f"{i}", [i + 1], [i + 1], now, owner=True)
        else:
            blocks.stored([-i - 1], None, SIZE, now)
    assert f"{1000:,} blocks" in repr(blocks) and parent is None
    assert len(blocks._requests) <= 8_192 and len(blocks._stores) <= 8_192
    assert len(blocks._ends) <= len(blocks._stores) and len(blocks._lagging) < 10


class Shadow(Told):
    """What an index believes that was told of everything that was sent, and of what was lost."""

    def __init__(self) -> None:
        super().__init__()
        self.believed: set[int] = set()

    def lost(self, name: str, numbers: Sequence[int], keep: int) -> None:
        super().lost(name, numbers, keep)
        self.believed.difference_update(numbers[keep:])


@given(seed=st.integers(0, 1 << 32))
def test_the_index_believes_what_the_engine_holds(seed: int) -> None:
    """Prompts that share prefixes, blocks evicted anywhere, where a piece is exactly a block."""
    dice = random.Random(seed)
    index = Shadow()
    blocks = KvBlocks("e", index, piece_bytes=PIECE)
    cache: dict[tuple[int, ...], int] = {}  # by prefix: the engine's hash of its last block
    names: dict[tuple[int, ...], int] = {}  # by prefix: our number
    prompts: list[tuple[int, ...]] = [()]
    now = 0.0
    for i in range(60):
        if dice.random() < 0.6 or not cache:
            old = dice.choice(prompts)
            words = old[: dice.randint(0, len(old))] + tuple(dice.randrange(3) for _ in range(dice.randint(1, 4)))
            prompts.append(words)
            ways = [words[: n + 1] for n in range(len(words))]
            chain = [names.setdefault(way, len(names) + 1) for way in ways]
            have = next((n for n, way in enumerate(ways) if way not in cache), len(ways))
            fresh = {way: 1000 * (i + 1) + n for n, way in enumerate(ways) if n >= have}
            index.believed.update(chain)
            now = ask(
                blocks,
                str(i),
                chain,
                list(fresh.values()),
                now,
                parent=cache[words[:have]] if have else None,
                before=have,
                cached=have * SIZE,
                owner=dice.random() < 0.5,
            )
            cache.update(fresh)
        else:
            victim = dice.choice(list(cache))
            for way in sorted((w for w in cache if w[: len(victim)] == victim), key=len, reverse=dice.random() < 0.5):
                blocks.removed([cache.pop(way)], now)
        assert index.believed == {names[way] for way in cache}


def test_a_run_that_names_a_block_twice_is_passed_over(blocks: KvBlocks, told: Told) -> None:
    blocks.stored([1, 2, 1], None, SIZE, 0.0)
    assert blocks.strays == 3
    blocks.stored([1, 2], None, SIZE, 0.1)
    blocks.removed([1, 2, 1], 0.2)
    assert (blocks.strays, told.calls) == (3, [])
