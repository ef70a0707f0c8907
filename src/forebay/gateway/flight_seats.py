"""Who sits in a flight, and what its leader writes to."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Final

import msgspec

from forebay.api import openai, reading
from forebay.cache.packing import unframed
from forebay.errors import Refusal
from forebay.wire import sse
from forebay.wire.message import Request
from forebay.wire.reply import Reply

if TYPE_CHECKING:
    from forebay.gateway.exchange import Exchange
    from forebay.gateway.flight_paces import Paces
    from forebay.gateway.flights import Flight

_DONE: Final = b"[DONE]"


class End(Enum):
    """Of a flight's answer."""

    NOT = "not"
    WHOLE = "whole"
    CUT = "cut"


class Seat:
    """One who hears it. `at`: the next piece of the log, counted from the beginning; `live`: it has all that came."""

    __slots__ = ("_flight", "at", "begun", "counted", "live", "raw", "reply", "write", "x")

    def __init__(self, flight: Flight, x: Exchange, reply: Reply) -> None:
        self._flight = flight
        self.x = x
        self.reply = reply
        self.at = 0
        self.begun = False
        self.live = False
        self.raw = False
        self.counted = 0
        """Bytes of the flight up to which `reply.sent` is right."""
        self.write: Callable[[bytes], None] = reply.write
        reply.on_gone, reply.on_pause, reply.on_resume = self.gone, self.block, self.unblock

    def gone(self) -> None:
        self._flight.left(self)

    def block(self) -> None:
        self._flight.lags(self)

    def unblock(self) -> None:
        self._flight.advance(self)

    def stand_up(self) -> None:
        """It hears nothing more; nothing of it holds the flight."""
        reply = self.reply
        self.write = reply.write
        reply.on_gone = reply.on_pause = reply.on_resume = None

    def let_go(self) -> None:
        """The reply is its exchange's own again."""
        x, reply = self.x, self.reply
        x.reply = reply
        reply.on_gone, reply.on_pause, reply.on_resume = x.client_gone, None, None

    def __repr__(self) -> str:
        return f"<Seat of {self.x!r} at {self.at}{' live' if self.live else ''}>"


class Altered:
    """Writes for a seat that wants usage where the leader does not, or the other way round."""

    __slots__ = ("_flight", "_seat")

    def __init__(self, flight: Paces, seat: Seat) -> None:
        self._flight = flight
        self._seat = seat

    def __call__(self, framed: bytes) -> None:
        data = unframed(framed)
        if self._seat.x.hides_usage:
            if b'"usage"' in data:
                data = b"".join(event for event in sse.split(data) if not _says_usage(event))
        elif _DONE in data:
            events = sse.split(data)
            data = b"".join(self._usage() + e if sse.data_of(e) == _DONE else e for e in events)
        if data:
            self._seat.reply.write(data)

    def _usage(self) -> bytes:
        """The event that says it, like the others; b"" where the engine said none."""
        shared = self._flight.shared
        leader = shared.leader if shared is not None else None
        if leader is None or leader.usage is None:
            return b""
        said = map(sse.data_of, sse.split(self._flight.first))
        first = next((data for data in said if data is not None and data != _DONE), b"{}")
        usage = msgspec.json.encode(usage_fields(leader.usage))
        return b"data: " + openai.rewritten(first, {"choices": b"[]", "usage": usage}, {}) + b"\n\n"


class Shared(Reply):
    """What the leader's exchange takes for its client's reply."""

    __slots__ = ("_flight", "leader", "own")

    def __init__(self, flight: Flight, own: Reply | None = None, request: Request | None = None) -> None:
        """`own`: the leader's. `request`: of a leader that has none."""
        of = own.request if own is not None else request
        assert of is not None
        super().__init__(None, of)
        self._flight = flight
        self.leader: Exchange | None = None
        self.own = own
        self.extra = own.extra if own is not None else b""

    @property
    def open(self) -> bool:
        return self._flight.end is End.NOT

    @property
    def paused(self) -> bool:
        return self._flight.stopped

    @property
    def chunked(self) -> bool:
        return self.started and self._flight.end is End.NOT

    def hold(self) -> None:
        self._flight.hold()

    def release(self) -> None:
        if self.own is not None:  # from before it was shared
            self.own.release()
        self._flight.release()

    def send(self, status: int, headers: bytes, body: bytes) -> None:
        if self._flight.end is End.NOT:
            self.started = True
            self._flight.whole(status, headers, body)

    def refuse(self, refusal: Refusal) -> None:
        self._flight.refuse_leader(refusal)

    def start(self, status: int, headers: bytes, length: int | None = None) -> None:
        self.started = True
        self._flight.begins(status, headers)

    def write(self, data: bytes) -> None:
        if self._flight.end is End.NOT:
            self._flight.put(data)

    def raw_writer(self) -> Callable[[bytes], None] | None:
        return self._flight.raw if self.chunked and not self._flight.held else None

    def end(self) -> None:
        if self._flight.end is End.NOT:
            self._flight.ends_whole()

    def abort(self) -> None:
        self._flight.cut()

    def __repr__(self) -> str:
        return f"<Shared by {self._flight!r}>"


def usage_fields(usage: openai.Usage) -> dict[str, object]:
    """As JSON has it: what the engine said."""
    return {name: value for own, name in _USAGE if (value := getattr(usage, own)) is not None}


_USAGE: Final = tuple((field.name, field.encode_name) for field in msgspec.structs.fields(openai.Usage))


def _says_usage(event: bytes) -> bool:
    data = sse.data_of(event)
    found = reading.chunk(data) if data is not None else None
    return found is not None and found.usage is not None and not found.choices
