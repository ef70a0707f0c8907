"""A fast upstream with canned answers in vLLM's shapes, so that a gateway under measurement is what costs.

    python -m benchmarks.mock_upstream --port 9000 [--interval-ms 5] [--phases 1] [--events 100]

A ticker writes one event at a time to each running stream, every `interval-ms`, so that events reach the gateway one
by one as an engine's do; `phases` spreads the streams over the interval. A tick that comes late is skipped: two events
of a stream are never written together, but for the last tick's finish, usage and `[DONE]`.

A request may say `"max_tokens": N` (content events of its stream) and `"mock_fault": "error" | "busy" | "cut"` (500;
503; a stream that breaks off after half of its events). `GET /mock/stats` counts what was served.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import signal
import socket
from collections.abc import Callable
from typing import cast

import uvloop

MODEL = "mock"
_ID = "chatcmpl-mock-0123456789abcdef"
_CREATED = 1_795_955_821
_MAX_TOKENS = re.compile(rb'"max_(?:completion_)?tokens": ?(\d+)')
_FAULT = re.compile(rb'"mock_fault": ?"(\w+)"')
_STREAM = re.compile(rb'"stream": ?true')
_USAGE = re.compile(rb'"include_usage": ?true')
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)")


def _frame(data: bytes) -> bytes:
    """One chunk of chunked transfer coding."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def _event(**fields: object) -> bytes:
    body = {"id": _ID, "object": "chat.completion.chunk", "created": _CREATED, "model": MODEL, **fields}
    return _frame(b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n")


def _delta(delta: dict[str, str], finish: str | None = None) -> bytes:
    return _event(choices=[{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish, "token_ids": None}])


def _whole(status: str, body: bytes, kind: str = "application/json", extra: str = "") -> bytes:
    head = f"HTTP/1.1 {status}\r\nserver: uvicorn\r\ncontent-length: {len(body)}\r\ncontent-type: {kind}\r\n{extra}\r\n"
    return head.encode() + body


def _error(status: str, kind: str, message: str) -> bytes:
    error = {"message": message, "type": kind, "param": None, "code": int(status[:3])}
    return _whole(status, json.dumps({"error": error}, separators=(",", ":")).encode())


CONTENT = tuple(_delta({"content": f" word{i}"}) for i in range(128))
ROLE = _delta({"role": "assistant", "content": ""})
FINISH = _delta({"content": ""}, "stop")
LAST = _frame(b"data: [DONE]\n\n") + b"0\r\n\r\n"
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
UNARY = _whole(
    "200 OK",
    json.dumps(
        {
            "id": _ID,
            "object": "chat.completion",
            "created": _CREATED,
            "model": MODEL,
            "choices": [
                {
                    "index": 0,
                    "message": {
                        "role": "assistant",
                        "content": "A forebay is the pool just upstream of a power plant's turbines: it takes the "
                        "flood, holds what they can use soon, and spills the rest before it does harm.",
                        "refusal": None,
                        "tool_calls": [],
                        "reasoning": None,
                    },
                    "logprobs": None,
                    "finish_reason": "stop",
                    "stop_reason": None,
                }
            ],
            "usage": {"prompt_tokens": 41, "total_tokens": 77, "completion_tokens": 36, "prompt_tokens_details": None},
            "kv_transfer_params": None,
        },
        separators=(",", ":"),
    ).encode(),
)
MODELS = _whole(
    "200 OK",
    json.dumps(
        {
            "object": "list",
            "data": [{"id": MODEL, "object": "model", "created": _CREATED, "owned_by": "vllm", "max_model_len": 8192}],
        }
    ).encode(),
)
NOT_FOUND = _whole("404 Not Found", b'{"detail":"Not Found"}')
HEALTH = _whole("200 OK", b"", "text/plain")
BAD = _whole("400 Bad Request", b'{"detail":"malformed request"}', extra="connection: close\r\n")
FAULTS = {
    b"error": _error("500 Internal Server Error", "InternalServerError", "EngineCore encountered an issue."),
    b"busy": _error("503 Service Unavailable", "ServiceUnavailableError", "The queue is full."),
}


class Stream:
    """One running answer: what is still to be written to its connection."""

    __slots__ = ("_conn", "_left", "_of", "_usage", "cut_at", "gone", "paused")

    def __init__(self, conn: Connection, events: int, usage: bool, cut_at: int) -> None:
        self._conn = conn
        self._of = events
        self._left = events
        self._usage = usage
        self.cut_at = cut_at
        self.gone = False
        self.paused = False

    def step(self) -> bool:
        """Write the next event; False after the last."""
        if self.gone:
            return False
        if self.paused:
            return True
        server, transport = self._conn.server, self._conn.transport
        if self._left:
            i = self._of - self._left
            if i == self.cut_at:
                self._conn.cut()
                return False
            self._left -= 1
            server.events += 1
            transport.write(CONTENT[i & 127])
            return True
        if self._usage:
            n = self._of
            usage = {"prompt_tokens": 41, "total_tokens": 41 + n, "completion_tokens": n}
            transport.write(FINISH + _event(choices=[], usage=usage) + LAST)
        else:
            transport.write(FINISH + LAST)
        server.streams += 1
        self._conn.stream_done()
        return False


class Connection(asyncio.Protocol):
    """One connection: requests in, canned answers out. State: bytes not yet parsed, and the stream being written."""

    __slots__ = ("_buffer", "_stream", "server", "transport")
    transport: asyncio.Transport

    def __init__(self, server: MockUpstream) -> None:
        self.server = server
        self._buffer = b""
        self._stream: Stream | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.server.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.server.connections.discard(self)
        if self._stream is not None:
            self._stream.gone = True
            self.server.cancelled += 1

    def pause_writing(self) -> None:
        if self._stream is not None:
            self._stream.paused = True

    def resume_writing(self) -> None:
        if self._stream is not None:
            self._stream.paused = False

    def data_received(self, data: bytes) -> None:
        self._buffer = self._buffer + data if self._buffer else data
        if self._stream is None:
            self._advance()

    def stream_done(self) -> None:
        self._stream = None
        if self._buffer:
            self._advance()

    def cut(self) -> None:
        self._stream = None
        self.server.errors += 1
        self.transport.abort()

    def _advance(self) -> None:
        """Answer each whole request in the buffer, up to one that starts a stream."""
        while self._buffer and self._stream is None:
            data = self._buffer
            end = data.find(b"\r\n\r\n")
            if end < 0:
                return
            head = data[:end].lower()
            length = _LENGTH.search(head)
            if length is not None:
                stop = end + 4 + int(length[1])
                if len(data) < stop:
                    return
            elif b"\r\ntransfer-encoding: chunked" in head:
                stop = data.find(b"0\r\n\r\n", end + 4)  # JSON has no bare CRLF inside
                if stop < 0:
                    return
                stop += 5
            else:
                stop = end + 4
            self._buffer = data[stop:]
            if data.startswith(b"POST /v1/chat/completions "):
                self._chat(data[end + 4 : stop])
            else:
                self._other(data[: data.find(b"\r\n")].split(b" "))

    def _chat(self, body: bytes) -> None:
        server = self.server
        fault = _FAULT.search(body)
        if fault is not None and (answer := FAULTS.get(fault[1])) is not None:
            server.errors += 1
            self.transport.write(answer)
        elif _STREAM.search(body) is None:
            if server.ttft:
                self._stream = Stream(self, 0, False, -1)
                asyncio.get_running_loop().call_later(server.ttft, self._answer, self._stream)
            else:
                server.unary += 1
                self.transport.write(UNARY)
        else:
            asked = _MAX_TOKENS.search(body)
            events = int(asked[1]) if asked is not None else server.default_events
            cut = events // 2 if fault is not None else -1
            stream = self._stream = Stream(self, events, _USAGE.search(body) is not None, cut)
            if server.ttft:
                asyncio.get_running_loop().call_later(server.ttft, self._begin, stream)
            else:
                self._begin(stream)

    def _answer(self, waits: Stream) -> None:
        if not waits.gone:
            self.server.unary += 1
            self.transport.write(UNARY)
            self.stream_done()

    def _begin(self, stream: Stream) -> None:
        if not stream.gone:
            self.transport.write(STREAM_HEAD + ROLE)
            self.server.add(stream)

    def _other(self, line: list[bytes]) -> None:
        if len(line) != 3:
            self.transport.write(BAD)
            self.transport.close()
            return
        path = line[1].partition(b"?")[0]
        answer = self.server.routes.get(path)
        self.transport.write(NOT_FOUND if answer is None else answer())


class MockUpstream:
    """Counts, running streams by phase, and the ticker."""

    def __init__(self, *, interval: float = 0.005, phases: int = 1, events: int = 100, ttft: float = 0.0) -> None:
        self.default_events = events
        self.ttft = ttft
        self.unary = self.streams = self.events = self.cancelled = self.errors = 0
        self.connections: set[Connection] = set()
        self.routes: dict[bytes, Callable[[], bytes]] = {
            b"/health": lambda: HEALTH,
            b"/ping": lambda: HEALTH,
            b"/v1/models": lambda: MODELS,
            b"/metrics": self._metrics,
            b"/version": lambda: _whole("200 OK", b'{"version":"0.32.0"}'),
            b"/mock/stats": self._stats,
        }
        self._phases: list[list[Stream]] = [[] for _ in range(phases)]
        self._turn = 0
        self._added = 0
        self._step = interval / phases
        self._next = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def add(self, stream: Stream) -> None:
        self._phases[self._added % len(self._phases)].append(stream)
        self._added += 1

    def start(self) -> None:
        self._next = asyncio.get_running_loop().time()
        self._tick()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for connection in tuple(self.connections):
            connection.transport.abort()

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        self._next += self._step
        if self._next <= now:
            self._next = now + self._step
        self._timer = loop.call_at(self._next, self._tick)
        i = self._turn
        self._turn = (i + 1) % len(self._phases)
        streams = self._phases[i]
        if streams:
            self._phases[i] = []  # a stream that starts during the steps below belongs to the next tick
            self._phases[i] += [s for s in streams if s.step()]

    def counts(self) -> dict[str, int]:
        return {
            "unary": self.unary,
            "streams": self.streams,
            "events": self.events,
            "cancelled": self.cancelled,
            "errors": self.errors,
            "active": sum(len(p) for p in self._phases),
            "connections": len(self.connections),
        }

    def _stats(self) -> bytes:
        return _whole("200 OK", json.dumps(self.counts()).encode())

    def _metrics(self) -> bytes:
        labels = f'{{engine="0",model_name="{MODEL}"}}'
        n = sum(len(p) for p in self._phases)
        text = (
            "# TYPE vllm:num_requests_running gauge\n"
            f"vllm:num_requests_running{labels} {n}.0\n"
            "# TYPE vllm:num_requests_waiting gauge\n"
            f"vllm:num_requests_waiting{labels} 0.0\n"
            "# TYPE vllm:kv_cache_usage_perc gauge\n"
            f"vllm:kv_cache_usage_perc{labels} 0.0\n"
            "# TYPE vllm:generation_tokens_total counter\n"
            f"vllm:generation_tokens_total{labels} {self.events}.0\n"
        )
        return _whole("200 OK", text.encode(), "text/plain; version=1.0.0; charset=utf-8")


async def listen(server: MockUpstream, host: str, port: int) -> asyncio.Server:
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((host, port))
    server.start()
    loop = asyncio.get_running_loop()
    return await loop.create_server(lambda: Connection(server), sock=sock, backlog=16_384)


async def _main(args: argparse.Namespace) -> None:
    server = MockUpstream(
        interval=args.interval_ms / 1e3, phases=args.phases, events=args.events, ttft=args.ttft_ms / 1e3
    )
    listening = await listen(server, args.host, args.port)
    stop = asyncio.Event()
    for s in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(s, stop.set)
    await stop.wait()
    listening.close()
    server.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description="A fast upstream with canned answers in vLLM's shapes.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--interval-ms", type=float, default=5.0, help="between two events of a stream")
    parser.add_argument("--phases", type=int, default=1, help="parts of the interval over which streams are spread")
    parser.add_argument("--events", type=int, default=100, help="content events of a stream that says no max_tokens")
    parser.add_argument("--ttft-ms", type=float, default=0.0, help="until an answer begins")
    uvloop.run(_main(parser.parse_args()))


if __name__ == "__main__":
    main()
