"""One engine's connection: a call and its answer at a time, kept for the next one.

A `Sink` is told what happened, exactly once at the end: `on_end` or `on_fail`. Between the start and the end its `call`
is the connection; `cancel` closes that, and the sink hears nothing more. Two ways lead an answer's bytes to the sink:
llhttp's callbacks, and, for a chunked answer that has begun, the sink's *tap*: it takes the connection's place as the
transport's protocol, is told whenever the connection stands between two chunks, and hands over what it does not take.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

import httptools
from mypy_extensions import mypyc_attr

from forebay.wire.head import Header
from forebay.wire.memo import AnswerMemo
from forebay.wire.ticker import NEVER

if TYPE_CHECKING:
    from forebay.wire.pool import Pool

log = logging.getLogger("forebay.wire")

SPLIT_WRITE: Final = 65_536
"""Bodies over this many bytes are handed to the transport apart from the head, so that they are not copied."""
MAX_HEAD: Final = 65_536
STALE: Final = 1.0
"""Seconds within which a kept connection that closes without a byte was closed before the request came."""


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


class Call(Protocol):
    """One request on its way, as long as it is."""

    @property
    def sent(self) -> bool:
        """Whether the engine may have a byte of it."""
        ...

    def cancel(self) -> None:
        """Close the engine's connection at once."""
        ...

    def pause(self) -> None:
        """Hold the engine's bytes back."""
        ...

    def resume(self) -> None: ...

    def begin(self, tap: Tap | None = None) -> None:
        """Content has come: the first-byte time-out gives way to the idle one, and `tap` gets the raw chunks."""
        ...

    def interpose(self, make: Callable[[Sink], Sink]) -> bool:
        """Put what `make` returns in its sink's place, which it is given; the tap is gone then. False where nothing was
        sent yet, and nothing is changed."""
        ...


class Tap(Protocol):
    """A transport's protocol in the connection's place; passes on to `follow`'s connection what it does not take."""

    def follow(self, connection: asyncio.Protocol) -> None: ...
    def between_chunks(self) -> None:
        """The next byte starts a chunk."""
        ...

    def data_received(self, data: bytes) -> None: ...
    def eof_received(self) -> bool | None: ...
    def connection_lost(self, exc: Exception | None) -> None: ...
    def connection_made(self, transport: asyncio.BaseTransport) -> None: ...
    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...


class Sink(Protocol):
    """Who gets an answer. Called on the event loop."""

    call: Call | None
    """Set and cleared by the pool: what the sink may cancel now."""
    repeats: bool
    """Whether many like it are sent, so that the head of its answer is worth remembering."""

    @property
    def heard_at(self) -> float:
        """Monotonic seconds of the last bytes that the sink's tap took; 0 before."""
        ...

    def on_head(self, status: int, headers: list[Header], length: int | None) -> None:
        """`headers` with lower-cased names; `length` from Content-Length, None where the body's end shows later."""
        ...

    def on_body(self, data: bytes) -> None: ...
    def on_end(self) -> None: ...
    def on_whole(self, memo: AnswerMemo, body: bytes) -> None:
        """Instead of the three above: a 200 with a head known before and its whole body."""
        ...

    def on_fail(self, failure: Failure, detail: str) -> None: ...


@mypyc_attr(allow_interpreted_subclasses=True)
class WholeInParts:
    """For sinks to whom a whole answer is nothing special."""

    __slots__ = ()
    repeats = False

    def on_whole(self: Sink, memo: AnswerMemo, body: bytes) -> None:
        self.on_head(200, memo.headers, len(body))
        if body:
            self.on_body(body)
        self.on_end()


