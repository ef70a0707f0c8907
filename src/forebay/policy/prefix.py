"""Which engine holds the KV of which prefix, as learned from what was sent where.

A prompt's bytes are cut into blocks of `BLOCK_BYTES`; each block's number is a hash of the block and the number before
it, so that one number stands for everything up to there (`chain`). Chains begin at a salt: the tenant, the model and
what else the engine puts before the messages. For each engine the numbers are kept in order of use, as many as its KV
cache has room for; the least recently used go first, of one prompt the end before the beginning, as engines do it.

What is kept of a block: an entry in the dict of its holders, and one in the order of each engine that holds it. The
holders of a number are the bits of an int, and equal ints are one object. A dict that lost a quarter of its entries to
others is copied: it would grow to six places an entry, and stays under four so. The holders are in many dicts, so
that no copy takes long.

What is sent is counted as there at once: an engine that computes prompts in order has the first one's blocks when the
second comes to be computed. What the engine then says of cached tokens (`observe`) moves two things: how far a match is
believed (`trust`, an average of what was there of what was thought to be there), and how much of the engine's capacity
its order may fill. KV events (`lost`, `forget`) take blocks out by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Final

from xxhash import xxh3_64_intdigest

BLOCK_BYTES: Final = 512
"""About 128 tokens of English as JSON; 80 to 170 of other text."""
BLOCK_TOKENS: Final = 128
MOST_BLOCKS: Final = 2_048
"""Of one prompt that are looked at: a mebibyte. What follows is taken to be its own."""
BYTES_A_BLOCK: Final = 160
"""What one is reckoned at where the index is bounded by bytes."""
MOST_BYTES: Final = 256 << 20
_BITS: Final = (1 << 60) - 1  # an int of 60 bits takes 32 bytes, one of 64 takes 36
_SHARDS: Final = 64
_MASKS: Final = 65_536
"""Sets of more than one holder that are kept as one object each."""
MOST_TOKENS: Final = 1 << 28
"""That one engine is believed to hold: one that says more by mistake would take the index from all others."""
UNKNOWN: Final = 4_096
"""Blocks of an engine that does not say how much it holds."""
_TRUST_RATE: Final = 0.05
_SHRINK: Final = 0.02
_GROW: Final = 0.005
LEAST_SCALE: Final = 0.1
_NOTHING: Final = 6
"""Matches in a row of which an engine had nothing: it was started anew, or caches nothing."""


def salted(*parts: bytes) -> int:
    """Where a chain begins: of tenant, model and whatever an engine puts before the messages."""
    salt = 0
    for part in parts:
        salt = xxh3_64_intdigest(part, salt)
    return salt & _BITS


def chain(text: bytes, salt: int) -> list[int]:
    """A number for each full block of `text`, at most `MOST_BLOCKS`."""
    numbers: list[int] = []
    add = numbers.append
    for at in range(BLOCK_BYTES, min(len(text), MOST_BLOCKS * BLOCK_BYTES) + 1, BLOCK_BYTES):
        salt = xxh3_64_intdigest(text[at - BLOCK_BYTES : at], salt) & _BITS
        add(salt)
    return numbers


class _Holder:
    """One engine's part. State: its numbers, least recently used first."""

    __slots__ = ("bit", "capacity", "deleted", "misses", "name", "order", "scale", "trust")

    def __init__(self, name: str, bit: int) -> None:
        self.name = name
        self.bit = bit
        self.capacity = UNKNOWN
        self.order: dict[int, None] = {}
        self.scale = 1.0
        self.trust = 1.0
        self.misses = 0
        self.deleted = 0
        """Entries of `order` since it was copied."""

    def most(self, share: float) -> int:
        return max(1, int(self.capacity * self.scale * share))


