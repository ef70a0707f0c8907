"""Which jobs are in a step: vLLM V1's scheduler (vllm/v1/core/sched/scheduler.py), without time.

Jobs that decode all advance together, so they are kept as sums: a token clock `t` that counts what each of them got,
each job's `base` (its KV tokens are base + t), the heap of their ends, and how many need a block at which t modulo the
block size. A step of any number of them costs the same to schedule.
"""

from __future__ import annotations

from heapq import heappop, heappush
from random import Random
from typing import Final

from forebay.hardware.steptime import Chunk
from forebay.sim.jobs import EngineStats, Job, Listener, State
from forebay.sim.kv import BlockPool
from forebay.sim.line import Line
from forebay.sim.settings import EngineSettings

_SEED: Final = 20
"""Of the draws of accepted draft tokens."""


class Step:
    """One step as it was scheduled."""

    __slots__ = (
        "active",
        "advance",
        "chunks",
        "context",
        "ending",
        "first",
        "jobs",
        "longest",
        "n",
        "swap_seconds",
        "t",
    )

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []
        self.first: list[Job] = []
        """Jobs whose prefill ends in it."""
        self.n = 0
        self.active = 0
        """Of the `n`, those that still want tokens: all, but in a fixed batch."""
        self.advance = 1
        """Tokens that each decoding job gets."""
        self.context = 0
        self.longest = 0
        self.ending: list[Job] = []
        self.t = 0
        """The token clock after it."""
        self.swap_seconds = 0.0
        self.jobs: list[Job] | None = None


