"""One request under way, and what its stream says."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from time import monotonic
from types import MappingProxyType
from typing import Any, Final, Protocol

import msgspec

from forebay.api import openai, reading
from forebay.counters import Histogram
from forebay.gateway.tap import Tap, after_words, suffix_of
from forebay.plan.target import MAX_BODY
from forebay.wire.head import Header
from forebay.wire.sse import EventTooLarge, Framer, count, data_of, split
from forebay.wire.upstream import Call, Failure, WholeInParts

_LONGEST: Final = 1e9
"""Seconds of a Retry-After; more is that."""


class Owner(Protocol):
    """Who sent it."""

    def first(self, shot: Shot, now: float, events: int) -> None:
        """The first `events` events with content have come; 0 where the answer ended without any."""
        ...

    def gap(self, shot: Shot, seconds: float, now: float, events: int) -> None:
        """`events` more have come at once, `seconds` after the one before."""
        ...

    def ended(self, shot: Shot, error: str | None) -> None:
        """It is over; `error` is what went wrong."""
        ...


class Shot(WholeInParts):
    """A `Sink`. Times are monotonic seconds; `began` is when the request was to leave, or left if that was earlier."""

    __slots__ = (
        "_body",
        "_coded",
        "_done",
        "_ending",
        "_framer",
        "_owner",
        "_status",
        "_tap",
        "_tapped",
        "began",
        "cached_tokens",
        "call",
        "ended_at",
        "events",
        "first",
        "last",
        "prompt_tokens",
        "retry_after",
        "retry_denied",
        "tokens",
    )

    def __init__(self, owner: Owner, began: float) -> None:
        self._owner = owner
        self.began = began
        self.call: Call | None = None
        self.events = 0
        """With content."""
        self.first = 0.0
        """When content, or the end without any, came; 0 before."""
        self.last = 0.0
        """When the latest content came."""
        self.ended_at = 0.0
        """When the last choice ended; 0 before."""
        self.tokens: int | None = None
        """Of the answer, by the server's usage."""
        self.prompt_tokens: int | None = None
        self.cached_tokens = 0
        self.retry_after: float | None = None
        """Seconds."""
        self.retry_denied = False
        self._status = 0
        self._framer: Framer | None = None
        self._body = b""
        self._coded = False
        self._done = False
        self._ending = b""
        self._tap: Tap | None = None
        self._tapped = 0

    @property
    def heard_at(self) -> float:
        """When content came last; 0 before."""
        return self.last

    @property
    def output_tokens(self) -> int:
        """By the server's usage, else events with content."""
        return self.events if self.tokens is None else self.tokens

    @property
    def refused(self) -> bool:
        """Whether the server said that it has no room now."""
        return self._status in (429, 503)

    def tpot(self) -> float | None:
        """Seconds a token after the first; None for answers of one token. The end counts as a token's time where tokens
        came that had no text of their own."""
        n = self.output_tokens
        if n < 2:
            return None
        last = self.last if self.events >= n or not self.ended_at else max(self.last, self.ended_at)
        return max(0.0, last - self.first) / (n - 1)

    # --- Sink --------------------------------------------------------------------------------------------------------

    def on_head(self, status: int, headers: list[Header], length: int | None) -> None:
        self._status = status
        for name, value in headers:
            if name == b"content-type" and status == 200 and value.lower().startswith(b"text/event-stream"):
                self._framer = Framer(MAX_BODY)
            elif name == b"retry-after":
                self.retry_after = _seconds(value)
            elif name == b"x-should-retry":
                self.retry_denied = value.strip().lower() == b"false"
            elif name == b"content-encoding":
                self._coded = value.strip().lower() not in (b"", b"identity")
        if self._coded:
            self._framer = None  # nobody asked for it, and it is no events as it is

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
            # Once content flows, events that end as the first did are counted; any other is decoded.
            if (
                self._ending
                and b'"usage"' not in block
                and b'"error"' not in block
                and b'"finish_reason":"' not in block
                and b'"finish_reason": "' not in block
                and (n := count(block)) == block.count(self._ending)
            ):
                self._content(now, n)
                return
            for event in split(block):
                if not self._event(event, now):
                    return

    def on_end(self) -> None:
        if self._status != 200:
            self._end(f"status {self._status}{_code(self._body)}")
        elif self._coded:
            self._end("compressed")
        elif self._framer is None:
            self._end("not_a_stream")
        elif not self._done:
            self._end("no_done")
        elif not self.first:
            self._end("no_content")
        else:
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
        chunk = reading.chunk(data)
        if chunk is None:
            self.fail("bad_event")
            return False
        if chunk.is_error:
            self.fail(f"error_event{_code(data)}")
            return False
        usage = chunk.usage
        if usage is not None and (tokens := _tokens(usage.completion_tokens)) is not None:
            self.tokens = tokens
            self.prompt_tokens = _tokens(usage.prompt_tokens)
            self.cached_tokens = min(usage.cached_tokens or 0, self.prompt_tokens or 0)
        if chunk.has_content:
            if not self.first:
                self._begin(event, now)
            if not chunk.is_last or _says_something(chunk):
                self._content(now, 1)
            if chunk.is_last:
                self._last_choice(now)
        return True

    def _begin(self, event: bytes, now: float) -> None:
        """Content has come: events like this one are counted from now on without a look into them."""
        self._ending = after_words(event) or b""
        suffix = suffix_of(event)
        if self.call is None:
            return
        if suffix is None:
            self.call.begin()
            return
        tap = self._tap = Tap(Histogram(()), now)
        tap.learn(suffix)
        tap.write_to(self._taken)
        self.call.begin(tap)

    def _taken(self, _: bytes) -> None:
        """Chunks that hold one event of words each."""
        tap = self._tap
        assert tap is not None
        before, self._tapped = self._tapped, tap.events
        self._content(monotonic(), tap.events - before)

    def _content(self, now: float, n: int) -> None:
        """`n` content events have come at once."""
        if not n:
            return
        before, self.last = self.last, now
        self.events += n
        if before:
            self._owner.gap(self, now - before, now, n)
        else:
            self._first(now, n)

    def _last_choice(self, now: float) -> None:
        self.ended_at = now
        if not self.first:
            self.last = now
            self._first(now, 0)

    def _first(self, now: float, n: int) -> None:
        self.first = now
        self._owner.first(self, now, n)

    def fail(self, error: str) -> None:
        """End it here, its connection closed."""
        self.drop()
        self._end(error)

    def drop(self) -> None:
        if self.call is not None:
            self.call.cancel()

    def _end(self, error: str | None) -> None:
        self._owner.ended(self, error)


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


def _says_something(chunk: openai.Chunk) -> bool:
    """Whether a choice that ends says something besides that."""
    return any(msgspec.structs.replace(choice, finish_reason=None).has_content for choice in chunk.choices or ())


def _tokens(said: int | None) -> int | None:
    """A count as a server says it; None for what cannot be one."""
    return said if said is not None and said >= 0 else None


def _seconds(value: bytes) -> float | None:
    """A Retry-After (RFC 9110 §10.2.3): seconds, or a date; None for anything else."""
    text = value.decode("latin-1").strip()
    try:
        found = float(text)
    except ValueError:
        try:
            at = parsedate_to_datetime(text)
        except (ValueError, OverflowError):
            return None
        found = (at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp() - datetime.now(UTC).timestamp()
    return min(max(0.0, found), _LONGEST) if found == found else None


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
