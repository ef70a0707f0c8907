"""`forebay serve`: the gateway, with an engine built in where none is configured."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from forebay import __version__
from forebay.cli.children import Plan, python
from forebay.cli.main import EX_CONFIG
from forebay.cli.supervisor import EX_UNAVAILABLE, CannotStart, Supervisor, bind, prepare_state_dir
from forebay.config.engine import Engine, EngineKind
from forebay.config.models import Address, Anonymous, Callers, Class, Config, Listener
from forebay.config.problems import ConfigError
from forebay.gateway import logs

log = logging.getLogger("forebay.supervisor")

LOCAL_MODEL = "smollm2-135m-instruct"
EMULATED_MODEL = "forebay-sim"


class NoEngine(ValueError):
    """The configuration has none, and none was asked for on the command line."""


@dataclass(frozen=True, slots=True)
class Companion:
    """What the supervisor starts beside the gateway: its process, the entry it adds to the configuration (None where
    the file has it), and the descriptors to keep open while it lives."""

    plan: Plan
    entry: Engine | None
    keep: tuple[int, ...]


class BuiltIn(StrEnum):
    EMULATED = "emulated"
    LOCAL = "local"


def command(
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="forebay.yaml.", envvar="FOREBAY_CONFIG")
    ] = None,
    engine: Annotated[
        BuiltIn | None, typer.Option(help="Start an engine of our own: emulated, or local (SmolLM2 on this CPU).")
    ] = None,
    launch: Annotated[
        bool, typer.Option("--launch", help="Start the engines with a launch section too: `forebay launch` as a child.")
    ] = False,
    listen: Annotated[str | None, typer.Option(help="Address of the API; overrides the file's listeners.")] = None,
    admin: Annotated[str | None, typer.Option(help="Address of health and metrics; overrides the file's.")] = None,
    state_dir: Annotated[Path | None, typer.Option(help="Where state is kept; overrides the file's.")] = None,
) -> None:
    """Run the gateway.

    Without a configuration file it serves an emulated engine on 127.0.0.1:8080, to this machine only, with any API key
    or none. SIGTERM drains, SIGHUP reads the file again, and the price file that it names.

    Exits with 0 after a drain, 78 for a configuration that cannot be used, 71 where an address is taken, 69 where
    another Forebay uses the same state directory.
    """
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115 - as long as the process lives
    logging.basicConfig(level=logging.INFO, format="forebay: %(message)s", stream=sys.stderr)

    if launch and (config is None or engine is not None):
        print("forebay serve: --launch takes --config, and no --engine beside it", file=sys.stderr)
        sys.exit(2)
    built_in = engine or (BuiltIn.EMULATED if config is None else None)

    def read() -> Config:
        found = _overridden(_load(config) if config is not None else _without_file(), listen, admin, state_dir)
        if built_in is None and not found.engines and found.engines_file is None:
            raise NoEngine(f"{config} names no engine; add one under engines:, or use --engine")
        return found

    try:
        settings = read()
    except ConfigError as e:
        for problem in e.problems:
            print(problem, file=sys.stderr)
        sys.exit(EX_CONFIG)
    except ValueError as e:
        print(f"forebay serve: {e}", file=sys.stderr)
        sys.exit(EX_CONFIG if isinstance(e, NoEngine) else 2)
    _raise_descriptor_limit()
    writer = logs.start(settings.logging, "supervisor")
    try:
        code = asyncio.run(_run(settings, read if config is not None else None, built_in, config, launch))
    except ConfigError as e:  # of what the configuration names: the price file
        for problem in e.problems:
            print(problem, file=sys.stderr)
        code = EX_CONFIG
    except CannotStart as e:
        print(f"forebay serve: {e}", file=sys.stderr)
        code = e.code
    finally:
        writer.close()
    sys.exit(code)


async def _run(
    settings: Config, reread: Callable[[], Config] | None, built_in: BuiltIn | None, file: Path | None, launch: bool
) -> int:
    lock = prepare_state_dir(settings.state_dir)
    companion: Companion | None = None
    if launch and file is not None:
        companion = _launcher(settings, file)
    elif built_in is not None:
        companion = _companion(built_in)

    def with_engine(config: Config) -> Config:
        added = (companion.entry,) if companion is not None and companion.entry is not None else ()
        return config.model_copy(update={"engines": (*config.engines, *added)})

    supervisor = Supervisor(
        with_engine(settings),
        (lambda: with_engine(reread())) if reread is not None else None,
        companion.plan if companion is not None else None,
        lock,
    )
    try:
        return await supervisor.run(lambda: _say_ready(supervisor, settings, built_in, file))
    finally:
        for fd in companion.keep if companion is not None else ():
            os.close(fd)


def _raise_descriptor_limit() -> None:
    """A stream takes two descriptors of a worker; shells start with a soft limit of 1,024. Children inherit it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _load(path: Path) -> Config:
    from forebay.config.load import load

    return load(path, os.environ)


