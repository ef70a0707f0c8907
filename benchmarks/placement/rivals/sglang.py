"""SGLang's router, policy `cache_aware`.

Source: sgl-project/sglang, sgl-model-gateway/src/policies/cache_aware.rs (commit 053b63f) and tree.rs (03744db);
defaults of the command line in sgl-model-gateway/src/main.rs: eviction every 120 s, 67,108,864 characters a worker.
"""

from __future__ import annotations

from benchmarks.placement.rivals.base import CHARS_PER_TOKEN, Rival, Sent, whole
from forebay.sim.workload import Ask


class CacheAware(Rival):
    """While no worker has over `absolute` requests more than another and `relative` times as many: the worker that the
    tree names for the longest match, where that covers more than `threshold` of the text; else the one with the fewest
    requests. The tree names the worker that first sent that way, whatever its load. Loads are the router's own counts.

    An older version (sgl-router, commit 026f853) takes the smallest tree where the match is too short.
    """

    def __init__(
        self,
        engines: int,
        seed: int = 0,
        *,
        threshold: float = 0.3,
        absolute: int = 64,
        relative: float = 1.5,
        evict_every: float = 120.0,
        tree_chars: int = 67_108_864,
    ) -> None:
        super().__init__(engines, seed)
        self._threshold = threshold
        self._absolute = absolute
        self._relative = relative
        self._tree = Sent(engines)
        self._evict_every = evict_every
        self._evict_at = evict_every
        self._most = tree_chars / CHARS_PER_TOKEN

    def choose(self, ask: Ask, row: int, now: float) -> int:
        if now >= self._evict_at:
            self._evict_at = now + self._evict_every
            for i in range(len(self.counts)):
                self._tree.trim(i, self._most)
        chosen = self._chosen(ask)
        self._tree.note(chosen, whole(ask, row))
        return chosen

    def _chosen(self, ask: Ask) -> int:
        loads = [self.counts[i] for i in self.live]
        least, most = min(loads), max(loads)
        first = self.live[loads.index(least)]
        if most - least > self._absolute and most > least * self._relative:
            return first
        matched, named = 0, -1
        for key, tokens in ask.prefix:
            holders = self._tree.holders.get(key)
            if not holders:
                break
            matched += tokens
            named = next(iter(holders))
        return named if matched > self._threshold * ask.prompt_tokens else first

    def leave(self, engine: int, now: float) -> None:
        super().leave(engine, now)
        self._tree.forget(engine)
