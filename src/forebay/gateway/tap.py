"""The short cut of a stream that has begun.

Most reads from an engine are one HTTP chunk with one event that differs from the one before only in its words; where
the loop has much to do, they are some such chunks. Those are counted and passed on as they are, in the engine's own
chunk framing.

While it streams, the tap is the engine connection's protocol; whatever it does not know goes to the connection, whose
parser never sees what the tap took and need not: whole chunks leave it where it was.
"""

from __future__ import annotations

import asyncio
import re
from bisect import bisect_left
from collections.abc import Callable
from math import inf
from time import monotonic
from typing import Final

from forebay.counters import Histogram
from forebay.wire.reply import Log

_WORDS: Final = re.compile(rb'"(?:content|text|reasoning_content|reasoning|arguments)":"((?:[^"\\]|\\.)*)')
_NONE: Final = b"\0no read ends like this\0"
_CHUNKS: Final = 4_096
_PAST_HEAD: Final = 6
"""An offset behind the line end of any chunk head below, and before the first line end of an event."""
_LF: Final = 10
_0: Final = ord("0")
_9: Final = ord("9")
_A: Final = ord("a")
_F: Final = ord("f")
_DIGITS: Final = 3
"""Of a chunk's size, at most."""


def _chunk_head(size: int) -> bytes:
    """The head that a read of `size` bytes has if it is one chunk, as all common servers write it (h11, httptools,
    hyper, Go): lower-case hexadecimal without leading zeros. Unmatchable where no chunk has that size."""
    for digits in range(1, 4):
        body = size - digits - 4
        if body > 0 and len(b"%x" % body) == digits:
            return b"%x\r\n" % body
    return _NONE


_CHUNK_HEADS: Final = tuple(map(_chunk_head, range(_CHUNKS)))


def _events_in(data: bytes, suffix: bytes) -> int:
    """How many chunks `data` consists of, where each is framed as `_chunk_head` says and is one event that ends in
    `suffix`; else 0."""
    found = at = 0
    size = len(data)
    tail = len(suffix)
    while at < size:
        body = 0
        begin = at
        most = min(at + _DIGITS, size)
        while begin < most:
            digit = data[begin]
            if _0 <= digit <= _9:
                body = 16 * body + digit - _0
            elif _A <= digit <= _F:
                body = 16 * body + digit - _A + 10
            else:
                break
            begin += 1
        if begin == at or data[at] == _0 or data[begin : begin + 2] != b"\r\n":
            return 0
        begin += 2
        end = begin + body + 2
        first = end - tail
        if end > size or first < begin or data[first:end] != suffix or data.find(_LF, begin) != end - 4:
            return 0
        found += 1
        at = end
    return found


def suffix_of(event: bytes) -> bytes | None:
    """What follows the words in an event that has no usage, end or error, as its chunk ends: whatever ends in the same
    way, `"finish_reason":null` in it, has none either. None where the event has no words."""
    suffix = after_words(event)
    if suffix is not None and b'"finish_reason":null' in suffix and suffix.endswith(b"}\n\n"):
        return suffix + b"\r\n"
    return None


def after_words(event: bytes) -> bytes | None:
    """What follows the first words in an event, from their closing quote on. None where it has no words."""
    match = _WORDS.search(event)
    return None if match is None else event[match.end() :]


def words_of(event: bytes) -> bytes:
    """The first words in an event, as JSON writes them within its quotes."""
    match = _WORDS.search(event)
    return event[match.start(1) : match.end()] if match is not None else b""


class Tap(asyncio.Protocol):
    """`suffix` is what a chunk must end in to be taken, unmatchable while the connection is within a chunk. `events`
    and `sent` (bytes) count what was taken; `heard_at` is when content came last, taken or not, monotonic seconds."""

    __slots__ = (
        "_bucket",
        "_edges",
        "_fallback",
        "_gaps",
        "_learned",
        "_log",
        "_longest",
        "_shortest",
        "_write",
        "events",
        "heard_at",
        "sent",
        "suffix",
    )

    def __init__(self, gaps: Histogram, now: float) -> None:
        self._gaps, self._edges = gaps.counts, gaps.edges
        self._bucket = 0  # of the last gap, and the gaps of that bucket
        self._shortest = self._longest = inf
        self._learned = _NONE
        self._write: Callable[[bytes], None] | None = None
        self._log: Log | None = None
        self._fallback: asyncio.Protocol | None = None
        self.suffix = _NONE
        self.events = 0
        self.sent = 0
        self.heard_at = now

    @property
    def learned(self) -> bool:
        return self._learned is not _NONE

    def learn(self, suffix: bytes) -> None:
        """Take chunks that end in `suffix`, from the next gap between chunks on."""
        self._learned = suffix

    def forget_for_now(self) -> None:
        """Take nothing until something is learned anew."""
        self._learned = self.suffix = _NONE

    def forget(self) -> None:
        """Take nothing more."""
        self.forget_for_now()
        self._write = self._log = None

    def write_to(self, writer: Callable[[bytes], None], log: Log | None = None) -> None:
        """Where taken chunks go; without it none is taken. `log`: and where they are kept."""
        self._write = writer
        self._log = log

    def arrived(self) -> None:
        """Content has come past the tap."""
        now = monotonic()
        self._observe(now - self.heard_at)
        self.heard_at = now

    def _observe(self, gap: float) -> None:
        if not self._shortest < gap <= self._longest:
            edges = self._edges
            self._bucket = at = bisect_left(edges, gap)
            self._shortest = edges[at - 1] if at else -inf
            self._longest = edges[at] if at < len(edges) else inf
        self._gaps[self._bucket] += 1

    # --- for the engine's connection ---------------------------------------------------------------------------------

    def follow(self, connection: asyncio.Protocol) -> None:
        self._fallback = connection

    def between_chunks(self) -> None:
        if self._write is not None:
            self.suffix = self._learned

    # --- asyncio.Protocol --------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        n = len(data)
        suffix = self.suffix
        if data.endswith(suffix):
            found = 0
            if n < _CHUNKS and data.find(_LF, _PAST_HEAD) == n - 4:
                head = _CHUNK_HEADS[n]
                if data[: len(head)] == head:
                    found = 1
            else:
                found = _events_in(data, suffix)
            if found:
                now = monotonic()
                self._observe(now - self.heard_at)
                if found > 1:
                    self._gaps[0] += found - 1  # they came together
                self.heard_at = now
                self.events += found
                self.sent += n
                if self._log is not None:
                    self._log.add(data)
                self._write(data)  # type: ignore[misc]  # a suffix that matches is there only with a writer
                return
        self.suffix = _NONE
        self._fallback.data_received(data)  # type: ignore[union-attr]  # the connection set itself before its transport

    def eof_received(self) -> bool | None:
        return self._fallback.eof_received() if self._fallback is not None else None

    def connection_lost(self, exc: Exception | None) -> None:
        if self._fallback is not None:
            self._fallback.connection_lost(exc)

    def __repr__(self) -> str:
        return f"<Tap {self.events} events taken{'' if self.learned else ', nothing learned'}>"
