"""llm-d's scheduler, the endpoint picker of the Gateway API inference extension.

Source: llm-d/llm-d-inference-scheduler (commit 520af47): weights in config/charts/epplib/templates/_config.yaml (queue
2, KV-cache utilisation 2, prefix 3); scorers and max-score picker in pkg/epp/framework/plugins/scheduling; the table of
prefixes in pkg/epp/framework/plugins/requestcontrol/dataproducer/approximateprefix: size of a block and of the LRU as
the engine reports them, at most 256 blocks of a prompt. Scraped every 50 ms (pkg/epp/server/options.go).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

from benchmarks.placement.rivals.base import Pieces, Rival, Sent, whole
from forebay.sim.cluster import Engine
from forebay.sim.jobs import Job
from forebay.sim.workload import Ask


class Scorers(Rival):
    """The highest sum of 2 × (most waiting − waiting) / (most − least waiting), 1 where all are equal; 2 × the free
    share of the KV cache; 3 × the share of the prompt's blocks, of the first `most_blocks`, that are in the engine's
    LRU table of what was sent there. One of equals by lot."""

    def __init__(
        self, engines: int, kv_tokens: int, seed: int = 0, *, queue: float = 2.0, kv: float = 2.0,
        prefix: float = 3.0, block: int = 16, most_blocks: float = 256, report_every: float = 0.05,
    ) -> None:  # fmt: skip
        super().__init__(engines, seed)
        self.report_every = report_every
        self._weights = queue, kv, prefix
        self._most = most_blocks * block
        self._sent = Sent(engines, kv_tokens)
        self._waiting = [0] * engines
        self._usage = [0.0] * engines

    def choose(self, ask: Ask, row: int, now: float) -> int:
        pieces = self._first(whole(ask, row))
        matched = self._sent.match(pieces, self.live)
        total = min(ask.prompt_tokens, self._most)
        waiting = [self._waiting[i] for i in self.live]
        least, most = min(waiting), max(waiting)
        queue, kv, prefix = self._weights
        best, found = -inf, [-1]
        for i in self.live:
            idle = (most - self._waiting[i]) / (most - least) if most > least else 1.0
            score = queue * idle + kv * (1 - self._usage[i]) + prefix * matched.get(i, 0) / total
            if score > best:
                best, found = score, [i]
            elif score == best:
                found.append(i)
        chosen = self.random.choice(found)
        self._sent.note(chosen, pieces)
        return chosen

    def _first(self, pieces: Pieces) -> Pieces:
        """What stands in the first blocks."""
        out, left = [], self._most
        for key, tokens in pieces:
            if left < tokens:
                break
            out.append((key, tokens))
            left -= tokens
        return out

    def on_report(self, engine: int, model: Engine, jobs: Mapping[int, Job], now: float) -> None:
        self._waiting[engine] = model.waiting
        self._usage[engine] = model.kv_usage

    def leave(self, engine: int, now: float) -> None:
        super().leave(engine, now)
        self._sent.forget(engine)
