"""The reading side of a client connection: bytes in, whole requests out.

llhttp parses and calls back. A head it let pass is looked at by `unsound`, then by the handler, before its body is
read; a whole request goes into `_pending`, and what cannot become one to `_refuse`.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections import deque
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final

import httptools

from forebay import errors
from forebay.errors import Refusal
from forebay.wire.head import block, connection_names
from forebay.wire.memo import HeadMemo, remember
from forebay.wire.message import Peer, Request
from forebay.wire.peer import peer_of
from forebay.wire.reply import Outlet, Reply
from forebay.wire.soundness import HOST, origin_form, unsound
from forebay.wire.ticker import NEVER

if TYPE_CHECKING:
    from forebay.wire.server import Server

_SLASH: Final = ord("/")
LESSONS = 4
"""Heads remembered of a connection before it is given up as one that never repeats itself."""
KEEPALIVE_DISCARD = 262_144
"""A refused body up to this size is read and dropped, and the connection kept."""
SLACK = 4_096
SLICE = 8_192
"""Bytes parsed between two looks at the bounds: a read may hold thousands of small requests."""
FRAMING = 8
"""Bytes on the wire for a byte of body: one-byte chunks take six."""


class Stage(Enum):
    IDLE = auto()
    HEAD = auto()
    BODY = auto()
    DEAF = auto()  # nothing more is parsed on this connection
    LINGER = auto()  # the last answer is out; what still comes is dropped


IDLE: Final = Stage.IDLE  # reading a member off an Enum class is slow
HEAD: Final = Stage.HEAD
BODY: Final = Stage.BODY
DEAF: Final = Stage.DEAF
LINGER: Final = Stage.LINGER


class Intake(Outlet):
    """The base of `Connection`, which has the methods that only raise here. Both share the state below."""

    __slots__ = (
        "_body",
        "_body_size",
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
        "_unread",
        "_url",
        "_wire_bytes",
        "deadline",
        "server",
    )

    def __init__(self, server: Server, listener: int = 0) -> None:
        self.server = server
        self._listener = listener
        self.deadline = NEVER
        self._transport: asyncio.Transport | None = None
        self._parser: Any = httptools.HttpRequestParser(self)
        self._stage = IDLE
        self._reply: Reply | None = None
        self._pending: deque[Request] | None = None
        self._request: Request | None = None
        self._headers: list[tuple[bytes, bytes]] = []
        self._url = b""
        self._body: bytes | bytearray = b""
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
        self._unread = b""
        self._peer: Peer | None = None

    @abstractmethod
    def _refuse(self, refusal: Refusal, request: Request | None) -> None: ...

    @abstractmethod
    def _pause_reading(self) -> None: ...

    def _feed(self, data: bytes) -> None:
        """Parse what came, in slices, and no further than to the bound on requests sent ahead. Before that `_stage`,
        `_head_data` and `_wire_bytes` say what it may begin."""
        at = 0
        while at < len(data):
            if self._read_paused:
                self._unread += data[at:]
                break
            piece = data[at : at + SLICE] if at or len(data) > SLICE else data
            at += SLICE
            self._fed = len(piece)
            self._wire_bytes += self._fed
            self._parse(piece)
            stage = self._stage
            if stage is HEAD or stage is BODY:
                self._check_size(stage)
            elif stage is not IDLE:
                break
        self._head_data = b""

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

    # --- httptools' callbacks ----------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._stage is IDLE:  # one more in the same read
            self._stage = HEAD
            self._wire_bytes = 0

    def on_url(self, url: bytes) -> None:
        if self._url:
            url = self._url + url
        self._url = url

    def on_header(self, name: bytes, value: bytes) -> None:
        headers = self._headers
        if len(headers) <= self.server.limits.header_count:  # one too many is enough to know
            headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self._request is not None or self._stage is not HEAD:
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
        self._stage = BODY
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
        body = self._body
        if not body:
            self._body = data
        elif isinstance(body, bytes):
            self._body = bytearray(body)
            self._body += data
        else:
            body += data

    def on_message_complete(self) -> None:
        request = self._request
        if request is None:
            return
        self._request = None
        body = self._body
        if body:
            request.body = body if isinstance(body, bytes) else bytes(body)
            self._body = b""
            self._body_size = 0
        if self._headers:
            self._headers.clear()  # trailers
        self._dropped = 0
        self._head_data = b""  # what follows in this read is another head
        self._stage = IDLE if request.keep_alive else DEAF
        self._wire_bytes = 0
        if self._pending is None:
            self._pending = deque()
        self._pending.append(request)
        if len(self._pending) > self.server.limits.pipelined and not self._read_paused:
            self._pause_reading()

    # --- inside ------------------------------------------------------------------------------------------------------

    def _learn(self, request: Request) -> None:
        """Keep this head for the next request, unless the client's heads have proved to differ."""
        if self._lessons and self._head_data:
            self._lessons -= 1
            self._memo = remember(self._head_data, request)

    def _check_size(self, stage: Stage) -> None:
        """Bound what llhttp holds of an unfinished head, and what framing and trailers a body may bring along."""
        limit = self.server.limits.header_bytes
        if stage is HEAD and self._wire_bytes > limit + SLACK:
            self._refuse(errors.headers_too_large(limit), None)
        elif len(self._headers) > self.server.limits.header_count:
            self._refuse(errors.too_many_headers(self.server.limits.header_count), self._request)
        elif stage is BODY and self._wire_bytes > limit + SLACK + FRAMING * (self._body_size + self._dropped):
            self._refuse(errors.bad_http("more framing than body"), self._request)

    def _misparsed(self, error: Exception) -> None:
        cause = error.__context__
        if isinstance(error, httptools.HttpParserCallbackError) and cause is not None:
            self.server.failed(cause)
            self._refuse(errors.internal("unknown"), self._request)
        elif self._stage is not DEAF and self._stage is not LINGER:
            self.server.counters.bad_requests += 1
            self._refuse(errors.bad_http(str(error).strip().rstrip(".") or "unreadable"), self._request)

    def _past_upgrade(self, rest: bytes) -> bytes:
        """llhttp stops at an Upgrade header; this server ignores the offer (RFC 9110 §7.8) and reads on: what a new
        parser must be fed instead of `rest`."""
        if self._stage is LINGER or self._last_words is not None:
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
        self._stage = BODY
        request.keep_alive = not request.http10 and b"close" not in connection_names(
            b",".join(v for n, v in request.headers if n == b"connection")
        )
        framing = [h for h in request.headers if h[0] in (b"content-length", b"transfer-encoding")]
        return b"POST / HTTP/1.1\r\n" + block(framing) + b"\r\n" + rest
