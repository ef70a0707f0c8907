"""What a flight's clients hear, each at its own pace: the log of an answer, who has all of it, and its bounds."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from forebay import errors
from forebay.cache.packing import unframed
from forebay.errors import Outcome, Refusal
from forebay.gateway.flight_seats import Altered, End, Seat, Shared
from forebay.wire.reply import HELD, Log

if TYPE_CHECKING:
    from forebay.cache.answers import Answer
    from forebay.gateway.exchange import Exchange

_PIECE: Final = 65_536
"""Bytes that one who lags behind is written at once, about."""


class Paces:
    """`most`: bytes that the log may have. What else a flight is, is in `flights`.

    Mutable state: the seats, the log, and how the answer stands.
    """

    __slots__ = (
        "_base",
        "_held_bytes",
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

    def __init__(self, key: bytes, exact: bytes, most: int, silent: bool) -> None:
        self._most = most
        self.key = key
        self.exact = exact
        self.silent = silent
        self.seats: dict[Exchange, Seat] = {}
        self.solo: Exchange | None = None
        """Nobody shares with it yet, and it writes to its client by itself: it has no seat. What it wrote of a stream
        is in its reply's log, so that nobody who joins has missed anything."""
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

    # --- what a flight does about it ---------------------------------------------------------------------------------

    @abstractmethod
    def _over(self) -> None:
        """Nobody joins any more."""
        ...

    @abstractmethod
    def _heard(self, x: Exchange) -> None:
        """A follower has the whole answer."""
        ...

    @abstractmethod
    def _too_large(self, waiting: list[Exchange]) -> None:
        """The log is not whole any more."""
        ...

    @abstractmethod
    def _remove(self, seat: Seat) -> None: ...

    @abstractmethod
    def put_out(self, x: Exchange, refusal: Refusal) -> bool:
        """The leader's client is told, and the engine goes on for the others."""
        ...

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
            self._over()
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
        self._over()
        self._advance_all()

    def hold(self) -> None:
        self.held = True

    def release(self) -> None:
        if self.held:
            self.held = False
            self._held_bytes = 0
            for seat in self.seats.values():
                if seat.begun:
                    self._find_writer(seat)
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
        self._find_writer(seat)
        seat.x.first_bytes(self.status)

    def _find_writer(self, seat: Seat) -> None:
        if seat.x.hides_usage != self.hides_usage:
            seat.write = Altered(self, seat)
        elif (write := seat.reply.raw_writer()) is not None:
            seat.write, seat.raw = write, True
        else:
            seat.write = lambda framed: seat.reply.write(unframed(framed))

    def _known(self, x: Exchange, log: Log) -> None:
        """What one who was alone has written or, where it is held, is about to: its answer has begun."""
        reply = x.reply
        self.held, self._held_bytes, self.stopped = reply.holds >= 0, max(0, reply.holds), reply.paused
        self.status, self.head = x.status, x.downstream_head()
        self._log, self.keeps = log.pieces, log.whole
        self.bytes = self._kept = log.size
        self.first = unframed(log.pieces[0]) if log.pieces else b""

    def _goes_on(self, seat: Seat) -> None:
        """Its client has all of the log, or its reply has."""
        seat.begun = True
        seat.at = self._base + len(self._log)
        if not self.held:
            self._find_writer(seat)
            self.advance(seat)

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
                self._heard(x)
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
            self._too_large([seat.x for seat in waiting])
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