def _without_file() -> Config:
    anonymous = Anonymous.model_validate({"enabled": True, "any_key": True, "class": Class.NORMAL})
    return Config(callers=Callers(anonymous=anonymous))


def _overridden(config: Config, listen: str | None, admin: str | None, state_dir: Path | None) -> Config:
    """Raises ValueError for an address that is none, or a listener that the rest does not allow."""
    changes: dict[str, object] = {}
    if listen is not None:
        changes["listeners"] = (Listener(address=Address.parse(listen)),)
    if admin is not None:
        changes["admin"] = Address.parse(admin)
    if state_dir is not None:
        changes["state_dir"] = state_dir.absolute()
    changed = config.model_copy(update=changes)
    if config.callers.anonymous.any_key and not all(x.address.loopback for x in changed.listeners):
        raise ValueError("without a configuration file only this machine is served: --listen takes a loopback address")
    return changed


def _companion(built_in: BuiltIn) -> Companion:
    with bind(Address(host="127.0.0.1", port=0)) as sock:
        port = sock.getsockname()[1]
        listening = os.dup(sock.fileno())
    theirs, ours = os.pipe()  # the engine ends when our end closes
    if built_in is BuiltIn.EMULATED:
        arguments = python(
            "forebay.sim.main", "--fd", str(listening), "--parent-fd", str(theirs), "--model", EMULATED_MODEL
        )
        arguments += ["--keep-alive", "3600"]
        entry = Engine(name="built-in", url=f"http://127.0.0.1:{port}", kind=EngineKind.VLLM, health_interval=1.0)
        return Companion(Plan("engine", lambda: arguments, (listening, theirs)), entry, (listening, theirs, ours))
    os.close(listening)
    from forebay.engines.local import LocalUnavailable, model_path, server_command

    try:
        path = model_path()
    except LocalUnavailable as e:
        raise CannotStart(EX_UNAVAILABLE, str(e)) from None
    arguments = server_command(path, port, theirs)
    entry = Engine(
        name="local",
        url=f"http://127.0.0.1:{port}",
        kind=EngineKind.LLAMACPP,
        models=(LOCAL_MODEL,),
        health_interval=5.0,
        unhealthy_after=3,
    )
    return Companion(Plan("engine", lambda: arguments, (theirs,)), entry, (theirs, ours))


def _launcher(settings: Config, file: Path) -> Companion:
    """`forebay launch` as a child. What can be known to be in its way is said before anything serves."""
    from forebay.cli.launch import check_way
    from forebay.cli.launch_config import chosen, launch_problems, launchables
    from forebay.cli.launched import LEAVE
    from forebay.config.load import read

    if problems := list(launch_problems(read(file, os.environ))):
        raise CannotStart(EX_CONFIG, "\n".join(map(str, problems)))
    try:
        found, wrong = launchables(chosen(settings, []))
    except ValueError as e:
        raise CannotStart(EX_CONFIG, str(e)) from None
    if wrong:
        raise CannotStart(EX_UNAVAILABLE, "\n  ".join(wrong))
    if not any(one.program.here for one in found):
        raise CannotStart(
            EX_CONFIG, "--launch: none of the engines with a launch section is of a kind that is started here"
        )
    check_way(found)
    theirs, ours = os.pipe()
    arguments = python("forebay", "launch", "--config", str(file.absolute()), "--parent-fd", str(theirs))
    arguments += ["--state-dir", str(settings.state_dir)]
    leave = max((one.launch.stop_timeout for one in found), default=0.0) + LEAVE
    return Companion(Plan("launch", lambda: arguments, (theirs,), leave=leave), None, (theirs, ours))


def _say_ready(supervisor: Supervisor, config: Config, built_in: BuiltIn | None, file: Path | None) -> None:
    where = [
        _url(listener.address, sock.getsockname(), listener.tls is not None)
        for listener, sock in zip(config.listeners, supervisor.listeners, strict=True)
    ]
    admin = _url(config.admin, supervisor.admin_listener.getsockname(), False)
    lines = [f"Forebay {__version__} serves {', '.join(where)} (health and metrics on {admin})"]
    if built_in is not None:
        model = EMULATED_MODEL if built_in is BuiltIn.EMULATED else LOCAL_MODEL
        lines.append(f"  engine: built in, {built_in.value}, model {model}")
    if file is None:
        lines.append("  no configuration file: this machine only, any API key or none is accepted")
    with contextlib.suppress(OSError):  # a log that nobody reads is no reason to stop
        sys.stderr.write("\n".join(lines) + "\n")  # one write, so that no other process speaks in between


def _url(address: Address, bound: object, tls: bool) -> str:
    if address.unix:
        return f"unix:{address.unix}"
    port = bound[1] if isinstance(bound, tuple) else address.port
    host = f"[{address.host}]" if ":" in address.host else address.host
    return f"{'https' if tls else 'http'}://{host}:{port}"
