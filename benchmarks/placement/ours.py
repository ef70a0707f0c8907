"""Forebay's own placement, as the gateway runs it: the policy that is judged."""

from __future__ import annotations

from forebay.config.models import Class
from forebay.plan.simulate import Ready
from forebay.policy.queue import QueueRules
from forebay.policy.rules import Rules
from forebay.sim.admitted import Admitted, facts_of
from forebay.sim.cluster import Policy

PATIENT = 3_600.0
"""Seconds: nobody is refused, since placement is judged here and not admission."""


def build(engines: int, ready: Ready) -> Policy:
    """`ready.settings` and `ready.steps`: what the admission is told of its engines."""
    facts = facts_of(ready.settings, ready.steps)
    patient = dict.fromkeys(Class, PATIENT)
    rules = Rules(ttft=patient, wait=patient, queue=QueueRules())
    return Admitted(rules, [facts] * engines)
