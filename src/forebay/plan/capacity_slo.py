"""The most requests a second that one replica keeps its promise at, and what keeps it from more."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from forebay.plan.capacity_question import PlanError, Promise
from forebay.plan.capacity_queue import NEAR, State, state
from forebay.plan.capacity_rates import Engine

EXACT: Final = 0.01
"""Relative, of the rate that is looked for."""
_CALM: Final = 0.001
"""Of the most that is possible: where nobody waits for anybody."""
_AT_LIMIT: Final = 0.97
"""Of the most that is possible: there the limit binds, and not the promise."""
MORE: Final = 0.2
"""Of each resource, to see what is short."""


@dataclass(frozen=True)
class Binding:
    """What keeps a replica from carrying more."""

    name: str
    """kv, max_num_seqs, prefill or decode: what is short."""
    slo: str
    """ttft or tpot: the promise that would be broken; empty where throughput itself ends."""
    gains: dict[str, float]
    """By how much more requests a second a replica would carry with MORE of each."""
    why: str


@dataclass(frozen=True)
class Sustained:
    """At the most requests a second of one lane that keep the promise."""

    state: State
    binding: Binding

    @property
    def rate(self) -> float:
        return self.state.rate


def kept(found: State, promise: Promise) -> bool:
    return found.at("ttft", promise.percent) <= promise.ttft and found.at("tpot", promise.percent) <= promise.tpot


def floor(engine: Engine, promise: Promise) -> State:
    """The state without load. Raises PlanError where even that does not keep the promise, and says what would."""
    calm = state(engine, _CALM * engine.most.rate)
    if not calm.stable:
        raise PlanError(
            "the KV cache has no room for one request of these lengths; give the engine more memory or shorter requests"
        )
    least = calm.at("ttft", promise.percent)
    if least > promise.ttft:
        prompt = engine.lengths.quantile("prompt", promise.percent / 100)
        raise PlanError(
            f"--slo-ttft {promise.ttft:g} is below what the hardware can do: with nobody else there, "
            f"P{promise.percent:g} of TTFT is {least:.3g} s (P{promise.percent:g} of the prompts is {prompt:,.0f} "
            f"tokens); give {_above(least)} or more, more tensor parallelism, or a faster GPU"
        )
    least = calm.at("tpot", promise.percent)
    if least > promise.tpot:
        raise PlanError(
            f"--slo-tpot {promise.tpot:g} is below what the hardware can do: one sequence alone gets a token every "
            f"{least:.3g} s, since all weights are read for each; give {_above(least)} or more, fewer bits a weight, "
            "more tensor parallelism, or a GPU with more bandwidth"
        )
    return calm


def _above(seconds: float) -> str:
    """Rounded up to two digits."""
    scale = 10 ** (math.floor(math.log10(seconds)) - 1)
    return f"{math.ceil(seconds / scale + 1e-9) * scale:.3g}"


def sustain(engine: Engine, promise: Promise) -> Sustained:
    """By formulas. Raises PlanError where the promise cannot be kept at all."""
    found = highest(engine, promise)
    return Sustained(found, binding(engine, promise, found))


def highest(engine: Engine, promise: Promise, exact: float = EXACT) -> State:
    """The state at the most requests a second that keep the promise, to `exact` of it. Raises PlanError where it cannot
    be kept at all."""
    best = floor(engine, promise)
    low, high = best.rate, NEAR * engine.most.rate
    while high - low > exact * high:
        middle = (low + high) / 2
        found = state(engine, middle)
        if kept(found, promise):
            low, best = middle, found
        else:
            high = middle
    return best


def binding(engine: Engine, promise: Promise, at: State) -> Binding:
    """Of the state at the most that is kept: each resource made MORE, what gives the most is what is short."""
    lane, lengths, hit = engine.lane, engine.lengths, engine.cache_hit
    tried = {
        "kv": Engine(replace(lane, kv_tokens=lane.kv_tokens * (1 + MORE)), lengths, hit),
        "max_num_seqs": Engine(replace(lane, max_num_seqs=math.ceil(lane.max_num_seqs * (1 + MORE))), lengths, hit),
        "prefill": Engine(lane, lengths, hit, (1 + MORE, 1.0)),
        "decode": Engine(lane, lengths, hit, (1.0, 1 + MORE)),
    }
    gains = {name: _gain(other, promise, at.rate) for name, other in tried.items()}
    name = max(gains, key=lambda name: gains[name])
    slo = ""
    if at.rate < _AT_LIMIT * engine.most.rate:
        ttft = at.at("ttft", promise.percent) / promise.ttft
        slo = "tpot" if at.at("tpot", promise.percent) / promise.tpot > ttft else "ttft"
    more = f"; {MORE:.0%} more of it would carry {gains[name]:.0%} more"
    return Binding(name, slo, gains, _WHY[name](engine, at) + more)


def _gain(engine: Engine, promise: Promise, rate: float) -> float:
    low, high = 0.0, 2 * MORE
    for _ in range(5):
        middle = (low + high) / 2
        if kept(state(engine, rate * (1 + middle)), promise):
            low = middle
        else:
            high = middle
    return round(low, 3)


def _kv(engine: Engine, at: State) -> str:
    return (
        f"the KV cache holds {engine.slots_of_kv:,.0f} sequences of {engine.held:,.0f} tokens in the mean "
        f"({engine.lane.kv_tokens:,.0f} tokens); {at.running:,.0f} run, and {at.no_place:.1%} of requests find no room"
    )


def _sequences(engine: Engine, at: State) -> str:
    return (
        f"max_num_seqs {engine.lane.max_num_seqs} lets no more run at once; {at.running:,.0f} do, and "
        f"{at.no_place:.1%} of requests find no place"
    )


def _prefill(engine: Engine, at: State) -> str:
    return (
        f"prompts share the steps with those that decode: a step takes {at.step * 1e3:.3g} ms in the mean, "
        f"{engine.step(at.decoding, 0) * 1e3:.3g} ms without one, "
        f"{engine.step(at.decoding, engine.lane.max_num_batched_tokens) * 1e3:.3g} ms when it is full"
    )


def _decode(engine: Engine, at: State) -> str:
    return (
        f"a step that decodes {at.decoding:,.0f} sequences reads weights and KV for "
        f"{engine.step(at.decoding, 0) * 1e3:.3g} ms of its {at.step * 1e3:.3g} ms"
    )


_WHY: Final[dict[str, Callable[[Engine, State], str]]] = {
    "kv": _kv,
    "max_num_seqs": _sequences,
    "prefill": _prefill,
    "decode": _decode,
}
