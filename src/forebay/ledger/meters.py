"""What one limit has counted: rates, requests at once, budgets of calendar windows and of sliding ones.

`n` is the number of a hold; a meter that was emptied or began a new window since hold `n` owes it nothing back. Numbers
and not times, so that a clock that jumps cannot refund into the wrong window.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, Final

from forebay.ledger.rules import Hold, Measure, Over, Rule, Unpriced, Window
from forebay.ledger.windows import Calendar, Span

SLOTS: Final = {Span.DAY: (24, 3_600.0), Span.MONTH: (30, 86_400.0)}
"""A sliding window's parts, and the seconds of one."""
_TOLERANCE: Final = 1e-6
"""Requests or tokens by which draining in floating point may be off."""
_SPREAD: Final = 60.0


class Meter:
    """One measure of one rule, for one scope. `scope` is what the rule counts together, for people."""

    __slots__ = (
        "elsewhere",
        "limit",
        "measure",
        "needs_price",
        "predicted",
        "refuses",
        "rule",
        "scope",
        "words",
        "words_in",
        "words_reset",
    )

    def __init__(self, rule: Rule, measure: Measure, scope: str) -> None:
        self.measure = measure
        self.scope = scope
        self.elsewhere = 0
        """What others than this process have used of it."""
        self.words = b""
        """What `limit_words` says of its limit; likewise how many seconds it last said until the reset, in words."""
        self.words_in = 0
        self.words_reset = b""
        self.configure(rule)

    def configure(self, rule: Rule) -> None:
        limit = rule.limit(self.measure)
        assert limit is not None
        self.rule = rule
        self.limit = limit
        self.words = b""
        self.refuses = rule.over is Over.REFUSE
        self.predicted = rule.hold is Hold.PREDICTED
        self.needs_price = self.refuses and rule.unpriced is Unpriced.REFUSE

    def fits(self, rule: Rule) -> bool:
        """Whether it can go on counting by a changed rule."""
        return True

    def idle(self, now: float, wall: float) -> bool:
        """Whether forgetting it would change nothing."""
        raise NotImplementedError

    def _said(self, used: float) -> str:
        return f"<{type(self).__name__} {self.rule.name} {self.scope}: {used:g} of {self.limit} {self.measure}>"


class Concurrent(Meter):
    __slots__ = ("used",)

    def __init__(self, rule: Rule, measure: Measure, scope: str) -> None:
        super().__init__(rule, measure, scope)
        self.used = 0

    def take(self, used: float) -> None:
        """Go on with what another kind of meter had counted."""
        self.used = int(used)

    def __repr__(self) -> str:
        return self._said(self.used)

    def idle(self, now: float, wall: float) -> bool:
        return self.used == 0


class Rate(Meter):
    """A bucket of a minute's worth that drains evenly (a token bucket, told by what is used and not by what is left).

    Over any time T of monotonic seconds no more than `limit + T * limit / 60` passes. `used` may exceed the limit: an
    answer was longer than what was held for it.
    """

    __slots__ = ("at", "ceiling", "promised", "rate", "since", "used")

    def __init__(self, rule: Rule, measure: Measure, scope: str, now: float) -> None:
        super().__init__(rule, measure, scope)
        self.used = 0.0
        self.at = now
        self.since = 0
        """The first hold after it was last found empty."""
        self.promised = now
        """Until when its room is promised to those who were told to come again."""

    def take(self, used: float) -> None:
        """Go on with what another kind of meter had counted."""
        self.used = float(used)

    def __repr__(self) -> str:
        return self._said(self.used)

    def configure(self, rule: Rule) -> None:
        super().configure(rule)
        self.rate = self.limit / 60
        self.ceiling = self.limit + _TOLERANCE

    def advance(self, now: float, n: int) -> None:
        left = self.used - (now - self.at) * self.rate
        self.at = now
        if left > 0:
            self.used = left
        else:
            self.used = 0.0
            self.since = n

    def change(self, n: int, amount: float) -> None:
        """Hold `n` used `amount` more than it took, or less. What has drained is not given back besides: of a bucket
        that was empty since then nothing is."""
        if amount > 0:
            self.used += amount
        elif self.since <= n:
            self.used = self.used + amount if self.used + amount > 0 else 0.0

    def resets(self, now: float) -> float:
        """Seconds until it is empty."""
        return max(0.0, self.used / self.rate - (now - self.at))

    def wait(self, amount: float) -> float:
        """Seconds from `at` until there is room for `amount`, which is at most the limit."""
        return max(0.0, (self.used + amount - self.ceiling) / self.rate)

    def turn(self, now: float, wait: float, amount: float) -> float:
        """Seconds after which one who was refused may come again: behind those who were told so before, since all at
        once would be refused again. Where that is over a minute it begins anew."""
        at = now + wait
        if self.promised > now:
            at = max(at, self.promised + amount / self.rate)
            if at > now + max(wait, _SPREAD):
                at = now + wait
        self.promised = at
        return at - now

    def idle(self, now: float, wall: float) -> bool:
        return self.resets(now) <= 0


