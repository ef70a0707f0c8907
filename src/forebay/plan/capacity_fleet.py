"""From what one replica carries to replicas, GPUs, nodes and money: at the peak, by hour, and when a node dies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from forebay.plan.capacity_question import PlanError, Question

MOST_REPLICAS: Final = 10_000_000


@dataclass(frozen=True)
class Hour:
    rate: float
    """Requests a second."""
    replicas: int
    """That the promise needs, spare ones not among them."""


@dataclass(frozen=True)
class Fleet:
    peak: float
    """Requests a second."""
    mean: float
    hours: tuple[Hour, ...]
    """24, or none where one rate holds all day."""
    needed: int
    """Replicas at the peak."""
    replicas: int
    """With the spare ones."""
    gpus: int
    nodes: int
    replicas_per_node: int
    """0: a replica takes more than one node."""
    lost: int
    """Replicas that go with one node."""
    headroom: float
    """What all replicas carry at the promise, over the peak, less 1."""
    headroom_less_one: float
    """The same while one node is gone; below 0 the promise is broken at the peak."""


def peak_of(question: Question, e2e: float) -> tuple[float, float]:
    """(peak, mean) requests a second; `e2e`: mean seconds of a request, which people wait for before they think."""
    traffic = question.traffic
    if traffic.users is not None:
        rate = traffic.users / (traffic.think + e2e)
        return rate, rate
    if traffic.hours:
        mean = math.fsum(traffic.hours) / len(traffic.hours)
        return (traffic.peak if traffic.peak is not None else max(traffic.hours)), mean
    if traffic.peak is None:
        raise PlanError("there is no traffic to plan for: give --users, --qps, --hours or a trace")
    return traffic.peak, traffic.peak


def fleet(question: Question, rate: float, gpus: int, e2e: float) -> Fleet:
    """`rate`: requests a second that a replica of `gpus` keeps the promise at. Raises PlanError."""
    peak, mean = peak_of(question, e2e)
    needed = replicas_for(peak, rate)
    per_node = question.gpus_per_node // gpus
    nodes_each = math.ceil(gpus / question.gpus_per_node)
    spare = (
        question.spare_nodes * per_node
        if per_node
        else question.spare_nodes // nodes_each + bool(question.spare_nodes % nodes_each)
    )
    replicas = needed + spare
    lost = min(replicas, per_node or 1)
    nodes = math.ceil(replicas / per_node) if per_node else replicas * nodes_each
    return Fleet(
        peak,
        mean,
        tuple(Hour(one, replicas_for(one, rate)) for one in question.traffic.hours),
        needed,
        replicas,
        replicas * gpus,
        nodes,
        per_node,
        lost,
        replicas * rate / peak - 1,
        (replicas - lost) * rate / peak - 1,
    )


def replicas_for(rate: float, each: float) -> int:
    """At least one. Raises PlanError where there would be no end of them."""
    count = rate / each
    if count > MOST_REPLICAS:
        raise PlanError(f"{rate:,.0f} requests a second at {each:.3g} a replica are over {MOST_REPLICAS:,} replicas")
    return max(1, math.ceil(count - 1e-9))


@dataclass(frozen=True)
class Cost:
    """USD; None where the GPU has no price."""

    hourly: float | None
    """All GPUs."""
    daily: float | None
    daily_by_hour: float | None
    """With no more replicas in each hour than it needs, and the spare ones."""
    million_output: float | None
    """Output tokens, over a day."""
    million_tokens: float | None
    """Prompt and output tokens."""
    valid_request: float | None
    """A request that was served as promised."""


def cost(question: Question, found: Fleet, gpus: int, prompt: float, output: float, valid: float) -> Cost:
    """`prompt`, `output`: mean tokens; `valid`: share of requests that are served as promised."""
    price = question.gpu_price
    if price is None:
        return Cost(None, None, None, None, None, None)
    hourly = found.gpus * price
    requests = found.mean * 86_400
    daily = hourly * 24
    scaled = _scaled([hour.replicas for hour in found.hours], found.replicas - found.needed, gpus * price)
    return Cost(
        hourly,
        daily,
        scaled,
        daily / (requests * output) * 1e6,
        daily / (requests * (prompt + output)) * 1e6,
        daily / (requests * valid) if valid > 0 else None,
    )


def _scaled(replicas: Sequence[int], spare: int, price: float) -> float | None:
    return math.fsum((n + spare) * price for n in replicas) if replicas else None
