"""One client connection: bytes in, requests out, one answer at a time back.

Theory of operation. llhttp parses; a whole request goes into `_pending`; `_advance` hands the first one to the handler
with a `Reply` and waits until that is ended. Reading goes on meanwhile, so that a client's leaving is seen at once;
where a client sends too far ahead, reading is paused and the server watches for its leaving by other means.

A client that closes its sending side (half-close) while it waits for an answer has left: at that instant it cannot be
told from one that closed the connection, and an engine must not go on working for nobody.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import deque
from collections.abc import Callable
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final, cast

import httptools

from forebay import errors
from forebay.errors import Refusal
from forebay.wire.head import block, connection_names, status_line
from forebay.wire.memo import HeadMemo, remember
from forebay.wire.message import Peer, Request
from forebay.wire.peer import guard_against_vanished_peers, peer_of
from forebay.wire.reply import Reply
from forebay.wire.soundness import HOST, origin_form, unsound
from forebay.wire.ticker import NEVER

if TYPE_CHECKING:
    from forebay.wire.server import Server

_SLASH = ord("/")
LINGER_SECONDS = 2.0
"""How long a refused connection is drained, so that the refusal is read before the close."""
LINGER_BYTES = 32 << 20
LESSONS = 4
"""Heads remembered of a connection before it is given up as one that never repeats itself."""
KEEPALIVE_DISCARD = 262_144
"""A refused body up to this size is read and dropped, and the connection kept."""
MIN_DRAINED = 4_096
"""Bytes a slow client must take within the write time-out."""
SLACK = 4_096
FRAMING = 8
"""Bytes on the wire for a byte of body: one-byte chunks take six."""


class Stage(Enum):
    IDLE = auto()
    HEAD = auto()
    BODY = auto()
    DEAF = auto()  # nothing more is parsed on this connection
    LINGER = auto()  # the last answer is out; what still comes is dropped


_IDLE: Final = Stage.IDLE  # reading a member off an Enum class is slow
_HEAD: Final = Stage.HEAD
_BODY: Final = Stage.BODY
_DEAF: Final = Stage.DEAF
_LINGER: Final = Stage.LINGER


class Connection(asyncio.Protocol):
    __slots__ = (
        "_body",
        "_body_size",
        "_drained_mark",
        "_dropped",
        "_fed",
        "_head_data",
        "_headers",
        "_last_words",
        "_lessons",
        "_listener",
        "_memo",
        "_owes_continue",
        "_parser",
        "_peer",
        "_pending",
        "_read_paused",
        "_reply",
        "_request",
        "_stage",
        "_transport",
        "_url",
        "_wire_bytes",
        "blocked",
        "deadline",
        "server",
    )

    def __init__(self, server: Server, listener: int = 0) -> None:
        self.server = server
        self._listener = listener
        self.blocked = False
        self.deadline = NEVER
        self._transport: asyncio.Transport | None = None
        self._parser: Any = httptools.HttpRequestParser(self)
        self._stage = _IDLE
        self._reply: Reply | None = None
        self._pending: deque[Request] | None = None
        self._request: Request | None = None
        self._headers: list[tuple[bytes, bytes]] = []
        self._url = b""
        self._body: list[bytes] = []
        self._body_size = 0
        self._dropped = 0
        self._wire_bytes = 0
        self._fed = 0
        self._last_words: tuple[Refusal, Request | None] | None = None
        self._owes_continue = False
        self._memo: HeadMemo | None = None
        self._lessons = LESSONS
        self._head_data = b""
        self._read_paused = False
        self._drained_mark = 0
        self._peer: Peer | None = None

    # --- asyncio.Protocol --------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast("asyncio.Transport", transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=self.server.limits.write_buffer_bytes)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family != socket.AF_UNIX:
            guard_against_vanished_peers(sock, self.server.timeouts.write)
        if self.server.draining or not self.server.joined(self):
            refusal = (
                errors.draining()
                if self.server.draining
                else errors.overloaded(
                    "too_many_connections",
                    "This gateway holds as many connections as it may (limits.connections).",
                    1.0,
                )
            )
            self._speak(refusal, None)
            transport.close()
            self._stage = _LINGER
            return
        self.deadline = self.server.ticker.now + self.server.timeouts.idle

    def data_received(self, data: bytes) -> None:
        server = self.server
        server.counters.bytes_in += len(data)
        stage = self._stage
        if stage is _IDLE:
            memo = self._memo
            if memo is not None and self._reply is None and not self._pending:
                body = memo.body_of(data)
                if body is not None and self._repeat(memo, body):
                    return
            self._head_data = data
            self._stage = _HEAD
            self._wire_bytes = 0
            if self._reply is None:
                self.deadline = server.ticker.now + server.timeouts.header
        elif stage is _DEAF:
            return
        elif stage is _LINGER:
            self._wire_bytes += len(data)
            if self._wire_bytes > LINGER_BYTES:
                self.abort()
            return
        self._fed = len(data)
        self._wire_bytes += self._fed
        self._parse(data)
        self._head_data = b""
        stage = self._stage
        if stage is _HEAD or stage is _BODY:
            self._check_size(stage)
        if self._reply is None and self._pending:
            self._advance()

    def eof_received(self) -> bool:
        self._left()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._left()
        if self._read_paused:
            self.server.unwatch(self)
        self._transport = None
        self._parser = None
        self._memo = None
        self._pending = None
        self.deadline = NEVER
        self.server.left(self)

    def pause_writing(self) -> None:
        self.blocked = True
        transport = self._transport
        self._drained_mark = transport.get_write_buffer_size() if transport is not None else 0
        self.deadline = self.server.ticker.now + self.server.timeouts.write
        reply = self._reply
        if reply is not None and reply.on_pause is not None:
            reply.on_pause()

    def resume_writing(self) -> None:
        self.blocked = False
        reply = self._reply
        if reply is None:
            self._wait_for_more()
            return
        self.deadline = NEVER
        if reply.on_resume is not None:
            reply.on_resume()

    # --- httptools' callbacks ----------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._stage is _IDLE:  # one more in the same read
            self._stage = _HEAD
            self._wire_bytes = 0

    def on_url(self, url: bytes) -> None:
        if self._url:
            url = self._url + url
        self._url = url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self._request is not None or self._stage is not _HEAD:
            self._headers.clear()  # a head made up after an ignored upgrade, or one behind the last word
            self._url = b""
            return
        headers = self._headers
        self._headers = []
        url, self._url = self._url, b""
        parser = self._parser
        server = self.server
        fields = dict(headers)
        version = parser.get_http_version()
        path, _, query = url.partition(b"?") if b"?" in url else (url, b"", b"")
        if url[0] != _SLASH:
            path = origin_form(path)
        if self._peer is None:
            self._peer = peer_of(self._transport, self._listener)
        request = Request(parser.get_method(), path, query, headers, fields, self._peer, version == "1.0")
        request.keep_alive = version != "1.0" and parser.should_keep_alive()
        plain = (
            version == "1.1"
            and len(fields) == len(headers) <= server.limits.header_count
            and HOST.fullmatch(fields.get(b"host", b" ")) is not None
            and b"transfer-encoding" not in fields
            and b"expect" not in fields
            and self._fed <= server.limits.header_bytes
            and self._wire_bytes <= server.limits.header_bytes
        )
        refusal = None if plain else unsound(request, version, max(self._wire_bytes, self._fed), server.limits)
        if refusal is not None:
            self._refuse(refusal, request)
            return
        self._request = request
        self._stage = _BODY
        if server.draining:
            refusal = errors.draining()
            request.keep_alive = False
        else:
            refusal = server.handler.on_head(request)
        length = int(fields.get(b"content-length", b"0"))
        if refusal is None and length > server.limits.body_bytes:
            refusal = errors.body_too_large(server.limits.body_bytes)
        expects = b"expect" in fields
        if refusal is not None:
            unbounded = length > KEEPALIVE_DISCARD or b"transfer-encoding" in fields or expects
            if unbounded or refusal.close:
                self._refuse(refusal, request)
                return
            request.refusal = refusal
        elif expects and (length or b"transfer-encoding" in fields) and not request.http10:
            if self._reply is None:
                self.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            else:
                self._owes_continue = True
        else:
            self._learn(request)
        if self._reply is None:
            self.deadline = server.ticker.now + server.timeouts.body

    def on_body(self, data: bytes) -> None:
        request = self._request
        if request is None:
            return
        if request.refusal is not None:
            self._dropped += len(data)
            return
        self._body_size += len(data)
        if self._body_size > self.server.limits.body_bytes:
            self._refuse(errors.body_too_large(self.server.limits.body_bytes), request)
            return
        self._body.append(data)

    def on_message_complete(self) -> None:
        request = self._request
        if request is None:
            return
        self._request = None
        body = self._body
        if body:
            request.body = body[0] if len(body) == 1 else b"".join(body)
            self._body = []
            self._body_size = 0
        if self._headers:
            self._headers.clear()  # trailers
        self._dropped = 0
        self._head_data = b""  # what follows in this read is another head
        self._stage = _IDLE if request.keep_alive else _DEAF
        self._wire_bytes = 0
        if self._pending is None:
            self._pending = deque()
        self._pending.append(request)
        if len(self._pending) > self.server.limits.pipelined and not self._read_paused:
            self._pause_reading()

    # --- for Reply ---------------------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        transport = self._transport
        if transport is not None:
            transport.write(data)

    def ended(self, reply: Reply) -> None:
        """The current answer is whole."""
        server = self.server
        server.counters.bytes_out += reply.sent
        self._reply = None
        if not reply.request.keep_alive or server.draining:
            self._linger()
            return
        if not self.blocked:
            if self._stage is _IDLE:
                self.deadline = server.ticker.now + server.timeouts.idle
            else:
                self._wait_for_more()
        if self._pending:
            # Not from within the handler's own call: a row of short answers would nest.
            asyncio.get_running_loop().call_soon(self._advance)
        elif self._last_words is not None:
            self._say_last_words()
        elif self._owes_continue:
            self._owes_continue = False
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def cut(self) -> None:
        """The current answer will never be whole."""
        if self._reply is not None:
            self.server.counters.bytes_out += self._reply.sent
            self._reply = None
        self._stage = _DEAF
        if self._transport is not None:
            self._transport.close()

    def raw_writer(self) -> Callable[[bytes], None] | None:
        return self._transport.write if self._transport is not None else None

    def date(self) -> bytes:
        return self.server.date

    # --- for Server --------------------------------------------------------------------------------------------------

    def fileno(self) -> int:
        sock = self._transport.get_extra_info("socket") if self._transport is not None else None
        return sock.fileno() if sock is not None else -1

    def close_if_idle(self) -> None:
        if self._reply is None and not self._pending and self._stage is _IDLE and self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        self._left()

    def timed_out(self, now: float) -> None:
        timeouts = self.server.timeouts
        unsent = self._transport.get_write_buffer_size() if self._transport is not None else 0
        if self.blocked or (unsent and self._stage is _LINGER):
            if self._drained_mark - unsent >= MIN_DRAINED:
                self._drained_mark = unsent
                self.deadline = now + timeouts.write
            else:
                self.abort()
        elif self._stage is _LINGER:
            self.abort()
        elif self._reply is not None:
            self.deadline = NEVER
        elif self._stage is _HEAD:
            self._refuse(errors.too_slow("request head", timeouts.header), None)
        elif self._stage is _BODY:
            self._refuse(errors.too_slow("request body", timeouts.body), self._request)
        elif self._transport is not None:
            self._transport.close()

    # --- inside ------------------------------------------------------------------------------------------------------

    def _repeat(self, memo: HeadMemo, body: bytes) -> bool:
        """The remembered request with another body. False where it must be looked at anew."""
        server = self.server
        if server.draining or len(body) > server.limits.body_bytes:
            return False
        request = memo.request.again(body)
        if server.handler.on_head(request) is not None:
            return False
        memo.request.context = request.context
        self._hand_over(request)
        return True

    def _learn(self, request: Request) -> None:
        """Keep this head for the next request, unless the client's heads have proved to differ."""
        if self._lessons and self._head_data:
            self._lessons -= 1
            self._memo = remember(self._head_data, request)

    def _advance(self) -> None:
        """Hand over the next request."""
        pending = self._pending
        if self._reply is not None or not pending or self._transport is None:
            return
        request = pending.popleft()
        if self._read_paused and not pending:
            self._resume_reading()
        if request.refusal is None:
            self._hand_over(request)
            return
        reply = self._reply = Reply(self, request)
        reply.extra = self.server.handler.on_refused(request, request.refusal)
        reply.refuse(request.refusal)

    def _hand_over(self, request: Request) -> None:
        reply = self._reply = Reply(self, request)
        if not self.blocked:
            self.deadline = NEVER
        try:
            self.server.handler.on_request(request, reply)
        except Exception as e:
            self.server.failed(e)
            if reply.started:
                reply.abort()
            else:
                reply.refuse(errors.internal("unknown"))

    def _wait_for_more(self) -> None:
        timeouts = self.server.timeouts
        if self._stage is _IDLE:
            self.deadline = self.server.ticker.now + timeouts.idle
        elif self._stage is _LINGER:
            self.deadline = self.server.ticker.now + LINGER_SECONDS
        else:
            self.deadline = self.server.ticker.now + (timeouts.header if self._stage is _HEAD else timeouts.body)

    def _left(self) -> None:
        reply, self._reply = self._reply, None
        self._pending = None
        self._last_words = None
        if reply is not None:
            reply.gone()
            self.server.counters.bytes_out += reply.sent

    def _check_size(self, stage: Stage) -> None:
        """Bound what llhttp holds of an unfinished head, and what framing and trailers a body may bring along."""
        limit = self.server.limits.header_bytes
        if stage is _HEAD and self._wire_bytes > limit + SLACK:
            self._refuse(errors.headers_too_large(limit), None)
        elif stage is _BODY and self._wire_bytes > limit + SLACK + FRAMING * (self._body_size + self._dropped):
            self._refuse(errors.bad_http("more framing than body"), self._request)

    def _misparsed(self, error: Exception) -> None:
        cause = error.__context__
        if isinstance(error, httptools.HttpParserCallbackError) and cause is not None:
            self.server.failed(cause)
            self._refuse(errors.internal("unknown"), self._request)
        elif self._stage is not _DEAF and self._stage is not _LINGER:
            self.server.counters.bad_requests += 1
            self._refuse(errors.bad_http(str(error).strip().rstrip(".") or "unreadable"), self._request)

    def _parse(self, data: bytes) -> None:
        while data:
            try:
                self._parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as e:
                data = self._past_upgrade(data[e.args[0] :])
            except httptools.HttpParserError as e:
                self._misparsed(e)
                return

    def _past_upgrade(self, rest: bytes) -> bytes:
        """llhttp stops at an Upgrade header; this server ignores the offer (RFC 9110 §7.8) and reads on: what a new
        parser must be fed instead of `rest`."""
        if self._stage is _LINGER or self._last_words is not None:
            return b""  # refused already
        pending = self._pending
        request = pending.pop() if pending else None
        if request is None or request.method == b"CONNECT":
            self._refuse(errors.bad_http("CONNECT is not spoken here", 405), request)
            return b""
        if pending is not None and len(pending) > self.server.limits.pipelined:
            self._refuse(errors.bad_http("too many Upgrade offers sent ahead"), request)
            return b""
        self._parser = httptools.HttpRequestParser(self)
        self._request = request
        self._stage = _BODY
        request.keep_alive = b"close" not in connection_names(request.fields.get(b"connection", b""))
        framing = [h for h in request.headers if h[0] in (b"content-length", b"transfer-encoding")]
        return b"POST / HTTP/1.1\r\n" + block(framing) + b"\r\n" + rest

    def _refuse(self, refusal: Refusal, request: Request | None) -> None:
        """Answer and close; behind answers that are still owed, if there are any. The first refusal counts."""
        if self._stage is _LINGER or self._last_words is not None:
            return
        self._stage = _DEAF
        self._request = None
        self._body = []
        self._last_words = (refusal, request)
        if self._reply is None and not self._pending:
            self._say_last_words()

    def _say_last_words(self) -> None:
        words, self._last_words = self._last_words, None
        if words is not None:
            self._speak(*words)
            self._linger()

    def _speak(self, refusal: Refusal, request: Request | None) -> None:
        extra = self.server.handler.on_refused(request, refusal)
        body = refusal.body()
        head = b"%bcontent-type: application/json\r\ncontent-length: %d\r\n%b%b%bconnection: close\r\n\r\n" % (
            status_line(refusal.status),
            len(body),
            block(refusal.headers),
            extra,
            self.server.date,
        )
        self.server.counters.bytes_out += len(head) + len(body)
        self.write(head if request is not None and request.method == b"HEAD" else head + body)

    def _linger(self) -> None:
        """Close in a way that lets the last answer arrive: a close with unread input resets the connection."""
        transport = self._transport
        if transport is None:
            return
        quiet = self._stage is _IDLE
        self._stage = _LINGER
        self._wire_bytes = 0
        self._drained_mark = transport.get_write_buffer_size()
        self.deadline = self.server.ticker.now + (self.server.timeouts.write if self._drained_mark else LINGER_SECONDS)
        if self._read_paused:
            self._resume_reading()
        if quiet or not transport.can_write_eof():
            transport.close()
            return
        with contextlib.suppress(OSError, RuntimeError):  # the peer may be gone already
            transport.write_eof()

    def _pause_reading(self) -> None:
        self._read_paused = True
        if self._transport is not None:
            self._transport.pause_reading()
        self.server.watch(self)

    def _resume_reading(self) -> None:
        self._read_paused = False
        self.server.unwatch(self)
        if self._transport is not None:
            self._transport.resume_reading()

    def __repr__(self) -> str:
        waiting = len(self._pending) if self._pending else 0
        return f"<Connection {self._stage.name.lower()} {self._reply or 'no reply'} +{waiting}>"
