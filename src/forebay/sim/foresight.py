"""What will become of the requests on an engine, and of one more, computed from the engine model's own state as if
nobody came after. For the oracle (`forebay.sim.oracle`): it reads private state, which no gateway can."""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Mapping
from enum import Enum
from math import inf
from typing import Final

from forebay.hardware.steptime import Chunk
from forebay.sim.engine import EngineModel
from forebay.sim.jobs import Job, State
from forebay.sim.scheduler import Step
from forebay.sim.workload import Ask

MARGIN: Final = 1e-7
"""Seconds by which a promise is kept at least, for what rounding does to sums of step times."""
MOST_STEPS: Final = 4_000
"""Looked ahead one by one; a future that is not settled by then is none."""


class Verdict(Enum):
    KEPT = "kept"
    LATE = "late"  # the candidate itself would break its promise
    HARM = "harm"  # another one would, or be preempted


class _Rec:
    """What is known of one request: until when its first and its last token are due."""

    __slots__ = ("end", "first", "output")

    def __init__(self, first: float, output: int, end: float) -> None:
        self.first = first
        self.output = output
        self.end = end


_Ends = tuple[int, int, int, _Rec]  # (−fin, number, base, rec), so that the last of a sorted list ends first


class _Plan:
    """A step that is scheduled."""

    __slots__ = ("chunks", "context", "ending", "first", "n")

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []
        self.first: list[_Rec] = []
        self.ending: list[tuple[_Rec, int]] = []  # and the blocks that become free
        self.n = 0
        self.context = 0


class Foresight:
    """An engine's state, copied when it was made, from which futures are computed.

    For engines as vLLM sets them up by default: continuous batching, first come first served, chunked prefill without a
    threshold, no speculation. Prefix caching must be off. Exact where step times do not depend on the longest context.
    """

    def __init__(self, engine: EngineModel, deadlines: Mapping[int, float], tpot: float, now: float) -> None:
        """`deadlines`: when the first token of each request is due, by its job's tag."""
        scheduler = engine._scheduler
        settings = engine.settings
        if settings.batching != "continuous" or settings.policy != "fcfs" or settings.enable_prefix_caching:
            raise ValueError("the oracle needs continuous batching, the policy fcfs and no prefix caching")
        if settings.speculative_tokens or settings.long_prefill_token_threshold or settings.watermark:
            raise ValueError("the oracle knows no speculation, long_prefill_token_threshold or watermark")
        if not settings.enable_chunked_prefill:
            raise ValueError("the oracle knows no engine that does not cut prompts into chunks")
        self._settings = settings
        self._steps = engine.steps
        self._tpot = min(tpot, 1e9)
        self._recs: dict[Job, _Rec] = {}
        for job in scheduler.running:
            self._rec(job, deadlines[job.tag])
        self._line = [(self._rec(j, deadlines[j.tag]), j.prompt_tokens) for j in _waiting(engine)]
        self._t = scheduler.t
        self._need = list(scheduler._need)
        self._free = scheduler.pool.free
        self._capacity = scheduler.pool.capacity
        self._running = len(scheduler.running)
        decoding = [j for j in scheduler.running if j.state is State.DECODE]
        self._decoding: list[_Ends] = sorted((-j.fin, j.number, j.base, self._recs[j]) for j in decoding)
        self._sum_base = sum(j.base for j in decoding)
        self._joining = [(self._recs[j], j.computed) for j in scheduler._joining]
        prefilling = scheduler._prefilling
        self._prefilling = [(self._recs[j], j.computed, j.prompt_tokens) for j in prefilling]
        self.ahead = sum(j.prompt_tokens - j.computed for j in prefilling) + sum(p for _, p in self._line)
        """Prompt tokens on the engine that are in no step yet."""
        self._end = now
        self._current: _Plan | None = None
        self._next: _Plan | None = None
        step, behind = engine._step, engine._next
        if step is not None:
            self._current = self._plan(step)
            self._next = None if behind is None else self._plan(behind)
            self._run(engine, step, behind, now)

    def _rec(self, job: Job, first: float) -> _Rec:
        end = job.first_at + self._tpot * (job.output_tokens - 1) if job.first_at >= 0 else -inf
        rec = self._recs[job] = _Rec(first, job.output_tokens, end)
        return rec

    def _plan(self, step: Step) -> _Plan:
        plan = _Plan()
        plan.n = step.n
        plan.context = step.context
        plan.chunks = step.chunks
        plan.first = [self._recs[j] for j in step.first]
        for job in step.ending + [j for j in step.first if j.state is State.ENDING and j.output_tokens == 1]:
            assert job.lease is not None
            plan.ending.append((self._recs[job], job.lease.blocks))
        return plan

    def _run(self, engine: EngineModel, step: Step, behind: Step | None, now: float) -> None:
        """Where a run of decode steps goes on: it ends with the step that runs, if a newcomer would cut it."""
        length, end = engine._length, engine._end
        if length > 1 and not self._line and self._running < self._settings.max_num_seqs:
            first, slope, start = engine._first, engine._slope, engine._start
            low, high = 1, length
            while low < high:  # the least number of steps that last until now
                middle = (low + high) // 2
                if _span(first, slope, middle) >= now - start:
                    high = middle
                else:
                    low = middle + 1
            length = low
            end = max(now, start + _span(first, slope, length))
        self._end = end
        if length > 1:
            self._free -= engine._scheduler.blocks_for(length - 1)
            self._t += length - 1
            if self._next is not None and behind is not None:
                self._next.context += (length - 1) * behind.n

    # --- a future ----------------------------------------------------------------------------------------------------

    def admits(self, ask: Ask, first: float) -> Verdict:
        """What becomes of those on the engine, and of `ask`, if it is handed over now. `first`: when its first token is
        due."""
        own = _Rec(first, ask.output_tokens, -inf)
        late = _Future(self).run((own, ask.prompt_tokens))
        if late is None:
            return Verdict.KEPT
        return Verdict.LATE if late is own else Verdict.HARM


