"""A flight and those who hear it: each at its own pace, the slow ones from the log, nobody kept waiting for them."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from tests.pure import pure

from forebay.config.models import Class
from forebay.errors import Outcome, Refusal
from forebay.wire.message import Peer, Request
from forebay.wire.reply import HELD

if TYPE_CHECKING:
    from forebay.gateway.flight_seats import End, Shared
    from forebay.gateway.flights import Flight
    from forebay.wire.reply import Reply
else:
    _module = pure(
        "forebay.wire.reply",
        "forebay.gateway.flight_seats",
        "forebay.gateway.flight_paces",
        "forebay.gateway.flights",
    )
    Flight, End, Shared, Reply = _module.Flight, _module.End, _module.Shared, _module.Shared.__base__

PIECES = [b"data: %d\n\n" % i for i in range(40)]
MOST = 10_000


class Outlet:
    """A connection with room for so many writes."""

    def __init__(self) -> None:
        self.room = 1_000_000
        self.out: list[bytes] = []
        self.told: list[str] = []
        self.reply: Reply | None = None

    def is_blocked(self) -> bool:
        return self.room <= 0

    def write(self, data: bytes) -> None:
        self.out.append(data)
        self.room -= 1
        if self.room == 0 and self.reply is not None and self.reply.on_pause is not None:
            self.reply.on_pause()

    def drain(self, room: int) -> None:
        self.room = room
        assert self.reply is not None
        if self.reply.on_resume is not None:
            self.reply.on_resume()

    def ended(self, reply: Reply) -> None:
        self.told.append("ended")

    def cut(self) -> None:
        self.told.append("cut")

    def date(self) -> bytes:
        return b""

    def raw_writer(self) -> Callable[[bytes], None]:
        return self.write

    @property
    def body(self) -> bytes:
        """Unframed; whole chunks only."""
        _, _, rest = b"".join(self.out).partition(b"\r\n\r\n")
        found = b""
        while rest and not rest.startswith(b"0\r\n"):
            size, _, rest = rest.partition(b"\r\n")
            found, rest = found + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
        return found


class Client:
    """What a flight needs of an exchange, and what it was told."""

    stream, hides_usage, ended, waits = True, True, False, False

    def __init__(self, flight: Flight, cls: Class = Class.NORMAL, *, http10: bool = False) -> None:
        self.outlet = Outlet()
        self.reply = self.outlet.reply = Reply(self.outlet, Request(b"POST", b"/", b"", [], {}, Peer("x"), http10))
        self.reply.on_gone, self.reply.on_pause, self.reply.on_resume = self.client_gone, self.pause, self.resume
        self.front = SimpleNamespace(class_=cls)
        self.flight, self.attempts, self.refusal, self.status = flight, 0, None, 200
        self.told: list[str] = []

    def _ends(self, outcome: Outcome) -> None:
        self.ended = True
        self.flight.ends(self, outcome)  # type: ignore[arg-type]
        self.reply.on_gone = self.reply.on_pause = self.reply.on_resume = None

    def start(self) -> None:
        self.told.append("start")
        self.attempts += 1

    def pause(self) -> None:
        self.told.append("pause")

    def resume(self) -> None:
        self.told.append("resume")

    def client_gone(self) -> None:
        self.told.append("gone")
        self._ends(Outcome.CLIENT_GONE)

    def abandoned(self) -> None:
        self.client_gone()

    def left_behind(self, outcome: Outcome) -> None:
        self.told.append(f"left behind: {outcome.value}")

    def writes_to(self, reply: Reply) -> None:
        self.reply = reply

    def downstream_head(self) -> bytes:
        return b"x-of: engine\r\n"

    def first_bytes(self, status: int) -> None: ...

    def shared(self, outcome: Outcome, status: int) -> None:
        self.told.append(outcome.value)
        self._ends(outcome)

    def refuse(self, refusal: Refusal) -> None:
        self.told.append(refusal.code)
        self.reply.refuse(refusal)
        self._ends(refusal.outcome)

    def cut(self, refusal: Refusal) -> None:
        self.told.append(refusal.code)
        self.reply.write(refusal.sse())
        self.reply.abort()
        self._ends(refusal.outcome)


class House:
    def __init__(self, count: int, most: int = MOST, *, stream: bool = True) -> None:
        self.told: list[str] = []
        self.flight = Flight(self, b"k" * 16, b"k" * 16, most)  # type: ignore[arg-type]
        self.all: list[Client] = []
        for _ in range(count):
            self.joins(stream=stream)
        self.flight.depart()

    def joins(self, *, stream: bool) -> Client:
        x = Client(self.flight)
        x.stream = stream
        self.all.append(x)
        self.flight.sit(x)  # type: ignore[arg-type]
        return x

    @property
    def shared(self) -> Reply:
        """What the leader writes to: its own client's reply, while it is alone."""
        return self.all[0].reply

    def leads(self, flight: Flight, x: Any) -> None: ...
    def follows(self, flight: Flight, x: Any) -> None: ...
    def heard(self, flight: Flight, x: Client) -> None:
        x.shared(Outcome.HIT, 200)

    def too_large(self, flight: Flight, waiting: list[Client]) -> None:
        self.told.append(f"too large, {len(waiting)} ask again")

    def over(self, flight: Flight) -> None:
        self.told.append("over")

    def soon(self, what: Callable[[], None]) -> None:
        what()

    def ends(self) -> None:
        self.shared.end()
        self.all[0]._ends(Outcome.OK)


