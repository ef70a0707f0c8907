"""Floods of clients that obey Retry-After, each bound by another resource."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from heapq import merge
from itertools import islice
from random import Random
from typing import Any

from benchmarks.common import BenchError
from benchmarks.goodput.workloads import CODE, CONV, data
from forebay.plan.simulate import Ready, Setup, SimulateError, prepare
from forebay.plan.simulate_hardware import Wanted
from forebay.sim.workload import Ask
from forebay.sim.workloads import open_workload

SEED = 11
LENGTHS = 8_000
"""Requests of a trace from which lengths are drawn."""
BEFORE = 60.0
"""Seconds of even traffic before a flood, where there is some."""
AFTER = 60.0
"""And behind it."""


@dataclass(frozen=True, slots=True)
class Scenario:
    name: str
    file: str = CONV
    engines: int = 1
    flood: int = 450
    load: float = 0.0
    """Of the even traffic, in knees."""
    engine: Mapping[str, Any] = field(default_factory=dict)
    """Settings that differ from vLLM's defaults."""
    longer: float = 1.0
    """Answers, times what the trace has."""
    classes: bool = True
    """10 % vip, 60 % normal, 30 % low; else all normal."""
    warm: bool = True
    """A minute of a tenth of the knee comes first, so that something is known of lengths and rates."""


BOUNDS: Mapping[str, tuple[Mapping[str, Any], float]] = {
    "prefill": ({}, 1.0),
    "sequences": ({"max_num_seqs": 16}, 4.0),
    "kv": ({"num_blocks": 2_500}, 2.0),
}
"""What binds: the engine's settings, and how many times as long the answers are."""
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "nothing known": {"classes": False, "warm": False},
    "one class": {"classes": False},
    "classes": {},
    "2 engines": {"engines": 2},
    "8 engines": {"engines": 8, "flood": 2_000},
    "beside 0.5": {"load": 0.5},
    "beside 0.8": {"load": 0.8},
    "code": {"file": CODE},
}
SCENARIOS = tuple(
    Scenario(f"{bound}, {variant}", engine=engine, longer=longer, **given)
    for bound, (engine, longer) in BOUNDS.items()
    for variant, given in VARIANTS.items()
)


@cache
def lengths(file: str) -> tuple[tuple[int, int], ...]:
    path = data() / file
    if not path.is_file():
        raise BenchError(f"there is no trace {path}; name a folder with it by DATA=path")
    return tuple((a.prompt_tokens, a.output_tokens) for a in islice(open_workload(str(path)).asks(), LENGTHS))


def ready(scenario: Scenario) -> Ready:
    """Raises BenchError."""
    wanted = Wanted(gpu="h100_sxm", model="llama-3.1-8b")
    settings = {"enable_prefix_caching": False, **scenario.engine}
    setup = Setup(workload="poisson:rate=1,requests=1", engines=scenario.engines, hardware=wanted, engine=settings)
    try:
        return prepare(setup)
    except SimulateError as e:
        raise BenchError(str(e)) from None


def made(scenario: Scenario, random: Random, times: Iterator[float], until: float) -> Iterator[Ask]:
    pool = lengths(scenario.file)
    for at in times:
        if at >= until:
            return
        prompt, output = random.choice(pool)
        cls = random.choices(("vip", "normal", "low"), (10, 60, 30))[0] if scenario.classes else "normal"
        yield Ask(at, prompt, max(1, round(output * scenario.longer)), cls=cls)


def poisson(random: Random, rate: float, begin: float) -> Iterator[float]:
    at = begin
    while True:
        at += random.expovariate(rate)
        yield at


def even(scenario: Scenario, rate: float, seconds: float, seed: int = SEED) -> Iterator[Ask]:
    """Poisson arrivals without a flood."""
    random = Random(seed)
    return made(scenario, random, poisson(random, rate, 0.0), seconds)


def flood_at(scenario: Scenario) -> float:
    return BEFORE if scenario.load or scenario.warm else 0.0


def asks(scenario: Scenario, knee: float, seed: int = SEED) -> Iterator[Ask]:
    """The flood, within 10 ms, and what comes beside or before it. `knee`: requests a second."""
    at = flood_at(scenario)
    a, b, c = Random(seed), Random(seed + 1), Random(seed + 2)
    flood = made(scenario, a, (at + 0.01 * i / scenario.flood for i in range(scenario.flood)), at + 1.0)
    if scenario.load:
        rest = made(scenario, b, poisson(c, scenario.load * knee, 0.0), BEFORE + AFTER)
    elif scenario.warm:
        rest = made(scenario, b, poisson(c, 0.1 * knee, 0.0), BEFORE)
    else:
        rest = iter(())
    return merge(flood, rest, key=lambda ask: ask.arrival)
