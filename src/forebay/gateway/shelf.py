"""Answers that engines gave just now, on their way into memory and to the helper process.

On a busy worker an answer that nobody waits for is not looked through between its request and the next one, but some
milliseconds after, many at a time: that costs a third, since code and tables are then at hand, and the helper is
written to once. Until then it can be asked for as if it were there (`settle`), and whoever needs all of them there says
so (`flush`). One that comes alone is put away at once.

Mutable state: what waits, in the order in which it came, and two timers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from time import time
from typing import Final

from forebay.cache import answers
from forebay.cache.answers import About, Answer, Unfit
from forebay.cache.key import Asked, Facts
from forebay.cache.memory import Answers, fits, size_of
from forebay.cache.messages import Drop, Store
from forebay.config.cache import Cache
from forebay.counters import Counter
from forebay.gateway import keeping
from forebay.gateway.cache_client import CacheClient
from forebay.gateway.cache_telemetry import CacheTelemetry
from forebay.gateway.feedback import Feedbacks
from forebay.ledger.tokens import Tokens

log = logging.getLogger("forebay.worker")
_WAIT: Final = 0.005
"""Seconds from one putting away to the next; another worker finds them only then."""
_MOST: Final = 256
_MOST_BYTES: Final = 4 << 20
"""Of what waits; one more, and all of it is put away at once."""
_SLICE: Final = 32
_SLICE_BYTES: Final = 32 << 10
"""What is put away before the event loop goes on: less than 0.3 ms."""

_SWEEP: Final = 0.005
"""Seconds between two slices of a purge."""


class Fresh:
    """An engine's whole answer, as its books were closed."""

    __slots__ = (
        "asked", "body", "bounded", "chunks", "cost", "created", "facts", "seconds", "size", "sources", "stores",
        "tags", "ticket", "tokens", "usage",
    )  # fmt: skip

    def __init__(
        self,
        asked: Asked,
        facts: Facts,
        body: bytes | None,
        chunks: Sequence[bytes] | None,
        size: int,
        usage: bytes,
        labels: tuple[tuple[str, ...], tuple[str, ...]],
        tokens: Tokens,
        cost: int,
        seconds: float,
        created: float,
        stores: bool,
        bounded: bool,
        ticket: int,
    ) -> None:
        """`body`: of an answer that came whole; `chunks`: of a stream, framed. Neither: it is too large. `usage`: JSON,
        where the client did not see it; `bounded`: limits lowered its max_tokens; `created`: Unix time."""
        self.asked = asked
        self.facts = facts
        self.body = body
        self.chunks = chunks
        self.size = size
        self.usage = usage
        self.tags, self.sources = labels
        self.tokens = tokens
        self.cost = cost
        self.seconds = seconds
        self.created = created
        self.stores = stores
        self.bounded = bounded
        self.ticket = ticket

    def read(self) -> Answer | Unfit:
        asked, facts = self.asked, self.facts
        about = About(
            id=entry_of(asked.exact),
            created=self.created,
            ttl=facts.ttl,
            stale=facts.stale,
            model=facts.model,
            version=facts.version,
            partition=facts.partition,
            question=asked.question,
            tags=self.tags,
            sources=self.sources,
            tokens=self.tokens,
            avoided=self.cost,
            seconds=self.seconds,
        )
        if self.body is not None:
            return keeping.of_unary(self.body, about)
        if self.chunks is not None:
            return answers.from_chunks(self.chunks, about, usage=self.usage, length=True)
        return Unfit.LARGE

    def __repr__(self) -> str:
        return f"<Fresh {entry_of(self.asked.exact)}, {self.size:,} B>"


