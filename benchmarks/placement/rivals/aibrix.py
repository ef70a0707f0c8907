"""AIBrix's gateway, routing strategy `prefix-cache`.

Source: vllm-project/aibrix (commit e3e10f9), pkg/plugins/gateway/algorithms/prefix_cache.go (imbalance by 8 requests,
one standard deviation) and pkg/utils/prefixcacheindexer/hash.go (200,000 blocks, 20 minutes). A block is of 512
characters as in its own benchmark (brixbench/benchmark/testdata/scenarios): the default of 4 would keep no more than
200,000 tokens of all engines together.
"""

from __future__ import annotations

from collections import OrderedDict
from statistics import fmean, stdev

from benchmarks.placement.rivals.base import CHARS_PER_TOKEN, Key, Rival, whole
from forebay.sim.workload import Ask


class PrefixCache(Rival):
    """The longest match, in whole percent of the prompt's blocks, among the engines whose requests are at most a
    standard deviation over the mean; equal ones by requests. Where an engine has over 8 requests more than another,
    only those with the fewest are looked at. Without a match, the fewest requests. Counts are the gateway's own. One
    LRU table for all engines."""

    def __init__(
        self,
        engines: int,
        seed: int = 0,
        *,
        imbalance: int = 8,
        deviations: float = 1.0,
        block_chars: int = 512,
        blocks: int = 200_000,
        seconds: float = 1_200.0,
    ) -> None:
        super().__init__(engines, seed)
        self._imbalance = imbalance
        self._deviations = deviations
        self._block = block_chars // CHARS_PER_TOKEN
        self._most = blocks * self._block
        self._seconds = seconds
        self._table: OrderedDict[Key, tuple[int, float, set[int]]] = OrderedDict()  # tokens, when last used, by whom
        self._size = 0

    def choose(self, ask: Ask, row: int, now: float) -> int:
        counts = [self.counts[i] for i in self.live]
        least = min(counts)
        ready = self.live
        if max(counts) - least > self._imbalance:
            ready = [i for i in ready if self.counts[i] == least]
        matched = self._match(ask, ready)
        chosen = -1
        if matched:
            limit = fmean(counts) + self._deviations * (stdev(counts) if len(counts) > 1 else 0.0)
            order = list(matched)
            self.random.shuffle(order)
            order.sort(key=lambda i: (-matched[i], self.counts[i]))
            chosen = next((i for i in order if self.counts[i] <= limit), -1)
        if chosen < 0:
            chosen = self.fewest()
        self._note(ask, row, chosen, now)
        return chosen

    def _match(self, ask: Ask, ready: list[int]) -> dict[int, int]:
        found: dict[int, int] = {}
        blocks = ask.prompt_tokens // self._block
        left, tokens = set(ready), 0
        for key, size in ask.prefix:
            entry = self._table.get(key)
            left = left & entry[2] if entry else set()
            if not left:
                break
            tokens += size
            percent = tokens // self._block * 100 // max(1, blocks)
            for i in left:
                found[i] = percent
        return found

    def _note(self, ask: Ask, row: int, engine: int, now: float) -> None:
        table = self._table
        for key, tokens in whole(ask, row):
            entry = table.get(key)
            if entry is None:
                self._size += tokens
                table[key] = (tokens, now, {engine})
            else:
                entry[2].add(engine)
                table[key] = (tokens, now, entry[2])
                table.move_to_end(key)
        while table:
            tokens, used, _ = table[next(iter(table))]
            if self._size <= self._most and now - used <= self._seconds:
                break
            table.popitem(last=False)
            self._size -= tokens
