"""What the simulator's engine model says of requests sent at given times, from a calibrated profile."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.common import BenchError
from forebay.hardware.fitted import FittedStepTime
from forebay.sim.engine import EngineModel
from forebay.sim.jobs import Job
from forebay.sim.settings import EngineSettings

WORKLOAD_SEED = 20_240
PROMPTS = ((0.7, 30, 240), (0.25, 240, 700), (0.05, 700, 1_500))
"""(share, least, most) tokens of a prompt, even within; cut at what the engine takes."""
OUTPUTS = (4, 90)


@dataclass(frozen=True)
class Request:
    at: float
    """Seconds after the first."""
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True)
class Answer:
    ttft: float
    tpot: float | None
    """None for an answer of one token."""


def workload(rate: float, count: int, max_prompt: int) -> list[Request]:
    """Poisson arrivals of prompts and answers of mixed lengths; the same lengths and the same spacing, stretched, at
    every rate."""
    rng = random.Random(WORKLOAD_SEED)
    found, at = [], 0.0
    for _ in range(count):
        (_, least, most), *_ = rng.choices(PROMPTS, [share for share, _, _ in PROMPTS])
        prompt = rng.randint(least, most)
        output = rng.randint(*OUTPUTS)
        found.append(Request(at, min(prompt, max_prompt), output))
        at += rng.expovariate(1.0) / rate
    return found


class _Ends:
    """Listens to the model: when each job ended."""

    def __init__(self) -> None:
        self.at: dict[int, float] = {}

    def on_scheduled(self, job: Job, at: float) -> None: ...

    def on_first_token(self, job: Job, at: float) -> None: ...

    def on_tokens(
        self, n: int, steps: int, first: float, last: float, jobs: Sequence[Job] | None, at: float
    ) -> None: ...

    def on_preempt(self, job: Job, at: float) -> None: ...

    def on_finish(self, job: Job, at: float) -> None:
        self.at[job.tag] = at


def settings_of(steps: FittedStepTime) -> EngineSettings:
    """Raises BenchError where the profile does not say how the engine is set up."""
    engine = steps.profile.engine
    known = {
        "kv_tokens": engine.kv_tokens,
        "block_size": engine.block_size,
        "max_num_seqs": engine.max_num_seqs,
        "max_num_batched_tokens": engine.max_num_batched_tokens,
        "max_model_len": engine.max_model_len,
    }
    missing = [name for name, value in known.items() if value is None]
    if missing:
        raise BenchError(f"the calibration did not find {', '.join(missing)}: {'; '.join(steps.profile.notes)}")
    return EngineSettings(
        num_blocks=(engine.kv_tokens or 0) // (engine.block_size or 1),
        block_size=engine.block_size or 1,
        max_num_seqs=engine.max_num_seqs or 1,
        max_num_batched_tokens=engine.max_num_batched_tokens or 1,
        max_model_len=engine.max_model_len or 1,
        async_scheduling=bool(engine.async_scheduling),
    )


def predict(requests: Sequence[Request], steps: FittedStepTime) -> list[Answer]:
    """An answer each. The host's part of a request is before its steps."""
    host = steps.profile.host
    ends = _Ends()
    model = EngineModel(settings_of(steps), steps, ends)
    jobs = []
    arrivals = [(r.at + host.per_request + host.per_prompt_token * r.prompt_tokens, i) for i, r in enumerate(requests)]
    for at, i in sorted(arrivals):
        job = Job(requests[i].prompt_tokens, requests[i].output_tokens, tag=i)
        jobs.append(job)
        model.submit(job, at)
    while math.isfinite(due := model.due()):
        model.advance(due)
    answers = {}
    for job in jobs:
        tokens = job.output_tokens - 1
        tpot = (ends.at[job.tag] - job.first_at) / tokens if tokens else None
        answers[job.tag] = Answer(job.first_at - requests[job.tag].at, tpot)
    return [answers[i] for i in range(len(requests))]
