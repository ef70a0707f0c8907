"""make bench-registry: ten thousand engines in a file, loaded, checked and served."""

from __future__ import annotations

import http.client
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rich.console import Console
from rich.table import Table

from benchmarks.common import (
    BENCH_KEY,
    BenchError,
    Gateway,
    answers_ok,
    env_int,
    free_port,
    gateway,
    get,
    rss,
    run,
    running,
    verdict,
    wait_until,
    write_results,
)

CHECKS = 400
"""Health checks a second that the gateway makes at most (gateway.fleet)."""
REQUESTS = 300
IDLE = 10.0


def entries(count: int, port: int) -> list[dict[str, str]]:
    return [
        {"name": f"engine-{i:05d}", "url": f"http://127.{1 + i // 62_500}.{i // 250 % 250}.{1 + i % 250}:{port}"}
        for i in range(count)
    ]


def put(file: Path, rows: list[dict[str, str]]) -> None:
    new = file.with_suffix(".new")
    new.write_text(json.dumps(rows))
    new.replace(file)


def counts(served: Gateway) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(get(f"{served.admin}/health", timeout=30)[1])["engine_count"]
    return found


def cpu(pid: int) -> float:
    """Seconds of processor time that a process has had."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def ask(served: Gateway, times: int) -> list[float]:
    where = urlsplit(served.url)
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=30)
    body = json.dumps({"model": "mock", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1})
    headers = {"Authorization": f"Bearer {BENCH_KEY}", "Content-Type": "application/json"}
    took = []
    for _ in range(times):
        began = time.monotonic()
        connection.request("POST", "/v1/chat/completions", body, headers)
        answer = connection.getresponse()
        answer.read()
        if answer.status != 200:
            raise BenchError(f"a request was answered {answer.status}")
        took.append(time.monotonic() - began)
    connection.close()
    return sorted(took)


def measure(work: Path, count: int) -> dict[str, float]:
    port = free_port()
    rows = entries(count + 1, port)
    file = work / "engines.json"
    put(file, rows[:count])
    mock = [sys.executable, "-m", "benchmarks.mock_upstream", "--host", "0.0.0.0", "--port", str(port)]
    found: dict[str, float] = {}
    with running(mock, core=None, log=work / "mock.log") as upstream:
        wait_until(answers_ok(f"http://127.0.0.1:{port}/health"), upstream, work / "mock.log", "the mock engine")
        began = time.monotonic()
        extra = {"engines": [], "engines_file": str(file)}
        with gateway(work, "", core=None, extra=extra) as served:
            found["ready"] = time.monotonic() - began
            process, log = served.process, served.log

            def healthy() -> bool:
                time.sleep(0.5)  # the page itself costs
                return bool(counts(served)["healthy"] == count)

            began = time.monotonic()
            wait_until(healthy, process, log, f"{count:,} engines", timeout=10 * count / CHECKS + 60)
            found["all healthy"] = time.monotonic() - began
            worker = served.worker()
            found["worker MB"] = rss(worker) / 1e6
            before = cpu(worker)
            time.sleep(IDLE)
            found["idle CPU"] = (cpu(worker) - before) / IDLE
            took = ask(served, REQUESTS)
            found["request P50"], found["request P99"] = took[len(took) // 2], took[int(len(took) * 0.99)]
            put(file, rows)
            began = time.monotonic()
            wait_until(lambda: bool(counts(served)["all"] == count + 1), process, log, "the new engine")
            found["change in force"] = time.monotonic() - began
            found["series"] = get(f"{served.admin}/metrics", timeout=30)[1].count(b"\n")
    return found


def main() -> int:
    count = env_int("ENGINES", 10_000)
    bars = {
        "ready": 10.0,
        "all healthy": 2 * count / CHECKS,
        "worker MB": 400.0,
        "idle CPU": 0.35,
        "request P50": 0.010,
        "request P99": 0.100,
        "change in force": 10.0,
        "series": 20_000.0,
    }
    with tempfile.TemporaryDirectory(prefix="forebay-bench-") as folder:
        found = measure(Path(folder), count)
    t = Table(title=f"{count:,} engines")
    for name in ("", "measured", "bar"):
        t.add_column(name, justify="right" if name else "left")
    for name, bar in bars.items():
        t.add_row(name, f"{found[name]:,.3g}" if found[name] < 1_000 else f"{found[name]:,.0f}", f"{bar:,g}")
    say = Console(width=None if sys.stdout.isatty() else 120)
    say.print(t)
    fell = [f"{n}: {found[n]:.3g}, the bar is {bar:g}" for n, bar in bars.items() if found[n] > bar]
    figures = {"engines": count, "bars": bars, "figures": found, "load": os.getloadavg(), "fell_short": fell}
    say.print(write_results("registry", figures), highlight=False)
    return verdict(fell)


if __name__ == "__main__":
    run(main)
