"""The least a Python proxy can do on uvloop and httptools: no keys, no limits, no log. The overhead
table's reference.

python -m benchmarks.bare_proxy --port 9001 --upstream 127.0.0.1:9000
"""

from __future__ import annotations

import argparse
import asyncio
import socket
from typing import cast

import httptools  # type: ignore[import-not-found, unused-ignore]
import uvloop


class Upstream(asyncio.Protocol):
    """A pooled connection: forwards the answer's bytes as they come, and parses them only to find the end."""

    transport: asyncio.Transport

    def __init__(self, pool: list[Upstream]) -> None:
        self._pool = pool
        self._parser = httptools.HttpResponseParser(self)
        self.client: Client | None = None
        self._done = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._done = False
        self._parser.feed_data(data)
        client = self.client
        if client is None:
            self.transport.close()
            return
        client.transport.write(data)
        if self._done:
            self.client = None
            client.upstream = None
            self._pool.append(self)
            self._parser = httptools.HttpResponseParser(self)

    def on_message_complete(self) -> None:
        self._done = True

    def connection_lost(self, exc: Exception | None) -> None:
        if self in self._pool:
            self._pool.remove(self)
        if self.client is not None:
            self.client.transport.abort()


class Client(asyncio.Protocol):
    """A caller's connection: each whole request goes to a pooled upstream, its head rewritten."""

    transport: asyncio.Transport

    def __init__(self, pool: list[Upstream], address: tuple[str, int], tasks: asyncio.TaskGroup) -> None:
        self._pool = pool
        self._address = address
        self._tasks = tasks
        self._parser = httptools.HttpRequestParser(self)
        self.upstream: Upstream | None = None
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._body: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self._url = url
        self._headers = []
        self._body = []

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        body = b"".join(self._body)
        lines = [b"%b %b HTTP/1.1\r\nhost: upstream\r\n" % (self._parser.get_method(), self._url)]
        lines += [b"%b: %b\r\n" % h for h in self._headers if h[0] not in (b"host", b"connection", b"content-length")]
        request = b"".join(lines) + b"content-length: %d\r\n\r\n" % len(body) + body
        if self._pool:
            self._send(self._pool.pop(), request)
        else:
            self._tasks.create_task(self._connect(request))

    async def _connect(self, request: bytes) -> None:
        loop = asyncio.get_running_loop()
        _, upstream = await loop.create_connection(lambda: Upstream(self._pool), *self._address)
        self._send(upstream, request)

    def _send(self, upstream: Upstream, request: bytes) -> None:
        self.upstream = upstream
        upstream.client = self
        upstream.transport.write(request)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.upstream is not None:
            self.upstream.client = None
            self.upstream.transport.close()


async def _main(port: int, address: tuple[str, int]) -> None:
    pool: list[Upstream] = []
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", port))
    async with asyncio.TaskGroup() as tasks:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: Client(pool, address, tasks), sock=sock, backlog=4_096)
        await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description="The least a Python proxy can do.")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--upstream", required=True, help="host:port")
    args = parser.parse_args()
    host, _, port = args.upstream.partition(":")
    uvloop.run(_main(args.port, (host, int(port))))


if __name__ == "__main__":
    main()
