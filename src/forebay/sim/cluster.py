"""Many engines under one workload, in discrete events.

What happens next is the least of: the next arrival, the due time of an engine (a heap whose stale entries are skipped
when they surface), the next client out of patience, the next sample. Each is handled at its own time and in that order
of time, so that a policy sees what the gateway would see. An engine is advanced only where something is due in it.

A finished request leaves a row of numbers behind (`forebay.sim.results`), no object.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import heappop, heappush
from math import inf
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

from forebay.sim.cluster_decoders import Decoders, Part
from forebay.sim.jobs import Job, Listener, QueueFull, State, TooLong
from forebay.sim.result_gaps import Gaps
from forebay.sim.result_series import Sampled, Series
from forebay.sim.results import Outcome, Requests
from forebay.sim.workload import Ask

if TYPE_CHECKING:  # it brings the configuration's models with it
    from forebay.policy.placement import Placement

REFUSE: Final = -1
"""A policy's answer for a request that goes to no engine."""
WAIT: Final = -2
"""For one that goes later: `Policy.due` says when, and where to."""
LOOK: Final = 1_024
"""Arrivals between two calls of the monitor."""

Monitor = Callable[[float, int, int], bool]
"""Told the simulated time, the requests that arrived and those that ended; True stops the simulation."""


class Engine(Sampled, Protocol):
    """What a cluster asks of an engine model."""

    def submit(self, job: Job, now: float) -> None: ...
    def cancel(self, job: Job, now: float) -> bool: ...
    def release(self, job: Job, now: float) -> None: ...
    def due(self) -> float: ...
    def advance(self, now: float) -> None: ...
    def delivered(self, job: Job) -> int: ...


class Policy(Protocol):
    """What decides over requests. `row` names a request in all three; times never go backward."""

    report_every: float
    """Seconds between two looks at the engines; infinite: none."""

    def on_arrival(self, ask: Ask, row: int, now: float) -> int:
        """The number of the engine that gets it, REFUSE or WAIT."""
        ...

    def due(self, now: float) -> Sequence[tuple[int, int]]:
        """Rows that waited, and the engine that each goes to now, or REFUSE."""
        ...

    def next_due(self) -> float:
        """When to ask `due` if nothing else happens; infinite: never."""
        ...

    def on_first_token(self, row: int, engine: int, now: float) -> None: ...

    def on_end(self, row: int, engine: int, now: float, tokens: int) -> None:
        """It left the engine, or (engine -1) those who wait: finished, refused, or its client gone. `tokens`: how many
        it got."""
        ...

    def on_report(self, engine: int, model: Engine, jobs: Mapping[int, Job], now: float) -> None:
        """A look at an engine; `jobs`: those in flight anywhere, by row."""
        ...


@runtime_checkable
class Reader(Protocol):
    """A policy that reads what engines say of each request at its end: what of its prompt was cached."""

    def reads(self, cached_tokens: Sequence[int]) -> None:
        """By row; -1: it was not computed."""
        ...


class Splitter(Protocol):
    """Beside a policy that sends some requests whole to the decode engines."""

    def decode_of(self, row: int) -> int:
        """The engine that decodes a request whose prompt was computed elsewhere."""
        ...

    def on_prefilled(self, row: int, now: float) -> None:
        """Its prompt is computed, and its KV held for the decode engine."""
        ...


class Immediate:
    """For policies that know at once, and never look."""

    report_every = inf

    def due(self, now: float) -> Sequence[tuple[int, int]]:
        return ()

    def next_due(self) -> float:
        return inf

    def on_report(self, engine: int, model: Engine, jobs: Mapping[int, Job], now: float) -> None:
        return


class PassThrough(Immediate):
    """The policy `none`: every request goes on at once, to the engine that `placement` chooses."""

    def __init__(self, placement: Placement, engines: int) -> None:
        self._placement = placement
        self._names = [str(i) for i in range(engines)]

    def on_arrival(self, ask: Ask, row: int, now: float) -> int:
        chosen = self._placement.choose("", self._names, now)
        return REFUSE if chosen is None else int(chosen)

    def on_first_token(self, row: int, engine: int, now: float) -> None: ...

    def on_end(self, row: int, engine: int, now: float, tokens: int) -> None: ...


