"""Streams sent to a live engine alone, together or at given times, each with the time of every token: what a
calibration measures with. It is the load generator of `forebay bench`, its arrivals and prompts given and its
connections kept."""

from __future__ import annotations

import asyncio
import json
import random
from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Final

from forebay.plan.load import TIMER_STEP, WORDS, Load, Plan, Shot
from forebay.plan.target import LoadError, Target, _Whole
from forebay.wire.tasks import Tasks
from forebay.wire.ticker import Ticker

COMPLETIONS: Final = "/v1/completions"
CHAT: Final = "/v1/chat/completions"
PAGE_SECONDS: Final = 10.0
"""A page that says something about the server takes no longer, nor longer than a request may."""


@dataclass(frozen=True, slots=True)
class Shape:
    """One request to send."""

    words: int
    output_tokens: int
    after: float = 0.0
    """Seconds after the first that may leave."""


@dataclass(slots=True)
class Stream:
    """One answer. Times are seconds on the monotonic clock."""

    sent: float
    prompt_tokens: int = 0
    output_tokens: int = 0
    times: array[float] = field(default_factory=lambda: array("d"))
    """Of each event with content."""
    ended: float = 0.0
    error: str | None = None

    @property
    def ttft(self) -> float:
        return self.times[0] - self.sent

    @property
    def whole(self) -> bool:
        """Every token came as an event of its own."""
        return self.error is None and 0 < self.output_tokens == len(self.times)


class Session(Load):
    """Connections to one server, opened by `open` and closed by `close`."""

    def __init__(self, target: Target, model: str, key: str | None, *, timeout: float) -> None:
        super().__init__(target, Plan(model=model, concurrency=1, requests=1, timeout=timeout), key)
        self.path = COMPLETIONS
        self.extra: Mapping[str, Any] = {"temperature": 0, "ignore_eos": True}
        """Fields of each body. Without `ignore_eos` an answer may end early."""
        self.streams: list[Stream] = []
        """Of the batch under way, or the last."""
        self._heard = asyncio.Event()
        # Seeded by the system: a run that repeats the prompts of another would find them in the prefix cache.
        self._words = random.Random()  # noqa: S311 - words, not secrets
        self._tasks = Tasks()

    async def open(self) -> None:
        self._ticker = Ticker(asyncio.get_running_loop())
        self._pool = self._make_pool(self._tasks, self._ticker)
        self._ticker.add(self._sweep)
        self._ticker.start()
        self._began = monotonic()

    async def close(self) -> None:
        for shot in tuple(self._active):
            shot.drop()
        self._pool.close()
        self._ticker.stop()
        await self._tasks.drain()

    async def batch(self, shapes: Sequence[Shape]) -> list[Stream]:
        """Send them at their times (`after` must not fall) and wait for all; in order. An answer that failed has its
        `error`."""
        self.start()
        began = monotonic()
        for shape in shapes:
            wait = began + shape.after - monotonic()
            if wait > TIMER_STEP:
                await asyncio.sleep(wait)
            self.send(shape)
        return await self.finish()

    def start(self) -> None:
        """Begin a batch."""
        self.streams = []
        self._done = asyncio.Event()
        self._sending = True

    async def finish(self) -> list[Stream]:
        """Wait for the batch's last answer."""
        self._sending = False
        self._finish_if_idle()
        await self._done.wait()
        return self.streams

    def send(self, shape: Shape) -> Stream:
        body = self._body(shape)
        shot = _Timed(self, monotonic())
        self.streams.append(shot.stream)
        self._active.add(shot)
        head = self.target.head("POST", self.path, self._key, len(body))
        self._pool.request(head, body, shot)
        return shot.stream

    async def until(self, reached: Callable[[Stream], bool]) -> None:
        """Wait until each stream of the batch has ended, or is as wanted."""
        while not all(s.ended or reached(s) for s in self.streams):
            self._heard.clear()
            await self._heard.wait()

    async def get(self, path: str) -> tuple[int, bytes]:
        """Status and body of what lies beside `/v1`. Raises LoadError."""
        seconds = min(PAGE_SECONDS, self.plan.timeout)
        whole = _Whole()
        self._pool.request(self.target.head("GET", path, self._key), b"", whole)
        try:
            async with asyncio.timeout(seconds):
                return await whole.ended
        except TimeoutError:
            raise LoadError(f"{self.target.origin} did not answer GET {path} within {seconds:g} s") from None
        finally:
            if whole.call is not None and not whole.ended.done():
                with suppress(LoadError):
                    whole.call.cancel()

    def first(self, shot: Shot, now: float, events: int) -> None:
        self._heard.set()

    def gap(self, shot: Shot, seconds: float, now: float, events: int) -> None:
        self._heard.set()

    def ended(self, shot: Shot, error: str | None) -> None:
        assert isinstance(shot, _Timed)
        stream = shot.stream
        stream.error = error
        stream.ended = monotonic()
        stream.prompt_tokens = shot.prompt_tokens or 0
        stream.output_tokens = len(stream.times) if shot.tokens is None else shot.tokens
        if len(stream.times) == stream.output_tokens + 1:
            stream.times.pop()  # llama.cpp's end has an event of its own
        self._active.discard(shot)
        self._heard.set()
        self._finish_if_idle()

    def _body(self, shape: Shape) -> bytes:
        text = " ".join(self._words.choices(WORDS, k=max(1, shape.words)))
        said: dict[str, Any] = {"prompt": text}
        if self.path == CHAT:
            said = {"messages": [{"role": "user", "content": text}]}
        options = {"stream": True, "stream_options": {"include_usage": True}, "max_tokens": shape.output_tokens}
        return json.dumps({"model": self.plan.model, **said, **options, **self.extra}).encode()


class _Timed(Shot):
    """A shot that notes when each of its tokens came."""

    __slots__ = ("stream",)

    def __init__(self, session: Session, began: float) -> None:
        super().__init__(session, began)
        self.stream = Stream(began)

    def _content(self, now: float, n: int) -> None:
        self.stream.times.extend([now] * n)
        super()._content(now, n)

    def _last_choice(self, now: float) -> None:
        # A last token that has no text of its own comes with the end: vLLM's, where the text is only half a character.
        if not self.stream.times or self.stream.times[-1] != now:
            self.stream.times.append(now)
        super()._last_choice(now)
