"""Equal requests that share flights, from clients that lag, leave and cancel at random instants, over an engine that
stalls, dies and refuses: who stays hears the whole answer or an error, and nothing is left behind.

Run by `make campaign-flights` (N=2000 questions, SEED). Gateway and admin are processes of their own; the engine is
here, and says of each question what its words say: pieces, seconds between them, how many calls fail, and how.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import re
import shutil
import socket
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from stack import Forebay, folder, reset
from waiting import eventually

MODEL = "flown"
KEYS = {
    name: {"key": f"campaign-{name}-0123456789", "class": cls}
    for name, cls in (("vip", "vip"), ("normal", "normal"), ("low", "low"))
}
FAILURES = ("none", "none", "none", "none", "close", "500", "503", "400", "garbage", "stall", "cut", "error")
"""`cut` and `error` are met within the answer, the others before its first byte."""
WAYS = ("stay",) * 6 + ("close", "reset", "half-close", "cancel", "slow")
FORMS = ("stream",) * 4 + ("usage", "json", "json", "old")
"""`old`: HTTP/1.0."""
AT_ONCE = 12
"""Questions."""
HANGS = 25.0
"""Seconds after which a client that stays has been forgotten."""


@dataclass(slots=True)
class Question:
    id: str
    pieces: int
    size: int
    gap: float
    failure: str
    fails: int

    @property
    def text(self) -> str:
        return f"{self.id} p{self.pieces} s{self.size} g{self.gap:.4f} {self.failure} x{self.fails}"

    @property
    def answer(self) -> str:
        return "".join(self.piece(i) for i in range(self.pieces))

    def piece(self, i: int) -> str:
        return f"{self.id}-{i} ".ljust(self.size, ".")


@dataclass(slots=True)
class Told:
    """What a client came away with. `end`: whole, error, gone."""

    question: Question
    form: str
    way: str
    end: str
    status: int = 0
    text: str = ""
    kind: str = ""
    why: str = ""
    seconds: float = 0.0


@dataclass(slots=True)
class Result:
    told: list[Told]
    calls: Counter[str]
    open_calls: int
    leaks: dict[str, float]
    books: dict[str, float]
    log: str = ""
    problems: list[str] = field(default_factory=list)

    def judge(self) -> list[str]:
        out = list(self.problems)
        for one in self.told:
            name = f"{one.question.text} [{one.form}, {one.way}, {one.kind}, {one.status}]"
            if one.end == "hung":
                out.append(f"{name} hung for {one.seconds:.1f} s")
            if one.end == "whole" and one.text != one.question.answer:
                out.append(f"{name} is {len(one.text):,} characters, not {len(one.question.answer):,}, or others")
            if one.end == "whole" and not one.kind:
                out.append(f"{name} does not say where it is from")
            if one.end == "error" and one.question.failure == "none" and one.way == "stay" and '"slo"' not in one.why:
                out.append(f"{name} got an error: {one.why[:200]}")
            if one.end == "gone" and one.way == "stay" and one.question.failure not in ("cut", "stall"):
                out.append(f"{name} was cut without a word: {one.text[-40:]!r} {one.why[:100]}")
            if one.end == "whole" and one.question.failure in ("cut", "error") and one.question.fails > 9:
                out.append(f"{name} looks whole")
        if self.open_calls:
            out.append(f"the engine still works for {self.open_calls} calls")
        out += [f"{name}: {value:g} left behind" for name, value in self.leaks.items() if value]
        return out


class Engine:
    """Mutable state: the calls by question, and how many are open."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.open = 0
        self._server: asyncio.Server | None = None
        self.port = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1 << 20)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"content-length: *(\d+)", head, re.IGNORECASE)
                body = await reader.readexactly(int(length[1])) if length else b""
                if head.startswith(b"GET"):
                    models = json.dumps({"object": "list", "data": [{"id": MODEL, "object": "model"}]}).encode()
                    _write_whole(writer, 200, models)
                    continue
                self.open += 1
                try:
                    if not await self._answer(reader, writer, json.loads(body)):
                        break
                finally:
                    self.open -= 1
        writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, asked: dict[str, Any]) -> bool:
        """False: the connection is to be closed."""
        q = read_question(asked["messages"][-1]["content"])
        self.calls[q.id] += 1
        failure = q.failure if self.calls[q.id] <= q.fails else "none"
        gone = asyncio.ensure_future(reader.read(1))
        try:
            if failure not in ("none", "cut", "error"):
                return await _fail(writer, failure, gone, q.gap)
            if not asked.get("stream"):
                if await _passes(q.gap * min(q.pieces, 20), gone) or failure != "none":
                    return False
                _write_whole(writer, 200, _whole(q))
            else:
                writer.write(
                    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
                )
                for i in range(q.pieces):
                    if await _passes(q.gap, gone):
                        return False
                    if failure != "none" and i == q.pieces // 2:
                        if failure == "error":
                            _chunk(writer, b'data: {"error": {"message": "it broke", "code": 500}}\n\n')
                            await writer.drain()
                        return False
                    ends = "stop" if i == q.pieces - 1 else None
                    _chunk(writer, _event({"index": 0, "delta": {"content": q.piece(i)}, "finish_reason": ends}))
                    await writer.drain()
                if (asked.get("stream_options") or {}).get("include_usage"):
                    usage = {"prompt_tokens": 9, "completion_tokens": q.pieces, "total_tokens": 9 + q.pieces}
                    _chunk(writer, _event(None, usage))
                _chunk(writer, b"data: [DONE]\n\n")
                writer.write(b"0\r\n\r\n")
            await writer.drain()
        finally:
            kept = not gone.done()
            gone.cancel()
            await asyncio.gather(gone, return_exceptions=True)
        return kept


