"""How fast those who wait are served, and whom it was promised to.

Three resources can bind. Of each, what a request takes and what the engines give of it a second:

    prefill     p                       R          prompt tokens
    sequences   n · r / r̄               N · μ      places, for the time of a typical answer
    KV cache    n · (p + r) · r / r̄     K · μ      tokens, for the same time

p prompt tokens, r predicted tokens of each of its n answers, r̄ those of a typical request; N sequences and K tokens of
KV at once; μ ends a second of one sequence, so that N · μ is Little's law. Prefill holds up those who decode: of its
time they lose `STALL`, which is added to the load of places and KV and left out where μ is measured.

R is what was admitted while somebody waited. μ is ends over sequence-seconds, those of answers that still run included,
so that it needs no true lengths; before the first ends it is little believed. What is promised of N and K leaves √N
places free, since ends are as random as arrivals (S. Halfin, W. Whitt, Operations Research 29, 1981).

A refused request is promised a second of its own: the first one in which each resource has something left, behind those
who wait, those who were promised that second, and the newcomers who may be expected. Seconds are whole, because
Retry-After is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from math import exp, inf, sqrt
from typing import Final, NamedTuple

from forebay.policy.asks import Class

MAX_RETRY: Final = 60
"""Seconds."""
NEVER: Final = MAX_RETRY + 1.0
"""What is told where no second up to `MAX_RETRY` is left."""

Three = tuple[float, float, float]
"""Of prefill, places and KV."""


class Supply(NamedTuple):
    """What the engines could give, and what is under way on them."""

    prefill: float
    """Prompt tokens a second."""
    places: float
    """Sequences at once."""
    kv: float
    """Tokens, up to where nobody is shed."""
    speed: float
    """Tokens a second of one sequence, by what the engines' steps take."""
    backlog: float
    """Prompt tokens that wait on them."""
    running: float
    """Sequences."""
    held: float
    """Tokens of KV at the predicted peak."""


