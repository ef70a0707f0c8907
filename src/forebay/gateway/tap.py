"""The short cut of a stream that has begun.

Most reads from an engine are one HTTP chunk with one event that differs from the one before only in its words. Those
are counted and passed on as they are, in the engine's own chunk framing.

While it streams, the tap is the engine connection's protocol; whatever it does not know goes to the connection, whose
parser never sees what the tap took and need not: whole chunks leave it where it was.
"""

from __future__ import annotations

import asyncio
import re
from bisect import bisect_left
from collections.abc import Callable
from time import monotonic
from typing import Final

from forebay.counters import Histogram

_WORDS: Final = re.compile(rb'"(?:content|text|reasoning_content|reasoning|arguments)":"((?:[^"\\]|\\.)*)')
_NONE: Final = b"\0no read ends like this\0"
_CHUNKS: Final = 4_096
_PAST_HEAD: Final = 6
"""An offset behind the line end of any chunk head below, and before the first line end of an event."""
_LF: Final = 10


def _chunk_head(size: int) -> bytes:
    """The head that a read of `size` bytes has if it is one chunk, as all common servers write it (h11, httptools,
    hyper, Go): lower-case hexadecimal without leading zeros. Unmatchable where no chunk has that size."""
    for digits in range(1, 4):
        body = size - digits - 4
        if body > 0 and len(b"%x" % body) == digits:
            return b"%x\r\n" % body
    return _NONE


_CHUNK_HEADS: Final = tuple(map(_chunk_head, range(_CHUNKS)))


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

    __slots__ = ("_edges", "_fallback", "_gaps", "_learned", "_write", "events", "heard_at", "sent", "suffix")

    def __init__(self, gaps: Histogram, now: float) -> None:
        self._gaps, self._edges = gaps.counts, gaps.edges
        self._learned = _NONE
        self._write: Callable[[bytes], None] | None = None
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
        self._write = None

    def write_to(self, writer: Callable[[bytes], None]) -> None:
        """Where taken chunks go; without it none is taken."""
        self._write = writer

    def arrived(self) -> None:
        """Content has come past the tap."""
        now = monotonic()
        self._gaps[bisect_left(self._edges, now - self.heard_at)] += 1
        self.heard_at = now

    # --- for the engine's connection ---------------------------------------------------------------------------------

    def follow(self, connection: asyncio.Protocol) -> None:
        self._fallback = connection

    def between_chunks(self) -> None:
        if self._write is not None:
            self.suffix = self._learned

    # --- asyncio.Protocol --------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        n = len(data)
        if data.endswith(self.suffix) and n < _CHUNKS and data.find(_LF, _PAST_HEAD) == n - 4:
            head = _CHUNK_HEADS[n]
            if data[: len(head)] == head:
                now = monotonic()
                self._gaps[bisect_left(self._edges, now - self.heard_at)] += 1
                self.heard_at = now
                self.events += 1
                self.sent += n
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
