"""make bench-startup: how long until the package is imported, and until `forebay serve` is ready."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.common import (
    BenchError,
    answers_ok,
    env_int,
    free_port,
    run,
    running,
    verdict,
    wait_until,
    write_results,
)

WORKER = "import of a worker's modules"
BARS: dict[str, float | None] = {"import": 0.3, WORKER: None, "ready, first start": 1.5, "ready, later start": 1.5}
IMPORT = "import time; t = time.perf_counter(); import {module}; print(time.perf_counter() - t)"


def imported(module: str = "forebay") -> float:
    """Seconds that importing takes in a new interpreter."""
    done = subprocess.run(
        [sys.executable, "-c", IMPORT.format(module=module)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise BenchError(f"import {module} failed:\n{done.stderr}")
    return float(done.stdout)


def ready(work: Path, state: Path) -> float:
    """Seconds from the start of `forebay serve` without a file to a 200 from /ready."""
    admin = free_port()
    log = work / "serve.log"
    command = [str(Path(sys.executable).with_name("forebay")), "serve", "--listen", f"127.0.0.1:{free_port()}"]
    command += ["--admin", f"127.0.0.1:{admin}", "--state-dir", str(state)]
    began = time.monotonic()
    with running(command, core=None, log=log, grace=40) as process:
        wait_until(answers_ok(f"http://127.0.0.1:{admin}/ready"), process, log, "forebay serve")
        return time.monotonic() - began


def main() -> int:
    runs = env_int("RUNS", 7)
    imported()  # the first one writes byte code
    samples: dict[str, list[float]] = {name: [] for name in BARS}
    with tempfile.TemporaryDirectory(prefix="forebay-bench-") as folder:
        work = Path(folder)
        ready(work, work / "warm")
        for i in range(runs):
            samples["import"].append(imported())
            samples[WORKER].append(imported("forebay.gateway.worker"))
            samples["ready, first start"].append(ready(work, work / f"state-{i}"))
            samples["ready, later start"].append(ready(work, work / f"state-{i}"))
    t = Table(title=f"Start-up, median of {runs}, seconds")
    for name in ("", "median", "least", "most", "bar"):
        t.add_column(name, justify="right" if name else "left")
    fell = []
    for name, bar in BARS.items():
        own = samples[name]
        median = statistics.median(own)
        t.add_row(name, f"{median:.3f}", f"{min(own):.3f}", f"{max(own):.3f}", "" if bar is None else f"{bar:g}")
        if bar is not None and median > bar:
            fell.append(f"{name}: {median:.3f} s, the bar is {bar:g} s")
    say = Console(width=None if sys.stdout.isatty() else 120)
    say.print(t)
    load = os.getloadavg()[0]
    if load > 0.5 * (os.cpu_count() or 1):
        say.print(f"The machine was doing other work (load average {load:.1f}): repeat when it is quiet.")
    medians = {k: statistics.median(v) for k, v in samples.items()}
    path = write_results("startup", {"bars": BARS, "medians": medians, "samples": samples, "fell_short": fell})
    say.print(path, highlight=False)
    return verdict(fell)


if __name__ == "__main__":
    run(main)