def test_the_engine_is_held_back_only_while_nobody_has_room() -> None:
    house = House(2)
    leader, other = house.all
    leader.outlet.room, other.outlet.room = 3, 5
    house.shared.start(200, b"")
    for piece in PIECES[:6]:
        house.shared.write(piece)
    assert leader.told == ["start", "pause"]
    assert len(leader.outlet.out) == 3
    assert len(other.outlet.out) == 5
    other.outlet.drain(1_000)
    assert leader.told == ["start", "pause", "resume"]
    assert other.outlet.body == b"".join(PIECES[:6])
    leader.outlet.drain(1_000)
    assert leader.outlet.body == b"".join(PIECES[:6])
    house.ends()
    assert [x.outlet.told for x in house.all] == [["ended"], ["ended"]]
    assert other.told == ["hit"]


def test_a_slow_one_goes_on_from_the_log_when_all_is_said() -> None:
    house = House(3)
    slow = house.all[2]
    slow.outlet.room = 2
    house.shared.start(200, b"")
    write = house.shared.raw_writer()
    assert write is not None
    for piece in PIECES:
        write(b"%x\r\n%b\r\n" % (len(piece), piece))
    house.ends()
    assert house.all[1].told == ["hit"]
    assert (slow.told, slow.outlet.body) == ([], PIECES[0])
    while not slow.ended:
        slow.outlet.drain(2)
    assert slow.outlet.body == b"".join(PIECES)
    assert (slow.told, slow.outlet.told) == (["hit"], ["ended"])
    assert slow.reply.sent == sum(map(len, slow.outlet.out))
    assert house.all[1].reply.sent == sum(map(len, house.all[1].outlet.out))


def test_a_slow_one_is_cut_loose_where_the_log_may_not_hold_it() -> None:
    house = House(3, most=200)
    slow = house.all[1]
    slow.outlet.room = 2
    house.shared.start(200, b"")
    for piece in PIECES:
        house.shared.write(piece)
    assert slow.told == ["slow_reader"]
    assert slow.outlet.told == ["cut"]
    house.ends()
    assert house.told == ["too large, 0 ask again"]
    assert house.all[2].outlet.body == house.all[0].outlet.body == b"".join(PIECES)


def test_a_slow_leader_is_cut_loose_too_and_its_engine_goes_on() -> None:
    house = House(2, most=200)
    leader, other = house.all
    leader.outlet.room = 2
    house.shared.start(200, b"")
    for piece in PIECES:
        house.shared.write(piece)
    assert leader.told == ["start", "left behind: overloaded"]
    house.ends()
    assert other.outlet.body == b"".join(PIECES)


def test_alone_and_slow_nobody_is_cut_and_the_engine_waits() -> None:
    house = House(1, most=200)
    (leader,) = house.all
    assert not isinstance(leader.reply, Shared)
    leader.outlet.room = 2
    house.shared.start(200, b"")
    for piece in PIECES:
        while leader.told[-1] == "pause":
            leader.outlet.drain(3)
        house.shared.write(piece)
    while leader.outlet.is_blocked():
        leader.outlet.drain(3)
    house.ends()
    assert leader.outlet.body == b"".join(PIECES)
    assert leader.outlet.told == ["ended"]


def test_what_is_held_goes_out_to_nobody_before_its_release() -> None:
    house = House(2)
    house.shared.hold()
    house.shared.start(200, b"")
    assert house.shared.raw_writer() is None
    house.shared.write(PIECES[0])
    assert [x.outlet.out for x in house.all] == [[], []]
    house.shared.write(b"x" * (HELD + 1))
    assert house.all[0].told == ["start", "pause"]
    house.shared.end()
    house.shared.release()
    assert {x.outlet.body for x in house.all} == {PIECES[0] + b"x" * (HELD + 1)}


def test_whoever_joins_late_hears_it_from_the_beginning_and_not_where_that_is_lost() -> None:
    house = House(1, most=100)
    assert not isinstance(house.shared, Shared)
    house.shared.start(200, b"")
    for piece in PIECES[:3]:
        house.shared.write(piece)
    assert house.flight.takes(10)
    late = Client(house.flight)
    house.flight.sit(late)  # type: ignore[arg-type]
    assert late.outlet.body == b"".join(PIECES[:3])
    for piece in PIECES[3:]:
        house.shared.write(piece)
    assert not house.flight.takes(10)
    house.ends()
    assert late.outlet.body == b"".join(PIECES)


