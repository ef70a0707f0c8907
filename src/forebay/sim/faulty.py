"""The writing side of one answer, bent by a fault where there is one.

Some faults speak past HTTP, so this is the one place that reaches through a `Reply` to its connection.
"""

from __future__ import annotations

import asyncio
import gzip
import socket
import struct
import zlib
from collections.abc import Callable
from typing import Any, Final

from forebay.sim.answers import Sent
from forebay.sim.faults import Fault, Kind
from forebay.sim.script import Script
from forebay.wire.connection import Connection
from forebay.wire.reply import Reply

_GARBAGE: Final = b"\x16\x03\x01\x02\x00this is not HTTP\x00\xff\xfe\r\n\r\n"
_BLOCK: Final = 65_536
_SPLIT_GAP: Final = 0.002
"""Seconds between the two halves of a character, so that they are two reads at the other end."""


def reset(reply: Reply) -> None:
    """End the connection with a TCP reset; what was written and not yet sent is lost. `on_gone` is not called."""
    reply.on_gone = None
    connection = reply._connection
    if not isinstance(connection, Connection):
        return
    transport = connection._transport
    sock = transport.get_extra_info("socket") if transport is not None else None
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.abort()


def speak_raw(reply: Reply, data: bytes) -> None:
    """Bytes as they are in place of an answer, then the close."""
    if reply._connection is not None:
        reply._connection.write(data)
    reply.abort()


def speak_garbage(reply: Reply) -> None:
    speak_raw(reply, _GARBAGE)


_HTML: Final = b"<!DOCTYPE html><html><head><title>Welcome</title></head><body><h1>It works!</h1></body></html>\n"


def html_page(status: int) -> Sent:
    """As of a proxy in between, or of a wrong port."""
    return Sent(status, b"server: nginx\r\ncontent-type: text/html\r\n", _HTML)


def close_when_idle(reply: Reply) -> Callable[[], None]:
    """What closes the connection, once this answer has been sent; its head has promised to keep it."""
    connection, loop = reply._connection, asyncio.get_running_loop()

    def close() -> None:
        if isinstance(connection, Connection):
            loop.call_soon(connection.close_if_idle)

    return close


class HugeBody:
    """A body of `size` bytes, written as the client takes it. `done` is called when all is written."""

    def __init__(self, reply: Reply, size: int, done: Callable[[], None]) -> None:
        self._reply = reply
        self._left = size
        self._done = done
        reply.on_resume = self._more
        reply.start(500, b"server: uvicorn\r\ncontent-type: application/json\r\n", size)
        self._more()

    def _more(self) -> None:
        while self._left and self._reply.open and not self._reply.paused:
            size = min(_BLOCK, self._left)
            self._left -= size
            self._reply.write(b"e" * size)
        if not self._left:
            self._reply.end()
            self._done()


