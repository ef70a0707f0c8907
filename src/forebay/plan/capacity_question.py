"""What is asked of a plan: a model on GPUs, lengths, a promise, traffic. And what a replica of it is made of."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from forebay.errors import shown
from forebay.hardware.catalogue import UnknownModel, find_named
from forebay.hardware.csvtable import BadProfile
from forebay.hardware.fitted import FittedError
from forebay.hardware.gpus import GPUS
from forebay.hardware.memory import Deployment, MemoryBudget, budget
from forebay.hardware.profiles import resolve
from forebay.hardware.roofline import BANDWIDTH_EFFICIENCY, FLOPS_EFFICIENCY, RooflineSteps
from forebay.hardware.steptime import StepTime, WithHost
from forebay.hardware.tables import CAPTURE_SIZES
from forebay.plan.capacity_lengths import LengthError, Lengths
from forebay.plan.capacity_rates import Engine, Lane

MOST_SECONDS: Final = 86_400.0


class PlanError(Exception):
    """A question without an answer, in one sentence that names what to change."""


@dataclass(frozen=True)
class Promise:
    """So many percent of requests have their first token within `ttft` seconds, and so many at most `tpot` seconds a
    token behind it."""

    ttft: float = 1.5
    tpot: float = math.inf
    percent: float = 95.0


@dataclass(frozen=True)
class Traffic:
    """Requests a second: by the hour of a day, or one number. Or people, of whom each asks again `think` seconds after
    an answer."""

    hours: tuple[float, ...] = ()
    """24 means, from midnight; empty: `peak` all day."""
    peak: float | None = None
    """The most; None: that of `hours`, or of `users`."""
    users: float | None = None
    think: float = 60.0
    text: str = ""
    """Where it comes from, for people."""


@dataclass(frozen=True, kw_only=True)
class Question:
    deployment: Deployment
    lengths: Lengths
    promise: Promise = field(default_factory=Promise)
    traffic: Traffic = field(default_factory=Traffic)
    cache_hit: float = 0.0
    """Share of prompt tokens that are found in the prefix cache."""
    profile: str | None = None
    """Step times: as of `forebay simulate`."""
    measured: bool = True
    """Whether NVIDIA's measured kernels may be used where they are installed; or published numbers alone."""
    host: float = 0.0
    """Seconds that the host adds to a step."""
    price: float | None = None
    """USD an hour of one GPU; None: the GPU's example price, if it has one."""
    gpus_per_node: int = 8
    spare_nodes: int = 0
    """Nodes that may be gone at the peak."""
    simulate: bool = True
    """Whether what formulas say is simulated."""
    seed: int = 0
    notes: tuple[str, ...] = ()
    """What a reader should know about the question."""

    @property
    def gpu_price(self) -> float | None:
        if self.price is not None:
            return self.price
        return self.deployment.gpu.example_price or None


def check(question: Question) -> None:
    """Raises PlanError for numbers that are none."""

    def need(name: str, value: float, least: float, most: float, *, more: bool = False) -> None:
        if not (least < value <= most if more else least <= value <= most):
            raise PlanError(
                f"{name} must be {'more than' if more else 'at least'} {least:g} and at most {most:,g}, not {value:g}"
            )

    promise, traffic = question.promise, question.traffic
    need("--slo-ttft", promise.ttft, 0, MOST_SECONDS, more=True)
    if math.isfinite(promise.tpot):
        need("--slo-tpot", promise.tpot, 0, MOST_SECONDS, more=True)
    need("--percentile", promise.percent, 50, 99.9)
    need("--cache-hit", question.cache_hit, 0, 0.99)
    need("--think", traffic.think, 0, MOST_SECONDS)
    need("--host", question.host, 0, 10)
    need("--gpus-per-node", question.gpus_per_node, 1, 100_000)
    need("--spare-nodes", question.spare_nodes, 0, 100_000)
    if question.price is not None:
        need("--price", question.price, 0, 1e6)
    if traffic.users is not None:
        need("--users", traffic.users, 0, 1e12, more=True)
    if traffic.peak is not None:
        need("--qps", traffic.peak, 0, 1e9, more=True)
    for i, rate in enumerate(traffic.hours):
        need(f"--hours: hour {i}", rate, 0, 1e9)
    if traffic.hours and not any(traffic.hours):
        raise PlanError("--hours: there is no traffic in any hour")


