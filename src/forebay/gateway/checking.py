"""Looks at engines, again and again: each handle has its own timer, and few are looked at at the same instant."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from forebay import errors
from forebay.gateway.fetch import FetchFailed
from forebay.gateway.handles import Handle
from forebay.wire.tasks import Tasks

log = logging.getLogger("forebay.engines")

AFTER_DEFECT: Final = 5.0
"""Seconds until the next look after one that failed inside the gateway."""
AT_ONCE: Final = 256
"""Looks of one kind under way at the same time: a fleet of dead engines must not take all descriptors."""
MAX_MODELS: Final = 1_000
"""Models believed of one engine's list."""


class Rounds:
    """Calls `look` for each handle; what that returns are the seconds until its next. Mutable state: a timer or a task
    a handle, and the handles that are due and wait for their turn."""

    def __init__(self, tasks: Tasks, look: Callable[[Handle], Awaitable[float]]) -> None:
        self._tasks = tasks
        self._look = look
        self._timers: dict[Handle, asyncio.TimerHandle] = {}
        self._running: dict[Handle, asyncio.Task[None]] = {}
        self._turn: deque[Handle] = deque()
        self._waiting: set[Handle] = set()
        self._hurried: set[Handle] = set()

    def begin(self, handle: Handle, after: float = 0.0) -> None:
        """The first look comes in `after` seconds."""
        self._set(handle, after)

    def hurry(self, handle: Handle, after: float) -> None:
        """The next look comes within `after` seconds; where one is under way, another follows."""
        if handle in self._running:
            self._hurried.add(handle)
            return
        timer = self._timers.get(handle)
        if timer is not None and timer.when() > asyncio.get_running_loop().time() + after:
            self._set(handle, after)

    def end(self, handle: Handle) -> None:
        """No more looks."""
        self._hurried.discard(handle)
        self._waiting.discard(handle)
        timer = self._timers.pop(handle, None)
        if timer is not None:
            timer.cancel()
        task = self._running.pop(handle, None)
        if task is not None:
            task.cancel()

    def __len__(self) -> int:
        return len(self._timers) + len(self._running) + len(self._waiting)

    def __contains__(self, handle: Handle) -> bool:
        return handle in self._timers or handle in self._running or handle in self._waiting

    def _set(self, handle: Handle, after: float) -> None:
        timer = self._timers.pop(handle, None)
        if timer is not None:
            timer.cancel()
        self._timers[handle] = asyncio.get_running_loop().call_later(after, self._due, handle)

    def _due(self, handle: Handle) -> None:
        self._timers.pop(handle, None)
        if len(self._running) < AT_ONCE:
            self._running[handle] = self._tasks.spawn(self._run(handle))
        else:
            self._waiting.add(handle)
            self._turn.append(handle)

    async def _run(self, handle: Handle) -> None:
        try:
            pause = await self._look(handle)
        except Exception:  # a defect of ours: an engine that is looked at no more would be lost for good
            log.exception("looking at engine %s failed inside", handle.name)
            pause = AFTER_DEFECT
        finally:
            ours = self._running.get(handle) is asyncio.current_task()
            if ours:
                del self._running[handle]
            self._next()
        if ours:
            if handle in self._hurried:
                self._hurried.discard(handle)
                pause = min(pause, 0.2)
            self._set(handle, pause)

    def _next(self) -> None:
        while self._turn and len(self._running) < AT_ONCE:
            handle = self._turn.popleft()
            if handle in self._waiting:
                self._waiting.discard(handle)
                self._running[handle] = self._tasks.spawn(self._run(handle))

    def __repr__(self) -> str:
        return f"<Rounds {len(self._running)} running, {len(self._waiting)} due, {len(self._timers)} later>"


class _Listed(msgspec.Struct, frozen=True):
    id: str


class _List(msgspec.Struct, frozen=True):
    data: list[_Listed]


def model_ids(body: bytes) -> tuple[str, ...]:
    """Raises FetchFailed where the list is none."""
    try:
        found = msgspec.json.decode(body, type=_List)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as e:
        raise FetchFailed(f"its model list cannot be read: {errors.shown(e)}") from None
    return tuple(m.id for m in found.data[:MAX_MODELS] if 0 < len(m.id) <= 256 and m.id.isprintable())
