"""make bench-simspeed: how fast the simulator replays a trace, and how its cost grows."""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.common import ROOT, BenchError, env_int, run, verdict, write_results

TRACE = ROOT.parent / "shared/data/traces/AzureLLMInferenceTrace_conv.csv"
PROFILE = ROOT.parent / "shared/data/profiles/llmservingsim/RTXPRO6000/Llama-3.1-8B-bf16"
SPEED_BAR = 1_500.0
"""Simulated seconds a second of CPU (the simulation is one thread), one engine under the trace."""
GROWTH_BAR = 1.2
"""Most that a request of the largest run may cost of one of the smallest."""
SIZES = (20_000, 80_000, 320_000)
ENGINES = 20


@dataclass(frozen=True)
class Sample:
    """One simulation in a process of its own; seconds are of the simulation, without imports and without the report."""

    name: str
    requests: int
    simulated: float
    wall: float
    cpu: float
    rss_mb: float

    @property
    def speed(self) -> float:
        return self.simulated / self.cpu


def child(spec: str) -> None:
    """Simulate what `spec` (JSON) says and print what it took."""
    import time

    from forebay.plan.simulate import Setup, SimulateError, Wanted, prepare, simulate

    asked: dict[str, Any] = json.loads(spec)
    hardware = Wanted(**{k: Path(v) if k == "profile" else v for k, v in asked.pop("hardware").items()})
    setup = Setup(hardware=hardware, **asked)
    try:
        prepare(setup)
        wall, cpu = time.perf_counter(), time.process_time()
        found = simulate(setup)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    except SimulateError as e:
        print(e, file=sys.stderr)
        sys.exit(2)
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    summary = found["summary"]
    print(json.dumps([summary["requests"]["arrived"], summary["seconds"], wall, cpu, rss]))


def measure(name: str, **setup: Any) -> Sample:
    """Raises BenchError where the simulation cannot be run."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.simspeed", json.dumps(setup)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    if done.returncode:
        raise BenchError(f"{name} could not be simulated: {(done.stderr or done.stdout).strip()[-500:]}")
    return Sample(name, *json.loads(done.stdout.splitlines()[-1]))


def main() -> int:
    if len(sys.argv) > 1:
        child(sys.argv[1])
        return 0
    runs = env_int("RUNS", 5)
    trace = Path(os.environ.get("DATA") or TRACE)
    if not trace.is_file():
        raise BenchError(f"there is no trace {trace}; name one by DATA=path")
    loads = {"one engine, roofline": {"hardware": {"gpu": "h100_sxm", "model": "llama-3.1-8b"}}}
    if PROFILE.is_dir():
        loads["one engine, measured tables"] = {"hardware": {"profile": str(PROFILE)}}
    samples = [
        measure(name, workload=str(trace), engines=1, **load) for _ in range(runs) for name, load in loads.items()
    ]
    grown = []
    for size in SIZES:
        spec = f"poisson:rate={3 * ENGINES},requests={size},prompt=lognormal(700;1.0),output=lognormal(180;0.8),seed=1"
        grown.append(
            measure(
                f"{ENGINES} engines, {size:,} requests",
                workload=spec,
                engines=ENGINES,
                **loads[next(iter(loads))],
            )
        )
    table = Table(title=f"Simulation speed; {trace.name}: median of {runs}")
    for column in ("", "requests", "simulated s", "wall s", "CPU s", "× real time", "CPU µs a request", "RSS MB"):
        table.add_column(column, justify="right" if column else "left")
    fell = []
    for name in loads:
        own = [s for s in samples if s.name == name]
        speed = statistics.median(s.speed for s in own)
        if speed < SPEED_BAR:
            fell.append(f"{name}: {speed:,.0f} × real time, the bar is {SPEED_BAR:,.0f} ×")
        middle = min(own, key=lambda s: abs(s.speed - speed))
        _row(table, middle)
    table.add_section()
    for sample in grown:
        _row(table, sample)
    costs = [s.cpu / s.requests for s in grown]
    if costs[-1] > GROWTH_BAR * costs[0]:
        fell.append(
            f"a request costs {costs[-1] / costs[0]:.2f} times as much among {SIZES[-1]:,} as among {SIZES[0]:,}; "
            f"the bar is {GROWTH_BAR:g}"
        )
    say = Console(width=None if sys.stdout.isatty() else 120)
    say.print(table)
    path = write_results(
        "simspeed",
        {
            "bars": {"speed": SPEED_BAR, "growth": GROWTH_BAR},
            "growth": costs[-1] / costs[0],
            "fell_short": fell,
            "samples": [asdict(s) for s in [*samples, *grown]],
        },
    )
    say.print(str(path), highlight=False)
    return verdict(fell)


def _row(table: Table, s: Sample) -> None:
    table.add_row(
        s.name,
        f"{s.requests:,}",
        f"{s.simulated:,.0f}",
        f"{s.wall:.2f}",
        f"{s.cpu:.2f}",
        f"{s.speed:,.0f}",
        f"{s.cpu / s.requests * 1e6:.0f}",
        f"{s.rss_mb:.0f}",
    )


if __name__ == "__main__":
    run(main)
