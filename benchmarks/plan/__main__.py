"""make bench-plan: what `forebay plan` reckons, against what engines report."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import MappingProxyType
from typing import Final

from rich.console import Console

from benchmarks.common import env_names, run, verdict, write_results
from benchmarks.plan import memory, rates

Part = Callable[[Console], tuple[dict[str, object], list[str]]]
PARTS: Final = MappingProxyType[str, Part]({"memory": memory.measure, "rates": rates.measure})
"""Each prints its tables and gives its figures for results/plan.json and what fell short."""


def main() -> int:
    chosen = env_names("PART", list(PARTS), list(PARTS))
    console = Console(width=None if sys.stdout.isatty() else 120)
    figures: dict[str, object] = {}
    fell: list[str] = []
    for name in chosen:
        figures[name], short = PARTS[name](console)
        fell += short
    path = write_results("plan", {**figures, "fell_short": fell})
    console.print(path, highlight=False)
    return verdict(fell)


if __name__ == "__main__":
    run(main)
