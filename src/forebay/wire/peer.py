"""The other end of a connection: who it is, and how its vanishing is noticed."""

from __future__ import annotations

import asyncio
import socket

from forebay.wire.message import Peer

_KEEP_IDLE, _KEEP_INTERVAL, _KEEP_COUNT = 15, 5, 3


def peer_of(transport: asyncio.Transport | None, listener: int) -> Peer:
    name = transport.get_extra_info("peername") if transport is not None else None
    tls = transport is not None and transport.get_extra_info("sslcontext") is not None
    if isinstance(name, tuple):
        address = str(name[0])
        return Peer(address.removeprefix("::ffff:"), int(name[1]), tls, listener)
    return Peer("unix", 0, tls, listener)


def guard_against_vanished_peers(sock: socket.socket, write_timeout: float) -> None:
    """Let the kernel notice a peer that went without a word: probes when quiet, a bound on unacknowledged bytes."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEP_IDLE)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEP_INTERVAL)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _KEEP_COUNT)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(write_timeout * 1000))
