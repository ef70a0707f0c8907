"""Where formulas end: the same engine simulated, with Poisson arrivals of the same lengths, and the rate at which it
keeps the promise."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Final

import numpy as np

from forebay.hardware.steptime import OutOfProfile
from forebay.plan.capacity_lengths import Floats
from forebay.plan.capacity_question import PlanError, Promise
from forebay.plan.capacity_queue import State, state
from forebay.plan.capacity_rates import Engine
from forebay.sim.cluster import Cluster, LeastRequests
from forebay.sim.engine import EngineModel
from forebay.sim.jobs import Listener
from forebay.sim.result_summary import Rows
from forebay.sim.results import Slo
from forebay.sim.settings import EngineSettings
from forebay.sim.workload import Ask

LEAST: Final = 2_200
MOST: Final = 2_500
"""Requests of a run: so many that those in flight turn over a few times, in a time that one waits for."""
TURNOVER: Final = 10
WARM: Final = 0.2
"""Of the requests: while the engine fills up. They are not counted."""
RUNS: Final = 3
"""Rates that are tried."""
MORE_RUNS: Final = 6
"""At most, each at FALL of the rate before, where none of them kept the promise."""
FALL: Final = 0.85
ABOVE: Final = 1.05
"""Of the rate that formulas find: a short run does not show enough to promise more."""
LARGE: Final = 0.25
"""Of the KV cache: where one request takes more, formulas see too little of who waits for whom to limit the rate."""
NEAR: Final = 0.04
STEADY: Final = 0.97
"""Of the most that formulas allow: nearer to it a run of some minutes does not show the queue that an hour would."""


@dataclass(frozen=True)
class Simulated:
    """One lane at a rate. Seconds; percentiles are of requests behind the first fifth."""

    rate: float
    requests: int
    ttft: float
    """At the promise's percentile, a standard error further out."""
    tpot: float
    ttft_mean: float
    ttft_p50: float
    ttft_p95: float
    tpot_p50: float
    e2e: float
    """Mean."""
    met: float
    """Share of requests that kept both bounds."""
    throughput: float
    """Requests a second that ended, between the first fifth's last and the last arrival."""
    preemptions: float
    """A request."""

    def kept(self, promise: Promise) -> bool:
        return self.ttft <= promise.ttft and self.tpot <= promise.tpot

    def strain(self, promise: Promise) -> float:
        """How much of the promise is used; over 1 it is broken."""
        return max(self.ttft / promise.ttft, self.tpot / promise.tpot)


def settings_of(engine: Engine) -> EngineSettings:
    lane = engine.lane
    return EngineSettings(
        num_blocks=max(2, int(lane.kv_tokens / lane.block_size)),
        block_size=lane.block_size,
        max_num_seqs=min(lane.max_num_seqs, lane.max_num_batched_tokens),
        max_num_batched_tokens=lane.max_num_batched_tokens,
        max_model_len=max(2, engine.lengths.longest),
        async_scheduling=lane.async_scheduling,
    )


def asks(engine: Engine, rate: float, count: int, seed: int) -> Iterator[Ask]:
    """Poisson arrivals in count / rate seconds, the same draws at every rate. Lengths are an even sample of all by
    prompt, in random order: a run has as many long prompts as the whole."""
    rng = Random(seed)  # noqa: S311
    lengths = engine.lengths
    order = np.lexsort((lengths.outputs, lengths.prompts))
    picked = [int(i) for i in order[((np.arange(count) + 0.5) / count * len(order)).astype(np.int64)]]
    rng.shuffle(picked)
    gaps = [rng.expovariate(1.0) for _ in range(count)]
    scale = count / rate / math.fsum(gaps)
    now = 0.0
    for gap, i in zip(gaps, picked, strict=True):
        now += gap * scale
        prompt = int(lengths.prompts[i])
        shared = int(prompt * engine.cache_hit)
        yield Ask(now, prompt, int(lengths.outputs[i]), (("shared", shared),) if shared else ())


