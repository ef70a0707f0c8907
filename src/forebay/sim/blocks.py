"""The identity of a prompt's KV blocks, as vLLM's prefix cache sees it (vllm/v1/core/kv_cache_utils.py).

A full block of tokens is known by a hash of its own tokens and of the hash of the block before it, the first one by
what the whole content belongs to: so equal keys mean equal content from the beginning.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence


def block_keys(tokens: Sequence[Hashable], size: int, owner: Hashable) -> tuple[tuple[int, int], ...]:
    """The (key, `size`) of each full block of `size` tokens, as `Job.prefix` takes them. Keys are of this process."""
    key = hash(owner)
    out = []
    for end in range(size, len(tokens) + 1, size):
        key = hash((key, *tokens[end - size : end]))
        out.append((key, size))
    return tuple(out)
