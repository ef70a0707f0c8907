"""make bench-cache: what the caches reach, in parts; PART=latency,… for some of them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import MappingProxyType

from rich.console import Console

from benchmarks.common import BenchError, env_names, run, verdict, write_results
from forebay.helper.main import prepare

PARTS = MappingProxyType(
    {
        "latency": "benchmarks.cache.latency",
        "prefix": "benchmarks.cache.prefix",
        "pairs": "benchmarks.cache.labelled",
        "unseen": "benchmarks.cache.unseen",
        "bound": "benchmarks.cache.coverage",
        "stream": "benchmarks.cache.stream",
        "stores": "benchmarks.cache.stores",
    }
)
"""Each is a module with `measure(console) -> (figures, what fell short)`; its docstring's first line is its title.
Figures, raw samples among them, go to results/cache-PART.json."""

Measure = Callable[[Console], tuple[dict[str, object], list[str]]]


def main() -> int:
    chosen = env_names("PART", list(PARTS), list(PARTS))
    prepare()  # as the helper process does, before a part loads numpy
    console = Console(width=None if sys.stdout.isatty() else 120)
    short: list[str] = []
    unmade: list[str] = []
    for name in chosen:
        module = importlib.import_module(PARTS[name])
        console.rule(f"{name}: {(module.__doc__ or '').splitlines()[0]}")
        measure: Measure = module.measure
        try:
            figures, missed = measure(console)
        except BenchError as e:
            unmade.append(f"{name}: {e}")
            continue
        console.print(f"written to {write_results(f'cache-{name}', figures)}")
        short += [f"{name}: {line}" for line in missed]
    code = verdict(short) if short or not unmade else 0
    for line in unmade:
        print(f"cannot measure {line}", file=sys.stderr)
    return 2 if unmade else code


if __name__ == "__main__":
    run(main)
