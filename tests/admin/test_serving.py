from __future__ import annotations

import asyncio
import socket
from email.utils import formatdate

import pytest
from starlette.types import Receive, Scope, Send

from forebay.admin import serving
from forebay.admin.serving import Server


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


@pytest.mark.parametrize("said", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: a\r\nX: "])
def test_a_connection_that_never_asks_is_closed(monkeypatch: pytest.MonkeyPatch, said: bytes) -> None:
    monkeypatch.setattr(serving, "IDLE", 0.3)
    monkeypatch.setattr(serving, "TICK", 0.1)

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


def test_the_date_is_the_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers between two ticks, for uvicorn renews its headers at ticks."""
    monkeypatch.setattr(serving, "TICK", 600.0)

    async def main() -> None:
        server = Server(app, socket.create_server(("127.0.0.1", 0)))
        async with asyncio.timeout(20), asyncio.TaskGroup() as group:
            group.create_task(server.run_until_stopped())
            await server.ready.wait()
            dates = []
            for now in (1_700_000_000.0, 1_700_000_003.0):
                monkeypatch.setattr(serving, "formatdate", lambda usegmt, now=now: formatdate(now, usegmt=usegmt))
                reader, writer = await asyncio.open_connection(*server._sock.getsockname())
                writer.write(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
                head = (await reader.read()).decode()
                dates += [line for line in head.splitlines() if line.lower().startswith("date: ")]
                writer.close()
                await writer.wait_closed()
            assert dates == ["date: Tue, 14 Nov 2023 22:13:20 GMT", "date: Tue, 14 Nov 2023 22:13:23 GMT"]
            server.stop()

    asyncio.run(main())
