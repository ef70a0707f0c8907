"""Other gateways' admission, as they describe it."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import pytest

from forebay.hardware.steptime import Chunk
from forebay.sim.baselines import Probabilistic, Slots, Utilisation
from forebay.sim.cluster import REFUSE, WAIT, Cluster, Policy
from forebay.sim.engine import EngineModel
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


def simulate(asks: Sequence[Ask], policy: Policy, engines: int = 1) -> Cluster:
    settings = EngineSettings(num_blocks=100, max_num_seqs=4, max_num_batched_tokens=64, max_model_len=512)
    cluster = Cluster(lambda to, i: EngineModel(settings, Steps(), to, name=i), engines, policy, max_model_len=512)
    cluster.run(asks)
    return cluster


class Look:
    """What a report shows of an engine."""

    running = 0
    kv_wasted = 0.0

    def __init__(self, waiting: int, kv_usage: float) -> None:
        self.waiting = waiting
        self.kv_usage = kv_usage


def told(policy: Utilisation, *looks: tuple[int, float]) -> Utilisation:
    for i, look in enumerate(looks):
        policy.on_report(i, Look(*look), {}, 0.0)  # type: ignore[arg-type]
    return policy


def test_slots_serve_in_order_of_arrival_and_so_many_at_once() -> None:
    slots = Slots(1, 2, timeout=inf)
    requests = simulate(
        [Ask(0.001 * i, 10, 20, cls="vip" if i == 5 else "low") for i in range(6)], slots
    ).record.requests
    assert list(requests.outcome) == [Outcome.FINISHED] * 6
    assert list(requests.first) == sorted(requests.first)
    assert requests.first[2] > requests.end[0]
    assert repr(slots) == "<Slots 0 of 2, 0 wait>"


def test_a_full_queue_refuses_at_once_and_a_timeout_later() -> None:
    slots = Slots(1, 1, queue=1, timeout=0.1)
    cluster = simulate([Ask(0.0, 10, 50), Ask(0.01, 10, 1), Ask(0.02, 10, 1)], slots)
    requests = cluster.record.requests
    assert list(requests.outcome) == [Outcome.FINISHED, Outcome.REFUSED, Outcome.REFUSED]
    assert requests.end[1] == pytest.approx(0.11)
    assert requests.end[2] == pytest.approx(0.02)


def test_a_waiting_client_that_leaves_is_forgotten() -> None:
    slots = Slots(1, 1)
    assert slots.on_arrival(Ask(0.0, 10, 1), 0, 0.0) == 0
    assert slots.on_arrival(Ask(0.0, 10, 1), 1, 0.0) == WAIT
    slots.on_end(1, -1, 0.1, 0)
    assert repr(slots) == "<Slots 1 of 1, 0 wait>"
    slots.on_end(0, 0, 0.2, 1)
    assert (slots.next_due(), slots.due(0.2)) == (inf, [])


@pytest.mark.parametrize("wrong", [{"limit": 0}, {"limit": 1, "timeout": 0.0}, {"limit": 1, "queue": -1}])
def test_slots_that_let_nothing_through_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="limit and timeout"):
        Slots(1, **wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("looks", "sheds"),
    [
        ([(4, 0.0)], False),
        ([(5, 0.0)], True),
        ([(0, 0.79)], False),
        ([(0, 0.8)], True),
        ([(9, 0.0), (0, 0.1)], False),  # the mean of 1.8 and 0.125
        ([(9, 0.0), (0, 0.2)], True),
    ],
)
def test_utilisation_sheds_where_the_mean_of_the_scarcer_is_one(looks: list[tuple[int, float]], sheds: bool) -> None:
    policy = told(Utilisation(len(looks)), *looks)
    assert (policy.on_arrival(Ask(0.0, 10, 1, cls="low"), 0, 0.0) == REFUSE) is sheds
    assert policy.on_arrival(Ask(0.0, 10, 1, cls="normal"), 1, 0.0) >= 0


def test_utilisation_looks_at_the_engines_every_50_ms() -> None:
    asks = [Ask(0.0, 60, 5) for _ in range(12)] + [Ask(0.02, 10, 1, cls="low"), Ask(0.06, 10, 1, cls="low")]
    requests = simulate(asks, Utilisation(1)).record.requests
    assert list(requests.outcome[-2:]) == [Outcome.FINISHED, Outcome.REFUSED]


@pytest.mark.parametrize(("saturation", "chance"), [(0.1, 0.003), (0.2, 0.096), (0.3, 0.729), (0.32, 1.0), (2.0, 1.0)])
def test_the_probabilistic_admitter_sheds_by_the_fifth_power(saturation: float, chance: float) -> None:
    policy = told(Probabilistic(1), (0, saturation * 0.8)) if saturation <= 1 else told(Probabilistic(1), (10, 0.0))
    shed = sum(policy.on_arrival(Ask(0.0, 10, 1, cls="low"), i, 0.0) == REFUSE for i in range(20_000)) / 20_000
    assert shed == pytest.approx(chance, abs=0.012)
    assert all(policy.on_arrival(Ask(0.0, 10, 1, cls="vip"), i, 0.0) >= 0 for i in range(50))


@pytest.mark.parametrize("wrong", [{"waiting": 0}, {"kv": 1.2}, {"k": 0.0}, {"power": -1.0}])
def test_thresholds_that_mean_nothing_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Probabilistic(1, **wrong)  # type: ignore[arg-type]
