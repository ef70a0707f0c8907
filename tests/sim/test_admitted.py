"""The gateway's admission in the simulator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from forebay.policy.rules import Rules
from forebay.sim.admitted import Admitted, facts_of
from forebay.sim.cluster import Cluster, Engine, LeastRequests
from forebay.sim.engine import EngineModel
from forebay.sim.jobs import Job
from forebay.sim.rates import RateStepTime
from forebay.sim.results import Outcome
from forebay.sim.settings import EngineSettings
from forebay.sim.workload import Ask
from forebay.sim.workloads import open_workload

SETTINGS = EngineSettings(num_blocks=2_000, max_num_seqs=64, max_num_batched_tokens=2_048, max_model_len=8_192)
STEPS = RateStepTime(prefill_rate=10_000.0, decode_rate=50.0, batch_slowdown=0.005)
FACTS = facts_of(SETTINGS, STEPS)
FLOOD = (
    "burst:requests=200,prompt=lognormal(400;0.6),output=lognormal(100;0.5),classes=(vip=10;normal=60;low=30),seed=3"
)
LOAD = (
    "poisson:rate=40,duration=60,prompt=lognormal(400;0.6),output=lognormal(100;0.5),classes=(vip=10;normal=60;low=30)"
)


def simulate(workload: str, policy: str, *, patience: float = float("inf")) -> tuple[Cluster, Admitted | None]:
    chosen = Admitted(Rules(), [FACTS] * 2) if policy == "admission" else None
    cluster = Cluster(
        lambda listener, i: EngineModel(SETTINGS, STEPS, listener, name=i),
        2,
        chosen or LeastRequests(2),
        max_model_len=SETTINGS.max_model_len,
        patience=patience,
    )
    cluster.run(open_workload(workload).asks())
    return cluster, chosen


def ttfts(cluster: Cluster, cls: str | None = None) -> list[float]:
    """Of those that have one; infinite for those of the class that were refused."""
    requests = cluster.record.requests
    wanted = requests.classes.number(cls) if cls is not None else -1
    return [
        first - arrival if first == first else float("inf")
        for arrival, first, number in zip(requests.arrival, requests.first, requests.cls, strict=True)
        if cls is None or number == wanted
    ]


def test_in_a_flood_every_promise_is_kept_and_no_engine_preempts() -> None:
    cluster, policy = simulate(FLOOD, "admission")
    plain, _ = simulate(FLOOD, "none")
    kept = [t for t in (*ttfts(cluster, "vip"), *ttfts(cluster, "normal")) if t < float("inf")]
    assert max(kept) <= 1.5
    assert max(t for t in ttfts(cluster, "low") if t < float("inf")) <= 30
    assert all(t <= 1.5 for t in ttfts(cluster, "vip"))
    assert sum(e.stats.preemptions for e in cluster.engines) == 0
    assert len(kept) >= 30
    assert sum(t <= 1.5 for t in ttfts(plain, "vip")) < 0.5 * len(ttfts(plain, "vip"))
    assert policy is not None
    assert all(b.kv.requests == 0 for b in policy.admission.books.values())


def test_under_three_times_the_load_more_are_served_in_time_than_without() -> None:
    admitted, _ = simulate(LOAD, "admission")
    plain, _ = simulate(LOAD, "none")

    def good(cluster: Cluster) -> int:
        return sum(t <= 1.5 for t in ttfts(cluster))

    assert good(admitted) > 2 * good(plain)
    vip = ttfts(admitted, "vip")
    assert sum(t <= 1.5 for t in vip) >= 0.99 * len(vip)


def test_equal_inputs_give_equal_decisions() -> None:
    first, second = simulate(LOAD, "admission")[0], simulate(LOAD, "admission")[0]
    assert list(first.record.requests.end) == list(second.record.requests.end)
    assert list(first.record.requests.engine) == list(second.record.requests.engine)


def test_clients_that_lose_patience_leave_the_queue_and_the_engines() -> None:
    cluster, policy = simulate(LOAD.replace("rate=40", "rate=80"), "admission", patience=0.4)
    requests = cluster.record.requests
    outcomes = {Outcome(o) for o in requests.outcome}
    assert outcomes == {Outcome.FINISHED, Outcome.REFUSED, Outcome.ABANDONED}
    assert not cluster.record.waiting
    assert not cluster.record.jobs
    assert policy is not None
    assert all(b.kv.requests == b.sequences == 0 for b in policy.admission.books.values())


@pytest.mark.parametrize(("tpot", "share"), [(0.03, 0.4), (0.04, 0.75), (0.05, 0.9)])
def test_prefill_is_paced_so_that_answers_keep_their_tpot(tpot: float, share: float) -> None:
    def answers(rules: Rules) -> list[float]:
        settings = replace(SETTINGS, num_blocks=8_000)
        cluster = Cluster(
            lambda listener, i: EngineModel(settings, STEPS, listener, name=i),
            1,
            Admitted(rules, [facts_of(settings, STEPS)]),
            max_model_len=settings.max_model_len,
        )
        cluster.run(
            open_workload("poisson:rate=30,duration=60,prompt=lognormal(300;0.5),output=lognormal(100;0.5)").asks()
        )
        r = cluster.record.requests
        rows = zip(r.first, r.end, r.output, strict=True)
        return [(end - first) / (tokens - 1) for first, end, tokens in rows if first == first and tokens > 1]

    free, paced = answers(Rules()), answers(Rules(tpot=tpot))
    assert sum(t <= tpot for t in paced) >= 0.99 * len(paced)
    assert len(paced) >= share * len(free)  # no further than it must
    if tpot < 0.05:
        assert sum(t <= tpot for t in free) < 0.5 * len(free)


class Watched(Admitted):
    """Remembers how many engines were desired at the end of the load, and the soft cap of the first."""

    def on_report(self, engine: int, model: Engine, jobs: Mapping[int, Job], now: float) -> None:
        super().on_report(engine, model, jobs, now)
        if now <= 120:
            self.desired = self.admission.scaling.desired("")
            self.cap = self.admission.books["0"].cap


def watched(rate: float, engines: int, concurrency: int | None = None) -> tuple[Watched, Cluster]:
    policy = Watched(Rules(), [replace(FACTS, concurrency=concurrency)] * engines)
    cluster = Cluster(
        lambda listener, i: EngineModel(SETTINGS, STEPS, listener, name=i),
        engines,
        policy,
        max_model_len=SETTINGS.max_model_len,
    )
    load = f"poisson:rate={rate},duration=120,prompt=lognormal(400;0.6),output=lognormal(100;0.5)"
    cluster.run(open_workload(load).asks())
    return policy, cluster


def answered(cluster: Cluster) -> float:
    outcomes = cluster.record.requests.outcome
    return sum(o == Outcome.FINISHED for o in outcomes) / len(outcomes)


def test_as_many_engines_are_desired_as_carry_the_load_however_many_there_are() -> None:
    few, scarce = watched(20, 1)
    assert answered(scarce) < 0.6
    enough = watched(20, 3)[0].desired
    assert abs(few.desired - enough) <= 1
    assert few.desired > 1
    _, cluster = watched(20, few.desired)
    assert answered(cluster) > 0.98
    assert watched(5, 4)[0].desired == 1


def test_a_soft_cap_rises_while_many_wait() -> None:
    policy, _ = watched(40, 1, concurrency=4)
    assert policy.cap == 5  # 4 × 1.2 for 60 s, then × 1.4


@examples(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.floats(0, 0.5), st.integers(1, 4_000), st.integers(1, 300), st.sampled_from(["vip", "normal", "low"])
        ),
        min_size=1,
        max_size=60,
    )
)
def test_every_request_ends_and_nothing_is_left(rows: list[tuple[float, int, int, str]]) -> None:
    at = 0.0
    asks = []
    for gap, prompt, output, cls in rows:
        at += gap
        asks.append(Ask(at, prompt, output, cls=cls))
    small = replace(SETTINGS, num_blocks=400, max_num_seqs=4)
    policy = Admitted(Rules(), [replace(FACTS, kv_tokens=small.kv_tokens, max_num_seqs=4)])
    cluster = Cluster(
        lambda listener, i: EngineModel(small, STEPS, listener), 1, policy, max_model_len=SETTINGS.max_model_len
    )
    cluster.run(iter(asks))
    requests = cluster.record.requests
    assert all(o != 0 for o in requests.outcome)
    assert cluster.engines[0].kv_usage == 0
    (books,) = policy.admission.books.values()
    assert books.kv.requests == books.sequences == books.decoding == len(books.ttft) == 0
    assert policy.admission.next_due() == pytest.approx(float("inf"))
