"""Replaying a recorded run's arrivals through the engine model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.common import BenchError
from benchmarks.fidelity.fleet import fleet_of
from benchmarks.fidelity.prefixes import Prefix
from benchmarks.fidelity.runs import Request, Run, Tick
from benchmarks.fidelity.setup import Setup
from benchmarks.fidelity.sources import Source
from forebay.hardware.steptime import WithHost
from forebay.sim.jobs import Job, Refused


@dataclass(frozen=True, slots=True)
class Replay:
    """What the simulator makes of a run."""

    requests: tuple[Request, ...]
    """Those that have ended, in order of arrival."""
    ticks: tuple[Tick, ...]
    preemptions: int
    hits: int
    """Prompt tokens found in the prefix cache."""


class _Ends:
    """A listener that keeps when each job ended, and how many of the `wanted` first ones have not."""

    def __init__(self, wanted: int) -> None:
        self.last: dict[int, float] = {}
        self._wanted = wanted
        self.left = wanted

    def on_scheduled(self, job: Job, at: float) -> None: ...
    def on_first_token(self, job: Job, at: float) -> None: ...
    def on_tokens(
        self, n: int, steps: int, first: float, last: float, jobs: Sequence[Job] | None, at: float
    ) -> None: ...
    def on_preempt(self, job: Job, at: float) -> None: ...

    def on_finish(self, job: Job, at: float) -> None:
        place: int = job.tag
        self.last[place] = at
        if place < self._wanted:
            self.left -= 1


def replay(
    run: Run,
    setup: Setup,
    source: Source,
    prefixes: Mapping[int, Prefix],
    *,
    host: tuple[float, float] = (0.0, 0.0),
    first: int | None = None,
    ticks: Sequence[float] = (),
) -> Replay:
    """Until the `first` requests have ended (all, by default), with the engines' state at the times `ticks`.

    `host`: seconds added to each step, and more to one with prefill in it. Raises BenchError where the engine does not
    take a request.
    """
    wanted = len(run.requests) if first is None else first
    ends = _Ends(wanted)
    fleet = fleet_of(setup, WithHost(source.steps, *host), ends, source.together)
    jobs: list[Job] = []
    seen: list[Tick] = []
    moments = iter((*ticks, math.inf))
    tick = next(moments)
    for place, asked in enumerate(run.requests):
        while tick <= asked.arrival:
            fleet.advance(tick)
            seen.append(fleet.state(tick))
            tick = next(moments)
        prefix = prefixes.get(asked.index, ())
        job = Job(asked.prompt_tokens, asked.output_tokens, prefix=prefix, tag=place)
        try:
            fleet.submit(job, asked.arrival)
        except Refused as e:
            raise BenchError(f"{run.folder}: request {asked.index}: the engine would not take it: {e}") from e
        jobs.append(job)
        if not ends.left:
            break
    while ends.left or tick < math.inf:
        now = min(fleet.due(), tick)
        if now == math.inf:
            raise BenchError(f"{run.folder}: {ends.left} requests never end in the simulated engine")
        fleet.advance(now)
        if now == tick:
            seen.append(fleet.state(tick))
            tick = next(moments)
    done = [
        Request(asked.index, asked.prompt_tokens, asked.output_tokens, asked.arrival, job.first_at, ends.last[place])
        for place, (asked, job) in enumerate(zip(run.requests, jobs, strict=False))
        if place < wanted
    ]
    stats = [e.stats for e in fleet.engines]
    return Replay(tuple(done), tuple(seen), sum(s.preemptions for s in stats), sum(s.prefix_hits for s in stats))
