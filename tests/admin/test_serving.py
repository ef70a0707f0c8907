from __future__ import annotations

import asyncio
import socket

import pytest
from starlette.types import Receive, Scope, Send

from forebay.admin import serving
from forebay.admin.serving import Server


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


@pytest.mark.parametrize("said", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: a\r\nX: "])
def test_a_connection_that_never_asks_is_closed(monkeypatch: pytest.MonkeyPatch, said: bytes) -> None:
    monkeypatch.setattr(serving, "IDLE", 0.5)

    async def main() -> None:
        server = Server(app, socket.create_server(("127.0.0.1", 0)))
        address = server._sock.getsockname()
        async with asyncio.timeout(20), asyncio.TaskGroup() as group:
            group.create_task(server.run_until_stopped())
            await server.ready.wait()
            reader, writer = await asyncio.open_connection(*address)
            writer.write(said)
            assert await reader.read() == b""
            writer.close()
            await writer.wait_closed()
            reader, writer = await asyncio.open_connection(*address)  # the others are served on
            writer.write(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            assert (await reader.read()).startswith(b"HTTP/1.1 204")
            writer.close()
            await writer.wait_closed()
            server.stop()

    asyncio.run(main())
