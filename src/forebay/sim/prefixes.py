"""The chain of a simulated prompt's blocks, as the gateway would have hashed them from its bytes."""

from __future__ import annotations

from typing import Final

from xxhash import xxh3_64_intdigest

from forebay.policy.prefix import BLOCK_TOKENS, MOST_BLOCKS
from forebay.sim.workload import Ask

_MIX: Final = 0x9E3779B97F4A7C15
_BITS: Final = (1 << 60) - 1


def chain_of(ask: Ask) -> list[int]:
    """A number for each full block of `BLOCK_TOKENS` tokens that can be shared, at most `MOST_BLOCKS`: made of the key
    of the piece that the block ends in, which stands for all before it, and of where in the piece it ends."""
    pieces = ask.prefix
    if ask.keeps is not None:
        rest = ask.prompt_tokens - sum([tokens for _, tokens in pieces])
        if pieces and pieces[-1][0] == ask.keeps:
            pieces = (*pieces[:-1], (ask.keeps, pieces[-1][1] + rest))
        else:
            pieces = (*pieces, (ask.keeps, rest))
    numbers: list[int] = []
    begin = 0
    end = BLOCK_TOKENS
    for key, tokens in pieces:
        upto = begin + tokens
        seed = (key if isinstance(key, int) else xxh3_64_intdigest(key.encode())) + 1
        while end <= upto and len(numbers) < MOST_BLOCKS:
            numbers.append((seed * _MIX + (end - begin) * 0xD6E8FEB86659FD93) & _BITS)
            end += BLOCK_TOKENS
        begin = upto
    return numbers