class UpstreamConnection(asyncio.Protocol):
    __slots__ = (
        "_answer_headers",
        "_between",
        "_done",
        "_fresh",
        "_head_bytes",
        "_headed",
        "_headers",
        "_heard_at",
        "_keep",
        "_large",
        "_length",
        "_parser",
        "_paused",
        "_pool",
        "_sent",
        "_skip",
        "_tap",
        "_transport",
        "begun",
        "deadline",
        "old_at",
        "sink",
    )

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self.old_at = pool.ticker.now + pool.timeouts.upstream_age
        self._transport: asyncio.Transport | None = None
        self._parser: Any = httptools.HttpResponseParser(self)
        self._headers: list[Header] = []
        self._answer_headers: list[Header] = []
        self._length: int | None = None
        self._sent: tuple[bytes, bytes] = _NOTHING
        self._fresh = True
        self._large = False
        self._headed = False
        self._done = False
        self._keep = False
        self._skip = False
        self._paused = False
        self._between = False
        self._head_bytes = 0
        self._heard_at = 0.0
        self._tap: Tap | None = None
        self.sink: Sink | None = None
        self.begun = False
        self.deadline = NEVER

    # --- for Pool ----------------------------------------------------------------------------------------------------

    def alive(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def take(self, sink: Sink, head: bytes, body: bytes, *, fresh: bool) -> None:
        """Send a request. `fresh`: the connection was made for it."""
        self.sink = sink
        sink.call = self
        self._fresh = fresh
        self.deadline = self._pool.ticker.now + self._pool.timeouts.first_byte
        transport = self._transport
        if transport is None:
            return
        self._sent = (head, body)
        if len(body) <= SPLIT_WRITE:
            transport.write(head + body)
        else:
            self._large = True
            transport.write(head)
            transport.write(body)

    def drop(self) -> None:
        """Close now, in whatever state."""
        self._detach()
        if self._transport is not None:
            self._transport.abort()

    def timed_out(self, now: float) -> None:
        timeouts = self._pool.timeouts
        sink = self.sink
        if sink is None:
            self.drop()
        elif not self.begun:
            self._fail(Failure.FIRST_BYTE_TIMEOUT, f"sent no content within {timeouts.first_byte:g} s")
        else:
            heard = max(self._heard_at, sink.heard_at)
            if heard + timeouts.stream_idle > now:
                self.deadline = heard + timeouts.stream_idle
            else:
                self._fail(Failure.IDLE_TIMEOUT, f"sent nothing for {timeouts.stream_idle:g} s")

    # --- Call --------------------------------------------------------------------------------------------------------

    def cancel(self) -> None:
        self.drop()

    def pause(self) -> None:
        if not self._paused and self._transport is not None:
            self._paused = True
            self.deadline = NEVER
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._paused and self._transport is not None:
            self._paused = False
            timeouts = self._pool.timeouts
            now = self._heard_at = self._pool.ticker.now
            self.deadline = now + (timeouts.stream_idle if self.begun else timeouts.first_byte)
            self._transport.resume_reading()

    def begin(self, tap: Tap | None = None) -> None:
        self.begun = True
        self._heard_at = self._pool.ticker.now
        if not self._paused:
            self.deadline = self._heard_at + self._pool.timeouts.stream_idle
        if tap is not None and self._length == _CHUNKED and self._transport is not None:
            self._tap = tap
            tap.follow(self)
            self._transport.set_protocol(cast("asyncio.BaseProtocol", tap))

    @property
    def sent(self) -> bool:
        return True

    def interpose(self, make: Callable[[Sink], Sink]) -> bool:
        if self.sink is None:
            return False
        self._untap()
        self.sink = sink = make(self.sink)
        sink.call = self
        return True

    # --- asyncio.Protocol --------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.deadline = self._pool.ticker.now + self._pool.timeouts.upstream_idle
        self._pool.joined(self)

    def data_received(self, data: bytes) -> None:
        if self.sink is None:
            self.drop()  # bytes nobody asked for
            return
        first = False
        if self.begun:
            self._heard_at = self._pool.ticker.now
        elif not self._headed:
            first = not self._head_bytes
            if first and self._pass_whole(data):
                return
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fail(Failure.GARBAGE, "its answer is not HTTP any more: it switched protocols")
            return
        except httptools.HttpParserError as e:
            self._misparsed(e)
            return
        if self._done:
            if first and self._keep and self.sink is not None and self.sink.repeats:
                self._pool.learn(data, self._answer_headers)
            self._finish()
        elif self._tap is not None:
            # Behind a chunk's end there may be the start of the next one's size.
            if self._between and data.endswith(b"\r\n"):
                self._tap.between_chunks()
        elif not self._headed and self._head_bytes > MAX_HEAD:
            self._fail(Failure.GARBAGE, f"a head of more than {MAX_HEAD} bytes")

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._parser = None
        headed, heard = self._headed, self._headed or self._head_bytes
        sink = self._detach()
        pool = self._pool
        pool.left(self)
        if sink is None:
            return
        waited = pool.timeouts.first_byte - (self.deadline - pool.ticker.now)
        if not heard and not self._fresh and waited < STALE:
            pool.again(sink, *self._sent)
        elif not heard:
            sink.on_fail(Failure.RESET, f"closed the connection without an answer{_because(exc)}")
        elif headed and self._length is None and exc is None:
            sink.on_end()
        else:
            sink.on_fail(Failure.CUT, f"closed the connection in the middle of its answer{_because(exc)}")

    # --- httptools' callbacks ----------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._done:
            self._keep = False  # a second answer behind the first: nobody asked for it

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self._done:
            return
        headers, self._headers = self._headers, []
        status = self._parser.get_status_code()
        if status < 200:
            self._skip = True
            if status < 100:  # llhttp hands its body on
                self._fail(Failure.GARBAGE, f"it answered with the status {status}, which is none")
            return
        self._headed = True
        self._answer_headers = headers
        self._sent = _NOTHING
        length = None
        self._length = None
        for name, value in headers:
            if name == b"content-length":
                self._length = length = int(value)
            elif name == b"transfer-encoding" and b"chunked" in value.lower():
                self._length = _CHUNKED
        sink = self.sink
        if sink is not None:
            sink.on_head(status, headers, length)

    def on_chunk_header(self) -> None:
        self._between = False

    def on_chunk_complete(self) -> None:
        self._between = True

    def on_body(self, data: bytes) -> None:
        sink = self.sink
        if sink is not None and not self._done:
            sink.on_body(data)

    def on_message_complete(self) -> None:
        if self._skip:
            self._skip = False
        elif not self._done:
            self._done = True
            self._keep = self._parser.should_keep_alive()  # llhttp knows only until it goes on

    # --- inside ------------------------------------------------------------------------------------------------------

    def _pass_whole(self, data: bytes) -> bool:
        """An answer in one read, with a head known before: llhttp need not see it."""
        memo = self._pool.memo
        body = memo.body_of(data) if memo is not None else None
        if memo is None or body is None or self._skip:
            return False
        self._keep = True
        sink = self._free()
        if sink is not None:
            try:
                sink.on_whole(memo, body)
            except Exception as e:
                _failed(sink, e)
        return True

    def _detach(self) -> Sink | None:
        """The call is over: the sink that must still be told, if any."""
        sink, self.sink = self.sink, None
        self._untap()
        self.begun = self._done = self._headed = False
        self._head_bytes = 0
        if sink is not None:
            sink.call = None
        return sink

    def _untap(self) -> None:
        if self._tap is not None:
            self._tap = None
            if self._transport is not None:
                self._transport.set_protocol(self)

    def _free(self, *, reusable: bool = True) -> Sink | None:
        """The answer is whole: the connection is free before the sink hears of it."""
        transport = self._transport
        sink = self._detach()
        if (
            sink is not None
            and reusable
            and self._keep
            and not self._paused
            and transport is not None
            and (not self._large or transport.get_write_buffer_size() == 0)
        ):
            self._pool.give_back(self)
        else:
            self.drop()
        return sink

    def _finish(self, *, reusable: bool = True) -> None:
        sink = self._free(reusable=reusable)
        if sink is not None:
            try:
                sink.on_end()
            except Exception as e:
                _failed(sink, e)

    def _misparsed(self, error: Exception) -> None:
        if isinstance(error, httptools.HttpParserCallbackError) and error.__context__ is not None:
            sink = self._detach()
            self.drop()
            _failed(sink, error.__context__)
        elif self._done:
            self._finish(reusable=False)  # more bytes than the answer has
        else:
            self._fail(Failure.CUT if self._headed else Failure.GARBAGE, f"its answer is not HTTP: {error}")

    def _fail(self, failure: Failure, detail: str) -> None:
        sink = self._detach()
        self.drop()
        if sink is not None:
            sink.on_fail(failure, detail)

    def __repr__(self) -> str:
        return f"<UpstreamConnection {self._pool.origin} {'busy' if self.sink is not None else 'idle'}>"


_CHUNKED: Final = -1
_NOTHING: Final = (b"", b"")


def _failed(sink: Sink | None, error: BaseException) -> None:
    """A sink could not handle its answer: it is told, since its connection is not its own any more and nobody else
    would end it."""
    log.error("handling an engine's answer failed", exc_info=error)
    if sink is not None:
        sink.on_fail(Failure.CUT, "its answer could not be handled")


def _because(exc: Exception | None) -> str:
    if isinstance(exc, OSError):
        return f" ({exc.strerror or exc})"
    return ""
