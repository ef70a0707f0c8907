"""Many clients at once before a gateway with admission, and an engine's metrics as they should not be."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from e2e.client import new_id
from e2e.engine import RawEngine
from e2e.gateway import Gateway
from engine_process import EngineProcess
from waiting import eventually

MODEL = "forebay-sim"
KEYS = {cls: f"e2e-{cls}-0123456789abcdef" for cls in ("vip", "normal", "low")}
CALLERS = {"keys": [{"name": cls, "key": key, "class": cls} for cls, key in KEYS.items()]}


@dataclass
class Told:
    """One request and what came of it; times in seconds of time.monotonic()."""

    id: str
    cls: str
    sent: float = 0.0
    head: float = 0.0
    first: float = 0.0
    """When the first content of a stream came."""
    end: float = 0.0
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def ok(self) -> bool:
        return self.status == 200 and (b"data: [DONE]" in self.body or self.body.endswith(b"}"))

    @property
    def reason(self) -> str:
        return self.headers.get("x-forebay-reason", "")

    @property
    def retry_after(self) -> int:
        return int(self.headers["retry-after"])

    @property
    def ttft(self) -> float:
        return self.first - self.sent


def prompt(words: int, about: str = "") -> list[dict[str, str]]:
    return [{"role": "user", "content": f"{about} " + "word " * words}]


class Crowd:
    """Clients of one gateway, each on a connection of its own."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway

    async def ask(
        self,
        cls: str = "normal",
        *,
        words: int = 20,
        tokens: int | None = 5,
        path: str = "/v1/chat/completions",
        leave_at: asyncio.Event | None = None,
        named: str = "",
        **more: Any,
    ) -> Told:
        """`leave_at`: closes the connection when that is set."""
        told = Told(named or new_id(cls), cls)
        body = {"model": MODEL, "stream": True, "max_tokens": tokens, "messages": prompt(words, told.id), **more}
        data = json.dumps({k: v for k, v in body.items() if v is not None}).encode()
        told.sent = time.monotonic()
        reader, writer = await asyncio.open_connection(*self.gateway.where, limit=1 << 22)
        try:
            writer.write(
                f"POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEYS[cls]}\r\nx-request-id: {told.id}\r\n"
                f"content-type: application/json\r\ncontent-length: {len(data)}\r\nconnection: close\r\n\r\n".encode()
                + data
            )
            reading = asyncio.ensure_future(self._read(reader, told))
            if leave_at is None:
                await reading
            else:
                await leave_at.wait()
                reading.cancel()
                writer.transport.abort()
        finally:
            writer.close()
        told.end = time.monotonic()
        return told

    async def _read(self, reader: asyncio.StreamReader, told: Told) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").splitlines()
        told.head = time.monotonic()
        told.status = int(head[0].split()[1])
        told.headers = {n.lower(): v.strip() for n, _, v in (line.partition(":") for line in head[1:] if line)}
        chunked = told.headers.get("transfer-encoding") == "chunked"
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionResetError):
            if not chunked:
                told.body = await reader.readexactly(int(told.headers["content-length"]))
            while chunked and (size := int(await reader.readuntil(b"\r\n") or b"0", 16)):
                told.body += (await reader.readexactly(size + 2))[:-2]
                if not told.first and re.search(rb'"(content|text)":"[^"]', told.body):
                    told.first = time.monotonic()

    async def until(self, look: Callable[[], Any], within: float = 60.0) -> Any:
        """What `look`, which may block, returns once it is true."""
        deadline = time.monotonic() + within
        while not (found := await asyncio.to_thread(look)):
            assert time.monotonic() < deadline, f"never: {found!r}"
            await asyncio.sleep(0.005)
        return found

    async def waiting(self, n: int, **labels: str) -> None:
        await self.until(lambda: self.gateway.metric("forebay_queue_requests", **labels) == n)

    async def in_turn(self, asks: Iterable[Callable[[], Awaitable[Told]]]) -> list[asyncio.Task[Told]]:
        """Starts each once the one before it waits for admission."""
        tasks = []
        already = int(self.gateway.metric("forebay_queue_requests"))
        for i, ask in enumerate(asks, 1):
            tasks.append(asyncio.ensure_future(ask()))
            await self.waiting(already + i)
        return tasks


