"""One engine that is started here: run under its guard, awaited, logged, started again when it ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path

from forebay.cli.children import how_it_ended
from forebay.cli.launch_log import EngineLog
from forebay.config.engine import Engine
from forebay.config.launch import Launch
from forebay.engines.launching import guard
from forebay.engines.launching.commands import CommandLine
from forebay.engines.launching.hints import hint
from forebay.engines.launching.preflight import port_taken
from forebay.engines.launching.table import Program
from forebay.wire.tasks import unless

FIRST_DELAY, MAX_DELAY = 1.0, 60.0
"""Seconds before a restart: doubled each time, back to the first after STEADY seconds of health."""
STEADY = 60.0
ASK_EVERY, ASK_LATER, SOON = 0.25, 1.0, 5.0
"""Seconds between health checks while it starts; the longer once SOON has passed, since engines log each of them."""
ASK_WITHIN = 5.0
LEAVE = guard.SWEEP + 2.0
"""Seconds past stop_timeout that its guard may take to end what is left."""
READ = 65_536


class Phase(StrEnum):
    WAITING = "waiting"
    STARTING = "starting"
    LOADING = "loading"
    """It listens and is not ready."""
    HEALTHY = "healthy"
    RESTARTING = "restarting"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "given up"


class Launched:
    """Mutable state: the guard's process, the phase, how many failures in a row. `say` gets what people should know,
    and its level of logging."""

    def __init__(
        self, engine: Engine, launch: Launch, program: Program, command: CommandLine, log: EngineLog,
        say: Callable[[str, int], None],
    ) -> None:  # fmt: skip
        self.name = engine.name
        self.launch = launch
        self.command = command
        self.log = log
        self.phase = Phase.WAITING
        self.since = time.monotonic()
        self.settled = asyncio.Event()
        """Set once it was healthy for the first time, or was given up."""
        self.restarted = 0
        self._health = program.health
        self._key = engine.api_key
        self._say = say
        self._stop = asyncio.Event()
        self._gone = asyncio.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._healthy_at: float | None = None
        self._told_to_end = False

    # --- its life ----------------------------------------------------------------------------------------------------

    async def keep(self) -> None:
        """Run it, and run it again whenever it ends, until it is stopped or has failed too often in a row."""
        delay, failures = FIRST_DELAY, 0
        while not self._stop.is_set():
            why = await self._run_once()
            if self._stop.is_set():
                break
            if self._healthy_at is not None and time.monotonic() - self._healthy_at > STEADY:
                delay, failures = FIRST_DELAY, 0
            failures += 1
            said = self._explained(why)
            if failures > self.launch.restarts:
                times = f" {failures} times in a row" if failures > 1 else ""
                self._say(f"{self.name} failed{times} and is given up: {said}", logging.ERROR)
                self._enter(Phase.FAILED)
                self.settled.set()
                return
            self._say(f"{self.name} {said}\n  it is started again in {delay:g} s", logging.WARNING)
            self._enter(Phase.RESTARTING)
            await unless(self._stop, asyncio.sleep(delay))
            delay = min(MAX_DELAY, delay * 2)
            self.restarted += 1
        self._enter(Phase.STOPPED)

    async def _run_once(self) -> str:
        """Why it ended, or did not begin."""
        self._healthy_at = None
        if taken := port_taken(self.launch.host, self.launch.port):
            return f"cannot listen on {self.launch.host}:{self.launch.port}: {taken}"
        theirs, ours = os.pipe()  # the guard ends the engine when our end closes
        out, into = os.pipe()
        os.set_blocking(out, False)
        self._gone.clear()
        began = time.monotonic()
        self._enter(Phase.STARTING)
        self._told_to_end = False
        self.log.tail.clear()
        self.log.note(f"{time.strftime('%Y-%m-%d %H:%M:%S')} forebay launch starts: {self.command.shown()}")
        try:
            self._process = process = self._popen(theirs, into)
        except OSError as e:
            os.close(out)
            os.close(ours)
            return f"cannot be started: {e.strerror or e}"
        finally:
            os.close(theirs)
            os.close(into)
        loop = asyncio.get_running_loop()
        pidfd = os.pidfd_open(process.pid)
        loop.add_reader(pidfd, self._gone.set)
        loop.add_reader(out, self._read, out)
        late = False
        try:
            late = not await self._await_health(began)
            if late or self._stop.is_set():
                self._end()
            await self._gone.wait()
        finally:
            os.close(ours)
            loop.remove_reader(pidfd)
            os.close(pidfd)
            while self._read(out):
                pass
            loop.remove_reader(out)
            os.close(out)
            self.log.end_line()
        return self._ending(process.wait(), time.monotonic() - began, late)

    def _popen(self, parent_fd: int, out: int) -> subprocess.Popen[bytes]:
        environment = {**os.environ, **self.command.variables}
        environment.pop("NOTIFY_SOCKET", None)  # systemd's: an engine has nothing to tell it
        return subprocess.Popen(
            [
                *(sys.executable, "-I", "-S", str(Path(guard.__file__))),
                *("--grace", str(self.launch.stop_timeout), "--parent-fd", str(parent_fd), "--", *self.command.words),
            ],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            pass_fds=(parent_fd,),
            env=environment,
            cwd=self.launch.directory,
            start_new_session=True,
        )

    def _ending(self, code: int, seconds: float, late: bool) -> str:
        code = 128 - code if code < 0 else code
        how = how_it_ended(-(code - 128)) if code > 128 else f"exit code {code}"
        if late:
            return f"was not healthy within {self.launch.start_timeout:g} s (launch.start_timeout), and was ended"
        if self._healthy_at is None:
            return f"ended ({how}) after {seconds:.1f} s, before it was healthy"
        return f"ended ({how}) after {seconds:.1f} s"

    def _explained(self, why: str) -> str:
        lines = list(self.log.tail)
        parts = [why]
        if meaning := hint(lines, killed="SIGKILL" in why):
            parts.append(f"  {meaning}")
        if lines:
            parts += [f"  the last lines of {self.log.path}:", *(f"    {line}" for line in lines[-10:])]
        return "\n".join(parts)

    def _enter(self, phase: Phase) -> None:
        self.phase, self.since = phase, time.monotonic()

    # --- what it says ------------------------------------------------------------------------------------------------

    def _read(self, out: int) -> bool:
        """Whether there may be more."""
        try:
            data = os.read(out, READ)
        except BlockingIOError:
            return False
        if data:
            self.log.feed(data)
            return True
        asyncio.get_running_loop().remove_reader(out)
        return False

    async def _await_health(self, began: float) -> bool:
        """Until it is healthy, has ended or is to stop; False where that took too long."""
        while not self._gone.is_set() and not self._stop.is_set():
            status = await self._ask()
            if status == 200:
                self._healthy_at = time.monotonic()
                self._enter(Phase.HEALTHY)
                took = self._healthy_at - began
                self._say(f"{self.name} is healthy after {took:.1f} s, on {self.launch.url}", logging.INFO)
                self.settled.set()
                return True
            if status is not None and self.phase is Phase.STARTING:
                self.phase = Phase.LOADING  # still of the same start: `since` stays
            left = began + self.launch.start_timeout - time.monotonic()
            if left <= 0:
                return False
            with contextlib.suppress(TimeoutError):
                every = ASK_EVERY if time.monotonic() - began < SOON else ASK_LATER
                await asyncio.wait_for(unless(self._stop, self._gone.wait()), min(every, left))
        return True

    async def _ask(self) -> int | None:
        """The status of its health route; None where it does not answer."""
        try:
            async with asyncio.timeout(ASK_WITHIN):
                host = self.launch.url.removeprefix("http://").rpartition(":")[0].strip("[]")
                reader, writer = await asyncio.open_connection(host, self.launch.port)
                try:
                    head = [f"GET {self._health} HTTP/1.1", f"Host: {host}:{self.launch.port}", "Connection: close"]
                    if self._key is not None:
                        head.append(f"Authorization: Bearer {self._key}")
                    writer.write("\r\n".join([*head, "", ""]).encode())
                    line = await reader.readline()
                finally:
                    writer.close()
                    with contextlib.suppress(OSError):
                        await writer.wait_closed()
        except (OSError, ValueError):  # TimeoutError is an OSError; a line without end is a ValueError
            return None
        words = line.split()
        return int(words[1]) if len(words) > 1 and words[0].startswith(b"HTTP/") and words[1].isdigit() else None

    # --- its end -----------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """From now on its end is no failure. It gets SIGTERM, and `launch.stop_timeout` to obey."""
        self._stop.set()
        if self.running:
            self._enter(Phase.STOPPING)
            self._end()

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def _end(self) -> None:
        """Once a run, since the guard takes a second SIGTERM for haste."""
        if not self._told_to_end:
            self._told_to_end = True
            self._signal(signal.SIGTERM)

    def hurry(self) -> None:
        """What was told to stop ends at once."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """The guard too; the kernel then kills the engine's first process."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self.running:
            self._process.send_signal(number)

    def __repr__(self) -> str:
        return f"<Launched {self.name} {self.phase}, restarted {self.restarted} times>"
