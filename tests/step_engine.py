"""An engine whose steps take a known time: continuous batching with chunked prefill behind /v1/completions, in real
time, scheduled when the step before has ended."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from forebay.hardware.steptime import Chunk, StepTime

HEAD = b"HTTP/1.1 %b\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n"
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
SPIN = 0.002
"""Seconds before its end from which on a step is waited for by looking at the clock: timers count milliseconds."""


@dataclass(eq=False)
class Sequence:
    writer: asyncio.StreamWriter
    prompt: int
    wanted: int
    done: int = 0
    generated: int = 0

    def tell(self, event: dict[str, Any] | bytes) -> None:
        data = event if isinstance(event, bytes) else json.dumps(event).encode()
        line = b"data: " + data + b"\n\n"
        self.writer.write(b"%x\r\n%b\r\n" % (len(line), line))


@dataclass
class StepEngine:
    """`fault`: an HTTP status that every request gets. `usage`: whether streams report it."""

    times: StepTime
    max_num_seqs: int = 4
    budget: int = 256
    metrics: str = ""
    fault: int = 0
    usage: bool = True
    chat_only: bool = False
    waiting: list[Sequence] = field(default_factory=list)
    running: list[Sequence] = field(default_factory=list)
    steps: int = 0
    paths: set[str] = field(default_factory=set)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                path = head.split(b" ", 2)[1].decode()
                length = [x for x in head.lower().split(b"\r\n") if x.startswith(b"content-length:")]
                body = await reader.readexactly(int(length[0].split(b":")[1])) if length else b""
                self.paths.add(path)
                self.answer(path, body, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            return
        finally:
            writer.close()  # also where the test's loop ends first

    def answer(self, path: str, body: bytes, writer: asyncio.StreamWriter) -> None:
        if path == "/v1/models":
            self.whole(writer, b"200 OK", json.dumps({"data": [{"id": "steps", "max_model_len": 1_000}]}))
        elif path == "/metrics" and self.metrics:
            self.whole(writer, b"200 OK", self.metrics)
        elif path == ("/v1/chat/completions" if self.chat_only else "/v1/completions"):
            if self.fault:
                self.whole(writer, b"%d No" % self.fault, '{"error":{"code":"no_room"}}')
                return
            asked = json.loads(body)
            text = asked["messages"][0]["content"] if self.chat_only else asked["prompt"]
            writer.write(STREAM)
            self.waiting.append(Sequence(writer, len(text.split()) + 3, asked["max_tokens"]))
        else:
            self.whole(writer, b"404 Not Found", "{}")

    def whole(self, writer: asyncio.StreamWriter, status: bytes, text: str) -> None:
        writer.write(HEAD % (status, b"application/json", len(text)) + text.encode())

    async def run(self) -> None:
        while True:
            while self.waiting and len(self.running) < self.max_num_seqs:
                self.running.append(self.waiting.pop(0))
            if not self.running:
                await asyncio.sleep(0.0005)
                continue
            await self.step()

    async def step(self) -> None:
        decoding = [s for s in self.running if s.generated]
        budget = self.budget - len(decoding)
        chunks, ends = [], []
        for s in self.running:
            if s.generated or budget <= 0:
                continue
            size = min(budget, s.prompt - s.done)
            chunks.append(Chunk(size, s.done, s.done + size == s.prompt))
            s.done += size
            budget -= size
            if s.done == s.prompt:
                ends.append(s)
        context = sum(s.prompt + s.generated for s in decoding)
        n = len(decoding)
        took = self.times.mixed(chunks, n, context, 0) if chunks else self.times.decode(n, context, 0)
        until = monotonic() + took
        await asyncio.sleep(max(0.0, took - SPIN))
        while monotonic() < until:
            pass
        self.steps += 1
        for s in decoding + ends:
            s.generated += 1
            word: dict[str, Any] = {"delta": {"content": "a"}} if self.chat_only else {"text": "a"}
            last = s.generated >= s.wanted
            s.tell({"choices": [{"index": 0, **word, "finish_reason": "length" if last else None}]})
            if last:
                self.running.remove(s)
                if self.usage:
                    s.tell({"choices": [], "usage": {"prompt_tokens": s.prompt, "completion_tokens": s.generated}})
                s.tell(b"[DONE]")
                s.writer.write(b"0\r\n\r\n")


@contextlib.asynccontextmanager
async def serving(engine: StepEngine) -> AsyncIterator[str]:
    """Its URL."""
    server = await asyncio.start_server(engine.serve, "127.0.0.1", 0)
    running = asyncio.ensure_future(engine.run())
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        running.cancel()
        server.close()
        with contextlib.suppress(asyncio.CancelledError):
            await running
