"""Tenants of equal weight, one of them unlike the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

from benchmarks.fairness.floor import Tenant
from benchmarks.goodput.workloads import CODE, CONV
from benchmarks.retries.scenarios import lengths

HOUR = 3_600.0


def conversation(random: Random) -> tuple[int, int]:
    return random.choice(lengths(CONV))


def code(random: Random) -> tuple[int, int]:
    return random.choice(lengths(CODE))


def plain(n: int) -> tuple[Tenant, ...]:
    return tuple(Tenant(f"plain {i + 1}", conversation) for i in range(n))


SHORT = Tenant("short", lambda r: (100, 50))
LONG_PROMPTS = Tenant("long prompts", lambda r: (r.randint(8_000, 16_000), 50))
LONG_ANSWERS = Tenant("long answers", lambda r: (200, r.randint(800, 1_600)))
FLOOD = Tenant("floods", conversation, depth=3_000)
LEAVES = Tenant("leaves", conversation, leaves=0.9)
SAYS_MUCH = Tenant("says 100,000", lambda r: (conversation(r)[0], 10), max_tokens=lambda output: 100_000)
SAYS_LITTLE = Tenant("says little", lambda r: (100, 16), max_tokens=lambda output: 16)
AWAY = Tenant("away an hour", conversation, away=(60.0, 60.0 + HOUR))
SELDOM = Tenant("seldom", conversation, rate=0.5)


@dataclass(frozen=True, slots=True)
class Scenario:
    name: str
    tenants: tuple[Tenant, ...]
    seconds: float = 360.0
    scored_from: float = 120.0
    """Windows begin at this second at the earliest: before it, little is known of how long answers get."""
    engine: Mapping[str, Any] = field(default_factory=dict)


SCENARIOS = (
    Scenario("alike", plain(4)),
    Scenario("sizes", (*plain(1), SHORT, Tenant("code", code), LONG_PROMPTS, LONG_ANSWERS)),
    Scenario("long prompts", (*plain(3), LONG_PROMPTS)),
    Scenario("rates", (*plain(2), Tenant("three at a time", conversation, depth=3), SELDOM)),
    Scenario("flood", (*plain(3), FLOOD)),
    Scenario("leaving", (*plain(3), LEAVES)),
    Scenario("lying", (*plain(2), SAYS_MUCH, SAYS_LITTLE)),
    Scenario("all of these", (*plain(2), SHORT, LONG_PROMPTS, FLOOD, LEAVES, SAYS_MUCH, SELDOM)),
    Scenario("few sequences", (*plain(2), SHORT, FLOOD, LEAVES), engine={"max_num_seqs": 32}),
    Scenario("8 tenants", (*plain(6), FLOOD, LEAVES)),
    Scenario("idle", (*plain(3), AWAY), seconds=HOUR + 180.0),
)
