"""Listening sockets that can stop listening for a while: for the fault `refuse`."""

from __future__ import annotations

import asyncio
import socket
import stat
from collections.abc import Callable
from pathlib import Path

from forebay.sim.faults import BadFault
from forebay.wire.tasks import Tasks


class PortTaken(Exception):
    """Says which address and what to do."""


class Listener:
    """One address. While it refuses, a bound socket that does not listen keeps the port ours."""

    def __init__(
        self, factory: Callable[[], asyncio.Protocol], sock: socket.socket, tasks: Tasks, *, ours: bool
    ) -> None:
        self._factory = factory
        self._sock = sock
        self._ours = ours
        self._address = sock.getsockname()
        self._server: asyncio.Server | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._tasks = tasks

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._factory, sock=self._sock, backlog=4096)

    def refuse(self, seconds: float) -> None:
        """From now on connecting is refused, for `seconds`. Raises BadFault for a socket that others hold too."""
        if not self._ours or self._sock.family == socket.AF_UNIX:
            raise BadFault("fault 'refuse' needs a TCP port of the engine's own: --host and --port, not --fd or --unix")
        if self._timer is not None:
            self._timer.cancel()
        elif self._server is not None:
            self._server.close()
            self._server = None
            self._sock = bind(self._address[0], self._address[1], listening=False)
        self._timer = asyncio.get_running_loop().call_later(seconds, self._reopen)

    def _reopen(self) -> None:
        self._timer = None
        self._tasks.spawn(self.open())

    def close(self) -> None:
        """Before this, `tasks` is drained."""
        if self._timer is not None:
            self._timer.cancel()
        if self._server is not None:
            self._server.close()
        if self._ours and self._sock.family == socket.AF_UNIX:
            Path(self._address).unlink(missing_ok=True)

    @property
    def name(self) -> str:
        if self._sock.family == socket.AF_UNIX:
            return f"unix:{self._address}"
        host, port = self._address[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def __repr__(self) -> str:
        return f"<Listener {self.name}{' refusing' if self._timer is not None else ''}>"


def bind(host: str, port: int, *, listening: bool = True) -> socket.socket:
    """Raises PortTaken where the address cannot be had."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, proto)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
            if listening:
                sock.listen(4096)
        except OSError:
            sock.close()
            raise
    except OSError as e:
        raise PortTaken(
            f"cannot listen on {host}:{port}: {e.strerror or e}; give another --port, or stop what uses it"
        ) from e
    sock.setblocking(False)
    return sock


def bind_unix(path: str) -> socket.socket:
    """A socket file left by a process that is gone is replaced. Raises PortTaken."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        try:
            sock.bind(path)
        except OSError:
            if not _stale(path):
                raise
            Path(path).unlink()
            sock.bind(path)
        sock.listen(4096)
    except OSError as e:
        sock.close()
        raise PortTaken(f"cannot listen on unix:{path}: {e.strerror or e}; give another --unix path") from e
    sock.setblocking(False)
    return sock


def _stale(path: str) -> bool:
    try:
        if not stat.S_ISSOCK(Path(path).stat().st_mode):
            return False
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.connect(path)
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return False
