"""make bench-loadgen: how many streams the load generator holds on one core, and whether its figures agree with those
of other tools."""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.common import (
    BenchError,
    env_int,
    env_names,
    free_port,
    get,
    mock,
    need_files,
    run,
    running,
    two_cores,
    verdict,
    wait_until,
    write_results,
)
from benchmarks.loadgen.servers import SERVERS
from benchmarks.loadgen.tools import FIGURES, TOOLS, Job, write_prompts

PARTS = ("streams", "agreement")
BAR_STREAMS = 5_000
BAR_BUSY = 0.9
"""Share of the core, over which a generator is its own bottleneck."""
BAR_LATE = 0.05
"""Seconds: how late requests may leave, at the 99th percentile."""
BAR_AGREE = 0.03
INTERVAL_MS = 100.0
"""Between two tokens of a stream."""


def streams(say: Console, core: int, server_core: int) -> tuple[dict[str, object], list[str]]:
    """Streams that last until all of them run, from one process on one core."""
    count = env_int("STREAMS", BAR_STREAMS + 500)
    need_files(count + 500)
    rate = count / 12
    tokens = 250
    with tempfile.TemporaryDirectory(prefix="forebay-bench-") as folder:
        work = Path(folder)
        with mock(work, core=server_core, interval_ms=INTERVAL_MS, phases=50, ttft_ms=20) as url:
            command = [str(Path(sys.executable).with_name("forebay")), "bench", url, "--rate", f"{rate:.3f}"]
            command += ["--arrivals", "uniform", "--requests", str(count), "--max-tokens", str(tokens)]
            command += ["--timeout", "600", "--json", str(work / "out.json")]
            done = subprocess.run(
                ["taskset", "-c", str(core), *command], capture_output=True, text=True, timeout=400, check=False
            )
            if done.returncode:
                raise BenchError(f"forebay bench ended with code {done.returncode}: {done.stderr[-500:]}")
            found = json.loads((work / "out.json").read_text())
    own = found["generator"]
    at_peak = max(found["timeline"]["in_flight"])
    events = found["output_tokens"] / found["seconds"]
    table = Table(title="One process on one core")
    for name in ("", "measured", "bar"):
        table.add_column(name, justify="right" if name else "left")
    late = own["lag_ms"]["p99"] / 1e3
    table.add_row("streams at once", f"{at_peak:,}", f"≥ {BAR_STREAMS:,}")
    table.add_row("failed", f"{found['failed']:,}", "0")
    table.add_row("tokens a second, whole run", f"{events:,.0f}", "")
    table.add_row("busy", f"{own['cpu_share']:.0%}", f"≤ {BAR_BUSY:.0%}")
    table.add_row("CPU a token", f"{own['cpu_share'] / events * 1e6:.1f} µs", "")
    table.add_row("late, P99", f"{late * 1e3:.1f} ms", f"≤ {BAR_LATE * 1e3:g} ms")
    table.add_row("between tokens, P50 (sent every 100 ms)", f"{found['itl_ms']['p50']:.1f} ms", "")
    say.print(table)
    fell = []
    if at_peak < min(BAR_STREAMS, count):
        fell.append(f"{at_peak:,} streams at once, the bar is {BAR_STREAMS:,}")
    if found["failed"]:
        fell.append(f"{found['failed']:,} of {count:,} streams failed: {found['errors']}")
    if own["cpu_share"] > BAR_BUSY:
        fell.append(f"the generator was busy {own['cpu_share']:.0%} of the time, the bar is {BAR_BUSY:.0%}")
    if late > BAR_LATE:
        fell.append(f"requests left {late * 1e3:.0f} ms late (P99), the bar is {BAR_LATE * 1e3:g} ms")
    return {"bars": {"streams": BAR_STREAMS, "busy": BAR_BUSY, "late_s": BAR_LATE}, "run": found}, fell


