from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from forebay.plan.tune.frontier import frontier, knee

POINTS = st.lists(st.tuples(*[st.integers(0, 6)] * 3), max_size=40)


@given(POINTS)
def test_nothing_on_it_is_beaten_and_everything_else_is(points: list[tuple[int, int, int]]) -> None:
    best = frontier(points, lambda p: p)

    def beats(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
        return a != b and all(x <= y for x, y in zip(a, b, strict=True))

    assert not any(beats(a, b) for a in points for b in best)
    assert all(p in best or any(beats(b, p) for b in best) for p in points)
    assert len(set(best)) == len(best)
    assert [p[0] for p in best] == sorted(p[0] for p in best)


def test_what_was_not_measured_is_not_on_it() -> None:
    assert frontier([(math.nan, 1.0), (2.0, 2.0)], lambda p: p) == [(2.0, 2.0)]


def test_the_knee_is_where_more_throughput_begins_to_cost() -> None:
    points = [(1.0, 10.0), (1.1, 100.0), (1.3, 400.0), (1.7, 1000.0), (8.0, 1200.0), (40.0, 1300.0)]
    assert knee(points) == 3


def test_a_straight_line_or_two_points_have_none() -> None:
    assert knee([(1.0, 1.0), (2.0, 2.0), (4.0, 4.0)]) is None
    assert knee([(1.0, 1.0), (2.0, 5.0)]) is None
