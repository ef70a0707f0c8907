"""The load generator: chat completion streams sent to an OpenAI-compatible server at times of its own, and what came
back.

Open loop: requests leave at arrival times drawn beforehand (Poisson or evenly spaced), whether or not earlier ones are
answered, as the users of a service do; a server that falls behind sees its queue grow. Closed loop (`concurrency`): the
next leaves when one ends; good for a smoke test, blind to queueing.

Everything runs in callbacks on one event loop, no task a request. Time is read from the clock, because uvloop's own
`loop.time()` counts whole milliseconds and stands still within a turn. Latencies count from the moment a request is
handed to its socket; `Result.lag` says how late after its arrival time that was.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import monotonic, process_time
from types import MappingProxyType
from typing import Any, Final, Literal

import msgspec

from forebay.api import openai
from forebay.config.models import Timeouts
from forebay.plan.distribution import Distribution
from forebay.plan.target import MAX_BODY, LoadError, Target
from forebay.wire.head import Header
from forebay.wire.pool import Pool
from forebay.wire.sse import EventTooLarge, Framer, count, data_of, split
from forebay.wire.tasks import Tasks
from forebay.wire.ticker import Ticker
from forebay.wire.upstream import Call, Failure, WholeInParts

MAX_KINDS: Final = 50
"""Kinds of error told apart; the rest are counted as `other`."""
DRAW_AT_ONCE: Final = 1_000
"""Requests sent in one turn of the loop at most, so that answers are read in between."""

TIMER_STEP: Final = 0.0005
"""Seconds. uvloop's timers count whole milliseconds: what is due within half of one is sent now."""


@dataclass(frozen=True)
class Plan:
    """What to send. Exactly one of `rate` and `concurrency`; at least one of `requests` and `seconds`."""

    model: str
    rate: float | None = None
    """Arrivals a second."""
    arrivals: Literal["poisson", "uniform"] = "poisson"
    concurrency: int | None = None
    requests: int | None = None
    seconds: float | None = None
    """For how long new requests are sent; those under way are waited for."""
    prompt_tokens: int = 64
    """About: the prompt is that many short English words."""
    max_tokens: int = 128
    timeout: float = 300.0
    """Seconds a whole request may take."""
    connect_timeout: float = 5.0
    max_in_flight: int = 8_192
    """Requests open at once; an arrival over it is an error of the kind `client_full`."""
    seed: int = 0
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of each request's body."""

    def __post_init__(self) -> None:
        if (self.rate is None) == (self.concurrency is None):
            raise LoadError("give either a rate (open loop) or a concurrency (closed loop)")
        if self.requests is None and self.seconds is None:
            raise LoadError("give a number of requests, a duration, or both")
        for name in (
            "rate",
            "concurrency",
            "requests",
            "seconds",
            "prompt_tokens",
            "max_tokens",
            "timeout",
            "max_in_flight",
        ):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise LoadError(f"{name.replace('_', '-')} must be more than 0, not {value:g}")
        if self.concurrency is not None and self.concurrency > self.max_in_flight:
            raise LoadError(
                f"a concurrency of {self.concurrency} is over the {self.max_in_flight} connections that this process "
                "may open (ulimit -n)"
            )


@dataclass
class Result:
    """What happened. Durations in seconds; tokens as the server's `usage` counts them, else content events."""

    seconds: float = 0.0
    sent: int = 0
    completed: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    ttft: Distribution = field(default_factory=Distribution)
    """To the first event with content, reasoning or a tool call; of completed requests and of those cut later."""
    itl: Distribution = field(default_factory=Distribution)
    """Between content events. Events that arrive together count as one gap and zeros."""
    e2e: Distribution = field(default_factory=Distribution)
    """To the end of the stream, of completed requests."""
    lag: Distribution = field(default_factory=Distribution)
    """How late requests left after their arrival time: large values mean that this process is the bottleneck."""
    prompt_tokens: int = 0
    output_tokens: int = 0
    retry_after: Distribution = field(default_factory=Distribution)
    peak_in_flight: int = 0
    cpu: float = 0.0
    """CPU seconds of this process: as many as `seconds` mean that it is the bottleneck."""
    interrupted: bool = False

    @property
    def failed(self) -> int:
        return sum(self.errors.values())