def agreement(say: Console, core: int, client_core: int) -> tuple[dict[str, object], list[str]]:
    """Each tool in turn against the same server, several rounds; medians of the rounds are held against each other."""
    names = env_names("SERVERS", list(SERVERS), list(SERVERS))
    tools = env_names("TOOLS", list(TOOLS), list(TOOLS))
    rounds, requests = env_int("RUNS", 3), env_int("REQUESTS", 51, least=11)
    if "forebay" not in tools:
        tools = ["forebay", *tools]
    results: dict[str, object] = {}
    fell: list[str] = []
    for name in names:
        with tempfile.TemporaryDirectory(prefix="forebay-bench-") as folder:
            work = Path(folder)
            raw: dict[str, list[dict[str, float]]] = {tool: [] for tool in tools}
            with SERVERS[name](work, core) as server, _wire(work, client_core, server.url) as url:
                for n in range(rounds):
                    prompts = work / "prompts.jsonl"
                    write_prompts(prompts, requests, server.words, server.output_tokens, 100 * n + 1)
                    rate = float(os.environ.get("RATE") or server.rate)
                    job = Job(url, server.model, prompts, requests, rate, server.output_tokens, server.key)
                    order = tools[n % len(tools) :] + tools[: n % len(tools)]
                    for tool in order:
                        before = len(_passed(work))
                        raw[tool].append(found := TOOLS[tool](job, work, client_core))
                        found |= _seen(_passed(work)[before:], requests, server.output_tokens)
                        shown = ", ".join(f"{figure} {found[figure]:,.2f}" for figure in FIGURES)
                        say.print(f"{name}, round {n + 1} of {rounds}, {tool}: {shown}", highlight=False)
        results[name], short = _compared(say, name, raw)
        fell += short
    return {"bar": BAR_AGREE, "servers": results}, fell


@contextlib.contextmanager
def _wire(work: Path, core: int, to: str) -> Iterator[str]:
    """A relay in front of a server: its URL."""
    port, log = free_port(), work / "wire.log"
    command = [sys.executable, "-m", "benchmarks.loadgen.wire", "--port", str(port), "--to", to.rpartition(":")[2]]
    with running([*command, "--out", str(work / "wire.jsonl")], core=core, log=log) as process:
        url = f"http://127.0.0.1:{port}"
        wait_until(lambda: get(f"{url}/health")[0] > 0, process, log, "the relay")
        yield url


def _passed(work: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (work / "wire.jsonl").read_text().splitlines()]


def _seen(passed: list[dict[str, float]], requests: int, tokens: int) -> dict[str, float]:
    """The tool's own figures, from what passed: of its last requests, those before were to warm up."""
    last = sorted(passed, key=lambda one: one["began"])[-requests:]
    ttft = [(one["first"] - one["began"]) * 1e3 for one in last]
    whole = [(one["last"] - one["began"]) * 1e3 for one in last]
    return {
        "wire_ttft_mean": statistics.fmean(ttft),
        "wire_ttft_p50": statistics.median(ttft),
        "wire_tpot_mean": statistics.fmean((b - a) / (tokens - 1) for a, b in zip(ttft, whole, strict=True)),
        "wire_e2e_mean": statistics.fmean(whole),
        "wire_e2e_p50": statistics.median(whole),
    }


def _compared(say: Console, name: str, raw: dict[str, list[dict[str, float]]]) -> tuple[object, list[str]]:
    shares = {
        tool: {figure: statistics.median(_share(one, figure) for one in runs) for figure in FIGURES}
        for tool, runs in raw.items()
    }
    table = Table(
        title=f"{name}, {len(raw['forebay'])} rounds: what a tool says, as a multiple of what passed on the wire"
    )
    table.add_column("")
    for tool in raw:
        table.add_column(tool, justify="right")
        if tool != "forebay":
            table.add_column("forebay against it", justify="right")
    fell = []
    differences: dict[str, dict[str, float]] = {}
    for figure in FIGURES:
        cells = []
        for tool in raw:
            cells.append(f"{statistics.median(one[figure] for one in raw[tool]):,.1f} ({shares[tool][figure]:.4f} ×)")
            if tool == "forebay":
                continue
            off = shares["forebay"][figure] / shares[tool][figure] - 1
            differences.setdefault(tool, {})[figure] = off
            cells.append(f"{off:+.1%}")
            if abs(off) > BAR_AGREE:
                fell.append(f"{name}: {figure} is {off:+.1%} off {tool}'s, the bar is {BAR_AGREE:.0%}")
        table.add_row(figure, *cells)
    say.print(table)
    return {"of_the_wire": shares, "differences": differences, "rounds": raw}, fell


def _share(one: dict[str, float], figure: str) -> float:
    return one[figure] / one[f"wire_{figure}"]


def main() -> int:
    parts = env_names("PARTS", list(PARTS), list(PARTS))
    core, other = two_cores()
    say = Console(width=None if sys.stdout.isatty() else 140)
    figures: dict[str, object] = {}
    fell: list[str] = []
    if "streams" in parts:
        figures["streams"], short = streams(say, other, core)
        fell += short
    if "agreement" in parts:
        figures["agreement"], short = agreement(say, core, other)
        fell += short
    say.print(write_results("loadgen", {**figures, "fell_short": fell}), highlight=False)
    return verdict(fell)


if __name__ == "__main__":
    run(main)
