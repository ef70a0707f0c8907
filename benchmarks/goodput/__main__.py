"""make bench-goodput: what each way of admitting requests keeps of its promises under too much load."""

from __future__ import annotations

import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from rich.console import Console

from benchmarks.common import RESULTS, BenchError, env_names, run, verdict, write_results
from benchmarks.goodput import tune
from benchmarks.goodput.cells import LOADS, POLICIES, TUNED, Spec, rejections, simulate
from benchmarks.goodput.picture import drawn
from benchmarks.goodput.report import BARS, COLOURS, compared, detailed, page, shortfalls
from benchmarks.goodput.workloads import TRAFFIC

SLOW_FIRST = ("oracle", "forebay")


def main() -> int:
    names = env_names("TRAFFIC", list(TRAFFIC), list(TRAFFIC))
    tuned = tune.load()
    if missing := [name for name in names if name not in tuned]:
        raise BenchError(f"{tune.FILE.name} knows nothing of {', '.join(missing)}: python -m benchmarks.goodput.tune")
    specs = [
        Spec(name, load, tuned[name]["knee"] * load, policy, _given(tuned[name], policy, load))
        for name in names
        for load in LOADS
        for policy in POLICIES
    ]
    order = sorted(specs, key=lambda s: (s.policy not in SLOW_FIRST, -s.load * TRAFFIC[s.traffic].engines))
    began = time.monotonic()
    cells: dict[tuple[str, float, str], dict[str, Any]] = {}
    statuses: dict[tuple[str, float, str], bytes] = {}
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for spec, (figures, status) in zip(order, pool.map(simulate, order), strict=True):
            key = (spec.traffic, spec.load, spec.policy)
            cells[key], statuses[key] = figures, status
    for (name, load, policy), cell in cells.items():
        none, oracle = statuses[name, load, "none"], statuses[name, load, "oracle"]
        cell["rejections"] = rejections(statuses[name, load, policy], none, oracle)
    say = Console(width=None if sys.stdout.isatty() else 170)
    for name in names:
        say.print(compared(cells, name, POLICIES))
        say.print(detailed(cells, name))
    fell = list(shortfalls(cells, names))
    page(cells, names, POLICIES, RESULTS / "goodput.html")
    (RESULTS / "goodput.svg").write_text(drawn(cells, names, POLICIES, COLOURS), encoding="utf-8")
    took = round(time.monotonic() - began, 1)
    found = [cells[s.traffic, s.load, s.policy] for s in specs]
    path = write_results("goodput", {"bars": BARS, "seconds": took, "fell_short": fell, "cells": found})
    say.print(f"{path} and goodput.html and goodput.svg beside it; {len(found)} cells in {took:.0f} s", highlight=False)
    return verdict(fell)


def _given(tuned: dict[str, Any], policy: str, load: float) -> dict[str, Any]:
    if policy not in TUNED:
        return {}
    found: dict[str, Any] = tuned["policies"][policy][f"{load:g}"]
    return found


if __name__ == "__main__":
    run(main)
