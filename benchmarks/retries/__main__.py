"""make bench-retries: clients that obey Retry-After, and how many are answered when they come back."""

from __future__ import annotations

import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.common import env_flag, run, verdict, write_results
from benchmarks.goodput.workloads import CLASSES
from benchmarks.retries.live import HOUSES, measure
from benchmarks.retries.scenarios import SCENARIOS, Scenario
from benchmarks.retries.simulated import knee, simulate, told

BAR = 0.9
"""Of those who come back when they were told to, the share that is answered then."""


def main() -> int:
    began = time.monotonic()
    kinds = {_kind(s): s for s in reversed(SCENARIOS)}
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        knees = dict(zip(kinds, pool.map(knee, kinds.values()), strict=True))
        found = list(pool.map(simulate, SCENARIOS, [knees[_kind(s)] for s in SCENARIOS]))
    if env_flag("LIVE") is not False:
        found += [_live(i) for i in range(len(HOUSES))]
    say = Console(width=None if sys.stdout.isatty() else 170)
    say.print(_table(found))
    fell = [
        f"{f['name']}: {100 * f['first_retry']:.1f} % were answered at the first retry, the bar is {100 * BAR:g} %"
        for f in found
        if f["first_retry"] is not None and f["first_retry"] < BAR
    ]
    took = round(time.monotonic() - began, 1)
    path = write_results("retries", {"bars": {"first_retry": BAR}, "seconds": took, "fell_short": fell, "cells": found})
    say.print(f"{path}; {len(found)} scenarios in {took:.0f} s", highlight=False)
    return verdict(fell)


def _kind(scenario: Scenario) -> tuple[str, str]:
    """Scenarios with the same knee."""
    return scenario.name.partition(",")[0], scenario.file


def _live(i: int) -> dict[str, Any]:
    house = HOUSES[i]
    tales, ends = measure(house)
    return {
        "name": house.name,
        **told(tales),
        "ends": dict(ends),
        "clients_told": [(t.ask.cls, [round(x, 3) for x in t.tries], t.told, t.reasons) for t in tales],
    }


def _table(found: list[dict[str, Any]]) -> Table:
    table = Table(title="Clients that obey Retry-After")
    table.add_column("", no_wrap=True)
    for column in ("clients", "refused", "told not to", "first retry", *CLASSES, "wait P50", "P99", "tries"):
        table.add_column(column, justify="right")
    table.add_column("95 % after s", justify="right")
    table.add_column("at best", justify="right")
    for f in found:
        table.add_row(
            f["name"],
            f"{f['clients']:,}",
            f"{f['refused']:,}",
            f"{f['told_not_to']:,}",
            _percent(f["first_retry"]),
            *(_percent(f["classes"][cls]) for cls in CLASSES),
            f"{f['retry_after_p50']:.0f}",
            f"{f['retry_after_p99']:.0f}",
            f"{f['tries'] / f['clients']:.2f}",
            f"{f['seconds']:.0f}" if "seconds" in f else "",
            f"{f['ideal_seconds']:.0f}" if "seconds" in f else "",
            end_section=f["name"].endswith("code"),
        )
    return table


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f} %"


if __name__ == "__main__":
    run(main)
