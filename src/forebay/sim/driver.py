"""Runs a model in real time: one timer for all sequences, set for the model's next event."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final, Protocol

from forebay.sim.model import Ask, Engine, Event

log = logging.getLogger("forebay.sim")

GRAIN: Final = 0.001
"""Seconds between two ticks at least: what falls due within it goes out together."""


class Listener(Protocol):
    def on_event(self, event: Event) -> None: ...
    def on_broken(self) -> None:
        """`on_event` raised: end the request."""
        ...


class Driver:
    """Mutable state: who listens to which sequence, and the timer."""

    def __init__(self, engine: Engine, loop: asyncio.AbstractEventLoop) -> None:
        self.engine = engine
        self._loop = loop
        self._listeners: dict[int, Listener] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._last_tick = -1.0

    def now(self) -> float:
        """The event loop's clock, but fresh: uvloop's own is of the start of the iteration, in milliseconds."""
        return time.monotonic()

    def submit(self, ask: Ask, listener: Listener) -> int:
        seq = self.engine.submit(ask, time.monotonic())
        self._listeners[seq] = listener
        self._arm()
        return seq

    def cancel(self, seq: int) -> None:
        """Slot and KV are free when this returns; no event of the sequence follows."""
        if self._listeners.pop(seq, None) is not None:
            self.engine.cancel(seq, time.monotonic())
            self._arm()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        due = self.engine.next_event()
        timer = self._timer
        if due is None:
            return
        due = max(due, self._last_tick + GRAIN)
        if timer is not None:
            if self._due <= due:
                return
            timer.cancel()
        self._due = due
        self._timer = self._loop.call_at(due, self._tick)

    def _tick(self) -> None:
        self._timer = None
        now = self._last_tick = time.monotonic()
        listeners = self._listeners
        for event in self.engine.advance(now):
            listener = listeners.pop(event.seq, None) if event.last else listeners.get(event.seq)
            if listener is None:
                continue
            try:
                listener.on_event(event)
            except Exception:
                log.exception("a request failed inside the engine")
                self.cancel(event.seq)
                listener.on_broken()
        self._arm()

    def __repr__(self) -> str:
        return f"<Driver {self.engine!r}>"