def run(engine: Engine, rate: float, promise: Promise, *, seed: int = 0, count: int | None = None) -> Simulated:
    """Raises PlanError where a strict profile does not cover it."""
    if count is None:
        count = min(MOST, max(LEAST, int(TURNOVER * engine.most.decoding)))
    settings = settings_of(engine)

    def make(listener: Listener, i: int) -> EngineModel:
        return EngineModel(settings, engine.lane.steps, listener, name=i)

    cluster = Cluster(make, 1, LeastRequests(1), max_model_len=settings.max_model_len, interval=60.0)
    try:
        cluster.run(asks(engine, rate, count, seed))
    except OutOfProfile as e:
        raise PlanError(str(e)) from None
    rows = Rows(cluster.record.requests, Slo(promise.ttft, 0.0, promise.tpot))
    first = int(count * WARM)
    ttft, tpot, e2e = (values[first:][~np.isnan(values[first:])] for values in (rows.ttft, rows.tpot, rows.e2e))
    ends = np.sort((rows.arrival + rows.e2e)[~np.isnan(rows.e2e)])
    begin, last = float(rows.arrival[first]), float(rows.arrival[-1])
    ended = int(((ends > begin) & (ends <= last)).sum())
    return Simulated(
        rate,
        count,
        _at(ttft, _surely(promise.percent, len(ttft))) if len(ttft) else math.inf,
        _at(tpot, _surely(promise.percent, len(tpot))),
        float(ttft.mean()) if len(ttft) else math.inf,
        _at(ttft, 50),
        _at(ttft, 95),
        _at(tpot, 50),
        float(e2e.mean()) if len(e2e) else math.inf,
        float(rows.met[first:].mean()),
        ended / (last - begin) if last > begin else 0.0,
        float(rows.preemptions[first:].mean()),
    )


def _surely(percent: float, count: int) -> float:
    """A percentile a standard error further out, so that a run of few requests does not promise too much by chance."""
    return min(100.0, percent + math.sqrt(percent * (100 - percent) / max(1, count)))


def _at(values: Floats, percent: float) -> float:
    return float(np.quantile(values, percent / 100, method="inverted_cdf")) if len(values) else 0.0


def sustain(engine: Engine, promise: Promise, first: State, seed: int = 0) -> list[Simulated]:
    """Runs around the state that formulas find, the last the one with the highest rate that kept the promise; empty
    where none did. Where formulas are off at a rate, they are trusted to be off by as much at the next one.
    Equal questions take equal runs."""
    done: list[Simulated] = []
    low: Simulated | None = None
    high: Simulated | None = None
    most = STEADY * engine.most.rate
    if engine.lengths.longest <= LARGE * engine.lane.kv_tokens:
        most = min(most, ABOVE * first.rate)
    rate = min(first.rate, most)
    for count in range(RUNS + MORE_RUNS):
        if count >= RUNS and low is not None:
            break
        if count > RUNS:
            rate = FALL * done[-1].rate
        found = run(engine, rate, promise, seed=seed)
        if found.kept(promise):  # and with other draws, too
            again = run(engine, rate, promise, seed=seed + 1)
            found = max(found, again, key=lambda one: one.strain(promise))
        done.append(found)
        if found.kept(promise):
            low = found if low is None or found.rate > low.rate else low
        else:
            high = found if high is None or found.rate < high.rate else high
        if low is not None and (low.strain(promise) > 1 - NEAR or low.rate >= most):
            break
        if low is not None and high is not None and high.rate - low.rate < NEAR * low.rate:
            break
        rate = min(_next(engine, promise, first, found, low, high), most)
    if low is None:
        return []
    return [*(one for one in done if one is not low), low]


def _next(
    engine: Engine, promise: Promise, first: State, found: Simulated, low: Simulated | None, high: Simulated | None
) -> float:
    """Between two runs where a straight line through the logarithms of their strains keeps the promise. Else formulas
    are taken to be off by the same factor in the rate: they show the strain of `found` at another one."""
    if low is not None and high is not None:
        below, above = math.log(max(low.strain(promise), 1e-3)), math.log(min(high.strain(promise), 1e3))
        share = -below / (above - below) if above > below else 0.5
        return low.rate + (high.rate - low.rate) * min(0.85, max(0.15, share - 0.1))
    below, above = 0.3 * found.rate, 0.999 * engine.most.rate
    while above - below > 0.01 * above:
        middle = (below + above) / 2
        if strain(state(engine, middle), promise) < found.strain(promise):
            below = middle
        else:
            above = middle
    guess = 0.99 * first.rate * found.rate / middle
    if high is None:
        return max(guess, 1.03 * found.rate)
    over = found.strain(promise)
    return min(guess, found.rate * (0.97 if over < 1.1 else 0.95 if over < 1.3 else 0.92))


def strain(at: State, promise: Promise) -> float:
    return max(at.at("ttft", promise.percent) / promise.ttft, at.at("tpot", promise.percent) / promise.tpot)
