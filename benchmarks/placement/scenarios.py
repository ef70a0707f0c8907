"""What arrives, at how many engines of what kind, and which of them come and go."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import repeat
from math import log
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.common import ROOT, BenchError
from forebay.plan.simulate import Ready, Setup, SimulateError, prepare
from forebay.plan.simulate_hardware import Wanted
from forebay.sim.oracle import Promise
from forebay.sim.workload import Ask
from forebay.sim.workloads import WorkloadError, open_workload

SEED = 5
TRACE = "mooncake_conversation.jsonl"
INSTANT = 3.0
"""Seconds of the trace: its arrivals are written down in multiples of it, and spread over it here."""
SHIFT = 60.0
"""Seconds of the trace by which its copies are apart at most."""
COPY = 1 << 32
"""Between the keys of two copies."""
LLAMA_70B = Wanted(gpu="h100_sxm", model="llama-3.3-70b", tp=4)
SLO = Promise(ttft=2.0, multiple=2.0, tpot=0.15)


@dataclass(frozen=True, slots=True)
class Change:
    """An engine that begins or ceases to be in service, seconds after the begin. One that joins has an empty cache; one
    that leaves goes on with what it has."""

    at: float
    engine: int
    joins: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    name: str
    title: str
    kind: str
    engines: int = 8
    hardware: Wanted = LLAMA_70B
    kv_tokens: int | None = None
    """None: what the catalogue says that fits."""
    speed: float = 1.0
    """Of the trace, how many times as fast as it was recorded; of other traffic, requests a second and engine."""
    copies: int = 1
    """Of the trace, each with prefixes of its own."""
    seconds: float = 600.0
    """Of other traffic than the trace."""
    ramp: float = 120.0
    """Seconds at the begin that no window of the balance is taken from."""
    window: float = 60.0
    quick: float = 0.3
    """The part of it that a quick run has."""
    promise: Promise = SLO
    changes: tuple[Change, ...] = ()
    balance: float = 1.5
    """What max/mean of the engines' work must not exceed."""
    pooled: bool = False
    """Whether hits are held against the pooled cache."""


@dataclass(frozen=True, slots=True)
class Offered:
    scenario: Scenario
    ready: Ready
    asks: list[Ask]
    seconds: float
    """When the last one arrives."""
    extra: dict[str, Any] = field(default_factory=dict)


def data() -> Path:
    """The folder of the traces. Raises BenchError where it is none."""
    folder = Path(os.environ.get("DATA") or ROOT.parent / "shared/data/traces")
    if not folder.is_dir():
        raise BenchError(f"there is no folder {folder} with traces; name one by DATA=path")
    return folder


@lru_cache(maxsize=1)
def offer(scenario: Scenario, quick: bool = False) -> Offered:
    """Raises BenchError where the trace is missing."""
    path = data() / TRACE
    if not path.is_file():
        raise BenchError(f"there is no trace {path}; name a folder with it by DATA=path")
    engine: dict[str, Any] = {}
    if scenario.kv_tokens is not None:
        engine["num_blocks"] = scenario.kv_tokens // 16
    try:
        ready = prepare(Setup(workload=str(path), engines=scenario.engines, hardware=scenario.hardware, engine=engine))
        found = list(TRAFFIC[scenario.kind](scenario, path))
    except (SimulateError, WorkloadError) as e:
        raise BenchError(str(e)) from None
    found.sort()
    if quick:
        until = found[-1].arrival * scenario.quick
        found = [ask for ask in found if ask.arrival < until]
    return Offered(scenario, ready, found, found[-1].arrival)


def _trace(scenario: Scenario, path: Path) -> Iterator[Ask]:
    random = Random(SEED)
    base = list(open_workload(str(path)).asks())
    for copy in range(scenario.copies):
        shift = random.random() * SHIFT if copy else 0.0
        for ask in base:
            at = (ask.arrival + shift + random.random() * INSTANT) / scenario.speed
            prefix = tuple((int(key) + copy * COPY, tokens) for key, tokens in ask.prefix)
            yield ask._replace(arrival=at, prefix=prefix)


