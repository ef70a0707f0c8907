"""Clients that leave at random instants in every state of a request, and what the engines and the gateway say of it.

Run by `make campaign-cancel` (N=10000), and with a smaller N by tests/lifecycle_e2e. Clients, gateway and engines are
processes of their own; times are one host's CLOCK_MONOTONIC. `lag` is from the instant just before the client's close
to the instant at which the engine gives the request's slot back.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stack import Engine, Forebay, chat, config_of, fds, folder, raw_request, reset
from waiting import eventually

BARS = {"p99.9": 0.050, "max": 1.0}
"""Seconds."""
BATCH = 1_000
"""Cancels between two looks into the engines' books, which keep the last 4,096."""
AT_ONCE = 24

STATES = ("body", "queued", "connect", "role", "stream", "unary", "retry", "done")
WAYS = ("close", "reset", "half-close")
WIDTHS = (8, 11, 9, 9, 9, 10, 9)


@dataclass(slots=True)
class Leave:
    """One client: where the request shall be when it leaves, how, and when it did."""

    id: str
    state: str
    way: str
    delay: float
    events: int
    left_at: float = 0.0
    hung: bool = False
    """The gateway kept a half-closed connection open."""


@dataclass(slots=True)
class Result:
    leaves: list[Leave]
    records: dict[str, list[dict[str, Any]]]
    leaks: dict[str, float]
    counters: dict[str, float]
    lags: dict[str, list[float]] = field(default_factory=dict)

    @property
    def all_lags(self) -> list[float]:
        return sorted(lag for lags in self.lags.values() for lag in lags)

    def problems(self, *, bars: dict[str, float]) -> list[str]:
        out = [f"{name}: {value:g} left behind" for name, value in self.leaks.items() if value > 0]
        never = [r["id"] for rs in self.records.values() for r in rs if r["ended"] is None]
        if never:
            out.append(f"the engines still work for {len(never)} requests: {never[:5]}")
        hung = [x.id for x in self.leaves if x.hung]
        if hung:
            out.append(f"{len(hung)} half-closed connections stayed open: {hung[:5]}")
        lags = self.all_lags
        for name, bar in bars.items():
            value = quantile(lags, {"p99.9": 0.999, "max": 1.0}[name])
            if value > bar:
                out.append(f"lag {name} is {value * 1000:.1f} ms, the bar is {bar * 1000:g} ms")
        return out


