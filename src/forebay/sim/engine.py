"""A continuous-batching engine in injected time: what vLLM V1 would do, and when.

The scheduler says who is in a step, the step time how long it takes. With asynchronous scheduling a step is put
together when the one before it *starts*: a request that arrives during step k is first in step k + 2, and a slot that
becomes free at the end of step k is filled in step k + 2.

    time      ──────S1──────────────S2──────────────S3──────────────S4──▶
    runs            │    step 1     │    step 2     │    step 3     │
    scheduled    1,2│              3│              4│

While nothing but decoding goes on, steps differ only in the length of the contexts: such a *run* is advanced at once,
its steps' times taken as going evenly from the first's to the last's. Whatever arrives within it cuts it short at the
end of the step that runs.

Pure: no clock, no loop; equal calls give equal answers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Final

from forebay.hardware.steptime import Chunk, StepTime
from forebay.sim.jobs import EngineStats, Job, Listener, QueueFull, State, TooLong
from forebay.sim.kv import BlockPool, Key
from forebay.sim.scheduler import Scheduler, Step
from forebay.sim.settings import EngineSettings

NEVER: Final = math.inf
_RUN: Final = 512
_STRETCH: Final = 8
"""A run ends before its contexts have grown by one in so many, so that its steps' times are near a straight line."""


