"""An engine that keeps exact books of what it answered, and clients that come at their own pace, one request each."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import time
from dataclasses import dataclass, field

MODEL = "counted"
_STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


@dataclass(slots=True)
class Call:
    """One call of the engine; times in monotonic seconds, `ended` 0 while it is under way."""

    id: str
    prompt: int
    completion: int
    began: float
    ended: float = 0.0
    how: str = ""
    """whole; failed (500, before anything); cut (the gateway went away)"""


@dataclass
class Engine:
    """Its answers are drawn: how long they are, how long they take, one of fifty an error. Half of a stream's events
    hold two tokens."""

    seed: int
    pace: float = 1.0
    """What its times are multiplied by."""
    calls: dict[str, list[Call]] = field(default_factory=dict)
    port: int = 0

    async def start(self) -> None:
        self._rng = random.Random(self.seed)
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=512)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError), contextlib.closing(writer):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                line, *rest = head.decode("latin-1").split("\r\n")
                fields = {n.lower(): v.strip() for n, _, v in (x.partition(":") for x in rest)}
                body = await reader.readexactly(int(fields.get("content-length", "0")))
                if line.startswith("GET"):
                    models = json.dumps({"object": "list", "data": [{"id": MODEL, "object": "model"}]}).encode()
                    writer.write(_whole(200, models))
                else:
                    await self._answer(fields["x-request-id"], json.loads(body), writer)
                await writer.drain()

    async def _answer(self, id_: str, body: dict[str, object], writer: asyncio.StreamWriter) -> None:
        draw = self._rng
        sizes = [draw.choice((1, 2)) for _ in range(draw.randint(2, 30))]
        call = Call(id_, draw.randint(5, 400), sum(sizes), time.monotonic())
        self.calls.setdefault(id_, []).append(call)
        fails = draw.random() < 0.02
        think, gap = draw.uniform(0.0, 0.1) * self.pace, draw.uniform(0.002, 0.03) * self.pace
        try:
            await asyncio.sleep(think)
            if fails:
                call.how = "failed"
                writer.write(_whole(500, b'{"error":{"message":"the engine broke","type":"server_error"}}'))
            elif body.get("stream"):
                writer.write(_STREAM_HEAD)
                for n in sizes:
                    writer.write(_event({"choices": [{"index": 0, "delta": {"content": " word" * n}}]}))
                    await writer.drain()
                    await asyncio.sleep(gap)
                writer.write(_event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}))
                writer.write(
                    _event({"choices": [], "usage": _usage(call)}) + _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"
                )
            else:
                await asyncio.sleep(gap * len(sizes))
                message = {"role": "assistant", "content": " word" * call.completion}
                choice = {"index": 0, "message": message, "finish_reason": "stop"}
                answer = {"id": "c", "object": "chat.completion", "model": MODEL, "choices": [choice]}
                writer.write(_whole(200, json.dumps({**answer, "usage": _usage(call)}).encode()))
            await writer.drain()
            call.how = call.how or "whole"
        except ConnectionError:
            call.how = "cut"
            raise
        finally:
            call.how = call.how or "cut"
            call.ended = time.monotonic()


def _usage(call: Call) -> dict[str, int]:
    total = call.prompt + call.completion
    return {"prompt_tokens": call.prompt, "completion_tokens": call.completion, "total_tokens": total}


def _whole(status: int, body: bytes) -> bytes:
    return b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (
        status,
        len(body),
        body,
    )


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _event(value: dict[str, object]) -> bytes:
    whole = {"id": "c", "object": "chat.completion.chunk", "model": MODEL, **value}
    return _chunk(b"data: " + json.dumps(whole).encode() + b"\n\n")


@dataclass(slots=True)
class Told:
    """What a client was told."""

    id: str
    sent: float
    end: float = 0.0
    status: int = 0
    """0: no answer came; -1: nobody listened."""
    content: bool = False
    """Something of an answer came."""
    whole: bool = False
    gave_up: bool = False
    """It left after a minute."""


class Clients:
    """So many requests a second whatever becomes of them (Poisson), with one key of several each."""

    def __init__(self, port: int, keys: list[str], rate: float, seed: int, stem: str) -> None:
        self._port, self._keys, self._rate, self._stem = port, keys, rate, stem
        self._rng = random.Random(seed)
        self._numbers = itertools.count(1)
        self._running: set[asyncio.Task[None]] = set()
        self.told: list[Told] = []

    async def run(self, until: asyncio.Event) -> None:
        """Come until `until`, and wait for the last answers."""
        due = time.monotonic()
        while not until.is_set():
            due += self._rng.expovariate(self._rate)
            await asyncio.sleep(due - time.monotonic())
            task = asyncio.create_task(self._one())
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        if self._running:
            await asyncio.wait(self._running)

    async def _one(self) -> None:
        told = Told(f"{self._stem}-{next(self._numbers)}", time.monotonic())
        self.told.append(told)
        stream = self._rng.random() < 0.6
        text = "word " * self._rng.randint(1, 60)
        body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 100, "stream": stream}
        data = json.dumps(body).encode()
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {self._rng.choice(self._keys)}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\nX-Request-Id: {told.id}\r\n"
            "Connection: close\r\n\r\n"
        )
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        except ConnectionError:
            told.status = -1
            return
        answer = b""
        with contextlib.closing(writer), contextlib.suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(60) as patience:
                writer.write(head.encode() + data)
                while got := await reader.read(65_536):
                    answer += got
                    if not told.status and b"\r\n\r\n" in answer:
                        told.status = int(answer.split(b" ", 2)[1])
                    told.content = told.status == 200 and bool(answer.partition(b"\r\n\r\n")[2])
        ended = b"data: [DONE]" if stream else b'"usage"'
        told.whole = told.status == 200 and ended in answer
        told.gave_up = patience.expired()
        told.end = time.monotonic()
