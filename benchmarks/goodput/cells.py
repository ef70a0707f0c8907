"""One cell: a policy under a traffic, from the first arrival until the last request has ended, and its figures."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.goodput.workloads import CLASSES, LOADS, TRAFFIC, Traffic, offer
from forebay.plan.simulate import Ready
from forebay.policy.asks import Class
from forebay.policy.rules import Rules
from forebay.sim.admitted import Admitted, facts_of
from forebay.sim.baselines import Probabilistic, Slots, Utilisation
from forebay.sim.cluster import Cluster, LeastRequests, Policy
from forebay.sim.engine import EngineModel
from forebay.sim.jobs import Listener
from forebay.sim.oracle import Oracle, Promise, ideal_prefill
from forebay.sim.results import Outcome, Requests

POLICIES = ("none", "semaphore", "vllm", "llm-d", "llm-d p", "fifo cap", "forebay", "oracle")
TUNED = POLICIES[1:6]
GRIDS: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "semaphore": [{"limit": n} for n in (8, 16, 32, 64, 96, 128, 192, 256)],
    "vllm": [{"tokens": n} for n in (4_096, 8_192, 16_384, 24_576, 32_768, 49_152)],
    "llm-d": [
        {"waiting": w, "shed": shed}
        for w in (1, 5, 20)
        for shed in (["low"], ["normal", "low"], ["vip", "normal", "low"])
    ],
    "llm-d p": [
        {"waiting": w, "k": k, "shed": shed}
        for w in (5, 20)
        for k in (1.0, 300.0)
        for shed in (["low"], ["normal", "low"], ["vip", "normal", "low"])
    ],
    "fifo cap": [
        {"limit": n, "queue": queue, "timeout": timeout}
        for n in (32, 64, 128, 192)
        for queue, timeout in ((0, 60.0), (20, 60.0), (100, 1.0))
    ],
}
"""What each baseline is tuned over; limits and tokens are of one engine."""
MISSED, KEPT, REFUSED = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Spec:
    """Which cell. `rate` as of `workloads.offer`; `load` is what it is in knees."""

    traffic: str
    load: float
    rate: float
    policy: str
    given: Mapping[str, Any]
    """The policy's parameters."""


class Watched(Admitted):
    """Forebay's admission, and what it promised to whom: (when, bound) by row."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.promised: dict[int, tuple[float, float]] = {}

    def on_first_token(self, row: int, engine: int, now: float) -> None:
        ask = self._asks[row]
        self.promised[row] = (ask.admitted_at, ask.bound)
        super().on_first_token(row, engine, now)


def build(spec: Spec, ready: Ready, traffic: Traffic) -> Policy:
    n, given = traffic.engines, dict(spec.given)
    if spec.policy in ("semaphore", "fifo cap"):
        queue = given.get("queue", inf)
        return Slots(n, given["limit"] * n, queue=queue * n, timeout=given.get("timeout", 3.0))
    if spec.policy == "llm-d":
        return Utilisation(n, waiting=given["waiting"], sheddable=given["shed"])
    if spec.policy == "llm-d p":
        return Probabilistic(n, waiting=given["waiting"], k=given["k"], sheddable=given["shed"])
    if spec.policy == "oracle":
        return Oracle(traffic.promise)
    if spec.policy == "forebay":
        promise, facts = traffic.promise, facts_of(ready.settings, ready.steps)
        ttft = dict.fromkeys(Class, promise.ttft)
        return Watched(Rules(ttft=ttft, ttft_multiple=promise.multiple, tpot=promise.tpot), [facts] * n)
    return LeastRequests(n)


def simulate(spec: Spec) -> tuple[dict[str, Any], bytes]:
    """The cell's figures, and of each scored request in order of arrival whether it was MISSED, KEPT or REFUSED."""
    traffic = TRAFFIC[spec.traffic]
    engine = {"max_num_queued_tokens": spec.given["tokens"]} if spec.policy == "vllm" else {}
    offered = offer(traffic, spec.rate, **engine)
    ready = offered.ready
    policy = build(spec, ready, traffic)

    def make(listener: Listener, i: int) -> EngineModel:
        model = EngineModel(ready.settings, ready.steps, listener, name=i)
        if isinstance(policy, Oracle):
            policy.watch(model)
        return model

    cluster = Cluster(make, traffic.engines, policy, max_model_len=ready.settings.max_model_len)
    cpu = time.process_time()
    cluster.run(offered.asks())
    cpu = time.process_time() - cpu
    columns = Columns(cluster.record.requests, offered.seconds, ready, traffic.promise)
    figures: dict[str, Any] = {
        "traffic": spec.traffic,
        "load": spec.load,
        "policy": spec.policy,
        "given": dict(spec.given),
        "rate": spec.rate,
        "seconds": offered.seconds,
        "cpu_seconds": round(cpu, 3),
        **columns.figures(),
    }
    if isinstance(policy, Watched):
        figures["bound"] = columns.bounds(policy.promised)
    return figures, columns.status.tobytes()


Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