@dataclass(frozen=True)
class Replica:
    """One copy of the model that answers requests."""

    question: Question
    memory: MemoryBudget
    engine: Engine
    """One lane of it."""
    lanes: int
    """Schedulers: one for each data-parallel rank, one for each batch that goes round in a pipeline."""
    source: str
    note: str
    """Where step times come from."""
    notes: tuple[str, ...]

    @property
    def gpus(self) -> int:
        return self.question.deployment.gpus


def replica(question: Question) -> Replica:
    """Raises PlanError, `DoesNotFit`."""
    d = question.deployment
    try:
        memory = budget(d)
        steps, source, note, notes = _steps(question)
        lengths = question.lengths.at_most(memory.longest)
    except LengthError:
        raise PlanError(_too_long(question, memory)) from None
    if (lost := len(question.lengths.prompts) - len(lengths.prompts)) > 0:
        share = lost / len(question.lengths.prompts)
        notes += (
            f"{share:.2%} of the requests are longer than {memory.longest:,} tokens, which the engine refuses; they "
            "are not counted",
        )
    if memory.longest < d.context:
        notes += (
            f"the KV cache holds a sequence of {memory.longest:,} tokens, not of {d.context:,}: start the engine with "
            f"--max-model-len {memory.longest}",
        )
    kv_tokens = float(memory.kv_tokens)
    if memory.layout.groups > 1:
        typical = max(1, round(lengths.decode_context))
        kv_tokens = memory.slots(typical).exact * typical
    if d.pp > 1:
        notes += (f"{d.pp} pipeline stages are taken as {d.pp} batches that go round without a gap",)
    if d.dp > 1 and d.model.moe:
        notes += ("data-parallel ranks that share experts wait for each other in each step, which is not in here",)
    lane = Lane(
        steps=steps,
        kv_tokens=kv_tokens / d.pp,
        max_num_seqs=max(1, d.max_num_seqs // d.pp),
        max_num_batched_tokens=d.max_num_batched_tokens,
        block_size=d.block_size,
    )
    return Replica(question, memory, Engine(lane, lengths, question.cache_hit), d.pp * d.dp, source, note, notes)


def _too_long(question: Question, memory: MemoryBudget) -> str:
    d = question.deployment
    shortest = float((question.lengths.prompts + question.lengths.outputs).min())
    said = f"all requests are longer than the {memory.longest:,} tokens that one sequence may have; the shortest has "
    said += f"{shortest:,.0f}: " if shortest < 1e12 else f"{shortest:.3g}: "
    if memory.longest < d.context:
        return said + "give the KV cache more memory, or shorter requests"
    if d.context < d.model.max_context:
        return said + f"give a longer --max-model-len, up to the {d.model.max_context:,} of {d.model.name}"
    return said + f"that is all that {d.model.name} takes; give shorter requests, or a model with a longer context"


def _steps(question: Question) -> tuple[StepTime, str, str, tuple[str, ...]]:
    """(step times, source, what it was made from, notes). Raises PlanError."""
    d = question.deployment
    try:
        if question.profile is not None or (question.measured and _named(d)):
            found = resolve(
                d.gpu.name if question.profile is None or _in_catalogue(d) else None,
                d.model.name if question.profile is None or _named(d) else None,
                tp=d.tp,
                dtype=d.dtype,
                kv_dtype=d.kv_dtype,
                profile=None if question.profile is None else Path(question.profile),
                pad=() if d.enforce_eager else CAPTURE_SIZES,
            )
            steps, source, note, notes = found.step_time, found.source, found.note, found.notes
        else:
            steps = RooflineSteps(d.model, d.gpu, tp=d.tp, dtype=d.weights_dtype, kv_dtype=d.cache_dtype)
            source, notes = "roofline", ()
            note = (
                f"roofline of {d.gpu.title}: published numbers at {FLOPS_EFFICIENCY:.0%} of the FLOP/s and "
                f"{BANDWIDTH_EFFICIENCY:.0%} of the bandwidth, not measured"
            )
    except (LookupError, ValueError, ImportError, OSError, BadProfile, FittedError) as e:
        raise PlanError(shown(e.args[0] if len(e.args) == 1 else e, 400)) from None
    return (WithHost(steps, question.host, 0.0) if question.host else steps), source, note, notes


def _named(d: Deployment) -> bool:
    """Whether the catalogue has this very model and GPU."""
    try:
        return find_named(d.model.name) == d.model and _in_catalogue(d)
    except UnknownModel:
        return False


def _in_catalogue(d: Deployment) -> bool:
    return any(gpu == d.gpu for gpu in GPUS)