class Shelf:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        rules: Cache,
        memory: Answers,
        telemetry: CacheTelemetry,
        feedbacks: Feedbacks,
    ) -> None:
        self.rules = rules
        self.client: CacheClient | None = None
        self.memory = memory
        self.waiting: dict[bytes, Fresh] = {}
        """By exact key."""
        self._loop = loop
        self._telemetry = telemetry
        self._feedbacks = feedbacks
        self._kept: Counter = telemetry.kept.series("kept")
        self._bytes = 0
        self._timer: asyncio.Handle | None = None
        self._sweeping: asyncio.TimerHandle | None = None

    def put(self, fresh: Fresh) -> None:
        """Keep it: one that comes alone at once, what comes in the milliseconds after it together."""
        if self._timer is None:
            self._timer = self._loop.call_later(_WAIT, self._go_on)
            self.keep(fresh)
            return
        exact = fresh.asked.exact
        if exact in self.waiting:
            self.settle(exact)
        self.waiting[exact] = fresh
        self._bytes += fresh.size
        if len(self.waiting) > _MOST or self._bytes > _MOST_BYTES:
            self.flush()

    def settle(self, exact: bytes) -> None:
        """The one that waits under this key is put away now."""
        fresh = self.waiting.pop(exact, None)
        if fresh is not None:
            self._bytes -= fresh.size
            self.keep(fresh)

    def flush(self) -> None:
        """Nothing waits any more."""
        if self.waiting:
            self._some(len(self.waiting), self._bytes)

    def _go_on(self) -> None:
        self._timer = None
        if not self.waiting:
            return
        self._timer = self._loop.call_later(_WAIT, self._go_on)
        self._some(_SLICE, _SLICE_BYTES)
        if self.waiting:
            self._timer.cancel()
            self._timer = self._loop.call_soon(self._go_on)

    def _some(self, most: int, size: int) -> None:
        found: list[Fresh] = []
        for fresh in self.waiting.values():
            found.append(fresh)
            size -= fresh.size
            if len(found) == most or size <= 0:
                break
        for fresh in found:
            del self.waiting[fresh.asked.exact]
            self._bytes -= fresh.size
            self.keep(fresh, more=True)
        self.memory.settle()

    def keep(self, fresh: Fresh, drop: Drop | None = None, *, more: bool = False) -> Answer | None:
        """Now. Returns it for those who wait for it in another form, whether it is kept or not. `drop`: not where it is
        of those. `more`: `memory.settle` is called when these are there, too."""
        asked, facts, rules, memory = fresh.asked, fresh.facts, self.rules, self.memory
        if fresh.stores:
            self._feedbacks.gave(entry_of(asked.exact), facts.partition, asked.question if asked.scope else "")
        try:
            found = fresh.read()
        except Exception as e:  # those who shared it wait for what is done after this, and others are to be kept
            log.error("an engine's answer could not be read to be kept", exc_info=e)
            found = Unfit.UNREADABLE
        if facts.writer and isinstance(found, Answer):
            found = keeping.written(found, facts.writer, memory.get(asked.exact, fresh.created))
        size = size_of(found) if isinstance(found, Answer) else 0
        why = keeping.unfit(found, rules, stores=fresh.stores, bounded=fresh.bounded, size=size)
        if not why and isinstance(found, Answer) and not (drop is not None and _goes(found, drop)):
            self._kept.value += 1
            memory.put(asked.exact, found, fresh.created, size)
            if not more:
                memory.settle()
            if self.client is not None:
                self.client.store(
                    Store(
                        asked.exact,
                        asked.scope if not found.calls else b"",
                        asked.question,
                        facts.partition,
                        answers.encode(found),
                        fresh.ticket,
                    )
                )
        else:
            if why:
                self._telemetry.kept.series(why).value += 1
            if fresh.ticket and self.client is not None:
                self.client.unanswered(fresh.ticket)
        return found if isinstance(found, Answer) else None

    # --- what must go ------------------------------------------------------------------------------------------------

    def dropped(self, drop: Drop) -> None:
        """Nothing of what this takes is given any more; what else waits is put away."""
        for exact in list(self.waiting):
            fresh = self.waiting.pop(exact)
            self._bytes -= fresh.size
            self.keep(fresh, drop)
        if drop.entries:
            self.memory.drop_entries(drop.entries)
        if drop.purge is not None:
            self.memory.drop(drop.purge, time())
            self.sweep()

    def forget(self) -> None:
        """All of it."""
        self.flush()
        self.memory.clear()
        self.sweep()

    def sweep(self) -> None:
        """Go on with purges, a slice at a time."""
        if self._sweeping is None:
            self._sweep()

    def _sweep(self) -> None:
        self._sweeping = self._loop.call_later(_SWEEP, self._sweep) if self.memory.sweep(time()) else None

    def close(self) -> None:
        self.flush()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._sweeping is not None:
            self._sweeping.cancel()
            self._sweeping = None

    def __repr__(self) -> str:
        return f"<Shelf {len(self.waiting)} waiting, {self._bytes:,} B>"


def _goes(answer: Answer, drop: Drop) -> bool:
    purge = drop.purge
    return answer.id in drop.entries or (purge is not None and not purge.like and fits(answer, purge))


def entry_of(exact: bytes) -> str:
    """The entry's id: the same wherever the answer to this request is kept."""
    return exact[:8].hex()
