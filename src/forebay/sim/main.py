"""`python -m forebay.sim.main`: the emulated engine as a process. It starts in well under a second, without typer."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import socket
import sys
from collections.abc import Sequence
from typing import Final

import uvloop

from forebay.config.models import Limits, Timeouts
from forebay.errors import shown
from forebay.sim.listeners import Listener, PortTaken, bind, bind_unix
from forebay.sim.options import NEVER, Options, parser, settings_of
from forebay.sim.server import EngineServer, Outside
from forebay.sim.serving import Settings
from forebay.wire.connection import Connection
from forebay.wire.server import Server
from forebay.wire.tasks import Tasks
from forebay.wire.ticker import Ticker

EX_OSERR: Final = 71
USAGE: Final = 2
"""argparse's and typer's exit code for a command line that cannot be understood."""
_FLUSH_SECONDS: Final = 1.0
"""For the last bytes of answers that are whole."""
_MAX_BODY: Final = 256 << 20


def _socket_of(args: Options) -> tuple[socket.socket, bool]:
    """The listening socket, and whether it is ours alone."""
    if args.fd is not None:
        sock = socket.socket(fileno=args.fd)
        sock.setblocking(False)
        return sock, False
    if args.unix is not None:
        return bind_unix(args.unix), True
    return bind(args.host, args.port), True


async def serve(
    settings: Settings,
    sock: socket.socket,
    *,
    ours: bool,
    keep_alive: float,
    parent_fd: int | None,
    second: socket.socket | None = None,
) -> None:
    """Until SIGTERM, SIGINT or the parent's end. An engine that stops is gone: streams in flight are cut. `second`: a
    socket of ours that is served too, for SGLang's bootstrap port.

    A child (`parent_fd`) leaves SIGINT to its parent and on SIGTERM finishes what it has begun: both may be meant for
    the whole group (a terminal's Ctrl-C, systemd), while the parent still drains through this engine.
    """
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    if parent_fd is not None:
        _watch_parent(loop, parent_fd, stop)
    ticker = Ticker(loop)
    ticker.start()
    listeners: list[Listener] = []

    def refuse(seconds: float) -> None:
        for listener in listeners:
            listener.refuse(seconds)

    tasks = Tasks()
    outside = Outside(refuse, lambda: None)
    handler = EngineServer(settings, outside, tasks, _reached_at(sock))

    def terminate() -> None:
        if parent_fd is None or not handler.books.busy:
            stop.set()
        else:
            handler.books.on_idle = stop.set

    loop.add_signal_handler(signal.SIGTERM, terminate)
    loop.add_signal_handler(signal.SIGINT, terminate if parent_fd is None else _leave_it_to_the_parent)
    limits = Limits(body_bytes=_MAX_BODY, header_bytes=65_536, connections=100_000)
    server = Server(handler, limits, Timeouts(idle=keep_alive, write=NEVER), ticker)

    def hang_up() -> None:
        for connection in tuple(server.connections):
            connection.close_if_idle()

    outside.hang_up = hang_up
    listeners.append(Listener(lambda: Connection(server), sock, tasks, ours=ours))
    if second is not None:
        listeners.append(Listener(lambda: Connection(server), second, tasks, ours=True))
    for listener in listeners:
        await listener.open()
    gc.collect()
    gc.freeze()  # what start-up made stays, so full collections need not look at it
    print(f"forebay engine: {shown(', '.join(settings.models), 4000)} on {listeners[0].name}", flush=True)  # noqa: T201
    await stop.wait()
    await tasks.drain()
    for listener in listeners:
        listener.close()
    server.start_drain()
    if not handler.books.busy:
        await server.wait_closed(_FLUSH_SECONDS)
    await server.close()
    await handler.close()
    ticker.stop()


def _reached_at(sock: socket.socket) -> tuple[str, int] | None:
    """Host and port for other engines on this machine, or on the network where vLLM's variable names the host."""
    if sock.family == socket.AF_UNIX:
        return None
    host, port = sock.getsockname()[:2]
    if host in ("0.0.0.0", "::"):  # noqa: S104
        host = "127.0.0.1"
    return os.environ.get("VLLM_NIXL_SIDE_CHANNEL_HOST") or host, port


def _leave_it_to_the_parent() -> None:
    """SIGINT in a child."""


def _watch_parent(loop: asyncio.AbstractEventLoop, fd: int, stop: asyncio.Event) -> None:
    os.set_blocking(fd, False)

    def readable() -> None:
        with contextlib.suppress(BlockingIOError):
            if os.read(fd, 4096):
                return
            loop.remove_reader(fd)
            stop.set()

    loop.add_reader(fd, readable)


def run(options: Options) -> int:
    """The process's exit code: 0 after SIGTERM or the parent's end, 2 for a bad option, 71 where the address is
    taken."""
    try:
        settings = settings_of(options)
    except ValueError as e:
        print(f"forebay engine: {shown(e, 2000)}", file=sys.stderr)  # noqa: T201
        return USAGE
    if settings.kv_transfer and options.unix is not None:
        print("forebay engine: --kv-transfer-config needs a TCP port, so not --unix", file=sys.stderr)  # noqa: T201
        return USAGE
    second = None
    try:
        sock, ours = _socket_of(options)
        if settings.role == "prefill" and settings.bootstrap_port is not None and options.unix is None:
            second = bind(options.host, settings.bootstrap_port)
    except (PortTaken, OSError) as e:
        print(f"forebay engine: {shown(e, 2000)}", file=sys.stderr)  # noqa: T201
        return EX_OSERR
    try:
        uvloop.run(
            serve(
                settings,
                sock,
                ours=ours,
                keep_alive=options.keep_alive,
                parent_fd=options.parent_fd,
                second=second,
            )
        )
    except PortTaken as e:
        print(f"forebay engine: {shown(e, 2000)}", file=sys.stderr)  # noqa: T201
        return EX_OSERR
    return 0


def run_engine(argv: Sequence[str]) -> int:
    """`run` with a command line. Raises SystemExit for one that cannot be understood."""
    return run(Options(**vars(parser().parse_args(argv))))


if __name__ == "__main__":
    sys.exit(run_engine(sys.argv[1:]))
