"""Tenants before one modelled engine behind the gateway's admission, each keeping so many requests waiting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import pairwise
from random import Random

from forebay.plan.simulate import Ready
from forebay.policy.admission import Admission
from forebay.policy.asks import Ask, Stage
from forebay.policy.decisions import Admit, Decision, Refuse
from forebay.policy.facts import Report
from forebay.policy.rules import Rules
from forebay.sim.admitted import facts_of
from forebay.sim.engine import EngineModel
from forebay.sim.jobs import Job

TICK = 0.01
"""Seconds between two looks of the tenants at what waits of theirs."""
REPORT = 0.25
SAMPLE = 1.0
ENGINE = "0"

Lengths = Callable[[Random], tuple[int, int]]
"""Tokens of prompt and answer."""


@dataclass(frozen=True, slots=True)
class Tenant:
    name: str
    lengths: Lengths
    depth: int = 20
    """Requests that it keeps waiting."""
    max_tokens: Callable[[int], int | None] = lambda output: None
    """What it says, of an answer of so many tokens."""
    leaves: float = 0.0
    """Share of its requests that it leaves, a third each while they wait, before and after their first token."""
    away: tuple[float, float] = (0.0, 0.0)
    """From when until when it asks nothing."""
    rate: float = 0.0
    """Where over 0: it sends so many a second instead, whatever waits."""


class _Held:
    """One request: the policy's ask, the engine's job, its tenant's number."""

    __slots__ = ("ask", "done", "job", "leave_at", "output", "tenant")

    def __init__(self, tenant: int, ask: Ask, output: int, leave_at: tuple[str, float]) -> None:
        self.tenant = tenant
        self.ask = ask
        self.output = output
        self.leave_at = leave_at
        self.job: Job | None = None
        self.done = False


