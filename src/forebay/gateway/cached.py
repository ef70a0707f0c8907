"""What caches have to do with one request, and how it is given an answer that is known."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from forebay.cache.answers import Answer
from forebay.cache.key import ANYTHING, Asked, Facts, Wish
from forebay.cache.messages import Kind
from forebay.errors import Outcome

if TYPE_CHECKING:
    from forebay.gateway.exchange import Exchange
    from forebay.gateway.flights import Flight
    from forebay.wire.reply import Reply

HEADER: Final = b"x-forebay-cache"
ENTRY: Final = b"x-forebay-cache-entry"
AGE: Final = b"x-forebay-cache-age"
SIMILARITY: Final = b"x-forebay-cache-similarity"
WHY: Final = b"x-forebay-cache-why"
_KIND: Final = HEADER + b": "
_ENTRY: Final = ENTRY + b": "
TOLD: Final = (HEADER, ENTRY, AGE, SIMILARITY, WHY)
_PIECE: Final = 65_536
"""Bytes of a stream that are written at once."""


class Part:
    """Of one request."""

    __slots__ = (
        "answer",
        "asked",
        "background",
        "entry",
        "facts",
        "flight",
        "kind",
        "left",
        "most",
        "said",
        "similarity",
        "why",
        "wish",
    )

    def __init__(self, kind: Kind, why: str = "", *, wish: Wish = ANYTHING) -> None:
        self.kind = kind
        self.why = why
        """Of a miss and of a bypass; "" where nothing like it is known."""
        self.wish = wish
        self.asked: Asked | None = None
        self.facts: Facts | None = None
        self.flight: Flight | None = None
        self.answer: Answer | None = None
        """That it was given."""
        self.entry = ""
        self.similarity = 0.0
        self.said = b""
        """What its head says of all this."""
        self.most = 0
        """What limits set its max_tokens to; 0: they did not."""
        self.left = False
        """Its client left while others shared its answer."""
        self.background = False
        """It has no client: it fetches a fresh answer, or one to compare."""

    @property
    def shares(self) -> bytes:
        """What it must have in common with those who share a flight with it."""
        assert self.asked is not None
        return self.asked.exact + b"%d" % self.most if self.most else self.asked.exact

    def say(self, reply: Reply, *, why: bool, age: float = -1.0) -> None:
        """In the head of its answer, in place of what was said before. `why`: it wants to know; `age`: seconds."""
        said = _KIND + self.kind.encode() + b"\r\n"
        if self.entry:
            said += _ENTRY + self.entry.encode() + b"\r\n"
        if age >= 0:
            said += b"%b: %d\r\n" % (AGE, age)
        if self.similarity:
            said += b"%b: %.4f\r\n" % (SIMILARITY, self.similarity)
        if why and self.why:
            said += b"%b: %b\r\n" % (WHY, self.why.encode())
        extra = reply.extra
        if self.said:
            extra = extra.replace(self.said, b"", 1)
        self.said = said
        reply.extra = said + extra

    def logged(self) -> bytes:
        """Its part of the request's log line."""
        found = b',"cache":"' + self.kind.encode() + b'"'
        if self.entry:
            found += b',"cache_entry":"' + self.entry.encode() + b'"'
        if self.why:
            found += b',"cache_why":"%b"' % self.why.encode()
        if self.similarity:
            found += b',"similarity":%.4f' % self.similarity
        if self.left:
            found += b',"client_left":true'
        return found + (b',"background":true' if self.background else b"")

    def __repr__(self) -> str:
        return f"<Part {self.kind.value}{f' {self.why}' if self.why else ''}>"


class Replay:
    """A stream that is known, at the client's own pace and at most `pace` events a second, 0 for no bound.

    Mutable state: the place in it, and the timer of the next event.
    """

    __slots__ = ("_at", "_events", "_pace", "_reply", "_timer", "_x")

    def __init__(self, x: Exchange, events: Sequence[bytes], pace: float) -> None:
        self._x = x
        self._reply = x.reply
        self._events = events
        self._pace = pace
        self._at = 0
        self._timer: asyncio.TimerHandle | None = None
        self._reply.on_resume = self.go_on
        self._reply.on_gone = self._gone

    def go_on(self) -> None:
        """Write what may be written now."""
        if self._timer is not None:
            return
        events, reply = self._events, self._reply
        while self._at < len(events):
            if reply.paused:
                return
            reply.write(events[self._at])
            self._at += 1
            if self._pace and self._at < len(events):
                self._timer = asyncio.get_running_loop().call_later(1 / self._pace, self._due)
                return
        if not self._x.ended:
            reply.end()
            self._x.shared(Outcome.HIT, 200)

    def _due(self) -> None:
        self._timer = None
        if not self._x.ended:
            self.go_on()

    def _gone(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._x.client_gone()


def in_pieces(data: bytes) -> list[bytes]:
    """A stream as it is written where nothing paces it."""
    if len(data) <= _PIECE:
        return [data]
    return [data[at : at + _PIECE] for at in range(0, len(data), _PIECE)]
