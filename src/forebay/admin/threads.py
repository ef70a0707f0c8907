"""Blocking calls on a few threads, each with a time-out; the event loop never waits for a disk or a database."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


class Busy(Exception):
    """No thread is free and the queue is full: earlier calls hang."""


class Threads:
    """At most `count` calls run and `bound` wait. A call that hangs keeps its thread until it returns by itself.

    The threads are daemons: a call that hangs for ever does not keep the process from leaving.
    """

    def __init__(self, name: str, count: int, bound: int) -> None:
        self._name = name
        self._count = count
        self._queue: queue.Queue[Callable[[], None] | None] = queue.Queue(bound)
        self._started = 0
        self._closed = False
        self._idle = 0
        self._lock = threading.Lock()

    async def run(self, call: Callable[[], T], within: float) -> T:
        """What `call` returns or raises. Raises TimeoutError after `within` seconds, and Busy.

        A call that is still waiting for a thread when its time is up is never made.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def settle(result: T | None, error: BaseException | None) -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)  # type: ignore[arg-type]

        def work() -> None:
            if future.cancelled():
                return
            outcome: tuple[Any, BaseException | None]
            try:
                outcome = (call(), None)
            except BaseException as e:
                outcome = (None, e)
            with suppress(RuntimeError):  # the loop is closed: nobody waits for this any more
                loop.call_soon_threadsafe(settle, *outcome)

        try:
            self._queue.put_nowait(work)
        except queue.Full:
            raise Busy(f"{self._queue.maxsize} calls wait for the {self._name} already") from None
        self._grow()
        async with asyncio.timeout(within):
            return await future

    def close(self) -> None:
        """Nothing is run any more; each thread ends once its call has returned."""
        self._closed = True
        for _ in range(self._started):
            with suppress(queue.Full):  # then none is idle, and each sees `_closed`
                self._queue.put_nowait(None)

    def _grow(self) -> None:
        with self._lock:
            if self._idle >= self._queue.qsize() or self._started >= self._count:
                return
            self._started += 1
        threading.Thread(target=self._work, name=f"{self._name}-{self._started}", daemon=True).start()

    def _work(self) -> None:
        while not self._closed:
            with self._lock:
                self._idle += 1
            call = self._queue.get()
            with self._lock:
                self._idle -= 1
            if call is not None:
                call()

    def __repr__(self) -> str:
        return f"<Threads {self._name} {self._started}/{self._count}, {self._queue.qsize()} waiting>"
