"""`python -m forebay.sim.main`: the emulated engine as a process. It starts in well under a second, without typer."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import os
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import uvloop

from forebay.config.models import Limits, Timeouts
from forebay.sim.faults import BadFault, Kind, parse
from forebay.sim.listeners import Listener, PortTaken, bind, bind_unix
from forebay.sim.model import RateModel, Rates
from forebay.sim.server import EngineServer, Settings
from forebay.wire.connection import Connection
from forebay.wire.server import Server
from forebay.wire.ticker import Ticker

EX_OSERR: Final = 71
USAGE: Final = 2
"""argparse's and typer's exit code for a command line that cannot be understood."""
_NEVER: Final = 86_400.0
_FLUSH_SECONDS: Final = 1.0
"""For the last bytes of answers that are whole."""
_MAX_BODY: Final = 256 << 20


@dataclass(frozen=True, slots=True)
class Options:
    """The command line, unchecked."""

    host: str = "127.0.0.1"
    port: int = 8100
    unix: str | None = None
    fd: int | None = None
    parent_fd: int | None = None
    model: list[str] | None = None
    max_model_len: int = 8192
    max_num_seqs: int = 256
    max_num_queued_reqs: int | None = None
    prefill_rate: float = 8000.0
    decode_rate: float = 50.0
    batch_slowdown: float = 0.0
    kv_tokens: int = 262_144
    block_size: int = 16
    seed: int = 0
    api_key: str | None = field(default=None, repr=False)
    keep_alive: float = 5.0
    fault: list[str] = field(default_factory=list)
    allow_fault_header: bool = False


def parser() -> argparse.ArgumentParser:
    default = Options()
    out = argparse.ArgumentParser(prog="forebay engine", description="An emulated vLLM server.")
    where = out.add_argument_group("where")
    where.add_argument("--host", default=default.host)
    where.add_argument("--port", type=int, default=default.port, help="0: any free port")
    where.add_argument("--unix", metavar="PATH", help="listen on a Unix socket instead")
    where.add_argument("--fd", type=int, metavar="N", help="serve this inherited listening socket instead")
    where.add_argument("--parent-fd", type=int, metavar="N", help="leave when this descriptor reaches end of file")
    what = out.add_argument_group("what")
    what.add_argument("--model", action="append", metavar="NAME", help="served model; repeatable")
    what.add_argument("--max-model-len", type=int, default=default.max_model_len, metavar="TOKENS")
    what.add_argument(
        "--max-num-seqs", type=int, default=default.max_num_seqs, metavar="N", help="sequences that run at once"
    )
    what.add_argument("--max-num-queued-reqs", type=int, metavar="N", help="running and waiting; over it 503")
    what.add_argument("--prefill-rate", type=float, default=default.prefill_rate, metavar="TOKENS/S")
    what.add_argument(
        "--decode-rate", type=float, default=default.decode_rate, metavar="TOKENS/S", help="of each sequence"
    )
    what.add_argument(
        "--batch-slowdown", type=float, default=default.batch_slowdown, metavar="FRACTION", help="per other sequence"
    )
    what.add_argument("--kv-tokens", type=int, default=default.kv_tokens, metavar="TOKENS")
    what.add_argument("--block-size", type=int, default=default.block_size, metavar="TOKENS")
    what.add_argument("--seed", type=int, default=default.seed)
    what.add_argument("--api-key", metavar="KEY", help="ask for it on /v1")
    what.add_argument(
        "--keep-alive", type=float, default=default.keep_alive, metavar="SECONDS", help="idle connections (vLLM: 5)"
    )
    wrong = out.add_argument_group("faults")
    wrong.add_argument("--fault", action="append", default=[], metavar="KIND[=ARG][@SHARE]", help="repeatable")
    wrong.add_argument("--allow-fault-header", action="store_true", help="obey x-forebay-fault in a request")
    return out


def settings_of(args: Options) -> Settings:
    """Raises ValueError that names the option."""
    try:
        faults = tuple(parse(text) for text in args.fault)
    except BadFault as e:
        raise BadFault(f"--fault: {e}") from None
    if any(f.kind is Kind.REFUSE for f in faults):
        raise BadFault("--fault: 'refuse' counts from now, so it is set over HTTP: PUT /control/faults")
    if args.max_model_len < 1:
        raise ValueError(f"--max-model-len must be at least 1, not {args.max_model_len}")
    if args.max_num_queued_reqs is not None and args.max_num_queued_reqs < 1:
        raise ValueError(f"--max-num-queued-reqs must be at least 1, not {args.max_num_queued_reqs}")
    if not 0 < args.keep_alive <= _NEVER:
        raise ValueError(f"--keep-alive must be over 0 and at most {_NEVER:g} seconds, not {args.keep_alive:g}")
    if not 0 <= args.port <= 65_535:
        raise ValueError(f"--port must be 0 to 65535, not {args.port}")
    models = tuple(args.model or Settings().models)
    if not all(models) or len(set(models)) != len(models):
        raise ValueError(f"--model must be given a different name each time, not {', '.join(map(repr, models))}")
    return Settings(
        models=models,
        max_model_len=args.max_model_len,
        seed=args.seed,
        rates=_rates(args),
        max_num_queued_reqs=args.max_num_queued_reqs,
        api_key=args.api_key,
        allow_fault_header=args.allow_fault_header,
        faults=faults,
    )


def _rates(args: Options) -> Rates:
    """Raises ValueError that names the option."""
    names = ("max_num_seqs", "prefill_rate", "decode_rate", "batch_slowdown", "kv_tokens", "block_size")
    try:
        return Rates(**{name: getattr(args, name) for name in names})
    except ValueError as e:
        field, _, rest = str(e).partition(" ")
        raise ValueError(f"--{field.replace('_', '-')} {rest}") from None


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
    settings: Settings, sock: socket.socket, *, ours: bool, keep_alive: float, parent_fd: int | None
) -> None:
    """Until SIGTERM, SIGINT or the parent's end. An engine that stops is gone: streams in flight are cut.

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

    handler = EngineServer(settings, RateModel(settings.rates), refuse)

    def terminate() -> None:
        if parent_fd is None or not handler.books.busy:
            stop.set()
        else:
            handler.books.on_idle = stop.set

    loop.add_signal_handler(signal.SIGTERM, terminate)
    loop.add_signal_handler(signal.SIGINT, terminate if parent_fd is None else _leave_it_to_the_parent)
    limits = Limits(body_bytes=_MAX_BODY, header_bytes=65_536, connections=100_000)
    server = Server(handler, limits, Timeouts(idle=keep_alive, write=_NEVER), ticker)
    listeners.append(Listener(lambda: Connection(server), sock, ours=ours))
    await listeners[0].open()
    gc.collect()
    gc.freeze()  # what start-up made stays, so full collections need not look at it
    print(f"forebay engine: {', '.join(settings.models)} on {listeners[0].name}", flush=True)  # noqa: T201
    await stop.wait()
    for listener in listeners:
        listener.close()
    server.start_drain()
    if not handler.books.busy:
        await server.wait_closed(_FLUSH_SECONDS)
    await server.close()
    handler.close()
    ticker.stop()


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
        print(f"forebay engine: {e}", file=sys.stderr)  # noqa: T201
        return USAGE
    try:
        sock, ours = _socket_of(options)
    except (PortTaken, OSError) as e:
        print(f"forebay engine: {e}", file=sys.stderr)  # noqa: T201
        return EX_OSERR
    uvloop.run(serve(settings, sock, ours=ours, keep_alive=options.keep_alive, parent_fd=options.parent_fd))
    return 0


def run_engine(argv: Sequence[str]) -> int:
    """`run` with a command line. Raises SystemExit for one that cannot be understood."""
    return run(Options(**vars(parser().parse_args(argv))))


if __name__ == "__main__":
    sys.exit(run_engine(sys.argv[1:]))
