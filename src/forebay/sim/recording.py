"""A recorded run of the gateway's admission, read back and played again in simulated time.

`Replay` makes the admission anew and tells it what the gateway's was told, at the recorded times. It is recorded in its
turn, so that every call has two records: of the live run and of this one. Equal decisions mean that nothing but what is
recorded has a say in them.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from forebay.policy.asks import Ask
from forebay.policy.engine_books import EngineBooks
from forebay.policy.facts import Facts, Report
from forebay.policy.recording import (
    FORMAT,
    AskQuote,
    Begin,
    CacheCleared,
    CacheLost,
    Call,
    Configure,
    Due,
    Ease,
    End,
    EngineGone,
    EngineHere,
    FirstToken,
    Line,
    Offer,
    Recording,
    Reported,
    Split,
    Stop,
    Tokens,
    typed,
)
from forebay.policy.rules import Rules

MAX_LINE: Final = 16 << 20
"""Bytes."""


class RecordingError(Exception):
    """A file that is no recording, or one with a line that cannot be read or played."""

    def __init__(self, path: Path, line: int, message: str) -> None:
        where = f"{path}:{line}" if line else str(path)
        super().__init__(f"{where}: {message}")


class Tape:
    """A recording: its calls, in order, as often as they are iterated over; `Begin` is not among them.

    Mutable state: what the last pass has seen of the file's end.
    """

    def __init__(self, path: Path) -> None:
        """Raises RecordingError, OSError."""
        self.path = path
        self.why = ""
        """What the last line says; empty where there is none: the gateway still runs, was killed, or had no room."""
        self.cut = 0
        """The number of a last line that is not whole, which is left out."""
        self.sound = True
        """False where the last line's count or checksum does not fit the lines before it: they are not what was
        written."""
        first = next(self._lines(), None)
        if first is None:
            raise RecordingError(path, 0, "the file has no whole line")
        self.begin = self._begun(*first)

    def __iter__(self) -> Iterator[tuple[int, Call]]:
        """(line, from 1; call). Raises RecordingError, OSError."""
        self.why, self.cut, self.sound = "", 0, True
        crc = 0
        decode = msgspec.json.Decoder(Line).decode
        for n, raw in self._lines():
            if self.why:
                raise RecordingError(self.path, n, "the recording goes on after its last line")
            if n == 1:
                self._begun(n, raw)
            else:
                try:
                    call = decode(raw)
                except (ValueError, RecursionError) as e:
                    raise RecordingError(self.path, n, f"the line is no call: {e}") from None
                if isinstance(call, Stop):
                    self.why = call.why or "no reason"
                    self.sound = (call.calls, call.crc) == (n - 1, crc)
                    continue
                yield n, call
            crc = zlib.crc32(raw, crc)

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        """The whole ones."""
        n = 0
        with self.path.open("rb") as file:
            while raw := file.readline(MAX_LINE + 1):
                n += 1
                if raw.endswith(b"\n"):
                    yield n, raw
                elif len(raw) > MAX_LINE:
                    raise RecordingError(self.path, n, f"the line is longer than {MAX_LINE:,} bytes")
                else:
                    self.cut = n

    def _begun(self, n: int, raw: bytes) -> Begin:
        try:
            begin = msgspec.json.decode(raw, type=Begin)
            datetime.fromisoformat(begin.time)
        except (ValueError, RecursionError) as e:  # of which msgspec's are
            raise RecordingError(self.path, n, f"the file is no recording of admission: {e}") from None
        if begin.format != FORMAT:
            raise RecordingError(self.path, n, f"the form is {begin.format}; this version reads {FORMAT}")
        return begin


class Played(NamedTuple):
    line: int
    live: Call
    replayed: Call
    """The same call, with what came of it now."""


class _Last:
    """A `Sink` that keeps one call."""

    open = True

    def __init__(self) -> None:
        self._call: Call | None = None

    def write(self, call: Call) -> None:
        self._call = call

    def take(self) -> Call | None:
        call, self._call = self._call, None
        return call


class Replay:
    """The tape's admission, made anew. Iterate over it once: it is told what the tape says.

    Mutable state: the policy; the asks that were offered and have not ended, by key; the books of engines that went.
    """

    def __init__(self, tape: Tape) -> None:
        """Raises RecordingError."""
        self._tape = tape
        self._last = _Last()
        self._asks: dict[int, Ask] = {}
        self._gone: dict[str, EngineBooks] = {}
        begin = tape.begin
        try:
            self.facts = {name: typed(facts, Facts) for name, facts in begin.engines.items()}
            rules = typed(begin.rules, Rules)
        except ValueError as e:
            raise RecordingError(tape.path, 1, f"rules or engines that cannot be: {e}") from None
        self.policy = Recording(
            rules, self.facts, self._last, _as_it_is, at=begin.at, time=begin.time, version=begin.forebay
        )

    def __iter__(self) -> Iterator[Played]:
        """Raises RecordingError, OSError."""
        last = self._last
        last.take()
        for line, call in self._tape:
            problem: Exception | None = None
            try:
                self._tell(call)
            except Exception as e:
                problem = e
            replayed = last.take()
            if replayed is None:  # the policy was not even asked
                what = f"no request {problem} was offered" if isinstance(problem, KeyError) else str(problem)
                raise RecordingError(self._tape.path, line, f"cannot be played: {what}")
            yield Played(line, call, replayed)  # with what the policy raised, where it did

    @property
    def books(self) -> dict[str, EngineBooks]:
        """Of each engine that there is, or was."""
        return self._gone | self.policy.books

    def _tell(self, call: Call) -> None:
        policy, asks, now = self.policy, self._asks, call.at
        match call:
            case Offer():
                ask = asks[call.ask.key] = call.ask.ask()
                policy.offer(ask, now)
            case Due():
                policy.due(now)
            case FirstToken():
                policy.on_first_token(asks[call.key], now)
            case Split():
                policy.on_split(asks[call.key], call.prefill, now)
            case Tokens():
                policy.on_tokens(call.counts, now)
            case End():
                policy.on_end(asks.pop(call.key), now, tokens=call.tokens, whole=call.whole, cached_tokens=call.cached)
            case Ease():
                policy.ease(call.engine, call.share, now)
            case CacheLost():
                policy.cache_lost(call.engine, call.prefix, call.keep, now)
            case CacheCleared():
                policy.cache_cleared(call.engine, now)
            case Reported():
                policy.on_report(call.engine, typed(call.report, Report), now)
            case EngineHere():
                policy.engine_here(call.engine, typed(call.facts, Facts), now)
            case EngineGone():
                if (books := policy.books.get(call.engine)) is not None:
                    self._gone[call.engine] = books
                policy.engine_gone(call.engine, now)
            case Configure():
                policy.configure(typed(call.rules, Rules), now)
            case AskQuote():
                policy.quote(call.ask.ask(), now)


def _as_it_is(name: str) -> str:
    return name
