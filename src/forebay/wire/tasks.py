"""Tasks that outlive nothing: a group that is drained, and a wait that something may end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Coroutine
from typing import Any, TypeVar

log = logging.getLogger("forebay.wire")
T = TypeVar("T")


class Tasks:
    """Whoever starts a task on a running event loop starts it here. Unlike `asyncio.TaskGroup` one failing task is
    logged and harms no other."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a background task failed", exc_info=task.exception())

    async def drain(self) -> None:
        """Cancel what runs and wait until it is gone."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def __len__(self) -> int:
        return len(self._tasks)

    def __repr__(self) -> str:
        return f"<Tasks {len(self._tasks)}>"


async def unless(event: asyncio.Event, awaitable: Awaitable[T]) -> T | None:
    """What `awaitable` returns or raises; None where `event` is set first: then it is cancelled, and has ended when
    this returns."""
    work, stop = asyncio.ensure_future(awaitable), asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait((work, stop), return_when=asyncio.FIRST_COMPLETED)
        return work.result() if work.done() else None
    finally:
        work.cancel()
        stop.cancel()
        await asyncio.gather(work, stop, return_exceptions=True)