def test_http_1_0_gets_the_same_bytes_without_chunks() -> None:
    house = House(1)
    old = Client(house.flight, http10=True)
    house.flight.sit(old)  # type: ignore[arg-type]
    house.shared.start(200, b"")
    for piece in PIECES:
        house.shared.write(piece)
    house.ends()
    assert b"".join(old.outlet.out).partition(b"\r\n\r\n")[2] == b"".join(PIECES)
    assert old.reply.sent == sum(map(len, old.outlet.out))


def test_one_of_a_better_class_leads_instead_of_one_that_waits() -> None:
    house = House(1)
    (first,) = house.all
    first.waits = True  # type: ignore[misc]
    first.withdraw = lambda: first.told.append("withdraw")  # type: ignore[attr-defined]
    house.flight.sit(same := Client(house.flight))  # type: ignore[arg-type]
    house.flight.sit(better := Client(house.flight, Class.VIP))  # type: ignore[arg-type]
    assert first.told == ["start", "withdraw"]
    assert (same.told, better.told) == ([], ["start"])
    assert house.flight.leader is better
    assert isinstance(better.reply, Shared)
    assert not isinstance(first.reply, Shared)


@pytest.mark.parametrize("begun", [True, False])
def test_the_last_to_leave_ends_it(begun: bool) -> None:
    house = House(2)
    leader, other = house.all
    if begun:
        house.shared.start(200, b"")
    leader.outlet.reply.gone()  # type: ignore[union-attr]
    assert leader.told == ["start", "left behind: client_gone"]
    assert not leader.ended
    other.reply.gone()
    assert leader.ended
    assert other.ended
    assert house.flight.end is End.CUT
    assert "over" in house.told
    assert not house.flight.takes(10)


def test_nothing_of_it_stays_when_all_is_over() -> None:
    """Not until garbage is collected, either: that would stop the loop for the more flights there were."""
    house = House(3)
    house.all[1].outlet.room = 2
    house.shared.start(200, b"")
    for piece in PIECES:
        house.shared.write(piece)
    house.ends()
    house.flight.close()
    house.all[1].outlet.drain(1_000)
    for x in house.all:
        assert x.outlet.told == ["ended"]
        x.flight = None  # type: ignore[assignment]
    flight = house.flight
    gc.disable()
    try:
        del house.flight, x
        house.all.clear()
        assert sys.getrefcount(flight) == 2  # this function's, and the argument
    finally:
        gc.enable()


def test_alone_with_a_whole_answer_it_writes_to_its_client_itself_until_another_joins() -> None:
    house = House(1, stream=False)
    first = house.all[0]
    assert isinstance(first.reply, Reply)
    assert not isinstance(first.reply, Shared)
    assert house.flight.sharing == (first,)
    other = house.joins(stream=False)
    assert house.flight.sharing == (first, other)
    house.shared.send(200, b"", b"{}")
    first._ends(Outcome.OK)
    assert [b"".join(x.outlet.out)[-2:] for x in house.all] == [b"{}", b"{}"]
    assert (other.told, house.told) == (["hit"], [])


def test_who_joins_before_anybody_leads_shares_what_the_first_one_asks_for() -> None:
    house = House(2, stream=False)
    first, other = house.all
    assert (first.told, other.told) == (["start"], [])
    house.shared.send(200, b"", b"{}")
    assert other.told == ["hit"]


def test_who_joins_when_it_was_said_and_is_not_booked_yet_hears_it_at_once() -> None:
    house = House(1, stream=False)
    first = house.all[0]
    house.flight.brings(200, b"x-of: engine\r\n", b"{}")
    first.reply.send(200, b"", b"{}")
    first._ends(Outcome.OK)
    assert house.flight.led_by(first)  # type: ignore[arg-type]
    other = house.joins(stream=False)
    assert (other.told, b"".join(other.outlet.out)[-2:]) == (["hit"], b"{}")
    assert b"x-of: engine" in other.outlet.out[0]
    late = house.joins(stream=True)
    assert (late.told, list(house.flight.seats)) == ([], [late])  # it gets it in its own form, of the host


def test_who_joins_when_all_who_shared_it_are_through_hears_it_at_once() -> None:
    house = House(2, stream=False)
    house.shared.send(200, b"", b"{}")
    house.all[0]._ends(Outcome.OK)
    late = house.joins(stream=False)
    assert (late.told, b"".join(late.outlet.out)[-2:]) == (["hit"], b"{}")


def test_nobody_joins_one_that_is_alone_and_leaves_or_passes_its_answer_on_unread() -> None:
    house = House(1, stream=False)
    assert house.flight.takes(9)
    house.all[0].reply.start(200, b"")
    assert not house.flight.takes(9)
    house.all[0].outlet.reply.gone()  # type: ignore[union-attr]
    assert (house.flight.end, house.told, house.all[0].told) == (End.CUT, ["over"], ["start", "gone"])
    assert house.flight.sharing == ()
    assert not house.flight.takes(9)


def test_it_is_dissolved_alone_or_not() -> None:
    for count in (1, 2):
        house = House(count, stream=False)
        house.flight.leader = None  # it waits for a look-up
        assert house.flight.dissolve() == house.all
        assert [type(x.reply) for x in house.all] == [Reply] * count
        assert house.told == ["over"]
