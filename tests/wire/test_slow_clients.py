"""A client that never takes the end of its answer does not keep its connection for ever.

On a Unix socket, where no TCP time-out of the kernel's helps, and with so few bytes unsent that the transport does not
say it is full.
"""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest
import uvloop

from forebay.config.models import Limits, Timeouts
from forebay.errors import Refusal
from forebay.wire.message import Request
from forebay.wire.reply import Reply
from forebay.wire.server import Handler, Server
from forebay.wire.ticker import Ticker

LIMITS = Limits(write_buffer_bytes=1 << 20)


class Answers(Handler):
    """A whole answer to GET /whole, one that is cut to anything else."""

    def on_head(self, request: Request) -> Refusal | None:
        return None

    def on_refused(self, request: Request | None, refusal: Refusal) -> bytes:
        return b""

    def on_request(self, request: Request, reply: Reply) -> None:
        body = b"x" * (LIMITS.write_buffer_bytes // 2)
        if request.path == b"/whole":
            reply.send(200, b"", body)
        else:
            reply.start(200, b"")
            reply.write(body)
            reply.abort()


@pytest.mark.parametrize("drain", [False, True], ids=["idle", "drain"])
@pytest.mark.parametrize("path", ["/whole", "/cut"])
def test_a_client_that_takes_nothing_is_given_up(tmp_path: Path, path: str, drain: bool) -> None:
    async def story() -> None:
        ticker = Ticker(asyncio.get_running_loop())
        ticker.start()
        idle = 60.0 if drain else 0.1
        server = Server(Answers(), LIMITS, Timeouts(idle=idle, write=0.1), ticker)
        with socket.socket(socket.AF_UNIX) as listening, socket.socket(socket.AF_UNIX) as client:
            listening.bind(str(tmp_path / "s"))
            listening.listen()
            await server.listen(listening)
            client.connect(str(tmp_path / "s"))
            client.sendall(b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n" % path.encode())
            client.setblocking(False)
            await asyncio.get_running_loop().sock_recv(client, 1)
            (connection,) = server.connections
            assert not connection.blocked
            if drain:
                server.start_drain()
            gone = await server.wait_closed(5)
            state = repr(connection)
            await server.close()
            ticker.stop()
            assert gone, state

    uvloop.run(story())
