"""Eight GPUs under chats and floods of long prompts, as one pool or as prefill and decode engines, in the simulator."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from heapq import merge
from random import Random
from typing import Any

import numpy as np

from forebay.plan.simulate_hardware import Wanted, find_hardware
from forebay.policy.disaggregation import SplitRules
from forebay.policy.prior import PrefillPrior
from forebay.sim.cluster import Cluster, LeastRequests, Policy
from forebay.sim.disaggregated import Disaggregated
from forebay.sim.engine import EngineModel
from forebay.sim.jobs import Listener
from forebay.sim.results import Outcome
from forebay.sim.settings import EngineSettings
from forebay.sim.workload import Ask

SECONDS = 120.0
CHATS = 80.0
"""A second."""
EVERY = 10.0
"""Seconds between two floods."""
MODEL, GPU = "llama-3.1-8b", "h100_sxm"
LATENCY = 0.01
"""Seconds of a handover, beside its bytes at 25 GB/s."""
FLOOD = "flood"
SPLIT = "3 + 5, by request"
"""What the bar is for."""


@dataclass(frozen=True, slots=True)
class Flood:
    """`prompts` prompts at once, every `EVERY` seconds."""

    name: str
    prompts: int
    tokens: int


FLOODS = (Flood("none", 0, 0), Flood("16 × 8k", 16, 8_000), Flood("8 × 32k", 8, 32_000), Flood("24 × 16k", 24, 16_000))


@dataclass(frozen=True, slots=True)
class Layout:
    name: str
    prefills: int
    """0: one pool."""
    by_request: bool = False
    budget: int = 2_048
    """Tokens of a step."""
    weight: float = SplitRules().weight


ENGINES = 8
LAYOUTS = (
    Layout("aggregated", 0),
    Layout("aggregated, 512-token steps", 0, budget=512),
    Layout("3 + 5, always split", 3),
    Layout("3 + 5, by request, weight 1", 3, by_request=True, weight=1.0),
    Layout(SPLIT, 3, by_request=True),
)


def chats(rng: Random) -> Iterator[Ask]:
    """Prompts of 400 tokens and answers of 250 at the median, as chat traffic has them."""
    at = 0.0
    while (at := at + rng.expovariate(CHATS)) < SECONDS:
        prompt = min(4_000, max(16, int(rng.lognormvariate(6.0, 0.8))))
        yield Ask(at, prompt, min(1_200, max(8, int(rng.lognormvariate(5.5, 0.7)))), tenant="chat")


def floods(flood: Flood, rng: Random) -> Iterator[Ask]:
    at = EVERY / 2
    while at < SECONDS and flood.prompts:
        for _ in range(flood.prompts):
            yield Ask(at, int(flood.tokens * rng.uniform(0.8, 1.2)), 64, tenant=FLOOD)
        at += EVERY


def simulate(layout: Layout, flood: Flood, seed: int = 0) -> dict[str, Any]:
    hardware = find_hardware(Wanted(model=MODEL, gpu=GPU), {"max_num_batched_tokens": layout.budget})
    transfer = hardware.transfer_seconds_per_token or 0.0
    steps = hardware.steps
    base = EngineSettings(
        **hardware.engine,
        max_num_batched_tokens=layout.budget,
        transfer_latency=LATENCY,
        transfer_seconds_per_token=transfer,
    )
    prefills = layout.prefills
    decoders = ENGINES - prefills if prefills else 0
    settings = {role: replace(base, role=role) for role in ("both", "prefill", "decode")}
    policy: Policy
    splitter = None
    if not prefills:
        policy = LeastRequests(ENGINES)
    elif layout.by_request:
        rules = SplitRules(weight=layout.weight, latency=LATENCY, per_token=transfer)
        prior = PrefillPrior.of(steps, base.max_num_batched_tokens)
        policy = splitter = Disaggregated(rules, prefills, decoders, prior)
    else:
        policy = LeastRequests(prefills)

    def make(listener: Listener, i: int) -> EngineModel:
        role = "both" if not prefills else "prefill" if i < prefills else "decode"
        return EngineModel(settings[role], steps, listener, name=i)

    cluster = Cluster(make, ENGINES, policy, max_model_len=base.max_model_len, decoders=decoders, splitter=splitter)
    cluster.run(merge(chats(Random(seed)), floods(flood, Random(seed + 1)), key=lambda a: a.arrival))
    return figures(cluster, layout, flood, splitter)


def figures(cluster: Cluster, layout: Layout, flood: Flood, splitter: Disaggregated | None) -> dict[str, Any]:
    requests, gaps = cluster.record.requests, cluster.record.gaps
    outcome = np.frombuffer(requests.outcome, dtype=np.uint8)
    assert (outcome == Outcome.FINISHED).all(), np.bincount(outcome)
    ttft = np.frombuffer(requests.first) - np.frombuffer(requests.arrival)
    names = requests.tenants.names
    tenant = np.frombuffer(requests.tenant, dtype=np.int32)
    of = {name: ttft[tenant == i] for i, name in enumerate(names)}
    xs, ys = gaps.cdf()
    return {
        "layout": layout.name,
        "flood": flood.name,
        "requests": len(requests),
        "split": splitter.split if splitter is not None else (len(requests) if layout.prefills else 0),
        "itl_ms": {p: round(1e3 * (gaps.percentile(float(p)) or 0.0), 3) for p in ("50", "90", "99", "99.9")},
        "ttft_s": {name: {p: round(float(np.percentile(v, p)), 4) for p in (50, 99)} for name, v in of.items()},
        "seconds": round(cluster.seconds, 1),
        "cdf": {"ms": [round(1e3 * x, 4) for x in xs], "fraction": [round(y, 6) for y in ys]},
    }
