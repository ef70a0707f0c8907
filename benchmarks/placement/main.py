"""Which scenarios and policies are asked for, all their cells, and what they come to."""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from rich.console import Console

from benchmarks.common import RESULTS, BenchError, env_flag, env_int, verdict, write_results
from benchmarks.placement.cells import Spec, reference, simulate
from benchmarks.placement.micro import measure
from benchmarks.placement.picture import drawn, page
from benchmarks.placement.policies import BUILDERS
from benchmarks.placement.report import BARS, micro_shortfalls, micro_table, shortfalls, table
from benchmarks.placement.scenarios import SCENARIOS, offer

MICRO = "micro"
QUICK = ("least requests", "sglang", "dynamo", "llm-d", "forebay")
SLOW = ("mooncake64",)
"""What a quick run has and has not, where nothing is said."""


def main(given: Sequence[str]) -> int:
    asked = _arguments(given)
    policies, quick = asked.policies, asked.quick
    names = [name for name in asked.only if name != MICRO]
    began = time.monotonic()
    specs = [Spec(name, policy, quick) for name in names for policy in policies]
    references: dict[str, dict[str, Any]] = {}
    cells: dict[tuple[str, str], dict[str, Any]] = {}
    say = Console(width=None if sys.stdout.isatty() else 170)
    with _Workers(asked.jobs) as run:
        for name, found in zip(names, run(reference, [(name, quick) for name in names]), strict=True):
            references[name] = found
        for spec, cell in zip(specs, run(simulate, specs), strict=True):
            cells[spec.scenario, spec.policy] = cell
            if spec.policy == policies[-1]:
                say.print(table(cells, references[spec.scenario], spec.scenario, policies))
    fell = list(shortfalls(cells, references, names, policies))
    micro = None
    if MICRO in asked.only:
        micro = measure(offer(SCENARIOS["mooncake8"], True).ready, quick=quick)
        say.print(micro_table(micro))
        fell += micro_shortfalls(micro)
    if names:
        page(cells, references, names, policies, RESULTS / "placement.html")
        (RESULTS / "placement.svg").write_text(drawn(cells, references, names, policies), encoding="utf-8")
    figures = {
        "bars": BARS,
        "quick": quick,
        "seconds": round(time.monotonic() - began, 1),
        "fell_short": fell,
        "references": references,
        "cells": list(cells.values()),
        "micro": micro,
    }
    path = write_results("placement", figures)
    say.print(
        f"{path} and placement.html and placement.svg beside it; {len(cells)} cells in {figures['seconds']:.0f} s",
        highlight=False,
    )
    return verdict(fell)


def _arguments(given: Sequence[str]) -> argparse.Namespace:
    """The command line, and the environment where it says nothing. Raises BenchError for a name that is not known."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.placement")
    parser.add_argument("--only", default=os.environ.get("ONLY", ""), help=f"of {', '.join(SCENARIOS)}, {MICRO}")
    parser.add_argument("--policies", default=os.environ.get("POLICIES", ""), help=f"of {', '.join(BUILDERS)}")
    parser.add_argument("--quick", action="store_true", default=bool(env_flag("QUICK")), help="a part of each scenario")
    parser.add_argument("--jobs", type=int, default=env_int("JOBS", 1), help="processes at once")
    asked = parser.parse_args(given)
    only, policies = [*SCENARIOS, MICRO], list(BUILDERS)
    asked.only = _names(asked.only, only, [n for n in only if n not in SLOW] if asked.quick else only, "scenario")
    asked.policies = _names(asked.policies, policies, QUICK if asked.quick else policies, "policy")
    return asked


def _names(text: str, known: Sequence[str], default: Sequence[str], what: str) -> list[str]:
    chosen = [part.strip() for part in text.split(",") if part.strip()] or default
    for one in chosen:
        if one not in known:
            raise BenchError(f"there is no {what} {one!r}; known are {', '.join(known)}")
    return list(dict.fromkeys(chosen))


class _Workers:
    """`map` over processes, or over nothing but this one."""

    def __init__(self, jobs: int) -> None:
        self._pool = ProcessPoolExecutor(jobs, initializer=_calm) if jobs > 1 else None

    def __enter__(self) -> Any:
        if self._pool is None:
            _calm()
            return map
        return self._pool.map

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)


def _calm() -> None:
    gc.freeze()
    gc.set_threshold(100_000)  # a run makes and drops many objects, none in cycles
