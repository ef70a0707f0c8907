"""Answers read on although nobody waits for them, since who made them bills all of them: for the usage at their end.

Mutable state: `_running`, one counter an exchange.
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

from forebay.config.engine import OnClientGone
from forebay.wire.head import Header
from forebay.wire.memo import AnswerMemo
from forebay.wire.upstream import Call, Failure, Sink

if TYPE_CHECKING:
    from forebay.gateway.exchange import Exchange
    from forebay.gateway.handles import Handle


class Counter:
    """Stands between a connection and its sink, and counts. `deadline` in monotonic seconds."""

    repeats = False
    heard_at = 0.0

    def __init__(self, sink: Sink, exchange: Exchange, engine: str, most: int, deadline: float) -> None:
        self._sink = sink
        self._exchange = exchange
        self._left = most
        self._call: Call | None = None
        self.engine = engine
        self.deadline = deadline

    @property
    def call(self) -> Call | None:
        return self._call

    @call.setter
    def call(self, call: Call | None) -> None:
        self._call = self._sink.call = call

    def on_head(self, status: int, headers: list[Header], length: int | None) -> None:
        self._sink.on_head(status, headers, length)

    def on_body(self, data: bytes) -> None:
        self._left -= len(data)
        if self._left < 0:
            self._exchange.give_up()
        else:
            self._sink.on_body(data)

    def on_end(self) -> None:
        self._sink.on_end()

    def on_whole(self, memo: AnswerMemo, body: bytes) -> None:
        self._sink.on_whole(memo, body)

    def on_fail(self, failure: Failure, detail: str) -> None:
        self._sink.on_fail(failure, detail)

    def __repr__(self) -> str:
        return f"<Counter {self._left:,} bytes left of {self._exchange!r}>"


class Drains:
    def __init__(self) -> None:
        self._running: dict[Exchange, Counter] = {}

    def begin(self, exchange: Exchange, handle: Handle) -> bool:
        """Read on for this one. False where that is not configured, its engine has nothing of it yet, or there is no
        room."""
        call, bounds = exchange.call, handle.config.drain
        if handle.config.on_client_gone is not OnClientGone.DRAIN or call is None or not call.sent:
            return False
        if sum(c.engine == handle.name for c in self._running.values()) >= bounds.at_once:
            return False
        made: list[Counter] = []

        def make(sink: Sink) -> Sink:
            made.append(Counter(sink, exchange, handle.name, bounds.bytes, monotonic() + bounds.seconds))
            return made[0]

        if not call.interpose(make):
            return False
        self._running[exchange] = made[0]
        call.resume()
        return True

    def end(self, exchange: Exchange) -> None:
        self._running.pop(exchange, None)

    def sweep(self, now: float) -> None:
        """End those whose time is over; `now` in monotonic seconds."""
        for exchange in [x for x, counter in self._running.items() if counter.deadline < now]:
            exchange.give_up()

    def close(self) -> None:
        """End them all."""
        for exchange in tuple(self._running):
            exchange.give_up()

    def __len__(self) -> int:
        return len(self._running)

    def __repr__(self) -> str:
        return f"<Drains {len(self._running)}>"
