"""One client connection: bytes in, requests out, one answer at a time back.

Theory of operation. `Intake` parses and puts whole requests into `_pending`; `_advance` hands the first one to the
handler with a `Reply` and waits until that is ended. Reading goes on meanwhile, so that a client's leaving is seen at
once; where a client sends too far ahead, reading is paused and the server watches for its leaving by other means.

A client that closes its sending side (half-close) while it waits for an answer has left: at that instant it cannot be
told from one that closed the connection, and an engine must not go on working for nobody.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from forebay import errors
from forebay.errors import Refusal
from forebay.wire.head import block, status_line
from forebay.wire.intake import BODY, DEAF, HEAD, IDLE, LINGER, Intake
from forebay.wire.memo import HeadMemo
from forebay.wire.message import Request
from forebay.wire.peer import guard_against_vanished_peers
from forebay.wire.reply import Reply
from forebay.wire.ticker import NEVER

if TYPE_CHECKING:
    from forebay.wire.server import Server

LINGER_SECONDS = 2.0
"""How long a refused connection is drained, so that the refusal is read before the close."""
LINGER_BYTES = 32 << 20
MIN_DRAINED = 4_096
"""Bytes a slow client must take within the write time-out."""


class Connection(Intake):
    __slots__ = ("_drained_mark", "blocked")

    def __init__(self, server: Server, listener: int = 0) -> None:
        super().__init__(server, listener)
        self.blocked = False
        self._drained_mark = 0

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
            self._stage = LINGER
            return
        self.deadline = self.server.ticker.now + self.server.timeouts.idle

    def data_received(self, data: bytes) -> None:
        server = self.server
        server.counters.bytes_in += len(data)
        stage = self._stage
        if stage is IDLE:
            memo = self._memo
            if memo is not None and self._reply is None and not self._pending and not self.blocked:
                body = memo.body_of(data)
                if body is not None and self._repeat(memo, body):
                    return
            self._head_data = data
            self._stage = HEAD
            self._wire_bytes = 0
            if self._reply is None:
                self.deadline = server.ticker.now + server.timeouts.header
        elif stage is DEAF:
            return
        elif stage is LINGER:
            self._wire_bytes += len(data)
            if self._wire_bytes > LINGER_BYTES:
                self.abort()
            return
        self._feed(data)
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
            self._advance()
            return
        self.deadline = NEVER
        if reply.on_resume is not None:
            reply.on_resume()

    # --- for Reply ---------------------------------------------------------------------------------------------------

    def is_blocked(self) -> bool:
        return self.blocked

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
            if self._stage is IDLE:
                self.deadline = server.ticker.now + server.timeouts.idle
            else:
                self._wait_for_more()
        if self._pending or self._read_paused:
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
        self._pending = None
        self._linger()

    def raw_writer(self) -> Callable[[bytes], None] | None:
        return self._transport.write if self._transport is not None else None

    def date(self) -> bytes:
        return self.server.date

    # --- for Server --------------------------------------------------------------------------------------------------

    def fileno(self) -> int:
        sock = self._transport.get_extra_info("socket") if self._transport is not None else None
        return sock.fileno() if sock is not None else -1

    def close_if_idle(self) -> None:
        if self._reply is None and not self._pending and self._stage is IDLE:
            self._linger()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        self._left()

    def timed_out(self, now: float) -> None:
        timeouts = self.server.timeouts
        unsent = self._transport.get_write_buffer_size() if self._transport is not None else 0
        if self.blocked or (unsent and self._stage is LINGER):
            if self._drained_mark - unsent >= MIN_DRAINED:
                self._drained_mark = unsent
                self.deadline = now + timeouts.write
            else:
                self.abort()
        elif self._stage is LINGER:
            self.abort()
        elif self._reply is not None:
            self.deadline = NEVER
        elif self._stage is HEAD:
            self._refuse(errors.too_slow("request head", timeouts.header), None)
        elif self._stage is BODY:
            self._refuse(errors.too_slow("request body", timeouts.body), self._request)
        else:
            self._linger()

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

    def _advance(self) -> None:
        """Hand over the next request; read on once none is left."""
        if self._reply is not None or self.blocked or self._transport is None:
            return
        if not self._pending and self._read_paused:
            self._resume_reading()
        if not self._pending:
            return
        request = self._pending.popleft()
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
        if self._stage is IDLE:
            self.deadline = self.server.ticker.now + timeouts.idle
        elif self._stage is LINGER:
            self.deadline = self.server.ticker.now + LINGER_SECONDS
        else:
            self.deadline = self.server.ticker.now + (timeouts.header if self._stage is HEAD else timeouts.body)

    def _left(self) -> None:
        reply, self._reply = self._reply, None
        self._pending = None
        self._last_words = None
        if reply is not None:
            try:
                reply.gone()
            except Exception as e:  # the connection is to leave the server all the same
                self.server.failed(e)
            self.server.counters.bytes_out += reply.sent

    def _refuse(self, refusal: Refusal, request: Request | None) -> None:
        """Answer and close; behind answers that are still owed, if there are any. The first refusal counts."""
        if self._stage is LINGER or self._last_words is not None:
            return
        self._stage = DEAF
        self._request = None
        self._body = b""
        self._headers = []
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
        quiet = self._stage is IDLE
        self._stage = LINGER
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
        """Read on, what is there already first."""
        self._read_paused = False
        self.server.unwatch(self)
        unread, self._unread = self._unread, b""
        if unread and self._stage is not LINGER and self._stage is not DEAF:
            self._feed(unread)
        if not self._read_paused and self._transport is not None:
            self._transport.resume_reading()

    def __repr__(self) -> str:
        waiting = len(self._pending) if self._pending else 0
        return f"<Connection {self._stage.name.lower()} {self._reply or 'no reply'} +{waiting}>"
