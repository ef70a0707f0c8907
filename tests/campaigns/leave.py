"""Clients that leave real engines through the gateway: how long the engine goes on.

Run by `make campaign-leave` (ENGINES=vllm,llamacpp, N=5 leaves of each sort). Every route, streaming or not; while the
prompt is prefilled, while the answer comes, while the request waits in the engine's queue (llama.cpp does not look at
who waits there, so before it the gateway is told how much it runs at once, and the queue is the gateway's). `lag` is
from the instant just before the client's close until the engine's own metrics are back where they were before the
request; the looks at them, some milliseconds each, are in it.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engines import install, servers
from engines.servers import CHAT, COMPLETIONS, SLOTS, Server, opened
from stack import KEY, KEYS, Forebay, folder
from waiting import eventually

BAR_S = 0.2
STATES = ("prefill", "answer", "queued")
PATHS = (CHAT, COMPLETIONS)
NAMES = {
    "vllm": (b"\nvllm:num_requests_running{", b"\nvllm:num_requests_waiting{"),
    "llamacpp": (b"\nllamacpp:requests_processing ", b"\nllamacpp:requests_deferred "),
}
LOOK_EVERY_S = 0.02
GIVE_UP_S = 30.0


@dataclass(frozen=True, slots=True)
class Left:
    state: str
    path: str
    stream: bool
    lag: float
    """Seconds; infinite where the engine had not noticed after 30."""


class Gauges:
    """An engine's requests running and waiting, over a kept connection, parsed no further than needed."""

    def __init__(self, server: Server) -> None:
        self._names = NAMES[server.kind]
        self._connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)

    def read(self) -> tuple[int, int]:
        try:
            self._connection.request("GET", "/metrics")
            page = b"\n" + self._connection.getresponse().read()
        except (http.client.HTTPException, OSError):  # an idle connection that was closed
            self._connection.close()
            self._connection.request("GET", "/metrics")
            page = b"\n" + self._connection.getresponse().read()
        running, waiting = (int(float(page.split(name, 1)[1].split(b"\n", 1)[0].split()[-1])) for name in self._names)
        return running, waiting

    def close(self) -> None:
        self._connection.close()


@contextlib.contextmanager
def gateway(server: Server) -> Iterator[Forebay]:
    known = [k for k in servers.EngineKind if k.value == server.kind]
    engine = {
        "name": "engine",
        "url": server.url,
        "kind": (known[0] if known else servers.EngineKind.OPENAI).value,
        "health_interval": 1.0,
        "health_timeout": 10.0,
        "unhealthy_after": 5,
        "max_num_seqs": SLOTS,
        "kv_tokens": SLOTS * servers.CONTEXT,
    }
    with folder() as where:
        config: dict[str, Any] = {
            "listeners": [{"address": "127.0.0.1:0"}],
            "admin": "127.0.0.1:0",
            "state_dir": str(where / "state"),
            "engines": [engine],
            "callers": KEYS,
            "logging": {"requests": False},
        }
        if server.kind == "llamacpp":
            config["admission"] = {"enabled": True, "ttft": {"normal": 120}, "wait": {"normal": 120}}
        with contextlib.closing(Forebay(where, config)) as found:
            yield found


def leave(server: Server, forebay: Forebay, gauges: Gauges, state: str, path: str, stream: bool, delay: float) -> Left:
    """One client. The engine is idle before, and after."""
    with contextlib.ExitStack() as crowd:
        before = (0, 0)
        if state == "queued":
            before = (SLOTS, 0)
            for _ in range(SLOTS):
                body = server.body(CHAT, stream=True, max_tokens=1_900)
                crowd.enter_context(contextlib.closing(opened(forebay.port, CHAT, body, Authorization=f"Bearer {KEY}")))
            eventually(lambda: gauges.read() == before)
        text = f"{random.random()} " + "word and word again " * (250 if state == "prefill" else 1)
        body = server.body(path, text=text, stream=stream, max_tokens=400)
        with contextlib.closing(opened(forebay.port, path, body, Authorization=f"Bearer {KEY}")):
            if state != "queued":
                eventually(lambda: gauges.read() == (1, 0), every=0.002)
            elif server.kind == "llamacpp":
                eventually(lambda: forebay.metric("forebay_requests_live") == SLOTS + 1)
            else:
                eventually(lambda: gauges.read() == (SLOTS, 1), every=0.001)
            if state == "answer":
                time.sleep(0.05 + delay)
            left_at = time.monotonic()
        lag = back(gauges, before, left_at)
    eventually(lambda: gauges.read() == (0, 0), within=120)
    return Left(state, path, stream, lag)