class Load:
    """One run. State: the requests under way, the arrivals still to come, and the result so far."""

    def __init__(
        self,
        target: Target,
        plan: Plan,
        key: str | None = None,
        on_progress: Callable[[Load], None] | None = None,
    ) -> None:
        self.target = target
        self.plan = plan
        self.result = Result()
        self._key = key
        self._on_progress = on_progress
        self._random = random.Random(plan.seed)  # noqa: S311 - arrival times, not secrets
        self._bodies = _Bodies(plan)
        self._active: set[_Shot] = set()
        self._done = asyncio.Event()
        self._arrival: asyncio.TimerHandle | None = None
        self._sending = True
        self._began = 0.0
        self._pool: Pool

    @property
    def in_flight(self) -> int:
        return len(self._active)

    async def run(self) -> Result:
        """Send it all and wait for the last answer. Cancelled: what is under way is dropped."""
        cpu = process_time()
        tasks, ticker = Tasks(), Ticker(asyncio.get_running_loop())
        self._pool = self._make_pool(tasks, ticker)
        ticker.add(self._sweep)
        ticker.start()
        self._began = monotonic()
        try:
            if self.plan.concurrency is not None:
                for _ in range(self.plan.concurrency):
                    self._next_closed()
            else:
                self._arrive(self._began + self._gap())
            self._finish_if_idle()
            await self._done.wait()
        finally:
            self._stop_sending()
            for shot in tuple(self._active):
                shot.drop()
            self.result.seconds = monotonic() - self._began
            self.result.cpu = process_time() - cpu
            self._pool.close()
            ticker.stop()
            await tasks.drain()
        return self.result

    def interrupt(self) -> None:
        """Send no more and drop what is under way: it counts neither as completed nor as failed."""
        self.result.interrupted = True
        self._stop_sending()
        for shot in tuple(self._active):
            shot.drop()
        self._active.clear()
        self._done.set()

    # --- inside ------------------------------------------------------------------------------------------------------

    def _make_pool(self, tasks: Tasks, ticker: Ticker) -> Pool:
        plan = self.plan
        timeouts = Timeouts(connect=plan.connect_timeout, first_byte=plan.timeout, stream_idle=plan.timeout)
        return Pool(
            self.target.origin,
            max_open=plan.max_in_flight,
            max_idle=plan.max_in_flight,
            timeouts=timeouts,
            ticker=ticker,
            spawn=tasks.spawn,
        )

    def _gap(self) -> float:
        rate = self.plan.rate or 1.0
        return self._random.expovariate(rate) if self.plan.arrivals == "poisson" else 1.0 / rate

    def _arrive(self, at: float) -> None:
        """Send what is due; `at` is the next arrival's time."""
        now = monotonic()
        for _ in range(DRAW_AT_ONCE):
            if not self._more(at):
                self._stop_sending()
                self._finish_if_idle()
                return
            if at > now + TIMER_STEP:
                break
            self.result.lag.add(max(0.0, now - at))
            self._send(now)
            at += self._gap()
        self._arrival = asyncio.get_running_loop().call_at(at, self._arrive, at)

    def _next_closed(self) -> None:
        now = monotonic()
        if self._sending and self._more(now):
            self._send(now)
        else:
            self._stop_sending()

    def _more(self, at: float) -> bool:
        plan = self.plan
        if plan.requests is not None and self.result.sent >= plan.requests:
            return False
        return plan.seconds is None or at - self._began <= plan.seconds

    def _send(self, now: float) -> None:
        body = self._bodies.next()
        shot = _Shot(self, now)
        self._active.add(shot)
        self.result.sent += 1
        self.result.peak_in_flight = max(self.result.peak_in_flight, len(self._active))
        head = self.target.head("POST", "/v1/chat/completions", self._key, len(body))
        self._pool.request(head, body, shot)

    def ended(self, shot: _Shot, error: str | None) -> None:
        self._active.discard(shot)
        result = self.result
        if error is None:
            result.completed += 1
        else:
            kind = error if error in result.errors or len(result.errors) < MAX_KINDS else "other"
            result.errors[kind] = result.errors.get(kind, 0) + 1
        if self._sending and self.plan.concurrency is not None:
            asyncio.get_running_loop().call_soon(self._refill)
        self._finish_if_idle()

    def _refill(self) -> None:
        if self._sending:
            self._next_closed()
        self._finish_if_idle()

    def _stop_sending(self) -> None:
        self._sending = False
        if self._arrival is not None:
            self._arrival.cancel()
            self._arrival = None

    def _finish_if_idle(self) -> None:
        if not self._sending and not self._active:
            self._done.set()

    def _sweep(self, _: float) -> None:
        now = monotonic()
        for shot in [s for s in self._active if now - s.began > self.plan.timeout]:
            shot.fail("timeout")
        self.result.seconds = now - self._began
        if self._on_progress is not None:
            self._on_progress(self)

    def __repr__(self) -> str:
        r = self.result
        return f"<Load {r.sent} sent, {len(self._active)} in flight, {r.completed} completed, {r.failed} failed>"