async def _fail(writer: asyncio.StreamWriter, failure: str, gone: asyncio.Future[bytes], gap: float) -> bool:
    if await _passes(gap, gone):
        return False
    match failure:
        case "close":
            return False
        case "garbage":
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n")
            await writer.drain()
            return False
        case "stall":
            await _passes(60, gone)
            return False
        case status:
            _write_whole(writer, int(status), b'{"error": {"message": "no", "type": "no", "code": "no"}}')
            await writer.drain()
            return True


async def _passes(seconds: float, gone: asyncio.Future[bytes]) -> bool:
    """Whether it has left meanwhile."""
    done, _ = await asyncio.wait({gone}, timeout=seconds)
    return bool(done)


def _write_whole(writer: asyncio.StreamWriter, status: int, body: bytes) -> None:
    writer.write(
        b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body)
    )


def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(b"%x\r\n%b\r\n" % (len(data), data))


def _event(choice: dict[str, Any] | None, usage: dict[str, int] | None = None) -> bytes:
    of = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": MODEL}
    of["choices"] = [choice] if choice is not None else []
    return b"data: " + json.dumps({**of, **({"usage": usage} if usage else {})}).encode() + b"\n\n"


def _whole(q: Question) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", "content": q.answer}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 9, "completion_tokens": q.pieces, "total_tokens": 9 + q.pieces}
    of = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": MODEL}
    return json.dumps({**of, "choices": [choice], "usage": usage}).encode()


def read_question(text: str) -> Question:
    id_, pieces, size, gap, failure, fails = text.split()
    return Question(id_, int(pieces[1:]), int(size[1:]), float(gap[1:]), failure, int(fails[1:]))


def plan(n: int, draw: random.Random) -> list[Question]:
    found = []
    for i in range(n):
        failure = draw.choice(FAILURES)
        size = draw.choice((12, 12, 40, 400, 4_000))
        fails = draw.choice((1, 2, 99)) if failure != "none" else 0
        gap = draw.choice((0.0, 0.001, 0.01, 0.03))
        found.append(Question(f"q{i}", draw.randrange(1, 60), size, gap, failure, fails))
    return found