class Budget(Meter):
    """Tokens or money of calendar windows. Where a clock that had jumped ahead is put right, the window before is taken
    up again, and what was used meanwhile counts in it."""

    __slots__ = ("before", "calendar", "since", "start", "until", "used")

    def __init__(self, rule: Rule, measure: Measure, scope: str, calendar: Calendar, wall: float) -> None:
        super().__init__(rule, measure, scope)
        self.used = 0
        self.calendar = calendar
        self.since = 0
        """The first hold of the window."""
        self.start, self.until = calendar.window(wall)
        self.before: tuple[float, float, int, int, int] | None = None
        """The window before: start, until, used, elsewhere, since."""

    def take(self, used: float) -> None:
        """Go on with what another kind of meter had counted."""
        self.used = int(used)

    def __repr__(self) -> str:
        return self._said(self.used)

    def fits(self, rule: Rule) -> bool:
        return rule.window is Window.CALENDAR and rule.zone == self.calendar.zone.key

    def roll(self, wall: float, n: int) -> None:
        """`wall` is not in the window; `n` is the next hold."""
        before = self.before
        if wall < self.start:
            if before is not None and before[0] <= wall < before[1]:
                used = self.used
                self.start, self.until, self.used, self.elsewhere, self.since = before
                self.used += used
            else:
                self.start, self.until = self.calendar.window(wall)
            self.before = None
            return
        self.before = (self.start, self.until, self.used, self.elsewhere, self.since)
        self.start, self.until = self.calendar.window(wall)
        self.used = self.elsewhere = 0
        self.since = n

    def late(self, n: int, amount: int) -> None:
        """`amount` more was used by hold `n` of an earlier window."""
        if self.before is not None and self.before[4] <= n:
            start, until, used, elsewhere, since = self.before
            self.before = (start, until, used + amount, elsewhere, since)

    def resets(self, wall: float) -> float:
        """When its use is forgotten: Unix time."""
        return self.until

    def room_at(self, amount: int, wall: float) -> float:
        """When there will be room for `amount`, if nothing else is used: Unix time."""
        return self.until

    def idle(self, now: float, wall: float) -> bool:
        return (self.used == 0 and self.elsewhere == 0) or wall >= self.until


class Sliding(Meter):
    """Tokens or money of the last 24 hours or 30 days, in hours or days: what is older leaves by whole ones, so never
    more than the limit passes in any such time, and as much as a part of it less."""

    __slots__ = ("_older", "_opened", "_parts", "_seconds", "since", "start", "told", "until", "used")

    def __init__(self, rule: Rule, measure: Measure, scope: str, span: Span, wall: float) -> None:
        super().__init__(rule, measure, scope)
        self.used = 0
        self._parts, self._seconds = SLOTS[span]
        self._older: deque[list[Any]] = deque()
        """Parts that are over, the oldest first: when it began, amount, its first hold."""
        self._opened = 0
        """`used` when the part under way began."""
        self.since = 0
        """Its first hold."""
        self.start = wall // self._seconds * self._seconds
        self.until = self.start + self._seconds
        self.told = 0.0
        """When `elsewhere` was last said: Unix time. It is forgotten when it is older than the window."""

    def take(self, used: float) -> None:
        """Go on with what another kind of meter had counted."""
        self.used = int(used)

    def __repr__(self) -> str:
        return self._said(self.used)

    def fits(self, rule: Rule) -> bool:
        return rule.window is Window.SLIDING

    def roll(self, wall: float, n: int) -> None:
        if wall < self.start:  # the clock was put back: where by much, all that is known was used just now
            if wall >= self.start - self._seconds:
                return
            if self._older:
                self.since = self._older[0][2]
                self._older.clear()
            self._opened = 0
            self.start = wall // self._seconds * self._seconds
            self.until = self.start + self._seconds
            return
        amount = self.used - self._opened
        if amount:
            self._older.append([self.start, amount, self.since])
        self.start = wall // self._seconds * self._seconds
        self.until = self.start + self._seconds
        self.since = n
        gone = self.start - self._parts * self._seconds
        while self._older and self._older[0][0] < gone:
            self.used -= self._older.popleft()[1]
        if gone > self.told:
            self.elsewhere = 0
        self._opened = self.used

    def parts(self) -> list[tuple[float, int]]:
        """When each began, and what was used in it; the oldest first."""
        return [*((start, used) for start, used, _ in self._older), (self.start, self.used - self._opened)]

    def put(self, parts: Iterable[tuple[float, int]]) -> None:
        """What `parts` told of an earlier life, before the first hold of this one."""
        for start, used in parts:
            if start >= self.start:
                self.used += used
            elif start >= self.start - self._parts * self._seconds:
                self._older.append([start, used, 0])
                self.used += used
                self._opened += used

    def late(self, n: int, amount: int) -> None:
        for part in reversed(self._older):
            if part[2] <= n:
                part[1] += amount
                self.used += amount
                self._opened += amount
                return

    def resets(self, wall: float) -> float:
        return self.start + (self._parts + 1) * self._seconds

    def room_at(self, amount: int, wall: float) -> float:
        over = self.used + self.elsewhere + amount - self.limit
        for start, used, _ in self._older:
            over -= used
            if over <= 0:
                return float(start + (self._parts + 1) * self._seconds)
        return self.resets(wall)

    def idle(self, now: float, wall: float) -> bool:
        return self.used == 0 and self.elsewhere == 0


AnyMeter = Concurrent | Rate | Budget | Sliding


def meter(rule: Rule, measure: Measure, scope: str, calendar: Calendar | None, now: float, wall: float) -> AnyMeter:
    if measure is Measure.CONCURRENT:
        return Concurrent(rule, measure, scope)
    if measure in (Measure.REQUESTS_MINUTE, Measure.TOKENS_MINUTE):
        return Rate(rule, measure, scope, now)
    if rule.window is Window.SLIDING:
        return Sliding(rule, measure, scope, span(measure), wall)
    assert calendar is not None
    return Budget(rule, measure, scope, calendar, wall)


def span(measure: Measure) -> Span:
    return Span.DAY if measure in (Measure.TOKENS_DAY, Measure.MONEY_DAY) else Span.MONTH