class LeastRequests(Immediate):
    """The policy `none`, placed where the fewest requests run and wait; among equals, in turn. State: a count and a
    turn."""

    def __init__(self, engines: int) -> None:
        self._counts = [0] * engines
        self._turn = 0

    def on_arrival(self, ask: Ask, row: int, now: float) -> int:
        counts = self._counts
        least = min(counts)
        try:
            chosen = counts.index(least, self._turn)
        except ValueError:
            chosen = counts.index(least)
        counts[chosen] += 1
        self._turn = chosen + 1
        return chosen

    def on_first_token(self, row: int, engine: int, now: float) -> None: ...

    def on_end(self, row: int, engine: int, now: float, tokens: int) -> None:
        self._counts[engine] -= 1

    def __repr__(self) -> str:
        return f"<LeastRequests {self._counts[:8]}>"


class Recorder:
    """Writes down what the engines say, and tells the policy. One for all engines: a job's tag is its row. What the
    step that runs still computes for a client who has left is nobody's."""

    __slots__ = (
        "_first",
        "_policy",
        "_scheduled",
        "decoders",
        "ended",
        "finished",
        "gaps",
        "jobs",
        "last",
        "moves",
        "requests",
        "waiting",
    )

    def __init__(self, policy: Policy, decoders: Decoders | None) -> None:
        self.requests = Requests()
        self.gaps = Gaps()
        self.finished = 0
        self.ended = 0
        """Those that are in no engine any more, whatever became of them."""
        self.last = 0.0
        """When the latest of them ended."""
        self.moves: list[Job] = []
        """Prefilled and held for a decode engine, or fetched by one."""
        self.decoders = decoders
        self.waiting: dict[int, Job] = {}
        """Those that the policy holds back, by row."""
        self.jobs: dict[int, Job] = {}
        """Those on an engine, where the policy looks."""
        self._policy = policy
        self._scheduled = self.requests.scheduled
        self._first = self.requests.first

    def on_scheduled(self, job: Job, at: float) -> None:
        row = job.tag
        if job.remote:
            self.moves.append(job)
            return
        self._scheduled[row] = at
        self.requests.cached[row] = job.cached_tokens

    def on_first_token(self, job: Job, at: float) -> None:
        row = job.tag
        if self.requests.outcome[row] or job.hold:
            return
        self._first[row] = at
        self._policy.on_first_token(row, self.requests.engine[row], at)

    def on_tokens(self, n: int, steps: int, first: float, last: float, jobs: Sequence[Job] | None, at: float) -> None:
        self.gaps.add_run(n, steps, first, last)

    def on_finish(self, job: Job, at: float) -> None:
        if job.state is State.HELD:
            self.moves.append(job)
            return
        if self.requests.outcome[job.tag]:
            return
        self.finished += 1
        self.end(job.tag, Outcome.FINISHED, at, job.output_tokens)

    def on_preempt(self, job: Job, at: float) -> None:
        self.requests.preemptions[job.tag] += 1

    def end(self, row: int, outcome: Outcome, at: float, tokens: int = 0) -> None:
        requests = self.requests
        requests.end[row] = at
        requests.outcome[row] = outcome
        self.ended += 1
        if at > self.last:
            self.last = at
        self.jobs.pop(row, None)
        if (engine := requests.engine[row]) >= 0 or self.waiting.pop(row, None) is not None:
            self._policy.on_end(row, engine, at, tokens)
        if self.decoders is not None:
            self.decoders.ended(row)