class Floor:
    """A `Listener` of the engine. `run` fills `service` and `waited`, a row a second: the weighted tokens that the
    engine has computed for each tenant up to then, and whether it had requests waiting all through that second."""

    def __init__(self, ready: Ready, rules: Rules, tenants: Sequence[Tenant], seed: int) -> None:
        self.tenants = tenants
        self.service: list[list[float]] = []
        self.waited: list[list[bool]] = []
        self.refused = [0] * len(tenants)
        self.answered = [0] * len(tenants)
        self._rules = rules
        self._admission = Admission(rules, {ENGINE: facts_of(ready.settings, ready.steps)})
        self._engine = EngineModel(ready.settings, ready.steps, self, name=0)
        self._random = Random(seed)
        self._keys = 0
        self._grants: list[tuple[float, _Held]] = []
        self._gone = [0.0] * len(tenants)  # of those that have ended
        self._on: dict[int, _Held] = {}
        self._waiting: list[dict[int, _Held]] = [{} for _ in tenants]
        self._always = [True] * len(tenants)
        self._leaving: list[tuple[float, int, _Held]] = []
        self._due = [0.0] * len(tenants)

    def granted(self) -> list[list[float]]:
        """As `service`, each request counted whole when it was admitted: what it came to, or will."""
        rows = [[0.0] * len(self.tenants) for _ in self.service]
        for at, held in self._grants:
            whole = self._rules.queue.service(held.ask.prompt_tokens, held.output)
            if int(at / SAMPLE) < len(rows):
                rows[int(at / SAMPLE)][held.tenant] += self._served(held) if held.done else whole
        for before, row in pairwise(rows):
            for i, service in enumerate(before):
                row[i] += service
        return rows

    # --- the engine's word -------------------------------------------------------------------------------------------

    def on_scheduled(self, job: Job, at: float) -> None: ...

    def on_tokens(self, n: int, steps: int, first: float, last: float, jobs: object, at: float) -> None: ...

    def on_preempt(self, job: Job, at: float) -> None: ...

    def on_first_token(self, job: Job, at: float) -> None:
        held: _Held = job.tag
        if held.done:
            return
        self._admission.on_first_token(held.ask, at)
        if held.leave_at[0] == "streaming":
            heappush(self._leaving, (at + held.leave_at[1], held.ask.key, held))

    def on_finish(self, job: Job, at: float) -> None:
        held: _Held = job.tag
        if not held.done:
            self.answered[held.tenant] += 1
            self._end(held, at, job.output_tokens, whole=True)

    # --- time --------------------------------------------------------------------------------------------------------

    def run(self, seconds: float) -> None:
        engine, admission = self._engine, self._admission
        now, tick, report, sample = 0.0, 0.0, REPORT, SAMPLE
        while now < seconds:
            leaving = self._leaving[0][0] if self._leaving else seconds
            now = min(engine.due(), max(now, admission.next_due()), leaving, tick, report, sample)
            if engine.due() <= now:
                engine.advance(now)
            while self._leaving and self._leaving[0][0] <= now:
                self._leave(heappop(self._leaving)[2], now)
            if tick <= now:
                self._ask(now)
                tick = now + TICK
            if report <= now:
                self._report(now)
                report = now + REPORT
            while admission.next_due() <= now:
                for ask, decision in admission.due(now):
                    held: _Held = ask.tag
                    del self._waiting[held.tenant][ask.key]
                    self._decided(held, decision, now)
            if sample <= now:
                self._sample()
                sample += SAMPLE

    def _ask(self, now: float) -> None:
        for i, tenant in enumerate(self.tenants):
            if tenant.away[0] <= now < tenant.away[1]:
                continue
            if tenant.rate:
                while self._due[i] <= now:
                    self._due[i] = max(self._due[i], now - 1.0) + self._random.expovariate(tenant.rate)
                    self._offer(i, tenant, now)
                continue
            waiting = self._waiting[i]
            if not waiting:
                self._always[i] = False
            for _ in range(tenant.depth - len(waiting)):
                if not self._offer(i, tenant, now):
                    break

    def _offer(self, i: int, tenant: Tenant, now: float) -> bool:
        """Whether it was not refused."""
        random = self._random
        prompt, output = tenant.lengths(random)
        leave = ("", 0.0)
        if random.random() < tenant.leaves:
            leave = (random.choice(("waiting", "prefilling", "streaming")), random.expovariate(2.0))
        self._keys += 1
        ask = Ask(
            self._keys, prompt_tokens=prompt, arrival=now, tenant=tenant.name, max_tokens=tenant.max_tokens(output)
        )
        ask.tag = held = _Held(i, ask, output, leave)
        decision = self._admission.offer(ask, now)
        self._decided(held, decision, now)
        return not isinstance(decision, Refuse)

    def _decided(self, held: _Held, decision: Decision, now: float) -> None:
        if isinstance(decision, Refuse):
            self.refused[held.tenant] += 1
            held.done = True
        elif isinstance(decision, Admit):
            self._grants.append((now, held))
            held.job = Job(held.ask.prompt_tokens, held.output, arrival=now, tag=held)
            self._on[held.ask.key] = held
            self._engine.submit(held.job, now)
            if held.leave_at[0] == "prefilling":
                heappush(self._leaving, (now + held.leave_at[1] * held.ask.bound, held.ask.key, held))
        else:
            self._waiting[held.tenant][held.ask.key] = held
            if held.leave_at[0] == "waiting":
                heappush(self._leaving, (now + held.leave_at[1], held.ask.key, held))

    def _leave(self, held: _Held, now: float) -> None:
        if held.done or (held.leave_at[0] == "waiting" and held.job is not None):
            return
        tokens = 0
        if held.job is None:
            del self._waiting[held.tenant][held.ask.key]
        else:
            self._engine.cancel(held.job, now)
            tokens = held.job.generated
        self._end(held, now, tokens, whole=False)

    def _end(self, held: _Held, now: float, tokens: int, *, whole: bool) -> None:
        held.done = True
        if held.job is not None:
            self._gone[held.tenant] += self._served(held)
            del self._on[held.ask.key]
        self._admission.on_end(held.ask, now, tokens=tokens, whole=whole)

    def _report(self, now: float) -> None:
        engine, admission = self._engine, self._admission
        counts = {
            key: engine.delivered(held.job)
            for key, held in self._on.items()
            if held.ask.stage is Stage.ANSWERING and held.job is not None
        }
        admission.on_tokens(counts, now)
        admission.on_report(ENGINE, Report(kv_used=engine.kv_usage, preemptions=engine.stats.preemptions), now)

    def _served(self, held: _Held) -> float:
        job = held.job
        assert job is not None
        tokens = job.generated if held.done else self._engine.delivered(job)
        return self._rules.queue.service(min(job.computed, job.prompt_tokens), tokens)

    def _sample(self) -> None:
        row = list(self._gone)
        for held in self._on.values():
            row[held.tenant] += self._served(held)
        self.service.append(row)
        self.waited.append(self._always)
        self._always = [bool(w) for w in self._waiting]
