"""What is counted of caches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from forebay.cache.messages import Kind
from forebay.counters import Counter, counters, histograms
from forebay.gateway.telemetry import counter_snapshot, gauge, histogram_snapshot
from forebay.ledger.tokens import Tokens
from forebay.state.messages import FamilySnapshot

if TYPE_CHECKING:
    from forebay.gateway.caching import Caching

_EDGES = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0)


class CacheTelemetry:
    def __init__(self) -> None:
        self._requests = counters("forebay_cache_requests", "Requests by what caches had for them.", "model", "result")
        self._bypasses = counters("forebay_cache_bypasses", "Requests that were not looked for, by the reason.", "why")
        self.seconds = histograms(
            "forebay_cache_hit_seconds", "From the whole request to the answer that was known.", _EDGES, "result"
        )
        self.kept = counters("forebay_cache_answers", "Answers of engines: kept, or why not.", "result")
        self.background = counters(
            "forebay_cache_background", "Requests to engines that no client waits for, by what they are for.", "why"
        )
        self._background_nano = counters(
            "forebay_cache_background_nano", "Their cost, in nano-units of the ledger's currency.", "why"
        )
        self._background_unpriced = counters("forebay_cache_background_unpriced", "Those that have no price.", "why")
        self.feedback = counters("forebay_cache_feedback", "What callers said of answers they were given.", "said")
        self._tokens = counters("forebay_cache_saved_tokens", "Tokens of answers that were known.", "model", "kind")
        self._money = counters(
            "forebay_cache_saved_nano", "Their cost, in nano-units of the ledger's currency.", "model"
        )
        self._time = counters("forebay_cache_saved_milliseconds", "That engines took for them.", "model")
        self._followers = counters("forebay_cache_followers", "Requests that joined another's flight.")
        self.followers: Counter = self._followers.series()
        self.helper_seconds = 0.0
        self._known: dict[tuple[str, Kind], Counter] = {}
        self._misses: dict[str, Counter] = {}

    def asked(self, model: str, kind: Kind) -> None:
        found = self._known.get((model, kind))
        if found is None:
            if len(self._known) >= 4096:
                self._known.clear()
            found = self._known[model, kind] = self._requests.series(model, kind.value)
        found.value += 1

    def missed(self, model: str) -> None:
        found = self._misses.get(model)
        if found is None:
            if len(self._misses) >= 4096:
                self._misses.clear()
            found = self._misses[model] = self._requests.series(model, Kind.MISS.value)
        found.value += 1

    def bypassed(self, model: str, why: str) -> None:
        self.asked(model, Kind.BYPASS)
        self._bypasses.series(why).value += 1

    def hit(self, model: str, kind: Kind, seconds: float) -> None:
        self.asked(model, kind)
        self.seconds.series(kind.value).observe(seconds)

    def saved(self, model: str, tokens: Tokens, money: int, seconds: float) -> None:
        self._tokens.series(model, "prompt").value += tokens.prompt
        self._tokens.series(model, "completion").value += tokens.completion
        if money:
            self._money.series(model).value += money
        self._time.series(model).value += round(1000 * seconds)

    def spent(self, why: str, cost: int | None) -> None:
        """On a request that no client waits for; None: it has no price."""
        if cost is None:
            self._background_unpriced.series(why).value += 1
        elif cost:
            self._background_nano.series(why).value += cost

    def snapshot(self, caching: Caching) -> Iterator[FamilySnapshot]:
        caching.shelf.flush()
        for family in (
            self._requests,
            self._bypasses,
            self.kept,
            self.background,
            self._background_nano,
            self._background_unpriced,
            self.feedback,
            self._tokens,
            self._money,
            self._time,
            self._followers,
        ):
            yield counter_snapshot(family)
        yield histogram_snapshot(self.seconds)
        memory, client = caching.memory, caching.client
        evicted = ((), float(memory.evicted))
        yield FamilySnapshot(
            "forebay_cache_evicted",
            "Answers that left a worker's memory for want of room.",
            "counter",
            (),
            values=(evicted,),
        )
        yield gauge("forebay_cache_bytes", "Answers in a worker's memory.", (), [((), float(memory.bytes))])
        yield gauge("forebay_cache_entries", "The same, by number.", (), [((), float(len(memory)))])
        yield gauge("forebay_cache_flights", "Engine calls that may be shared.", (), [((), len(caching.flights))])
        if client is not None:
            yield counter_snapshot(client.asked)
            yield counter_snapshot(client.unsent)
            yield gauge(
                "forebay_cache_helper_up", "1 while the helper process is there.", (), [((), float(client.connected))]
            )
            spent = ((), self.helper_seconds)
            yield FamilySnapshot(
                "forebay_cache_helper_seconds",
                "That the helper process took for look-ups.",
                "counter",
                (),
                values=(spent,),
            )