class Out:
    """What a flow writes to. Without a bending fault `write` is the reply's own."""

    __slots__ = ("_fault", "_kind", "_loop", "_pace", "_reply", "_zipper", "write")

    def __init__(self, reply: Reply, fault: Fault | None, loop: asyncio.AbstractEventLoop) -> None:
        self._reply = reply
        self._fault = fault
        self._kind = fault.kind if fault is not None else None
        self._loop = loop
        self._pace: _Pace | None = None
        self._zipper = zlib.compressobj(wbits=31) if self._kind is Kind.GZIP else None
        write: Callable[[bytes], None] = reply.write
        if self._kind is Kind.SLOW_BYTES and fault is not None:
            self._pace = _Pace(reply, loop, fault.arg / 1000, _bytes_of)
        elif self._kind is Kind.SPLIT_UTF8:
            self._pace = _Pace(reply, loop, _SPLIT_GAP, _inside_characters)
        if self._pace is not None:
            write = self._pace.write
        elif self._kind in (Kind.SSE_CR, Kind.SSE_CRLF):
            write = self._write_line_ends
        elif self._zipper is not None:
            write = self._write_zipped
        self.write: Callable[[bytes], None] = write

    def start(self, headers: bytes, length: int | None = None) -> None:
        if self._zipper is not None:
            headers += b"content-encoding: gzip\r\n"
        self._reply.start(200, headers, length)

    @property
    def paced(self) -> bool:
        """The answer is written more slowly than it is made."""
        return self._pace is not None

    def end(self, done: Callable[[], None] | None = None) -> None:
        """`done` is called when the last byte is written; a client that leaves before has not had the answer."""
        if self._pace is not None:
            self._pace.end(done)
            return
        if self._zipper is not None:
            self._reply.write(self._zipper.flush())
        self._reply.end()

    def whole(self, status: int, headers: bytes, body: bytes, done: Callable[[], None]) -> None:
        """An answer that is not a stream."""
        if self._pace is None:
            done()
        if self._zipper is not None:
            self._reply.send(status, headers + b"content-encoding: gzip\r\n", gzip.compress(body, mtime=0))
        elif self._pace is not None:
            self._reply.start(status, headers, len(body))
            self._pace.write(body)
            self._pace.end(done)
        elif self._kind in (Kind.SHORT_LENGTH, Kind.LONG_LENGTH):
            self._reply.start(status, headers, self.wrong_length(len(body)))
            self._reply.write(body)
            self.end_wrong_length()
        else:
            self._reply.send(status, headers, body)

    def wrong_length(self, true: int) -> int:
        by = int(self._fault.arg) if self._fault is not None else 0
        return max(0, true - by) if self._kind is Kind.SHORT_LENGTH else true + by

    def end_wrong_length(self) -> None:
        """Where more was promised the connection closes; where less, its bytes lie in the way of the next answer."""
        if self._kind is Kind.LONG_LENGTH:
            self._reply.abort()
        else:
            self._reply.end()

    def stop(self) -> None:
        """The client left or the answer was cut: nothing more is written."""
        if self._pace is not None:
            self._pace.stop()

    def _write_line_ends(self, data: bytes) -> None:
        self._reply.write(data.replace(b"\n", b"\r\n" if self._kind is Kind.SSE_CRLF else b"\r"))

    def _write_zipped(self, data: bytes) -> None:
        if self._zipper is not None:
            self._reply.write(self._zipper.compress(data) + self._zipper.flush(zlib.Z_SYNC_FLUSH))


def _bytes_of(data: bytes) -> list[bytes]:
    return [data[i : i + 1] for i in range(len(data))]


def _inside_characters(data: bytes) -> list[bytes]:
    """Cut after the first byte of every character that has several."""
    out = []
    start = 0
    for i, byte in enumerate(data):
        if byte >= 0xC0:
            out.append(data[start : i + 1])
            start = i + 1
    out.append(data[start:])
    return [piece for piece in out if piece]


class _Pace:
    """Pieces of an answer, one at a time. It holds at most the one answer."""

    def __init__(
        self, reply: Reply, loop: asyncio.AbstractEventLoop, gap: float, cut: Callable[[bytes], list[bytes]]
    ) -> None:
        self._reply = reply
        self._loop = loop
        self._gap = gap
        self._cut = cut
        self._pieces: list[bytes] = []
        self._at = 0
        self._ending = False
        self._done: Callable[[], None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def write(self, data: bytes) -> None:
        self._pieces.extend(self._cut(data))
        if self._timer is None:
            self._next()

    def end(self, done: Callable[[], None] | None = None) -> None:
        self._ending = True
        self._done = done
        if self._timer is None:
            self._next()

    def stop(self) -> None:
        self._pieces = []
        self._at = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _next(self) -> None:
        self._timer = None
        if not self._reply.open:
            return
        if self._at < len(self._pieces):
            self._reply.write(self._pieces[self._at])
            self._at += 1
            self._timer = self._loop.call_later(self._gap, self._next)
        elif self._ending:
            if self._done is not None:
                self._done()
            self._reply.end()
        else:
            self._pieces.clear()
            self._at = 0


def bent_tool_delta(kind: Kind | None, script: Script, n: int) -> dict[str, Any] | None:
    """The delta of token `n` in the shape of a fault; None: no chunk."""
    call = script.calls[0]
    last = n == script.length
    arguments = call.arguments[n - 2] if n > 1 else ""
    head = {"id": call.id, "type": "function", "index": 0, "function": {"name": call.name, "arguments": ""}}
    if kind is Kind.TOOL_WHOLE:
        if n == 1:
            return {"tool_calls": [{**head, "function": {"name": call.name, "arguments": "".join(call.arguments)}}]}
        return {} if last else None
    if kind is Kind.TOOL_NO_ID and n == 1:
        return {"tool_calls": [{"index": 0, "function": {"name": call.name, "arguments": ""}}]}
    if n == 1:
        return {"tool_calls": [head]}
    if kind is Kind.TOOL_EMPTY:
        arguments = ""
    delta: dict[str, Any] = {"tool_calls": [{"index": 0, "function": {"arguments": arguments}}]}
    if kind is Kind.TOOL_FINISH and last:
        delta = {"content": "Done.", **delta}
    return delta
