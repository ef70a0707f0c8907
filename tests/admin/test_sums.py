from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.admin import sums
from forebay.admin.sums import State, Store, Sums, rebucket
from forebay.state.messages import FamilySnapshot

Values = dict[tuple[str, ...], float]


def counter(name: str = "requests", **values: float) -> FamilySnapshot:
    return FamilySnapshot(name, "", "counter", ("outcome",), (), tuple(((k,), v) for k, v in values.items()))


def gauge(value: float) -> FamilySnapshot:
    return FamilySnapshot("in_flight", "", "gauge", (), (), (((), value),))


def histogram(edges: tuple[float, ...], counts: tuple[int, ...], total: float) -> FamilySnapshot:
    return FamilySnapshot("ttft", "", "histogram", (), edges, (), (((), counts, total),))


def values(summed: Sums, name: str, *living: str) -> Values:
    return next((dict(f.values) for f in summed.total(living) if f.name == name), {})


def test_workers_are_added_up() -> None:
    summed = Sums(State("s"))
    summed.report("worker-0", "a", (counter(ok=3), gauge(2), histogram((1.0,), (1, 2), 7.0)))
    summed.report("worker-1", "b", (counter(ok=4, failed=1), gauge(5), histogram((1.0,), (3, 4), 9.0)))
    assert values(summed, "requests", "worker-0", "worker-1") == {("ok",): 7, ("failed",): 1}
    assert values(summed, "in_flight", "worker-0", "worker-1") == {(): 7}
    assert values(summed, "in_flight", "worker-1") == {(): 5}
    assert values(summed, "in_flight") == {}
    (ttft,) = [f for f in summed.total(()) if f.name == "ttft"]
    assert ttft.histograms == (((), (4, 6), 16.0),)


def test_a_report_replaces_the_last_one_of_the_same_life() -> None:
    summed = Sums(State("s"))
    for n in (1, 5, 9):
        summed.report("worker-0", "a", (counter(ok=n),))
        assert values(summed, "requests") == {("ok",): n}


@given(st.lists(st.lists(st.integers(0, 50), min_size=1, max_size=5), min_size=1, max_size=6), st.booleans())
def test_counters_never_go_down_however_often_lives_end(lives: list[list[int]], restart_admin: bool) -> None:
    summed = Sums(State("s"))
    shown = booked = 0.0
    for life, steps in enumerate(lives):
        counted = 0
        for step in steps:
            counted += step
            summed.report("worker-0", f"life-{life}", (counter(ok=counted), histogram((1.0,), (counted, 0), counted)))
            if restart_admin:
                path = Path(f"/dev/shm/forebay-sums-{id(summed)}")
                try:
                    Store(path).save(summed.take_state())
                    summed = Sums(Store(path).load("s"))
                finally:
                    path.unlink()
            now = values(summed, "requests", "worker-0")[("ok",)]
            assert now >= shown
            assert now == booked + counted
            (ttft,) = [f for f in summed.total(()) if f.name == "ttft"]
            assert ttft.histograms[0][1] == (now, 0)
            shown = now
        booked += counted


def test_gauges_of_a_life_that_ended_are_forgotten() -> None:
    summed = Sums(State("s"))
    summed.report("worker-0", "a", (gauge(7),))
    summed.report("worker-0", "b", (gauge(1),))
    assert values(summed, "in_flight", "worker-0") == {(): 1}


def test_other_edges_keep_count_and_sum() -> None:
    summed = Sums(State("s"))
    summed.report("worker-0", "a", (histogram((1.0, 2.0), (5, 3, 2), 20.0),))
    summed.report("worker-0", "b", (histogram((1.5, 2.0), (1, 0, 0), 1.0),))
    (ttft,) = summed.total(())
    assert ttft.edges == (1.5, 2.0)
    assert ttft.histograms == (((), (6, 3, 2), 21.0),)


edges = st.lists(st.integers(0, 20).map(float), unique=True, max_size=6).map(sorted)


@given(st.data(), edges, edges)
def test_rebucket_never_shows_an_observation_too_low(data: st.DataObject, old: list[float], new: list[float]) -> None:
    counts = data.draw(st.lists(st.integers(0, 9), min_size=len(old) + 1, max_size=len(old) + 1))
    out = rebucket(counts, old, new)
    assert sum(out) == sum(counts)
    for i, edge in enumerate(new):
        certainly_below = sum(c for c, upper in zip(counts, old, strict=False) if upper <= edge)
        assert sum(out[: i + 1]) == certainly_below
    assert rebucket(counts, old, old) == counts


def test_series_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sums, "MAX_SERIES", 3)
    summed = Sums(State("s"))
    for life in range(10):
        summed.report("worker-0", str(life), (counter(**{f"outcome-{life}": 1}),))
    found = values(summed, "requests")
    assert len(found) == 4
    assert sum(found.values()) == 10
    assert found[("_other",)] == 7


def test_the_state_of_another_supervisor_is_not_taken_over(tmp_path: Path) -> None:
    store = Store(tmp_path / "metrics.json")
    assert store.load("s") == State("s")
    summed = Sums(State("s"))
    summed.report("worker-0", "a", (counter(ok=3),))
    assert summed.changed
    store.save(summed.take_state())
    assert not summed.changed
    assert store.path.stat().st_mode & 0o777 == 0o600
    assert values(Sums(store.load("s")), "requests") == {("ok",): 3}
    assert store.load("other") == State("other")
    store.path.write_bytes(b"{broken")
    assert store.load("s") == State("s")


def test_a_report_that_says_the_same_changes_nothing() -> None:
    summed = Sums(State("s"))
    summed.report("worker-0", "a", (counter(ok=3),))
    summed.take_state()
    summed.report("worker-0", "a", (counter(ok=3),))
    assert not summed.changed
