"""What is counted of every request: families of plain counters, read when asked."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from forebay.api.routes import Route
from forebay.config.models import Class, Metrics
from forebay.counters import Counter, Family, Histogram, counters, histograms
from forebay.errors import Outcome
from forebay.state.messages import FamilySnapshot

_TTFT_EDGES = (0.01, 0.025, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 20.0, 30.0, 60.0)
_ITL_EDGES = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0)
_TOTAL_EDGES = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0)


class Series:
    """The series of one (route, model, class), resolved once, and their part of a log line."""

    __slots__ = (
        "_labels",
        "_outcomes",
        "_requests",
        "_telemetry",
        "completion",
        "exact",
        "itl",
        "logged",
        "prompt",
        "total",
        "ttft",
    )

    def __init__(self, telemetry: Telemetry, route: str, path: bytes, model: str, class_: str) -> None:
        self._labels = (route, model, class_)
        self._telemetry = telemetry
        self._requests = telemetry.requests
        self._outcomes: dict[Outcome, Counter] = {}
        self.ttft: Histogram = telemetry.ttft.series(route, model, class_)
        self.itl: Histogram = telemetry.itl.series(route, model, class_)
        self.total: Histogram = telemetry.total.series(route, model, class_)
        self.prompt: Counter = telemetry.tokens.series(model, class_, "prompt")
        self.completion: Counter = telemetry.tokens.series(model, class_, "completion")
        self.exact: Counter = telemetry.settled.series(model, class_, "exact")
        self.logged = b'"method":"POST","path":"%b","model":%b,"class":"%b"' % (
            path,
            msgspec.json.encode(model),
            class_.encode(),
        )

    def ended(self, outcome: Outcome) -> None:
        """Count one request."""
        counter = self._outcomes.get(outcome)
        if counter is None:
            counter = self._outcomes[outcome] = self._requests.series(*self._labels, outcome.value)
        counter.value += 1

    def estimated(self, prompt: int, completion: int) -> None:
        """Count one request of which only these tokens are known, about."""
        _, model, class_ = self._labels
        telemetry = self._telemetry
        telemetry.settled.series(model, class_, "estimated").value += 1
        telemetry.tokens.series(model, class_, "prompt_estimated").value += prompt
        telemetry.tokens.series(model, class_, "completion_estimated").value += completion


class Telemetry:
    """Every family of a worker. Model labels are names from the catalogue, or "-" where none was understood."""

    def __init__(self, config: Metrics) -> None:
        labels = ("route", "model", "class")
        self.requests = counters("forebay_requests", "Requests ended, by how they ended.", *labels, "outcome")
        self.ttft = histograms(
            "forebay_ttft_seconds",
            "From the whole request to its first content, held ones included.",
            sorted({*_TTFT_EDGES, config.slo_ttft}),
            *labels,
        )
        self.itl = histograms(
            "forebay_inter_token_seconds",
            "Between two arrivals of content within a stream.",
            sorted({*_ITL_EDGES, config.slo_itl}),
            *labels,
        )
        self.total = histograms(
            "forebay_request_seconds", "From the whole request to the end of its answer.", _TOTAL_EDGES, *labels
        )
        self.tokens = counters(
            "forebay_tokens",
            "Tokens as engines report them; as estimated where an engine's last word was not waited for.",
            *labels[1:],
            "kind",
        )
        self.settled = counters(
            "forebay_settled", "Requests ended, by whether what they cost is known.", *labels[1:], "how"
        )
        self.upstream_errors = counters("forebay_upstream_errors", "Failed calls to engines.", "engine", "failure")
        self.retries = counters("forebay_retries", "Requests sent to another engine.", "engine")
        self.cancels = counters("forebay_cancels", "Clients that left or cancelled, by where the request was.", "state")
        self.failed_keys = counters("forebay_rejected_callers", "Requests refused for their key.", "code")
        self._series: dict[tuple[str, str, str], Series] = {}

    def series(self, route: Route, model: str, class_: Class) -> Series:
        key = (route.name, model, class_)
        found = self._series.get(key)
        if found is None:
            if len(self._series) >= 4096:
                self._series.clear()
            found = self._series[key] = Series(self, route.name, route.path, model, class_.value)
        return found

    def snapshot(self) -> Iterable[FamilySnapshot]:
        for family in (
            self.requests,
            self.tokens,
            self.settled,
            self.upstream_errors,
            self.retries,
            self.cancels,
            self.failed_keys,
        ):
            yield counter_snapshot(family)
        for timed in (self.ttft, self.itl, self.total):
            yield histogram_snapshot(timed)


def counter_snapshot(family: Family[Counter]) -> FamilySnapshot:
    values = tuple((labels, float(c.value)) for labels, c in family.items())
    return FamilySnapshot(family.name, family.help, "counter", family.labels, values=values)


def histogram_snapshot(family: Family[Histogram]) -> FamilySnapshot:
    rows = [(labels, tuple(h.counts), h.total) for labels, h in family.items()]
    edges = next((h.edges for _, h in family.items()), ())
    return FamilySnapshot(family.name, family.help, "histogram", family.labels, edges, histograms=tuple(rows))


def gauge(
    name: str, text: str, labels: tuple[str, ...], values: Iterable[tuple[tuple[str, ...], float]]
) -> FamilySnapshot:
    return FamilySnapshot(name, text, "gauge", labels, values=tuple(values))
