"""How much more may be used: all limits of a request are held at once or none, before it is sent, and put right when it
is settled.

Pure, and for one thread: a worker's event loop. `now` is monotonic seconds, `wall` Unix time; money is nano-units.
Rates drain by `now`, windows turn by `wall`.

A hold counts as used. It belongs to the window it was made in: what comes back after that window's end does not make
room in the next. The first of `settle` and `release` counts; a second one does nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import Final

from forebay.ledger.gates import NO_METERS, Gate, Meters, Scopes, Who
from forebay.ledger.meters import AnyMeter, Budget, Rate, Sliding
from forebay.ledger.rules import MONEY, Measure, Over, Rule
from forebay.ledger.tariff import Costly

BUSY: Final = 1.0
"""Seconds after which a request over a limit of requests at once may come again: when one ends is not known."""


class Why(StrEnum):
    RATE = "rate"  # passes by itself, soon
    QUOTA = "quota"  # used up until its window ends
    TOO_LARGE = "too_large"  # the prompt alone is over a rate
    UNPRICED = "unpriced"  # a limit of money, and no price is known


class Held:
    """What one request holds."""

    __slots__ = (
        "degrade_class",
        "degrade_model",
        "full",
        "full_cost",
        "guess",
        "guess_cost",
        "lowered_by",
        "max_tokens",
        "meters",
        "n",
        "open",
        "rate",
        "warnings",
    )

    def __init__(self, meters: Meters, n: int) -> None:
        self.meters = meters
        self.n = n
        self.open = True
        self.full = 0
        """Tokens: the prompt and the most of an answer."""
        self.guess = 0
        """Tokens: the prompt and the predicted answer."""
        self.rate = 0
        """Tokens that rates hold, but those that hold the predicted."""
        self.full_cost = 0
        self.guess_cost = 0
        self.max_tokens: int | None = None
        """What the request's max_tokens must be set to; None: it stays as it is."""
        self.lowered_by = ""
        """The rule that asks for it."""
        self.degrade_class = ""
        """The class that a soft limit lowers the request to; "": none does."""
        self.degrade_model = ""
        """The model that a soft limit wants instead: release this and hold for that one, with `degraded`."""
        self.warnings: tuple[str, ...] = ()
        """Soft limits it is over, by name, and those of money that cannot count it for want of a price."""

    def __repr__(self) -> str:
        return f"<Held {self.n} {self.full} tokens {self.full_cost} nano{'' if self.open else ', closed'}>"


@dataclass(frozen=True, slots=True)
class Denied:
    """The limit that stands longest in the way."""

    why: Why
    rule: Rule
    measure: Measure
    scope: str
    used: int
    """Of `limit`; open holds and other hosts' use are in it."""
    limit: int
    needs: int
    """What the request would have held of it."""
    resets: float
    """Unix time from which there is room for it."""
    retry_after: float
    """Seconds. Of a rate: each who is refused has its own."""
    meters: Meters