class EngineModel:
    """Mutable state: the clock, the step or run that is going on, the step scheduled behind it, and timers.

    `max_run`: the most steps advanced at once; 1 where every token must be told when it comes. `track`: steps know
    their jobs.
    """

    def __init__(
        self,
        settings: EngineSettings,
        steps: StepTime,
        listener: Listener,
        *,
        name: int = 0,
        max_run: int = _RUN,
        track: bool = False,
    ) -> None:
        self.settings = settings
        self.name = name
        self.steps = steps
        self.listener = listener
        self.tokens_each = 1
        """While `on_tokens` is called: how many tokens each job got in a step, or the rest where that is less. More
        than 1 only with speculation."""
        self._scheduler = Scheduler(settings, listener, track=track)
        self._max_run = max_run
        self._now = -math.inf
        self._numbers = 0
        self._step: Step | None = None  # the one that runs, or the first of the run
        self._next: Step | None = None  # scheduled behind it
        self._start = 0.0
        self._end = NEVER
        self._length = 1  # steps of the run
        self._first = 0.0  # seconds of its first step
        self._slope = 0.0  # seconds by which each is longer than the one before
        self._leaving: list[Job] = []
        self._timers: list[tuple[float, int, Job | None]] = []
        self._alarms = 0
        self._batch_due = -math.inf
        self._fetching = 0

    # --- what can be seen --------------------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        """Of the last call, or of the last thing that happened."""
        return self._now

    @property
    def stats(self) -> EngineStats:
        return self._scheduler.stats

    @property
    def pool(self) -> BlockPool:
        return self._scheduler.pool

    @property
    def running(self) -> int:
        return len(self._scheduler.running)

    @property
    def waiting(self) -> int:
        return self._scheduler.line.count + self._fetching

    @property
    def idle(self) -> bool:
        return self._step is None

    @property
    def kv_usage(self) -> float:
        """Share of the KV blocks that jobs hold, 0 to 1."""
        pool = self._scheduler.pool
        return pool.used / pool.capacity

    @property
    def kv_wasted(self) -> float:
        """Share of the held KV slots that hold no token."""
        return self._scheduler.wasted_slots()

    def cached(self, prefix: Sequence[tuple[Key, int]]) -> int:
        """Tokens of `prefix` (as of `Job.prefix`) from its begin on that are in the prefix cache."""
        return self._scheduler.pool.cached(prefix)

    def delivered(self, job: Job) -> int:
        """Output tokens of steps that have ended; within a run, as of its begin."""
        if job.state is State.DECODE:
            generated = job.output_tokens - (job.fin - self._scheduler.t)
        else:
            generated = job.generated
        for step in (self._step, self._next):
            if step is None:
                continue
            if job in step.first or job in step.ending:
                generated -= 1
            elif job.state is State.DECODE and step.n and step.t > job.since:
                generated -= step.advance
        return max(0, generated)

    # --- what is done to it ------------------------------------------------------------------------------------------

    def submit(self, job: Job, now: float) -> None:
        """Raises QueueFull or TooLong, and ValueError where time runs backward. What falls due up to `now` is done
        first."""
        self.advance(now)
        scheduler, settings = self._scheduler, self.settings
        total = job.prompt_tokens + job.output_tokens
        room = scheduler.room
        if total > settings.max_model_len or total > room:
            limit, what = min((settings.max_model_len, "the model's context"), (room, "the engine's KV cache"))
            raise TooLong(
                f"{job.prompt_tokens} prompt and {job.output_tokens} output tokens are more than {limit}, {what}"
            )
        most = settings.max_num_queued_reqs
        if most is not None and self.running + self.waiting >= most:
            scheduler.stats.refused += 1
            raise QueueFull(f"{most} requests are waiting or running (max_num_queued_reqs)")
        most = settings.max_num_queued_tokens
        if most is not None and scheduler.prefill_backlog + job.prompt_tokens > most and scheduler.prefill_backlog:
            scheduler.stats.refused += 1
            raise QueueFull(f"{scheduler.prefill_backlog} prompt tokens wait for prefill (max_num_queued_tokens)")
        job.number = self._numbers
        self._numbers += 1
        job.arrival = now
        scheduler.prefill_backlog += job.prompt_tokens
        if job.remote and settings.role != "prefill":
            job.state = State.FETCHING
            self._fetching += 1
            took = settings.transfer_latency + job.prompt_tokens * settings.transfer_seconds_per_token
            self._set_timer(now + took, job)
            return
        self._enqueue(job, now)

    def cancel(self, job: Job, now: float) -> bool:
        """The client has left: what it holds is free at the end of the step that runs. False where it has ended."""
        self.advance(now)
        scheduler = self._scheduler
        if job.state is State.FETCHING:
            self._fetching -= 1
            scheduler.prefill_backlog -= job.prompt_tokens
        elif job.state is State.WAITING:
            scheduler.unqueue(job)
            self._shorten(now)
        elif job.state in (State.PREFILL, State.DECODE, State.ENDING):
            if job in self._leaving:
                return False
            self._leaving.append(job)
            self._shorten(now)
            return True
        elif job.state is State.HELD:
            scheduler.release(job)
        else:
            return False
        job.state = State.CANCELLED
        scheduler.stats.cancelled += 1
        return True

    def release(self, job: Job, now: float) -> None:
        """A decode engine has fetched the job's KV."""
        self.advance(now)
        if job.state is State.HELD:
            self._scheduler.release(job)
            job.state = State.DONE
            self._shorten(now)
            if self._step is None:
                self._boundary(now)

    def due(self) -> float:
        """When `advance` has something to do, if nothing else happens; infinity: never."""
        timers = self._timers
        return min(self._end, timers[0][0]) if timers else self._end

    def advance(self, now: float) -> None:
        """Do all that ends up to `now`. Raises ValueError where time runs backward."""
        if now < self._now:
            raise ValueError(f"time ran backward: {now} after {self._now}")
        timers = self._timers
        while True:
            if timers and timers[0][0] < self._end:
                if timers[0][0] > now:
                    break
                self._ring()
            else:
                if self._end > now:
                    break
                at = self._now = self._end
                self._complete(at)
                self._boundary(at)
        self._now = now

    # --- timers ------------------------------------------------------------------------------------------------------

    def _set_timer(self, at: float, job: Job | None) -> None:
        self._alarms += 1
        heappush(self._timers, (at, self._alarms, job))

    def _ring(self) -> None:
        at, _, job = heappop(self._timers)
        self._now = at
        if job is None:
            if self._step is None:
                self._boundary(at)
        elif job.state is State.FETCHING:
            self._fetching -= 1
            job.computed = job.prompt_tokens - 1
            self._enqueue(job, at)
        elif job.state is State.HELD:
            self._scheduler.stats.leases_expired += 1
            self.release(job, at)

    def _enqueue(self, job: Job, now: float) -> None:
        scheduler = self._scheduler
        if self._step is None:
            scheduler.enqueue(job)
            self._boundary(now)
            return
        scheduler.enqueue(job)
        if len(scheduler.running) < self.settings.max_num_seqs and scheduler.line.head() is job:
            self._shorten(now)

    # --- steps -------------------------------------------------------------------------------------------------------

    def _boundary(self, at: float) -> None:
        """No step runs: begin the next one, and schedule the one behind it."""
        scheduler = self._scheduler
        self._step = None
        if self._leaving:
            self._let_go()
        step, self._next = self._next, None
        if step is None:
            step = scheduler.schedule(at)
        self._step = step
        if step is None:
            self._end = NEVER
            self._wait_for_batch(at)
            return
        if self.settings.async_scheduling:
            self._next = scheduler.schedule(at)
        self._start = at
        self._length = 1
        self._first = seconds = self._seconds(step)
        self._slope = 0.0
        if not step.chunks and not step.ending and self._max_run > 1:
            further = self._further(step)
            if further:
                self._length = length = further + 1
                last = self.steps.decode(step.n, step.context + further * step.n, step.longest + further)
                self._slope = (last - seconds) / further
                self._end = at + length * seconds + self._slope * length * further / 2
                return
        self._end = at + seconds

    def _seconds(self, step: Step) -> float:
        drafts = self.settings.speculative_tokens
        if drafts and step.n:
            verified = Chunk(step.n * drafts, 0, last=False)
            seconds = self.steps.mixed([*step.chunks, verified], step.n, step.context, step.longest)
            seconds += self.settings.draft_seconds
        elif step.chunks:
            seconds = self.steps.mixed(step.chunks, step.n, step.context, step.longest)
        else:
            seconds = self.steps.decode(step.n, step.context, step.longest)
        return seconds + step.swap_seconds

    def _further(self, step: Step) -> int:
        """How many steps behind `step` and the one scheduled are the same again, one token longer."""
        scheduler, behind = self._scheduler, self._next
        if not scheduler.stable(step.active) or self.settings.speculative_tokens or step.swap_seconds:
            return 0
        if self.settings.async_scheduling and (
            behind is None or behind.chunks or behind.ending or behind.swap_seconds or behind.active != step.active
        ):
            return 0
        limit = min(
            scheduler.next_end() - scheduler.t - 1,
            self._max_run - 1,
            max(16, step.context // (step.n * _STRETCH)),
        )
        return scheduler.most_steps(limit) if limit > 0 else 0

    def _shorten(self, now: float) -> None:
        """Something has changed: a run ends with the step that runs now."""
        length = self._length
        if length == 1 or self._step is None or now > self._end:
            return
        first, slope, passed = self._first, self._slope, now - self._start
        if abs(slope) > 1e-12:
            b = first - slope / 2
            i = math.ceil((math.sqrt(max(0.0, b * b + 2 * slope * passed)) - b) / slope)
        else:
            i = math.ceil(passed / first)
        i = max(1, min(i, length))
        while i > 1 and _span(first, slope, i - 1) >= passed:
            i -= 1
        while i < length and _span(first, slope, i) < passed:
            i += 1
        self._length = i
        self._end = max(now, self._start + _span(first, slope, i))

    def _complete(self, at: float) -> None:
        """The step, or the run, has ended."""
        step, length = self._step, self._length
        assert step is not None
        scheduler, listener = self._scheduler, self.listener
        stats = scheduler.stats
        stats.steps += length
        stats.busy_seconds += at - self._start
        if length > 1:
            scheduler.skip(length - 1)
            behind = self._next
            if behind is not None:
                behind.t += length - 1
                behind.context += (length - 1) * behind.n
                behind.longest += length - 1
        if step.n:
            stats.decode_tokens += step.active * length * step.advance
            if step.advance > 1:
                stats.decode_tokens -= sum(step.t - job.fin for job in step.ending)
            last = self._first + self._slope * (length - 1)
            self.tokens_each = step.advance
            listener.on_tokens(step.active, length, self._first, last, step.jobs, at)
            self.tokens_each = 1
        for job in step.first:
            self._first_token(job, at)
        for job in step.ending:
            if job.state is State.ENDING:
                self._finish(job, at)
        if self.settings.batching != "continuous":
            scheduler.end_batch()

    def _first_token(self, job: Job, at: float) -> None:
        if job.state is State.CANCELLED:
            return
        if job.first_at < 0:
            job.first_at = at
            self.listener.on_first_token(job, at)
        elif job.resumed_from >= 0:
            gap = at - job.resumed_from
            self.listener.on_tokens(1, 1, gap, gap, [job] if self._scheduler.track else None, at)
            job.resumed_from = at
        if job.state is not State.WAITING:  # else it was preempted again since
            job.resumed_from = -1.0
        if job.state is State.ENDING and (self._next is None or job not in self._next.ending):
            if self.settings.role == "prefill" and job.generated < job.output_tokens:
                self._hold(job, at)
            else:
                self._finish(job, at)

    def _finish(self, job: Job, at: float) -> None:
        if job.hold:
            self._hold(job, at)
            return
        self._scheduler.release(job)
        job.state = State.DONE
        self._scheduler.stats.finished += 1
        self.listener.on_finish(job, at)

    def _hold(self, job: Job, at: float) -> None:
        """It has ended and runs no more, but keeps its blocks."""
        if self.settings.batching == "continuous":
            self._scheduler.running.pop(job, None)
        job.state = State.HELD
        self._set_timer(at + self.settings.lease_seconds, job)
        self._scheduler.stats.finished += 1
        self.listener.on_finish(job, at)

    def _let_go(self) -> None:
        for job in self._leaving:
            if job.state is State.WAITING:  # preempted since
                self._scheduler.unqueue(job)
            elif job.state in (State.PREFILL, State.DECODE, State.ENDING):
                delivered = self.delivered(job)
                self._scheduler.release(job)
                job.generated = delivered
            elif job.state is State.HELD:  # prefilled in the step that ran meanwhile
                self._scheduler.release(job)
            else:
                continue
            job.state = State.CANCELLED
            self._scheduler.stats.cancelled += 1
        self._leaving.clear()
        if self.settings.batching != "continuous":
            self._scheduler.end_batch()

    def _wait_for_batch(self, at: float) -> None:
        head = None if self.settings.batching == "continuous" else self._scheduler.line.head()
        if head is not None:
            due = max(at, head.arrival + self.settings.wait_for_batch)
            if due != self._batch_due:
                self._batch_due = due
                self._set_timer(due, None)

    def __repr__(self) -> str:
        return f"<EngineModel {self.name}: {self.running} running, {self.waiting} waiting, KV {self.kv_usage:.0%}>"


def _span(first: float, slope: float, i: int) -> float:
    """Seconds of a run's first `i` steps."""
    return i * first + slope * i * (i - 1) / 2
