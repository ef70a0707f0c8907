"""One child process of the supervisor: started, watched through a pidfd, told things over its channel, restarted."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from forebay.cli.heartbeat import BEAT, Heart
from forebay.state.channel import CHANNEL_ENV, Channel, ChannelBroken
from forebay.state.messages import Message, Ping, Pong, Ready, Start
from forebay.wire.tasks import unless

log = logging.getLogger("forebay.supervisor")

FIRST_DELAY, MAX_DELAY = 0.1, 5.0
"""Seconds before a restart: doubled each time, back to the first after STEADY seconds of life."""
STEADY = 30.0
GIVE_UP = 5
"""Starts in a row that did not end in readiness before there is no hope."""
SEND = 2.0
"""Seconds that telling a child something may take: one that is stopped does not read."""


@dataclass(slots=True)
class Plan:
    """How a child is started. `start` makes its first message anew each time, None for a child without a channel.
    `vital`: there is no service without it, so that giving up is better than trying for ever."""

    name: str
    command: Callable[[], list[str]]
    fds: tuple[int, ...] = ()
    start: Callable[[], Start] | None = None
    env: dict[str, str] = field(default_factory=dict)
    vital: bool = False
    leave: float = 3.0
    """Seconds from SIGTERM until it is killed; of a worker, from the end of its drain."""
    watched: bool = False
    """It answers `Ping`; where it does not for too long, it is killed."""
    beat: float = BEAT
    """Seconds between these."""


class Child:
    """Mutable state: the running process, its channel, how many starts in a row did not end in readiness."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.ready = asyncio.Event()
        self.unready = 0
        self.hopeless = asyncio.Event()
        self._ever_ready = False
        self.stopping = False
        self.ended = 0
        """How often it ended by itself."""
        self.hung = 0
        """How often it was killed, since it hung."""
        self.why = ""
        """Of the last of these."""
        self.changed: Callable[[], None] = lambda: None
        """It became ready, or ended."""
        self._hangs = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._gone = asyncio.Event()

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    async def keep(self) -> None:
        """Run it, and run it again whenever it ends, until it is stopped."""
        delay = FIRST_DELAY
        while not self._told_to_stop():
            began = time.monotonic()
            try:
                code = await self._run_once()
            except OSError as e:
                log.error("%s cannot be started: %s", self.plan.name, e)
                code = -1
            self.unready = 0 if self.ready.is_set() else self.unready + 1
            self.ready.clear()
            if self._told_to_stop():
                return
            self._count(code)
            if time.monotonic() - began > STEADY:
                delay = FIRST_DELAY
            if self.unready >= GIVE_UP and (self.plan.vital or not self._ever_ready):
                self.hopeless.set()
                return
            log.error("%s ended (%s); it is started again in %.1f s", self.plan.name, how_it_ended(code), delay)
            await asyncio.sleep(delay)
            delay = min(MAX_DELAY, delay * 2)

    def _told_to_stop(self) -> bool:
        return self.stopping

    def _count(self, code: int) -> None:
        self.why, self._hangs = self._hangs or how_it_ended(code), ""
        if self.why != how_it_ended(code):
            self.hung += 1
        else:
            self.ended += 1
        self.changed()

    async def _run_once(self) -> int:
        ours: socket.socket | None = None
        env = {**os.environ, **self.plan.env}
        fds = list(self.plan.fds)
        if self.plan.start is not None:
            ours, theirs = socket.socketpair()
            env[CHANNEL_ENV] = str(theirs.fileno())
            fds.append(theirs.fileno())
        else:
            theirs = None
        self._gone.clear()
        try:
            self._process = subprocess.Popen(  # noqa: ASYNC220 - a fork, not a wait
                self.plan.command(), stdin=subprocess.DEVNULL, pass_fds=fds, env=env, close_fds=True
            )
        finally:
            if theirs is not None:
                theirs.close()
        pidfd = os.pidfd_open(self._process.pid)
        loop = asyncio.get_running_loop()
        loop.add_reader(pidfd, self._gone.set)
        try:
            if ours is not None and self.plan.start is not None:
                self._channel = await Channel.from_socket(ours)
                if self.plan.watched:
                    await self._watch(self._channel, self.plan.start())
                else:
                    await self._talk(self._channel, self.plan.start())
            else:
                self.ready.set()
            await self._gone.wait()
        finally:
            loop.remove_reader(pidfd)
            os.close(pidfd)
            channel, self._channel = self._channel, None
            if channel is not None:
                await channel.close()
        return self._process.wait()

    async def _talk(self, channel: Channel, start: Start) -> None:
        """Say what to do and wait for Ready, or for its end."""
        try:
            await channel.send(start)
            answer = await unless(self._gone, channel.receive())
        except ConnectionError:
            return  # it is ending, which `_gone` shows
        except ChannelBroken as e:
            log.error("the channel to %s is broken: %s", self.plan.name, e)
            return
        if isinstance(answer, Ready):
            self.ready.set()
            self._ever_ready = True
        elif answer is not None:
            log.error("%s said %s where it should say Ready", self.plan.name, type(answer).__name__)

    async def _watch(self, channel: Channel, start: Start) -> None:
        """Say what to do, and see to it that it lives, until its end."""
        heart = Heart()
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._hear(channel, start, heart)), group.create_task(self._beat(heart))]
            await self._gone.wait()
            for task in tasks:
                task.cancel()

    async def _hear(self, channel: Channel, start: Start, heart: Heart) -> None:
        try:
            await channel.send(start)
            while (message := await channel.receive()) is not None:
                match message:
                    case Ready():
                        self.ready.set()
                        self._ever_ready = True
                        self.changed()
                    case Pong(n, hangs):
                        heart.heard(n, hangs)
                    case other:
                        log.error("%s said %s, which nobody asked for", self.plan.name, type(other).__name__)
        except ConnectionError:
            return  # it is ending, which `_gone` shows
        except ChannelBroken as e:
            log.error("the channel to %s is broken: %s", self.plan.name, e)

    async def _beat(self, heart: Heart) -> None:
        while not self._told_to_stop():
            if hangs := heart.hangs(self.plan.beat):
                self._hangs = hangs
                log.error("%s hangs and is killed: %s", self.plan.name, hangs)
                self.signal(signal.SIGKILL)
                return
            await self.send(Ping(heart.beat()))
            await asyncio.sleep(self.plan.beat)

    async def send(self, message: Message) -> None:
        """Tell it something; nothing happens where it is not there."""
        if self._channel is not None:
            with contextlib.suppress(ConnectionError, TimeoutError):
                async with asyncio.timeout(SEND):
                    await self._channel.send(message)

    def stop(self) -> None:
        """From now on its end is no failure."""
        self.stopping = True

    def signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    async def wait(self, seconds: float) -> bool:
        """Until it is gone, at most `seconds`; True where it is."""
        if self._process is None or self._process.poll() is not None:
            return True
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._gone.wait(), seconds)
        return self._process.poll() is not None

    def __repr__(self) -> str:
        return f"<Child {self.plan.name} pid {self.pid}{' ready' if self.ready.is_set() else ''}>"


def python(module: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", module, *arguments]


def how_it_ended(code: int) -> str:
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"killed by {signal.Signals(-code).name}"
    return f"exit code {code}"
