"""One engine call that equal requests share.

The first of them leads: its exchange goes to an engine as any other, and writes into `Shared` where it would write into
its client's reply. Everyone who sits in the flight, the leader's client among them, hears all of it from the beginning
and at its own pace: who keeps up is written to as bytes come; who does not goes on from the log when it has room. One
that is alone needs none of that (`solo`): it writes to its client as if there were no flight, until another one joins.

who leaves                                   what becomes of the flight
a follower                                   nothing
the leader's client, nothing sent yet        another leads, from its own place in the queue
the leader's client, later                   the engine goes on for the others
the last of all                              the engine is told to stop

what ends the leader                         the others
refused or expired before an engine had it   the next one asks for itself: its own class, deadline and refusal
its engine failed, nothing came of it        once, the next one leads; a second time all are told
its engine failed, bytes had come            all are told; no [DONE] follows
it is whole                                  all have it; in the other form (JSON, events) it is given when it is whole
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from forebay import errors
from forebay.errors import Outcome, Refusal
from forebay.gateway.flight_paces import Paces
from forebay.gateway.flight_seats import End, Seat, Shared
from forebay.wire.reply import Log

if TYPE_CHECKING:
    from forebay.gateway.exchange import Exchange

_AGAIN: Final = frozenset({Outcome.ENGINE_ERROR, Outcome.ENGINE_TIMEOUT, Outcome.OVERLOADED, Outcome.INTERNAL})
"""Ends of a leader after which another one tries, once."""
RESTARTS: Final = 1


class Host(ABC):
    """What a flight needs of whoever keeps it."""

    @abstractmethod
    def leads(self, flight: Flight, x: Exchange) -> None:
        """It is about to ask for an engine: say so in its head."""
        ...

    @abstractmethod
    def follows(self, flight: Flight, x: Exchange) -> None:
        """Another leads instead."""
        ...

    @abstractmethod
    def heard(self, flight: Flight, x: Exchange) -> None:
        """A follower has the whole answer."""
        ...

    @abstractmethod
    def too_large(self, flight: Flight, waiting: list[Exchange]) -> None:
        """The log is not whole any more: nobody joins, and those who wait for all of it must ask for themselves."""
        ...

    @abstractmethod
    def over(self, flight: Flight) -> None:
        """Nobody joins any more."""
        ...

    @abstractmethod
    def soon(self, what: Callable[[], None]) -> None:
        """Call it when the event loop comes round."""
        ...


class Flight(Paces):
    """`key`: what those who share it have in common. `most`: bytes that its log may have. `silent`: nobody need sit
    in it for it to go on.

    Mutable state: the seats, the log, and how the answer stands.
    """

    __slots__ = ("_host",)

    def __init__(self, host: Host, key: bytes, exact: bytes, most: int, *, silent: bool = False) -> None:
        super().__init__(key, exact, most, silent)
        self._host = host

    # --- who sits in it ----------------------------------------------------------------------------------------------

    def takes(self, most: int) -> bool:
        """Whether one more may join."""
        if self.past:
            return False
        return self.keeps and self.end is not End.CUT and self.status in (0, 200) and len(self.seats) <= most

    @property
    def past(self) -> bool:
        """Its leader is alone, and has written what nobody else can be told any more."""
        solo = self.solo
        if solo is None or self.end is not End.NOT or not solo.reply.started:
            return False
        log = solo.reply.log
        return log is None or not log.whole or not solo.reply.open

    @property
    def sharing(self) -> tuple[Exchange, ...]:
        """Everyone, in the order in which they came."""
        solo = self.solo
        return tuple(self.seats) if solo is None or solo.ended else (solo, *self.seats)

    def led_by(self, x: Exchange) -> bool:
        """Whether what came of it is that one's."""
        return x is self.solo or (self.shared is not None and self.shared.leader is x)

    def sit(self, x: Exchange) -> None:
        """Before anybody leads, or behind the leader. One of a better class than a leader that waits takes its place:
        a flight has the highest class of those in it."""
        if self.solo is not None:
            if self.end is End.NOT:
                self._share(self.solo)
            elif self.streams:
                self.head = self.solo.downstream_head()
        elif not (self.seats or self.leader is not None or self.silent or self.status) and (
            not x.stream or not x.reply.request.http10
        ):
            self.solo = x
            if x.stream:
                x.reply.log = Log(self._most)
            return
        seat = self.seats[x] = Seat(self, x, x.reply)
        leader = self.leader
        if leader is not None and x.front.class_.rank < leader.front.class_.rank and leader.waits:
            leader.withdraw()
            old = self.seats.get(leader)
            if old is not None:
                leader.reply = old.reply
                self._host.follows(self, leader)
            self.lead(x)
            if old is None:
                leader.abandoned()  # it asked for nobody
        elif self.status:
            self.advance(seat)

    def _share(self, x: Exchange) -> None:
        """It has been alone until now."""
        self.solo = None
        reply = x.reply
        log, reply.log = reply.log, None
        seat = Seat(self, x, reply)
        if reply.open or not x.stream:
            self.seats[x] = seat
        if x is not self.leader:
            return
        begun = reply.started and log is not None
        if begun and log is not None:
            self._known(x, log)
        shared = Shared(self, reply)
        shared.started = begun
        x.writes_to(shared)
        self._writes_here(x, shared)
        if begun:
            self._goes_on(seat)

    def brings(self, status: int, head: bytes, body: bytes) -> None:
        """The whole answer that its solo is about to give to its client."""
        self.status, self.head, self.body, self.end = status, head, body, End.WHOLE

    def _said(self, x: Exchange) -> None:
        """Its solo has given all of its stream to its client."""
        log, x.reply.log = x.reply.log, None
        if log is not None:
            self.status, self.end = x.status, End.WHOLE
            self._log, self.keeps = log.pieces, log.whole
            self.bytes = self._kept = log.size

    def depart(self) -> None:
        """The best of those who sit in it leads; where nobody does, it is over."""
        if self.leader is not None or self.end is not End.NOT:
            return
        x = self.solo or min(self.seats, key=lambda x: x.front.class_.rank, default=None)
        if x is None:
            self._host.over(self)
        else:
            self.lead(x)

    def lead(self, x: Exchange, shared: Shared | None = None) -> None:
        self.leader = x
        self.streams = x.stream
        self.hides_usage = x.hides_usage
        if self.shared is not None:
            self.shared.leader = None
        if x is not self.solo:
            self._writes_here(x, shared or Shared(self, x.reply))
        self._host.leads(self, x)
        x.start()

    def _writes_here(self, x: Exchange, shared: Shared) -> None:
        self.shared = x.reply = shared
        shared.leader = x
        shared.on_gone = x.client_gone
        if x.stream:
            shared.on_pause, shared.on_resume = x.pause, x.resume

    def dissolve(self) -> list[Exchange]:
        """Nobody asks an engine: each has its own reply again."""
        if self.solo is not None:
            x, self.solo = self.solo, None
            x.reply.log = None
            self.end = End.CUT
            self._host.over(self)
            return [x]
        seats, self.seats = self.seats, {}
        for seat in seats.values():
            seat.let_go()
        self.end = End.CUT
        self._host.over(self)
        return list(seats)

    def left(self, seat: Seat) -> None:
        """Its client is gone."""
        self._remove(seat)
        x = seat.x
        if x.ended:
            self._look()
        elif x is self.leader and x.attempts and (self.seats or self.silent):
            x.left_behind(Outcome.CLIENT_GONE)
            self._look()
        else:
            x.client_gone()

    def put_out(self, x: Exchange, refusal: Refusal) -> bool:
        """The leader's client is told, and the engine goes on for the others. False: there are none, or none of it is
        at an engine yet."""
        seat = self.seats.get(x)
        if x is not self.leader or not x.attempts or seat is None or len(self.seats) < 2:
            return False
        self._remove(seat)
        if seat.begun:
            if x.stream:
                seat.reply.write(refusal.sse())
            seat.reply.abort()
        else:
            self._dress(seat)
            seat.reply.refuse(refusal)
        x.left_behind(refusal.outcome)
        self._look()
        return True

    def ends(self, x: Exchange, outcome: Outcome) -> None:
        """An exchange of it is being settled."""
        if x is self.solo:
            self.leader = None
            if outcome is Outcome.OK and x.stream:
                self._said(x)
            if self.end is End.NOT:
                self.end = End.CUT
                self._host.over(self)
            return
        if x is not self.leader:
            if (seat := self.seats.get(x)) is not None:
                self._remove(seat)
            leader = self.leader
            if leader is None or self.end is not End.NOT:
                return
            if not self.seats and not self.silent:
                leader.abandoned()
            else:
                self._look()
            return
        self.leader = None
        own = self.seats.get(x)
        if self.shared is not None and self.shared.own is not None:
            self.shared.sent = self.shared.own.sent
        if self.end is not End.NOT:
            return
        if own is not None:
            self._remove(own)
        if self.status:
            self._cut()
        elif not self.seats:
            self.end = End.CUT
            self._host.over(self)
        elif not x.attempts or (outcome in _AGAIN and self.restarts < RESTARTS):
            self.restarts += bool(x.attempts)
            self._host.soon(self.depart)
        else:
            self._tell_all(x.refusal or errors.engine_failed("the request that it answered was ended"))

    def _tell_all(self, refusal: Refusal) -> None:
        self.end = End.CUT
        self._host.over(self)
        for x in self.dissolve():
            x.refuse(refusal)

    def _remove(self, seat: Seat) -> None:
        self.seats.pop(seat.x, None)
        if seat.live:
            self._unlive(seat)
        seat.stand_up()
        self._part()

    def close(self) -> None:
        """Its leader's books are closed."""
        self.settled = True
        self.solo = None
        self._part()

    def _part(self) -> None:
        """Let go of the leader, which holds this, once nobody needs either."""
        if self.settled and not self.seats and self.shared is not None:
            self.shared.leader = None
            self.shared = None

    # --- Paces -------------------------------------------------------------------------------------------------------

    def _over(self) -> None:
        self._host.over(self)

    def _heard(self, x: Exchange) -> None:
        self._host.heard(self, x)

    def _too_large(self, waiting: list[Exchange]) -> None:
        self._host.too_large(self, waiting)

    def __repr__(self) -> str:
        return (
            f"<Flight {len(self.seats)} seats, {len(self._live)} live, {self.end.value}, "
            f"{self._base + len(self._log)} pieces, {self.bytes:,} B>"
        )
