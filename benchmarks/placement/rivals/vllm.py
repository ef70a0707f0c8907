"""vLLM's production stack, `--routing-logic prefixaware`.

Source: vllm-project/production-stack (commit a6c01db), src/vllm_router/routers/routing_logic.py (PrefixAwareRouter) and
src/vllm_router/prefix/hashtrie.py. (vllm-project/router's `cache_aware` is SGLang's.)
"""

from __future__ import annotations

from benchmarks.placement.rivals.base import Rival, Sent
from forebay.sim.workload import Ask


class PrefixAware(Rival):
    """Down a trie of the prompt's chunks of 128 characters as long as an engine is left that was sent all of them, then
    one of those that are left by lot: of all, where the first chunk is new. Nothing is forgotten, load is not looked
    at, and the least match that counts is 0 characters, so that it never falls back on the rate of requests."""

    def __init__(self, engines: int, seed: int = 0) -> None:
        super().__init__(engines, seed)
        self._trie = Sent(engines)

    def choose(self, ask: Ask, row: int, now: float) -> int:
        left = self.live
        for key, _ in ask.prefix:
            holders = self._trie.holders.get(key)
            matched = [i for i in left if i in holders] if holders else []
            if not matched:
                break
            left = matched
        chosen = self.random.choice(left)
        self._trie.note(chosen, ask.prefix)
        return chosen