class Liar:
    """Stands before an engine and passes everything on but its metrics, of which it makes what it is told to.

    `page`: what is answered to GET /metrics instead of the engine's; None: the truth; "": never anything; an int: that
    status. One request a connection.
    """

    def __init__(self, engine: EngineProcess) -> None:
        self.engine = engine
        self.page: str | int | None = None
        self.looks = 0
        self._loop = asyncio.new_event_loop()
        self._server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1 << 22))
        self.port: int = self._server.sockets[0].getsockname()[1]
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def freeze(self) -> None:
        self.page = self.engine.ask("GET", "/metrics").body.decode()

    def absurd(self, number: str) -> None:
        """Every number of the page is this one."""
        page = self.engine.ask("GET", "/metrics").body.decode()
        self.page = re.sub(r"(?m)^(vllm:[^#\n]*) [^ \n]+$", rf"\1 {number}", page)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await self._answer(reader, writer)
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"GET /metrics "):
            self.looks += 1
            if self.page == "":
                await reader.read()
                return
            if self.page is not None:
                status, page = (self.page, "") if isinstance(self.page, int) else (200, self.page)
                writer.write(
                    f"HTTP/1.1 {status} X\r\ncontent-type: text/plain\r\ncontent-length: {len(page.encode())}\r\n"
                    f"connection: close\r\n\r\n{page}".encode()
                )
                await writer.drain()
                return
        from_engine, to_engine = await asyncio.open_connection("127.0.0.1", self.engine.port)
        to_engine.write(head.replace(b"\r\n", b"\r\nconnection: close\r\n", 1))
        both = [asyncio.ensure_future(_pump(reader, to_engine)), asyncio.ensure_future(_pump(from_engine, writer))]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in both:
                task.cancel()
            to_engine.close()

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(5)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        self._server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()


# --- a gateway and its engines ----------------------------------------------------------------------------------------

PATIENT = {"vip": 30.0, "normal": 30.0, "low": 30.0}


@contextlib.contextmanager
def house(
    *engines: EngineProcess | Liar | RawEngine,
    admission: dict[str, Any] | None = None,
    of_each: dict[str, Any] | None = None,
    **more: Any,
) -> Iterator[Gateway]:
    made = Gateway(
        {
            "listeners": [{"address": "127.0.0.1:0"}],
            "engines": [
                {"name": f"e{i}", "url": f"http://127.0.0.1:{e.port}", "health_interval": 0.2, **(of_each or {})}
                for i, e in enumerate(engines)
            ],
            "callers": CALLERS,
            "retries": {"budget": 1.0},
            "admission": {"enabled": True, "report_interval": 0.05, **(admission or {})},
            **more,
        }
    )
    try:
        eventually(lambda: made.admin("/ready")[0] == 200)
        eventually(lambda: made.metric("forebay_engine_healthy") == len(engines))
        yield made
        nothing_is_left(made)
    finally:
        made.stop()


@contextlib.contextmanager
def running(*options: str) -> Iterator[EngineProcess]:
    engine = EngineProcess(list(options))
    engine.start()
    try:
        yield engine
    finally:
        engine.stop()


def is_zero(gateway: Gateway, name: str) -> bool:
    return gateway.metric(name) == 0


def nothing_is_left(gateway: Gateway) -> None:
    """Whoever has ended holds nothing: no place, no KV, no prefill."""
    for name in ("requests_live", "queue_requests", "queue_tokens", "engine_in_flight", "engine_prefill_ahead"):
        eventually(partial(is_zero, gateway, f"forebay_{name}"))
    eventually(lambda: gateway.metric("forebay_engine_kv_predicted") < 0.02)


def hup(gateway: Gateway, admission: dict[str, Any], said: str = "configuration reloaded", **more: Any) -> str:
    config = {**gateway.config, **more, "admission": {**gateway.config["admission"], **admission}}
    gateway.file.write_text(json.dumps(config))
    before = len(gateway.log.read_text())
    gateway.process.send_signal(signal.SIGHUP)
    return eventually(lambda: text if said in (text := gateway.log.read_text()[before:]) else "")


async def wave(crowd: Crowd, n: int, *, cls: str = "normal", words: int = 20, tokens: int = 20) -> list[Told]:
    return await asyncio.gather(*(crowd.ask(cls, words=words, tokens=tokens) for _ in range(n)))


def ends(told: list[Told]) -> Counter[tuple[int, str]]:
    return Counter((t.status, t.reason) if not t.ok else (200, "") for t in told)


def seen(engine: EngineProcess, told: Told) -> bool:
    return engine.record(told.id) is not None
