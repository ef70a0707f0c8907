"""How long requests wait for their first token and between tokens, at a rate, on one engine of `capacity_rates`.

Two queues, one after the other. For a place among the running sequences: a birth-death chain in the number of sequences
(as of a processor-sharing queue with a rate that depends on how many there are, whose distribution does not depend on
that of the lengths). For prefill: Lindley's recursion over steps, from `Engine.waiting`. Their times are put together
with drawn numbers of a fixed seed, so equal questions have equal answers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from forebay.plan.capacity_lengths import Floats
from forebay.plan.capacity_rates import Engine

DRAWS: Final = 8_192
"""Requests whose times are put together: the P99 stands on 82 of them."""
NEAR: Final = 0.999
"""Of the most that an engine can do: what is nearer has no steady state that formulas say anything about."""

_Z: Final = tuple(i / 20 for i in range(-120, 121))
_BEYOND: Final = tuple(0.5 * math.erfc(z / math.sqrt(2)) for z in _Z)
"""Probability that a standard normal variable is more than each of them."""


@dataclass(frozen=True)
class State:
    """A lane at a rate, in its steady state. Seconds."""

    rate: float
    decoding: float
    """Sequences, in the mean."""
    step: float
    """Mean step."""
    running: float
    """Sequences that hold a place, prefilling ones too."""
    busy: float
    """Share of time that a step runs, 0 to 1."""
    prefill_share: float
    """Of the tokens a step may have beside the decoding ones, how many are used, 0 to 1."""
    no_place: float
    """Share of requests that wait for a place."""
    ttft: Floats = field(repr=False)
    tpot: Floats = field(repr=False)
    parts: dict[str, float] = field(default_factory=dict)
    """Mean seconds of what TTFT is made of."""
    e2e: float = math.inf

    def at(self, of: str, percent: float) -> float:
        """A percentile of `ttft` or `tpot`; infinite where there is no steady state."""
        values = self.ttft if of == "ttft" else self.tpot
        return float(np.quantile(values, percent / 100, method="inverted_cdf")) if len(values) else math.inf

    @property
    def stable(self) -> bool:
        return len(self.ttft) > 0


def overloaded(rate: float) -> State:
    nothing = np.zeros(0)
    return State(rate, math.inf, math.inf, math.inf, 1.0, 1.0, 1.0, nothing, nothing)


def state(engine: Engine, rate: float) -> State:
    """At `rate` requests a second; without times where that is more than the engine can do."""
    if rate >= NEAR * engine.most.rate:
        return overloaded(rate)
    settled = engine.settle(rate)
    if settled is None:
        return overloaded(rate)
    n, step, room, waiting, seconds = settled.decoding, settled.step, settled.room, settled.waiting, settled.seconds
    budget = engine.lane.max_num_batched_tokens
    places = _places(engine, rate, n, step)
    rng = np.random.default_rng(20)
    curve = engine.curve(n)
    slope = (engine.step(n * 1.1 + 1, 0) - engine.step(n, 0)) / (n * 0.1 + 1)
    spread = slope * places.deviation

    def took(tokens: Floats, extra: Floats) -> Floats:
        found: Floats = np.maximum(0.2 * curve[0], np.interp(np.minimum(tokens, room), engine.tokens, curve) + extra)
        return found

    more = spread * rng.standard_normal(DRAWS)
    own = engine.prompts[rng.integers(0, len(engine.prompts), DRAWS)]
    biased = np.cumsum(waiting * seconds)
    now = engine.grid[np.minimum(np.searchsorted(biased, rng.random(DRAWS) * biased[-1]), len(engine.grid) - 1)]
    here = took(now, more)  # the step that runs when a request comes
    passed = rng.random(DRAWS)
    rest = (1 - passed) * here
    prompts = _Drawn(engine.prompts, rng)
    ahead = np.maximum(0.0, now - room)
    if engine.lane.async_scheduling:
        before = np.where(now > room, seconds[-1], rng.choice(seconds, DRAWS, p=waiting))
        following = ahead + prompts.sums(rate * before)
        behind = took(following, more)  # put together already
        ahead = np.maximum(0.0, following - room)
    else:
        behind = np.zeros(DRAWS)
    left = ahead + prompts.sums(rate * passed * here) + own
    full = np.maximum(0.0, np.ceil(left / room) - 1)
    last = took(left - full * room + prompts.sums(rate * rest), more)
    of_backlog = np.floor((left - own) / room)
    whole = float(engine.step(n, room))
    alone = rng.random(DRAWS) < places.idle
    curve_alone = engine.curve(0)
    prefill = np.ceil(own / budget) - 1
    quick = prefill * curve_alone[-1] + np.interp(own - prefill * budget, engine.tokens, curve_alone)
    full_of_kv, until = _kv_wait(engine, rate, n, places, own, n / rate + engine.prefill_steps * step)
    place = np.where(rng.random(DRAWS) < places.full, rng.exponential(1.0, DRAWS) * places.wait, 0.0)
    place = np.maximum(place, np.where(rng.random(DRAWS) < full_of_kv, rng.exponential(1.0, DRAWS) * until, 0.0))
    ttft = place + np.where(alone, quick, rest + behind + full * whole + last)
    steps = np.maximum(1.0, engine.lengths.outputs[rng.integers(0, len(engine.lengths.outputs), DRAWS)] - 1)
    each = n / (rate * engine.decodes) if engine.decodes and n > 0 else step
    # what comes during an answer makes it longer, and with it what comes: 1 / (1 - load) of each deviation
    load = min(0.95, max(0.0, 1 - engine.step(n, 0) / step))
    base = engine.step(n, 0)
    added = max(each - base, 1e-4 * each)  # what prompts add to a token: gamma distributed, since a few get most of it
    # of a step's seconds, counted by prompts: one that takes several steps lengthens all of them
    token = (whole - base) / room
    by_prompt = max(settled.variance, rate * step * token**2 * float((engine.prompts**2).mean()))
    variance = by_prompt / steps / (1 - load) ** 2 + spread**2
    tpot = np.maximum(base + rng.gamma(added**2 / variance, variance / added), engine.step(0, 0))
    answer = engine.decodes * each
    return State(
        rate,
        n,
        step,
        rate * (engine.decodes * each + engine.prefill_steps * step),
        1 - places.idle,
        min(1.0, rate * step * engine.prompt / room),
        places.full,
        ttft,
        tpot,
        {
            "wait for a place": float(place.mean()),
            "step under way": float(np.where(alone, 0.0, rest).mean()),
            "step put together already": float(np.where(alone, 0.0, behind).mean()),
            "prompts ahead": float(np.where(alone, 0.0, np.minimum(of_backlog, full) * whole).mean()),
            "own prefill": float(np.where(alone, quick, np.maximum(0.0, full - of_backlog) * whole + last).mean()),
        },
        float(ttft.mean()) + answer,
    )


class _Drawn:
    """Sums of so many prompts, drawn one after another from a shuffled row of them."""

    def __init__(self, prompts: Floats, rng: np.random.Generator) -> None:
        self._rng = rng
        row = prompts[rng.integers(0, len(prompts), 1 << 15)]
        self._sums = np.concatenate([[0.0], np.cumsum(row)])

    def sums(self, means: Floats) -> Floats:
        """For each, the tokens of a Poisson number of prompts with that mean."""
        counts = np.minimum(self._rng.poisson(means), 1 << 14)
        start = self._rng.integers(0, 1 << 14, len(counts))
        found: Floats = self._sums[start + counts] - self._sums[start]
        return found


def _kv_wait(
    engine: Engine, rate: float, n: float, places: _Places, prompts: Floats, stay: float
) -> tuple[Floats, Floats]:
    """For requests with these prompts: probability that the KV cache has no room for all of it, and seconds until it
    has. What is held is taken as normally distributed; whoever comes behind one that waits, waits too. `stay`: mean
    seconds of a sequence. Where few run, less is freed than in the mean, but all that run have ended by and by: of n
    with exponential times the last has after stay · (1 + 1/2 + … + 1/n)."""
    capacity = engine.lane.kv_tokens - engine.lane.block_size - engine.cache_hit * engine.lengths.prompt
    mean = n * engine.held
    spread = math.hypot(places.deviation * engine.held, math.sqrt(n) * engine.held_deviation)
    if spread <= 0:
        return np.zeros(len(prompts)), np.zeros(len(prompts))
    z = (capacity - prompts - mean) / spread
    alone = np.minimum(np.interp(z, _Z, _BEYOND), 1 - places.idle)  # nobody waits for room where nothing runs
    freed = rate * (engine.lengths.prompt * (1 - engine.cache_hit) + engine.lengths.output)
    until = np.minimum(np.minimum(prompts, spread) / freed, stay * (1 + math.log(max(1.0, n))))
    behind = min(0.9, rate * float((alone * until).mean()))
    return alone + (1 - alone) * behind, until


@dataclass(frozen=True)
class _Places:
    """Of the chain in the number of sequences that want a place."""

    full: float
    """Probability that none is free."""
    wait: float
    """Mean seconds until one is, where none is."""
    deviation: float
    """Of the number that run."""
    idle: float
    """Probability that nothing runs."""
    most: float
    """Sequences that decode where all places are taken."""


def _places(engine: Engine, rate: float, decoding: float, step: float) -> _Places:
    """Birth-death: from j to j + 1 at `rate`, back at j / S(j), S(j) = cycle · T(j) with a straight line for T between
    what it is at the mean and with all places taken."""
    places = max(1, round(engine.slots))
    cycle = engine.decodes + engine.prefill_steps + engine.idle_steps
    share = engine.decodes / cycle
    mean = max(decoding / share if share else rate * cycle * step, 1e-9)
    most = engine.most
    full_step = max(step, places / (cycle * most.rate) if most.rate > 0 else step)
    j = np.arange(1, places + 1, dtype=np.float64)
    at = step + (j - mean) * ((full_step - step) / (places - mean) if places > mean else 0.0)
    service = cycle * np.maximum(at, engine.step(1, 0))
    logs = np.concatenate([[0.0], np.cumsum(math.log(rate) + np.log(service) - np.log(j))])
    load = min(0.9999, rate * float(service[-1]) / places)
    logs -= logs.max()
    weights = np.exp(logs)
    beyond = weights[-1] * load / (1 - load)
    total = float(weights.sum() + beyond)
    full = float((weights[-1] + beyond) / total)
    counts = np.arange(places + 1)
    average = float((weights * counts).sum() + beyond * places) / total
    variance = float((weights * counts**2).sum() + beyond * places**2) / total - average**2
    outputs = engine.lengths.outputs
    variation = float(outputs.var()) / max(1e-9, float(outputs.mean()) ** 2)
    wait = float(service[-1]) / places / (1 - load) * (1 + variation) / 2
    return _Places(full, wait, math.sqrt(max(0.0, variance)) * share, float(weights[0]) / total, places * share)
