"""The yardstick: its look ahead comes true in the engine, all whom it admits keep their promise, nobody else could."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations
from math import inf
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.hardware.steptime import Chunk
from forebay.sim.cluster import Cluster
from forebay.sim.engine import EngineModel
from forebay.sim.foresight import Foresight, Verdict
from forebay.sim.jobs import Job, Listener
from forebay.sim.oracle import Oracle, Promise, ideal_prefill
from forebay.sim.results import Outcome
from forebay.sim.settings import EngineSettings
from forebay.sim.workload import Ask

SIZES = {"num_blocks": 400, "block_size": 4, "max_num_seqs": 4, "max_num_batched_tokens": 32, "max_model_len": 1_000}


class Steps:
    """5 ms a step, 1 ms a prompt token, 0.2 ms a sequence and a little for each token of context."""

    warnings: Sequence[str] = ()

    def decode(self, n: int, context: int, longest: int) -> float:
        return 0.005 + 0.0002 * n + 1e-6 * context

    def mixed(self, chunks: Sequence[Chunk], n: int, context: int, longest: int) -> float:
        own = sum(0.001 * c.tokens + 1e-6 * c.tokens * (c.context + c.tokens / 2) for c in chunks)
        return self.decode(n + len(chunks), context, longest) + own


class Quiet:
    """Writes down when jobs end, and who was preempted."""

    def __init__(self) -> None:
        self.ended: dict[int, float] = {}
        self.preempted = 0

    def on_scheduled(self, job: Job, at: float) -> None: ...
    def on_first_token(self, job: Job, at: float) -> None: ...
    def on_tokens(self, n: int, steps: int, first: float, last: float, jobs: object, at: float) -> None: ...

    def on_preempt(self, job: Job, at: float) -> None:
        self.preempted += 1

    def on_finish(self, job: Job, at: float) -> None:
        self.ended[job.tag] = at


def engine(listener: Listener, **fields: object) -> EngineModel:
    given_settings = EngineSettings(**(SIZES | {"enable_prefix_caching": False} | fields))  # type: ignore[arg-type]
    return EngineModel(given_settings, Steps(), listener)


def replay(asks: Iterable[tuple[float, Ask]], **fields: object) -> tuple[list[Job], Quiet]:
    """Each handed over at its time, to the end of all."""
    quiet = Quiet()
    model = engine(quiet, **fields)
    jobs = []
    for tag, (at, ask) in enumerate(asks):
        jobs.append(Job(ask.prompt_tokens, ask.output_tokens, tag=tag))
        model.submit(jobs[-1], at)
    while (due := model.due()) < inf:
        model.advance(due)
    return jobs, quiet


def tpot(job: Job, quiet: Quiet) -> float:
    return (quiet.ended[job.tag] - job.first_at) / (job.output_tokens - 1) if job.output_tokens > 1 else 0.0


LENGTHS = st.tuples(st.integers(1, 90), st.integers(1, 60))
BEFORE = st.lists(st.tuples(st.floats(0.0, 0.4), LENGTHS), max_size=7)


@settings(deadline=None)
@given(before=BEFORE, candidate=LENGTHS, now=st.floats(0.0, 0.8), asynchronous=st.booleans())
def test_what_it_foresees_comes_true_to_the_microsecond(
    before: list[tuple[float, tuple[int, int]]], candidate: tuple[int, int], now: float, asynchronous: bool
) -> None:
    came = [(at, Ask(at, *lengths)) for at, lengths in sorted(before) if at <= now]
    ask = Ask(now, *candidate)
    jobs, quiet = replay([*came, (now, ask)], async_scheduling=asynchronous)
    assert not quiet.preempted
    model = engine(Quiet(), async_scheduling=asynchronous)
    for tag, (at, one) in enumerate(came):
        model.submit(Job(one.prompt_tokens, one.output_tokens, tag=tag), at)
    model.advance(now)
    deadlines = dict.fromkeys(range(len(came)), inf)

    first = jobs[-1].first_at
    sight = Foresight(model, deadlines, inf, now)
    assert sight.admits(ask, first + 1e-6) is Verdict.KEPT
    assert sight.admits(ask, first - 1e-6) is Verdict.LATE

    running = {j.tag for j in model._scheduler.running} | {j.tag for j in model._scheduler.line._queue} | {len(came)}
    slowest = max(tpot(job, quiet) for job in jobs if job.tag in running)
    if slowest:
        assert Foresight(model, deadlines, slowest * 1.0001, now).admits(ask, inf) is Verdict.KEPT
        assert Foresight(model, deadlines, slowest * 0.9999, now).admits(ask, inf) is not Verdict.KEPT


def test_a_future_with_a_preemption_is_none() -> None:
    model = engine(Quiet(), num_blocks=31)  # 30 of 4 tokens
    model.submit(Job(40, 40, tag=0), 0.0)
    model.advance(0.2)
    sight = Foresight(model, {0: inf}, inf, 0.2)
    assert sight.admits(Ask(0.2, 20, 9), inf) is Verdict.KEPT
    assert sight.admits(Ask(0.2, 40, 40), inf) is Verdict.HARM


@pytest.mark.parametrize(
    "fields", [{"enable_prefix_caching": True}, {"policy": "priority"}, {"speculative_tokens": 1, "acceptance": 0.5}]
)
def test_it_refuses_an_engine_that_it_does_not_know(fields: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="the oracle"):
        Foresight(engine(Quiet(), **fields), {}, inf, 0.0)


# --- the policy ------------------------------------------------------------------------------------------------------


def case(seed: int, count: int, over: float) -> list[Ask]:
    random = Random(seed)
    at, asks = 0.0, []
    for _ in range(count):
        at += random.expovariate(over)
        cls = random.choice(("vip", "normal", "normal", "low"))
        asks.append(Ask(at, random.randint(1, 90), random.randint(1, 60), cls=cls))
    return asks


def run(asks: Sequence[Ask], promise: Promise, engines: int = 1, **fields: object) -> Cluster:
    policy = Oracle(promise)

    def make(listener: Listener, i: int) -> EngineModel:
        model = engine(listener, **fields)
        policy.watch(model)
        return model

    cluster = Cluster(make, engines, policy, max_model_len=1_000)
    cluster.run(asks)
    return cluster


def broken(cluster: Cluster, promise: Promise) -> list[int]:
    """Rows of those that were admitted in vain."""
    requests = cluster.record.requests
    one = engine(Quiet())
    found = []
    for row, outcome in enumerate(requests.outcome):
        if outcome != Outcome.FINISHED:
            continue
        first = requests.first[row] - requests.arrival[row]
        spent = requests.end[row] - requests.first[row]
        late = first > promise.first(ideal_prefill(one.steps, one.settings, requests.prompt[row]))
        if late or requests.preemptions[row] or spent > promise.tpot * (requests.output[row] - 1) + 1e-9:
            found.append(row)
    return found


@pytest.mark.parametrize("engines", [1, 3])
@pytest.mark.parametrize("blocks", [400, 90])
@pytest.mark.parametrize("promise", [Promise(ttft=0.4, tpot=0.03), Promise(ttft=0.06, multiple=3.0, tpot=0.02)])
def test_everyone_it_admits_keeps_the_promise(engines: int, blocks: int, promise: Promise) -> None:
    for seed in range(10):
        asks = case(seed, 120, 30.0 * engines)
        cluster = run(asks, promise, engines, num_blocks=blocks)
        assert broken(cluster, promise) == []
        outcomes = set(cluster.record.requests.outcome)
        assert outcomes == {Outcome.FINISHED, Outcome.REFUSED}
        assert repr(cluster.record._policy) == "<Oracle vip 0, normal 0, low 0>"


def test_hardly_anyone_it_refuses_could_have_been_served_beside_those_it_admits() -> None:
    """By brute force: each refused request, handed over at any of many moments to the same engine."""
    promise = Promise(ttft=0.3, tpot=0.03)
    refused, could = 0, set()
    for seed in range(25):
        asks = case(seed, 12, 60.0)
        cluster = run(asks, promise)
        requests = cluster.record.requests
        went = {row: handed for row, handed in enumerate(_handed(asks, promise)) if handed is not None}
        assert set(went) == {r for r, o in enumerate(requests.outcome) if o == Outcome.FINISHED}
        for row in set(range(len(asks))) - set(went):
            ask = asks[row]
            refused += 1
            for i in range(61):
                at = ask.arrival + i * promise.ttft / 60
                order = sorted([*((when, r) for r, when in went.items()), (at, row)])
                jobs, quiet = replay([(when, asks[r]) for when, r in order])
                kept = not quiet.preempted and all(
                    job.first_at - asks[r].arrival <= promise.ttft and tpot(job, quiet) <= promise.tpot + 1e-9
                    for job, (_, r) in zip(jobs, order, strict=True)
                )
                if kept:
                    could.add((seed, row))
    assert refused > 140
    assert len(could) <= 0.05 * refused, could  # a more important one came before its turn, and took the place


def _handed(asks: Sequence[Ask], promise: Promise) -> list[float | None]:
    """When the oracle handed each over."""
    times: list[float | None] = [None] * len(asks)

    class Noting(Oracle):
        def due(self, now: float) -> Sequence[tuple[int, int]]:
            found = super().due(now)
            for row, to in found:
                if to >= 0:
                    times[row] = now
            return found

    policy = Noting(promise)

    def make(listener: Listener, i: int) -> EngineModel:
        model = engine(listener)
        policy.watch(model)
        return model

    Cluster(make, 1, policy, max_model_len=1_000).run(asks)
    return times


def test_among_equals_it_serves_as_many_as_the_best_of_all_choices() -> None:
    promise = Promise(ttft=0.15, tpot=0.03)
    for seed in range(12):
        random = Random(seed)
        asks = [Ask(at, 40, 10) for at in sorted(random.uniform(0, 0.3) for _ in range(8))]
        served = sum(o == Outcome.FINISHED for o in run(asks, promise).record.requests.outcome)
        best = 0
        for size in range(len(asks), 0, -1):
            for some in combinations(asks, size):
                jobs, quiet = replay([(a.arrival, a) for a in some])
                if all(
                    j.first_at - a.arrival <= promise.ttft and tpot(j, quiet) <= promise.tpot
                    for j, a in zip(jobs, some, strict=True)
                ):
                    best = size
                    break
            if best:
                break
        assert served >= best, seed


def test_classes_go_before_arrival() -> None:
    asks = [Ask(0.001 * i, 40, 2, cls=c) for i, c in enumerate(("low",) * 4 + ("normal", "vip"))]
    requests = run(asks, Promise(ttft=0.5)).record.requests
    assert list(requests.outcome) == [Outcome.FINISHED] * 6
    order = sorted(range(6), key=lambda row: requests.first[row])
    assert order.index(5) < order.index(4) < order.index(3)
    assert order.index(4) < order.index(2)


def test_a_long_prompt_is_held_to_a_multiple_of_its_own_prefill() -> None:
    promise = Promise(ttft=0.1, multiple=2.0)
    assert (promise.first(0.1), promise.first(0.2), Promise(ttft=0.1).first(0.2)) == (0.1, 0.4, 0.1)
    model = engine(Quiet())
    jobs, _ = replay([(0.0, Ask(0.0, 300, 1))])
    assert ideal_prefill(model.steps, model.settings, 300) == pytest.approx(jobs[0].first_at)
