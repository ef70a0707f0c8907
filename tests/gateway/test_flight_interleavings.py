"""A stream that one asks for alone, and others while it comes: in whatever order they join, lag, leave and are held."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.gateway import test_flight_paces as paces
from tests.gateway.test_flight_paces import Client, House

from forebay.errors import Outcome

if TYPE_CHECKING:
    from forebay.gateway.flight_seats import End, Shared
else:
    End, Shared = paces.End, paces.Shared

LEADER, FIRST, SECOND = range(3)
WHO = st.sampled_from([LEADER, FIRST, SECOND])
STEPS = st.one_of(
    st.tuples(st.just("say"), st.integers(1, 3)),
    st.tuples(st.just("write"), st.just(0)),
    st.tuples(st.sampled_from(["join", "join http10", "hold", "release"]), st.just(0)),
    st.tuples(st.sampled_from(["leave", "stop", "drain"]), WHO),
)

HOLD, SAY, SAY_MORE, WRITE, JOIN = ("hold", 0), ("say", 1), ("say", 3), ("write", 0), ("join", 0)
BEGINNINGS = st.sampled_from(
    [[], [WRITE, JOIN], [HOLD, WRITE, JOIN], [HOLD, SAY, JOIN], [SAY_MORE, SAY_MORE, JOIN], [WRITE, ("stop", LEADER)]]
)


class Play:
    """One stream. The leader's exchange writes as `Stream` does: what the tap takes, and what passes it."""

    def __init__(self, most: int) -> None:
        self.house = House(1, most)
        self.leader = self.house.all[LEADER]
        self.said: list[bytes] = []
        self.begun = self.holding = self.held = False

    @property
    def goes_on(self) -> bool:
        return not self.leader.ended

    def begin(self) -> None:
        if self.begun:
            return
        self.begun = True
        if self.holding:
            self.held = True
            self.leader.reply.hold()
        self.leader.reply.start(200, b"")

    def event(self) -> bytes:
        self.said.append(b"data: %d\n\n" % len(self.said))
        return self.said[-1]

    def say(self, together: int) -> None:
        self.begin()
        reply = self.leader.reply
        write = reply.raw_writer() if reply.chunked else None
        if write is None:
            self.write()
            return
        data = b"".join(b"%x\r\n%b\r\n" % (len(one), one) for one in (self.event() for _ in range(together)))
        if reply.log is not None:
            reply.log.add(data)
        reply.sent += len(data)
        write(data)

    def write(self) -> None:
        self.begin()
        self.leader.reply.write(self.event())

    def join(self, *, http10: bool = False) -> None:
        flight = self.house.flight
        if len(self.house.all) == 3 or not flight.takes(9):
            return
        x = Client(flight, http10=http10)
        self.house.all.append(x)
        flight.sit(x)  # type: ignore[arg-type]

    def release(self) -> None:
        if self.held:
            self.held = False
            self.leader.reply.release()

    def step(self, what: str, number: int) -> None:
        match what:
            case "say":
                self.say(number)
            case "write":
                self.write()
            case "join":
                self.join()
            case "join http10":
                self.join(http10=True)
            case "hold":
                self.holding = not self.begun
            case "release":
                self.release()
            case _:
                if number < len(self.house.all):
                    self.to(self.house.all[number], what)

    def to(self, x: Client, what: str) -> None:
        outlet = x.outlet
        if what == "leave" and not x.ended and outlet.reply is not None and not outlet.told:
            outlet.reply.gone()
        elif what == "stop":
            outlet.room = 1
        elif what == "drain":
            outlet.drain(1_000_000)

    def end(self) -> None:
        if self.goes_on:
            self.begin()
            self.leader.reply.end()
            self.leader._ends(Outcome.OK)
        self.release()
        for x in self.house.all:
            self.to(x, "drain")


@given(BEGINNINGS, st.lists(STEPS, max_size=30), st.sampled_from([60, 10_000]))
@settings(max_examples=150)
def test_who_stays_hears_all_of_it_once(
    beginning: list[tuple[str, int]], steps: list[tuple[str, int]], most: int
) -> None:
    play = Play(most)
    for what, number in beginning + steps:
        if not play.goes_on:
            break
        play.step(what, number)
        assert not play.held or not any(x.outlet.out for x in play.house.all)
    cut_off = not play.goes_on
    play.end()
    whole = b"".join(play.said)
    for x in play.house.all:
        heard = b"".join(x.outlet.out).partition(b"\r\n\r\n")[2] if x.reply.request.http10 else x.outlet.body
        if x.outlet.told == ["ended"]:
            assert heard == whole
            assert x.outlet.reply is not None
            assert x.outlet.reply.sent == sum(map(len, x.outlet.out))
        else:
            assert "gone" in x.told or "slow_reader" in x.told or any(one.startswith("left behind") for one in x.told)
            assert whole.startswith(heard.partition(b"data: {")[0])
    flight = play.house.flight
    assert (flight.end is End.WHOLE) is not cut_off
    if not cut_off and flight.keeps:
        framed = b"".join(flight.chunks)
        kept = b""
        while framed:
            size, _, rest = framed.partition(b"\r\n")
            kept, framed = kept + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
        assert kept == whole
