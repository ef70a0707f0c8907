"""What became of the requests of a recorded run, live and before modelled engines, by class."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil

from forebay.config.models import Class
from forebay.plan.replay import decisions
from forebay.policy.recording import Admitted, Asked, Call, End, FirstToken, Offer, Waits

ARRIVED = "arrived"
AT_ONCE = "admitted at once"
WAITED = "admitted after waiting"
LEFT = "left while waiting"


@dataclass(slots=True)
class Outcomes:
    """A `policy.recording.Sink`. Mutable state: counts, times to first token, those under way."""

    open: bool = True
    counts: dict[Class, Counter[str]] = field(default_factory=lambda: {cls: Counter() for cls in Class})
    ttfts: dict[Class, list[float]] = field(default_factory=lambda: {cls: [] for cls in Class})
    """Seconds from the arrival, of streamed answers."""
    _asks: dict[int, Asked] = field(default_factory=dict)
    _waiting: set[int] = field(default_factory=set)

    def write(self, call: Call) -> None:
        if isinstance(call, Offer):
            self._asks[call.ask.key] = call.ask
            self.counts[call.ask.cls][ARRIVED] += 1
        elif isinstance(call, FirstToken):
            if (ask := self._asks.get(call.key)) is not None:
                self.ttfts[ask.cls].append(call.at - ask.arrival)
        elif isinstance(call, End):
            ask = self._asks.pop(call.key, None)
            if ask is not None and call.key in self._waiting:
                self._waiting.discard(call.key)
                self.counts[ask.cls][LEFT] += 1
        for key, decision in decisions(call):
            ask = self._asks.get(key)
            if ask is None:
                continue
            if isinstance(decision, Waits):
                self._waiting.add(key)
                continue
            if isinstance(decision, Admitted):
                what = WAITED if key in self._waiting else AT_ONCE
            else:
                what = f"refused, {decision.reason}"
            self._waiting.discard(key)
            self.counts[ask.cls][what] += 1


def table(columns: Sequence[Outcomes]) -> list[tuple[str, ...]]:
    """Rows of text: class, what, and a number for each column."""
    rows: list[tuple[str, ...]] = []
    for cls in Class:
        found = [column.counts[cls] for column in columns]
        if not any(counts[ARRIVED] for counts in found):
            continue
        refusals = sorted({what for counts in found for what in counts if what.startswith("refused")})
        left = [LEFT] if any(counts[LEFT] for counts in found) else []
        rows += [
            (cls.value, what, *(f"{counts[what]:,}" for counts in found))
            for what in (ARRIVED, AT_ONCE, WAITED, *refusals, *left)
        ]
        rows += [
            (cls.value, name, *(_quantile(column.ttfts[cls], share) for column in columns))
            for name, share in (("TTFT P50, s", 0.5), ("TTFT P99, s", 0.99))
        ]
    return rows


def _quantile(values: Sequence[float], share: float) -> str:
    """The least that so many are at most."""
    if not values:
        return "–"
    ordered = sorted(values)
    return f"{ordered[max(0, ceil(len(ordered) * share) - 1)]:.2f}"
