"""One round: wrk sends a number of requests through a subject, and the subject's process tree is charged for them."""

from __future__ import annotations

import http.client
import json
import shutil
import subprocess
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.common import BENCH_KEY, MODEL, BenchError, core_busy, mock_counts
from benchmarks.overhead.subjects import EVENTS, Running

LUA = Path(__file__).with_name("load.lua")
PROMPT = (
    "Explain in two sentences what a forebay is and why a power plant has one. Answer as an engineer would, in plain "
    "words, and name the unit in which its capacity is given."
)


@dataclass(frozen=True)
class Load:
    name: str
    connections: int
    requests: int
    """A round's most requests; a subject that costs more gets fewer."""
    bar: float
    """Most times nginx."""
    admission_bar: float
    """The same with admission on."""
    ledger_bar: float
    """The same with admission, quotas and the ledger on."""
    pause_ms: int = 0
    """Longest pause of a connection between an answer and its next request; drawn evenly from 0 up."""

    @property
    def stream(self) -> bool:
        return self.name == "stream"


LOADS = {
    "unary": Load("unary", connections=32, requests=16_000, bar=2.0, admission_bar=2.5, ledger_bar=3.0, pause_ms=16),
    "flat-out": Load("flat-out", connections=32, requests=20_000, bar=2.0, admission_bar=2.5, ledger_bar=3.0),
    "stream": Load("stream", connections=64, requests=640, bar=1.3, admission_bar=1.3, ledger_bar=1.4),
}


def thinking(load: Load, ttft_ms: int) -> Load:
    """The load for an engine that thinks: as many requests a second need more connections."""
    if not load.pause_ms:
        return load
    mean = load.pause_ms / 2
    return replace(load, connections=round(load.connections * (mean + ttft_ms) / mean))


@dataclass(frozen=True)
class Sample:
    """What one round cost."""

    subject: str
    load: str
    round: str
    requests: float
    cpu_us: float
    """CPU microseconds of the process tree, a request."""
    rate: float
    """Requests a second."""
    p50_ms: float
    p99_ms: float
    foreign: float
    """Share of the subject's core taken by anything else."""

    def plain(self) -> dict[str, object]:
        return asdict(self)


MARK = "############"
"""In the built-in prompt: each request has another number there, so that no cache knows it."""
SAME = frozenset({"cache-hits"})
"""Subjects that are asked the same again and again."""


def write_bodies(load: Load, data: Path | None, file: Path) -> int:
    """The load's request bodies, one a line: the built-in one, or those of a JSONL file with model, stream and length
    set. Returns how many. Raises BenchError with the line that is no OpenAI body."""
    if data is None:
        bodies: list[dict[str, object]] = [
            {
                "messages": [
                    {"role": "system", "content": "You are a helpful assistant."},
                    {"role": "user", "content": f"{PROMPT} {load.name} {MARK}"},
                ],
                "temperature": 0.7,
            }
        ]
    else:
        bodies = []
        try:
            lines = data.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as e:
            raise BenchError(f"DATA={data}: {e}") from None
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                body = json.loads(line)
            except ValueError as e:
                raise BenchError(f"DATA={data}, line {number} is not JSON: {e}") from None
            if not isinstance(body, dict) or not isinstance(body.get("messages"), list):
                raise BenchError(f"DATA={data}, line {number} is not a chat completion body: it has no list 'messages'")
            bodies.append(body)
        if not bodies:
            raise BenchError(f"DATA={data} has no request in it")
    with file.open("w", encoding="utf-8") as out:
        for body in bodies:
            for field in ("stream", "stream_options", "max_tokens", "max_completion_tokens"):
                body.pop(field, None)
            body["model"] = MODEL
            if load.stream:
                body["stream"] = True
            out.write(json.dumps(body, ensure_ascii=False, separators=(",", ":")) + "\n")
    return len(bodies)


