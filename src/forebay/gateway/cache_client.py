"""A worker's line to the helper process: questions with a budget, answers to keep, words of what must go.

Nothing here waits: a question whose answer does not come in time, or cannot be asked, is a miss. How many are open at
once follows what the helper can do: it is halved when one is late, once for all that were open then, and grows by one
for as many as it is that were in time (as TCP does it, RFC 5681 section 3.1). So a helper that has too much to do
answers as many as it can, and the others do not wait. Where it is down to one, and `_LATE` were late in a row, the
helper is left alone for `_REST` seconds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final, cast

import msgspec

from forebay.cache.messages import Answered, Drop, Failed, Feedback, Find, Found, Heard, Said, Store, Unanswered
from forebay.counters import counters
from forebay.wire.tasks import Tasks

log = logging.getLogger("forebay.worker")

MOST_ASKED: Final = 256
"""Questions that are open at once."""
MOST_UNSENT: Final = 4 << 20
"""Bytes that the helper has not read, over which answers are not sent to it."""
SLOW: Final = 256 << 10
"""The same, for questions: they would be answered behind those bytes."""
LONGEST: Final = 128 << 20
"""Bytes of a message."""
_LATE: Final = 16
_REST: Final = 1.0
_AGAIN: Final = 0.05
_AT_MOST: Final = 2.0
"""Seconds between two tries to connect, at first and at most."""

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(Answered).decode

AWAY: Final = "away"
BUSY: Final = "busy"
LATE: Final = "budget"
_TOO_MUCH: Final = frozenset({BUSY, LATE})
"""What the helper says of a question that it came to too late, or not at all."""


class _Open:
    """A question that is open: what is called with its answer, or with why there is none."""

    __slots__ = ("found", "heard", "timer")

    def __init__(
        self,
        found: Callable[[Found | None, str], None] | None,
        heard: Callable[[Heard | None], None] | None,
        timer: asyncio.TimerHandle,
    ) -> None:
        self.found = found
        self.heard = heard
        self.timer = timer


class CacheClient(asyncio.Protocol):
    """Only for the event loop's thread.

    Mutable state: the connection, the open questions by number, how many there may be, and how often in a row it was
    late.
    """

    def __init__(
        self,
        path: Path,
        loop: asyncio.AbstractEventLoop,
        on_drop: Callable[[Drop], None],
        on_again: Callable[[], None],
    ) -> None:
        """`on_again`: it is connected anew; what it said to drop meanwhile was not heard."""
        self.asked = counters(
            "forebay_cache_lookups", "Questions to the helper process, by what came of them.", "result"
        )
        self.unsent = counters("forebay_cache_unsent", "Answers that the helper process could not be sent.")
        self._path = str(path)
        self._loop = loop
        self._on_drop = on_drop
        self._on_again = on_again
        self._transport: asyncio.Transport | None = None
        self._lost: asyncio.Future[None] | None = None
        self._buffer = bytearray()
        self._open: dict[int, _Open] = {}
        self._n = 0
        self._room = float(MOST_ASKED)
        self._counts_from = 0
        """A question of a lower number was asked before `_room` was halved."""
        self._late = 0
        self._rests_until = 0.0
        self._connections = 0
        self._tasks = Tasks()
        self._tasks.spawn(self._keep())

    @property
    def connected(self) -> bool:
        return self._transport is not None

    def find(
        self,
        exact: bytes,
        scope: bytes,
        question: str,
        partition: str,
        budget: float,
        back: Callable[[Found | None, str], None],
        writer: bytes = b"",
    ) -> str:
        """Ask; `back` is called once, later, with what was found or with None and why. Returns why it cannot be asked,
        or "" where it is."""
        transport = self._transport
        if transport is None:
            return self._not_asked(AWAY)
        now = self._loop.time()
        if len(self._open) >= self._room or now < self._rests_until or transport.get_write_buffer_size() > SLOW:
            return self._not_asked(BUSY)
        n = self._next()
        self._open[n] = _Open(back, None, self._loop.call_later(budget, self._overdue, n))
        self._send(Find(n, exact, scope, question, partition, budget, writer))
        return ""

    def store(self, message: Store) -> bool:
        """False: it cannot take it now, and never gets it."""
        if self._transport is None or self._transport.get_write_buffer_size() > MOST_UNSENT:
            self.unsent.series().value += 1
            return False
        self._send(message)
        return True

    def unanswered(self, ticket: int) -> None:
        if self._transport is not None:
            self._send(Unanswered(ticket))

    def feedback(
        self, entry: str, partition: str, good: bool, question: str, within: float, back: Callable[[Heard | None], None]
    ) -> bool:
        """False: it cannot be asked now. `back`: with None where it did not answer."""
        if self._transport is None or len(self._open) >= MOST_ASKED:
            return False
        n = self._next()
        self._open[n] = _Open(None, back, self._loop.call_later(within, self._overdue, n))
        self._send(Feedback(n, entry, partition, good, question))
        return True

    async def close(self) -> None:
        await self._tasks.drain()
        if self._transport is not None:
            self._lost = self._loop.create_future()
            self._transport.abort()
            await self._lost
        self._forget(AWAY)

    # --- asyncio.Protocol --------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=2 * MOST_UNSENT)
        self._buffer.clear()
        self._room, self._late, self._rests_until = float(MOST_ASKED), 0, 0.0
        self._connections += 1
        if self._connections > 1:
            self._on_again()

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        at = 0
        while len(buffer) - at >= 4:
            end = at + 4 + int.from_bytes(buffer[at : at + 4], "big")
            if end - at > LONGEST:
                self._broken(f"it announced a message of {end - at:,} bytes")
                return
            if len(buffer) < end:
                break
            try:
                message = _decode(memoryview(buffer)[at + 4 : end].tobytes())
            except (msgspec.MsgspecError, UnicodeDecodeError) as e:
                self._broken(f"its message cannot be read: {e}")
                return
            at = end
            self._take(message)
        del buffer[:at]

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._forget(AWAY)
        if self._lost is not None and not self._lost.done():
            self._lost.set_result(None)

    # --- inside ------------------------------------------------------------------------------------------------------

    async def _keep(self) -> None:
        """Connect, and again whenever it is gone."""
        wait = _AGAIN
        said = True
        while True:
            self._lost = self._loop.create_future()
            try:
                await self._loop.create_unix_connection(lambda: self, self._path)
            except OSError as e:
                if not said:
                    log.warning("the cache's helper process cannot be reached: %s", e.strerror or e)
                    said = True
                await asyncio.sleep(wait)
                wait = min(2 * wait, _AT_MOST)
                continue
            wait, said = _AGAIN, False
            await self._lost
            log.warning(
                "the cache's helper process has hung up; until it is back only this worker's own memory is used"
            )

    def _next(self) -> int:
        self._n += 1
        return self._n

    def _not_asked(self, why: str) -> str:
        self.asked.series(why).value += 1
        return why

    def _send(self, message: Said) -> None:
        data = _encode(message)
        if self._transport is not None:
            self._transport.write(len(data).to_bytes(4, "big") + data)

    def _overdue(self, n: int) -> None:
        one = self._open.pop(n, None)
        if one is None:
            return
        self._was_late(n)
        self._tell(n, one, None, LATE)

    def _in_time(self) -> None:
        self._late = 0
        self._room = min(MOST_ASKED, self._room + 1 / self._room)

    def _was_late(self, n: int) -> None:
        self._late += 1
        if n >= self._counts_from:
            self._room = max(1.0, self._room / 2)
            self._counts_from = self._n + 1
        if self._room == 1.0 and self._late >= _LATE:
            self._late = 0
            self._rests_until = self._loop.time() + _REST

    def _take(self, message: Answered) -> None:
        if isinstance(message, Drop):
            self._on_drop(message)
            return
        one = self._open.pop(message.n, None)
        if one is not None:
            one.timer.cancel()
            self._tell(message.n, one, message, "")
        elif isinstance(message, Found) and message.ticket:
            self.unanswered(message.ticket)  # too late: the engine's answer will not be handed back

    def _forget(self, why: str) -> None:
        asked, self._open = self._open, {}
        for n, one in asked.items():
            one.timer.cancel()
            self._tell(n, one, None, why)

    def _tell(self, n: int, one: _Open, answer: Answered | None, why: str) -> None:
        """Whoever asked it. `why`: where there is no answer."""
        if one.heard is not None:
            one.heard(answer if isinstance(answer, Heard) else None)
        elif one.found is not None:
            if isinstance(answer, Found):
                if answer.why in _TOO_MUCH:
                    self._was_late(n)
                else:
                    self._in_time()
                self.asked.series(answer.kind.value).value += 1
                one.found(answer, "")
            else:
                why = why or ("failed" if isinstance(answer, Failed) else "unexpected")
                self.asked.series(why).value += 1
                one.found(None, why)

    def _broken(self, why: str) -> None:
        log.error("the cache's helper process: %s", why)
        if self._transport is not None:
            self._transport.abort()

    def __repr__(self) -> str:
        return f"<CacheClient {'connected' if self.connected else 'away'}, {len(self._open)} open>"
