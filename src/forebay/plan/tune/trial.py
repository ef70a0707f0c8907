"""One setting under one load, and the most load under which it keeps the SLO.

Load is the workload's speed: its requests arrive so many times as fast, in the same order and with the same lengths
(`Setup.speed`). Speeds are powers of GRID, so that settings that do the same get the same number.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from typing import Any, Final

import numpy as np

from forebay.hardware.profiles import resolve
from forebay.plan.simulate import Ready, Setup, SimulateError, prepare, run
from forebay.plan.tune.space import Setting, TuneError
from forebay.sim.cluster import Cluster
from forebay.sim.result_summary import Rows
from forebay.sim.workload import Ask
from forebay.sim.workloads import WorkloadError, open_workload

GRID: Final = 1.02
WIDE: Final = 1.6
"""Factor between loads while the capacity is not bracketed."""
MOST_RUNS: Final = 24
"""Simulations of one search for a capacity."""
LAG: Final = 1.1
"""Completions may take so many times as long as the arrivals they belong to; slower, and the engines fall behind."""
REACH: Final = 1e-3
"""Share of the expected capacity at which a setting that does not keep the SLO never does: nobody queues there."""
Latency = dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What is asked. Picklable."""

    base: Setup
    """Workload, SLO, GPU, model, placement; its load is `base.speed`."""
    attainment: float = 0.95
    """Share of all requests that must meet the SLO."""
    acceptance: float = 0.0
    """Chance that a draft token is accepted, given that those before it were."""
    draft_seconds: float = 0.0
    """Of drafting one token."""
    price: float | None = None
    """USD an hour of one GPU; None: the catalogue's example."""
    windows: bool = False
    """Whether a seed is another part of the trace, since it is no other draw."""
    window: int = 0
    """Requests between two parts' begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """What one simulation showed. Seconds; rates a second; NaN where nothing was measured."""

    speed: float
    offered: float
    """Requests a second that arrived."""
    attainment: float
    """Share of requests that met the SLO."""
    keeps_up: bool
    """Whether requests end as fast as they arrive."""
    ttft: Latency
    tpot: Latency
    e2e: Latency
    """Percentiles: p50, p95, p99; of requests that ended."""
    output: float
    """Output tokens a second, while the middle 80 % of the requests ended."""
    total: float
    """The same, prompt tokens too."""
    goodput: float
    """Requests a second that met the SLO."""
    dollars_per_million: float | None
    """USD of GPUs for a million output tokens."""
    dollars_per_valid: float | None
    """USD of GPUs for a request that met the SLO."""
    hit_rate: float
    kv_high: float
    """The fullest that a KV cache was, 0 to 1."""
    running: float
    """Sequences that run in all engines together, of the samples at which anything ran."""
    preemptions: int
    refused: float
    """Share of requests longer than max_model_len or the KV cache."""
    requests: int
    seconds: float
    """To the last end."""
    output_tokens: int
    """Of all requests that finished."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Of one setting: its capacity, and every point that was measured on the way."""

    setting: Setting
    capacity: float
    """Requests a second that arrive, at the highest load at which the SLO is kept; 0 where it never is."""
    at: Point | None
    """There."""
    points: tuple[Point, ...] = field(repr=False)
    simulations: int
    seed: int = 0

    @property
    def speed(self) -> float:
        return self.at.speed if self.at is not None else 0.0


