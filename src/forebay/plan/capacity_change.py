"""What to change first: each change of settings or hardware tried, and what it gives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from forebay.hardware.catalogue import UnknownGpu, find_gpu
from forebay.hardware.memory import Deployment
from forebay.plan.capacity_fleet import fleet
from forebay.plan.capacity_question import PlanError, Question, Replica, replica
from forebay.plan.capacity_slo import highest

BIGGER: Final = ("h100_sxm", "h200_sxm", "b200_sxm")
"""GPUs that are tried, up to two that are faster than the one asked about."""
_ROUGH: Final = 0.04
"""Relative: as exactly as a change is worked out."""


@dataclass(frozen=True)
class Change:
    name: str
    kind: str
    """setting, precision, hardware or promise."""
    rate: float
    """Requests a second of a replica at the promise."""
    gpus: int
    """At the peak, in all; 0 where there is no traffic."""
    hourly: float | None
    """USD of them."""
    gain: float
    """Requests a second of one GPU, over what they were, less 1."""


@dataclass(frozen=True)
class NoChange:
    """What cannot be changed, and why."""

    name: str
    why: str


def tried(question: Question, base: Replica, rate: float, e2e: float) -> tuple[list[Change], list[NoChange]]:
    """The changes, the best first. All by formulas, on published numbers or on the profile given, the base too, so that
    like is compared with like. `rate`, `e2e`: requests a second of a replica of the base and mean seconds of a request,
    as planned with; what they are of what these formulas say, changes are taken to be as well."""
    simple = replace(question, measured=question.profile is not None)
    alike = base if question.profile is not None or base.source == "roofline" else replica(simple)
    here = highest(alike.engine, question.promise, _ROUGH)
    off, longer = rate / (here.rate * base.lanes), e2e / here.e2e
    done: list[Change] = []
    not_done: list[NoChange] = []
    for name, kind, changed in _changes(simple):
        try:
            found = replica(changed)
            at = highest(found.engine, changed.promise, _ROUGH)
            carried = at.rate * found.lanes * off
            gpus = fleet(changed, carried, found.gpus, at.e2e * longer).gpus if _has_traffic(question) else 0
        except (PlanError, ValueError) as e:
            not_done.append(NoChange(name, str(e)))
            continue
        price = changed.gpu_price
        hourly = None if price is None or not gpus else gpus * price
        done.append(Change(name, kind, carried, gpus, hourly, carried / found.gpus / (rate / base.gpus) - 1))
    priced = all(change.hourly is not None for change in done)
    return sorted(done, key=lambda c: (c.hourly or 0.0 if priced else 0.0, -c.gain)), not_done


def _has_traffic(question: Question) -> bool:
    traffic = question.traffic
    return traffic.users is not None or traffic.peak is not None or bool(traffic.hours)


def _changes(question: Question) -> Iterator[tuple[str, str, Question]]:
    d = question.deployment

    def with_(**fields: object) -> Question:
        return replace(question, deployment=replace(d, **fields))  # type: ignore[arg-type] # fields of Deployment

    batch = 4 * d.max_num_batched_tokens
    if batch <= 16_384:
        yield f"--max-num-batched-tokens {batch}", "setting", with_(max_num_batched_tokens=batch)
    if d.max_num_seqs * 2 <= d.max_num_batched_tokens:
        yield f"--max-num-seqs {d.max_num_seqs * 2}", "setting", with_(max_num_seqs=d.max_num_seqs * 2)
    if d.gpu_memory_utilization < 0.95:
        yield "--gpu-memory-utilization 0.95", "setting", with_(gpu_memory_utilization=0.95)
    if question.profile is None:
        yield from _precisions(question, d)
        yield from _hardware(question, d)
    if question.cache_hit < 0.5:
        hit = round(question.cache_hit + 0.3, 2)
        yield f"prefix cache hits {hit:.0%} of prompt tokens", "workload", replace(question, cache_hit=hit)
    promise = question.promise
    yield (
        f"TTFT {promise.ttft * 2:g} s promised",
        "promise",
        replace(question, promise=replace(promise, ttft=promise.ttft * 2)),
    )


def _precisions(question: Question, d: Deployment) -> Iterator[tuple[str, str, Question]]:
    def with_(**fields: object) -> Question:
        return replace(question, deployment=replace(d, **fields))  # type: ignore[arg-type] # fields of Deployment

    if d.cache_dtype not in ("fp8", "int8"):
        yield "--kv-cache-dtype fp8", "precision", with_(kv_dtype="fp8")
    if d.weights_dtype in ("bf16", "fp16", "fp32"):
        if d.gpu.fp8 is not None:
            yield "weights in fp8", "precision", with_(dtype="fp8")
        elif d.gpu.int8 is not None:
            yield "weights in int8", "precision", with_(dtype="int8")
        yield "weights in int4 (AWQ, GPTQ)", "precision", with_(dtype="int4")


def _hardware(question: Question, d: Deployment) -> Iterator[tuple[str, str, Question]]:
    for tp in (d.tp * 2, d.tp // 2):
        if 1 <= tp <= 8:
            yield f"tensor parallelism {tp}", "hardware", replace(question, deployment=replace(d, tp=tp))
    count = 0
    for name in BIGGER:
        try:
            gpu = find_gpu(name)
        except UnknownGpu:
            continue
        if gpu.bandwidth <= 1.2 * d.gpu.bandwidth or count == 2:
            continue
        count += 1
        changed = replace(d, gpu=gpu)
        yield gpu.title, "hardware", replace(question, deployment=changed, price=None)
