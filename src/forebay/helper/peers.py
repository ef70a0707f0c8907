"""The socket of the helper process: frames in, frames out, and what everyone is told."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Final, cast

import msgspec

from forebay.cache.messages import Answered, Said

log = logging.getLogger("forebay.cache")

MAX_FRAME: Final = 80 << 20
"""Bytes: the largest `cache.answer_bytes`, and room for what stands around it."""
CLOGGED: Final = 160 << 20
"""Bytes waiting for one who does not read: then the connection is given up, and a worker makes another."""
_HEAD: Final = 4

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Said)


class CannotListen(Exception):
    """The message says why."""


def packed(message: Answered) -> bytes:
    body = _encoder.encode(message)
    return len(body).to_bytes(_HEAD, "big") + body


class Connection(asyncio.Protocol):
    """One who asks. `Peers.heard` gets each message; what cannot be read ends the connection."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if not _ours(transport.get_extra_info("socket")):
            log.warning("a process of another user was turned away from the cache's socket")
            self._transport.abort()
            return
        self._peers.add(self)

    def data_received(self, data: bytes) -> None:
        if self._buffer:
            self._buffer += data
            with memoryview(self._buffer) as view:
                at = self._read(view)
            if at:
                del self._buffer[:at]
        elif (at := self._read(memoryview(data))) < len(data):
            self._buffer += memoryview(data)[at:]

    def _read(self, view: memoryview) -> int:
        """The messages that are whole; up to where they go, all where the connection is broken."""
        at = 0
        while len(view) - at >= _HEAD:
            size = int.from_bytes(view[at : at + _HEAD], "big")
            if size > MAX_FRAME:
                self._broken(f"a frame of {size:,} bytes")
                return len(view)
            end = at + _HEAD + size
            if end > len(view):
                break
            try:
                message = _decoder.decode(view[at + _HEAD : end])
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as e:
                self._broken(str(e))
                return len(view)
            at = end
            self._peers.heard(self, message, size)
        return at

    def _broken(self, why: str) -> None:
        log.error("a message to the cache's helper is none, and its connection is closed: %s", why)
        self.abort()

    def send(self, frame: bytes) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if transport.get_write_buffer_size() + len(frame) > CLOGGED:
            log.warning("a process does not read what the cache's helper says, and its connection is closed")
            self.abort()
            return
        transport.write(frame)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._peers.remove(self)

    def __repr__(self) -> str:
        return f"<Connection {'open' if self._transport is not None else 'closed'}>"


class Peers:
    """Everyone connected. For one event loop."""

    def __init__(self, heard: Callable[[Connection, Said, int], None]) -> None:
        self.heard = heard
        self._all: set[Connection] = set()
        self._server: asyncio.Server | None = None
        self._path: Path | None = None

    async def listen(self, path: Path) -> None:
        """On a socket of mode 0600; one that a dead process left is replaced. Raises CannotListen."""
        sock = _bound(path)
        self._path = path
        self._server = await asyncio.get_running_loop().create_unix_server(lambda: Connection(self), sock=sock)

    def add(self, connection: Connection) -> None:
        self._all.add(connection)

    def remove(self, connection: Connection) -> None:
        self._all.discard(connection)

    def publish(self, message: Answered) -> None:
        frame = packed(message)
        for connection in tuple(self._all):
            connection.send(frame)

    def stop(self) -> None:
        """Nobody else is let in."""
        if self._server is not None:
            self._server.close()

    def close(self) -> None:
        self.stop()
        for connection in tuple(self._all):
            connection.abort()
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def __len__(self) -> int:
        return len(self._all)

    def __repr__(self) -> str:
        return f"<Peers {len(self._all)}>"


def _bound(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
            sock.connect(str(path))
            raise CannotListen(f"{path} is served already: another `forebay serve` uses this state_dir")
        sock.close()
        path.unlink(missing_ok=True)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.bind(str(path))  # in a folder of mode 0700, so nobody gets in between here and chmod
        path.chmod(0o600)
        sock.listen(128)
    except OSError as e:
        sock.close()
        raise CannotListen(f"{path} cannot be listened on: {e}; choose a shorter or another state_dir") from e
    except CannotListen:
        sock.close()
        raise
    return sock


def _ours(sock: socket.socket) -> bool:
    """Whether the other end is a process of this user, or of root (SO_PEERCRED: pid, uid, gid; unix(7))."""
    _, uid, _ = struct.unpack("iII", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("iII")))
    return uid in (os.geteuid(), 0)
