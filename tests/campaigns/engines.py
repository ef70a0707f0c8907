"""Engines that are killed, frozen and restarted under load, and what their clients get.

Run by `make campaign-engines` (ROUNDS=20), and with fewer rounds by tests/e2e. Clients, gateway and engines are
processes of their own (the clients: this one); one engine at a time is in trouble. A request is *lost* where its client
got an error though nothing of an answer had come, for then another engine could have answered. A stream that had begun
may be cut, with an error event. Nobody is answered twice: one answer a request, with exactly the tokens asked for.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stack import Engine, Forebay, call, chat, config_of, folder, raw_request
from waiting import eventually

ENGINES = 4
CLIENTS = 24
WAYS = ("kill", "freeze", "restart")
HANG = 60.0
"""Seconds without an end after which a client gives up."""
HEALTH = {"stall_least": 1.0, "slow_start": 2.0, "open": 0.5}
BARS = {"lost": 0, "twice": 0, "hung": 0, "wrong": 0}


class Fallible(Engine):
    """One that comes back on the same port."""

    def __init__(self, *arguments: str) -> None:
        super().__init__(*arguments)
        self.options = [*self.options, "--port", str(self.port)]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def freeze(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)


@dataclass(slots=True)
class Told:
    """One request and what came of it; times in monotonic seconds."""

    id: str
    stream: bool
    tokens: int
    sent: float
    first: float = 0.0
    """When the first content came."""
    end: float = 0.0
    status: int = 0
    body: bytes = b""

    @property
    def verdict(self) -> str:
        if not self.end:
            return "hung"
        if self.status != 200:
            return "lost"
        if not self.stream:
            with contextlib.suppress(ValueError):
                if json.loads(self.body)["usage"]["completion_tokens"] == self.tokens:
                    return "ok"
            return "wrong"
        contents, ends = self.body.count(b'"content":"'), self.body.count(b"data: [DONE]")
        if contents > self.tokens + 1 or ends > 1:  # the role's event has an empty one
            return "twice"
        if ends:
            return "ok" if contents >= self.tokens else "wrong"
        return "cut" if b'"error"' in self.body else "wrong"


@dataclass(slots=True)
class Trouble:
    way: str
    engine: int
    began: float
    over: float = 0.0


@dataclass(slots=True)
class Result:
    told: list[Told]
    troubles: list[Trouble]
    finished: Counter[str]
    """By request id: how often an engine that lives finished it. A frozen one that thaws may finish what it had nearly
    done before it sees that nobody waits."""
    counters: dict[str, float]
    log: str = field(repr=False, default="")

    @property
    def verdicts(self) -> Counter[str]:
        return Counter(t.verdict for t in self.told)

    def problems(self) -> list[str]:
        found = self.verdicts
        counted = sum(n for name, n in self.counters.items() if 'outcome="ok"' in name)
        out = [] if counted == found["ok"] else [f"the gateway answered {counted:g}, clients have {found['ok']}"]
        out += [f"{found[name]} {name}, the bar is {bar}" for name, bar in BARS.items() if found[name] > bar]
        for t in self.told:
            if t.verdict in BARS:
                out.append(f"{t.id} {t.verdict}: {t.status} after {t.end - t.sent:.1f} s, {t.body[-300:]!r}")
        return out[:20]


@dataclass(slots=True)
class House:
    forebay: Forebay
    engines: list[Fallible]

    def states(self) -> dict[str, str]:
        rows = json.loads(self.ask("/admin/engines"))["engines"]
        return {row["name"]: row["state"] for row in rows}

    def ask(self, path: str) -> bytes:
        return call(self.forebay.admin_port, "GET", path)[2]


@contextlib.contextmanager
def house(**more: Any) -> Iterator[House]:
    with contextlib.ExitStack() as cleanup:
        where = cleanup.enter_context(folder())
        engines = [cleanup.enter_context(contextlib.closing(Fallible("--decode-rate", "100"))) for _ in range(ENGINES)]
        config = config_of(
            where / "state",
            *engines,
            retries={"budget": 1.0, "attempts": 4},
            timeouts={"upstream_idle": 1.0, "connect": 2.0, "stream_idle": 4.0},
            health=HEALTH,
            logging={"requests": False},
            **more,
        )
        forebay = cleanup.enter_context(contextlib.closing(Forebay(where, config)))
        h = House(forebay, engines)
        eventually(lambda: set(h.states().values()) == {"healthy"})
        yield h


async def client(port: int, name: str, draw: random.Random, told: list[Told], stop: asyncio.Event) -> None:
    """One request after the other, each on a connection of its own."""
    count = 0
    while not stop.is_set():
        count += 1
        mine = Told(f"{name}-{count}", draw.random() < 0.6, draw.choice((3, 20, 60, 120)), time.monotonic())
        told.append(mine)
        body = chat(mine.tokens, stream=mine.stream)
        try:
            async with asyncio.timeout(HANG):
                await _ask(port, mine, raw_request(body, request_id=mine.id, connection="close"))
        except TimeoutError:
            continue
        mine.end = time.monotonic()


async def _ask(port: int, mine: Told, request: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        mine.status = int(head.split(b" ", 2)[1])
        parts = []
        with contextlib.suppress(ConnectionError):
            while got := await reader.read(65_536):
                if not mine.first:
                    mine.first = time.monotonic()
                parts.append(got)
        # HTTP's chunk heads do not matter to what is looked for in a stream; a whole answer has a length.
        mine.body = b"".join(parts)
    finally:
        writer.close()


async def trouble(h: House, way: str, index: int, draw: random.Random, seconds: float) -> Trouble:
    """One engine gets into trouble and out of it again; returns once it gets requests again."""
    engine, found = h.engines[index], Trouble(way, index, time.monotonic())
    match way:
        case "kill":
            engine.kill()
            await asyncio.sleep(draw.uniform(0.0, seconds))
            await asyncio.to_thread(engine.start)
        case "freeze":
            engine.freeze()
            await asyncio.sleep(seconds)
            engine.thaw()
        case "restart":
            await asyncio.to_thread(engine.stop)
            await asyncio.to_thread(engine.start)
    name = f"engine-{index}"
    while (await asyncio.to_thread(h.states))[name] != "healthy":
        assert time.monotonic() - found.began < 60, f"{name} does not come back: {h.states()}"
        await asyncio.sleep(0.05)
    found.over = time.monotonic()
    return found


async def _run(
    h: House, rounds: int, seed: int, seconds: float, clients: int, say: bool
) -> tuple[list[Told], list[Trouble]]:
    draw = random.Random(seed)
    told: list[Told] = []
    troubles = []
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        for i in range(clients):
            group.create_task(client(h.forebay.port, f"c{i}", random.Random(seed * 1000 + i), told, stop))
        await asyncio.sleep(1.0)  # what is usual of each engine must be known before it can be missed
        for i in range(rounds):
            way = WAYS[i % len(WAYS)]
            troubles.append(await trouble(h, way, draw.randrange(ENGINES), draw, seconds))
            if say:
                last = troubles[-1]
                print(
                    f"  {i + 1}: {way} engine-{last.engine}, {last.over - last.began:.1f} s",
                    file=sys.stderr,
                    flush=True,
                )
        stop.set()
    return told, troubles


def run(
    rounds: int, seed: int = 1, *, seconds: float = 4.0, clients: int = CLIENTS, say: bool = False, **more: Any
) -> Result:
    """`seconds`: how long an engine is frozen, and at most dead."""
    with house(**more) as h:
        worker = h.forebay.worker.pid
        told, troubles = asyncio.run(_run(h, rounds, seed, seconds, clients, say))
        finished: Counter[str] = Counter()
        for engine in h.engines:
            for record in engine.books()["records"]:
                finished[record["id"]] += record["how"] == "finished"
        wanted = re.compile(r"forebay_(retries|upstream_errors|engine_breaker|requests)_total")
        counters = {k: v for k, v in h.forebay.metrics().items() if wanted.match(k)}
        assert h.forebay.worker.pid == worker, "the worker was restarted"
        eventually(lambda: h.forebay.metric("forebay_requests_live") == 0)
        eventually(lambda: h.forebay.metric("forebay_engine_in_flight") == 0)
        return Result(told, troubles, finished, counters, h.forebay.text)


def main() -> int:
    rounds = int(os.environ.get("ROUNDS") or 20)
    result = run(rounds, int(os.environ.get("SEED") or 1), seconds=float(os.environ.get("SECONDS_OUT") or 6), say=True)
    print(f"{len(result.told):,} requests in {rounds} rounds:", dict(sorted(result.verdicts.items())))
    for way in WAYS:
        back = [t.over - t.began for t in result.troubles if t.way == way]
        if back:
            print(f"  {way}: {len(back)} times, back in service after {max(back):.1f} s at most")
    waited = sorted(t.end - t.sent for t in result.told if t.verdict == "ok")
    print(f"  answers took {waited[len(waited) // 2]:.2f} s (median), {waited[-1]:.2f} s (longest)")
    again = [i for i, n in result.finished.items() if n > 1]
    print(f"  finished by two engines, told once: {len(again)}")
    for name, value in sorted(result.counters.items()):
        print(f"{name} {value:g}")
    problems = result.problems()
    for problem in problems:
        print("MISSED:", problem)
    out = Path(os.environ.get("RESULTS") or "results")
    out.mkdir(exist_ok=True)
    figures = {
        "rounds": rounds,
        "requests": len(result.told),
        "verdicts": dict(result.verdicts),
        "seconds_to_service": {w: [t.over - t.began for t in result.troubles if t.way == w] for w in WAYS},
        "longest_answer_seconds": waited[-1],
        "finished_by_two": len(again),
        "counters": result.counters,
        "bars": BARS,
        "missed": problems,
    }
    (out / "engines.json").write_text(json.dumps(figures, indent=2) + "\n")
    return 1 if problems and os.environ.get("CHECK") == "1" else 0


if __name__ == "__main__":
    sys.exit(main())
