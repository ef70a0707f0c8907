"""Token-fair order between the tenants of one class: virtual token counters.

Each tenant has a counter of the service it was charged, in tokens weighted by what they cost; whoever's is least goes
next. A tenant that comes to wait is lifted to the least of those who do (where none does, to the last one that left),
so that idleness earns nothing. After VTC (Sheng et al., OSDI 2024, arXiv:2401.00588). Between two tenants that both
wait from the same moment on, service differs by at most one largest request; over any later window by at most two (the
paper's bound, tight to a factor of two). Locality: a tenant within a window of the least may go first where its prefix
is warm, which widens that by the window; after DLPM (Cao et al. 2025, arXiv:2501.14312).

Everything here is kept in sorted lists, moved at memory speed: their lengths are bounded by the room's.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Iterator
from math import ceil, inf
from typing import Final

from forebay.policy.asks import Ask, Class

LOOK: Final = 8
"""Tenants that are asked whether their prefix is warm."""
SCAN: Final = 128
"""Tenants that are looked at to say how many go before an ask."""


class Slot:
    """One ask that waits. `key` is its place among its tenant's: when it is due, then who came first."""

    __slots__ = ("alive", "ask", "band", "key", "line", "number", "service", "since", "starved", "tokens")

    def __init__(self, ask: Ask, number: int, service: float, now: float) -> None:
        self.ask = ask
        self.number = number
        self.tokens = ask.work
        self.service = service
        self.since = now
        self.key = (ask.deadline, number)
        self.starved = False
        self.alive = True
        self.band: Band
        self.line: Line

    def __repr__(self) -> str:
        return f"<Slot {self.ask.key} due {self.key[0]:g}>"


class Line:
    """One tenant in one class: its counter, and its asks that wait, the earliest due first."""

    __slots__ = (
        "base",
        "counter",
        "keys",
        "lifted_at",
        "n",
        "name",
        "place",
        "prompts",
        "service",
        "services",
        "size",
        "slots",
        "tokens",
    )

    def __init__(self, name: str, counter: float) -> None:
        self.name = name
        self.counter = counter
        self.base = counter
        """The counter it would have, had it been new when it last came to wait. No older charge's refund goes below."""
        self.lifted_at = -inf
        self.place = (counter, 0)
        """Its key among its class's tenants while it waits."""
        self.size = (0.0, 0)
        """Its key among their lengths: the share of the room that it fills."""
        self.keys: list[tuple[float, int]] = []
        self.slots: list[Slot] = []
        self.n = 0
        self.prompts: list[int] = []
        self.services: list[float] = []
        self.service = 0.0
        self.tokens = 0

    def __repr__(self) -> str:
        return f"<Line {self.name!r} {self.counter:,.0f} charged, {len(self.slots)} waiting>"


