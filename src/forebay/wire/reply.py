"""The writing side of one answer."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final

from mypy_extensions import mypyc_attr

from forebay.errors import Refusal
from forebay.wire.head import STATUS_LINES, block, status_line
from forebay.wire.message import Request

HELD: Final = 65_536
"""Bytes."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Outlet(asyncio.Protocol, ABC):
    """What a reply needs of its connection. A class and no protocol of its own, which compiled code would look each
    method up in."""

    __slots__ = ()

    @abstractmethod
    def is_blocked(self) -> bool:
        """Whether it has no room."""

    @abstractmethod
    def write(self, data: bytes) -> None: ...

    @abstractmethod
    def ended(self, reply: Reply) -> None: ...

    @abstractmethod
    def cut(self) -> None: ...

    @abstractmethod
    def date(self) -> bytes: ...

    @abstractmethod
    def raw_writer(self) -> Callable[[bytes], None] | None: ...


class Log:
    """What a client is sent in chunks, as they are framed, kept beside: at most `most` bytes, or nothing of it."""

    __slots__ = ("_most", "pieces", "size", "whole")

    def __init__(self, most: int) -> None:
        self._most = most
        self.pieces: list[bytes] = []
        """One chunk or several each."""
        self.size = 0
        """Bytes."""
        self.whole = True

    def add(self, piece: bytes) -> None:
        self.size += len(piece)
        if self.size <= self._most:
            self.pieces.append(piece)
        elif self.whole:
            self.whole = False
            self.pieces.clear()

    def __repr__(self) -> str:
        return f"<Log {self.size:,} B{'' if self.whole else ', not whole'}>"