def _arrivals(scenario: Scenario, random: Random) -> Iterator[float]:
    """Poisson."""
    now, rate = 0.0, scenario.speed * scenario.engines
    while (now := now + random.expovariate(rate)) < scenario.seconds:
        yield now


def _output(random: Random) -> int:
    """100 tokens in the middle, a hundredth over 640."""
    return max(1, min(2_000, round(random.lognormvariate(log(100), 0.8))))


def _hot(scenario: Scenario, path: Path) -> Iterator[Ask]:
    """Nine in ten begin with the same 4,096 tokens; all go on with 1,024 of their own, the tenth with 5,120."""
    random = Random(SEED)
    for at in _arrivals(scenario, random):
        shared = random.random() < 0.9
        yield Ask(at, 5_120, _output(random), (("hot", 4_096),) if shared else ())


ZIPF_PROMPTS = 400
ZIPF_EXPONENT = 1.0


def _zipf(scenario: Scenario, path: Path) -> Iterator[Ask]:
    """System prompts of 1,024 to 8,192 tokens, their popularity by Zipf's law, each with 256 to 3,840 of its own."""
    random = Random(SEED)
    sizes = [512 * random.randint(2, 16) for _ in range(ZIPF_PROMPTS)]
    weights = [1 / (i + 1) ** ZIPF_EXPONENT for i in range(ZIPF_PROMPTS)]
    pieces = [tuple(zip(range(i * 100, i * 100 + n // 512), repeat(512), strict=False)) for i, n in enumerate(sizes)]
    for at in _arrivals(scenario, random):
        i = random.choices(range(ZIPF_PROMPTS), weights)[0]
        own = random.randint(256, 3_840)
        yield Ask(at, sizes[i] + own, _output(random), pieces[i])


def _cold(scenario: Scenario, path: Path) -> Iterator[Ask]:
    """As zipf, with the first 20 seconds' worth of requests in the first second."""
    squeezed = 20.0
    for ask in _zipf(replace(scenario, seconds=scenario.seconds + squeezed), path):
        at = ask.arrival / squeezed if ask.arrival < squeezed else ask.arrival - squeezed + 1.0
        yield ask._replace(arrival=at)


TRAFFIC = {"trace": _trace, "hot": _hot, "zipf": _zipf, "cold": _cold}

SPEED = 1.5
SCENARIOS = {
    s.name: s
    for s in (
        Scenario(
            name="mooncake8", title="Mooncake conversation, 8 engines", kind="trace", speed=SPEED, balance=1.2,
            pooled=True,
        ),
        Scenario(
            name="mooncake64", title="Mooncake conversation, 64 engines", kind="trace", speed=4 * SPEED, copies=2,
            engines=64, balance=1.2, pooled=True, quick=0.35,
        ),
        Scenario(
            name="small8", title="Mooncake conversation, 8 engines with 200,000 tokens of KV", kind="trace",
            speed=SPEED, kv_tokens=200_000, balance=1.2, pooled=True,
        ),
        Scenario(name="hot", title="90 % share 4,096 tokens, 8 engines", kind="hot", speed=5.0, ramp=60.0, quick=0.35),
        Scenario(
            name="zipf", title="400 system prompts by Zipf's law, 8 engines", kind="zipf", speed=2.5, ramp=60.0,
            quick=0.35,
        ),
        Scenario(name="cold", title="empty caches and a burst, 8 engines", kind="cold", speed=2.5, ramp=0.0),
        Scenario(
            name="churn", title="Mooncake, an engine joins, another leaves", kind="trace", speed=SPEED,
            changes=(Change(0.0, 7, False), Change(900.0, 7, True), Change(1_500.0, 0, False)), quick=0.7,
        ),
    )
}  # fmt: skip
