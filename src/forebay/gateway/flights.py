"""One engine call that equal requests share.

The first of them leads: its exchange goes to an engine as any other, and writes into `Shared` where it would write into
its client's reply. Everyone who sits in the flight, the leader's client among them, hears all of it from the beginning
and at its own pace: who keeps up is written to as bytes come; who does not goes on from the log when it has room. One
that is alone, and whose answer comes whole, needs none of that (`solo`) until another one joins.

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

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from forebay import errors
from forebay.cache.packing import unframed
from forebay.errors import Outcome, Refusal
from forebay.gateway.flight_seats import Altered, End, Seat, Shared
from forebay.wire.reply import HELD

if TYPE_CHECKING:
    from forebay.cache.answers import Answer
    from forebay.gateway.exchange import Exchange

_PIECE: Final = 65_536
"""Bytes that one who lags behind is written at once, about."""
_AGAIN: Final = frozenset({Outcome.ENGINE_ERROR, Outcome.ENGINE_TIMEOUT, Outcome.OVERLOADED, Outcome.INTERNAL})
"""Ends of a leader after which another one tries, once."""
RESTARTS: Final = 1


class Host(Protocol):
    """What a flight needs of whoever keeps it."""

    def leads(self, flight: Flight, x: Exchange) -> None:
        """It is about to ask for an engine: say so in its head."""
        ...

    def follows(self, flight: Flight, x: Exchange) -> None:
        """Another leads instead."""
        ...

    def heard(self, flight: Flight, x: Exchange) -> None:
        """A follower has the whole answer."""
        ...

    def too_large(self, flight: Flight, waiting: list[Exchange]) -> None:
        """The log is not whole any more: nobody joins, and those who wait for all of it must ask for themselves."""
        ...

    def over(self, flight: Flight) -> None:
        """Nobody joins any more."""
        ...

    def soon(self, what: Callable[[], None]) -> None:
        """Call it when the event loop comes round."""
        ...


class Flight:
    """`key`: what those who share it have in common. `most`: bytes that its log may have. `silent`: nobody need sit
    in it for it to go on.

    Mutable state: the seats, the log, and how the answer stands.
    """

    __slots__ = (
        "_base",
        "_held_bytes",
        "_host",
        "_kept",
        "_live",
        "_log",
        "_most",
        "_writes",
        "answer",
        "body",
        "bytes",
        "end",
        "exact",
        "first",
        "head",
        "heard",
        "held",
        "hides_usage",
        "keeps",
        "key",
        "leader",
        "restarts",
        "seats",
        "settled",
        "shared",
        "silent",
        "solo",
        "status",
        "stopped",
        "streams",
        "ticket",
    )

    def __init__(self, host: Host, key: bytes, exact: bytes, most: int, *, silent: bool = False) -> None:
        self._host = host
        self._most = most
        self.key = key
        self.exact = exact
        self.silent = silent
        self.seats: dict[Exchange, Seat] = {}
        self.solo: Exchange | None = None
        """Nobody shares with it yet, and it writes to its client by itself: it has no seat. Only where the answer comes
        whole, so that nobody who joins has missed anything."""
        self.leader: Exchange | None = None
        self.shared: Shared | None = None
        self.streams = False
        self.hides_usage = False
        self.keeps = True
        """The log is whole."""
        self.held = False
        self.stopped = False
        """The engine is held back: nobody has room."""
        self.end = End.NOT
        self.status = 0
        """Of its answer; 0: it has not begun."""
        self.head = b""
        self.body: bytes | None = None
        """Of an answer that came whole."""
        self.bytes = 0
        self.restarts = 0
        self.ticket = 0
        self.settled = False
        """Its leader's books are closed."""
        self.answer: Answer | None = None
        """Then: what came of it, as far as it can be given again."""
        self.heard: list[Exchange] = []
        """Followers that have it all, while the leader's books are open."""
        self._log: list[bytes] = []
        self._base = 0
        """Pieces that are not in the log any more."""
        self._kept = 0
        self._held_bytes = 0
        self.first = b""
        self._live: tuple[Seat, ...] = ()
        self._writes: tuple[Callable[[bytes], None], ...] = ()

    # --- who sits in it ----------------------------------------------------------------------------------------------

    def takes(self, most: int) -> bool:
        """Whether one more may join."""
        if self.solo is not None and self.body is None and self.solo.reply.started:
            return False
        return self.keeps and self.end is not End.CUT and self.status in (0, 200) and len(self.seats) <= most

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
        elif not (self.seats or x.stream or self.leader is not None or self.silent):
            self.solo = x
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
        self.seats[x] = Seat(self, x, x.reply)
        if x is self.leader:
            self._writes_here(x, Shared(self, x.reply))

    def brings(self, status: int, body: bytes) -> None:
        """The whole answer that its solo is about to give to its client."""
        self.status, self.body, self.end = status, body, End.WHOLE

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

    # --- the answer, as the leader's exchange writes it --------------------------------------------------------------

    def begins(self, status: int, head: bytes) -> None:
        self.status = status
        self.head = head
        self._advance_all()

    def whole(self, status: int, head: bytes, body: bytes) -> None:
        self.status, self.head, self.body = status, head, body
        self.end = End.WHOLE
        if len(body) > self._most:
            self.keeps = False
        if status != 200:
            self._host.over(self)
        self._advance_all()

    def raw(self, data: bytes) -> None:
        """One chunk, framed."""
        n = len(data)
        self._log.append(data)
        self.bytes += n
        self._kept += n
        if self._kept > self._most:
            self._overflow()
        for write in self._writes:
            write(data)

    def put(self, data: bytes) -> None:
        if not self.first:
            self.first = data
        self.raw(b"%x\r\n%b\r\n" % (len(data), data))
        if self.held:
            self._held_bytes += len(data)
            self._look()

    def ends_whole(self) -> None:
        self.end = End.WHOLE
        self._advance_all()

    def cut(self) -> None:
        """What was said stands, and it does not look whole."""
        if self.end is End.NOT:
            self._cut()

    def _cut(self) -> None:
        self.end = End.CUT
        self._host.over(self)
        self._advance_all()

    def hold(self) -> None:
        self.held = True

    def release(self) -> None:
        if self.held:
            self.held = False
            self._held_bytes = 0
            self._advance_all()
            self._look()

    def refuse_leader(self, refusal: Refusal) -> None:
        seat = self.seats.get(self.leader) if self.leader is not None else None
        if seat is not None:
            self._dress(seat)
            self._remove(seat)
            seat.reply.refuse(refusal)

    @property
    def chunks(self) -> Sequence[bytes]:
        """All that was said, framed, where it `keeps` it."""
        return self._log

    # --- at each one's pace ------------------------------------------------------------------------------------------

    def _advance_all(self) -> None:
        for seat in tuple(self.seats.values()):
            self.advance(seat)

    def advance(self, seat: Seat) -> None:
        """Write it what there is and it has room for."""
        if not self.status or self.held or (seat.live and self.end is End.NOT):
            return
        x, reply = seat.x, seat.reply
        if self.body is not None and (self.status != 200 or not x.stream):
            self._dress(seat)
            reply.send(self.status, self.head, self.body)
            self._finish(seat)
            return
        if x.stream != self.streams:
            if self.end is End.CUT:
                self._finish(seat)
            return  # whole, it gets it in its own form: `Host.heard` of the leader's
        if not seat.begun:
            self._begin(seat)
        if not self._catch_up(seat):
            return
        if self.end is not End.NOT:
            self._finish(seat)
        elif reply.open:
            seat.live = True
            seat.counted = self.bytes
            self._live = (*self._live, seat)
            self._writes = (*self._writes, seat.write)
            self._look()

    def _begin(self, seat: Seat) -> None:
        seat.begun = True
        self._dress(seat)
        seat.reply.start(self.status, self.head)
        if seat.x.hides_usage != self.hides_usage:
            seat.write = Altered(self, seat)
        elif (write := seat.reply.raw_writer()) is not None:
            seat.write, seat.raw = write, True
        else:
            seat.write = lambda framed: seat.reply.write(unframed(framed))
        seat.x.first_bytes(self.status)

    def _dress(self, seat: Seat) -> None:
        if self.shared is not None and seat.x.reply is self.shared:
            seat.reply.extra = self.shared.extra

    def _catch_up(self, seat: Seat) -> bool:
        """Whether it has all that came."""
        if seat.live:
            return True
        log, reply = self._log, seat.reply
        while (at := seat.at - self._base) < len(log):
            if reply.paused:
                return False
            piece = log[at]
            seat.at += 1
            if seat.raw:
                while len(piece) < _PIECE and seat.at - self._base < len(log):
                    piece += log[seat.at - self._base]
                    seat.at += 1
                reply.sent += len(piece)
            seat.write(piece)
        return not reply.paused

    def lags(self, seat: Seat) -> None:
        """It has no room."""
        if seat.live:
            self._unlive(seat)
            self._look()

    def _unlive(self, seat: Seat) -> None:
        seat.live = False
        seat.at = self._base + len(self._log)
        if seat.raw:
            seat.reply.sent += self.bytes - seat.counted
        self._live = tuple(s for s in self._live if s is not seat)
        self._writes = tuple(s.write for s in self._live)

    def _finish(self, seat: Seat) -> None:
        """All that will come of it has been written."""
        x, reply = seat.x, seat.reply
        leads = x.reply is self.shared
        refusal = self._refusal() if self.end is End.CUT else None
        self._remove(seat)
        if self.body is not None and (self.status != 200 or not x.stream):
            pass
        elif self.end is End.WHOLE:
            reply.end()
        elif seat.begun:
            reply.abort()
        if leads or x.ended:
            return
        if refusal is None:
            if self.status == 200:
                self._host.heard(self, x)
            else:
                x.shared(Outcome.BAD_REQUEST, self.status)
        elif seat.begun:
            x.refusal = refusal
            x.shared(refusal.outcome, self.status)
        else:
            seat.let_go()
            x.refuse(refusal)

    def _refusal(self) -> Refusal:
        """What a cut answer's followers are told."""
        leader = self.shared.leader if self.shared is not None else None
        if leader is not None and leader.refusal is not None:
            return leader.refusal
        return errors.engine_cut("The engine's answer was cut.")

    # --- bounds ------------------------------------------------------------------------------------------------------

    def _overflow(self) -> None:
        """The log may not hold all of it: nobody can begin at its beginning any more."""
        if self.keeps:
            self.keeps = False
            waiting = [seat for seat in self.seats.values() if seat.x.stream != self.streams]
            for seat in waiting:
                self._remove(seat)
                seat.let_go()
            self._host.too_large(self, [seat.x for seat in waiting])
        while self._kept > self._most:
            behind = [seat for seat in self.seats.values() if not seat.live]
            end = self._base + len(self._log)
            low = min((seat.at for seat in behind), default=end)
            drop = low - self._base
            self._kept -= sum(map(len, self._log[:drop]))
            del self._log[:drop]
            self._base = low
            if self._kept <= self._most or not self._live:
                return  # where all are behind the engine is held back
            for seat in behind:
                if seat.at == low:
                    self._cut_loose(seat)

    def _cut_loose(self, seat: Seat) -> None:
        x = seat.x
        refusal = errors.too_slow_a_reader()
        if x is self.leader:
            self.put_out(x, refusal)
        else:
            x.cut(refusal)

    def _look(self) -> None:
        """Hold the engine back, or let it go on."""
        shared = self.shared
        if shared is None or self.end is not End.NOT:
            return
        if self.held:
            stop = self._held_bytes > HELD
        else:
            stop = (
                bool(self.status and self.seats)
                and not self._live
                and all(seat.x.stream == self.streams for seat in self.seats.values())
            )
        if stop is self.stopped:
            return
        self.stopped = stop
        call = shared.on_pause if stop else shared.on_resume
        if call is not None:
            call()

    def __repr__(self) -> str:
        return (
            f"<Flight {len(self.seats)} seats, {len(self._live)} live, {self.end.value}, "
            f"{self._base + len(self._log)} pieces, {self.bytes:,} B>"
        )
