"""make bench-soak: memory over many mixed requests, and what is left when they are over."""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.common import (
    BenchError,
    Gateway,
    command_line,
    env_int,
    gateway,
    get,
    mock,
    mock_counts,
    run,
    tail,
    two_cores,
    verdict,
    write_results,
)

BAR_GROWTH = 0.02
SCRAPE_EVERY = 5.0
"""Seconds between two scrapes of /metrics, as Prometheus would make them."""
GONE_WITHIN = 20.0
"""Seconds after the last answer until everything must be gone."""
CONFIG: dict[str, object] = {
    "timeouts": {"upstream_idle": 2.0},
    "callers": {
        "keys": [{"name": "bench", "key": "${BENCH_KEY}", "organisation": "bench", "project": "soak"}],
        "failed_keys_per_minute": 100_000,
    },
}


def sockets(pid: int) -> int:
    """How many sockets a process has open."""
    found = 0
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):  # closed while we looked
            found += str(fd.readlink()).startswith("socket:")
    return found


def named(up: Gateway) -> dict[str, int]:
    """The gateway's processes by name."""
    names = {"forebay.gateway.worker": "worker", "forebay.admin.main": "admin"}
    found = {}
    for pid in up.tree.pids():
        line = command_line(pid)
        found[next((name for part, name in names.items() if part in line), "supervisor")] = pid
    return found


def leftovers(up: Gateway, upstream: str, worker: int, before: int) -> dict[str, float]:
    """What should be gone and is not; empty once nothing is left."""
    found = {
        "requests live": up.metric("forebay_requests_live"),
        "requests at the engine": up.metric("forebay_engine_in_flight"),
        "engine connections but one": max(0.0, up.metric("forebay_engine_connections") - 1),
        "client connections": up.metric("forebay_client_connections"),
        "streams on the mock": mock_counts(upstream)["active"],
        "sockets over those before": max(0, sockets(worker) - before),
    }
    return {name: n for name, n in found.items() if n}


def drive(
    up: Gateway, requests: int, core: int, pids: dict[str, int], say: Console
) -> tuple[dict[str, object], list[dict[str, int]]]:
    """Run the client; its last word, and the resident memory of each process after each hundredth of the requests.
    Raises BenchError where the client breaks off."""
    command = ["taskset", "-c", str(core), sys.executable, "-m", "benchmarks.soak.client", "--url", up.url]
    command += ["--requests", str(requests)]
    samples: list[dict[str, int]] = []
    scraped = time.monotonic()
    with (
        Progress(console=say, transient=True, disable=not sys.stdout.isatty()) as progress,
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as client,
    ):
        bar = progress.add_task("requests", total=requests)
        assert client.stdout is not None
        try:
            for line in client.stdout:
                word: dict[str, object] = json.loads(line)
                if word["state"] == "done":
                    return word, samples
                memory = up.tree.rss()
                samples.append({name: memory[pid] for name, pid in pids.items() if pid in memory})
                progress.update(bar, completed=int(str(word["done"])))
                if time.monotonic() - scraped > SCRAPE_EVERY:
                    get(f"{up.admin}/metrics", timeout=10)
                    scraped = time.monotonic()
        except BaseException:
            client.kill()
            raise
    raise BenchError(f"the client ended with code {client.returncode}; the gateway's log:\n{tail(up.log)}")


def main() -> int:
    requests = env_int("REQUESTS", 300_000, least=1_000)
    core, other = two_cores()
    say = Console(width=None if sys.stdout.isatty() else 120)
    with tempfile.TemporaryDirectory(prefix="forebay-bench-") as folder, contextlib.ExitStack() as stack:
        work = Path(folder)
        upstream = stack.enter_context(mock(work, core=other, interval_ms=2))
        up = stack.enter_context(gateway(work, upstream, core=core, extra=CONFIG))
        pids = named(up)
        before = sockets(pids["worker"])
        began, cpu = time.monotonic(), up.tree.cpu()
        said, samples = drive(up, requests, other, pids, say)
        seconds = time.monotonic() - began
        spent = up.tree.spent(cpu, up.tree.cpu())
        end = time.monotonic() + GONE_WITHIN
        while (left := leftovers(up, upstream, pids["worker"], before)) and time.monotonic() < end:
            time.sleep(0.25)
        survived = named(up) == pids
    fifth = len(samples) // 5
    t = Table(title=f"{requests:,} mixed requests in {seconds:.0f} s, {spent / requests * 1e6:.0f} CPU µs each")
    for name in ("resident memory", "second fifth", "last fifth", "growth"):
        t.add_column(name, justify="right" if name != "resident memory" else "left")
    fell, growths = [], {}
    for name in pids:
        own = [s[name] for s in samples if name in s]
        second, last = statistics.median(own[fifth : 2 * fifth]), statistics.median(own[-fifth:])
        growths[name] = growth = last / second - 1
        t.add_row(name, f"{second / 1e6:.2f} MB", f"{last / 1e6:.2f} MB", f"{growth:+.2%}")
        if growth > BAR_GROWTH:
            fell.append(
                f"{name}: resident memory grew by {growth:.2%} between the second and the last fifth, the bar is 2 %"
            )
    say.print(t)
    say.print(f"answers: {said['counts']}", highlight=False)
    if said["wrong"]:
        fell.append(f"answers that were not what they must be: {said['wrong']}")
    if left:
        fell.append(f"left {GONE_WITHIN:g} s after the last answer: {left}")
    if not survived:
        fell.append("a process of the gateway was restarted during the run")
    figures: dict[str, object] = {
        "requests": requests,
        "seconds": round(seconds, 1),
        "bars": {"growth": BAR_GROWTH},
        "growth": growths,
        "cpu_us_a_request": spent / requests * 1e6,
        "answers": said["counts"],
        "wrong": said["wrong"],
        "left": left,
        "rss_by_hundredth": samples,
        "fell_short": fell,
    }
    say.print(write_results("soak", figures), highlight=False)
    return verdict(fell)


if __name__ == "__main__":
    run(main)
