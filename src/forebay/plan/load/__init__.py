"""Load for a live server, open loop, and what comes of it."""

from __future__ import annotations

from forebay.plan.load.bodies import WORDS
from forebay.plan.load.plan import CHAT, COMPLETIONS, Plan, Slo
from forebay.plan.load.result import Result
from forebay.plan.load.run import TIMER_STEP, Load
from forebay.plan.load.shot import Shot

__all__ = ["CHAT", "COMPLETIONS", "TIMER_STEP", "WORDS", "Load", "Plan", "Result", "Shot", "Slo"]
