"""Many engines in discrete events: order of time, books that close, patience, refusals."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.hardware.steptime import Chunk
from forebay.policy.disaggregation import SplitRules
from forebay.policy.placement import RoundRobin
from forebay.policy.prior import PrefillPrior
from forebay.sim.cluster import REFUSE, Cluster, Immediate, LeastRequests, Monitor, PassThrough, Policy
from forebay.sim.disaggregated import Disaggregated
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


class Story(Immediate):
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

    def on_end(self, row: int, engine: int, now: float, tokens: int) -> None:
        self.told.append((now, "end", row))
        self.inner.on_end(row, engine, now, tokens)


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
    decoders: int = 0,
    delay: Callable[[int], float] | None = None,
    **fields: object,
) -> Cluster:
    given_settings = {"num_blocks": 40, "max_num_seqs": 4, "max_num_batched_tokens": 64, "max_model_len": 512} | fields
    engine = EngineSettings(**given_settings)  # type: ignore[arg-type]

    def make(listener: Listener, i: int) -> EngineModel:
        role = "both" if not decoders else "prefill" if i < engines - decoders else "decode"
        return EngineModel(replace(engine, role=role), Steps(), listener, name=i)

    cluster = Cluster(
        make,
        engines,
        policy or PassThrough(RoundRobin(), engines - decoders),
        max_model_len=512,
        decoders=decoders,
        splitter=policy if isinstance(policy, Disaggregated) else None,
        delay=delay,
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


def test_prefill_here_decode_there():
    asks = [Ask(i * 0.5, 50, 20, tenant="a") for i in range(6)]
    cluster = simulate(asks, engines=3, decoders=1, transfer_latency=0.2, transfer_seconds_per_token=0.001)
    r = cluster.record.requests
    assert list(r.outcome) == [Outcome.FINISHED] * 6
    assert list(r.engine) == [0, 1, 0, 1, 0, 1], "the policy knows only the prefill engines"
    first, second, decoder = cluster.engines
    assert first.stats.decode_tokens == second.stats.decode_tokens == 0
    assert decoder.stats.prefill_tokens == 6, "the prompt's last token, again"
    assert decoder.stats.decode_tokens == 6 * 19 == cluster.record.gaps.count
    for i in range(6):
        # 60 ms of prefill, 250 ms of transfer, 11 ms of the last token again
        assert r.first[i] - r.scheduled[i] >= 0.06 + 0.25 + 0.011 - 1e-9
    assert [engine.kv_usage for engine in cluster.engines] == [0, 0, 0]
    assert first.stats.leases_expired == 0


PRIOR = PrefillPrior(0.01, 0.001, 0.0, 0.01, 0.0, 64)


def test_a_prompt_is_computed_where_it_disturbs_nobody_and_whole_where_that_is_sooner():
    policy = Disaggregated(SplitRules(least_tokens=40, latency=0.02, per_token=1e-4), 1, 1, PRIOR)
    # On an idle engine a handover would only cost; beside one that decodes it pays; a small prompt never goes.
    asks = [Ask(0.0, 60, 60), Ask(0.3, 60, 20), Ask(0.4, 30, 20)]
    cluster = simulate(asks, engines=2, decoders=1, policy=policy, transfer_latency=0.02)
    r = cluster.record.requests
    assert list(r.engine) == [1, 0, 1] and policy.split == 1
    prefill, decode = cluster.engines
    assert prefill.stats.prefill_tokens == 60 and decode.stats.prefill_tokens == 60 + 1 + 30
    assert list(r.outcome) == [Outcome.FINISHED] * 3
    assert prefill.stats.leases_expired == 0


def test_one_token_answers_need_no_decode_engine():
    cluster = simulate([Ask(0.0, 50, 1)], engines=2, decoders=1)
    assert list(cluster.record.requests.outcome) == [Outcome.FINISHED]
    assert cluster.engines[1].stats.steps == 0


@settings(max_examples=60)
@given(
    many,
    st.integers(1, 2),
    st.integers(1, 2),
    st.sampled_from([0.05, 0.3, math.inf]),
    st.sampled_from([0.0, 0.1]),
    st.booleans(),
)
def test_no_kv_is_left_behind_between_prefill_and_decode(
    asks: list[Ask], prefill: int, decode: int, patience: float, latency: float, by_request: bool
):
    policy = None
    if by_request:
        rules = SplitRules(least_tokens=20, latency=latency, per_token=1e-6)
        policy = Disaggregated(rules, prefill, decode, PRIOR)
    cluster = simulate(
        asks, engines=prefill + decode, decoders=decode, patience=patience, transfer_latency=latency,
        max_num_queued_reqs=6, policy=policy,
    )  # fmt: skip
    r = cluster.record.requests
    assert cluster.record.ended == len(asks) and Outcome.UNFINISHED not in r.outcome
    for i, ask in enumerate(asks):
        if r.outcome[i] == Outcome.FINISHED:
            assert r.arrival[i] <= r.scheduled[i] < r.first[i] <= r.end[i]
            assert (r.first[i] < r.end[i]) == (ask.output_tokens > 1)
    assert repr(cluster._decoders) == f"<Decoders {[0] * decode}>"
    if policy is not None:
        assert repr(policy).startswith(f"<Disaggregated {[0] * decode} ")
        assert all(len(book) == 0 for book in policy.policy.books.values())
    now = cluster.seconds + 5  # less than a lease
    for engine in cluster.engines:
        engine.advance(max(now, engine.now))
        assert engine.kv_usage == 0 and engine.stats.leases_expired == 0


def test_what_the_host_does_first_is_part_of_ttft():
    plain = simulate([Ask(0.0, 30, 5), Ask(2.0, 60, 5)]).record.requests
    late = simulate([Ask(0.0, 30, 5), Ask(2.0, 60, 5)], delay=lambda prompt: 0.1 + prompt * 0.001).record.requests
    assert list(late.arrival) == list(plain.arrival)
    assert [b - a for a, b in zip(plain.first, late.first, strict=True)] == pytest.approx([0.13, 0.16])


def test_a_short_prompt_overtakes_a_long_one_on_its_way():
    asks = [Ask(0.0, 200, 5), Ask(0.01, 10, 5)]
    r = simulate(asks, engines=1, delay=lambda prompt: prompt * 0.01).record.requests
    assert r.scheduled[1] < r.scheduled[0]


def test_who_leaves_on_the_way_never_comes():
    story = Story(LeastRequests(1))
    cluster = simulate([Ask(0.0, 100, 5)], engines=1, policy=story, delay=lambda prompt: 2.0, patience=1.0)
    assert list(cluster.record.requests.outcome) == [Outcome.ABANDONED]
    assert [what for _, what, _ in story.told] == ["arrival", "end"]
    assert cluster.engines[0].stats.steps == 0


@pytest.mark.parametrize("decoders", [-1, 2, 3])
def test_decoders_are_fewer_than_engines(decoders: int):
    with pytest.raises(ValueError, match="decoders must be at least 0 and fewer than all 2 engines"):
        Cluster(None, 2, LeastRequests(2), max_model_len=1, decoders=decoders)  # type: ignore[arg-type]


def test_a_cluster_has_engines():
    with pytest.raises(ValueError, match="engines must be at least 1, not 0"):
        simulate([], engines=0)


def test_no_requests_no_time():
    cluster = simulate([])
    assert cluster.seconds == 0 and len(cluster.record.requests) == 0 and cluster.series.times == []