def quantile(ordered: list[float], q: float) -> float:
    """The smallest value that at least a share `q` of them does not exceed; NaN where there is none."""
    if not ordered:
        return float("nan")
    return ordered[min(len(ordered) - 1, max(0, -int(-q * len(ordered) // 1) - 1))]


class DeafEngine:
    """Healthy at first; once `deafen` is called its backlog is full, so that connecting to it takes for ever."""

    def __init__(self) -> None:
        self._listener = socket.socket()
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen(0)
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._deaf = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()
        self._fillers: list[socket.socket] = []

    def _serve(self) -> None:
        self._listener.settimeout(0.05)
        while not self._deaf.is_set():
            with contextlib.suppress(TimeoutError):
                connection, _ = self._listener.accept()
                with connection:
                    connection.settimeout(2)
                    connection.recv(65_536)
                    connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}")

    def deafen(self) -> None:
        self._deaf.set()
        self._thread.join()
        while True:
            filler = socket.socket()
            filler.settimeout(0.3)
            self._fillers.append(filler)
            try:
                filler.connect(self._listener.getsockname())
            except TimeoutError:
                return

    def close(self) -> None:
        self._deaf.set()
        self._thread.join()
        for filler in self._fillers:
            filler.close()
        self._listener.close()


@dataclass(slots=True)
class House:
    forebay: Forebay
    engines: dict[str, Engine]


@contextlib.contextmanager
def house() -> Iterator[House]:
    """Engines by what they are like: `main`, `narrow` (one sequence at a time), `broken` (500 to everything)."""
    with contextlib.ExitStack() as cleanup:
        where = cleanup.enter_context(folder())

        def engine(*arguments: str) -> Engine:
            return cleanup.enter_context(contextlib.closing(Engine(*arguments)))

        engines = {
            "main": engine("--model", "forebay-sim", "--model", "twice", "--decode-rate", "100"),
            "narrow": engine("--model", "narrow", "--max-num-seqs", "1", "--decode-rate", "50"),
            "broken": engine("--model", "twice", "--fault", "error=500"),
        }
        deaf = cleanup.enter_context(contextlib.closing(DeafEngine()))
        config = config_of(
            where / "state",
            *engines.values(),
            timeouts={"upstream_idle": 1.0, "connect": 2.0},
            retries={"budget": 1.0},
            logging={"requests": False},
        )
        config["engines"].append(
            {
                "name": "deaf",
                "url": deaf.url,
                "models": ["deaf"],
                "kind": "openai",
                "health_interval": 3600,
                "unhealthy_after": 100,
            }
        )
        forebay = cleanup.enter_context(contextlib.closing(Forebay(where, config)))
        eventually(lambda: forebay.metric('forebay_engine_healthy{engine="deaf"}'))
        deaf.deafen()
        yield House(forebay, engines)


def plan(n: int, seed: int) -> list[Leave]:
    """`n` leaves, every state in every way in turn, instants drawn."""
    draw = random.Random(seed)
    found = []
    for i in range(n):
        delay = draw.choice((0.0, draw.expovariate(1 / 0.002), draw.uniform(0.0, 0.02), draw.uniform(0.0, 0.3)))
        state = STATES[i % len(STATES)]
        found.append(
            Leave(f"leave-{seed}-{i}", state, WAYS[i // len(STATES) % len(WAYS)], delay, draw.choice((1, 2, 3, 5, 10)))
        )
    draw.shuffle(found)
    return found


def request_of(leave: Leave) -> bytes:
    match leave.state:
        case "queued":
            body, fault = chat(10, model="narrow"), ""
        case "connect":
            body, fault = chat(10, model="deaf"), ""
        case "role":
            body, fault = chat(10), "role-wait=60"
        case "unary":
            body, fault = chat(2_000, stream=False), ""
        case "retry":
            body, fault = chat(2_000, model="twice"), ""
        case "done":
            body, fault = chat(leave.events), ""
        case _:
            body, fault = chat(2_000), ""
    return raw_request(body, request_id=leave.id, **({"x_forebay_fault": fault} if fault else {}))


async def leave_once(leave: Leave, port: int, draw: random.Random) -> None:
    loop = asyncio.get_running_loop()
    sock = socket.socket()
    sock.setblocking(False)
    await loop.sock_connect(sock, ("127.0.0.1", port))
    request = request_of(leave)
    if leave.state == "body":
        request = request[: draw.randrange(1, len(request))]
    await loop.sock_sendall(sock, request)
    if leave.state in ("stream", "done"):
        await _read_events(loop, sock, leave.events)
        await asyncio.sleep(min(leave.delay, 0.02))
    else:
        await asyncio.sleep(leave.delay)
    leave.left_at = time.monotonic()
    if leave.way == "reset":
        reset(sock)
        return
    if leave.way == "half-close":
        with contextlib.suppress(OSError):  # the answer may have ended, and the connection with it
            sock.shutdown(socket.SHUT_WR)
        leave.hung = not await _ends(loop, sock)
    sock.close()


async def _read_events(loop: asyncio.AbstractEventLoop, sock: socket.socket, events: int) -> None:
    seen = 0
    with contextlib.suppress(ConnectionError):
        while seen < events:
            got = await loop.sock_recv(sock, 65_536)
            if not got:
                return
            seen += got.count(b'"content":"')


async def _ends(loop: asyncio.AbstractEventLoop, sock: socket.socket) -> bool:
    try:
        async with asyncio.timeout(20.0):
            while await loop.sock_recv(sock, 65_536):
                pass
    except TimeoutError:
        return False
    except ConnectionError:
        return True
    return True


async def _batch(leaves: list[Leave], port: int, seed: int) -> None:
    draw = random.Random(seed)
    room = asyncio.Semaphore(AT_ONCE)

    async def one(leave: Leave) -> None:
        async with room:
            await leave_once(leave, port, draw)

    async with asyncio.TaskGroup() as group:
        for leave in leaves:
            group.create_task(one(leave))


def run(n: int, seed: int = 1, *, say: bool = False) -> Result:
    with house() as h:
        port, worker = h.forebay.port, h.forebay.worker.pid
        warm_up = plan(48, seed + 1)
        asyncio.run(_batch(warm_up, port, seed))
        eventually(lambda: _open(h) == 0)
        files = {"gateway": worker, **{name: e.pid for name, e in h.engines.items()}}
        settled = time.monotonic() + 2.5
        baseline = dict.fromkeys(files, 0)
        while time.monotonic() < settled:
            baseline = {
                name: max(baseline[name], fds(pid)) if settled - time.monotonic() < 1 else fds(pid)
                for name, pid in files.items()
            }
            time.sleep(0.05)
        leaves = plan(n, seed)
        records: dict[str, list[dict[str, Any]]] = {}
        for at in range(0, n, BATCH):
            asyncio.run(_batch(leaves[at : at + BATCH], port, seed + at))
            with contextlib.suppress(AssertionError):  # what never settles is found in the records
                eventually(lambda: _open(h) == 0, 30)
            for engine in h.engines.values():
                for record in engine.books()["records"]:
                    records.setdefault(record["id"], [])
                    if record not in records[record["id"]]:
                        records[record["id"]].append(record)
            if say:
                print(f"  {min(n, at + BATCH):,} of {n:,}", file=sys.stderr, flush=True)
        leaks = _leaks(h, files, baseline)
        counters = {
            k: v for k, v in h.forebay.metrics().items() if k.startswith(("forebay_cancels", "forebay_requests"))
        }
        assert h.forebay.worker.pid == worker, "the worker was restarted"
    names = {x.id: x for x in leaves}
    result = Result(leaves, {i: rs for i, rs in records.items() if i in names}, leaks, counters)
    for id_, found in result.records.items():
        for record in found:
            if record["ended"] is not None and record["ended"] > names[id_].left_at:
                result.lags.setdefault(names[id_].state, []).append(record["ended"] - names[id_].left_at)
    return result


def _open(h: House) -> float:
    """Requests that have not ended, as the gateway and the engines see it."""
    return h.forebay.metric("forebay_requests_live") + sum(e.books()["open"] for e in h.engines.values())


def _leaks(h: House, files: dict[str, int], baseline: dict[str, int]) -> dict[str, float]:
    """What is more than it was before; waits for idle connections to age."""
    watched = ("forebay_requests_live", "forebay_client_connections", "forebay_engine_in_flight")

    def look() -> dict[str, float]:
        found = {name: h.forebay.metric(name) for name in watched}
        found |= {f"descriptors of {name}": float(fds(pid) - baseline[name]) for name, pid in files.items()}
        for name, engine in h.engines.items():
            books = engine.books()
            found |= {f"{name}: {what}": books[what] for what in ("running", "waiting", "open")}
        return found

    deadline = time.monotonic() + 30
    while True:
        found = look()
        if all(v <= 0 for v in found.values()) or time.monotonic() > deadline:
            return found
        time.sleep(0.05)


def table(result: Result) -> str:
    columns = zip(("leaves", "at engine", "aborted", "p50 ms", "p99 ms", "p99.9 ms", "max ms"), WIDTHS, strict=True)
    rows = [f"{'state':<10}" + "".join(f"{name:>{width}}" for name, width in columns)]
    by_state = {x.id: x.state for x in result.leaves}
    for state in (*STATES, "all"):
        of = [x for x in result.leaves if state in (x.state, "all")]
        records = [r for i, rs in result.records.items() if state in (by_state[i], "all") for r in rs]
        lags = sorted(result.lags.get(state, [])) if state != "all" else result.all_lags
        times = [f"{quantile(lags, q) * 1000:.1f}" if lags else "-" for q in (0.5, 0.99, 0.999, 1.0)]
        cells = (f"{len(of):,}", f"{len(records):,}", f"{sum(r['how'] == 'aborted' for r in records):,}", *times)
        rows.append(f"{state:<10}" + "".join(f"{cell:>{width}}" for cell, width in zip(cells, WIDTHS, strict=True)))
    return "\n".join(rows)


def main() -> int:
    n = int(os.environ.get("N") or 10_000)
    result = run(n, int(os.environ.get("SEED") or 1), say=True)
    print(table(result))
    print("\nleft behind:", ", ".join(f"{k} {max(0, v):g}" for k, v in result.leaks.items()))
    for name, value in sorted(result.counters.items()):
        print(f"{name} {value:g}")
    problems = result.problems(bars=BARS)
    for problem in problems:
        print("MISSED:", problem)
    out = Path(os.environ.get("RESULTS") or "results")
    out.mkdir(exist_ok=True)
    lags = result.all_lags
    figures = {
        "n": n,
        "ways": Counter(f"{x.state} {x.way}" for x in result.leaves),
        "lag_seconds": {str(q): quantile(lags, q) for q in (0.5, 0.9, 0.99, 0.999, 1.0)},
        "lag_seconds_by_state": {
            state: {str(q): quantile(sorted(ls), q) for q in (0.5, 0.99, 0.999, 1.0)}
            for state, ls in result.lags.items()
        },
        "left_behind": result.leaks,
        "bars": BARS,
        "missed": problems,
    }
    (out / "cancel.json").write_text(json.dumps(figures, indent=2) + "\n")
    return 1 if problems and os.environ.get("CHECK") == "1" else 0


if __name__ == "__main__":
    sys.exit(main())