class Reply:
    """The writing side of one answer. After the client has left every method does nothing.

    `on_gone` is called once if the client leaves before `end`; `on_pause` and `on_resume` when its buffer is full and
    when it has room again. `extra` is a header block added to the head.

    `log`, where there is one, has what is written of a body in chunks; who writes past `write` adds to it.

    Between `hold` and `release` nothing of it goes out, and at most `HELD` bytes wait before it says that it is full.
    """

    __slots__ = (
        "_chunked",
        "_connection",
        "_held",
        "_last",
        "extra",
        "log",
        "on_gone",
        "on_pause",
        "on_resume",
        "request",
        "sent",
        "started",
    )

    def __init__(self, connection: Outlet | None, request: Request) -> None:
        self._connection = connection
        self.request = request
        self._chunked = False
        self._held: bytes | None = None
        self._last: Callable[[Outlet], None] | None = None  # what is owed to the connection after what is held
        self.started = False
        self.sent = 0
        self.extra = b""
        self.log: Log | None = None
        self.on_gone: Callable[[], None] | None = None
        self.on_pause: Callable[[], None] | None = None
        self.on_resume: Callable[[], None] | None = None

    @property
    def open(self) -> bool:
        return self._connection is not None and self._last is None

    @property
    def paused(self) -> bool:
        held = self._held
        return self._connection is not None and (
            self._connection.is_blocked() or (held is not None and len(held) > HELD)
        )

    @property
    def holds(self) -> int:
        """Bytes that are held; -1: nothing is."""
        return len(self._held) if self._held is not None else -1

    def hold(self) -> None:
        """Keep what is written from now on."""
        self._held = b""

    def release(self) -> None:
        """Let go what was held."""
        held, self._held = self._held, None
        last, self._last = self._last, None
        connection = self._connection
        if held is None or connection is None:
            return
        if held:
            connection.write(held)
        if last is not None:
            self._connection = None
            last(connection)
        elif len(held) > HELD and not connection.is_blocked() and self.on_resume is not None:
            self.on_resume()

    def _put(self, connection: Outlet, data: bytes) -> None:
        held = self._held
        if held is None:
            connection.write(data)
            return
        was_full = len(held) > HELD
        held = self._held = held + data if held else data
        if len(held) > HELD and not was_full and not connection.is_blocked() and self.on_pause is not None:
            self.on_pause()

    def _close(self, connection: Outlet, last: Callable[[Outlet], None]) -> None:
        """Nothing more is written."""
        if self._held is not None:
            self._last = last
            return
        self._connection = None
        last(connection)

    def _ended(self, connection: Outlet) -> None:
        connection.ended(self)

    def _cut(self, connection: Outlet) -> None:
        connection.cut()

    def send(self, status: int, headers: bytes, body: bytes) -> None:
        """A whole answer; `headers` is a block without Content-Length."""
        connection = self._connection
        if connection is None or self._last is not None:
            return
        self.started = True
        request = self.request
        data = b"%bcontent-length: %d\r\n%b%b%b%b\r\n%b" % (
            STATUS_LINES.get(status) or status_line(status),
            len(body),
            headers,
            self.extra,
            connection.date(),
            b"" if request.keep_alive else b"connection: close\r\n",
            body if request.method != b"HEAD" else b"",
        )
        self.sent = len(data)
        if self._held is None:
            connection.write(data)
            self._connection = None
            connection.ended(self)
        else:
            self._put(connection, data)
            self._last = self._ended

    def refuse(self, refusal: Refusal) -> None:
        """The refusal as the whole answer. Raises RuntimeError where the answer has begun."""
        if self.started:
            raise RuntimeError("an answer that has begun cannot be refused")
        if refusal.close:
            self.request.keep_alive = False
        self.send(refusal.status, b"content-type: application/json\r\n" + block(refusal.headers), refusal.body())

    def start(self, status: int, headers: bytes, length: int | None = None) -> None:
        """The head of an answer that is written in pieces: `length` bytes of body, or chunked."""
        connection = self._connection
        if connection is None or self._last is not None:
            return
        self.started = True
        request = self.request
        if length is not None:
            framing = b"content-length: %d\r\n" % length
        elif request.http10:
            framing = b""
            request.keep_alive = False
        else:
            framing = b"transfer-encoding: chunked\r\n"
            self._chunked = True
        data = b"%b%b%b%b%b%b\r\n" % (
            status_line(status),
            headers,
            framing,
            self.extra,
            connection.date(),
            b"" if request.keep_alive else b"connection: close\r\n",
        )
        self.sent += len(data)
        self._put(connection, data)

    def write(self, data: bytes) -> None:
        """A piece of the body; not empty."""
        connection = self._connection
        if connection is None or self._last is not None:
            return
        if self._chunked:
            data = b"%x\r\n%b\r\n" % (len(data), data)
            if self.log is not None:
                self.log.add(data)
        self.sent += len(data)
        self._put(connection, data)

    @property
    def chunked(self) -> bool:
        """Whether it has begun in chunks, and its client is there."""
        return self._chunked and self._connection is not None

    def raw_writer(self) -> Callable[[bytes], None] | None:
        """What takes chunks that are framed already, for a chunked answer that has begun and is not held; None for any
        other. The writer counts nothing: add to `sent`."""
        connection = self._connection
        return connection.raw_writer() if connection is not None and self._chunked and self._held is None else None

    def end(self) -> None:
        """The answer is whole."""
        connection = self._connection
        if connection is None or self._last is not None:
            return
        if self._chunked:
            self._put(connection, b"0\r\n\r\n")
            self.sent += 5
        self._close(connection, self._ended)

    def abort(self) -> None:
        """The answer is not whole and must not look so: what is written is flushed, then the connection closes."""
        connection = self._connection
        if connection is not None and self._last is None:
            self._close(connection, self._cut)

    def gone(self) -> None:
        """For the connection: its client left."""
        self._connection = None
        self._held = self._last = None
        if self.on_gone is not None:
            self.on_gone()

    def __repr__(self) -> str:
        how = "open" if self._connection is not None else "ended"
        return f"<Reply {how}{' started' if self.started else ''} {self.sent} B>"
