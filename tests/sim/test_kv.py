"""The block pool against one that keeps every block apart, as vLLM does."""

from __future__ import annotations

from collections import OrderedDict

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from forebay.sim.kv import BlockPool, Lease

SIZE = 4


class PlainPool:
    """Single blocks: a free list, oldest first, and what can be found under which (key, index)."""

    def __init__(self, capacity: int) -> None:
        self.free: OrderedDict[int, None] = OrderedDict((i, None) for i in range(capacity))
        self.name: dict[int, tuple[object, int]] = {}
        self.found: dict[tuple[object, int], int] = {}
        self.refs = dict.fromkeys(range(capacity), 0)

    def names(self, prefix: tuple[tuple[int, int], ...], own: object, tokens: int) -> list[tuple[object, int]]:
        """Of each full block of the first `tokens` tokens: the piece it ends in, and its index there."""
        edges, total = [], 0
        for key, size in prefix:
            total += size
            edges.append((total // SIZE, key))
        names: list[tuple[object, int]] = []
        for i in range(tokens // SIZE):
            begin = 0
            for edge, key in edges:
                if i < edge:
                    names.append((key, i - begin))
                    break
                begin = edge
            else:
                if prefix and own == prefix[-1][0]:
                    begin = edges[-2][0] if len(edges) > 1 else 0
                names.append((own, i - begin))
        return names

    def hit(self, names: list[tuple[object, int]]) -> list[int]:
        blocks: list[int] = []
        for name in names:
            if name not in self.found:
                break
            blocks.append(self.found[name])
        return blocks

    def hold(self, blocks: list[int]) -> None:
        for block in blocks:
            self.free.pop(block, None)
            self.refs[block] += 1

    def take(self, n: int) -> list[int]:
        blocks = []
        for _ in range(n):
            block, _ = self.free.popitem(last=False)
            name = self.name.pop(block, None)
            if name is not None:
                del self.found[name]
            self.refs[block] = 1
            blocks.append(block)
        return blocks

    def remember(self, block: int, name: tuple[object, int]) -> None:
        if block in self.name:
            return
        known = self.found.get(name)
        if known is not None:
            if self.refs[known]:
                return
            del self.name[known]
        self.found[name] = block
        self.name[block] = name

    def give_back(self, blocks: list[int]) -> None:
        for block in reversed(blocks):
            self.refs[block] -= 1
            if not self.refs[block]:
                self.free[block] = None


CONTENT = st.builds(
    lambda system, tokens, conversation: (
        ((100 + system, 3 * system - 2),) if system else (),
        tokens,
        conversation or None,
    ),
    st.integers(0, 4),
    st.integers(1, 40),
    st.integers(0, 2),
)


@example(  # all of a prompt is in memory, its last block is computed again, and goes on
    capacity=40, script=[(((), 9, 1), 0, 0), (((), 1, 1), 12, 0), (((), 14, 1), 0, 0)]
)
@example(  # and what it stands beside is evicted while it is held
    capacity=8,
    script=[
        (((), 1, 1), 3, 0),
        (((), 1, 1), 3, 4),
        (((), 24, None), 0, 1),
        (((), 11, 2), 12, 0),
        (((), 23, 1), 0, 0),
    ],
)
@example(  # the block that is computed again never gets full
    capacity=40, script=[(((), 3, 2), 7, 1), (((), 6, 2), 0, 3), (((), 33, 2), 0, 3)]
)
@settings(max_examples=300, deadline=None)
@given(
    st.integers(8, 40),
    st.lists(st.tuples(CONTENT, st.integers(0, 12), st.integers(0, 6)), min_size=1, max_size=25),
)
def test_it_finds_frees_and_evicts_what_single_blocks_would(
    capacity: int, script: list[tuple[tuple[tuple[tuple[int, int], ...], int, int | None], int, int]]
) -> None:
    """Jobs of a content each come in order; the second number of a line says how many tokens they generate, the third
    which of those that run ends next. Conversations run one turn at a time: nobody computes what another does."""
    pool, plain = BlockPool(capacity, SIZE), PlainPool(capacity)
    running: list[tuple[Lease, list[int], int, int | None]] = []

    def end(which: int) -> None:
        lease, blocks, tokens, _ = running.pop(which)
        plain.give_back(blocks)
        pool.give_back(lease, tokens)
        pool.close(lease)

    for number, ((prefix, prompt, keeps), generated, victim) in enumerate(script):
        prompt += sum(size for _, size in prefix)
        if keeps is not None and any(job[3] == keeps for job in running):
            continue
        own: object = keeps if keeps is not None else f"own {number}"
        key = None if keeps is None else keeps + 1000 * (prefix[0][0] if prefix else 0)
        own = key if key is not None else own
        lease = pool.open(prefix, key)
        names = plain.names(prefix, own, prompt - 1)
        expected = plain.hit(names)
        found, free = pool.hit(lease, prompt)
        assert found == len(expected)
        assert free == sum(b in plain.free for b in expected)
        total = prompt + generated
        need = -(-total // SIZE) - found
        if need + free > pool.free:
            pool.close(lease)
        else:
            plain.hold(expected)
            pool.take_hit(lease, found)
            pool.take(need)
            pool.assign(lease, need)
            blocks = expected + plain.take(need)
            for block, name in zip(blocks, plain.names(prefix, own, total), strict=False):
                plain.remember(block, name)
            running.append((lease, blocks, total, keeps))
        assert pool.free == len(plain.free)
        if running and victim < 4:
            end(victim % len(running))
        assert pool.free == len(plain.free)
        assert pool.used == sum(bool(r) for r in plain.refs.values())
    while running:
        end(0)
    assert pool.free == capacity == len(plain.free)


def test_what_was_freed_first_is_evicted_first_and_its_end_before_its_beginning() -> None:
    pool = BlockPool(6, SIZE)

    def run(key: int, tokens: int) -> int:
        lease = pool.open(((key, tokens),), key)
        found, _ = pool.hit(lease, tokens + 1)
        pool.take_hit(lease, found)
        need = -(-tokens // SIZE) - found
        pool.take(need)
        pool.assign(lease, need)
        pool.give_back(lease, tokens)
        pool.close(lease)
        return found

    assert run(1, 12) == 0
    assert run(2, 12) == 0
    assert run(3, 8) == 0  # takes the last two of key 1
    assert pool.evicted == 2
    lease = pool.open(((1, 12),), 1)
    assert pool.hit(lease, 13) == (1, 1)
    pool.close(lease)
    assert run(2, 12) == 3


def test_a_block_that_is_not_full_cannot_be_found() -> None:
    pool = BlockPool(10, SIZE)
    lease = pool.open((), 7)
    pool.take(3)
    pool.assign(lease, 3)
    pool.give_back(lease, 10)
    pool.close(lease)
    lease = pool.open(((7, 12),), 7)
    assert pool.hit(lease, 20) == (2, 2)


def test_the_last_token_is_always_computed() -> None:
    pool = BlockPool(10, SIZE)
    lease = pool.open((), 7)
    pool.take(2)
    pool.assign(lease, 2)
    again = pool.open(((7, 8),), None)
    assert pool.hit(again, 8) == (1, 0)
    assert pool.hit(again, 9) == (2, 0)


def test_without_caching_nothing_is_found() -> None:
    pool = BlockPool(10, SIZE, caching=False)
    lease = pool.open(((1, 8),), None)
    pool.take(2)
    pool.assign(lease, 2)
    pool.give_back(lease, 8)
    assert pool.hit(pool.open(((1, 8),), None), 9) == (0, 0)
    assert pool.free == 10


def test_two_that_compute_the_same_hold_a_copy_each() -> None:
    pool = BlockPool(10, SIZE)
    first, second = pool.open(((1, 8),), None), pool.open(((1, 8),), None)
    for lease in (first, second):
        pool.take(2)
        pool.assign(lease, 2)
    assert pool.used == 4
    pool.give_back(second, 8)
    assert (pool.used, pool.hit(second, 9)) == (2, (2, 0))
    pool.give_back(first, 8)
    assert (pool.used, pool.hit(second, 9)) == (0, (2, 2))


def test_what_follows_a_copy_can_be_found() -> None:
    pool = BlockPool(20, SIZE)
    first, second = pool.open(((1, 8),), 2), pool.open(((1, 8),), 3)
    for lease in (first, second):
        pool.take(4)
        pool.assign(lease, 4)
    for lease in (second, first):
        pool.give_back(lease, 16)
    for key in (2, 3):
        assert pool.hit(pool.open(((1, 8),), key), 17) == (4, 4)


def test_streams_that_nobody_holds_or_has_in_memory_are_forgotten() -> None:
    pool = BlockPool(4, SIZE)
    for key in range(100):
        lease = pool.open(((key, 8),), None)
        pool.take(2)
        pool.assign(lease, 2)
        pool.give_back(lease, 8)
        pool.close(lease)
    assert repr(pool) == "<BlockPool 0 of 4 blocks held, 2 streams>"


def test_a_cache_has_at_least_a_block() -> None:
    with pytest.raises(ValueError, match="at least one block of one token: 0 × 4"):
        BlockPool(0, 4)