class Drain:
    """One model's. Times are monotonic seconds; one before the last counts as that.

    Mutable state: the measurements of R and μ, means over the last requests, what the next seconds are promised to, how
    many newcomers there were in each of the last.
    """

    RATE: Final = 0.8
    """Of the engines' prefill rate: counts as one second's measurement of R."""
    SPAN: Final = 5.0
    """Seconds of waiting after which a measurement of R counts 1/e."""
    PRIOR: Final = 4.0
    """Answers that `Supply.speed` counts as in μ."""
    MEMORY: Final = 64.0
    """Answers after which one counts 1/e, in μ and in the means."""
    SAMPLED: Final = 4
    """While nobody waits, one admission of so many counts in the means."""
    UNSURE: Final = 0.7
    """Of μ, what is not believed before the first end, or less where `max_tokens` are so near to what is predicted that
    answers cannot last that much longer; then over √(1 + ends)."""
    STALL: Final = 0.85
    KEPT: Final = 0.9
    """Of R, what is promised."""
    SPARE: Final = 1.0
    """Of N places, so many times √N are kept free."""
    FULL: Final[Mapping[Class, float]] = {Class.VIP: 1.1, Class.NORMAL: 0.92, Class.LOW: 0.6}
    """How full a second may be already for a request to come then. `low` is served where an engine is idle, and `vip`
    before all who come in the same second."""
    GIVEN_FOR: Final = 0.05
    """Seconds for which what is given of the same `Supply` is not computed again."""
    MORE: Final = 0.25
    """Seconds by which what is ahead must have grown for the search to begin anew within a second."""
    AMPLE: Final = 1.15
    """Of newcomers, how many times as many are expected as there were: what they leave is a small difference."""
    NEWCOMERS: Final = 30.0
    """Seconds of memory."""

    __slots__ = (
        "_admissions",
        "_arrived",
        "_asked",
        "_booked",
        "_came",
        "_cursors",
        "_each",
        "_ended",
        "_exposed",
        "_given_at",
        "_gives",
        "_held",
        "_held_square",
        "_in_flight",
        "_length",
        "_n",
        "_new",
        "_new_asked",
        "_prompt",
        "_second",
        "_stall",
        "_supply",
        "_taken",
        "_tokens",
        "_unsure",
        "_waited",
        "at",
        "waiting",
    )

    def __init__(self) -> None:
        self.at = -inf
        self._second = 0
        self.waiting = False
        self._tokens = 0.0  # of prompt, admitted while somebody waited
        self._waited = 0.0  # seconds of that
        self._in_flight = 0
        self._admissions = 0
        self._stall = 0.0  # seconds of prefill that are not yet left out
        self._exposed = 0.0  # sequence-seconds
        self._ended = 0.0  # sequences
        self._prompt = self._length = self._n = self._held = self._held_square = self._unsure = 0.0
        self._arrived = 0
        self._came: deque[float] = deque(maxlen=3 * int(self.NEWCOMERS))
        self._new = 0.0  # newcomers a second
        self._asked = 0  # prompt tokens of this second's
        self._new_asked = self._taken = 0.0  # since `since` was last called
        self._supply: Supply | None = None
        self._given_at = -inf
        self._gives = self._each = (1.0, 1.0, 1.0)
        self._booked = [_nothing() for _ in range(MAX_RETRY + 2)]  # a second each, modulo their number
        self._cursors: dict[Class, tuple[int, Three, Three]] = {}

    # --- being told --------------------------------------------------------------------------------------------------

    def passes(self, now: float, *, waiting: bool) -> None:
        """Time has gone by; `waiting`: whether somebody waits from now on. To be called before all else."""
        passed = now - self.at
        if passed > 0:
            if passed < inf:
                self._exposed += self._in_flight * max((1 - self.STALL) * passed, passed - self._stall)
                self._stall = max(0.0, self._stall - passed)
                if self.waiting:
                    keep = exp(-passed / self.SPAN)
                    self._tokens *= keep
                    self._waited = self._waited * keep + passed
            second = int(now)
            if second != self._second:
                self._turn(second)
            self.at = now
        self.waiting = waiting

    def came(self, asks_for: int = 0) -> None:
        """A request is offered; `asks_for`: its prompt tokens, if more engines would be for it."""
        self._arrived += 1
        self._asked += asks_for

    def admitted(self, prompt_tokens: int, n: int, length: float, most: int | None, prefill: float) -> None:
        """`length`: tokens that are predicted of each of its answers, `most`: max_tokens; `prefill`: as of `Supply`."""
        self._taken += prompt_tokens
        if self.waiting:
            self._tokens += prompt_tokens
        self._in_flight += n
        self._stall += self.STALL * prompt_tokens / prefill
        self._admissions += 1
        if self.waiting or self._admissions % self.SAMPLED == 0 or not self._n:
            self._see(prompt_tokens, n, length, most)

    def ended(self, n: int) -> None:
        """In whatever way."""
        self._in_flight = max(0, self._in_flight - n)
        keep = 1 - 1 / self.MEMORY
        self._exposed *= keep
        self._ended = self._ended * keep + n

    # --- asking ------------------------------------------------------------------------------------------------------

    def prefill(self, most: float) -> float:
        """Prompt tokens a second while somebody waits."""
        return min(most, max(0.02 * most, (self._tokens + self.RATE * most) / (self._waited + 1.0)))

    def gives(self, supply: Supply) -> Three:
        """What is promised of each resource a second."""
        length = max(1.0, self._length)
        sure = 1 - self._unsure / sqrt(1 + self._ended)
        ends = sure * (self._ended + self.PRIOR) / (self._exposed + self.PRIOR * length / supply.speed)
        at_once = supply.kv * self._held / max(1.0, self._held_square)  # typical ones, for heavy tails fewer
        return (
            self.KEPT * self.prefill(supply.prefill),
            supply.places * self._most_used(supply.places) * ends,
            supply.kv * self._most_used(at_once) * ends,
        )

    def slot(
        self,
        prompt_tokens: int,
        n: int,
        length: float,
        most: int | None,
        supply: Supply,
        *,
        ahead: tuple[int, float] = (0, 0.0),
        patience: float = 0.0,
        cls: Class = Class.NORMAL,
    ) -> float:
        """Whole seconds until a refused request's own place, or `NEVER`. `ahead`: how many wait that go before it, and
        their prompt tokens; they do so for `patience` seconds at most."""
        self._see(prompt_tokens, n, length, most)
        if supply is not self._supply or not self.at - self._given_at < self.GIVEN_FOR:
            self._supply, self._given_at = supply, self.at
            self._gives = self.gives(supply)
            self._each = self._loads((self._prompt, self._n, self._n * self._held), self._gives)
            self._new = self._newcomers(1 / max(*self._each, 1e-9))
        gives, each = self._gives, self._each
        full = self.FULL[cls]
        begin = over = self._ahead(supply, ahead, patience, gives, full)
        wait = 1
        if cls in self._cursors:
            last = self._cursors[cls]
            if all(now <= then + self.MORE for now, then in zip(begin, last[2], strict=True)):
                wait, over, begin = last
        new = 0.0 if cls is Class.VIP else self._new
        left = [max(0.0, 1 - self.AMPLE * new * load) for load in each]
        booked, second = self._booked, self._second
        while wait <= MAX_RETRY:
            there = booked[(second + wait) % len(booked)]
            a, b, c = self._loads(there, gives)
            a, b, c = over[0] + a, over[1] + b, over[2] + c
            if a < full * left[0] and b < full * left[1] and c < full * left[2]:
                r = length / max(1.0, self._length)
                there[0] += prompt_tokens
                there[1] += n * r
                there[2] += n * (prompt_tokens + length) * r
                there[3] += 1
                break
            over = (max(0.0, a - left[0]), max(0.0, b - left[1]), max(0.0, c - left[2]))
            wait += 1
        self._cursors[cls] = (wait, over, begin)
        return float(wait) if wait <= MAX_RETRY else NEVER

    def since(self) -> tuple[float, float]:
        """Prompt tokens that newcomers asked for, up to the last whole second, and those of all who were admitted,
        since this was last called."""
        found = self._new_asked, self._taken
        self._new_asked = self._taken = 0.0
        return found

    # --- inside ------------------------------------------------------------------------------------------------------

    def _loads(self, takes: Sequence[float], gives: Three) -> Three:
        """Seconds of each resource."""
        prefill = takes[0] / gives[0]
        stall = self.STALL * prefill
        return prefill, takes[1] / gives[1] + stall, takes[2] / gives[2] + stall

    def _ahead(self, supply: Supply, ahead: tuple[int, float], patience: float, gives: Three, full: float) -> Three:
        """Seconds beyond the first that each resource is busy with those who wait, and with what is under way beyond
        what is promised of it."""
        count, tokens = ahead
        a, b, c = self._loads((tokens + supply.backlog, count * self._n, count * self._n * self._held), gives)
        at_once = supply.kv * self._held / max(1.0, self._held_square)
        b = (
            min(b, patience)
            + max(0.0, supply.running - full * supply.places * self._most_used(supply.places)) / gives[1]
        )
        c = min(c, patience) + max(0.0, supply.held - full * supply.kv * self._most_used(at_once)) / gives[2]
        return max(0.0, min(a, patience) - 1), max(0.0, b - 1), max(0.0, c - 1)

    def _most_used(self, places: float) -> float:
        """Share of so many that is promised."""
        return max(0.3, 1 - self.SPARE / sqrt(max(1.0, places)))

    def _see(self, prompt_tokens: int, n: int, length: float, most: int | None) -> None:
        share = 1 / self.MEMORY if self._n else 1.0
        held = prompt_tokens + length
        self._prompt += share * (prompt_tokens - self._prompt)
        self._n += share * (n - self._n)
        self._length += share * (length - self._length)
        self._held += share * (held - self._held)
        unsure = self.UNSURE if most is None else min(self.UNSURE, max(0.0, 1 - length / most))
        self._unsure += share * (unsure - self._unsure)
        self._held_square += share * (held * held - self._held_square)

    def _newcomers(self, most: float) -> float:
        """So many a second. Those of one second count as no more than `most`, twice, and two: a flood is not taken for
        what is to come."""
        keep = exp(-1 / self.NEWCOMERS)
        total = 0.0
        for came in self._came:
            total = total * keep + min(came, 2 * most + 2)
        return total * (1 - keep)

    def _turn(self, second: int) -> None:
        """Another second has begun. Newcomers of the last one are those who were not told to come."""
        booked = self._booked
        size = len(booked)
        passed = second - self._second
        if self.at > -inf:
            self._came.append(max(0.0, self._arrived - booked[self._second % size][3]))
            self._came.extend([0.0] * min(passed - 1, self._came.maxlen or 0))
            self._new_asked += max(0.0, self._asked - booked[self._second % size][0])
        for s in range(max(self._second, second - size), second):
            booked[s % size] = _nothing()
        self._second = second
        self._arrived = self._asked = 0
        self._cursors.clear()

    def __repr__(self) -> str:
        promised = sum(b[3] for b in self._booked)
        return (
            f"<Drain {self._tokens:,.0f} tokens in {self._waited:.1f} s, {self._ended:.0f} ends in "
            f"{self._exposed:,.0f} sequence-seconds, {self._new:.1f} new a second | {promised:,.0f} promised>"
        )


def _nothing() -> list[float]:
    """Promised of each resource, and to how many."""
    return [0.0, 0.0, 0.0, 0.0]
