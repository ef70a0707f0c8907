"""Forebay's own placement, as the gateway runs it: the policy that is judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from forebay.config.models import Class
from forebay.plan.simulate import Ready
from forebay.policy.facts import Facts
from forebay.policy.rules import Rules
from forebay.sim.admitted import Admitted, facts_of
from forebay.sim.cluster import Engine
from forebay.sim.jobs import Job

PATIENT = 3_600.0
"""Seconds until the first token that are promised and waited for: nobody is refused, since placement is judged here."""


class Placed(Admitted):
    """Forebay's admission, for engines that come and go."""

    def __init__(self, rules: Rules, engines: Sequence[Facts]) -> None:
        super().__init__(rules, engines)
        self._facts = engines

    def leave(self, engine: int, now: float) -> None:
        self.admission.engine_gone(str(engine), now)

    def join(self, engine: int, now: float) -> None:
        self.admission.engine_here(str(engine), self._facts[engine], now)

    def on_report(self, engine: int, model: Engine, jobs: Mapping[int, Job], now: float) -> None:
        if str(engine) in self.admission.books:
            super().on_report(engine, model, jobs, now)


def build(engines: int, ready: Ready, *, gated: bool = False) -> Placed:
    """`ready.settings` and `ready.steps`: what is known of the engines. `gated`: with admission, requests wait in the
    gateway where engines have enough ahead of them, for an hour if need be; otherwise all go on at once, as every
    rival's do."""
    facts = facts_of(ready.settings, ready.steps)
    if not gated:
        return Placed(Rules(gated=False), [facts] * engines)
    patient = dict.fromkeys(Class, PATIENT)
    return Placed(Rules(ttft=patient, wait=patient), [facts] * engines)