def probe(subject: str, url: str, bodies: Path) -> None:
    """One request, its answer looked at. Raises BenchError where it is not the mock's whole answer."""
    body = bodies.read_text(encoding="utf-8").split("\n", 1)[0].encode()
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
    try:
        headers = {"content-type": "application/json", "authorization": f"Bearer {BENCH_KEY}"}
        connection.request("POST", "/v1/chat/completions", body, headers)
        answer = connection.getresponse()
        got = answer.read()
    except (OSError, http.client.HTTPException) as e:
        raise BenchError(f"{subject} did not answer a request: {e!r}") from None
    finally:
        connection.close()
    if answer.status != 200:
        raise BenchError(f"{subject} answered {answer.status}: {got[:300].decode(errors='replace')}")
    if b'"stream":true' not in body:
        if b"power plant's turbines" not in got:
            raise BenchError(f"{subject} did not pass on the mock's answer: {got[:300].decode(errors='replace')}")
        return
    events = [x for x in got.split(b"\n\n") if x]
    content = [x for x in events if b'"content":" word' in x.replace(b'": "', b'":"')]
    if len(content) != EVENTS or b"[DONE]" not in events[-1]:
        raise BenchError(f"{subject} passed on {len(content)} of {EVENTS} content events, the last {events[-1:]!r}")


def wrk(url: str, load: Load, bodies: Path, count: int, core: int, *, same: bool = False) -> dict[str, float]:
    """Run wrk until `count` requests are answered; its summary. Raises BenchError for any failed request."""
    program = shutil.which("wrk")
    if program is None:
        raise BenchError("wrk makes the load and is not installed (Debian: apt-get install wrk)")
    command = ["taskset", "-c", str(core), program, "-t", "1", "-c", str(load.connections), "-d", "300", "--timeout"]
    command += ["60", "-s", str(LUA), url]
    env = {"BODIES": str(bodies), "COUNT": str(count + load.connections), "KEY": BENCH_KEY, "PATH": "/usr/bin:/bin"}
    if load.pause_ms:
        env["PAUSE_MS"] = str(load.pause_ms)
    if not same:
        env |= {"MARK": MARK, "FIRST": str(time.time_ns() // 100_000 % 10**12)}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line == "STOP\n":
                process.send_signal(2)
    for line in lines:
        if line.startswith("JSON "):
            summary: dict[str, float] = json.loads(line[5:])
            bad = {k: summary[k] for k in ("connect", "read", "write", "status", "timeout") if summary[k]}
            if bad:
                raise BenchError(f"requests through {url} failed: {bad}")
            return summary
    raise BenchError(f"wrk gave no summary:\n{''.join(lines)}")


def settle(mock_url: str) -> dict[str, int]:
    """Wait until the mock has no running stream; its counts. Raises BenchError where one stays."""
    end = time.monotonic() + 30
    while (counts := mock_counts(mock_url))["active"]:
        if time.monotonic() > end:
            raise BenchError(f"{counts['active']} streams still run on the mock 30 s after their clients left")
        time.sleep(0.02)
    return counts


def measure(
    name: str, up: Running, load: Load, bodies: Path, count: int, mock_url: str, cores: tuple[int, int], label: str
) -> Sample:
    """One round. Requests are counted by the mock, so that those cut short at the end are charged for what they had."""
    core, other = cores
    counts, busy, cpu = settle(mock_url), core_busy(core), up.tree.cpu()
    began = time.monotonic()
    summary = wrk(up.url, load, bodies, count, other, same=name in SAME)
    after = settle(mock_url)
    spent = up.tree.spent(cpu, up.tree.cpu())
    wall = time.monotonic() - began
    foreign = max(0.0, core_busy(core) - busy - spent) / wall
    requests = (after["events"] - counts["events"]) / EVENTS if load.stream else after["unary"] - counts["unary"]
    if name in SAME:  # the mock is not asked
        requests = summary["requests"]
    if requests < count * 0.5:
        raise BenchError(f"the mock saw {requests:g} of {count} requests sent through {name}")
    return Sample(
        subject=name,
        load=load.name,
        round=label,
        requests=requests,
        cpu_us=spent / requests * 1e6,
        rate=summary["requests"] / summary["seconds"],
        p50_ms=summary["p50_ms"],
        p99_ms=summary["p99_ms"],
        foreign=foreign,
    )


def idle(up: Running, seconds: float = 2.0) -> float:
    """CPU milliseconds a second of a subject that nobody asks."""
    before, began = up.tree.cpu(), time.monotonic()
    time.sleep(seconds)
    return up.tree.spent(before, up.tree.cpu()) / (time.monotonic() - began) * 1e3
