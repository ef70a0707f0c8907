"""make bench-fairness: what backlogged tenants are served over any minute, however one of them behaves."""

from __future__ import annotations

import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table

from benchmarks.common import run, verdict, write_results
from benchmarks.fairness.floor import Floor
from benchmarks.fairness.scenarios import SCENARIOS
from benchmarks.retries.scenarios import Scenario as Engine
from benchmarks.retries.scenarios import ready
from forebay.policy.asks import Class
from forebay.policy.rules import Rules

BAR = 0.05
"""Of the mean of those that wait throughout a window, how far from it one of them may be."""
WINDOW = 60
"""Seconds."""
PROMISES = {"1.5 s": Rules(), "30 s": Rules(ttft=dict.fromkeys(Class, 30.0), wait=dict.fromkeys(Class, 30.0))}
SEED = 3

Floats = npt.NDArray[np.float64]


def simulate(i: int, promise: str) -> dict[str, Any]:
    scenario = SCENARIOS[i]
    floor = Floor(ready(Engine("", engine=scenario.engine)), PROMISES[promise], scenario.tenants, SEED)
    floor.run(scenario.seconds)
    begin = int(scenario.scored_from)
    granted, delivered = np.array(floor.granted()), np.array(floor.service)
    waited = np.array(floor.waited)
    worst = _worst(granted, waited, begin)
    total = granted[-1] - granted[begin]
    return {
        "name": scenario.name,
        "promise": promise,
        "windows": worst[1],
        "deviation": worst[0],
        "at": worst[2],
        "whose": scenario.tenants[worst[3]].name,
        "delivered": _worst(delivered, waited, begin)[0],
        "first_minutes": _worst(granted[: begin + WINDOW], waited, 0)[0],
        "tenants": {
            tenant.name: {
                "share": round(float(total[k] / total.sum()), 4),
                "waited": round(float(waited[begin:, k].mean()), 4),
                "answered": floor.answered[k],
                "refused": floor.refused[k],
            }
            for k, tenant in enumerate(scenario.tenants)
        },
        "granted_by_second": granted.round(1).tolist(),
    }


def _worst(service: Floats, waited: npt.NDArray[np.bool_], begin: int) -> tuple[float, int, int, int]:
    """The largest deviation from the mean of those that waited throughout, over all windows; how many windows had two
    of them; the second at which the worst begins, and whose it is."""
    most, windows, at, whose = 0.0, 0, 0, 0
    for first in range(begin, len(service) - WINDOW):
        back = np.flatnonzero(waited[first + 1 : first + WINDOW + 1].all(axis=0))
        if len(back) < 2:
            continue
        windows += 1
        got = (service[first + WINDOW] - service[first])[back]
        off = np.abs(got / got.mean() - 1)
        if off.max() > most:
            most, at, whose = float(off.max()), first, int(back[off.argmax()])
    return round(most, 4), windows, at, whose


def main() -> int:
    began = time.monotonic()
    cells = [(i, promise) for i in reversed(range(len(SCENARIOS))) for promise in PROMISES]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        found = list(pool.map(simulate, *zip(*cells, strict=True)))
    found.reverse()
    say = Console(width=None if sys.stdout.isatty() else 150)
    say.print(_table(found))
    fell = [
        f"{f['name']}, promise {f['promise']}: {f['whose']} was {100 * f['deviation']:.1f} % off in the minute "
        f"from second {f['at']}, the bar is {100 * BAR:g} %"
        for f in found
        if f["deviation"] > BAR
    ]
    fell += [f"{f['name']}, promise {f['promise']}: no window with two backlogged" for f in found if not f["windows"]]
    took = round(time.monotonic() - began, 1)
    path = write_results("fairness", {"bars": {"deviation": BAR}, "seconds": took, "fell_short": fell, "cells": found})
    say.print(f"{path}; {len(found)} cells in {took:.0f} s", highlight=False)
    return verdict(fell)


def _table(found: list[dict[str, Any]]) -> Table:
    table = Table(title="Weighted service of backlogged tenants: the worst minute, off the mean")
    table.add_column("", no_wrap=True)
    for column in ("promise", "windows", "granted", "whose", "delivered", "first minutes"):
        table.add_column(column, justify="left" if column == "whose" else "right")
    table.add_column("shares of all that was granted (refused)")
    for f in found:
        table.add_row(
            f["name"],
            f["promise"],
            f"{f['windows']:,}",
            f"{100 * f['deviation']:.1f} %",
            f["whose"],
            f"{100 * f['delivered']:.1f} %",
            f"{100 * f['first_minutes']:.1f} %",
            ", ".join(f"{name} {100 * t['share']:.1f} % ({t['refused']:,})" for name, t in f["tenants"].items())
            if len(f["tenants"]) <= 8
            else "",
        )
    return table


if __name__ == "__main__":
    run(main)