class Lab:
    """Runs simulations for one problem. State: step times, and the requests of the last few seeds."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._look_up: Any = lru_cache(maxsize=32)(resolve)
        self._asks = lru_cache(maxsize=4)(self._draw)

    def prepare(self, setting: Setting) -> Ready:
        """Raises SimulateError."""
        p = self.problem
        return prepare(setting.setup(p.base, p.acceptance, p.draft_seconds), look_up=self._look_up)

    def asks(self, requests: int, seed: int) -> tuple[Ask, ...]:
        """The first so many of the workload, in time as they are. Raises TuneError."""
        return self._asks(requests, seed)

    def _draw(self, requests: int, seed: int) -> tuple[Ask, ...]:
        p = self.problem
        skip = seed * p.window if p.windows else 0
        try:
            workload = open_workload(p.base.workload, seed=p.base.seed + (0 if p.windows else seed))
            found = tuple(islice(workload.asks(), skip, skip + requests))
        except WorkloadError as e:
            raise TuneError(str(e)) from None
        if not found:
            raise TuneError(f"{p.base.workload}: has no requests")
        begin = found[0].arrival
        return tuple(ask._replace(arrival=ask.arrival - begin) for ask in found) if begin else found

    def measure(self, setting: Setting, speed: float, requests: int, seed: int = 0) -> Point:
        """Raises TuneError."""
        p = self.problem
        setup = setting.setup(p.base, p.acceptance, p.draft_seconds)
        try:
            ready = prepare(setup, look_up=self._look_up)
            asks = self.asks(requests, seed)
            cluster = run(setup, ready, (ask._replace(arrival=ask.arrival / speed) for ask in asks))
        except SimulateError as e:
            raise TuneError(f"{setting}: {e}") from None
        each = ready.hardware.price
        price = None if each is None else each * (setup.engines + setup.decode_engines)
        return _point(cluster, setup, speed, price if p.price is None else p.price * setting.gpus)

    def capacity(self, setting: Setting, guess: float, requests: int, tolerance: float, seed: int = 0) -> Trial:
        """Search for the highest speed at which the SLO is kept, from `guess` on, to within a factor of 1 + `tolerance`
        (not less than GRID). Attainment is taken to fall as load rises. Raises TuneError."""
        points: dict[int, Point] = {}

        def good(i: int) -> bool:
            if i not in points:
                points[i] = self.measure(setting, GRID**i, requests, seed)
            return keeps(points[i], self.problem.attainment)

        start = round(math.log(max(guess, 1e-6), GRID))
        best = climb(good, start, width=max(1, round(math.log(1 + tolerance, GRID))), runs=lambda: len(points))
        at = points[best] if best is not None else None
        return Trial(
            setting=setting,
            capacity=at.offered if at is not None else 0.0,
            at=at,
            points=tuple(points[i] for i in sorted(points)),
            simulations=len(points),
            seed=seed,
        )


def keeps(point: Point, attainment: float) -> bool:
    return point.attainment >= attainment and point.keeps_up


def climb(good: Callable[[int], bool], start: int, *, width: int, runs: Callable[[], int]) -> int | None:
    """The greatest exponent found good, with one not good at most `width` above it; None where none is. Steps grow
    until it is between two; a start that is far too high is given up at REACH of it."""
    wide = round(math.log(WIDE, GRID))
    floor = start + round(math.log(REACH, GRID))
    step = wide
    if good(start):
        low, high = start, start + step
        while good(high):
            if runs() >= MOST_RUNS:
                return high
            step = min(step * 2, 4 * wide)
            low, high = high, high + step
    else:
        low, high = start - step, start
        while not good(low):
            if low <= floor:
                return None
            step = min(step * 2, 8 * wide)
            low, high = max(floor, low - step), low
    while high - low > width and runs() < MOST_RUNS:
        middle = (low + high) // 2
        if good(middle):
            low = middle
        else:
            high = middle
    return low


def _point(cluster: Cluster, setup: Setup, speed: float, dollars_per_hour: float | None) -> Point:
    requests = cluster.record.requests
    rows = Rows(requests, setup.slo)
    n = len(requests)
    end = np.frombuffer(requests.end)
    done = rows.finished
    span = float(rows.arrival[-1] - rows.arrival[0])
    offered = (n - 1) / span if span > 0 else math.inf
    met = int(rows.met.sum())
    low, high = (int(n * share) for share in (0.1, 0.9))
    ends = np.sort(end[done])
    took = float(ends[min(high, len(ends) - 1)] - ends[low]) if len(ends) > low else math.nan
    came = float(rows.arrival[min(high, n - 1)] - rows.arrival[low])
    count = max(0, min(high, len(ends) - 1) - low)
    ending = count / took if took > 0 else math.nan
    output = float(rows.output[done].mean()) if done.any() else math.nan
    prompt = float(rows.prompt[done].mean()) if done.any() else math.nan
    share = met / n
    rate = min(offered, ending) if ending == ending else 0.0
    hourly = dollars_per_hour
    stats = [engine.stats for engine in cluster.engines]
    queries = sum(s.prefix_queries for s in stats)
    running = [x for x in cluster.series.values["running"] if x > 0]
    kv = cluster.series.values["kv_high"]
    return Point(
        speed=speed,
        offered=offered,
        attainment=share,
        keeps_up=span <= 0 or not took > LAG * came,
        ttft=_percentiles(rows.ttft),
        tpot=_percentiles(rows.tpot),
        e2e=_percentiles(rows.e2e),
        output=ending * output,
        total=ending * (output + prompt),
        goodput=rate * share,
        dollars_per_million=None
        if hourly is None or not ending * output > 0
        else hourly / 3.6e3 / (ending * output) * 1e6,
        dollars_per_valid=None if hourly is None or not rate * share > 0 else hourly / 3.6e3 / (rate * share),
        hit_rate=sum(s.prefix_hits for s in stats) / queries if queries else 0.0,
        kv_high=max(kv, default=0.0),
        running=sum(running) / len(running) if running else 0.0,
        preemptions=sum(s.preemptions for s in stats),
        refused=1 - float(done.sum()) / n,
        requests=n,
        seconds=cluster.seconds,
        output_tokens=int(rows.output[done].sum()),
    )


def _percentiles(values: Any) -> Latency:
    """Nearest rank, as in the simulation's results."""
    seen = np.sort(values[~np.isnan(values)])
    if not len(seen):
        return {"p50": math.nan, "p95": math.nan, "p99": math.nan}
    return {f"p{p}": float(seen[max(0, math.ceil(len(seen) * p / 100) - 1)]) for p in (50, 95, 99)}
