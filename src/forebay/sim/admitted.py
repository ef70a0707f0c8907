"""The gateway's admission in the simulator: the very same objects, told of modelled engines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from forebay.hardware.steptime import StepTime
from forebay.policy.admission import Admission
from forebay.policy.asks import Ask, Class
from forebay.policy.decisions import Admit, Decision
from forebay.policy.facts import Facts, Report
from forebay.policy.prefix import BLOCK_TOKENS
from forebay.policy.prior import PrefillPrior
from forebay.policy.rules import Rules
from forebay.sim.cluster import REFUSE, WAIT, Engine
from forebay.sim.jobs import Job
from forebay.sim.prefixes import chain_of
from forebay.sim.settings import EngineSettings
from forebay.sim.workload import Ask as Arrival


def facts_of(settings: EngineSettings, steps: StepTime) -> Facts:
    """What the admission is told of such an engine before the first request."""
    return Facts(
        kv_tokens=settings.kv_tokens,
        block_size=settings.block_size,
        max_num_seqs=settings.max_num_seqs,
        prefill=PrefillPrior.of(steps, settings.max_num_batched_tokens),
    )


class Admitted:
    """A `cluster.Policy`. State: the admission, and what it knows of each row. `max_tokens`: whether clients say how
    long their answers may get; here they say the truth, times `slack`."""

    def __init__(
        self, rules: Rules, engines: Sequence[Facts], *, report_every: float = 0.25, slack: float = 0.0
    ) -> None:
        self.report_every = report_every
        self.admission = Admission(rules, {str(i): facts for i, facts in enumerate(engines)})
        self._asks: dict[int, Ask] = {}
        self._slack = slack
        self._cached: Sequence[int] = ()

    def reads(self, cached_tokens: Sequence[int]) -> None:
        self._cached = cached_tokens

    def on_arrival(self, ask: Arrival, row: int, now: float) -> int:
        asked = self._asked(ask, row, now)
        answer = self._answer(self.admission.offer(asked, now))
        if answer != REFUSE:
            self._asks[row] = asked
        return answer

    def _asked(self, ask: Arrival, row: int, now: float) -> Ask:
        return Ask(
            row,
            prompt_tokens=ask.prompt_tokens,
            arrival=now,
            cls=Class(ask.cls),
            tenant=ask.tenant,
            prefix=chain_of(ask) if ask.prefix or ask.keeps is not None else (),
            block_tokens=BLOCK_TOKENS,
            max_tokens=int(ask.output_tokens * self._slack) if self._slack else None,
        )

    @staticmethod
    def _answer(decision: Decision) -> int:
        if isinstance(decision, Admit):
            return int(decision.engine)
        return REFUSE if hasattr(decision, "reason") else WAIT

    def due(self, now: float) -> Sequence[tuple[int, int]]:
        found = [(ask.key, self._answer(decision)) for ask, decision in self.admission.due(now)]
        for row, answer in found:
            if answer == REFUSE:
                del self._asks[row]
        return found

    def next_due(self) -> float:
        return self.admission.next_due()

    def on_first_token(self, row: int, engine: int, now: float) -> None:
        self.admission.on_first_token(self._asks[row], now)

    def on_end(self, row: int, engine: int, now: float, tokens: int) -> None:
        ask = self._asks.pop(row, None)
        if ask is not None:
            cached = self._cached[row] if ask.prefix and row < len(self._cached) else -1
            self.admission.on_end(ask, now, tokens=tokens, cached_tokens=cached if cached >= 0 else None)

    def on_report(self, engine: int, model: Engine, jobs: Mapping[int, Job], now: float) -> None:
        books = self.admission.books[str(engine)]
        for row, ask in books.asks.items():
            job = jobs.get(row)
            if job is not None and job.first_at >= 0:
                self.admission.produced(ask, model.delivered(job), now)
        stats = model.stats
        self.admission.on_report(str(engine), Report(kv_used=model.kv_usage, preemptions=stats.preemptions), now)

    def __repr__(self) -> str:
        return f"<Admitted {self.admission!r}>"
