"""python -m benchmarks.goodput.tune: find each traffic's knee and each baseline's best parameters at each load."""

from __future__ import annotations

import json
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.common import env_names, run
from benchmarks.goodput.cells import GRIDS, Spec, knee, simulate
from benchmarks.goodput.workloads import LOADS, TRAFFIC

FILE = Path(__file__).with_name("tuned.json")


def load() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(FILE.read_text())
    return found


def score(spec: Spec) -> float:
    """What is tuned for: SLO-kept requests a second."""
    found: float = simulate(spec)[0]["all"]["requests_per_s"]
    return found


def main() -> int:
    names = env_names("TRAFFIC", list(TRAFFIC), list(TRAFFIC))
    kept: dict[str, Any] = load() if FILE.exists() else {}
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for name, (rate, goodput) in zip(names, pool.map(knee, names), strict=True):
            kept[name] = {"knee": rate, "knee_goodput": goodput, "policies": {}}
            print(f"{name}: knee at {rate:g}, {goodput:g} requests a second", file=sys.stderr)
        specs = [
            Spec(name, load, kept[name]["knee"] * load, policy, given)
            for name in names
            for load in LOADS
            for policy, grid in GRIDS.items()
            for given in grid
        ]
        best: dict[tuple[str, str, float], float] = {}
        for spec, found in zip(specs, pool.map(score, specs), strict=True):
            key = (spec.traffic, spec.policy, spec.load)
            if found > best.get(key, -1.0):
                best[key] = found
                kept[spec.traffic]["policies"].setdefault(spec.policy, {})[f"{spec.load:g}"] = dict(spec.given)
    FILE.write_text(json.dumps(kept, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    run(main)
