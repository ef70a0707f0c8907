"""Many engines under one workload, in discrete events.

What happens next is the least of: the next arrival, the due time of an engine (a heap whose stale entries are skipped
when they surface), the next client out of patience, the next sample. Each is handled at its own time and in that order
of time, so that a policy sees what the gateway would see. An engine is advanced only where something is due in it.

A finished request leaves a row of numbers behind (`forebay.sim.results`), no object.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from math import inf
from typing import Final, Protocol

from forebay.policy.placement import Placement
from forebay.sim.jobs import Job, Listener, QueueFull, TooLong
from forebay.sim.result_gaps import Gaps
from forebay.sim.result_series import Sampled, Series
from forebay.sim.results import Outcome, Requests
from forebay.sim.workload import Ask

REFUSE: Final = -1
"""A policy's answer for a request that goes to no engine."""
LOOK: Final = 1_024
"""Arrivals between two calls of the monitor."""

Monitor = Callable[[float, int, int], bool]
"""Told the simulated time, the requests that arrived and those that ended; True stops the simulation."""


class Engine(Sampled, Protocol):
    """What a cluster asks of an engine model."""

    def submit(self, job: Job, now: float) -> None: ...
    def cancel(self, job: Job, now: float) -> bool: ...
    def due(self) -> float: ...
    def advance(self, now: float) -> None: ...


class Policy(Protocol):
    """What decides over requests. `row` names a request in all three; times never go backward."""

    def on_arrival(self, ask: Ask, row: int, now: float) -> int:
        """The number of the engine that gets it, or REFUSE."""
        ...

    def on_first_token(self, row: int, engine: int, now: float) -> None: ...

    def on_end(self, row: int, engine: int, now: float) -> None:
        """It left the engine: finished, refused by it, or its client gone."""
        ...


class PassThrough:
    """The policy `none`: every request goes on at once, to the engine that `placement` chooses."""

    def __init__(self, placement: Placement, engines: int) -> None:
        self._placement = placement
        self._names = [str(i) for i in range(engines)]

    def on_arrival(self, ask: Ask, row: int, now: float) -> int:
        chosen = self._placement.choose("", self._names, now)
        return REFUSE if chosen is None else int(chosen)

    def on_first_token(self, row: int, engine: int, now: float) -> None: ...

    def on_end(self, row: int, engine: int, now: float) -> None: ...


class LeastRequests:
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

    def on_end(self, row: int, engine: int, now: float) -> None:
        self._counts[engine] -= 1

    def __repr__(self) -> str:
        return f"<LeastRequests {self._counts[:8]}>"


class Recorder:
    """Writes down what the engines say, and tells the policy. One for all engines: a job's tag is its row. What the
    step that runs still computes for a client who has left is nobody's."""

    __slots__ = ("_first", "_policy", "_scheduled", "ended", "finished", "gaps", "last", "requests")

    def __init__(self, policy: Policy) -> None:
        self.requests = Requests()
        self.gaps = Gaps()
        self.finished = 0
        self.ended = 0
        """Those that are in no engine any more, whatever became of them."""
        self.last = 0.0
        """When the latest of them ended."""
        self._policy = policy
        self._scheduled = self.requests.scheduled
        self._first = self.requests.first

    def on_scheduled(self, job: Job, at: float) -> None:
        row = job.tag
        self._scheduled[row] = at
        self.requests.cached[row] = job.cached_tokens

    def on_first_token(self, job: Job, at: float) -> None:
        row = job.tag
        if self.requests.outcome[row]:
            return
        self._first[row] = at
        self._policy.on_first_token(row, self.requests.engine[row], at)

    def on_tokens(self, n: int, steps: int, first: float, last: float, jobs: Sequence[Job] | None, at: float) -> None:
        self.gaps.add_run(n, steps, first, last)

    def on_finish(self, job: Job, at: float) -> None:
        if self.requests.outcome[job.tag]:
            return
        self.finished += 1
        self.end(job.tag, Outcome.FINISHED, at)

    def on_preempt(self, job: Job, at: float) -> None:
        self.requests.preemptions[job.tag] += 1

    def end(self, row: int, outcome: Outcome, at: float) -> None:
        requests = self.requests
        requests.end[row] = at
        requests.outcome[row] = outcome
        self.ended += 1
        if at > self.last:
            self.last = at
        if (engine := requests.engine[row]) >= 0:
            self._policy.on_end(row, engine, at)


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
        monitor: Monitor = lambda now, arrived, ended: False,
    ) -> None:
        """`make` builds engine number i around the listener it is given. `patience`: seconds that a client waits for
        its first token. `until`: when to stop, whatever is under way. `interval`: seconds between samples, to begin
        with."""
        if engines < 1:
            raise ValueError(f"engines must be at least 1, not {engines}")
        self.record = Recorder(policy)
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
        while record.ended < len(requests) and self._heap and not self.stopped and now < self._until:
            now = min(self._heap[0][0], self._until)
            self._pass(now)
        self._close(record.last if record.ended == len(requests) else max(now, self._now()))

    def _arrive(self, ask: Ask, row: int, now: float) -> None:
        record = self.record
        if ask.prompt_tokens + ask.output_tokens > self._max_model_len:
            record.end(row, Outcome.TOO_LONG, now)
            return
        i = self._policy.on_arrival(ask, row, now)
        if i < 0:
            record.end(row, Outcome.REFUSED, now)
            return
        record.requests.engine[row] = i
        job = Job(
            ask.prompt_tokens, ask.output_tokens,
            arrival=now, priority=ask.priority, prefix=ask.prefix, keeps=ask.keeps, tag=row,
        )  # fmt: skip
        try:
            self.engines[i].submit(job, now)
        except QueueFull:
            record.end(row, Outcome.QUEUE_FULL, now)
            return
        except TooLong:
            record.end(row, Outcome.TOO_LONG, now)
            return
        self._schedule(i)
        if self._patience < inf:
            self._leaving.append((now + self._patience, job))

    def _schedule(self, i: int) -> None:
        due = self.engines[i].due()
        if due != self._due[i]:
            self._due[i] = due
            if due < inf:
                heappush(self._heap, (due, i))

    def _pass(self, now: float) -> None:
        """Everything that happens up to `now`, in order."""
        heap, due, engines = self._heap, self._due, self.engines
        while not self.stopped:
            at = heap[0][0] if heap else inf
            other = self.series.next
            if self._leaving and self._leaving[0][0] < other:
                other = self._leaving[0][0]
            if at <= other:
                if at > now:
                    return
                _, i = heappop(heap)
                if at == due[i]:
                    self.events += 1
                    due[i] = -inf
                    engines[i].advance(at)
                    self._schedule(i)
            elif other > now:
                return
            elif other == self.series.next:
                self._sample(other)
            else:
                self._leave()

    def _leave(self) -> None:
        """The client whose patience ends first."""
        now, job = self._leaving.popleft()
        requests, row = self.record.requests, job.tag
        first = requests.first
        if requests.outcome[row] or first[row] == first[row]:
            return
        i = requests.engine[row]
        engine = self.engines[i]
        engine.advance(now)
        if not requests.outcome[row] and first[row] != first[row]:
            engine.cancel(job, now)
            self.record.end(row, Outcome.ABANDONED, now)
        self._schedule(i)

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
