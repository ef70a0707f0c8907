"""The engines of one run: one, or the ranks of data parallelism behind one front end.

A request goes to the rank with the least 4 · waiting + running by counts that the front end learns every 100 ms; in
between it counts what it sent itself (vLLM 0.19, vllm/v1/engine/core_client.py, `DPLBAsyncMPClient`;
vllm/v1/engine/coordinator.py).

Ranks that share experts step together: each forward pass waits for the others' tokens, so the slowest rank sets the
pace, and a rank with nothing to do takes part with an empty batch as long as another has work (vllm/v1/engine/core.py,
`DPEngineCoreProc.run_busy_loop`). A request that comes to such a rank begins with the group's next step. Where all fit
a CUDA graph, all are padded to the largest of them; otherwise none is (vllm/v1/worker/dp_utils.py,
`coordinate_batch_across_dp`).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Protocol

from benchmarks.fidelity.runs import Tick
from benchmarks.fidelity.setup import Setup
from forebay.hardware.steptime import Chunk, StepTime
from forebay.sim.engine import NEVER, EngineModel
from forebay.sim.jobs import Job, Listener

_COUNTS_EVERY = 0.1


class Fleet(Protocol):
    @property
    def engines(self) -> list[EngineModel]: ...

    def submit(self, job: Job, now: float) -> None: ...

    def due(self) -> float: ...

    def advance(self, now: float) -> None: ...

    def state(self, t: float) -> Tick: ...


def fleet_of(
    setup: Setup, steps: StepTime, listener: Listener, together: Callable[[float], float] | None = None
) -> Fleet:
    """`together`: see `sources.Source`."""
    if setup.lockstep:
        ranks = [Rank(setup.settings, Asked(steps), listener, name=i, max_run=1) for i in range(setup.dp)]
        return Lockstep(ranks, setup.pad, together)
    return Independent([EngineModel(setup.settings, steps, listener, name=i) for i in range(setup.dp)])


class _Balancer:
    """State: what the front end believes of each rank, and since when."""

    def __init__(self, ranks: int) -> None:
        self._counts = [0] * ranks
        self._learnt = -math.inf

    def place(self, loads: list[int], now: float) -> int:
        if now - self._learnt >= _COUNTS_EVERY:
            self._counts = loads
            self._learnt = now
        least = min(range(len(self._counts)), key=self._counts.__getitem__)
        self._counts[least] += 4
        return least


def _load(engine: EngineModel) -> int:
    return 4 * engine.waiting + engine.running


def _state(engines: list[EngineModel], t: float) -> Tick:
    n = len(engines)
    running, waiting = sum(e.running for e in engines), sum(e.waiting for e in engines)
    return Tick(t, running, waiting, sum(e.kv_usage for e in engines) / n)


class Independent:
    """Engines that do not wait for each other."""

    def __init__(self, engines: list[EngineModel]) -> None:
        self.engines = engines
        self._balancer = _Balancer(len(engines))

    def submit(self, job: Job, now: float) -> None:
        self.advance(now)
        at = 0 if len(self.engines) == 1 else self._balancer.place([_load(e) for e in self.engines], now)
        self.engines[at].submit(job, now)

    def due(self) -> float:
        return min(e.due() for e in self.engines)

    def advance(self, now: float) -> None:
        for engine in self.engines:
            engine.advance(now)

    def state(self, t: float) -> Tick:
        return _state(self.engines, t)


class Asked:
    """Step times that remember how many tokens the last step had."""

    def __init__(self, steps: StepTime) -> None:
        self._steps = steps
        self.tokens = 0

    @property
    def warnings(self) -> Sequence[str]:
        return self._steps.warnings

    def decode(self, n: int, context: int, longest: int) -> float:
        self.tokens = n
        return self._steps.decode(n, context, longest)

    def mixed(self, chunks: Sequence[Chunk], n: int, context: int, longest: int) -> float:
        self.tokens = n + sum(chunk.tokens for chunk in chunks)
        return self._steps.mixed(chunks, n, context, longest)


class Rank(EngineModel):
    """An engine whose step can be made to end with those of its group."""

    steps: Asked

    @property
    def tokens(self) -> int:
        """Of the step that has just begun; an idle rank computes one that nobody wants."""
        return 1 if self.idle else self.steps.tokens

    def end_at(self, at: float) -> None:
        """The step that has just begun ends then."""
        self._end = at


class Lockstep:
    """Ranks that step together. State: when the group's step ends, and jobs that idle ranks take up then."""

    def __init__(self, ranks: list[Rank], pad: Sequence[int], together: Callable[[float], float] | None) -> None:
        self._ranks = ranks
        self._pad = sorted(pad)
        self._together = together
        self._end = NEVER
        self._held: list[tuple[int, Job]] = []
        self._balancer = _Balancer(len(ranks))

    @property
    def engines(self) -> list[EngineModel]:
        return list(self._ranks)

    def submit(self, job: Job, now: float) -> None:
        self.advance(now)
        loads = [_load(r) for r in self._ranks]
        for held, _ in self._held:
            loads[held] += 4
        at = self._balancer.place(loads, now)
        rank = self._ranks[at]
        if self._end < NEVER and rank.idle:
            self._held.append((at, job))
            return
        rank.submit(job, now)
        if self._end == NEVER:
            self._begin(now)

    def due(self) -> float:
        return self._end

    def advance(self, now: float) -> None:
        while self._end <= now:
            at = self._end
            for rank in self._ranks:
                rank.advance(at)
            for i, job in self._held:
                self._ranks[i].submit(job, at)
            self._held.clear()
            self._begin(at)

    def _begin(self, at: float) -> None:
        """A step has begun on every rank that has work: all end with the slowest."""
        busy = [rank for rank in self._ranks if not rank.idle]
        if not busy:
            self._end = NEVER
            return
        padded = [self._padded(rank.tokens) for rank in self._ranks]
        graphs = bool(self._pad) and max(padded) <= self._pad[-1]
        total = max(padded) * len(padded) if graphs else sum(rank.tokens for rank in self._ranks)
        seconds = 0.0
        for rank, own in zip(self._ranks, padded, strict=True):
            if not rank.idle:
                took = rank.due() - at
                if self._together is not None:
                    took += self._together(total) - self._together(own * len(padded))
                seconds = max(seconds, took)
        self._end = at + seconds
        for rank in busy:
            rank.end_at(self._end)

    def _padded(self, tokens: int) -> int:
        i = bisect_left(self._pad, tokens)
        return self._pad[i] if i < len(self._pad) else tokens

    def state(self, t: float) -> Tick:
        waits = len(self._held)
        found = _state(self.engines, t)
        return Tick(t, found.running, found.waiting + waits, found.kv)