class Cluster:
    """Engines, a policy and the books of one simulation. `run` may be called once."""

    def __init__(
        self,
        make: Callable[[Listener, int], Engine],
        engines: int,
        policy: Policy,
        *,
        max_model_len: int,
        patience: float = inf,
        until: float = inf,
        interval: float = 1.0,
        decoders: int = 0,
        splitter: Splitter | None = None,
        delay: Callable[[int], float] | None = None,
        monitor: Monitor = lambda now, arrived, ended: False,
    ) -> None:
        """`make` builds engine number i around the listener it is given. `patience`: seconds that a client waits for
        its first token. `until`: when to stop, whatever is under way. `interval`: seconds between samples, to begin
        with. `decoders`: how many of the engines, the last ones, decode what the others prefilled; without a `splitter`
        the policy knows only those others. `delay`: seconds from the arrival of a prompt of so many tokens to its
        engine."""
        if engines < 1:
            raise ValueError(f"engines must be at least 1, not {engines}")
        if not 0 <= decoders < engines:
            raise ValueError(f"decoders must be at least 0 and fewer than all {engines} engines, not {decoders}")
        self._decoders = Decoders(engines - decoders, decoders) if decoders else None
        self._splitter = splitter
        self.record = Recorder(policy, self._decoders)
        if isinstance(policy, Reader):
            policy.reads(self.record.requests.cached)
        self.engines: Sequence[Engine] = [make(self.record, i) for i in range(engines)]
        self.series = Series(engines, interval)
        self.seconds = 0.0
        """How much time was simulated."""
        self.stopped = False
        """Whether the monitor ended it."""
        self.events = 0
        """Due times met."""
        self._policy = policy
        self._max_model_len = max_model_len
        self._patience = patience
        self._until = until
        self._monitor = monitor
        self._due = [inf] * engines
        self._heap: list[tuple[float, int]] = []
        self._leaving: deque[tuple[float, Job]] = deque()  # in order, since all are equally patient
        self._delay = delay
        self._coming: list[tuple[float, int, Job]] = []  # a heap of those on their way to their engine
        self._look_at = policy.report_every

    def run(self, workload: Iterable[Ask]) -> None:
        """Simulate until everything is done, `until` has come or the monitor says stop."""
        record, requests, look = self.record, self.record.requests, LOOK
        for ask in workload:
            at = ask.arrival
            if at >= self._until:
                break
            self._pass(at)
            row = requests.arrived(ask)
            self._arrive(ask, row, at)
            if row >= look:
                look = row + LOOK
                if self._monitor(at, row + 1, record.ended):
                    self.stopped = True
            if self.stopped:
                self._close(at)
                return
        now = 0.0
        while record.ended < len(requests) and not self.stopped and now < self._until:
            due = min(
                self._heap[0][0] if self._heap else inf,
                self._coming[0][0] if self._coming else inf,
                self._leaving[0][0] if self._leaving else inf,
                max(now, self._policy.next_due()),
                self._until,
            )
            if due == inf:
                break
            now = due
            self._pass(now)
        self._close(record.last if record.ended == len(requests) else max(now, self._now()))

    def _arrive(self, ask: Ask, row: int, now: float) -> None:
        record = self.record
        if ask.prompt_tokens + ask.output_tokens > self._max_model_len:
            record.end(row, Outcome.TOO_LONG, now)
            return
        job = Job(
            ask.prompt_tokens, ask.output_tokens, arrival=now, priority=ask.priority, prefix=ask.prefix,
            keeps=ask.keeps, tag=row,
        )  # fmt: skip
        i = self._policy.on_arrival(ask, row, now)
        if i == WAIT:
            record.waiting[row] = job
        elif i == REFUSE:
            record.end(row, Outcome.REFUSED, now)
            return
        if self._patience < inf:
            self._leaving.append((now + self._patience, job))
        if i >= 0:
            self._send(i, job, now)
        self._go_on(now)

    def _send(self, i: int, job: Job, now: float) -> None:
        row = job.tag
        self.record.requests.engine[row] = i
        job.hold = self._decoders is not None and i < self._decoders.first and job.output_tokens > 1
        if self._look_at < inf:
            self.record.jobs[row] = job
        if self._delay is None:
            self._submit(i, job, now)
        else:
            heappush(self._coming, (now + self._delay(job.prompt_tokens), row, job))

    def _go_on(self, now: float) -> None:
        """Those who waited and need not any more."""
        while self._policy.next_due() <= now:
            waiting = self.record.waiting
            for row, i in self._policy.due(now):
                job = waiting.pop(row)
                if i >= 0:
                    self._send(i, job, now)
                else:
                    self.record.end(row, Outcome.REFUSED, now)

    def _submit(self, i: int, job: Job, now: float) -> bool:
        """Whether engine i takes it; else its row is closed."""
        try:
            self.engines[i].submit(job, now)
        except QueueFull:
            self.record.end(job.tag, Outcome.QUEUE_FULL, now)
            return False
        except TooLong:
            self.record.end(job.tag, Outcome.TOO_LONG, now)
            return False
        self._schedule(i)
        return True

    def _schedule(self, i: int) -> None:
        due = self.engines[i].due()
        if due != self._due[i]:
            self._due[i] = due
            if due < inf:
                heappush(self._heap, (due, i))

    def _pass(self, now: float) -> None:
        """Everything that happens up to `now`, in order."""
        heap, due, engines, moves = self._heap, self._due, self.engines, self.record.moves
        while not self.stopped:
            at = heap[0][0] if heap else inf
            other = self.series.next
            if self._leaving and self._leaving[0][0] < other:
                other = self._leaving[0][0]
            if self._coming and self._coming[0][0] < other:
                other = self._coming[0][0]
            waking = min(self._policy.next_due(), self._look_at)
            if waking < other:
                other = waking
            if at <= other:
                if at > now:
                    return
                _, i = heappop(heap)
                if at == due[i]:
                    self.events += 1
                    due[i] = -inf
                    engines[i].advance(at)
                    self._schedule(i)
                    if moves:
                        self._hand_over(at)
                    self._go_on(at)
            elif other > now:
                return
            elif waking == other:
                if self._look_at == other:
                    self._look(other)
                self._go_on(other)
            elif self._coming and self._coming[0][0] == other:
                _, row, job = heappop(self._coming)
                if not self.record.requests.outcome[row]:
                    self._submit(self.record.requests.engine[row], job, other)
            elif other == self.series.next:
                self._sample(other)
            else:
                self._leave()

    def _hand_over(self, now: float) -> None:
        """From prefill to decode engines, and back the word that the KV was fetched."""
        decoders, moves, requests = self._decoders, self.record.moves, self.record.requests
        assert decoders is not None
        for job in moves:
            if job.remote:
                if (part := decoders.of(job.tag)) is not None:
                    self._release(part, now)
            elif requests.outcome[job.tag]:  # its client left in the step that ended
                self.engines[requests.engine[job.tag]].release(job, now)
                self._schedule(requests.engine[job.tag])
            else:
                splitter, row = self._splitter, job.tag
                if splitter is not None:
                    splitter.on_prefilled(row, now)
                part = decoders.take(requests.engine[row], job, None if splitter is None else splitter.decode_of(row))
                if not self._submit(part.decode, part.job, now):
                    self._release(part, now)
        moves.clear()

    def _release(self, part: Part, now: float) -> None:
        self.engines[part.prefill].release(part.held, now)
        self._schedule(part.prefill)

    def _leave(self) -> None:
        """The client whose patience ends first."""
        now, job = self._leaving.popleft()
        requests, row = self.record.requests, job.tag
        first = requests.first
        if requests.outcome[row] or first[row] == first[row]:
            return
        part = self._decoders.of(row) if self._decoders is not None else None
        i = requests.engine[row]
        if i < 0:
            self.record.end(row, Outcome.ABANDONED, now)
            return
        if part is not None:
            self._release(part, now)
            i, job = part.decode, part.job
        self.engines[i].cancel(job, now)
        self.record.end(row, Outcome.ABANDONED, now, job.generated)
        self._schedule(i)

    def _look(self, now: float) -> None:
        for i, engine in enumerate(self.engines):
            self._policy.on_report(i, engine, self.record.jobs, now)
        self._look_at = now + self._policy.report_every

    def _sample(self, now: float) -> None:
        record = self.record
        self.series.sample(now, self.engines, len(record.requests), record.finished)
        if self._monitor(now, len(record.requests), record.ended):
            self.stopped = True

    def _now(self) -> float:
        times = [self.record.last, *self.series.times[-1:], *self.record.requests.arrival[-1:]]
        return max(times)

    def _close(self, now: float) -> None:
        """The last, shorter interval."""
        self.seconds = now
        if now > (self.series.times[-1] if self.series.times else 0.0):
            self._sample(now)

    def __repr__(self) -> str:
        return (
            f"<Cluster {len(self.engines)} engines, {self.record.ended} of {len(self.record.requests)} requests ended>"
        )
