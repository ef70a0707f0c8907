"""Equal requests a second that one worker answers from its memory."""

from __future__ import annotations

import http.client
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from rich.console import Console

from benchmarks.common import BENCH_KEY, MODEL, RESULTS, BenchError, Tree, gateway, mock, mock_counts
from benchmarks.overhead.measure import Load, wrk

RATE = 5_000
REQUESTS = 40_000
LOAD = Load("unary", connections=32, requests=REQUESTS, bar=0, admission_bar=0, ledger_bar=0)


@dataclass
class Exact:
    rate: float
    """Requests a second that came back."""
    cpu_us: float
    """CPU time of the worker, a request."""
    p50_ms: float
    p99_ms: float

    @property
    def a_core(self) -> float:
        return 1e6 / self.cpu_us

    def line(self) -> str:
        return f"exact hits: {self.rate:,.0f} a second, {self.cpu_us:.0f} µs of CPU each: {self.a_core:,.0f} a core"

    def short(self) -> list[str]:
        if self.a_core >= RATE:
            return []
        return [f"{self.a_core:,.0f} exact hits a second a core; the bar is {RATE:,}"]


def measure(console: Console, cores: tuple[int, int]) -> Exact:
    """The worker on one core, wrk on the other one."""
    messages = [{"role": "user", "content": "Say in a few words what a forebay is, and why a power plant has one."}]
    body = json.dumps({"model": MODEL, "messages": messages}).encode()
    extra: dict[str, object] = {"cache": {"enabled": True}}
    with tempfile.TemporaryDirectory(prefix="bench-exact-", dir=RESULTS) as folder:
        work = Path(folder)
        bodies = work / "bodies.jsonl"
        bodies.write_bytes(body + b"\n")
        with mock(work, core=cores[1]) as url, gateway(work, url, core=cores[0], extra=extra) as up:
            heads = [_kind(up.url, body) for _ in range(20)]
            if heads[-1] != "exact":
                raise BenchError(f"an equal request was not answered from memory: x-forebay-cache is {heads[-1]!r}")
            asked = mock_counts(url)["unary"]
            wrk(up.url, LOAD, bodies, REQUESTS // 8, cores[1])
            tree = Tree(up.worker())
            before = tree.cpu()
            summary = wrk(up.url, LOAD, bodies, REQUESTS, cores[1])
            spent = tree.spent(before, tree.cpu())
            if mock_counts(url)["unary"] != asked:
                raise BenchError("an engine was asked for what is in memory")
    requests = summary["requests"]
    return Exact(requests / summary["seconds"], spent / requests * 1e6, summary["p50_ms"], summary["p99_ms"])


def _kind(url: str, body: bytes) -> str | None:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
    try:
        headers = {"content-type": "application/json", "authorization": f"Bearer {BENCH_KEY}"}
        connection.request("POST", "/v1/chat/completions", body, headers)
        answer = connection.getresponse()
        answer.read()
        if answer.status != 200:
            raise BenchError(f"the gateway answered {answer.status}")
        return answer.getheader("x-forebay-cache")
    finally:
        connection.close()
