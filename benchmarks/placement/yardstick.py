"""What can be had at once: hits and even work, by one who knows what each cache holds, what each prompt costs and how
long each answer gets. No rival, and no upper bound: a greedy choice, request by request."""

from __future__ import annotations

from math import exp, inf

import numpy as np

from benchmarks.placement.rivals.base import Rival
from benchmarks.placement.work import Prefill
from forebay.plan.simulate import Ready
from forebay.sim.engine import EngineModel
from forebay.sim.workload import Ask

FADES = 30.0
"""Seconds after which work done counts 1/e."""
DECODE = 0.03
"""Seconds that a token of an answer takes, about."""


class Yardstick(Rival):
    """The least of: seconds of prefill ahead + `hit` × seconds of this prompt's own + `even` × (engine-seconds of work
    that the engine was given lately − the mean). A hit counts for more than it saves now, since what is computed twice
    takes another's place in a cache."""

    def __init__(self, engines: int, ready: Ready, *, hit: float = 30.0, even: float = 1.0) -> None:
        super().__init__(engines)
        self._prefill = Prefill(ready.steps, ready.settings, ready.settings.max_model_len)
        self._kv_tokens = ready.settings.kv_tokens
        self._hit, self._even = hit, even
        self._models: list[EngineModel] = []
        self._ahead = [0.0] * engines
        self._worked = [0.0] * engines
        self._since = 0.0
        self._owing: dict[int, float] = {}

    def watch(self, model: EngineModel) -> None:
        self._models.append(model)

    def choose(self, ask: Ask, row: int, now: float) -> int:
        faded, self._since = exp((self._since - now) / FADES), now
        self._worked = [work * faded for work in self._worked]
        mean = sum(self._worked) / len(self._worked)
        cached = [min(self._models[i].cached(ask.prefix), ask.prompt_tokens - 1) for i in self.live]
        seconds = self._prefill.seconds(np.array([ask.prompt_tokens, *cached], float))
        least, chosen, own = inf, -1, 0.0
        for i, found in zip(self.live, seconds[1:], strict=True):
            mine = float(seconds[0] - found)
            score = self._ahead[i] + self._hit * mine + self._even * (self._worked[i] - mean)
            if score < least:
                least, chosen, own = score, i, mine
        output = ask.output_tokens
        held = (ask.prompt_tokens + output / 2) / self._kv_tokens
        self._worked[chosen] += own + held * output * DECODE
        self._ahead[chosen] += own
        self._owing[row] = own
        return chosen

    def on_first_token(self, row: int, engine: int, now: float) -> None:
        self._ahead[engine] -= self._owing.pop(row)

    def on_end(self, row: int, engine: int, now: float, tokens: int) -> None:
        super().on_end(row, engine, now, tokens)
        self._ahead[engine] -= self._owing.pop(row, 0.0)

    def join(self, engine: int, now: float) -> None:
        super().join(engine, now)
        self._worked[engine] = sum(self._worked) / len(self._worked)
