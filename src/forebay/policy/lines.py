"""Those who wait for each model, the drain that says how fast they go, and what both are told of each request."""

from __future__ import annotations

from math import inf
from typing import Final

from mypy_extensions import mypyc_attr

from forebay.policy.asks import Ask, Class, Stage
from forebay.policy.decisions import Refuse
from forebay.policy.drain import NEVER, Drain, Supply
from forebay.policy.engine_books import EngineBooks, supply_of
from forebay.policy.lengths import Lengths
from forebay.policy.placement import Candidates
from forebay.policy.queue import WaitingRoom
from forebay.policy.rules import Rules

MOST_ROOMS: Final = 1_024
MOST_LISTS: Final = 1_024
"""Sets of engines whose books are remembered together."""
_LOW: Final = Class.LOW  # reading a member off an Enum class is slow
_VIP: Final = Class.VIP
_ENDED: Final = Stage.ENDED
SUPPLY_FOR: Final = 0.05
"""Seconds for which what the engines give is not looked up again: with many of them that takes longer than the rest."""
TICK: Final = 0.001
"""Seconds that a drain is not told of one by one."""
TOO_LONG: Final = "too_long"
ADMITTED: Final = -1.0
ADMITTED_LATE: Final = -2.0
"""After it had waited."""
BATCH: Final = 64
"""Admissions and ends that rooms and drains are told of together: nobody looks at them while nobody waits, and one by
one between other work they would cost three times as much."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Lines:
    """Mutable state: the books of each engine, a room of those who wait and a drain for each model, the length
    statistics."""

    def __init__(self, rules: Rules) -> None:
        self._follow(rules)
        self.lengths = Lengths()
        self.rooms: dict[str, WaitingRoom] = {}
        self.books: dict[str, EngineBooks] = {}
        self.drains: dict[str, Drain] = {}
        self._supplies: dict[str, tuple[float, Supply]] = {}
        self._lists: dict[tuple[str, ...], Candidates] = {}
        self._unbooked: list[tuple[float, Ask, float]] = []
        """What rooms and drains are not told of yet: when, who, and what it took, less than 0 where it was admitted."""

    def _follow(self, rules: Rules) -> None:
        """Rules are no compiled class: what each decision asks of them is read out once."""
        self.rules = rules
        self._gated: bool = rules.gated
        self._weights = (float(rules.queue.input_weight), float(rules.queue.output_weight))

    def _service(self, prompt_tokens: float, output_tokens: float) -> float:
        """As `QueueRules.service`."""
        of_input, of_output = self._weights
        return of_input * prompt_tokens + of_output * output_tokens

    def _candidates(self, ask: Ask) -> Candidates:
        found = self._lists.get(ask.engines)
        if found is None:
            books = self.books
            able = [books[name] for name in ask.engines if name in books] if ask.engines else list(books.values())
            found = Candidates(able)
            if len(self._lists) >= MOST_LISTS:
                self._lists.clear()
            self._lists[ask.engines] = found
        return found

    def _book(self) -> None:
        """Tell rooms and drains what they were not told of yet."""
        unbooked = self._unbooked
        if not unbooked:
            return
        self._unbooked = []
        for at, ask, took in unbooked:
            room = self._room(ask)
            drain = self._drain(ask, room, at)
            if took >= 0:
                drain.ended(ask.n)
                room.settle(ask.tenant, ask.charged_as, ask.charged, took, ask.admitted_at)
                continue
            if took == ADMITTED:
                drain.came(asks_for(ask))
            n, expected = ask.n, ask.expected
            books = self._candidates(ask).books
            prefill = books[0].ttft.prefill_rate * len(books) if books else 1.0
            drain.admitted(ask.work, n, expected if n == 1 else expected / n, ask.max_tokens, prefill)
            room.charge(ask.tenant, ask.charged_as, ask.charged)

    def _refuse(
        self,
        ask: Ask,
        reason: str,
        now: float,
        *,
        waited: bool = False,
        ahead: float | None = None,
        expected: float | None = None,
    ) -> Refuse:
        """`ahead`: as of `_tokens_ahead`, where that was asked already. `expected`: as of `Refuse`; None: never."""
        ask.stage = _ENDED
        if reason == TOO_LONG:
            return Refuse(reason, NEVER, waited)
        room, cls = self._room(ask), ask.cls
        slot = self._drain(ask, room, now).slot(
            ask.work,
            ask.n,
            self.lengths.residual(EngineBooks.group(ask), 0, ask.max_tokens)[0],
            ask.max_tokens,
            self._supply(ask, now),
            ahead=(self._ahead(ask, room), self._tokens_ahead(ask, room) if ahead is None else ahead),
            patience=min(self.rules.wait[cls], self.rules.ttft[cls]),
            cls=cls,
        )
        return Refuse(reason, slot, waited, inf if expected is None else expected)

    def _drain(self, ask: Ask, room: WaitingRoom, now: float) -> Drain:
        """Its model's, at the present time."""
        drain = self.drains[ask.model]
        count = len(room)
        waiting = count > 0 and count > room.count(_LOW)
        if waiting is not drain.waiting or not 0 <= now - drain.at < TICK:
            drain.passes(now, waiting=waiting)
        return drain

    def _supply(self, ask: Ask, now: float) -> Supply:
        """Of the engines it could go to, as it was up to `SUPPLY_FOR` ago."""
        found = self._supplies.get(ask.model)
        if found is not None and 0 <= now - found[0] < SUPPLY_FOR:
            return found[1]
        supply = supply_of(self._candidates(ask).books or list(self.books.values()), now)
        self._supplies[ask.model] = (now, supply)
        return supply

    def _room(self, ask: Ask) -> WaitingRoom:
        room = self.rooms.get(ask.model)
        if room is None:
            if len(self.rooms) >= MOST_ROOMS:
                for name in [n for n, r in self.rooms.items() if not len(r)]:
                    del self.rooms[name], self.drains[name]
                    self._supplies.pop(name, None)
            room = self.rooms[ask.model] = WaitingRoom(self.rules.queue)
            self.drains[ask.model] = Drain()
        return room

    @staticmethod
    def _ahead(ask: Ask, room: WaitingRoom) -> int:
        """How many wait who go before this newcomer."""
        if not len(room) or ask.cls is _LOW:
            return len(room)
        vip = room.count(_VIP)
        return vip if ask.cls is _VIP else vip + room.count(Class.NORMAL) + room.starved

    @staticmethod
    def _tokens_ahead(ask: Ask, room: WaitingRoom) -> float:
        """Prompt tokens of those who wait and go before this newcomer, as its tenant stands among the others."""
        return room.tokens if ask.cls is _LOW else room.ahead_of_new(ask)[1]


def asks_for(ask: Ask) -> int:
    """Prompt tokens for which there might be more engines: `low` waits for idle ones."""
    return 0 if ask.cls is _LOW else ask.work
