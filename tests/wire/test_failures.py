"""What fails within a callback of the event loop or of llhttp is logged, harms its own request only, and leaves nobody
waiting: compiled code raises through C where Python would through frames."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from forebay.config.models import Limits, Timeouts
from forebay.errors import Refusal
from forebay.wire.head import Header
from forebay.wire.memo import AnswerMemo
from forebay.wire.message import Request
from forebay.wire.pool import Origin, Pool
from forebay.wire.reply import Reply
from forebay.wire.server import Handler, Server
from forebay.wire.tasks import Tasks
from forebay.wire.ticker import Ticker
from forebay.wire.upstream import Call, Failure, Tap

POST = b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi"


class Fault(Exception):
    """Of the handler's own."""


class Fails(Handler):
    """Fails where the path says."""

    def __init__(self) -> None:
        self.heads = 0
        self.failing_heads = False

    def on_head(self, request: Request) -> Refusal | None:
        self.heads += 1
        if request.path == b"/head" or self.failing_heads:
            raise Fault("head")
        return None

    def on_refused(self, request: Request | None, refusal: Refusal) -> bytes:
        return b""

    def on_request(self, request: Request, reply: Reply) -> None:
        if request.path == b"/request":
            raise Fault("request")
        if request.path == b"/begun":
            reply.start(200, b"")
            reply.write(b"some")
            raise Fault("begun")
        if request.path == b"/gone":
            reply.on_gone = self._gone
            reply.start(200, b"")
            return
        reply.send(200, b"", b"well")

    def _gone(self) -> None:
        raise Fault("gone")


def run(story: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(story, 20)

    uvloop.run(bounded())


@asynccontextmanager
async def served(folder: Path, handler: Handler) -> AsyncIterator[tuple[Server, Callable[[], Any]]]:
    ticker = Ticker(asyncio.get_running_loop())
    server = Server(handler, Limits(), Timeouts(), ticker)
    path = str(folder / "s")
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(path)
    listening.listen()
    await server.listen(listening)
    try:
        yield server, lambda: asyncio.open_unix_connection(path)
    finally:
        await server.close()


def faults(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged with the failure itself."""
    return [str(r.exc_info[1]) for r in caplog.records if r.exc_info and isinstance(r.exc_info[1], Fault)]


@pytest.mark.parametrize("where", ["head", "request"])
def test_a_handler_that_fails_is_a_500_and_the_next_client_is_served(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, where: str
) -> None:
    async def story() -> None:
        async with served(tmp_path, Fails()) as (_, connect):
            reader, writer = await connect()
            writer.write(POST % f"/{where}".encode())
            assert b" 500 " in await reader.readline()
            writer.close()
            reader, writer = await connect()
            writer.write(POST % b"/well")
            assert b" 200 " in await reader.readline()
            writer.close()

    run(story())
    assert faults(caplog) == [where]


def test_an_answer_whose_handler_fails_midway_is_cut_and_does_not_look_whole(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with served(tmp_path, Fails()) as (_, connect):
            reader, writer = await connect()
            writer.write(POST % b"/begun")
            said = await reader.read()
            assert said.endswith(b"4\r\nsome\r\n")
            writer.close()

    run(story())
    assert faults(caplog) == ["begun"]


def test_a_remembered_head_that_fails_is_logged_and_its_connection_closed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        handler = Fails()
        async with served(tmp_path, handler) as (server, connect):
            reader, writer = await connect()
            for _ in range(2):
                writer.write(POST % b"/well")
                assert b" 200 " in await reader.readuntil(b"well")
            assert handler.heads == 2
            handler.failing_heads = True
            writer.write(POST % b"/well")
            await reader.read()
            assert not server.connections
            writer.close()

    run(story())
    assert faults(caplog) == ["head"]


def test_a_connection_leaves_the_house_whatever_its_client_s_leaving_does(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with served(tmp_path, Fails()) as (server, _):
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(tmp_path / "s"))
                client.sendall(POST % b"/gone")
                client.setblocking(False)
                await asyncio.get_running_loop().sock_recv(client, 1)
            # closed with the rest unread: a reset, which no end of file precedes
            assert await server.wait_closed(10)

    run(story())
    assert faults(caplog) == ["gone"]


def test_a_sweep_that_fails_keeps_no_other_from_its_turn(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        ticker = Ticker(asyncio.get_running_loop())
        swept = asyncio.Event()

        def fails(now: float) -> None:
            raise Fault("sweep")

        ticker.add(fails)
        ticker.add(lambda now: swept.set())
        ticker.start()
        await swept.wait()
        ticker.stop()

    run(story())
    assert faults(caplog) == ["sweep"]


# --- engines ---------------------------------------------------------------------------------------------------------

WHOLE = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nwell"


class Sink:
    """Fails in one of its methods; `over` is set by any of the last ones that does not fail."""

    repeats = True
    heard_at = 0.0

    def __init__(self, where: str = "") -> None:
        self.call: Call | None = None
        self.where = where
        self.told: list[str] = []
        self.over = asyncio.Event()

    def _do(self, what: str) -> None:
        self.told.append(what)
        if what == self.where:
            raise Fault(what)

    def on_head(self, status: int, headers: list[Header], length: int | None) -> None:
        self._do("head")
        if self.call is not None:
            self.call.begin(self._tap())

    def _tap(self) -> Tap | None:
        return None

    def on_body(self, data: bytes) -> None:
        self._do("body")

    def on_end(self) -> None:
        self._do("end")
        self.over.set()

    def on_whole(self, memo: AnswerMemo, body: bytes) -> None:
        self._do("whole")
        self.over.set()

    def on_fail(self, failure: Failure, detail: str) -> None:
        self.told.append(failure.value)
        self.over.set()


@asynccontextmanager
async def engine() -> AsyncIterator[Pool]:
    """One that answers everything with WHOLE, and a pool to it."""

    async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while not reader.at_eof():
            try:
                await reader.readuntil(b"hi")
            except asyncio.IncompleteReadError:
                break
            writer.write(WHOLE)
        writer.close()

    listening = await asyncio.start_server(answers, "127.0.0.1", 0)
    tasks, ticker = Tasks(), Ticker(asyncio.get_running_loop())
    port = listening.sockets[0].getsockname()[1]
    pool = Pool(
        Origin("127.0.0.1", port), max_open=4, max_idle=4, timeouts=Timeouts(), ticker=ticker, spawn=tasks.spawn
    )
    try:
        yield pool
    finally:
        pool.close()
        await tasks.drain()
        listening.close()
        await listening.wait_closed()


async def ask(pool: Pool, sink: Sink) -> Sink:
    pool.request(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n", b"hi", sink)
    await sink.over.wait()
    return sink


@pytest.mark.parametrize(
    ("where", "told"),
    [
        ("head", ["head", "cut"]),
        ("body", ["head", "body", "cut"]),
        ("end", ["head", "body", "end", "cut"]),
        ("whole", ["whole", "cut"]),
    ],
)
def test_a_sink_that_fails_hears_that_its_answer_failed_and_the_next_is_served(
    caplog: pytest.LogCaptureFixture, where: str, told: list[str]
) -> None:
    async def story() -> None:
        async with engine() as pool:
            if where == "whole":  # of a head that is known
                assert (await ask(pool, Sink())).told == ["head", "body", "end"]
            sink = await ask(pool, Sink(where))
            assert sink.told == told
            assert sink.call is None
            assert (await ask(pool, Sink())).told[-1] in ("end", "whole")

    caplog.set_level(logging.ERROR)
    run(story())
    assert faults(caplog) == [where]
