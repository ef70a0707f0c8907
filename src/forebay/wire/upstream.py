"""The client side of HTTP/1.1: one engine's bounded pool of kept connections.

A pool's mutable state is two collections: `_idle`, connections without a call (a stack: the warmest is used first), and
`_open`, all connections, those being made included. A call is one request and its answer; its sink is told what
happened, exactly once at the end: `on_end` or `on_fail`. After `cancel` the sink hears nothing more.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol, cast

import httptools

from forebay.config.models import Timeouts
from forebay.wire.head import Header
from forebay.wire.ticker import NEVER, Ticker

log = logging.getLogger("forebay.wire")

SPLIT_WRITE = 65_536
"""Bodies over this many bytes are handed to the transport apart from the head, so that they are not copied."""
MAX_HEAD = 65_536


class Failure(Enum):
    """Why a call ended without a whole answer."""

    FULL = "full"  # the pool is at its bound
    CONNECT = "connect"
    CONNECT_TIMEOUT = "connect_timeout"
    TLS = "tls"
    RESET = "reset"  # before the first byte of an answer
    FIRST_BYTE_TIMEOUT = "first_byte_timeout"
    IDLE_TIMEOUT = "idle_timeout"
    CUT = "cut"  # within an answer
    GARBAGE = "garbage"  # not HTTP
    CLOSED = "closed"  # the pool was closed


class Sink(Protocol):
    """Who gets an answer. Called on the event loop."""

    def on_head(self, status: int, headers: list[Header], length: int | None) -> None:
        """`headers` with lower-cased names; `length` from Content-Length, None where the body's end shows later."""
        ...

    def on_body(self, data: bytes) -> None: ...
    def on_end(self) -> None: ...
    def on_fail(self, failure: Failure, detail: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Origin:
    """Where an engine is. `tls` is None for plain HTTP."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None
    server_name: str | None = None

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Call:
    """One request on its way. `pause` and `resume` hold the engine's bytes back; `begin` says that content has come, so
    that the first-byte time-out gives way to the idle one."""

    __slots__ = ("_body", "_connection", "_head", "_pool", "fresh", "sink", "task")

    def __init__(self, pool: Pool, head: bytes, body: bytes, sink: Sink) -> None:
        self._pool = pool
        self._head = head
        self._body = body
        self._connection: UpstreamConnection | None = None
        self.sink: Sink | None = sink
        self.task: asyncio.Task[None] | None = None
        self.fresh = False

    def cancel(self) -> None:
        """Close the engine's connection at once, whatever is on it."""
        self.sink = None
        connection = self._connection
        if connection is not None:
            self._connection = None
            connection.drop()
        elif self.task is not None:
            self.task.cancel()

    def pause(self) -> None:
        if self._connection is not None:
            self._connection.pause()

    def resume(self) -> None:
        if self._connection is not None:
            self._connection.resume()

    def begin(self) -> None:
        if self._connection is not None:
            self._connection.begun = True

    def __repr__(self) -> str:
        return f"<Call to {self._pool.origin} {'open' if self.sink is not None else 'done'}>"


class Pool:
    """Connections to one engine. `max_open` bounds all of them, `max_idle` those kept without a call."""

    def __init__(
        self,
        origin: Origin,
        *,
        max_open: int,
        max_idle: int,
        timeouts: Timeouts,
        ticker: Ticker,
        spawn: Callable[[Any], asyncio.Task[None]],
    ) -> None:
        self.origin = origin
        self.max_open = max_open
        self.max_idle = max_idle
        self.timeouts = timeouts
        self.ticker = ticker
        self._spawn = spawn
        self._idle: list[UpstreamConnection] = []
        self._open: set[UpstreamConnection] = set()
        self._connecting = 0
        self._closed = False
        ticker.add(self._sweep)

    def request(self, head: bytes, body: bytes, sink: Sink) -> Call:
        """Send `head` (complete, with its empty line) and `body`. Never raises: what goes wrong reaches the sink, after
        this method has returned."""
        call = Call(self, head, body, sink)
        now = self.ticker.now
        idle = self._idle
        while idle:
            connection = idle.pop()
            if connection.usable(now):
                connection.take(call, head, body)
                return call
            connection.drop()
        self._connect(call)
        return call

    @property
    def open(self) -> int:
        return len(self._open) + self._connecting

    @property
    def busy(self) -> int:
        return len(self._open) - len(self._idle) + self._connecting

    def close(self) -> None:
        """Drop idle connections and take no more calls; calls under way go on."""
        self._closed = True
        for connection in self._idle:
            connection.drop()
        self._idle.clear()
        self._retire()

    # --- inside ------------------------------------------------------------------------------------------------------

    def _connect(self, call: Call) -> None:
        loop = asyncio.get_running_loop()
        if self._closed:
            loop.call_soon(_tell, call, Failure.CLOSED, "the engine was removed")
        elif self.open >= self.max_open:
            loop.call_soon(_tell, call, Failure.FULL, f"all {self.max_open} connections are in use")
        else:
            call.fresh = True
            self._connecting += 1
            call.task = self._spawn(self._open_connection(call))

    async def _open_connection(self, call: Call) -> None:
        loop = asyncio.get_running_loop()
        origin = self.origin
        connection: UpstreamConnection | None = None
        failure, detail = Failure.CONNECT, ""
        try:
            async with asyncio.timeout(self.timeouts.connect):
                _, connection = await loop.create_connection(
                    lambda: UpstreamConnection(self),
                    origin.host,
                    origin.port,
                    ssl=origin.tls,
                    server_hostname=(origin.server_name or origin.host) if origin.tls is not None else None,
                )
        except TimeoutError:
            failure, detail = Failure.CONNECT_TIMEOUT, f"no connection within {self.timeouts.connect:g} s"
        except ssl.SSLError as e:
            failure, detail = Failure.TLS, getattr(e, "verify_message", "") or e.reason or "TLS failed"
        except OSError as e:
            detail = e.strerror or str(e) or type(e).__name__
        finally:
            self._connecting -= 1
            call.task = None
        if connection is None:
            _tell(call, failure, detail)
        elif call.sink is None:
            self.give_back(connection)
        else:
            connection.take(call, call._head, call._body)

    def joined(self, connection: UpstreamConnection) -> None:
        self._open.add(connection)

    def left(self, connection: UpstreamConnection) -> None:
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        self._retire()

    def give_back(self, connection: UpstreamConnection) -> None:
        """Keep a connection whose call ended well."""
        if self._closed or len(self._idle) >= self.max_idle:
            connection.drop()
            return
        connection.deadline = self.ticker.now + self.timeouts.upstream_idle
        self._idle.append(connection)

    def again(self, call: Call) -> None:
        """A kept connection turned out to be dead before a byte of the answer: use a new one, once."""
        self._connect(call)

    def _sweep(self, now: float) -> None:
        late = [c for c in self._open if c.deadline < now]
        for connection in late:
            connection.timed_out()

    def _retire(self) -> None:
        if self._closed and not self._open and not self._connecting:
            self.ticker.remove(self._sweep)

    def __repr__(self) -> str:
        return f"<Pool {self.origin} {self.busy} busy, {len(self._idle)} idle>"


def _tell(call: Call, failure: Failure, detail: str) -> None:
    sink, call.sink = call.sink, None
    if sink is not None:
        sink.on_fail(failure, detail)


class UpstreamConnection(asyncio.Protocol):
    __slots__ = (
        "_born",
        "_call",
        "_done",
        "_head_bytes",
        "_headed",
        "_headers",
        "_keep",
        "_length",
        "_parser",
        "_paused",
        "_pool",
        "_skip",
        "_transport",
        "begun",
        "deadline",
    )

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._born = pool.ticker.now
        self._transport: asyncio.Transport | None = None
        self._parser: Any = httptools.HttpResponseParser(self)
        self._call: Call | None = None
        self._headers: list[Header] = []
        self._length: int | None = None
        self._headed = False
        self._done = False
        self._keep = False
        self._skip = False
        self._paused = False
        self._head_bytes = 0
        self.begun = False
        self.deadline = NEVER

    # --- for Pool and Call -------------------------------------------------------------------------------------------

    def usable(self, now: float) -> bool:
        transport = self._transport
        return (
            transport is not None
            and not transport.is_closing()
            and now < self.deadline
            and now - self._born < self._pool.timeouts.upstream_age
        )

    def take(self, call: Call, head: bytes, body: bytes) -> None:
        self._call = call
        call._connection = self
        self.begun = False
        self._headed = False
        self._head_bytes = 0
        self.deadline = self._pool.ticker.now + self._pool.timeouts.first_byte
        transport = self._transport
        if transport is None:
            return
        if len(body) <= SPLIT_WRITE:
            transport.write(head + body)
        else:
            transport.write(head)
            transport.write(body)

    def drop(self) -> None:
        """Close now, in whatever state."""
        self._call = None
        if self._transport is not None:
            self._transport.abort()

    def pause(self) -> None:
        if not self._paused and self._transport is not None:
            self._paused = True
            self.deadline = NEVER
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._paused and self._transport is not None:
            self._paused = False
            self.deadline = self._pool.ticker.now + self._pool.timeouts.stream_idle
            self._transport.resume_reading()

    def timed_out(self) -> None:
        timeouts = self._pool.timeouts
        if self._call is None:
            self.drop()
        elif self.begun:
            self._fail(Failure.IDLE_TIMEOUT, f"sent nothing for {timeouts.stream_idle:g} s")
        else:
            self._fail(Failure.FIRST_BYTE_TIMEOUT, f"sent no content within {timeouts.first_byte:g} s")

    # --- asyncio.Protocol --------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._pool.joined(self)

    def data_received(self, data: bytes) -> None:
        call = self._call
        if call is None:
            self.drop()  # bytes nobody asked for
            return
        if self.begun:
            self.deadline = self._pool.ticker.now + self._pool.timeouts.stream_idle
        elif not self._headed:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as e:
            self._misparsed(e)
            return
        if self._done:
            self._finish()
        elif not self._headed and self._head_bytes > MAX_HEAD:
            self._fail(Failure.GARBAGE, f"a head of more than {MAX_HEAD} bytes")

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        pool = self._pool
        pool.left(self)
        self._parser = None
        call, self._call = self._call, None
        if call is None:
            return
        call._connection = None
        if not self._headed and not self._head_bytes:
            if not call.fresh and call.sink is not None:
                pool.again(call)
                return
            _tell(call, Failure.RESET, f"closed the connection without an answer{_because(exc)}")
        elif self._headed and self._length is None and exc is None and not self._chunked():
            sink, call.sink = call.sink, None
            if sink is not None:
                sink.on_end()
        else:
            _tell(call, Failure.CUT, f"closed the connection in the middle of its answer{_because(exc)}")

    # --- httptools' callbacks ----------------------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self._done:
            return
        headers, self._headers = self._headers, []
        status = self._parser.get_status_code()
        if status < 200:
            self._skip = True
            return
        self._headed = True
        length = None
        for name, value in headers:
            if name == b"content-length":
                length = int(value)
        self._length = -1 if length is None and _is_chunked(headers) else length
        call = self._call
        if call is not None and call.sink is not None:
            call.sink.on_head(status, headers, length)

    def on_body(self, data: bytes) -> None:
        call = self._call
        if call is not None and call.sink is not None:
            call.sink.on_body(data)

    def on_message_complete(self) -> None:
        if self._skip:
            self._skip = False
        else:
            self._done = True
            self._keep = self._parser.should_keep_alive()  # llhttp knows only until it goes on

    # --- inside ------------------------------------------------------------------------------------------------------

    def _chunked(self) -> bool:
        return self._length == -1

    def _finish(self, *, reusable: bool = True) -> None:
        """The answer is whole: the connection is free before the sink hears of it."""
        call, self._call = self._call, None
        self._done = False
        transport = self._transport
        self._headers.clear()
        if call is None:
            self.drop()
            return
        call._connection = None
        if (
            reusable
            and transport is not None
            and self._keep
            and not self._paused
            and transport.get_write_buffer_size() == 0
        ):
            self._pool.give_back(self)
        else:
            self.drop()
        sink, call.sink = call.sink, None
        if sink is not None:
            sink.on_end()

    def _misparsed(self, error: Exception) -> None:
        if isinstance(error, httptools.HttpParserCallbackError) and error.__context__ is not None:
            log.error("handling an engine's answer failed", exc_info=error.__context__)
            self._fail(Failure.CUT, "its answer could not be handled")
        elif self._done:
            self._finish(reusable=False)  # more bytes than the answer has
        else:
            self._fail(Failure.CUT if self._headed else Failure.GARBAGE, f"its answer is not HTTP: {error}")

    def _fail(self, failure: Failure, detail: str) -> None:
        call, self._call = self._call, None
        self.drop()
        if call is not None:
            call._connection = None
            _tell(call, failure, detail)

    def __repr__(self) -> str:
        return f"<UpstreamConnection {self._pool.origin} {'busy' if self._call is not None else 'idle'}>"


def _is_chunked(headers: list[Header]) -> bool:
    return any(name == b"transfer-encoding" and b"chunked" in value.lower() for name, value in headers)


def _because(exc: Exception | None) -> str:
    if isinstance(exc, OSError):
        return f" ({exc.strerror or exc})"
    return ""
