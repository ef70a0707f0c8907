"""One scenario in the simulator, and its figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.goodput.workloads import CLASSES
from benchmarks.retries.returning import Returning, Tale
from benchmarks.retries.scenarios import SEED, Scenario, asks, even, flood_at, ready
from forebay.plan.simulate import Ready
from forebay.policy.asks import Class
from forebay.policy.rules import QueueRules, Rules, ShedRules
from forebay.sim.admitted import Admitted, facts_of
from forebay.sim.cluster import Cluster, LeastRequests, Policy
from forebay.sim.engine import EngineModel
from forebay.sim.workload import Ask

TTFT, TPOT = 1.5, 0.05
KNEE_SECONDS = 120.0
SEEDS = 6


def _cluster(scenario: Scenario, at: Ready, policy: Policy) -> Cluster:
    return Cluster(
        lambda listener, i: EngineModel(at.settings, at.steps, listener, name=i),
        scenario.engines,
        policy,
        max_model_len=at.settings.max_model_len,
    )


def _kept(scenario: Scenario, at: Ready, rate: float) -> float:
    """Requests a second within SLO where all are passed through."""
    cluster = _cluster(scenario, at, LeastRequests(scenario.engines))
    cluster.run(even(scenario, rate, KNEE_SECONDS))
    r = cluster.record.requests
    first, end, arrival, output = (np.array(c) for c in (r.first, r.end, r.arrival, r.output))
    kept = (first - arrival <= TTFT) & (end - first <= TPOT * np.maximum(output - 1, 0) + 1e-6)
    return float(kept.sum()) / KNEE_SECONDS


def knee(scenario: Scenario) -> float:
    """The rate (requests a second, Poisson) at which pass-through on one engine keeps most within SLO, found in steps
    of 10 %."""
    at = ready(scenario)
    best, rate, found, worse = 0.0, 0.25, 0.0, 0
    while worse < 4:
        kept = _kept(scenario, at, rate)
        if kept > best:
            best, found, worse = kept, rate, 0
        else:
            worse += 1
        rate *= 1.1
    return found


def simulate(scenario: Scenario, knee: float) -> dict[str, Any]:
    """The figures of all seeds together; `knee` is one engine's."""
    runs = [_once(scenario, knee * scenario.engines, SEED + 10 * i) for i in range(SEEDS)]
    tales = [tale for run in runs for tale in run[0]]
    took = [run[1] for run in runs]
    ideal = [run[2] for run in runs]
    return {
        "name": scenario.name,
        "knee": round(knee * scenario.engines, 2),
        **told(tales),
        "seeds": [told(run[0])["first_retry"] for run in runs],
        "in_slo": round(float(np.mean([run[3] for run in runs])), 4),
        "seconds": round(float(np.mean(took)), 1),
        "ideal_seconds": round(float(np.mean(ideal)), 1),
    }


def _once(scenario: Scenario, knee: float, seed: int) -> tuple[list[Tale], float, float, float]:
    """The clients; when 95 % of those that were answered had their first token, and when they could have had it, in
    seconds after the flood; which share of them had it in time after their last try."""
    at = ready(scenario)
    rules = Rules(ttft=dict.fromkeys(Class, TTFT))
    policy = Returning(rules, [facts_of(at.settings, at.steps)] * scenario.engines)
    cluster = _cluster(scenario, at, policy)
    cluster.run(asks(scenario, knee, seed))
    begin = flood_at(scenario)
    tales = policy.tales
    first = np.array(cluster.record.requests.first)
    rows = [row for row, tale in tales.items() if not tale.given_up]
    after = [row for row in rows if tales[row].ask.arrival >= begin]
    ideal = _ideal(scenario, at, [tales[row].ask for row in after])
    kept = [first[row] - tales[row].tries[-1] <= TTFT for row in rows]
    took = float(np.percentile(first[after] - begin, 95))
    return list(tales.values()), took, float(np.nanpercentile(ideal - begin, 95)), float(np.mean(kept))


def _ideal(scenario: Scenario, at: Ready, answered: Sequence[Ask]) -> npt.NDArray[np.float64]:
    """When those who were answered would have had their first tokens, had the same admission let all of them wait."""
    forever = 1e6
    rules = Rules(
        ttft=dict.fromkeys(Class, forever),
        wait=dict.fromkeys(Class, forever),
        queue=QueueRules(requests=10**6, tokens=10**10),
        shed=ShedRules(shed_at=1.0, resume_at=1.0),
    )
    policy = Admitted(rules, [facts_of(at.settings, at.steps)] * scenario.engines)
    cluster = _cluster(scenario, at, policy)
    cluster.run(sorted(answered, key=lambda a: a.arrival))
    return np.array(cluster.record.requests.first)


def told(tales: Iterable[Tale]) -> dict[str, Any]:
    """What the refused were told, and how right that was."""
    tales = list(tales)
    refused = [t for t in tales if t.told]
    back = [t for t in refused if len(t.tries) > 1]
    waits = [t.told[0] for t in back] or [0]
    return {
        "clients": len(tales),
        "refused": len(refused),
        "told_not_to": sum(t.given_up and len(t.tries) == 1 for t in refused),
        "came_back": len(back),
        "first_retry": _share(back),
        "classes": {cls: _share([t for t in back if t.ask.cls == cls]) for cls in CLASSES},
        "retry_after_p50": float(np.percentile(waits, 50)),
        "retry_after_p99": float(np.percentile(waits, 99)),
        "tries": sum(len(t.tries) for t in tales),
        "never": sum(t.given_up for t in tales),
        "again": dict(Counter(t.reasons[1] for t in back if len(t.reasons) > 1)),
    }


def _share(back: Sequence[Tale]) -> float | None:
    """Of those who came back, who was answered then."""
    return round(sum(len(t.told) == 1 for t in back) / len(back), 4) if back else None
