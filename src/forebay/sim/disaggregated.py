"""The gateway's disaggregation in the simulator: the very same object, told of modelled engines."""

from __future__ import annotations

from typing import NamedTuple

from forebay.policy.disaggregation import Disaggregation, SplitRules
from forebay.policy.prior import PrefillPrior
from forebay.sim.cluster import Immediate
from forebay.sim.workload import Ask


class _Ask(NamedTuple):
    decode: int
    prefill: int
    """The engine that computes its prompt; its own where it is whole."""
    tokens: int


class Disaggregated(Immediate):
    """A `cluster.Policy` and `cluster.Splitter`: each request has a place on the decode engine with the fewest (and of
    those, the fewest prompt tokens), before anything is computed. Prompts go whole to it, or to one of the engines 0 …
    `prefills` - 1.

    State: the policy, and what is on each decode engine.
    """

    def __init__(self, rules: SplitRules, prefills: int, decoders: int, prior: PrefillPrior) -> None:
        self.policy = Disaggregation(rules)
        self.split = 0
        """Requests whose prompt went elsewhere."""
        for i in range(prefills + decoders):
            self.policy.engine_here(str(i), prior)
        self._prefills = tuple(map(str, range(prefills)))
        self._first = prefills
        self._step = prior.decode_step_s
        self._on = [0] * decoders
        self._tokens = [0] * decoders
        self._decoding = [0] * decoders
        self._asks: dict[int, _Ask] = {}
        self._handed: dict[int, float] = {}
        self._answering: set[int] = set()

    def on_arrival(self, ask: Ask, row: int, now: float) -> int:
        on, tokens, policy = self._on, self._tokens, self.policy
        place = min(range(len(on)), key=lambda i: (on[i], tokens[i]))
        on[place] += 1
        tokens[place] += ask.prompt_tokens
        decode, decoding = str(self._first + place), self._decoding[place]
        whole = policy.whole(decode, ask.prompt_tokens, now, decoding=decoding)
        found = policy.decide(decode, ask.prompt_tokens, whole, self._prefills, now, step=self._step)
        if found is None:
            policy.began(row, decode, ask.prompt_tokens, now, decoding=decoding)
            self._asks[row] = _Ask(place, self._first + place, ask.prompt_tokens)
            return self._first + place
        self.split += 1
        policy.began(row, found.prefill, ask.prompt_tokens, now)
        self._asks[row] = _Ask(place, int(found.prefill), ask.prompt_tokens)
        return int(found.prefill)

    def decode_of(self, row: int) -> int:
        return self._first + self._asks[row].decode

    def on_prefilled(self, row: int, now: float) -> None:
        self.policy.computed(row, str(self._asks[row].prefill), now)
        self._handed[row] = now

    def on_first_token(self, row: int, engine: int, now: float) -> None:
        ask = self._asks[row]
        self._decoding[ask.decode] += 1
        self._answering.add(row)
        handed = self._handed.pop(row, None)
        if handed is None:
            self.policy.computed(row, str(ask.prefill), now)
        else:
            self.policy.fetched(str(self._first + ask.decode), ask.tokens, now - handed, step=self._step)

    def on_end(self, row: int, engine: int, now: float, tokens: int) -> None:
        ask = self._asks.pop(row)
        self._on[ask.decode] -= 1
        self._tokens[ask.decode] -= ask.tokens
        if row in self._answering:
            self._answering.discard(row)
            self._decoding[ask.decode] -= 1
        else:
            self._handed.pop(row, None)
            self.policy.gone(row, str(ask.prefill), now)

    def __repr__(self) -> str:
        return f"<Disaggregated {self._on[:8]} on decode engines, {self.split} split>"
