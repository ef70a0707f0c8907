"""NVIDIA Dynamo's KV router, `--router-mode kv`.

Source: ai-dynamo/dynamo, lib/kv-router/src/scheduling/selector/default.rs (commit 07a6c9c) and config.rs (0243c51):
overlap credit 1, prefill load scale 1, temperature 0, output blocks not tracked, active blocks shared by those who have
the same prefix. What caches hold is known from KV events. Its own queue, which holds requests back while every engine
has 16 steps of prefill ahead, is left out.
"""

from __future__ import annotations

from collections import Counter
from math import exp

from benchmarks.placement.rivals.base import Key, Rival, whole
from forebay.sim.engine import EngineModel
from forebay.sim.workload import Ask


class KvCost(Rival):
    """The least of: prefill blocks to be computed on an engine, this request's with them but for what is cached there,
    × `scale`, + blocks active there, this request's with them. With a `temperature`, drawn by the softmax of the costs
    scaled to 0 … 1. Prefill counts until the first token, active blocks until the end."""

    def __init__(
        self, engines: int, seed: int = 0, *, block: int = 16, credit: float = 1.0, scale: float = 1.0,
        temperature: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__(engines, seed)
        self._block = block
        self._credit = credit
        self._scale = scale
        self._temperature = temperature
        self._models: list[EngineModel] = []
        self._prefill = [0] * engines  # tokens
        self._active = [0] * engines  # tokens, shared ones once
        self._shared: list[Counter[Key]] = [Counter() for _ in range(engines)]
        self._asks: dict[int, tuple[Ask, int]] = {}  # by row: and the tokens that it adds to prefill

    def watch(self, model: EngineModel) -> None:
        self._models.append(model)

    def choose(self, ask: Ask, row: int, now: float) -> int:
        costs: dict[int, float] = {}
        cached: dict[int, int] = {}
        pieces = whole(ask, row)
        for i in self.live:
            cached[i] = self._models[i].cached(ask.prefix) // self._block * self._block
            prefill = self._prefill[i] + ask.prompt_tokens - self._credit * cached[i]
            shared = self._shared[i]
            decode = self._active[i] + sum(tokens for key, tokens in pieces if key not in shared)
            costs[i] = (self._scale * max(0.0, prefill) + decode) / self._block
        chosen = self._pick(costs)
        self._begin(ask, row, chosen, ask.prompt_tokens - cached[chosen])
        return chosen

    def _pick(self, costs: dict[int, float]) -> int:
        least, most = min(costs.values()), max(costs.values())
        if not self._temperature or least == most:
            return self.random.choice([i for i, cost in costs.items() if cost == least])
        spread = (most - least) * self._temperature
        return self.random.choices(list(costs), [exp((least - cost) / spread) for cost in costs.values()])[0]

    def _begin(self, ask: Ask, row: int, engine: int, prefill: int) -> None:
        self._prefill[engine] += prefill
        self._asks[row] = (ask, prefill)
        shared = self._shared[engine]
        for key, tokens in whole(ask, row):
            if key not in shared:
                self._active[engine] += tokens
            shared[key] += 1

    def on_first_token(self, row: int, engine: int, now: float) -> None:
        ask, prefill = self._asks[row]
        self._prefill[engine] -= prefill
        self._asks[row] = (ask, 0)

    def on_end(self, row: int, engine: int, now: float, tokens: int) -> None:
        super().on_end(row, engine, now, tokens)
        ask, prefill = self._asks.pop(row)
        self._prefill[engine] -= prefill
        shared = self._shared[engine]
        for key, size in whole(ask, row):
            shared[key] -= 1
            if not shared[key]:
                del shared[key]
                self._active[engine] -= size