class Clients:
    def __init__(self, port: int, seed: int) -> None:
        self.port = port
        self.draw = random.Random(seed)
        self.told: list[Told] = []

    async def ask_all(self, questions: list[Question]) -> None:
        room = asyncio.Semaphore(AT_ONCE)

        async def one(q: Question) -> None:
            async with room, asyncio.TaskGroup() as group:
                lasts = max(0.01, q.gap * q.pieces)
                for i in range(self.draw.choice((1, 2, 5, 12))):
                    form, way = self.draw.choice(FORMS), self.draw.choice(WAYS)
                    late = 0.0 if i == 0 else self.draw.choice((0.0, self.draw.uniform(0, 1.2 * lasts)))
                    leaves = self.draw.choice((0.0, self.draw.uniform(0, lasts), self.draw.expovariate(500)))
                    group.create_task(self._one(q, i, form, way, late, leaves))

        async with asyncio.TaskGroup() as group:
            for q in questions:
                group.create_task(one(q))

    async def _one(self, q: Question, i: int, form: str, way: str, late: float, leaves: float) -> None:
        await asyncio.sleep(late)
        told = Told(q, form, way, "gone")
        key = self.draw.choice(tuple(KEYS.values()))["key"]
        body: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": q.text}]}
        if form != "json":
            body["stream"] = True
        if form == "usage":
            body["stream_options"] = {"include_usage": True}
        data = json.dumps(body).encode()
        request = (
            f"POST /v1/chat/completions HTTP/1.{0 if form == 'old' else 1}\r\nHost: x\r\n"
            f"Authorization: Bearer {key}\r\nContent-Type: application/json\r\n"
            f"X-Request-Id: {q.id}-{i}\r\nContent-Length: {len(data)}\r\n\r\n"
        ).encode() + data
        sock = socket.socket()
        if way == "slow":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2_048)
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        began = time.monotonic()
        await loop.sock_connect(sock, ("127.0.0.1", self.port))
        await loop.sock_sendall(sock, request)
        if way in ("close", "reset"):
            await asyncio.sleep(leaves)
            (reset if way == "reset" else socket.socket.close)(sock)
            return
        if way == "half-close":
            await asyncio.sleep(leaves)
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_WR)
        got = b""
        cancels = loop.create_task(self._cancel(q, i, key, leaves)) if way == "cancel" else None
        try:
            async with asyncio.timeout(HANGS):
                while not _over(got):
                    piece = await loop.sock_recv(sock, 512 if way == "slow" else 65_536)
                    if not piece:
                        break
                    got += piece
                    if way == "slow":
                        await asyncio.sleep(0.002)
        except TimeoutError:
            told.end = "hung"
        except ConnectionError:
            pass
        sock.close()
        if cancels is not None:
            await cancels
        told.seconds = time.monotonic() - began
        _read(told, got)
        self.told.append(told)

    async def _cancel(self, q: Question, i: int, key: str, after: float) -> None:
        await asyncio.sleep(after)
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(
            f"POST /v1/requests/{q.id}-{i}/cancel HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n"
            "Connection: close\r\nContent-Length: 0\r\n\r\n".encode()
        )
        await reader.read()
        writer.close()


def _over(got: bytes) -> bool:
    head, mark, body = got.partition(b"\r\n\r\n")
    if not mark:
        return False
    if length := re.search(rb"content-length: *(\d+)", head, re.IGNORECASE):
        return len(body) >= int(length[1])
    return body.endswith(b"0\r\n\r\n")


def _read(told: Told, got: bytes) -> None:
    head, mark, body = got.partition(b"\r\n\r\n")
    if not mark:
        return
    told.status = int(head.split(b" ", 2)[1])
    kind = re.search(rb"x-forebay-cache: *(\w+)", head, re.IGNORECASE)
    told.kind = kind[1].decode() if kind else ""
    if b"chunked" in head.lower():
        body = b"".join(_chunks(body))
    if told.status != 200:
        told.end, told.why = "error", body.decode()
    elif told.form == "json":
        with contextlib.suppress(ValueError):
            told.text = json.loads(body)["choices"][0]["message"]["content"]
            told.end = "whole"
    else:
        events = [line[6:] for line in body.split(b"\n") if line.startswith(b"data: ")]
        for event in events:
            if event == b"[DONE]":
                told.end = "whole" if told.end != "error" else "both an error and [DONE]"
                continue
            try:
                found = json.loads(event)
            except ValueError:  # cut
                break
            if "error" in found:
                told.end, told.why = "error", event.decode()
            for choice in found.get("choices") or ():
                told.text += choice["delta"].get("content") or ""