class Limits:
    """Use of all scopes under the rules in force."""

    def __init__(self, end_users: int = 50_000) -> None:
        """`end_users`: how many scopes of end users are remembered; the longest unseen is forgotten first."""
        self.scopes = Scopes(end_users)

    def configure(self, rules: Iterable[Rule], now: float, wall: float) -> None:
        """The rules from now on. What was used is kept by `Rule.id`; of two with the same id the last counts. What is
        held stays held."""
        self.scopes.configure(rules, now, wall)

    @property
    def active(self) -> bool:
        """Whether there is any rule."""
        return bool(self.scopes.rules)

    def gate(self, who: Who) -> Gate:
        """To be kept for a caller's requests; it follows the rules by itself."""
        return Gate(who)

    def hold(
        self,
        gate: Gate,
        model: str,
        prompt: int,
        most: int | None,
        price: Costly | None,
        end_user: str,
        now: float,
        wall: float,
        *,
        predicted: int | None = None,
        copies: int = 1,
        degraded: bool = False,
    ) -> Held | Denied:
        """Take from all limits of a request, or from none.

        `prompt`: its tokens, as estimated. `most`: its max_tokens; None: it has none. `predicted`: tokens of the answer
        that are expected. `copies`: answers asked for (`n`), each of at most `most`. `model` and `price` are those of
        what will answer. `degraded`: it was degraded already, so that no soft limit degrades it again.
        """
        scopes = self.scopes
        if gate.generation != scopes.generation:
            scopes.fill(gate, now, wall)
        if (end_user and gate.per_end_user) or model in scopes.models:
            meters = scopes.meters(gate, model, end_user, now, wall)
        else:
            meters = gate.base
        n = scopes.next
        scopes.next = n + 1
        held = Held(meters, n)
        if meters is NO_METERS or not meters.all:
            return held

        asked = meters.answer if most is None else most
        answer = asked * copies
        guess = answer if predicted is None or predicted > answer else predicted
        held.rate = prompt + (guess if most is None else answer)
        held.guess = prompt + guess

        soft: list[AnyMeter] | None = None
        for rate in meters.requests:
            rate.advance(now, n)
            if rate.used + 1 > rate.ceiling:
                if rate.refuses:
                    return self._denied(held, prompt, min(meters.least, asked) * copies, price, now, wall)
                soft = _with(soft, rate)
        for rate in meters.rates:
            rate.advance(now, n)
            need = held.guess if rate.predicted else held.rate
            if rate.used + min(need, rate.limit) > rate.ceiling or prompt > rate.limit:
                if rate.refuses:
                    return self._denied(held, prompt, min(meters.least, asked) * copies, price, now, wall)
                soft = _with(soft, rate)
        for count in meters.concurrent:
            if count.used + count.elsewhere + 1 > count.limit:
                if count.refuses:
                    return self._denied(held, prompt, min(meters.least, asked) * copies, price, now, wall)
                soft = _with(soft, count)

        lowered: AnyMeter | None = None
        for budget in meters.tokens:
            if not budget.start <= wall < budget.until:
                budget.roll(wall, n)
            room = budget.limit - budget.used - budget.elsewhere - prompt
            if (guess if budget.predicted else answer) > room:
                if not budget.refuses:
                    soft = _with(soft, budget)
                elif budget.predicted or room < min(meters.least, asked) * copies:
                    return self._denied(held, prompt, min(meters.least, asked) * copies, price, now, wall)
                else:
                    lowered = budget
                    answer = room
        if meters.money:
            if price is None:
                for budget in meters.money:
                    if budget.needs_price:
                        return self._denied(held, prompt, min(meters.least, asked) * copies, price, now, wall)
                    held.warnings = (*held.warnings, f"{budget.rule.name} (no price)")
            else:
                cost = price.most(prompt, answer)
                guess_cost = cost if guess >= answer or not meters.predicts_cost else price.most(prompt, guess)
                for budget in meters.money:
                    if not budget.start <= wall < budget.until:
                        budget.roll(wall, n)
                    room = budget.limit - budget.used - budget.elsewhere
                    if (guess_cost if budget.predicted else cost) > room:
                        if not budget.refuses:
                            soft = _with(soft, budget)
                            continue
                        less = 0 if budget.predicted else _affordable(price, prompt, answer, room)
                        if budget.predicted or less < min(meters.least, asked) * copies:
                            return self._denied(held, prompt, min(meters.least, asked) * copies, price, now, wall)
                        lowered = budget
                        answer = less
                        cost = price.most(prompt, answer)
                held.full_cost = cost
                held.guess_cost = min(guess_cost, cost)

        if lowered is not None:
            answer -= answer % copies
            if price is not None and meters.money:
                held.full_cost = price.most(prompt, answer)
                held.guess_cost = min(held.guess_cost, held.full_cost)
            held.max_tokens = answer // copies
            held.lowered_by = lowered.rule.name
            held.guess = min(held.guess, prompt + answer)
            held.rate = min(held.rate, prompt + answer)
        elif most is None and meters.sets_most:
            held.max_tokens = asked
            held.lowered_by = meters.sets_most
        held.full = prompt + answer
        if soft is not None:
            _soften(held, soft, degraded)

        for rate in meters.requests:
            rate.used += 1
        for rate in meters.rates:
            rate.used += held.guess if rate.predicted else held.rate
        for count in meters.concurrent:
            count.used += 1
        for budget in meters.tokens:
            budget.used += held.guess if budget.predicted else held.full
        for budget in meters.money:
            budget.used += held.guess_cost if budget.predicted else held.full_cost
        return held

    def settle(self, held: Held, tokens: int, cost: int | None, now: float) -> None:
        """What it used in truth: all tokens, and its cost; None: no price is known, and what was held of money stays
        spent. A request that failed before its first token used 0 and 0."""
        if not held.open:
            return
        held.open = False
        meters, n, following = held.meters, held.n, self.scopes.next
        for rate in meters.rates:
            rate.advance(now, following)
            rate.change(n, tokens - (held.guess if rate.predicted else held.rate))
        for count in meters.concurrent:
            count.used -= 1
        for budget in meters.tokens:
            more = tokens - (held.guess if budget.predicted else held.full)
            if budget.since <= n:
                budget.used += more
            else:
                budget.late(n, more)
        if cost is not None:
            for budget in meters.money:
                more = cost - (held.guess_cost if budget.predicted else held.full_cost)
                if budget.since <= n:
                    budget.used += more
                else:
                    budget.late(n, more)

    def release(self, held: Held, now: float) -> None:
        """It was never sent: nothing was used, no request either."""
        if not held.open:
            return
        for rate in held.meters.requests:
            rate.advance(now, self.scopes.next)
            rate.change(held.n, -1)
        self.settle(held, 0, 0, now)

    # --- why not ----------------------------------------------------------------------------------------------------

    def _denied(self, held: Held, prompt: int, least: int, price: Costly | None, now: float, wall: float) -> Denied:
        """Of all limits without room, a quota before a rate (that one would pass would not help), and of these the one
        that lasts longest."""
        meters, n = held.meters, held.n
        found: list[Denied] = []
        for m in meters.all:
            if not m.refuses:
                continue
            denied: Denied | None = None
            if isinstance(m, Rate):
                m.advance(now, n)
                needs = 1 if m.measure is Measure.REQUESTS_MINUTE else held.guess if m.predicted else held.rate
                floor = 1 if m.measure is Measure.REQUESTS_MINUTE else prompt
                if floor > m.limit:
                    denied = _denial(Why.TOO_LARGE, m, floor, inf, inf, meters)
                elif (wait := m.wait(min(needs, m.limit))) > 0:
                    denied = _denial(Why.RATE, m, needs, wall + wait, m.turn(now, wait, needs), meters)
            elif isinstance(m, Budget | Sliding):
                if not m.start <= wall < m.until:
                    m.roll(wall, n)
                money = m.measure in MONEY
                completion = held.guess - prompt if m.predicted else least
                if money and price is None:
                    if m.needs_price:
                        denied = _denial(Why.UNPRICED, m, 0, inf, inf, meters)
                    needs = 0
                else:
                    needs = price.most(prompt, completion) if money and price is not None else prompt + completion
                    if m.used + m.elsewhere + needs > m.limit:
                        resets = m.room_at(needs, wall)
                        denied = _denial(Why.QUOTA, m, needs, resets, resets - wall, meters)
            elif m.used + m.elsewhere + 1 > m.limit:
                denied = _denial(Why.RATE, m, 1, wall + BUSY, BUSY, meters)
            if denied is not None:
                found.append(denied)
        return max(found, key=lambda d: (d.why is not Why.RATE, d.retry_after))


def _denial(why: Why, m: AnyMeter, needs: int, resets: float, retry_after: float, meters: Meters) -> Denied:
    used = int(m.used + m.elsewhere)
    return Denied(why, m.rule, m.measure, m.scope, used, m.limit, needs, resets, retry_after, meters)


def _with(soft: list[AnyMeter] | None, meter: AnyMeter) -> list[AnyMeter]:
    return [meter] if soft is None else [*soft, meter]


def _soften(held: Held, soft: list[AnyMeter], degraded: bool) -> None:
    held.warnings += tuple(dict.fromkeys(m.rule.name for m in soft))
    if degraded:
        return
    for m in soft:
        if m.rule.over is Over.DEGRADE:
            held.degrade_class = held.degrade_class or m.rule.degrade_class
            held.degrade_model = held.degrade_model or m.rule.degrade_model


def _affordable(price: Costly, prompt: int, most: int, room: int) -> int:
    """The longest answer, under `most`, that costs at most `room`; -1: not even none does."""
    low, high = -1, most
    while high - low > 1:
        middle = (low + high) // 2
        if price.most(prompt, middle) <= room:
            low = middle
        else:
            high = middle
    return low