class _Shot(WholeInParts):
    """One request under way: a `Sink`."""

    __slots__ = (
        "_body",
        "_done",
        "_events",
        "_framer",
        "_last",
        "_load",
        "_status",
        "_tokens",
        "began",
        "call",
        "heard_at",
    )

    def __init__(self, load: Load, began: float) -> None:
        self._load = load
        self.began = began
        self.call: Call | None = None
        self.heard_at = 0.0
        self._status = 0
        self._framer: Framer | None = None
        self._body = b""
        self._last = 0.0
        self._events = 0
        self._tokens: int | None = None
        self._done = False

    # --- Sink --------------------------------------------------------------------------------------------------------

    def on_head(self, status: int, headers: list[Header], length: int | None) -> None:
        self._status = status
        for name, value in headers:
            if name == b"content-type" and status == 200 and value.lower().startswith(b"text/event-stream"):
                self._framer = Framer(MAX_BODY)
            elif name == b"retry-after" and value.isdigit():
                self._load.result.retry_after.add(float(value))

    def on_body(self, data: bytes) -> None:
        if self._framer is None:
            if len(self._body) < MAX_BODY:
                self._body += data
            return
        try:
            block = self._framer.feed(data)
        except EventTooLarge:
            self.fail("event_too_large")
            return
        if block:
            now = monotonic()
            # Once content flows, an event is decoded only where it may say more than a word.
            if self._events and b'"usage"' not in block and b'"error"' not in block and b"[DONE]" not in block:
                self._content(now, count(block))
                return
            for event in split(block):
                if not self._event(event, now):
                    return

    def on_end(self) -> None:
        load = self._load
        if self._status != 200:
            self._end(f"status {self._status}{_code(self._body)}")
        elif self._framer is None:
            self._end("not_a_stream")
        elif not self._done:
            self._end("no_done")
        elif not self._events:
            self._end("no_content")
        else:
            load.result.e2e.add(monotonic() - self.began)
            load.result.output_tokens += self._events if self._tokens is None else self._tokens
            self._end(None)

    def on_fail(self, failure: Failure, detail: str) -> None:
        self._end(_FAILURES.get(failure, failure.value))

    # --- inside ------------------------------------------------------------------------------------------------------

    def _event(self, event: bytes, now: float) -> bool:
        """One event of the stream; False where it ends the request."""
        data = data_of(event)
        if data is None:
            return True
        if data == b"[DONE]":
            self._done = True
            return True
        chunk = openai.chunk(data)
        if chunk is None:
            self.fail("bad_event")
            return False
        if chunk.is_error:
            self.fail(f"error_event{_code(data)}")
            return False
        if chunk.usage is not None and chunk.usage.completion_tokens is not None:
            self._tokens = chunk.usage.completion_tokens
            if not chunk.choices:
                self._load.result.prompt_tokens += chunk.usage.prompt_tokens or 0
        if chunk.has_content:
            self._content(now, 1)
        return True

    def _content(self, now: float, n: int) -> None:
        """`n` content events have come at once."""
        if not n:
            return
        result = self._load.result
        if self._events:
            result.itl.add(now - self._last)
        else:
            result.ttft.add(now - self.began)
            if self.call is not None:
                self.call.begin()
        if n > 1:
            result.itl.add(0.0, n - 1)
        self._events += n
        self._last = now

    def fail(self, error: str) -> None:
        """End it here, its connection closed."""
        self.drop()
        self._end(error)

    def drop(self) -> None:
        if self.call is not None:
            self.call.cancel()

    def _end(self, error: str | None) -> None:
        self._load.ended(self, error)


_FAILURES: Final = MappingProxyType(
    {
        Failure.FULL: "client_full",
        Failure.CONNECT: "connect",
        Failure.CONNECT_TIMEOUT: "connect_timeout",
        Failure.TLS: "tls",
        Failure.RESET: "reset",
        Failure.FIRST_BYTE_TIMEOUT: "timeout",
        Failure.IDLE_TIMEOUT: "timeout",
        Failure.CUT: "cut",
    }
)


class _Error(msgspec.Struct):
    code: Any = None
    type: Any = None


class _Envelope(msgspec.Struct):
    error: _Error | None = None


def _code(body: bytes) -> str:
    """` code` out of an error envelope, made safe to print; empty where it has none."""
    try:
        error = msgspec.json.decode(body, type=_Envelope).error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""
    if error is None:
        return ""
    said = error.code if isinstance(error.code, str) and error.code else error.type
    if not isinstance(said, str) or not said:
        return ""
    return " " + "".join(c if c.isprintable() else "�" for c in said[:40])


WORDS: Final = tuple(
    re.findall(
        r"\w+",
        "the water in this river runs down to a small lake and then on past old mills where men once made flour from "
        "wheat that grew on both sides of it until new roads came and all work moved away",
    )
)


class _Bodies:
    """Request bodies: each prompt starts with words of its own, so that no prefix cache answers for the engine."""

    def __init__(self, plan: Plan) -> None:
        self._random = random.Random(plan.seed + 1)  # noqa: S311 - words, not secrets
        unique = min(12, plan.prompt_tokens)
        self._unique = unique
        tail = " ".join(self._random.choices(WORDS, k=plan.prompt_tokens - unique))
        body: dict[str, Any] = {
            "model": plan.model,
            "messages": [{"role": "user", "content": f"\0{' ' if tail else ''}{tail}"}],
            "max_tokens": plan.max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
            **plan.extra,
        }
        self._before, _, self._after = json.dumps(body, separators=(",", ":")).partition("\\u0000")

    def next(self) -> bytes:
        words = " ".join(self._random.choices(WORDS, k=self._unique))
        return f"{self._before}{words}{self._after}".encode()
