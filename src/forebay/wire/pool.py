"""A bounded keep-alive pool of connections to one engine.

Its mutable state is two collections: `_idle`, connections without a call (a stack: the warmest is used first), and
`_open`, all connections; those being made are counted beside them.
"""

from __future__ import annotations

import asyncio
import errno
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from forebay.config.models import Timeouts
from forebay.wire.bounds import TimeoutValues
from forebay.wire.head import Header
from forebay.wire.memo import AnswerMemo, remember_answer
from forebay.wire.ticker import Ticker
from forebay.wire.upstream import Failure, Sink, Tap, UpstreamConnection

LESSONS = 8
"""Heads remembered of an engine before it is given up as one that never repeats itself."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where an engine is. `tls` is None for plain HTTP."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None
    server_name: str | None = None

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class _Connecting:
    """The call of a sink whose connection is being made. Cancelled, the connection is made all the same and kept for
    the next call: a cancelled connect could leave a socket that nobody owns."""

    __slots__ = ("_paused", "_sink")

    def __init__(self, sink: Sink) -> None:
        self._sink: Sink | None = sink
        self._paused = False

    def cancel(self) -> None:
        self.leave()

    def pause(self) -> None:
        self._paused = True

    def resume(self) -> None:
        self._paused = False

    def begin(self, tap: Tap | None = None) -> None:
        return

    @property
    def sent(self) -> bool:
        return False

    def interpose(self, make: Callable[[Sink], Sink]) -> bool:
        return False

    def leave(self) -> Sink | None:
        """The sink, if it still waits; it does not any more."""
        sink, self._sink = self._sink, None
        if sink is not None:
            sink.call = None
        return sink

    def fail(self, failure: Failure, detail: str) -> None:
        sink = self.leave()
        if sink is not None:
            sink.on_fail(failure, detail)

    @property
    def paused(self) -> bool:
        return self._paused


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
        self.timeouts = TimeoutValues.of(timeouts)
        self.ticker = ticker
        self._spawn = spawn
        self._idle: list[UpstreamConnection] = []
        self._open: set[UpstreamConnection] = set()
        self._connecting = 0
        self._closed = False
        self.memo: AnswerMemo | None = None
        self._lessons = LESSONS

    def request(self, head: bytes, body: bytes, sink: Sink) -> None:
        """Send `head` (complete, with its empty line) and `body`. Sets `sink.call`. Never raises: what goes wrong
        reaches the sink, after this method has returned."""
        now = self.ticker.now
        idle = self._idle
        while idle:
            connection = idle.pop()
            if now < connection.deadline and now < connection.old_at and connection.alive():
                connection.take(sink, head, body, fresh=False)
                return
            connection.drop()
        self.again(sink, head, body)

    def again(self, sink: Sink, head: bytes, body: bytes) -> None:
        """As `request`, on a new connection: a kept one may turn out to be dead before a byte of the answer."""
        waiting = _Connecting(sink)
        sink.call = waiting
        loop = asyncio.get_running_loop()
        if self._closed:
            loop.call_soon(waiting.fail, Failure.CLOSED, "the engine was removed")
        elif self.open >= self.max_open:
            loop.call_soon(waiting.fail, Failure.FULL, f"all {self.max_open} connections are in use")
        else:
            self._connecting += 1
            self._spawn(self._connect(waiting, head, body))

    def configure(self, timeouts: Timeouts) -> None:
        """New time-outs, for calls that come after."""
        self.timeouts = TimeoutValues.of(timeouts)

    @property
    def open(self) -> int:
        return len(self._open) + self._connecting

    @property
    def busy(self) -> int:
        return len(self._open) - len(self._idle) + self._connecting

    def close(self) -> None:
        """Drop idle connections and take no more calls; calls under way go on."""
        self._closed = True
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.drop()

    # --- for connections ---------------------------------------------------------------------------------------------

    def joined(self, connection: UpstreamConnection) -> None:
        if not self._open:
            self.ticker.add(self._sweep)  # many pools have nothing to sweep
        self._open.add(connection)

    def left(self, connection: UpstreamConnection) -> None:
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        if not self._open:
            self.ticker.remove(self._sweep)

    def give_back(self, connection: UpstreamConnection) -> None:
        """Keep a connection whose call ended well."""
        if self._closed or len(self._idle) >= self.max_idle:
            connection.drop()
            return
        connection.deadline = self.ticker.now + self.timeouts.upstream_idle
        self._idle.append(connection)

    def learn(self, data: bytes, headers: list[Header]) -> None:
        """Keep the head of a whole answer, unless this engine's heads have proved to differ."""
        if self._lessons:
            self._lessons -= 1
            self.memo = remember_answer(data, headers)

    # --- inside ------------------------------------------------------------------------------------------------------

    async def _connect(self, waiting: _Connecting, head: bytes, body: bytes) -> None:
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
            if e.errno in (errno.EMFILE, errno.ENFILE):
                failure = Failure.FULL  # of descriptors: no fault of the engine's
            detail = e.strerror or str(e) or type(e).__name__
        finally:
            self._connecting -= 1
        if connection is None:
            waiting.fail(failure, detail)
            return
        sink = waiting.leave()
        if sink is None:
            self.give_back(connection)
            return
        connection.take(sink, head, body, fresh=True)
        if waiting.paused:
            connection.pause()

    def _sweep(self, now: float) -> None:
        late = [c for c in self._open if c.deadline < now]
        for connection in late:
            connection.timed_out(now)

    def __repr__(self) -> str:
        return f"<Pool {self.origin} {self.busy} busy, {len(self._idle)} idle>"
