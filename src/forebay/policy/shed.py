"""When an engine's load is shed before it queues, and how far a class may fill it.

Two signals. The KV cache's predicted use: from `shed_at` on all but `vip` are refused, until it is under `resume_at`.
And the engine's own counters of preemptions and swaps: when one rises, the prediction was wrong and the engine is over
the line already, so the level multiplies at once, and falls by the second while nothing more is heard. The level lowers
every ceiling and both thresholds, so that what was wrong in the prediction is taken off it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from math import inf, isfinite
from typing import Final, NamedTuple

from forebay.policy.asks import Class
from forebay.policy.rules import ShedRules

KV_FULL: Final = "shed_kv"
PREEMPTING: Final = "shed_preempting"


def _ceilings() -> dict[Class, float]:
    return {Class.VIP: 0.97, Class.NORMAL: 0.92, Class.LOW: 0.75}


class Shed(NamedTuple):
    """One change of what is shed."""

    time: float
    level: float
    reason: str
    """Why, or the empty string where it ended."""


class Shedder:
    """One engine's. Mutable state: the level and when it was right, whether the KV cache is over the line, the last
    value of each counter, the history.

    `ceilings`: the share of the KV cache that the predicted peak may reach with an ask of a class, at level 0.
    """

    __slots__ = ("_at", "_ceilings", "_last", "history", "level", "over", "rose_at", "rules", "use")

    def __init__(self, rules: ShedRules, ceilings: Mapping[Class, float] | None = None) -> None:
        self.rules = rules
        self.level = 0.0
        self.over = False
        self.use = 0.0
        self.rose_at = -inf
        """When a counter last rose."""
        self.history: deque[Shed] = deque(maxlen=rules.history)
        self._ceilings = dict(ceilings) if ceilings is not None else _ceilings()
        self._at = -inf
        self._last: list[int | None] = [None, None]

    def on_use(self, use: float, now: float) -> None:
        """The predicted peak use of the KV cache, as a share of its capacity. One that is not finite is passed over."""
        self._fall(now)
        if isfinite(use):
            self.use = use
            self._judge(now)

    def on_report(self, preemptions: int | None, swapped: int | None, now: float) -> None:
        """The engine's counters of preempted (retracted) requests and of swapped blocks. None: not known, which says
        nothing. The first value, and one less than the last (the engine restarted), only set where to count from.
        However far a counter rises between two reports, it counts once."""
        self._fall(now)
        rose = False
        last = self._last
        for i, value in ((0, preemptions), (1, swapped)):
            if value is None or not 0 <= value < inf:
                continue
            before = last[i]
            rose = rose or (before is not None and value > before)
            last[i] = value
        if rose:
            rules = self.rules
            self.level = min(1.0, max(rules.first, self.level * rules.rise))
            self.rose_at = now
            self.history.append(Shed(now, self.level, PREEMPTING))
        self._judge(now)

    def refuses(self, cls: Class, anonymous: bool) -> str | None:
        """Why an ask of the class is to be refused at once; None: it may go or wait. `vip` always may, unless nobody
        knows whose it is."""
        if cls is Class.VIP and not anonymous:
            return None
        if self.over:
            return KV_FULL
        if self.level >= self.rules.normal_at or (cls is Class.LOW and self.level > 0):
            return PREEMPTING
        return None

    def ceiling(self, cls: Class) -> float:
        """The share of the KV cache that the predicted peak may reach with an ask of the class."""
        return self._ceilings[cls] * self.scale if self.level else self._ceilings[cls]

    def configure(self, rules: ShedRules, ceilings: Mapping[Class, float], now: float) -> None:
        """A reload: level and counters stay."""
        self.rules = rules
        self._ceilings = dict(ceilings)
        if rules.history != self.history.maxlen:
            self.history = deque(self.history, maxlen=rules.history)
        self._fall(now)
        self._judge(now)

    @property
    def reason(self) -> str:
        """Why it sheds; empty where it does not."""
        return KV_FULL if self.over else PREEMPTING if self.level > 0 else ""

    @property
    def scale(self) -> float:
        """What the level leaves of thresholds and ceilings."""
        return 1.0 - self.rules.depth * self.level

    def _fall(self, now: float) -> None:
        if self.level > 0 and now > self._at:
            self.level = max(0.0, self.level - self.rules.fall_per_s * (now - self._at))
            if self.level == 0 and not self.over:
                self.history.append(Shed(now, 0.0, ""))
        self._at = max(self._at, now)

    def _judge(self, now: float) -> None:
        rules = self.rules
        if self.over:
            if self.use < rules.resume_at * self.scale:
                self.over = False
                self.history.append(Shed(now, self.level, self.reason))
        elif self.use >= rules.shed_at * self.scale:
            self.over = True
            self.history.append(Shed(now, self.level, KV_FULL))

    def __repr__(self) -> str:
        line = (self.rules.resume_at if self.over else self.rules.shed_at) * self.scale
        why = f" {self.reason}" if self.reason else ""
        return f"<Shedder{why}, level {self.level:.2f}, KV {self.use:.0%} of {line:.0%}>"
