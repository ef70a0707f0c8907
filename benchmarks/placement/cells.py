"""One cell: a policy in a scenario, from the first arrival until the last request has ended, and its figures."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, Protocol, cast

import numpy as np

from benchmarks.placement.policies import BUILDERS
from benchmarks.placement.pooled import hits
from benchmarks.placement.scenarios import SCENARIOS, Change, Offered, Scenario, offer
from benchmarks.placement.work import Prefill, Work, balance
from forebay.sim.cluster import Cluster, Engine, Policy
from forebay.sim.engine import EngineModel
from forebay.sim.jobs import Job, Listener
from forebay.sim.results import Outcome, Requests
from forebay.sim.workload import Ask


@dataclass(frozen=True, slots=True)
class Spec:
    scenario: str
    policy: str
    quick: bool = False


class Elastic(Policy, Protocol):
    """What a policy must offer where engines come and go."""

    def leave(self, engine: int, now: float) -> None: ...
    def join(self, engine: int, now: float) -> None: ...


class Changing:
    """A policy, told of engines that come and go when the first request after that arrives."""

    def __init__(self, policy: Policy, changes: tuple[Change, ...]) -> None:
        self._policy = cast(Elastic, policy)
        self._changes = sorted(changes, key=lambda c: c.at)
        self.report_every = policy.report_every
        self.due = policy.due
        self.next_due = policy.next_due
        self.on_first_token = policy.on_first_token
        self.on_end = policy.on_end

    def on_arrival(self, ask: Ask, row: int, now: float) -> int:
        while self._changes and self._changes[0].at <= now:
            change = self._changes.pop(0)
            (self._policy.join if change.joins else self._policy.leave)(change.engine, now)
        return self._policy.on_arrival(ask, row, now)

    def on_report(self, engine: int, model: Engine, jobs: Mapping[int, Job], now: float) -> None:
        self._policy.on_report(engine, model, jobs, now)


def simulate(spec: Spec) -> dict[str, Any]:
    """The cell's figures."""
    scenario = SCENARIOS[spec.scenario]
    offered = offer(scenario, spec.quick)
    ready = offered.ready
    policy = BUILDERS[spec.policy](scenario.engines, ready)
    watch = getattr(policy, "watch", None)

    def make(listener: Listener, i: int) -> EngineModel:
        model = EngineModel(ready.settings, ready.steps, listener, name=i)
        if watch is not None:
            watch(model)
        return model

    told = Changing(policy, scenario.changes) if scenario.changes else policy
    cluster = Cluster(make, scenario.engines, told, max_model_len=ready.settings.max_model_len)
    cpu = time.process_time()
    cluster.run(offered.asks)
    cpu = time.process_time() - cpu
    return {
        "scenario": spec.scenario,
        "policy": spec.policy,
        "quick": spec.quick,
        "cpu_seconds": round(cpu, 2),
        **figures(cluster.record.requests, offered),
    }


def reference(asked: tuple[str, bool]) -> dict[str, Any]:
    """What caches without engines would find in a scenario's traffic."""
    name, quick = asked
    offered = offer(SCENARIOS[name], quick)
    capacity = offered.ready.settings.kv_tokens * offered.scenario.engines
    return {
        "requests": len(offered.asks),
        "seconds": round(offered.seconds, 1),
        "kv_tokens": offered.ready.settings.kv_tokens,
        "capacity": capacity,
        "pooled": hits(offered.asks, capacity),
        "infinite": hits(offered.asks, inf),
    }


def present(scenario: Scenario, edges: list[float]) -> Any:
    """Which engine was in service all through each window: rows windows, columns engines."""
    out = np.ones((len(edges) - 1, scenario.engines), bool)
    for i in range(scenario.engines):
        here, since = True, 0.0
        spans = []
        for change in sorted((c for c in scenario.changes if c.engine == i), key=lambda c: c.at):
            if change.joins != here:
                if here:
                    spans.append((since, change.at))
                here, since = change.joins, change.at
        if here:
            spans.append((since, inf))
        for w in range(len(edges) - 1):
            out[w, i] = any(a <= edges[w] and edges[w + 1] <= b for a, b in spans)
    return out


def figures(requests: Requests, offered: Offered) -> dict[str, Any]:
    scenario, ready = offered.scenario, offered.ready
    edges = [scenario.ramp]
    while edges[-1] + scenario.window <= offered.seconds:
        edges.append(edges[-1] + scenario.window)
    prefill = Prefill(ready.steps, ready.settings, max(requests.prompt))
    work = Work(requests, scenario.engines, prefill, ready.settings, edges)
    here = present(scenario, edges)
    arrival, first, end = (np.array(c) for c in (requests.arrival, requests.first, requests.end))
    prompt, output, cached = (np.array(c, float) for c in (requests.prompt, requests.output, requests.cached))
    finished = np.array(requests.outcome) == Outcome.FINISHED
    ideal = prefill.seconds(prompt)
    promise = scenario.promise
    due = np.where(ideal > promise.ttft, promise.multiple * ideal, promise.ttft) if promise.multiple else promise.ttft
    with np.errstate(invalid="ignore"):
        ttft = first - arrival
        tpot = (end - first) / np.maximum(output - 1, 1)
        kept = finished & (ttft <= due) & (tpot <= promise.tpot)
    ttft, tpot = ttft[finished], tpot[finished & (output > 1)]

    def at(values: Any, share: float) -> float | None:
        return round(float(np.percentile(values, share)), 4) if len(values) else None

    return {
        "requests": len(arrival),
        "seconds": round(offered.seconds, 1),
        "unfinished": int((~finished).sum()),
        "hit_tokens": round(float(cached.sum() / prompt.sum()), 5),
        "balance": {part: balance(getattr(work, part), here) for part in ("all", "prefill", "tokens", "decode")},
        "load": {
            "prefill": round(float(work.prefill.sum() / here.sum() / scenario.window), 4),
            "decode": round(float(work.decode.sum() / here.sum() / scenario.window), 4),
        },
        "ttft": {"mean": round(float(ttft.mean()), 4), "p50": at(ttft, 50), "p90": at(ttft, 90), "p99": at(ttft, 99)},
        "tpot": {"p50": at(tpot, 50), "p99": at(tpot, 99)},
        "kept": round(float(kept.mean()), 5),
        "goodput": round(float(kept.sum() / offered.seconds), 4),
        "preemptions": int(sum(requests.preemptions)),
        "ratios": [
            round(float(row[h].max() / row[h].mean()), 4)
            for row, h in zip(work.all, here, strict=True)
            if h.any() and row[h].sum()
        ],
    }