class Scheduler:
    """Mutable state: the waiting, the running in the order in which they were admitted, and the sums named above."""

    def __init__(self, settings: EngineSettings, listener: Listener, *, track: bool) -> None:
        self.settings = settings
        self.listener = listener
        self.stats = EngineStats()
        # vLLM sets one block aside as the null block (vllm/v1/core/block_pool.py)
        self.pool = BlockPool(
            max(1, settings.num_blocks - 1), settings.block_size, caching=settings.enable_prefix_caching
        )
        self.track = track
        self.running: dict[Job, None] = {}
        self.line = Line(settings.policy)
        self.prefill_backlog = 0
        """Prompt tokens of jobs that are not prefilled yet."""
        self.t = 0
        self.n = 0
        self.blocked = True
        """Nothing of what waits could be admitted as long as nothing ends."""
        self._prefilling: list[Job] = []
        self._joining: list[Job] = []
        self._sum_base = 0
        self._ends: list[tuple[int, int, Job]] = []
        self._longest: list[tuple[int, int, Job]] = []
        self._need = [0] * settings.block_size
        self._batch_size = 0
        self._active = 0  # decoding jobs that still want tokens; in a fixed batch the ended ones go on in `n`
        self._swap_room = settings.swap_blocks
        self._keep_free = int(settings.watermark * settings.num_blocks)
        self._random = Random(_SEED)  # noqa: S311
        self._continuous = settings.batching == "continuous"

    # --- waiting -----------------------------------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """The most tokens of one job: what is never free under the watermark cannot be had."""
        return max(0, self.pool.capacity - self._keep_free) * self.settings.block_size

    def enqueue(self, job: Job) -> None:
        self.line.put(job)

    def unqueue(self, job: Job) -> None:
        """A waiting job leaves."""
        self.line.left()
        if not job.generated:
            self.prefill_backlog -= job.prompt_tokens
        self._swap_room += job.swapped
        job.swapped = 0
        if job.lease is not None:
            self.pool.give_back(job.lease, 0)
            self.pool.close(job.lease)

    # --- a step ------------------------------------------------------------------------------------------------------

    def schedule(self, now: float) -> Step | None:
        """The next step, or None where nothing can run."""
        settings = self.settings
        pool = self.pool
        for job in self._joining:
            self._join(job)
        self._joining.clear()
        step = Step()
        preempted = False
        step.advance = self._draw() if settings.speculative_tokens and self.n else 1
        if self.n and self._continuous:
            need = self._needed(step.advance)
            if need > pool.free:
                preempted = self._preempt_for_decoders(step, now)
                need = self._needed(step.advance)
            pool.take(need)
        budget = settings.max_num_batched_tokens
        if self._active:
            step.n = self.n
            step.active = self._active
            step.context = self._sum_base + self.n * self.t
            step.longest = self._longest_now()
            budget -= step.n * (1 + settings.speculative_tokens)
            self.t += step.advance
            if self.track:
                step.jobs = [job for job in self.running if job.state is State.DECODE]
            ends = self._ends
            while ends and ends[0][0] <= self.t:
                fin, _, job = heappop(ends)
                if job.state is State.DECODE and job.fin == fin:
                    self._leave(job)
                    job.state = State.ENDING
                    job.generated = job.output_tokens
                    step.ending.append(job)
        if self._prefilling:
            for job in tuple(self._prefilling):
                if budget <= 0:
                    break
                if job.state is State.PREFILL:
                    budget, lost = self._go_on(job, step, budget, now)
                    preempted = preempted or lost
        if preempted:
            self.blocked = False
        else:
            self._admit(step, budget, now)
        step.t = self.t
        if step.n or step.chunks:
            return step
        if not self._joining:
            return None
        if (behind := self.schedule(now)) is not None:  # all it did was to swap in: they decode at once
            behind.swap_seconds += step.swap_seconds
        return behind

    def _needed(self, advance: int) -> int:
        """Blocks that decoding jobs need for their next `advance` tokens."""
        size = self.settings.block_size
        if advance == 1:
            return self._need[self.t % size]
        return sum(self._need[(self.t + i) % size] for i in range(advance))

    def _go_on(self, job: Job, step: Step, budget: int, now: float) -> tuple[int, bool]:
        """The next chunk of a prompt that is being prefilled: (the budget left, whether a job was preempted for it)."""
        total = job.prompt_tokens + job.generated
        tokens = min(total - job.computed, budget)
        threshold = self.settings.long_prefill_token_threshold
        if 0 < threshold < tokens and (len(self.running) > 1 or self.line.count):
            tokens = threshold
        size = self.settings.block_size
        lease = job.lease
        assert lease is not None
        need = -(-(job.computed + tokens) // size) - lease.blocks
        preempted = False
        while need > self.pool.free:
            victim = self._victim()
            if victim is None:
                return budget, preempted
            self._preempt(victim, step, now)
            preempted = True
            if victim is job:
                return budget, True
        if need > 0:
            self.pool.take(need)
            self.pool.assign(lease, need)
        self._add_chunk(step, job, tokens, total)
        return budget - tokens, preempted

    def _admit(self, step: Step, budget: int, now: float) -> None:
        settings = self.settings
        if not self.line.count:
            self.blocked = True
            return
        if not self._continuous and not self._form_batch(now):
            self.blocked = True
            return
        pool = self.pool
        size = settings.block_size
        self.blocked = False
        while budget > 0:
            job = self.line.head()
            if job is None or len(self.running) >= (settings.max_num_seqs if self._continuous else self._batch_size):
                self.blocked = True
                return
            if job.swapped:
                if job.swapped + self._keep_free > pool.free:
                    self.blocked = True
                    return
                self.line.pop()
                self._swap_in(job, step)
                continue
            total = job.prompt_tokens + job.generated
            if job.lease is None:
                job.lease = pool.open(job.prefix, job.keeps)
            lease = job.lease
            if job.computed:  # its KV was fetched: only the last token is computed again
                hit = lost = 0
                tokens = total - job.computed
                need = -(-total // size) - lease.blocks
                if need + self._keep_free > pool.free:
                    self.blocked = True
                    return
            else:
                hit, lost = pool.hit(lease, total)
                tokens = min(total - hit * size, budget)
                if tokens < total - hit * size and not settings.enable_chunked_prefill:
                    return  # vllm/v1/core/sched/scheduler.py: those behind it wait as well
                threshold = settings.long_prefill_token_threshold
                if 0 < threshold < tokens and (self.running or self.line.count > 1):
                    tokens = threshold
                whole = -(-(total + (job.output_tokens if not self._continuous else 0)) // size) - hit
                need = whole if not self._continuous else -(-(hit * size + tokens) // size) - hit
                room = whole if settings.reserve_full_isl else need
                if room + lost + self._keep_free > pool.free:
                    self.blocked = True
                    self._batch_size = len(self.running)
                    return
                if hit:
                    pool.take_hit(lease, hit)
            self.line.pop()
            if need > 0:
                pool.take(need)
                pool.assign(lease, need)
            if job.scheduled_at < 0:
                job.scheduled_at = now
                self.stats.prefix_queries += job.prompt_tokens
                job.cached_tokens = hit * size
                self.stats.prefix_hits += hit * size
                self.listener.on_scheduled(job, now)
            if not job.computed:
                job.computed = hit * size
            job.state = State.PREFILL
            self.running[job] = None
            self._prefilling.append(job)
            self._add_chunk(step, job, tokens, total)
            budget -= tokens

    def _add_chunk(self, step: Step, job: Job, tokens: int, total: int) -> None:
        last = job.computed + tokens >= total
        step.chunks.append(Chunk(tokens, job.computed, last))
        job.computed += tokens
        self.stats.prefill_tokens += tokens
        if not last:
            return
        self._prefilling.remove(job)
        if not job.generated:
            self.prefill_backlog -= job.prompt_tokens
        job.generated += 1
        step.first.append(job)
        if job.generated >= job.output_tokens or self.settings.role == "prefill":
            job.state = State.ENDING
        else:
            self._joining.append(job)

    # --- the decoding jobs -------------------------------------------------------------------------------------------

    def _join(self, job: Job) -> None:
        if job.state is not State.PREFILL:
            return  # preempted or cancelled since
        job.state = State.DECODE
        job.base = job.computed - self.t
        job.since = self.t
        job.fin = self.t + job.output_tokens - job.generated
        self.n += 1
        self._active += 1
        self._sum_base += job.base
        self._need[-job.base % self.settings.block_size] += 1
        heappush(self._ends, (job.fin, job.number, job))
        heappush(self._longest, (-job.base, job.number, job))

    def _leave(self, job: Job) -> None:
        """Out of the sums, but for a fixed batch's; `computed` and its lease are brought up to date."""
        self._active -= 1
        job.computed = job.base + self.t
        if not self._continuous:
            return
        self.n -= 1
        self._sum_base -= job.base
        self._need[-job.base % self.settings.block_size] -= 1
        lease = job.lease
        if lease is not None:
            self.pool.assign(lease, -(-job.computed // self.settings.block_size) - lease.blocks)

    def _longest_now(self) -> int:
        heap = self._longest
        while True:
            negative, _, job = heap[0]
            if job.state is State.DECODE and job.base == -negative:
                return job.base + self.t
            heappop(heap)

    def next_end(self) -> int:
        """The token clock at which the next decoding job ends."""
        ends = self._ends
        while ends:
            fin, _, job = ends[0]
            if job.state is State.DECODE and job.fin == fin:
                return fin
            heappop(ends)
        return self.t

    def stable(self, active: int) -> bool:
        """Nothing but decoding is going on, of `active` jobs, and nothing else can begin before a job ends."""
        return self.blocked and active == self._active and not self._joining and not self._prefilling

    def blocks_for(self, steps: int) -> int:
        """What decoding jobs need in their next `steps` steps of a token."""
        size = self.settings.block_size
        cycles, rest = divmod(steps, size)
        need, t = self._need, self.t
        return cycles * self.n + sum(need[(t + i) % size] for i in range(rest))

    def most_steps(self, limit: int) -> int:
        """How many of the next `limit` steps the free blocks suffice for."""
        if not self._continuous:
            return limit
        n, size, free = self.n, self.settings.block_size, self.pool.free
        if (limit // size + 1) * n <= free:
            return limit
        steps = min(limit, free // n * size)
        left = free - steps // size * n if steps < limit else free - self.blocks_for(steps)
        while steps < limit:
            left -= self._need[(self.t + steps) % size]
            if left < 0:
                break
            steps += 1
        return steps

    def skip(self, steps: int) -> None:
        """`steps` further steps of all decoding jobs, as `most_steps` allowed."""
        if steps > 0:
            if self._continuous:
                self.pool.take(self.blocks_for(steps))
            self.t += steps

    def _draw(self) -> int:
        """1 and the draft tokens accepted (Leviathan et al., ICML 2023: each with the same chance, until one is not);
        all sequences of a step get the same number."""
        n = 1
        while n <= self.settings.speculative_tokens and self._random.random() < self.settings.acceptance:
            n += 1
        return n

    # --- preemption --------------------------------------------------------------------------------------------------

    def _preempt_for_decoders(self, step: Step, now: float) -> bool:
        """Make room for the next token of decoding jobs, in their order; the last running ones give way."""
        size = self.settings.block_size
        given: dict[Job, int] = {}
        preempted = False
        for job in tuple(self.running):
            if job.state is not State.DECODE:
                continue
            need = sum((job.base + self.t + i) % size == 0 for i in range(step.advance))
            while need and self.pool.free - sum(given.values()) < need:
                victim = self._victim()
                if victim is None:
                    break
                given.pop(victim, None)
                self._preempt(victim, step, now)
                preempted = True
                if victim is job:
                    break
            else:
                if need:
                    given[job] = need
        return preempted

    def _victim(self) -> Job | None:
        candidates = (j for j in reversed(self.running) if j.state in (State.DECODE, State.PREFILL))
        if self.settings.policy == "priority":
            return max(candidates, key=lambda j: (j.priority, j.number), default=None)
        return next(candidates, None)

    def _preempt(self, job: Job, step: Step, now: float) -> None:
        if job.state is State.DECODE:
            job.generated = job.output_tokens - (job.fin - self.t)
            self._leave(job)
        elif job in self._prefilling:
            self._prefilling.remove(job)
        del self.running[job]
        lease = job.lease
        assert lease is not None
        self.stats.preemptions += 1
        job.preempted += 1
        if job.resumed_from < 0:
            job.resumed_from = now
        blocks = lease.blocks
        if self.settings.preemption == "swap" and job.state is State.DECODE and blocks <= self._swap_room:
            self._swap_room -= blocks
            self.stats.swapped_out += blocks
            job.swapped = blocks
            step.swap_seconds += blocks * self.settings.swap_seconds_per_block
            self.pool.give_back(lease, 0)
        else:
            self.pool.give_back(lease, job.computed)
            job.computed = 0
        self.line.put(job, front=True)
        self.listener.on_preempt(job, now)

    def _swap_in(self, job: Job, step: Step) -> None:
        lease = job.lease
        assert lease is not None
        self.pool.take(job.swapped)
        self.pool.assign(lease, job.swapped)
        self._swap_room += job.swapped
        self.stats.swapped_in += job.swapped
        step.swap_seconds += job.swapped * self.settings.swap_seconds_per_block
        job.swapped = 0
        job.state = State.PREFILL
        job.resumed_from = -1.0
        self.running[job] = None
        self._joining.append(job)

    # --- batches that do not change (before continuous batching) -----------------------------------------------------

    def _form_batch(self, now: float) -> bool:
        """Whether members may be admitted: to a batch that forms now, or goes on forming over several steps."""
        if not self.running:
            head = self.line.head()
            size = min(self.line.count, self.settings.max_num_seqs)
            if head is None or (
                size < self.settings.max_num_seqs and now - head.arrival < self.settings.wait_for_batch - 1e-9
            ):
                return False
            self._batch_size = size
        return len(self.running) < self._batch_size

    def end_batch(self) -> None:
        """Where all members of a fixed batch have ended: all of it is released."""
        if any(job.state not in (State.DONE, State.CANCELLED, State.HELD) for job in self.running):
            return
        members, self.running = self.running, {}
        self.n = self._sum_base = self._batch_size = 0
        self._need = [0] * self.settings.block_size
        for job in members:
            if job.lease is not None and job.state is not State.HELD:
                self.pool.give_back(job.lease, 0)
                self.pool.close(job.lease)

    # --- ends --------------------------------------------------------------------------------------------------------

    def release(self, job: Job) -> None:
        """It holds nothing any more; a member of a fixed batch, once that ends."""
        if job.state is State.DECODE:
            self._leave(job)
        elif job.state is State.PREFILL:
            if job in self._prefilling:
                self._prefilling.remove(job)
            if not job.generated:
                self.prefill_backlog -= job.prompt_tokens
        if not self._continuous and job in self.running:
            return
        self.running.pop(job, None)
        if job.lease is not None:
            self.pool.give_back(job.lease, job.computed)
            self.pool.close(job.lease)

    def wasted_slots(self) -> float:
        """Share of the held KV slots that hold no token: ends of blocks, and what was reserved ahead."""
        size = self.settings.block_size
        held = used = 0
        for job in self.running:
            if job.lease is None:
                continue
            tokens = job.base + self.t if job.state is State.DECODE else job.computed
            used += tokens
            held += max(job.lease.blocks, -(-tokens // size)) * size
        return 1 - used / held if held else 0.0
