"""The admin process's side of the control sockets: one link a worker, which polls it and tells it the keys.

A link is one task. It asks, waits for the answer, and asks again: every POLL seconds, or at once when somebody wants a
fresh snapshot or the key list changed. A worker that does not answer in time is left and connected to anew, with a
back-off.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from forebay.state.channel import Channel, ChannelBroken
from forebay.state.messages import (
    AdmissionState,
    Done,
    GetAdmission,
    GetSnapshot,
    Message,
    NoAdmission,
    SetEngines,
    SetKeys,
    Snapshot,
    worker_socket,
)

POLL: Final = 5.0
"""Seconds between snapshots."""
ANSWER: Final = 5.0
"""Seconds a worker has to answer."""
BACK_OFF: Final = (0.05, 0.5)
"""Seconds before a new connection: first, and at most."""

_log = logging.getLogger("forebay.admin")
M = TypeVar("M", bound=Message)


class WorkerLink:
    """One worker. `snapshot` is its last one, of whichever life; `up` says whether it answers now."""

    def __init__(self, index: int, path: Path, on_snapshot: Callable[[Snapshot], None]) -> None:
        self.index = index
        self.path = path
        self.up = False
        self.why = "not connected yet"
        self.snapshot: Snapshot | None = None
        self._on_snapshot = on_snapshot
        self._keys: SetKeys | None = None
        self._told: SetKeys | None = None
        self._engines: SetEngines | None = None
        self._engines_told: SetEngines | None = None
        self._wake = asyncio.Event()
        self._waiting: list[asyncio.Future[None]] = []

    async def run(self) -> None:
        """Runs until it is cancelled."""
        delay, most = BACK_OFF
        while True:
            try:
                await self._talk()
            except (OSError, ChannelBroken, TimeoutError) as e:
                why = why_not(e)
                if self.up:
                    _log.warning("worker %d: %s", self.index, why)
                    delay = BACK_OFF[0]
                self.up, self.why = False, why
                self._settle()
            await asyncio.sleep(delay * random.uniform(0.5, 1.0))  # noqa: S311 - spreads retries, hides nothing
            delay = min(delay * 2, most)

    async def _talk(self) -> None:
        async with asyncio.timeout(ANSWER):
            channel = await Channel.connect(str(self.path))
        try:
            self._told = self._engines_told = None
            while True:
                self._wake.clear()
                waiting, self._waiting = self._waiting, []
                try:
                    if self._keys is not self._told:
                        keys = self._keys
                        assert keys is not None
                        await self._ask(channel, keys, Done)
                        self._told = keys
                    if self._engines is not self._engines_told:
                        engines = self._engines
                        assert engines is not None
                        await self._ask(channel, engines, Done)
                        self._engines_told = engines
                    answer = await self._ask(channel, GetSnapshot(), Snapshot)
                finally:
                    self._waiting += waiting
                self.snapshot = answer
                if not self.up:
                    _log.info("worker %d: connected, pid %d", self.index, answer.pid)
                self.up, self.why = True, ""
                self._on_snapshot(answer)
                for future in waiting:
                    if not future.done():
                        future.set_result(None)
                self._waiting = [f for f in self._waiting if not f.done()]
                try:
                    async with asyncio.timeout(POLL):
                        await self._wake.wait()
                except TimeoutError:
                    pass
        finally:
            self._told = self._engines_told = None
            await channel.close()

    async def _ask(self, channel: Channel, message: Message, kind: type[M]) -> M:
        async with asyncio.timeout(ANSWER):
            answer = await channel.ask(message)
        if not isinstance(answer, kind):
            raise ChannelBroken(f"answered {type(answer).__name__}, not {kind.__name__}")
        return answer

    def set_keys(self, keys: SetKeys) -> None:
        """Tell the worker at once, and again whenever it is connected to anew."""
        self._keys = keys
        self._wake.set()

    def set_engines(self, engines: SetEngines) -> None:
        """As `set_keys`."""
        self._engines = engines
        self._wake.set()

    @property
    def knows_engines(self) -> bool:
        """True where the worker has confirmed what was added and drained last."""
        return self._engines_told is self._engines

    @property
    def informed(self) -> bool:
        """True where the worker has confirmed the last list."""
        return self._told is self._keys

    async def fresh(self) -> None:
        """Returns when an answer has come to a question asked from now on, or the worker is found gone."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        self._wake.set()
        await future

    async def admission(self, within: float) -> AdmissionState | NoAdmission:
        """Asked over a channel of its own, so that the poll goes on. Raises OSError, ChannelBroken, TimeoutError."""
        async with asyncio.timeout(within):
            channel = await Channel.connect(str(self.path))
            try:
                answer = await channel.ask(GetAdmission())
            finally:
                await channel.close()
        if not isinstance(answer, AdmissionState | NoAdmission):
            raise ChannelBroken(f"answered {type(answer).__name__}, not AdmissionState")
        return answer

    def _settle(self) -> None:
        for future in self._waiting:
            if not future.done():
                future.set_result(None)
        self._waiting.clear()

    def __repr__(self) -> str:
        return f"<WorkerLink {self.index} {'up' if self.up else self.why}>"


def why_not(error: OSError | ChannelBroken | TimeoutError, within: float | None = None) -> str:
    """Why a worker has no answer that was waited for `within` seconds."""
    match error:
        case TimeoutError():
            return f"no answer within {ANSWER if within is None else within:g} s"
        case FileNotFoundError() | ConnectionRefusedError():
            return "it does not run"
        case _:
            return str(error)


class Workers:
    """The links to all workers."""

    def __init__(self, state_dir: Path, count: int, on_snapshot: Callable[[Snapshot], None]) -> None:
        self.links = tuple(WorkerLink(i, worker_socket(state_dir, i), on_snapshot) for i in range(count))

    def start(self, group: asyncio.TaskGroup) -> list[asyncio.Task[None]]:
        return [group.create_task(link.run(), name=f"worker-{link.index}") for link in self.links]

    def set_keys(self, keys: SetKeys) -> None:
        for link in self.links:
            link.set_keys(keys)

    def set_engines(self, engines: SetEngines) -> None:
        for link in self.links:
            link.set_engines(engines)

    async def fresh(self, within: float) -> None:
        """A new snapshot from every worker that is up, as far as they answer within `within` seconds."""
        await _within([link.fresh() for link in self.links if link.up], within)

    async def told(self, within: float) -> bool:
        """True as soon as every worker that is up has the last keys and engines; False after `within` seconds."""

        async def wait(link: WorkerLink) -> None:
            while link.up and not (link.informed and link.knows_engines):
                await link.fresh()

        await _within([wait(link) for link in self.links], within)
        return all(link.informed and link.knows_engines for link in self.links if link.up)

    def __repr__(self) -> str:
        return f"<Workers {list(self.links)}>"


async def _within(calls: Sequence[Coroutine[Any, Any, None]], within: float) -> None:
    try:
        async with asyncio.timeout(within), asyncio.TaskGroup() as group:
            for call in calls:
                group.create_task(call)
    except TimeoutError:
        return