class Band:
    """The tenants of one class. At most `idle_bound` that do not wait are remembered, the latest to leave."""

    __slots__ = (
        "_idle",
        "_last",
        "_lines",
        "_longest",
        "_order",
        "_stamp",
        "cls",
        "idle_bound",
        "n",
        "share",
        "tokens",
    )

    def __init__(self, cls: Class, idle_bound: int, share: Callable[[int, int], float]) -> None:
        self.cls = cls
        self.idle_bound = idle_bound
        self.share = share
        """(requests, tokens) → the share of the room they fill, by whichever is scarcer."""
        self.n = 0
        self.tokens = 0
        self._lines: dict[str, Line] = {}
        self._idle: OrderedDict[str, Line] = OrderedDict()
        self._order: list[tuple[float, int, Line]] = []
        self._longest: list[tuple[float, int, Line]] = []
        self._last: Line | None = None
        self._stamp = 0

    # --- who waits ---------------------------------------------------------------------------------------------------

    def add(self, slot: Slot, now: float) -> None:
        line = self._line(slot.ask.tenant)
        if line.slots:
            del self._longest[bisect_left(self._longest, line.size)]
        else:
            self._idle.pop(line.name, None)
            floor = self.floor
            if line.counter < floor:
                line.counter = floor
            line.base = floor
            line.lifted_at = now
            self._stamp += 1
            line.place = (line.counter, self._stamp)
            insort(self._order, (*line.place, line))
        i = len(line.keys)
        if i and line.keys[-1] > slot.key:
            i = bisect_left(line.keys, slot.key)
        line.keys.insert(i, slot.key)
        line.slots.insert(i, slot)
        line.prompts.insert(i, slot.tokens)
        line.services.insert(i, slot.service)
        line.n += 1
        line.service += slot.service
        line.tokens += slot.tokens
        self.n += 1
        self.tokens += slot.tokens
        slot.line = line
        slot.band = self
        self._measure(line)

    def remove(self, slot: Slot) -> None:
        line = slot.line
        i = 0 if line.slots[0] is slot else bisect_left(line.keys, slot.key)
        del line.keys[i], line.slots[i], line.prompts[i], line.services[i]
        line.n -= 1
        line.service -= slot.service
        line.tokens -= slot.tokens
        self.n -= 1
        self.tokens -= slot.tokens
        del self._longest[bisect_left(self._longest, line.size)]
        if line.slots:
            self._measure(line)
            return
        line.service = 0.0  # what rounding left
        del self._order[bisect_left(self._order, line.place)]
        self._last = line
        self._rest(line)

    def head(self, window: float, warm: Callable[[Ask], bool] | None) -> Slot | None:
        """Who goes next: the first due of the tenant that was charged least, or of one within `window` tokens of it
        whose prefix is warm."""
        order = self._order
        if not order:
            return None
        least, _, line = order[0]
        first = line.slots[0]
        if warm is None or window <= 0 or len(order) == 1 or warm(first.ask):
            return first
        for counter, _, line in order[1:LOOK]:
            if counter > least + window:
                break
            if warm(line.slots[0].ask):
                return line.slots[0]
        return first

    def ahead(self, slot: Slot) -> tuple[int, float]:
        """Requests and prompt tokens of this class that go before it, were nothing else to come, charges to be as
        expected and no prefix warm. The asks of another tenant are taken for alike; where they are, it is exact, up to
        `SCAN` tenants. Of more every second, third, … stands for its neighbours."""
        mine = slot.line
        return self._ahead(mine, mine.counter, mine.place[1], bisect_left(mine.keys, slot.key))

    def ahead_of_new(self, tenant: str, due: float) -> tuple[int, float]:
        """The same of one that would come now."""
        mine = self._lines.get(tenant)
        if mine is not None and mine.slots:
            return self._ahead(mine, mine.counter, mine.place[1], bisect_left(mine.keys, (due, inf)))
        floor = self.floor
        return self._ahead(None, floor if mine is None else max(floor, mine.counter), inf, 0)

    def _ahead(self, mine: Line | None, counter: float, stamp: float, i: int) -> tuple[int, float]:
        """Before the i-th of `mine`, whose counter and place among equals are these."""
        own: float = 0.0
        service: float = 0.0
        if mine is not None:
            if i < len(mine.slots) - i:
                own = float(sum(mine.prompts[:i]))
                service = sum(mine.services[:i])
            else:
                own = float(mine.tokens - sum(mine.prompts[i:]))
                service = mine.service - sum(mine.services[i:])
        upto = counter + service
        order = self._order
        step = 1 + max(0, len(order) - 1) // SCAN
        requests = 0
        tokens = 0.0
        for their, place, line in order[: bisect_left(order, (upto, inf)) : step]:
            before = upto - their
            if line is mine:
                continue
            if before > line.service:
                requests += line.n
                tokens += line.tokens
            else:
                # its k-th goes before mine if its counter by then is less than mine's, or equal and it came first
                n = line.n
                turns = before * n / line.service if line.service else 0.0
                k = int(turns) + 1 if place < stamp else ceil(turns)
                if k > n:
                    k = n
                requests += k
                tokens += line.tokens * k / n
        if step > 1:
            others = (self.n, self.tokens) if mine is None else (self.n - mine.n, self.tokens - mine.tokens)
            requests = min(requests * step, others[0])
            tokens = min(tokens * step, others[1])
        return i + requests, own + tokens

    def last_of_longest(self, cls: Class) -> Slot | None:
        """Who of a class leaves first where one has to: the last due of the tenant that fills most of the room."""
        for _, _, line in reversed(self._longest):
            for slot in reversed(line.slots):
                if slot.ask.cls is cls:
                    return slot
        return None

    def displaced(self, tenant: str, tokens: int, need: int, need_tokens: int) -> list[Slot] | None:
        """Whom an ask of `tenant` with `tokens` may displace to free `need` requests and `need_tokens`: the last due of
        the one tenant that fills most of the room, as long as that one fills more of it than the asking one would. None
        where that is not enough. Longest queue drop: McKenney 1990, as buffer stealing in DRR (Shreedhar & Varghese,
        SIGCOMM 1995)."""
        if not self._longest:
            return None
        longest = self._longest[-1][2]
        mine = self._lines.get(tenant)
        share = self.share(1, tokens) if mine is None else self.share(mine.n + 1, mine.tokens + tokens)
        n, held = longest.n, longest.tokens
        found: list[Slot] = []
        for slot in reversed(longest.slots):
            if need <= 0 and need_tokens <= 0:
                break
            if self.share(n, held) <= share:
                return None
            if slot.ask.cls is self.cls:  # one that was lent a better class's turn is not this class's to displace
                found.append(slot)
                n -= 1
                held -= slot.tokens
                need -= 1
                need_tokens -= slot.tokens
        return found if need <= 0 and need_tokens <= 0 else None

    def __iter__(self) -> Iterator[Slot]:
        """Those who wait: the tenants as they stand, each one's asks as they are due."""
        for _, _, line in self._order:
            yield from line.slots

    @property
    def tenants(self) -> int:
        """Who wait."""
        return len(self._order)

    # --- what they were charged --------------------------------------------------------------------------------------

    @property
    def floor(self) -> float:
        """The counter of whoever comes new."""
        if self._order:
            return self._order[0][0]
        return self._last.counter if self._last is not None else 0.0

    def counter(self, tenant: str) -> float:
        """Weighted tokens; for an unknown tenant what it would begin with."""
        line = self._lines.get(tenant)
        return line.counter if line is not None else self.floor

    def charge(self, tenant: str, service: float) -> None:
        line = self._lines.get(tenant)
        if line is None:
            line = self._line(tenant)
            self._rest(line)
        if not self._order:  # admitted without waiting: as if it had come and gone in one moment
            floor = self.floor
            if line.counter < floor:
                line.counter = line.base = floor
            self._last = line
        line.base += service
        self._recount(line, line.counter + service)

    def settle(self, tenant: str, more: float, charged_at: float) -> None:
        """`more`: what it took beyond the charge; a refund is negative."""
        line = self._lines.get(tenant)
        if line is None:
            if more > 0:
                self.charge(tenant, more)
            return
        counter = line.counter + more
        if charged_at >= line.lifted_at:
            line.base += more
        elif more < 0:
            counter = max(counter, line.base)
        self._recount(line, counter)

    # --- keeping the lists -------------------------------------------------------------------------------------------

    def measure_all(self) -> None:
        """The room's bounds have changed."""
        self._longest.clear()
        for _, _, line in self._order:
            self._measure(line)
        while len(self._idle) > self.idle_bound:
            self._forget()

    def sort_all(self) -> None:
        """When asks are due has changed."""
        for _, _, line in self._order:
            line.slots.sort(key=lambda slot: slot.key)
            line.keys = [slot.key for slot in line.slots]
            line.prompts = [slot.tokens for slot in line.slots]
            line.services = [slot.service for slot in line.slots]

    def _recount(self, line: Line, counter: float) -> None:
        if line.slots:
            del self._order[bisect_left(self._order, line.place)]
            line.place = (counter, line.place[1])
            insort(self._order, (*line.place, line))
        line.counter = counter

    def _measure(self, line: Line) -> None:
        line.size = (self.share(line.n, line.tokens), line.place[1])
        insort(self._longest, (*line.size, line))

    def _line(self, name: str) -> Line:
        line = self._lines.get(name)
        if line is None:
            line = self._lines[name] = Line(name, self.floor)
        return line

    def _rest(self, line: Line) -> None:
        self._idle[line.name] = line
        if len(self._idle) > self.idle_bound:
            self._forget()

    def _forget(self) -> None:
        name, _ = self._idle.popitem(last=False)
        del self._lines[name]

    def __repr__(self) -> str:
        idle = len(self._idle)
        return f"<Band {self.cls.value} {self.n} of {self.tenants} tenants, {idle} idle | {self.tokens:,} tokens>"
