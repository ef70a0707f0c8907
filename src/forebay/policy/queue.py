"""Where requests wait for their admission: who may, who goes next, who has to leave.

Strict priority between the classes: `vip`, then `normal`, and `low` only where the caller says that there is idle
capacity. The room is bounded, in requests and in prompt tokens, and the better classes hold back a part of it:
`normal` may fill the room to its share only, and whoever of `low` waits gives way to either. Within a class the tenants
go by what they were charged (`fair`), and each one's asks by their deadlines. No tenant fills the room against the
others: where a class's part is full, the tenant that fills most of it loses its last ask to one that would fill less.

A `low` ask that has waited for `low_starvation_s` takes its turns among its tenant's `normal` ones, as due since then;
it still counts as `low` for the bounds, but is no longer evicted for a newcomer. Where `normal` ones wait, that is one
at a time, after so many of theirs as `starved_share` asks for: more work that nobody hurries than the engines can do
must not take their turns.

One order of calls is required: `expire(now)` before `head(now)`, and `charge` right after each `take`, in the class
that `take` returned.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from math import inf
from typing import Final, NamedTuple

from forebay.policy.asks import Ask, Class
from forebay.policy.fair import Band, Slot
from forebay.policy.rules import QueueRules

FULL: Final = "queue_full"
HELD_BACK: Final = "queue_held_back"
CLASS_FULL: Final = "queue_class_full"
LATE: Final = "deadline_passed"


class Put(NamedTuple):
    accepted: bool
    reason: str | None = None
    """Why it was refused."""
    evicted: tuple[Ask, ...] = ()
    """Who left for it: `low` ones, or asks of its own class from the tenant that fills most of the room."""


_ACCEPTED: Final = Put(True)


class WaitingRoom:
    """Mutable state: three bands of tenants, who is in which, when they are due, and which `low` ones are still young.

    `warm`: whether an ask's prefix is in some engine's cache; cheap, asked of a few heads at each `head`.
    """

    __slots__ = (
        "_bands",
        "_deadlines",
        "_limits",
        "_number",
        "_slots",
        "_starved",
        "_turns",
        "_young",
        "rules",
        "warm",
    )

    def __init__(self, rules: QueueRules, warm: Callable[[Ask], bool] | None = None) -> None:
        self.rules = rules
        self.warm = warm
        self._bands = {cls: Band(cls, rules.idle_tenants, self._share) for cls in Class}
        self._slots: dict[int, Slot] = {}
        self._deadlines: list[tuple[float, int, Slot]] = []
        self._young: OrderedDict[int, Slot] = OrderedDict()
        self._starved = [0, 0]
        """`low` asks among the normal ones, and their tokens."""
        self._turns = 0
        """Asks of `normal` that went since one of `low` came among them."""
        self._number = 0
        self._limits = self._limit()

    # --- coming ------------------------------------------------------------------------------------------------------

    def put(self, ask: Ask, now: float) -> Put:
        """Raises ValueError where it waits already."""
        if ask.key in self._slots:
            raise ValueError(f"{ask!r} waits already")
        if ask.deadline < now:
            return Put(False, LATE)
        self._promote(now)
        evicted = _ACCEPTED
        if self._slots:
            evicted = self._make_room(ask)
            if not evicted.accepted:
                return evicted
        self._number += 1
        service = self.rules.service(ask.prompt_tokens, ask.expected)
        slot = Slot(ask, self._number, service, now)
        self._slots[ask.key] = slot
        self._bands[ask.cls].add(slot, now)
        if ask.deadline < inf:
            heappush(self._deadlines, (ask.deadline, self._number, slot))
        if ask.cls is Class.LOW and self.rules.low_starvation_s < inf:
            self._young[ask.key] = slot
        return evicted

    def _make_room(self, ask: Ask) -> Put:
        cls, tokens = ask.cls, ask.work
        (limit, limit_tokens), (own, own_tokens) = self._limits[cls]
        over = len(self._slots) + 1 - limit
        over_tokens = self.tokens + tokens - limit_tokens
        mine = self.count(cls) + 1 - own
        mine_tokens = self.tokens_of(cls) + tokens - own_tokens
        if over <= 0 and over_tokens <= 0 and mine <= 0 and mine_tokens <= 0:
            return _ACCEPTED
        low = self._bands[Class.LOW]
        yields, yields_tokens = (0, 0) if cls is Class.LOW else (low.n, low.tokens)
        need = max(mine, over - yields)
        need_tokens = max(mine_tokens, over_tokens - yields_tokens)
        leave: list[Slot] = []
        if need > 0 or need_tokens > 0:
            displaced = self._bands[cls].displaced(ask.tenant, tokens, need, need_tokens)
            if displaced is None:
                if self.rules.own(cls) is not None and (mine > 0 or mine_tokens > 0):
                    return Put(False, CLASS_FULL)
                if len(self._slots) >= self.rules.requests or self.tokens + tokens > self.rules.tokens:
                    return Put(False, FULL)
                return Put(False, HELD_BACK)
            leave = displaced
        evicted: list[Ask] = []
        for slot in leave:
            self._remove(slot)
            evicted.append(slot.ask)
        while len(self._slots) + 1 > limit or self.tokens + tokens > limit_tokens:
            last = low.last_of_longest(Class.LOW)
            if last is None:
                break
            self._remove(last)
            evicted.append(last.ask)
        return Put(True, None, tuple(evicted))

    # --- going -------------------------------------------------------------------------------------------------------

    def head(self, now: float, *, idle: bool) -> Ask | None:
        """Who goes next; of `low` only where there is idle capacity. It stays until it is taken."""
        self._promote(now)
        bands, rules = self._bands, self.rules
        for cls in Class:
            band = bands[cls]
            if band.n and (idle or cls is not Class.LOW):
                slot = band.head(rules.locality_tokens, self.warm)
                return slot.ask if slot is not None else None
        return None

    def take(self, ask: Ask, now: float) -> Class:
        """It is admitted and leaves. Returns the class in whose turn it goes, which is to be charged and settled: not
        its own where it starved. Raises KeyError where it does not wait."""
        slot = self._slots[ask.key]
        cls = slot.band.cls
        if cls is Class.NORMAL and not slot.starved:
            self._turns += 1
        self._remove(slot)
        return cls

    def turn(self, ask: Ask) -> Class:
        """The class in whose turn it goes. Raises KeyError where it does not wait."""
        return self._slots[ask.key].band.cls

    def drop(self, ask: Ask, now: float) -> bool:
        """Its client left, or its promise cannot be kept any more. False where it does not wait."""
        slot = self._slots.get(ask.key)
        if slot is None:
            return False
        self._remove(slot)
        return True

    def expire(self, now: float) -> list[Ask]:
        """Those whose deadline has come leave, the earliest first."""
        gone: list[Ask] = []
        heap = self._deadlines
        while heap and (heap[0][0] <= now or not heap[0][2].alive):
            slot = heappop(heap)[2]
            if slot.alive:
                self._remove(slot)
                gone.append(slot.ask)
        return gone

    def next_deadline(self) -> float | None:
        """When the next of those who wait is due to leave."""
        heap = self._deadlines
        while heap and not heap[0][2].alive:
            heappop(heap)
        return heap[0][0] if heap else None

    def next_starving(self) -> float | None:
        """When the next of `low` counts as `normal`, which may then go without idle capacity."""
        for slot in self._young.values():
            return slot.since + self.rules.low_starvation_s if self._may_promote() else None
        return None

    # --- accounts ----------------------------------------------------------------------------------------------------

    def charge(self, tenant: str, cls: Class, tokens: float) -> None:
        """On admission: what it is predicted to take, `QueueRules.service`. Raises ValueError where that is no number
        of tokens."""
        if not 0 <= tokens < inf:
            raise ValueError(f"{tokens} tokens cannot be charged")
        self._bands[cls].charge(tenant, tokens)

    def settle(self, tenant: str, cls: Class, predicted: float, actual: float, charged_at: float = inf) -> None:
        """At its end, whatever that was: what was charged, and what it took. `charged_at` tells when; the refund of a
        charge from before the tenant last came to wait never puts it before those who came new then."""
        if not (0 <= predicted < inf and 0 <= actual < inf):
            raise ValueError(f"{actual} tokens cannot be settled against {predicted}")
        if predicted != actual:
            self._bands[cls].settle(tenant, actual - predicted, charged_at)

    def charged(self, tenant: str, cls: Class) -> float:
        """The tenant's counter, in weighted tokens."""
        return self._bands[cls].counter(tenant)

    # --- looking -----------------------------------------------------------------------------------------------------

    def position(self, ask: Ask) -> int:
        """How many go before it, were nobody else to come. Raises KeyError where it does not wait."""
        return self.ahead(ask)[0]

    def ahead(self, ask: Ask) -> tuple[int, float]:
        """How many go before it, and their prompt tokens: about 0.15 µs for each tenant of its class that waits, up to
        128 of them. Raises KeyError where it does not wait."""
        slot = self._slots[ask.key]
        return self._with_better(slot.band, *slot.band.ahead(slot))

    def ahead_of_new(self, ask: Ask) -> tuple[int, float]:
        """The same of one that does not wait, were it to come now."""
        if not self._slots:
            return 0, 0.0
        band = self._bands[ask.cls]
        return self._with_better(band, *band.ahead_of_new(ask.tenant, ask.deadline))

    def _with_better(self, of: Band, requests: int, tokens: float) -> tuple[int, float]:
        for cls in Class:
            band = self._bands[cls]
            if band is of:
                break
            requests += band.n
            tokens += band.tokens
        return requests, tokens

    def count(self, cls: Class) -> int:
        """Those of the class who wait, starved ones of `low` too."""
        return self._bands[cls].n + (self._starved[0] if cls is Class.LOW else -self._of_low(cls, 0))

    def tokens_of(self, cls: Class) -> int:
        """Their prompt tokens."""
        return self._bands[cls].tokens + (self._starved[1] if cls is Class.LOW else -self._of_low(cls, 1))

    def _of_low(self, cls: Class, i: int) -> int:
        return self._starved[i] if cls is Class.NORMAL else 0

    @property
    def starved(self) -> int:
        """Those of `low` who count as `normal`."""
        return self._starved[0]

    @property
    def tokens(self) -> int:
        return sum([band.tokens for band in self._bands.values()])

    def first(self) -> Ask | None:
        """Of those who wait, who came first."""
        for slot in self._slots.values():
            return slot.ask
        return None

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, ask: Ask) -> bool:
        return ask.key in self._slots

    def __iter__(self) -> Iterator[Ask]:
        """All who wait: by class, within it by tenant as these stand, within that by deadline."""
        for band in self._bands.values():
            for slot in band:
                yield slot.ask

    # --- new rules ---------------------------------------------------------------------------------------------------

    def rejudge(self, rules: QueueRules, now: float) -> list[Ask]:
        """A reload, after which the deadlines of those who wait may be others; else the order stays. Whoever finds no
        place under the new bounds leaves and is returned: of each class what exceeds its part, then `low`, `normal` and
        `vip` until all fit; of the tenant that fills most of the room the last one due. Counters stay, in the weights
        they were charged in."""
        self.rules = rules
        self._limits = self._limit()
        for band in self._bands.values():
            band.idle_bound = rules.idle_tenants
            band.measure_all()
        for slot in self._slots.values():
            if not slot.starved:
                slot.key = (slot.ask.deadline, slot.number)
        for band in self._bands.values():
            band.sort_all()
        due = [(slot.ask.deadline, slot.number, slot) for slot in self._slots.values()]
        self._deadlines = [entry for entry in due if entry[0] < inf]
        heapify(self._deadlines)
        self._young = OrderedDict(
            (slot.ask.key, slot)
            for slot in sorted(self._bands[Class.LOW], key=lambda s: s.number)
            if rules.low_starvation_s < inf
        )
        self._promote(now)
        gone: list[Ask] = []
        for cls in reversed(Class):
            (limit, limit_tokens), (own, own_tokens) = self._limits[cls]
            self._shrink(cls, cls, min(limit, own), min(limit_tokens, own_tokens), gone)
        for cls in reversed(Class):
            self._shrink(cls, None, rules.requests, rules.tokens, gone)
        return gone

    def _shrink(self, cls: Class, counted: Class | None, most: int, most_tokens: int, gone: list[Ask]) -> None:
        """Asks of `cls` leave until those of `counted` (None: all) are within bounds. One alone always is."""
        while len(self._slots) > 1:
            n = len(self._slots) if counted is None else self.count(counted)
            tokens = self.tokens if counted is None else self.tokens_of(counted)
            if n <= most and tokens <= most_tokens:
                return
            last = self._bands[cls].last_of_longest(cls)
            if last is None and cls is Class.LOW:
                last = self._bands[Class.NORMAL].last_of_longest(cls)
            if last is None:
                return
            self._remove(last)
            gone.append(last.ask)

    # --- inside ------------------------------------------------------------------------------------------------------

    def _limit(self) -> dict[Class, tuple[tuple[int, int], tuple[int, int]]]:
        """By class: how far the whole room may be filled for it, and how far by it."""
        rules = self.rules
        found = {}
        for cls in Class:
            share, own = rules.share(cls), rules.own(cls)
            room = max(1, int(rules.requests * share + 1e-9)), max(1, int(rules.tokens * share + 1e-9))
            found[cls] = room, (own.requests, own.tokens) if own is not None else room
        return found

    def _share(self, requests: int, tokens: int) -> float:
        rules = self.rules
        return max(requests / rules.requests, tokens / rules.tokens)

    def _promote(self, now: float) -> None:
        """Those of `low` who starve take their turns among the normal ones from here on."""
        young = self._young
        while young:
            slot = next(iter(young.values()))
            due = slot.since + self.rules.low_starvation_s
            if due > now or not self._may_promote():
                return
            self._turns = 0
            del young[slot.ask.key]
            self._bands[Class.LOW].remove(slot)
            slot.starved = True
            slot.key = (due, slot.number)
            self._starved[0] += 1
            self._starved[1] += slot.tokens
            self._bands[Class.NORMAL].add(slot, now)

    def _may_promote(self) -> bool:
        share = self.rules.starved_share
        if share == 1:
            return True
        return not self._starved[0] and (not self._bands[Class.NORMAL].n or self._turns * share >= 1 - 1e-9)

    def _remove(self, slot: Slot) -> None:
        key = slot.ask.key
        del self._slots[key]
        slot.alive = False
        slot.band.remove(slot)
        if slot.starved:
            self._starved[0] -= 1
            self._starved[1] -= slot.tokens
        elif slot.ask.cls is Class.LOW:
            self._young.pop(key, None)
        heap = self._deadlines
        if len(heap) > 2 * len(self._slots) + 64:
            self._deadlines = [entry for entry in heap if entry[2].alive]
            heapify(self._deadlines)

    def __repr__(self) -> str:
        starved = f" ({self.starved} starved)" if self.starved else ""
        counts = ", ".join(f"{cls.value} {self.count(cls)}" for cls in Class)
        return f"<WaitingRoom [{counts}{starved} | {self.tokens:,} tokens]>"