def _chunks(body: bytes) -> Iterator[bytes]:
    while body:
        size, _, body = body.partition(b"\r\n")
        n = int(size or b"0", 16)
        if not n:
            return
        yield body[:n]
        body = body[n + 2 :]


async def _run(n: int, seed: int, *, say: bool) -> Result:
    engine = Engine()
    await engine.start()
    where = contextlib.ExitStack()
    path = where.enter_context(folder())
    config = {
        "listeners": [{"address": "127.0.0.1:0"}],
        "admin": "127.0.0.1:0",
        "state_dir": str(path / "state"),
        "engines": [
            {
                "name": name,
                "url": f"http://127.0.0.1:{engine.port}",
                "kind": "openai",
                "models": [MODEL],
                "concurrency": 8,
                "health_interval": 0.2,
            }
            for name in ("one", "two")
        ],
        "health": {"failures": 1_000, "error_share": 1.0, "rest_most": 0.001},
        "timeouts": {"first_byte": 1.5, "upstream_idle": 1.5},
        "retries": {"budget": 1.0},
        "callers": {"keys": [{"name": name, "organisation": "acme", **key} for name, key in KEYS.items()]},
        "admission": {"enabled": True, "ttft": dict.fromkeys(KEYS, 30.0), "wait": dict.fromkeys(KEYS, 20.0)},
        "cache": {
            "enabled": True,
            "ttl": 0.5,
            "stale": 0.5,
            "answer_bytes": 65_536,
            "disk_bytes": 0 if seed % 2 else 1 << 22,
        },
    }
    forebay = await asyncio.to_thread(Forebay, path, config)
    try:
        await asyncio.to_thread(eventually, lambda: forebay.metric('forebay_engine_healthy{engine="two"}'))
        clients = Clients(forebay.port, seed)
        questions = plan(n, random.Random(seed))
        for at in range(0, n, 100):
            await clients.ask_all(questions[at : at + 100])
            if say:
                print(f"  {min(n, at + 100):,} of {n:,}", file=sys.stderr, flush=True)
        watched = (
            "forebay_requests_live",
            "forebay_client_connections",
            "forebay_engine_in_flight",
            "forebay_queue_requests",
            "forebay_cache_flights",
        )

        def left() -> dict[str, float]:
            metrics = forebay.metrics()
            return {name: sum(v for k, v in metrics.items() if k.partition("{")[0] == name) for name in watched}

        with contextlib.suppress(AssertionError):  # what stays is in the result
            await asyncio.to_thread(eventually, lambda: not engine.open and not any(left().values()), 10)
        leaks = await asyncio.to_thread(left)
        metrics = await asyncio.to_thread(forebay.metrics)
        books = {k: v for k, v in metrics.items() if k.startswith(("forebay_requests_total", "forebay_cache_"))}
        result = Result(clients.told, engine.calls, engine.open, leaks, books)
        stopped = await asyncio.to_thread(forebay.stop)
        if stopped:
            result.problems.append(f"it ended with {stopped}")
        result.log = forebay.text
        bad = [line for line in result.log.splitlines() if "Traceback" in line or "failed inside" in line]
        result.problems += bad[:5]
    finally:
        await asyncio.to_thread(forebay.close)
        await engine.close()
        if os.environ.get("KEEP"):
            shutil.copytree(path, os.environ["KEEP"], dirs_exist_ok=True)
        where.close()
    return result


def main() -> int:
    n, seed = int(os.environ.get("N") or 2_000), int(os.environ.get("SEED") or 1)
    result = asyncio.run(_run(n, seed, say=True))
    print(f"{len(result.told):,} clients that stayed, of {n:,} questions, {result.calls.total():,} engine calls")
    for (end, kind), count in sorted(Counter((one.end, one.kind) for one in result.told).items()):
        print(f"  {end:<6} {kind or '-':<8} {count:>7,}")
    problems = result.judge()
    for problem in problems[:40]:
        print("MISSED:", problem)
    if problems and os.environ.get("LOG"):
        print(result.log[-4_000:])
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