def back(gauges: Gauges, before: tuple[int, int], since: float) -> float:
    while gauges.read() != before:
        if time.monotonic() - since > GIVE_UP_S:
            return float("inf")
        time.sleep(LOOK_EVERY_S)
    return time.monotonic() - since


def run(server: Server, n: int, seed: int, say: Callable[[str], None]) -> list[Left]:
    draw = random.Random(seed)
    plan = [(s, p, stream) for s in STATES for p in PATHS for stream in (True, False)] * n
    draw.shuffle(plan)
    found: list[Left] = []
    with gateway(server) as forebay, contextlib.closing(Gauges(server)) as gauges:
        for i, (state, path, stream) in enumerate(plan):
            found.append(leave(server, forebay, gauges, state, path, stream, draw.uniform(0, 0.2)))
            if i % 12 == 11:
                say(f"{server.kind}: {i + 1} of {len(plan)}")
        eventually(lambda: forebay.metric("forebay_requests_live") + forebay.metric("forebay_engine_in_flight") == 0)
    return found


def table(found: dict[str, list[Left]]) -> str:
    rows = [f"{'engine':<10}{'state':<9}{'route':<22}{'':<8}{'leaves':>7}{'p50 ms':>8}{'max ms':>8}"]
    for engine, leaves in found.items():
        for state in STATES:
            for path in PATHS:
                for stream in (True, False):
                    lags = sorted(x.lag for x in leaves if (x.state, x.path, x.stream) == (state, path, stream))
                    rows.append(
                        f"{engine:<10}{state:<9}{path:<22}{'stream' if stream else 'whole':<8}{len(lags):>7}"
                        f"{lags[len(lags) // 2] * 1000:>8.0f}{lags[-1] * 1000:>8.0f}"
                    )
    return "\n".join(rows)


def missed(found: dict[str, list[Left]]) -> list[str]:
    late = [(e, x) for e, leaves in found.items() for x in leaves if x.lag > BAR_S]
    return [
        f"{engine} {x.state} {x.path} {'stream' if x.stream else 'whole'}: {x.lag * 1000:.0f} ms, "
        f"the bar is {BAR_S * 1000:.0f} ms"
        for engine, x in late
    ]


def main() -> int:
    n, seed = int(os.environ.get("N") or 5), int(os.environ.get("SEED") or 1)
    chosen = (os.environ.get("ENGINES") or ",".join(servers.REAL)).split(",")
    if unknown := [name for name in chosen if name not in servers.REAL]:
        sys.exit(f"ENGINES knows {', '.join(servers.REAL)}; not {', '.join(unknown)}")
    if "vllm" in chosen:
        install.install()
    found: dict[str, list[Left]] = {}
    for name in chosen:
        print(f"starting {name}", flush=True)
        with servers.running(f"real-{name}") as server:
            found[name] = run(server, n, seed, lambda line: print(line, flush=True))
    print(table(found))
    problems = missed(found)
    for problem in problems:
        print("MISSED:", problem)
    out = Path(os.environ.get("RESULTS") or "results")
    out.mkdir(exist_ok=True)
    figures = {
        "n": n,
        "bar_seconds": BAR_S,
        "leaves": {e: [[x.state, x.path, x.stream, x.lag] for x in leaves] for e, leaves in found.items()},
        "missed": problems,
    }
    (out / "leave.json").write_text(json.dumps(figures) + "\n")
    return 1 if problems and os.environ.get("CHECK") == "1" else 0


if __name__ == "__main__":
    sys.exit(main())
