"""What the engines looked like over time, sampled, in bounded memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

GAUGES: Final = ("running", "waiting", "kv_mean", "kv_low", "kv_high", "kv_wasted")
"""As they stood at the end of each engine's last step, or run of steps, before the sample. Requests over all engines;
KV cache use (0 … 1) of the mean, the emptiest and the fullest engine; the share of held KV slots that hold no token, a
mean of those engines that have curves of their own."""
COUNTERS: Final = (
    "arrived", "finished", "preemptions", "prefill_tokens", "decode_tokens", "prefix_queries", "prefix_hits",
    "busy_seconds",
)  # fmt: skip
"""What was added since the sample before; prefix_queries and prefix_hits are tokens."""
EACH: Final = ("running", "waiting", "kv")
"""What is kept of each engine."""


class Counted(Protocol):
    """The counters of an engine that a series reads."""

    @property
    def preemptions(self) -> int: ...
    @property
    def prefill_tokens(self) -> int: ...
    @property
    def decode_tokens(self) -> int: ...
    @property
    def prefix_queries(self) -> int: ...
    @property
    def prefix_hits(self) -> int: ...
    @property
    def busy_seconds(self) -> float: ...


class Sampled(Protocol):
    """What a series reads of an engine."""

    @property
    def running(self) -> int: ...
    @property
    def waiting(self) -> int: ...
    @property
    def kv_usage(self) -> float: ...
    @property
    def kv_wasted(self) -> float: ...
    @property
    def stats(self) -> Counted: ...


class Series:
    """At most `bound` samples: where there are more, each two become one and the interval doubles (gauges are averaged,
    counters added). The first `each` engines have curves of their own."""

    __slots__ = ("_bound", "_last", "each", "interval", "next", "times", "values")

    def __init__(self, engines: int, interval: float, *, bound: int = 2_000, each: int = 32) -> None:
        if bound < 2 or bound % 2:
            raise ValueError(f"bound must be an even number of samples, not {bound}")
        if not interval > 0:
            raise ValueError(f"interval must be more than 0 seconds, not {interval}")
        self.interval = interval
        self.next = interval
        """When the next sample is due."""
        self.times: list[float] = []
        self.values: dict[str, list[float]] = {name: [] for name in (*GAUGES, *COUNTERS)}
        self.each: list[dict[str, list[float]]] = [{name: [] for name in EACH} for _ in range(min(engines, each))]
        self._bound = bound
        self._last: dict[str, float] = dict.fromkeys(COUNTERS, 0.0)

    def sample(self, now: float, engines: Sequence[Sampled], arrived: int, finished: int) -> None:
        """Take the state at `now`, to which every engine has been advanced, and set `next`. `arrived` and `finished`
        count requests since the begin."""
        running = waiting = 0
        kv_sum, kv_low, kv_high, wasted = 0.0, 1.0, 0.0, 0.0
        preemptions = prefill = decode = queries = hits = 0
        busy = 0.0
        each = self.each
        for i, engine in enumerate(engines):
            r, w, kv, stats = engine.running, engine.waiting, engine.kv_usage, engine.stats
            running += r
            waiting += w
            kv_sum += kv
            if kv < kv_low:
                kv_low = kv
            if kv > kv_high:
                kv_high = kv
            preemptions += stats.preemptions
            prefill += stats.prefill_tokens
            decode += stats.decode_tokens
            queries += stats.prefix_queries
            hits += stats.prefix_hits
            busy += stats.busy_seconds
            if i < len(each):
                own = each[i]
                own["running"].append(r)
                own["waiting"].append(w)
                own["kv"].append(kv)
                wasted += engine.kv_wasted
        self.times.append(now)
        gauges = (running, waiting, kv_sum / len(engines), kv_low, kv_high, wasted / max(1, len(each)))
        for name, gauge in zip(GAUGES, gauges, strict=True):
            self.values[name].append(gauge)
        totals = (arrived, finished, preemptions, prefill, decode, queries, hits, busy)
        for name, total in zip(COUNTERS, totals, strict=True):
            self.values[name].append(total - self._last[name])
            self._last[name] = total
        if len(self.times) == self._bound:
            self._halve()
        self.next = now + self.interval

    def _halve(self) -> None:
        self.interval *= 2
        self.times = self.times[1::2]
        for name in GAUGES:
            self.values[name] = _averaged(self.values[name])
        for name in COUNTERS:
            found = self.values[name]
            self.values[name] = [a + b for a, b in zip(found[::2], found[1::2], strict=True)]
        for own in self.each:
            for name in EACH:
                own[name] = _averaged(own[name])

    def as_dict(self) -> dict[str, Any]:
        return {"interval": self.interval, "time": self.times, **self.values, "engines": self.each}

    def __repr__(self) -> str:
        return f"<Series {len(self.times)} samples, every {self.interval:g} s>"


def _averaged(found: list[float]) -> list[float]:
    return [(a + b) / 2 for a, b in zip(found[::2], found[1::2], strict=True)]
