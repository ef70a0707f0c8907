"""An engine that is nothing but pages, each of which a test can change; on the loop of the test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from forebay.config.models import Config
from forebay.gateway.fleet import Fleet
from forebay.gateway.handles import Handle
from forebay.wire.tasks import Tasks
from forebay.wire.ticker import Ticker


class Pages:
    """`pages`: what a GET answers, the body of a 200 or a status and a body; else 404. `asked`: the paths so far.
    `heads`: the heads of these requests. `hook` is called with each path before its answer."""

    def __init__(self, pages: dict[str, bytes | tuple[int, bytes]]) -> None:
        self.pages = pages
        self.asked: list[str] = []
        self.heads: list[str] = []
        self.port = 0
        self.hook: Callable[[str], None] = lambda path: None
        self.serving: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.serving.add(task)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                path = head.split(" ", 2)[1]
                self.asked.append(path)
                self.heads.append(head)
                self.hook(path)
                found = self.pages.get(path, (404, b"{}"))
                status, body = found if isinstance(found, tuple) else (200, found)
                writer.write(b"HTTP/1.1 %d x\r\ncontent-length: %d\r\n\r\n" % (status, len(body)) + body)
                await writer.drain()
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):  # 3.11 logs a cancel as an error
            pass
        finally:
            self.serving.discard(task)
            writer.close()


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def engine(pages: Pages, **entry: Any) -> AsyncIterator[tuple[Handle, Clock]]:
    """The handle of a real fleet's one engine, whose own checks never come again after the first."""
    server = await asyncio.start_server(pages.serve, "127.0.0.1", 0)
    pages.port = server.sockets[0].getsockname()[1]
    tasks, ticker, clock = Tasks(), Ticker(asyncio.get_running_loop()), Clock()
    fleet = Fleet(tasks, ticker, clock)
    entry = {
        "name": "e",
        "url": f"http://127.0.0.1:{pages.port}",
        "health_interval": 3600,
        "unhealthy_after": 1,
        **entry,
    }
    fleet.configure(Config.model_validate({"engines": [entry]}))
    try:
        await fleet.first_look(20)
        yield fleet.handles["e"], clock
    finally:
        fleet.configure(Config.model_validate({"engines": []}))
        await tasks.drain()
        fleet.close()
        server.close()
        await server.wait_closed()
        await asyncio.gather(*pages.serving)
