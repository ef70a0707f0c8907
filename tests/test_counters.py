from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.counters import OVERFLOW, Counter, Family, Histogram, counters, histograms


def test_a_counter_counts() -> None:
    counter = Counter()
    assert counter.value == 0
    counter.add()
    counter.add(41)
    assert counter.value == 42
    counter.add(-2)  # as a gauge
    assert counter.value == 40
    assert repr(counter) == "<Counter 40>"


def test_a_counter_does_not_wrap() -> None:
    counter = Counter()
    counter.add(2**64)
    counter.add()
    assert counter.value == 2**64 + 1


@pytest.mark.parametrize(
    ("x", "bucket"),
    [
        (-math.inf, 0), (-1, 0), (0, 0), (0.1, 0),  # an edge belongs to the bucket below it, as `le` says
        (math.nextafter(0.1, 1), 1), (0.5, 1),
        (math.nextafter(0.5, 1), 2), (2, 2),
        (math.nextafter(2, 3), 3), (1e9, 3), (math.inf, 3),
    ],
)  # fmt: skip
def test_an_observation_falls_into_one_bucket(x: float, bucket: int) -> None:
    histogram = Histogram((0.1, 0.5, 2))
    histogram.observe(x)
    assert histogram.counts == [int(i == bucket) for i in range(4)]
    assert histogram.total == x


def test_a_histogram_adds_up() -> None:
    histogram = Histogram([1, 2])
    for x in (0.5, 1, 1.5, 2, 2.5):
        histogram.observe(x)
    assert histogram.counts == [2, 2, 1]
    assert histogram.total == 7.5
    assert histogram.edges == (1, 2)
    assert repr(histogram) == "<Histogram n=5 sum=7.5>"


def test_a_histogram_without_edges_has_the_one_bucket_for_all() -> None:
    histogram = Histogram([])
    histogram.observe(3)
    assert histogram.counts == [1]


@given(st.lists(st.floats(-1e6, 1e6), unique=True, max_size=8).map(sorted), st.lists(st.floats(-1e7, 1e7), max_size=30))
def test_cumulated_counts_are_prometheus_le(edges: list[float], xs: list[float]) -> None:
    histogram = Histogram(edges)
    for x in xs:
        histogram.observe(x)
    for i, edge in enumerate(edges):
        assert sum(histogram.counts[: i + 1]) == sum(x <= edge for x in xs)
    assert sum(histogram.counts) == len(xs)


@pytest.mark.parametrize("edges", [(1, 1), (2, 1), (1, math.inf), (-math.inf, 1), (math.nan,), (1, math.nan)])
def test_edges_must_be_finite_and_rise(edges: Sequence[float]) -> None:
    with pytest.raises(ValueError, match="histogram edges must be finite and rise"):
        Histogram(edges)


def test_a_family_makes_each_series_once() -> None:
    family = counters("requests_total", "Requests.", "route", "outcome")
    first = family.series("chat", "ok")
    first.add(3)
    assert family.series("chat", "ok") is first
    assert family.series("ok", "chat") is not first
    assert [(labels, series.value) for labels, series in family.items()] == [(("chat", "ok"), 3), (("ok", "chat"), 0)]
    assert (family.name, family.help, family.labels) == ("requests_total", "Requests.", ("route", "outcome"))
    assert repr(family) == "<Family requests_total 2 series>"


def test_histograms_of_a_family_share_their_edges_and_nothing_else() -> None:
    family = histograms("ttft_seconds", "TTFT.", (0.1, 1), "model")
    family.series("a").observe(0.5)
    assert family.series("a").counts == [0, 1, 0]
    assert family.series("b").counts == [0, 0, 0]
    assert family.series("b").edges == (0.1, 1)


def test_a_family_without_labels_has_one_series() -> None:
    family = counters("bytes_total", "Bytes.")
    family.series().add(5)
    assert [(labels, s.value) for labels, s in family.items()] == [((), 5)]


@pytest.mark.parametrize("values", [(), ("a",), ("a", "b", "c")])
def test_the_wrong_number_of_label_values_is_refused(values: tuple[str, ...]) -> None:
    family = counters("x_total", "X.", "route", "model")
    with pytest.raises(ValueError, match="x_total has labels"):
        family.series(*values)
    assert list(family.items()) == []


def test_what_is_beyond_the_bound_folds_into_one_series() -> None:
    family = Family("x_total", "X.", ("model", "class"), Counter, bound=2)
    a, b = family.series("a", "low"), family.series("b", "low")
    other = family.series("c", "low")
    assert family.series("d", "vip") is other
    assert family.series("c", "low") is other
    assert (family.series("a", "low"), family.series("b", "low")) == (a, b)
    for i in range(1000):
        family.series(f"m{i}", "low").add()
    assert other.value == 1000
    assert [labels for labels, _ in family.items()] == [("a", "low"), ("b", "low"), (OVERFLOW, OVERFLOW)]


def test_beyond_the_bound_the_number_of_label_values_still_counts() -> None:
    family = Family("x_total", "X.", ("model",), Counter, bound=1)
    family.series("a")
    with pytest.raises(ValueError, match="x_total has labels"):
        family.series("b", "c")


def test_the_bound_stands_unless_told_otherwise() -> None:
    family = counters("x_total", "X.", "model")
    for i in range(5000):
        family.series(str(i)).add()
    assert len(list(family.items())) == 4097
    assert family.series(OVERFLOW).value == 5000 - 4096
