"""`forebay launch`: starts the engines that the configuration describes, and keeps them running."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from forebay.cli.launch_config import Launchable, chosen, in_the_way, launch_problems, launchables
from forebay.cli.launch_log import EngineLog, file_name
from forebay.cli.launch_view import Lines, Moving, View
from forebay.cli.launched import LEAVE, Launched, Phase
from forebay.cli.main import EX_CONFIG, USAGE
from forebay.cli.supervisor import EX_FAILED, EX_OK, EX_OSERR, EX_UNAVAILABLE, CannotStart, lock_file, make_state_dir
from forebay.config.load import read
from forebay.config.models import Config
from forebay.config.problems import ConfigError
from forebay.gateway import logs

log = logging.getLogger("forebay.launch")


def command(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Which engines; all by default.")
    ] = None,
    config: Annotated[Path, typer.Option("--config", "-c", help="forebay.yaml.", envvar="FOREBAY_CONFIG")] = Path(
        "forebay.yaml"
    ),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the command lines and start nothing.")] = False,
    state_dir: Annotated[Path | None, typer.Option(help="Where logs are kept; overrides the file's.")] = None,
    parent_fd: Annotated[
        int | None, typer.Option(metavar="N", help="Leave when this descriptor reaches end of file.")
    ] = None,
) -> None:
    """Start the engines that have a launch section, and keep them running.

    vLLM, SGLang and llama.cpp run on this machine, as children of this command: they end with it, however it ends. Of
    the other kinds the command line is printed. Each engine's output is in state_dir/logs/NAME.log. SIGTERM and Ctrl-C
    end the engines gracefully; a second one kills them.

    Exits with 0 after a signal, with 1 where an engine was given up, with 69 or 71 where one cannot be started at all
    (71: its port is taken), with 78 for a configuration that cannot be used.
    """
    logging.basicConfig(level=logging.INFO, format="forebay: %(message)s", stream=sys.stderr)
    try:
        settings = _settings(config, state_dir)
    except ConfigError as e:
        print(e, file=sys.stderr)
        sys.exit(EX_CONFIG)
    try:
        engines = chosen(settings, names or [])
    except ValueError as e:
        print(f"forebay launch: {e}", file=sys.stderr)
        sys.exit(USAGE)
    found, wrong = launchables(engines)
    here = [one for one in found if one.program.here]
    for one in found:
        if dry_run or not one.program.here:
            print(_printed(one, dry_run))
    sys.stdout.flush()
    if wrong or dry_run or not here:
        for why in wrong:
            print(f"forebay launch: {why}", file=sys.stderr)
        sys.exit(EX_UNAVAILABLE if wrong else EX_OK)
    writer = logs.start(settings.logging, "launch")
    try:
        code = asyncio.run(_run(here, settings, _view(parent_fd), parent_fd))
    except CannotStart as e:
        print(f"forebay launch: {e}", file=sys.stderr)
        code = e.code
    finally:
        writer.close()
    sys.exit(code)


def _settings(file: Path, state_dir: Path | None) -> Config:
    """Only what engines are about. Raises ConfigError, also for what an engine does not support."""
    source = read(file, os.environ, "engines", "state_dir", "logging")
    if problems := list(launch_problems(source)):
        raise ConfigError(problems)
    return source.config.model_copy(update={"state_dir": state_dir.absolute()} if state_dir is not None else {})


def _printed(one: Launchable, dry_run: bool) -> str:
    where = f"cd {one.launch.directory} && " if one.launch.directory is not None else ""
    note = "" if one.program.here else f"; start it yourself ({one.program.install})"
    lines = [f"# {one.engine.name}: {one.program.title}{note}", where + one.command.shown()]
    if one.program.kind == "ollama":
        lines.insert(1, f"ollama pull {one.launch.model}  # while it serves")
    return "\n".join(lines)


def _view(parent_fd: int | None) -> View:
    if parent_fd is not None or not sys.stderr.isatty():
        return Lines()
    from rich.console import Console

    return Moving(Console(stderr=True))


def check_way(found: Sequence[Launchable]) -> None:
    """Raises CannotStart with everything that is in the way of those that run here."""
    if why := in_the_way(found):
        code = EX_OSERR if all("cannot listen" in line for line in why) else EX_UNAVAILABLE
        raise CannotStart(code, "\n  ".join(["these engines cannot be started:", *why]))


async def _run(found: Sequence[Launchable], settings: Config, view: View, parent_fd: int | None) -> int:
    make_state_dir(settings.state_dir)
    folder = settings.state_dir / "logs"
    locks: list[int] = []
    engines: list[Launched] = []
    try:
        for one in found:
            name = one.engine.name
            taken = f"another `forebay launch` runs {name} (state_dir {settings.state_dir})"
            locks.append(lock_file(settings.state_dir, f"launch-{file_name(name)}.lock", taken))
        check_way(found)
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            for one in found:
                path = folder / f"{file_name(one.engine.name)}.log"
                kept = EngineLog(path, one.launch.log_bytes, one.command.secrets)
                engines.append(Launched(one.engine, one.launch, one.program, one.command, kept, view.say))
        except OSError as e:
            raise CannotStart(EX_OSERR, f"logs cannot be kept in {folder}: {e.strerror or e}") from None
        return await Keeper(engines, view, parent_fd).run()
    finally:
        for engine in engines:
            engine.log.close()
        for lock in locks:
            os.close(lock)


class Keeper:
    """Mutable state: whether it was told to stop, and to hurry."""

    def __init__(self, engines: Sequence[Launched], view: View, parent_fd: int | None) -> None:
        self._engines = engines
        self._view = view
        self._parent_fd = parent_fd
        self._stop = asyncio.Event()
        self._stopping = False

    async def run(self) -> int:
        """Until a signal, the parent's end, or the last engine given up; returns the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, self._terminate)
        if self._parent_fd is not None:
            # A terminal's Ctrl-C goes to the parent too, which may still drain through these engines.
            loop.add_signal_handler(signal.SIGINT, lambda: None)
            loop.add_reader(self._parent_fd, self._parent_speaks)
        async with asyncio.TaskGroup() as group:
            keepers = [group.create_task(engine.keep()) for engine in self._engines]
            following = group.create_task(self._follow())
            ending = group.create_task(self._all_given_up(keepers))
            await self._stop.wait()
            following.cancel()
            ending.cancel()
            for engine in self._engines:
                engine.stop()
            limit = max(engine.launch.stop_timeout for engine in self._engines) + LEAVE
            _, left = await asyncio.wait(keepers, timeout=limit)
            if left:
                for engine in self._engines:
                    if engine.running:
                        log.error("the guard of %s does not leave and is killed", engine.name)
                        engine.kill()
        for engine in self._engines:
            if engine.log.lost:
                log.warning("%d bytes of %s could not be written", engine.log.lost, engine.log.path)
        failed = [engine.name for engine in self._engines if engine.phase is Phase.FAILED]
        return EX_FAILED if failed else EX_OK

    def _terminate(self) -> None:
        if self._stopping:
            log.warning("second signal: what still runs is killed")
            for engine in self._engines:
                engine.hurry()
        self._stopping = True
        self._stop.set()

    def _parent_speaks(self) -> None:
        assert self._parent_fd is not None
        with contextlib.suppress(BlockingIOError):
            if not os.read(self._parent_fd, 4096):
                asyncio.get_running_loop().remove_reader(self._parent_fd)
                self._stopping = True
                self._stop.set()

    async def _follow(self) -> None:
        await self._view.follow(self._engines)
        if up := sum(engine.phase is not Phase.FAILED for engine in self._engines):
            self._view.say(f"{up} of {len(self._engines)} engines run; Ctrl-C or SIGTERM ends them")

    async def _all_given_up(self, keepers: Sequence[asyncio.Task[None]]) -> None:
        await asyncio.wait(keepers)  # before a stop, one ends only where it gives up
        if self._parent_fd is None:
            self._stop.set()  # a parent would only start it again
