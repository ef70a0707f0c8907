"""The sum of all processes' metrics in the exposition formats of Prometheus."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator
from itertools import accumulate

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from forebay import __version__
from forebay.state.messages import FamilySnapshot


class _Collected(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families


def exposition(families: Iterable[FamilySnapshot], accept: str) -> tuple[bytes, str]:
    """(body, content type) in the format that the Accept header prefers."""
    encode, content_type = choose_encoder(accept)
    build = InfoMetricFamily("forebay_build", "What runs here.")
    build.add_metric([], {"version": __version__, "python": platform.python_version()})
    return encode(_Collected([build, *map(_metric, families)])), content_type


def gauge(name: str, text: str, values: Iterable[tuple[tuple[str, ...], float]], *labels: str) -> FamilySnapshot:
    return FamilySnapshot(name, text, "gauge", labels, (), tuple(values))


def _metric(family: FamilySnapshot) -> Metric:
    if family.kind == "histogram":
        histogram = HistogramMetricFamily(family.name, family.help, labels=family.labels)
        edges = [*map(floatToGoString, family.edges), "+Inf"]
        for labels, counts, total in family.histograms:
            buckets = list(zip(edges, accumulate(counts), strict=True))
            histogram.add_metric(labels, buckets=buckets, sum_value=total)
        return histogram
    plain: CounterMetricFamily | GaugeMetricFamily
    if family.kind == "counter":
        plain = CounterMetricFamily(family.name, family.help, labels=family.labels)
    else:
        plain = GaugeMetricFamily(family.name, family.help, labels=family.labels)
    for labels, value in family.values:
        plain.add_metric(labels, value)
    return plain