class Columns:
    """The scored requests of a run."""

    def __init__(self, requests: Requests, seconds: float, ready: Ready, promise: Promise) -> None:
        arrival = np.array(requests.arrival)
        count = int(np.searchsorted(arrival, seconds))
        self.seconds = seconds
        self.arrival = arrival[:count]
        self.first, self.end = (np.array(c)[:count] for c in (requests.first, requests.end))
        self.prompt, self.output = (np.array(c)[:count] for c in (requests.prompt, requests.output))
        self.preemptions = np.array(requests.preemptions)[:count]
        self.finished = np.array(requests.outcome)[:count] == Outcome.FINISHED
        names = requests.classes.names
        numbers = np.array(requests.cls)[:count]
        self.cls = {c: numbers == names.index(c) if c in names else np.zeros(count, bool) for c in CLASSES}
        ideals = {int(p): ideal_prefill(ready.steps, ready.settings, int(p)) for p in np.unique(self.prompt)}
        ideal = np.array([ideals[int(p)] for p in self.prompt])
        self.long = ideal > promise.ttft if promise.multiple else np.zeros(count, bool)
        due = np.where(self.long, promise.multiple * ideal, promise.ttft)
        self.ttft = self.first - self.arrival
        with np.errstate(invalid="ignore"):
            in_ttft = self.ttft <= due
            in_tpot = self.end - self.first <= promise.tpot * np.maximum(self.output - 1, 0) + 1e-6
        self.late = self.finished & ~in_ttft
        self.slow = self.finished & in_ttft & ~in_tpot
        self.kept = self.finished & in_ttft & in_tpot
        self.status = np.where(self.kept, KEPT, np.where(self.finished, MISSED, REFUSED)).astype(np.uint8)

    def figures(self) -> dict[str, Any]:
        everyone = np.ones(len(self.arrival), bool)
        admitted = int(self.finished.sum())
        preempted = self.finished & (self.preemptions > 0)
        return {
            "offered": len(self.arrival),
            "admitted": admitted,
            "late": int(self.late.sum()),
            "slow": int(self.slow.sum()),
            "preempted": int(preempted.sum()),
            "preempted_vip": int((preempted & self.cls["vip"]).sum()),
            "all": self._group(everyone),
            "long": self._group(self.long),
            "classes": {c: self._group(mask) for c, mask in self.cls.items()},
            "mix": {"arrived": self._mix(everyone), "admitted": self._mix(self.finished), "kept": self._mix(self.kept)},
        }

    def _group(self, mask: Bools) -> dict[str, Any]:
        kept = mask & self.kept
        ttft = self.ttft[mask & self.finished]
        offered = int(mask.sum())
        return {
            "offered": offered,
            "kept": int(kept.sum()),
            "share": round(float(kept.sum()) / offered, 5) if offered else None,
            "requests_per_s": round(float(kept.sum()) / self.seconds, 4),
            "tokens_per_s": round(float((self.prompt[kept] + self.output[kept]).sum()) / self.seconds, 2),
            "ttft_p99": round(float(np.percentile(ttft, 99)), 4) if len(ttft) else None,
        }

    def _mix(self, mask: Bools) -> dict[str, Any]:
        if not mask.any():
            return {"prompt": None, "prompt_p50": None, "output": None, "output_p50": None}
        return {
            "prompt": round(float(self.prompt[mask].mean()), 1),
            "prompt_p50": float(np.median(self.prompt[mask])),
            "output": round(float(self.output[mask].mean()), 1),
            "output_p50": float(np.median(self.output[mask])),
        }

    def bounds(self, promised: Mapping[int, tuple[float, float]]) -> dict[str, Any]:
        """How often the first token came within the bound given at admission, and how wide that was."""
        count = len(self.arrival)
        at, bound = np.full(count, np.nan), np.full(count, np.nan)
        for row, (when, seconds) in promised.items():
            if row < count:
                at[row], bound[row] = when, seconds
        actual = self.first - at

        def of(mask: Bools) -> dict[str, Any]:
            mask = mask & ~np.isnan(actual) & ~np.isnan(bound)
            if not mask.any():
                return {"admitted": 0, "covered": None, "width": None}
            width = bound[mask] / np.maximum(actual[mask], 1e-9)
            return {
                "admitted": int(mask.sum()),
                "covered": round(float((actual[mask] <= bound[mask]).mean()), 5),
                "width": round(float(np.median(width)), 3),
            }

        return {"all": of(np.ones(count, bool)), "classes": {c: of(mask) for c, mask in self.cls.items()}}


def rejections(status: bytes, none: bytes, oracle: bytes) -> dict[str, float | None]:
    """Of those refused, which share misses with nobody refused (`none`), and which share the oracle refuses too
    (precision); of those that the oracle refuses, which share was refused (recall)."""
    own, free, best = (np.frombuffer(b, np.uint8) for b in (status, none, oracle))
    refused = own == REFUSED

    def share(part: Bools, whole: Bools) -> float | None:
        return round(float((part & whole).sum() / whole.sum()), 4) if whole.any() else None

    return {
        "refused": int(refused.sum()),
        "missed_unrefused": share(free != KEPT, refused),
        "precision": share(best == REFUSED, refused),
        "recall": share(refused, best == REFUSED),
    }


def knee(traffic: str) -> tuple[float, float]:
    """The rate at which pass-through keeps most requests a second, and how many: steps of 1.4, then of 5 % around."""
    found: dict[float, float] = {}

    def goodput(rate: float) -> float:
        if rate not in found:
            figures, _ = simulate(Spec(traffic, 0.0, rate, "none", {}))
            found[rate] = figures["all"]["requests_per_s"]
        return found[rate]

    rate = {"trace": 1.0, "spread": 0.1}.get(TRAFFIC[traffic].kind, 5.0 * TRAFFIC[traffic].engines)
    best = rate
    while rate < best * 3:
        if goodput(rate) > goodput(best):
            best = rate
        rate *= 1.4
    for i in range(-5, 6):
        near = best * 1.05**i
        goodput(near)
    best = max(found, key=lambda r: found[r])
    return round(best, 3), found[best]


__all__ = ["GRIDS", "LOADS", "POLICIES", "TUNED", "Spec", "knee", "rejections", "simulate"]
