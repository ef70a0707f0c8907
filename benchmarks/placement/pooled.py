"""The yardstick of hits: one LRU cache as large as all engines' together, over all requests in order of arrival.

Exact in the trace's own blocks. A prompt is in it the moment it arrives and nobody who decodes holds anything, so that
it finds more than engines that take time could.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from forebay.sim.workload import Ask

Key = int | str


def hits(asks: Iterable[Ask], capacity: float) -> dict[str, float]:
    """Shares of the prompts' tokens, and of their blocks, found from their begins on. `capacity` in tokens."""
    cache: OrderedDict[Key, int] = OrderedDict()
    used = found = total = found_blocks = blocks = own = 0
    for ask in asks:
        total += ask.prompt_tokens
        blocks += len(ask.prefix)
        for key, tokens in ask.prefix:
            if key not in cache:
                break
            found += tokens
            found_blocks += 1
        rest = ask.prompt_tokens - sum(tokens for _, tokens in ask.prefix)
        if rest:  # nobody asks for it again, and it takes room
            own += 1
            cache[f"own {own}"] = rest
            used += rest
        for key, tokens in reversed(ask.prefix):  # so that its end goes before its begin
            if key in cache:
                cache.move_to_end(key)
            else:
                cache[key] = tokens
                used += tokens
        while used > capacity:
            used -= cache.popitem(last=False)[1]
    return {"tokens": found / total, "blocks": found_blocks / blocks if blocks else 0.0}
