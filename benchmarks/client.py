"""The client of the memory and soak benchmarks: requests over Forebay's own upstream pool, one sink each."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from urllib.parse import urlsplit

from benchmarks.common import BENCH_KEY
from forebay.config.models import Timeouts
from forebay.wire.head import Header
from forebay.wire.pool import Origin, Pool
from forebay.wire.sse import Framer, split
from forebay.wire.tasks import Tasks
from forebay.wire.ticker import Ticker
from forebay.wire.upstream import Call, Failure, WholeInParts

CHAT = "/v1/chat/completions"


class Answer(WholeInParts):
    """A `Sink` that remembers what the checks ask: status, content events, whether `[DONE]` came, how it ended."""

    __slots__ = ("_ended", "_framer", "body", "call", "done", "events", "failure", "heard_at", "on_content", "status")

    def __init__(self, ended: Callable[[Answer], None]) -> None:
        self._ended = ended
        self._framer: Framer | None = None
        self.call: Call | None = None
        self.heard_at = 0.0
        self.status = 0
        self.body = b""
        self.events = 0
        self.done = False
        self.failure: Failure | None = None
        self.on_content: Callable[[Answer], None] | None = None
        """Called after each content event."""

    def on_head(self, status: int, headers: list[Header], length: int | None) -> None:
        self.status = status
        if (b"content-type", b"text/event-stream") in [(k, v.split(b";")[0]) for k, v in headers]:
            self._framer = Framer()

    def on_body(self, data: bytes) -> None:
        if self._framer is None:
            self.body += data
            return
        for event in split(self._framer.feed(data)):
            if b'"content":" word' in event:
                self.events += 1
                if self.on_content is not None:
                    self.on_content(self)
            elif event == b"data: [DONE]\n\n":
                self.done = True
            elif b'"error"' in event:
                self.body += event

    def on_end(self) -> None:
        self._ended(self)

    def on_fail(self, failure: Failure, detail: str) -> None:
        self.failure = failure
        self._ended(self)


class Client:
    """A pool to one server, and how requests to it are written."""

    def __init__(self, pool: Pool, host: str) -> None:
        self.pool = pool
        self._host = host

    def post(self, body: bytes, answer: Answer, key: str = BENCH_KEY) -> None:
        head = (
            f"POST {CHAT} HTTP/1.1\r\nhost: {self._host}\r\nauthorization: Bearer {key}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        self.pool.request(head.encode(), body, answer)


@contextlib.asynccontextmanager
async def connect(url: str, connections: int) -> AsyncIterator[Client]:
    """A client that may hold `connections` open; its tasks and timers end with it."""
    parts = urlsplit(url)
    tasks, ticker = Tasks(), Ticker(asyncio.get_running_loop())
    pool = Pool(
        Origin(parts.hostname or "", parts.port or 80),
        max_open=connections,
        max_idle=connections,
        timeouts=Timeouts(connect=30, first_byte=120, stream_idle=120),
        ticker=ticker,
        spawn=tasks.spawn,
    )
    ticker.start()
    try:
        yield Client(pool, parts.netloc)
    finally:
        pool.close()
        ticker.stop()
        await tasks.drain()


def chat(model: str, **fields: object) -> bytes:
    """A chat completion body."""
    message = {"role": "user", "content": "Say in a few words what a forebay is."}
    return json.dumps({"model": model, "messages": [message], **fields}, separators=(",", ":")).encode()


def say(**fields: object) -> None:
    """One line of JSON to the process that started this one."""
    print(json.dumps(fields), flush=True)
