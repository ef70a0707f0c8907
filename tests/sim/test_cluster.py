"""Many engines in discrete events: order of time, books that close, patience, refusals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.hardware.steptime import Chunk
from forebay.policy.placement import RoundRobin
from forebay.sim.cluster import REFUSE, Cluster, LeastRequests, Monitor, PassThrough, Policy
from forebay.sim.engine import EngineModel
from forebay.sim.jobs import Listener
from forebay.sim.results import Outcome
from forebay.sim.settings import EngineSettings
from forebay.sim.workload import Ask


class Steps:
    """10 ms a step, and 1 ms a prompt token."""

    warnings: Sequence[str] = ()

    def decode(self, n: int, context: int, longest: int) -> float:
        return 0.01

    def mixed(self, chunks: Sequence[Chunk], n: int, context: int, longest: int) -> float:
        return 0.01 + 0.001 * sum(chunk.tokens for chunk in chunks)


class Story:
    """A policy that writes down what it sees, and refuses the requests of a tenant."""

    def __init__(self, inner: Policy, refuse: str = "") -> None:
        self.inner = inner
        self.refuse = refuse
        self.told: list[tuple[float, str, int]] = []

    def on_arrival(self, ask: Ask, row: int, now: float) -> int:
        self.told.append((now, "arrival", row))
        return REFUSE if self.refuse and ask.tenant == self.refuse else self.inner.on_arrival(ask, row, now)

    def on_first_token(self, row: int, engine: int, now: float) -> None:
        self.told.append((now, "first", row))
        self.inner.on_first_token(row, engine, now)

    def on_end(self, row: int, engine: int, now: float) -> None:
        self.told.append((now, "end", row))
        self.inner.on_end(row, engine, now)


def never(now: float, arrived: int, ended: int) -> bool:
    return False


def simulate(
    asks: Iterable[Ask],
    *,
    engines: int = 2,
    policy: Policy | None = None,
    patience: float = math.inf,
    until: float = math.inf,
    interval: float = 1.0,
    monitor: Monitor = never,
    **fields: object,
) -> Cluster:
    given_settings = {"num_blocks": 100, "max_num_seqs": 4, "max_num_batched_tokens": 64, "max_model_len": 512} | fields
    engine = EngineSettings(**given_settings)  # type: ignore[arg-type]

    def make(listener: Listener, i: int) -> EngineModel:
        return EngineModel(engine, Steps(), listener, name=i)

    cluster = Cluster(
        make,
        engines,
        policy or PassThrough(RoundRobin(), engines),
        max_model_len=512,
        patience=patience,
        until=until,
        interval=interval,
        monitor=monitor,
    )
    cluster.run(asks)
    return cluster


def steady(n: int, gap: float = 0.1, prompt: int = 30, output: int = 10) -> list[Ask]:
    return [Ask(i * gap, prompt, output, tenant=f"t{i % 3}") for i in range(n)]


many = st.lists(
    st.tuples(st.floats(0, 0.3), st.integers(1, 200), st.integers(1, 60), st.sampled_from(["", "a", "b"])),
    min_size=1,
    max_size=40,
).map(
    lambda drawn: [
        Ask(sum(gap for gap, *_ in drawn[: i + 1]), prompt, output, tenant=tenant)
        for i, (_, prompt, output, tenant) in enumerate(drawn)
    ]
)


def test_every_request_finishes_and_time_is_in_order_within_a_row():
    cluster = simulate(steady(50))
    r = cluster.record.requests
    assert len(r) == 50 and list(r.outcome) == [Outcome.FINISHED] * 50
    for i in range(50):
        assert r.arrival[i] <= r.scheduled[i] < r.first[i] < r.end[i]
    assert cluster.seconds == max(r.end)
    assert cluster.record.gaps.count == 50 * 9


def test_round_robin_takes_the_engines_in_turn():
    assert list(simulate(steady(6), engines=3).record.requests.engine) == [0, 1, 2, 0, 1, 2]


def test_least_requests_goes_round_the_engine_that_is_busy():
    # One long answer on engine 0; the short ones are over before the next arrives.
    asks = [Ask(0.0, 10, 400), *(Ask(1.0 + i, 10, 2) for i in range(3))]
    cluster = simulate(asks, policy=LeastRequests(2))
    assert list(cluster.record.requests.engine) == [0, 1, 1, 1]


def test_least_requests_among_equals_goes_in_turn():
    asks = [Ask(float(i), 10, 2) for i in range(4)]
    assert list(simulate(asks, engines=3, policy=LeastRequests(3)).record.requests.engine) == [0, 1, 2, 0]


@settings(max_examples=50)
@given(many, st.integers(1, 4))
def test_a_policy_sees_everything_in_order_of_time(asks: list[Ask], engines: int):
    story = Story(LeastRequests(engines))
    simulate(asks, engines=engines, policy=story)
    assert all(a[0] <= b[0] for a, b in pairwise(story.told))
    for row in range(len(asks)):
        assert [what for _, what, n in story.told if n == row] == ["arrival", "first", "end"]


@settings(max_examples=50)
@given(many, st.integers(1, 3), st.sampled_from([0.05, 0.2, 1.0]))
def test_whatever_happens_every_row_is_closed_and_every_engine_empty(asks: list[Ask], engines: int, patience: float):
    cluster = simulate(
        asks, engines=engines, policy=Story(LeastRequests(engines), "b"), patience=patience, max_num_queued_reqs=5
    )
    r = cluster.record.requests
    assert len(r) == len(asks) == cluster.record.ended
    assert Outcome.UNFINISHED not in r.outcome
    for i, ask in enumerate(asks):
        outcome = r.outcome[i]
        assert (outcome == Outcome.REFUSED) == (ask.tenant == "b")
        if outcome == Outcome.FINISHED:
            assert r.first[i] - r.arrival[i] <= patience + 1e-9
        elif outcome == Outcome.ABANDONED:
            assert math.isnan(r.first[i]) and r.end[i] == pytest.approx(r.arrival[i] + patience)
    assert all(e.running == e.waiting == 0 or math.isfinite(e.due()) for e in cluster.engines)


@settings(max_examples=25)
@given(many)
def test_equal_inputs_give_equal_columns(asks: list[Ask]):
    a, b = (simulate(asks, engines=3, patience=0.5).record.requests for _ in range(2))
    for name in ("scheduled", "first", "end", "outcome", "engine", "cached"):
        assert getattr(a, name).tobytes() == getattr(b, name).tobytes()


def test_who_waits_too_long_leaves_and_the_place_is_free():
    # One slot: the second would wait for 4 s.
    asks = [Ask(0.0, 10, 400), Ask(0.1, 10, 5), Ask(6.0, 10, 5)]
    cluster = simulate(asks, engines=1, patience=1.0, max_num_seqs=1)
    r = cluster.record.requests
    assert list(r.outcome) == [Outcome.FINISHED, Outcome.ABANDONED, Outcome.FINISHED]
    assert r.end[1] == pytest.approx(1.1)
    assert math.isnan(r.first[1]) and math.isnan(r.scheduled[1])


def test_longer_than_the_context_is_refused_with_400_and_never_placed():
    story = Story(LeastRequests(1))
    cluster = simulate([Ask(0.0, 500, 13), Ask(0.0, 500, 12)], engines=1, policy=story)
    r = cluster.record.requests
    assert list(r.outcome) == [Outcome.TOO_LONG, Outcome.FINISHED]
    assert r.engine[0] == -1 and ("arrival", 0) not in [(what, row) for _, what, row in story.told]


def test_longer_than_the_kv_cache_is_refused_by_the_engine():
    cluster = simulate([Ask(0.0, 200, 100)], engines=1, num_blocks=10)
    assert list(cluster.record.requests.outcome) == [Outcome.TOO_LONG]


def test_a_full_queue_refuses_and_tells_the_policy():
    policy = LeastRequests(1)
    cluster = simulate([Ask(0.0, 10, 50) for _ in range(5)], engines=1, policy=policy, max_num_queued_reqs=3)
    assert [Outcome(o).name for o in cluster.record.requests.outcome] == ["FINISHED"] * 3 + ["QUEUE_FULL"] * 2
    assert repr(policy) == "<LeastRequests [0]>"


def test_until_leaves_the_rest_unfinished():
    cluster = simulate(steady(100, gap=0.1, output=100), until=2.05)
    r = cluster.record.requests
    assert len(r) == 21  # those at 0.0 … 2.0
    assert Outcome.UNFINISHED in r.outcome and Outcome.FINISHED in r.outcome
    assert cluster.seconds == 2.05 == cluster.series.times[-1]
    assert all(end <= 2.05 for end in r.end if not math.isnan(end))


def test_until_holds_when_nothing_arrives_any_more():
    cluster = simulate([Ask(0.0, 10, 400)], until=2.0)
    assert list(cluster.record.requests.outcome) == [Outcome.UNFINISHED]
    assert cluster.seconds == 2.0


def test_the_monitor_stops_it():
    seen: list[tuple[float, int, int]] = []

    def monitor(now: float, arrived: int, ended: int) -> bool:
        seen.append((now, arrived, ended))
        return now >= 3

    cluster = simulate(steady(100), monitor=monitor)
    assert cluster.stopped and len(cluster.record.requests) < 40
    assert [now for now, *_ in seen[:3]] == [1.0, 2.0, 3.0]
    assert all(arrived >= ended for _, arrived, ended in seen)


def test_samples_count_what_the_engines_counted():
    cluster = simulate(steady(40), interval=0.5)
    values = cluster.series.values
    stats = [engine.stats for engine in cluster.engines]
    assert sum(values["arrived"]) == sum(values["finished"]) == 40
    assert sum(values["decode_tokens"]) == sum(s.decode_tokens for s in stats) == 40 * 9
    assert sum(values["prefill_tokens"]) == sum(s.prefill_tokens for s in stats)
    assert sum(values["busy_seconds"]) == pytest.approx(sum(s.busy_seconds for s in stats))
    assert cluster.series.times == sorted(cluster.series.times)
    assert max(values["running"]) >= 1 and values["running"][-1] == 0


def test_how_often_samples_are_taken_changes_nothing():
    a, b = (simulate(steady(60), interval=interval).record.requests for interval in (0.01, 10.0))
    assert a.end.tobytes() == b.end.tobytes()


def test_preemptions_are_booked_where_they_happened():
    # 20 blocks of 16 tokens hold 320: four that grow to 130 do not fit.
    asks = [Ask(0.0, 30, 100) for _ in range(4)]
    cluster = simulate(asks, engines=1, num_blocks=20)
    r = cluster.record.requests
    assert sum(r.preemptions) == cluster.engines[0].stats.preemptions > 0
    assert list(r.outcome) == [Outcome.FINISHED] * 4


def test_a_cluster_has_engines():
    with pytest.raises(ValueError, match="engines must be at least 1, not 0"):
        simulate([], engines=0)


def test_no_requests_no_time():
    cluster = simulate([])
    assert cluster.seconds == 0 and len(cluster.record.requests) == 0 and cluster.series.times == []