class PrefixIndex:
    """Mutable state: the holders of each number, an order of numbers for each engine. Bounded by what the engines' KV
    caches hold, and by `most_bytes` in all: where those are less, every engine is kept track of in proportion."""

    def __init__(self, most_bytes: int = MOST_BYTES, *, block_tokens: int = BLOCK_TOKENS) -> None:
        if most_bytes < BYTES_A_BLOCK or block_tokens < 1:
            raise ValueError(f"a prefix index needs room for a block of at least one token: {most_bytes} bytes")
        self.block_tokens = block_tokens
        self._most = most_bytes // BYTES_A_BLOCK
        self._total = 0  # blocks of all engines
        self._share = 1.0
        self._holders: list[dict[int, int]] = [{} for _ in range(_SHARDS)]
        self._deleted = [0] * _SHARDS
        self._engines: dict[str, _Holder] = {}
        self._slots: list[_Holder | None] = []
        self._masks: dict[int, int] = {}

    def resize(self, most_bytes: int) -> None:
        """Another bound; what is over it goes as more is sent."""
        self._most = max(1, most_bytes // BYTES_A_BLOCK)
        self._share = min(1.0, self._most / self._total) if self._total else 1.0

    # --- engines -----------------------------------------------------------------------------------------------------

    def engine(self, name: str, kv_tokens: int | None) -> None:
        """An engine is here, or says another capacity. None: not known."""
        one = self._engines.get(name)
        if one is None:
            try:
                slot = self._slots.index(None)
            except ValueError:
                slot = len(self._slots)
                self._slots.append(None)
            one = self._engines[name] = self._slots[slot] = _Holder(name, 1 << slot)
            self._total += UNKNOWN
        elif kv_tokens is None:
            return
        capacity = UNKNOWN if kv_tokens is None else max(1, min(kv_tokens, MOST_TOKENS) // self.block_tokens)
        if capacity != one.capacity or not one.order:
            self._total += capacity - one.capacity
            one.capacity = capacity
            self._share = min(1.0, self._most / self._total)
            self._trim(one)

    def gone(self, name: str) -> None:
        """An engine is not here any more."""
        one = self._engines.pop(name, None)
        if one is not None:
            self._clear(one)
            self._slots[one.bit.bit_length() - 1] = None
            self._total -= one.capacity
            self._share = min(1.0, self._most / self._total) if self._total else 1.0

    def forget(self, name: str) -> None:
        """An engine's cache is empty."""
        one = self._engines.get(name)
        if one is not None:
            self._clear(one)

    # --- prompts -----------------------------------------------------------------------------------------------------

    def match(self, numbers: Sequence[int]) -> dict[str, int]:
        """How many blocks from the beginning each engine holds; those that hold none are left out."""
        if not numbers:
            return {}
        holders = self._holders
        first = numbers[0]
        alive = holders[first % _SHARDS].get(first, 0)
        if not alive:
            return {}
        found: dict[str, int] = {}
        depth = 1
        for number in islice(numbers, 1, None):
            still = alive & holders[number % _SHARDS].get(number, 0)
            if still != alive:
                self._name(alive ^ still, depth, found)
                if not still:
                    return found
                alive = still
            depth += 1
        self._name(alive, depth, found)
        return found

    def sent(self, name: str, numbers: Sequence[int]) -> None:
        """A prompt goes to an engine, which will then hold it. Says nothing of an engine that is not here."""
        one = self._engines.get(name)
        if one is None or not numbers:
            return
        holders, order, bit = self._holders, one.order, one.bit
        for number in reversed(numbers):
            if number in order:
                del order[number]
                order[number] = None
                one.deleted += 1
                continue
            order[number] = None
            shard = holders[number % _SHARDS]
            mask = shard.get(number)
            if mask is None:
                shard[number] = bit
            elif not mask & bit:
                shard[number] = self._one(mask | bit)
        self._trim(one)

    def observe(self, name: str, matched: int, cached: float) -> None:
        """An engine said how much of a prompt was cached: `cached` blocks, where `matched` were thought to be."""
        one = self._engines.get(name)
        if one is None:
            return
        if matched < 1:
            if cached >= 1:
                one.scale = min(1.0, one.scale + _GROW)
            return
        share = cached / matched
        if share < 0.5 / matched:
            one.misses += 1
            if one.misses >= _NOTHING:
                one.misses = 0
                self._clear(one)
        else:
            one.misses = 0
        one.trust += _TRUST_RATE * (min(1.0, share) - one.trust)
        if share < 1 - 1.5 / matched:
            one.scale = max(LEAST_SCALE, one.scale * (1 - _SHRINK))
        else:
            one.scale = min(1.0, one.scale + _GROW)

    def lost(self, name: str, numbers: Sequence[int], keep: int) -> None:
        """Of this chain, an engine holds the first `keep` blocks and no more."""
        one = self._engines.get(name)
        if one is None:
            return
        for number in islice(numbers, max(0, keep), None):
            if number in one.order:
                del one.order[number]
                one.deleted += 1
                self._drop(number, one.bit)

    # --- inside ------------------------------------------------------------------------------------------------------

    def _one(self, mask: int) -> int:
        """The same set of holders, one object for all."""
        found = self._masks.get(mask)
        if found is None:
            if len(self._masks) >= _MASKS:
                self._masks.clear()
            found = self._masks[mask] = mask
        return found

    def _name(self, mask: int, depth: int, found: dict[str, int]) -> None:
        slots = self._slots
        while mask:
            low = mask & -mask
            one = slots[low.bit_length() - 1]
            if one is not None:
                found[one.name] = depth
            mask ^= low

    def _trim(self, one: _Holder) -> None:
        """Down to what it may fill, some more at a time: the first entries of a dict are slow to find behind deleted
        ones."""
        order = one.order
        most = one.most(self._share)
        over = len(order) - most
        if over > 0:
            some = list(islice(order, min(len(order), over + most // 32)))
            one.deleted += len(some)
            for number in some:
                del order[number]
                self._drop(number, one.bit)
        if one.deleted > 32 + len(order) // 4:
            one.order = dict(order)
            one.deleted = 0

    def _drop(self, number: int, bit: int) -> None:
        i = number % _SHARDS
        shard = self._holders[i]
        rest = shard[number] & ~bit
        if rest:
            shard[number] = self._one(rest)
            return
        del shard[number]
        self._deleted[i] += 1
        if self._deleted[i] > 32 + len(shard) // 4:
            self._holders[i] = dict(shard)
            self._deleted[i] = 0

    def _clear(self, one: _Holder) -> None:
        order, one.order, one.deleted = one.order, {}, 0
        for number in order:
            self._drop(number, one.bit)

    def held(self, name: str) -> int:
        """Blocks that an engine is taken to hold."""
        one = self._engines.get(name)
        return len(one.order) if one is not None else 0

    def trust(self, name: str) -> float:
        one = self._engines.get(name)
        return one.trust if one is not None else 0.0

    def __len__(self) -> int:
        """Numbers that any engine holds."""
        return sum(map(len, self._holders))

    def __repr__(self) -> str:
        return f"<PrefixIndex {len(self)} blocks on {len(self._engines)} engines>"
