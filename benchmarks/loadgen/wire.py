"""A relay that notes when each stream's bytes pass, so that what a tool says can be held against what was on the wire.

    python -m benchmarks.loadgen.wire --port 9100 --to 9000 --out FILE

One line of JSON for each POST whose stream ended with `[DONE]`: `began`, `first` and `last` (of an event with text), in
seconds. Bytes pass unchanged, one connection to the server for each of a client's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
from pathlib import Path
from time import monotonic
from typing import IO, cast

import uvloop


class Client(asyncio.Protocol):
    """A client's side of a connection."""

    def __init__(self, port: int, out: IO[str]) -> None:
        self._port = port
        self._out = out
        self._waiting = b""
        self._began = self._first = self._last = 0.0
        self.up: asyncio.Transport | None = None
        self.down: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.down = cast(asyncio.Transport, transport)
        self._task = asyncio.get_running_loop().create_task(self._connect())

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            transport, _ = await loop.create_connection(lambda: Server(self), "127.0.0.1", self._port)
        except OSError:
            if self.down is not None:
                self.down.close()
            return
        self.up = transport
        if self._waiting:
            transport.write(self._waiting)
            self._waiting = b""

    def data_received(self, data: bytes) -> None:
        if data.startswith(b"POST "):
            self._began, self._first = monotonic(), 0.0
        if self.up is None:
            self._waiting += data
        else:
            self.up.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.up is not None:
            self.up.close()

    def from_server(self, data: bytes) -> None:
        now = monotonic()
        assert self.down is not None
        self.down.write(data)
        if b'"text"' in data:
            self._last = now
            self._first = self._first or now
        if b"[DONE]" in data and self._first:
            record = {"began": self._began, "first": self._first, "last": self._last}
            self._out.write(json.dumps(record) + "\n")
            self._out.flush()


class Server(asyncio.Protocol):
    """The server's side."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def data_received(self, data: bytes) -> None:
        self._client.from_server(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._client.down is not None:
            self._client.down.close()


async def _main(port: int, to: int, out: str) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for s in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(s, stop.set)
    with Path(out).open("a") as file:  # noqa: ASYNC230 - a line a request
        server = await loop.create_server(lambda: Client(to, file), "127.0.0.1", port)
        await stop.wait()
        server.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A relay that notes when each stream's bytes pass.")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--to", type=int, required=True)
    parser.add_argument("--out", required=True)
    given = parser.parse_args()
    uvloop.run(_main(given.port, given.to, given.out))
