"""The HTTP/1.1 server: a listener, its connections, their drain.

It parses requests and hands each to a `Handler`, one at a time a connection and in order; what was sent ahead waits.
Requests that could be read in two ways by two parsers (request smuggling) are refused and the connection is closed;
most of that is llhttp's strict mode, the rest is in `soundness.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import resource
import select
import socket
import ssl
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from email.utils import formatdate

from mypy_extensions import mypyc_attr

from forebay.config.models import Limits, Timeouts
from forebay.errors import Refusal
from forebay.wire.bounds import LimitValues, TimeoutValues
from forebay.wire.connection import Connection
from forebay.wire.message import Request
from forebay.wire.reply import Reply
from forebay.wire.ticker import Ticker

log = logging.getLogger("forebay.wire")

BACKLOG = 4096
RESERVED = 64
"""Descriptors that are not for client or engine connections."""

__all__ = ["Handler", "Reply", "Request", "Server", "ServerCounters"]


@mypyc_attr(allow_interpreted_subclasses=True)
class Handler(ABC):
    """What answers requests. Its methods run on the event loop and must not block it. A class and no protocol, which
    compiled code would look each method up in."""

    @abstractmethod
    def on_head(self, request: Request) -> Refusal | None:
        """Before the body is read. A Refusal is the answer, and the body is not kept."""

    @abstractmethod
    def on_request(self, request: Request, reply: Reply) -> None:
        """The body is whole. `reply` must be ended, refused or aborted, now or later."""

    @abstractmethod
    def on_refused(self, request: Request | None, refusal: Refusal) -> bytes:
        """A request was refused before `on_request`: None where not even its head was understood. Returns a header
        block to add to the answer."""


@dataclass(slots=True)
class ServerCounters:
    accepted: int = 0
    turned_away: int = 0
    bad_requests: int = 0
    bytes_in: int = 0
    bytes_out: int = 0


class Server:
    """Every listener of one process. Mutable state: the set of connections, and whether it drains."""

    def __init__(self, handler: Handler, limits: Limits, timeouts: Timeouts, ticker: Ticker) -> None:
        self.handler = handler
        self._said = (0, 0)
        self.limits = self._within_descriptors(limits)
        self.timeouts = TimeoutValues.of(timeouts)
        self.ticker = ticker
        self.counters = ServerCounters()
        self.draining = False
        self.connections: set[Connection] = set()
        self.date = b""
        self._second = 0
        self._listeners: list[asyncio.Server] = []
        self._empty = asyncio.Event()
        self._empty.set()
        self._watch = _LeaveWatch(asyncio.get_running_loop())
        self._sweep(ticker.now)
        ticker.add(self._sweep)

    async def listen(self, sock: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        """Serve a bound socket."""
        loop = asyncio.get_running_loop()
        index = len(self._listeners)
        self._listeners.append(
            await loop.create_server(
                lambda: Connection(self, index),
                sock=sock,
                ssl=tls,
                backlog=BACKLOG,
                ssl_handshake_timeout=self.timeouts.header if tls else None,
                ssl_shutdown_timeout=5.0 if tls else None,
            )
        )

    def configure(self, limits: Limits, timeouts: Timeouts) -> None:
        """New limits, for connections and requests that come after."""
        self.limits = self._within_descriptors(limits)
        self.timeouts = TimeoutValues.of(timeouts)

    def start_drain(self) -> None:
        """Stop listening, close what is idle; what is being answered goes on."""
        self.draining = True
        for listener in self._listeners:
            listener.close()
        for connection in tuple(self.connections):
            connection.close_if_idle()

    async def wait_closed(self, seconds: float) -> bool:
        """Until every connection is gone, or `seconds` have passed. True where none is left."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._empty.wait(), seconds)
        return not self.connections

    def abort(self) -> None:
        """Cut every connection."""
        for connection in tuple(self.connections):
            connection.abort()

    async def close(self) -> None:
        self.start_drain()
        self.abort()
        self.ticker.remove(self._sweep)
        await self.wait_closed(1.0)
        self._watch.close()

    # --- for connections ---------------------------------------------------------------------------------------------

    def joined(self, connection: Connection) -> bool:
        """False where the house is full."""
        if len(self.connections) >= self.limits.connections:
            self.counters.turned_away += 1
            return False
        self.counters.accepted += 1
        self.connections.add(connection)
        self._empty.clear()
        return True

    def left(self, connection: Connection) -> None:
        self.connections.discard(connection)
        if not self.connections:
            self._empty.set()

    def watch(self, connection: Connection) -> None:
        self._watch.add(connection)

    def unwatch(self, connection: Connection) -> None:
        self._watch.remove(connection)

    def failed(self, error: BaseException) -> None:
        log.error("a request failed inside the gateway", exc_info=error)

    def _sweep(self, now: float) -> None:
        wall = int(time.time())
        if wall != self._second:
            self._second = wall
            self.date = b"date: " + formatdate(wall, usegmt=True).encode() + b"\r\n"
        late = [c for c in self.connections if c.deadline < now]
        for connection in late:
            connection.timed_out(now)

    def _within_descriptors(self, limits: Limits) -> LimitValues:
        """No more connections than leave each a descriptor for its engine, and some for everything else."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = max(1, (soft - RESERVED) // 2)
        values = LimitValues.of(limits)
        if values.connections <= most:
            return values
        if self._said != (most, values.connections):  # a reload that changes nothing of it says nothing of it
            self._said = (most, values.connections)
            log.info("limits.connections: %d instead of %d, for want of descriptors (ulimit -n)", *self._said)
        return dataclasses.replace(values, connections=most)

    def __repr__(self) -> str:
        return f"<Server {len(self.connections)} connections{' draining' if self.draining else ''}>"


class _LeaveWatch:
    """Sees a peer leave while reading from it is paused: EPOLLRDHUP needs no read."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._epoll: select.epoll | None = None
        self._by_fd: dict[int, Connection] = {}

    def add(self, connection: Connection) -> None:
        fd = connection.fileno()
        if fd < 0 or fd in self._by_fd:
            return
        if self._epoll is None:
            self._epoll = select.epoll()
            self._loop.add_reader(self._epoll.fileno(), self._ready)
        self._epoll.register(fd, select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR)
        self._by_fd[fd] = connection

    def remove(self, connection: Connection) -> None:
        for fd, watched in tuple(self._by_fd.items()):
            if watched is connection:
                del self._by_fd[fd]
                if self._epoll is not None:
                    with contextlib.suppress(OSError):  # a closed descriptor has left the set by itself
                        self._epoll.unregister(fd)

    def _ready(self) -> None:
        if self._epoll is None:
            return
        for fd, _events in self._epoll.poll(0):
            connection = self._by_fd.get(fd)
            if connection is not None:
                self.remove(connection)
                connection.abort()

    def close(self) -> None:
        if self._epoll is not None:
            self._loop.remove_reader(self._epoll.fileno())
            self._epoll.close()
            self._epoll = None