_NOBODY: Final = _Rec(0.0, 0, 0.0)


class _Future:
    """One future of an engine: mutable copies of what a `Foresight` holds."""

    def __init__(self, now: Foresight) -> None:
        copies: dict[_Rec, _Rec] = {}
        for rec in now._recs.values():
            if rec.end == -inf:
                copies[rec] = _Rec(rec.first, rec.output, -inf)
        self._of = copies
        self._settings = now._settings
        self._steps = now._steps
        self._tpot = now._tpot
        self._decoding = (
            [(f, i, b, copies.get(r, r)) for f, i, b, r in now._decoding] if copies else list(now._decoding)
        )
        self._joining = [(copies.get(r, r), c) for r, c in now._joining]
        self._prefilling = [(copies.get(r, r), c, p) for r, c, p in now._prefilling]
        self._line = deque((copies.get(r, r), p) for r, p in now._line)
        self._need = list(now._need)
        self._sum_base = now._sum_base
        self._t = now._t
        self._free = now._free
        self._capacity = now._capacity
        self._running = now._running
        self._number = 1 << 60
        self._current = self._copy(now._current)
        self._next = self._copy(now._next)
        self._at = now._end

    def _copy(self, plan: _Plan | None) -> _Plan | None:
        if plan is None:
            return None
        of, copy = self._of, _Plan()
        copy.chunks, copy.n, copy.context = plan.chunks, plan.n, plan.context
        copy.first = [of.get(r, r) for r in plan.first]
        copy.ending = [(of.get(r, r), blocks) for r, blocks in plan.ending]
        return copy

    def run(self, candidate: tuple[_Rec, int]) -> _Rec | None:
        """Whose promise is broken first, `_NOBODY` where one would be preempted; None where all are kept."""
        self._line.append(candidate)
        asynchronous = self._settings.async_scheduling
        late: _Rec | None
        for _ in range(MOST_STEPS):
            current = self._current
            if current is not None and (late := self._complete(current)) is not None:
                return late
            current, self._next = self._next, None
            if current is None:
                current = self._schedule()
                if current is None:
                    return _NOBODY if self._line or self._free < 0 else None
            if asynchronous:
                self._next = self._schedule()
            if self._free < 0:
                return _NOBODY
            self._current = current
            behind = self._next
            self._at += self._seconds(current)
            if not (self._line or self._prefilling or self._joining or current.first or current.chunks) and not (
                behind is not None and (behind.first or behind.chunks)
            ):
                return self._decode(current, behind)
        return _NOBODY

    def _seconds(self, plan: _Plan) -> float:
        if plan.chunks:
            return self._steps.mixed(plan.chunks, plan.n, plan.context, 0)
        return self._steps.decode(plan.n, plan.context, 0)

    def _complete(self, plan: _Plan) -> _Rec | None:
        at = self._at + MARGIN
        for rec in plan.first:
            if at > rec.first:
                return rec
            rec.end = self._at + self._tpot * (rec.output - 1)
        for rec, blocks in plan.ending:
            if at > rec.end and rec.output > 1:
                return rec
            self._running -= 1
            self._free += blocks
        return None

    def _schedule(self) -> _Plan | None:
        """As `Scheduler.schedule`, where nobody is preempted: `_free` is below 0 where somebody were."""
        size = self._settings.block_size
        decoding, need = self._decoding, self._need
        for rec, computed in self._joining:
            base = computed - self._t
            self._number += 1
            insort(decoding, (-(self._t + rec.output - 1), self._number, base, rec))
            self._sum_base += base
            need[-base % size] += 1
        self._joining.clear()
        plan = _Plan()
        budget = self._settings.max_num_batched_tokens
        n = len(decoding)
        if n:
            self._free -= need[self._t % size]
            if self._free < 0:
                return None
            plan.n = n
            plan.context = self._sum_base + n * self._t
            budget -= n
            self._t += 1
            self._end(plan)
        kept = []
        for rec, computed, prompt in self._prefilling:
            done = min(prompt, computed + budget)
            if done > computed:
                self._free -= -(-done // size) + -computed // size
                if self._free < 0:
                    return None
                budget -= done - computed
                if self._chunk(plan, rec, done - computed, computed, prompt):
                    continue
            kept.append((rec, done, prompt))
        self._prefilling = kept
        line = self._line
        while budget > 0 and line and self._running < self._settings.max_num_seqs:
            rec, prompt = line[0]
            tokens = min(prompt, budget)
            taken = -(-tokens // size)
            room = -(-prompt // size) if self._settings.reserve_full_isl else taken
            if room > self._free:
                break
            line.popleft()
            self._free -= taken
            self._running += 1
            budget -= tokens
            if not self._chunk(plan, rec, tokens, 0, prompt):
                self._prefilling.append((rec, tokens, prompt))
        return plan if plan.n or plan.chunks else None

    def _end(self, plan: _Plan) -> None:
        """Those whose last token is in this step."""
        decoding, size, t = self._decoding, self._settings.block_size, self._t
        while decoding and -decoding[-1][0] <= t:
            _, _, base, rec = decoding.pop()
            self._sum_base -= base
            self._need[-base % size] -= 1
            plan.ending.append((rec, -(-(base + t) // size)))

    def _chunk(self, plan: _Plan, rec: _Rec, tokens: int, computed: int, prompt: int) -> bool:
        """Whether it ends the prompt."""
        last = computed + tokens >= prompt
        plan.chunks.append(Chunk(tokens, computed, last))
        if last:
            plan.first.append(rec)
            if rec.output == 1:
                plan.ending.append((rec, -(-prompt // self._settings.block_size)))
            else:
                self._joining.append((rec, prompt))
        return last

    def _decode(self, current: _Plan, behind: _Plan | None) -> _Rec | None:
        """Nothing is left but decoding: the steps that are scheduled, then from each end to the next at once."""
        held = sum(blocks for plan in (current, behind) if plan is not None for _, blocks in plan.ending)
        if (late := self._complete(current)) is not None:
            return late
        if behind is not None:
            self._at += self._seconds(behind)
            if (late := self._complete(behind)) is not None:
                return late
        decoding, steps, size, tpot = self._decoding, self._steps, self._settings.block_size, self._tpot
        at, t, n, sum_base = self._at, self._t, len(decoding), self._sum_base
        if not n:
            return None
        final = sum_base - sum(d[0] for d in decoding)
        if final // size + 2 * n + held <= self._capacity and steps.decode(n, final, 0) <= tpot:
            slack = at + MARGIN - tpot * t
            if all(slack - tpot * d[0] <= d[3].end for d in decoding):
                return None
        if (sum_base + n * t) // size + 2 * n + held > self._capacity:
            return _NOBODY
        for i in range(n - 1, -1, -1):
            negative, _, base, rec = decoding[i]
            length = -negative - t
            if length:
                first = steps.decode(n, sum_base + n * t, 0)
                t += length
                last = steps.decode(n, sum_base + n * (t - 1), 0)
                at += length * (first + last) / 2
                # A block begun by each, and by each another one in the step before those who end give theirs back.
                if (sum_base + n * t) // size + 2 * n > self._capacity:
                    return _NOBODY
            if at + MARGIN > rec.end:
                return rec
            n -= 1
            sum_base -= base
        return None


def _waiting(engine: EngineModel) -> list[Job]:
    line = engine._scheduler.line
    return [job for job in line._queue if job.state is State.WAITING]


def _span(first: float, slope: float, i: int) -> float:
    return i * first + slope * i * (i - 1) / 2
