"""uvicorn under a supervisor: sockets that are listening already, signals left alone, idle connections closed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Iterator
from email.utils import formatdate
from typing import Final

import uvicorn
from starlette.types import ASGIApp
from uvicorn.server import ServerState

CONNECTIONS: Final = 128
"""Connections a listener holds; the next ones get 503."""
IDLE: Final = 10.0
"""Seconds a connection may be open without a whole request head."""
TICK: Final = 5.0
"""Seconds between looks for idle connections."""
GRACE: Final = 2
"""Seconds that running answers have at the end."""

_log = logging.getLogger("forebay.admin")


class _State(ServerState):
    """uvicorn puts the headers of its last tick into an answer, and ticks are rare here: Date is made anew."""

    @property
    def default_headers(self) -> list[tuple[bytes, bytes]]:
        return [(b"date", formatdate(usegmt=True).encode())]

    @default_headers.setter
    def default_headers(self, value: list[tuple[bytes, bytes]]) -> None:
        """What a tick would keep."""


class Server(uvicorn.Server):
    """One listener. `ready` is set once it answers."""

    def __init__(self, app: ASGIApp, sock: socket.socket) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http="httptools",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=False,
                proxy_headers=False,
                limit_concurrency=CONNECTIONS,
                timeout_keep_alive=5,
                timeout_graceful_shutdown=GRACE,
            )
        )
        self.server_state = _State()
        self._sock = sock
        self.ready = asyncio.Event()
        self._quiet: dict[object, float] = {}
        self._stopped = asyncio.Event()

    async def run_until_stopped(self) -> None:
        """Returns after `stop`."""
        await self.serve(sockets=[self._sock])

    def stop(self) -> None:
        self.should_exit = True
        self._stopped.set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()

    async def main_loop(self) -> None:
        """uvicorn's own looks ten times a second; a listener that is asked little should cost little."""
        counter = 0
        while not self._stopped.is_set():
            await self.on_tick(counter)
            self._close_idle()
            counter += 1
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK):
                    await self._stopped.wait()

    def _close_idle(self) -> None:
        """uvicorn's own time-out begins with the first answer: a connection that asks nothing would stay for ever."""
        now = asyncio.get_running_loop().time()
        quiet: dict[object, float] = {}
        for connection in self.server_state.connections:
            cycle = getattr(connection, "cycle", None)
            if cycle is None or cycle.response_complete:
                quiet[connection] = since = self._quiet.get(connection, now)
                if now - since > IDLE:
                    connection.transport.close()
        self._quiet = quiet

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals belong to the process, not to one of its listeners."""
        yield
