from __future__ import annotations

from math import nan
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.policy.asks import Class
from forebay.policy.rules import ShedRules
from forebay.policy.shed import Shedder

VIP, NORMAL, LOW = Class.VIP, Class.NORMAL, Class.LOW


def shedder(**rules: Any) -> Shedder:
    return Shedder(ShedRules(**rules))


def refused(s: Shedder) -> list[str]:
    return [cls.value for cls in Class if s.refuses(cls, False)]


def test_all_but_vip_are_shed_from_85_percent_until_under_80() -> None:
    s = shedder()
    seen = []
    for i, use in enumerate([0.84, 0.85, 0.81, 0.80, 0.79, 0.84]):
        s.on_use(use, float(i))
        seen.append(refused(s))
    assert seen == [[], ["normal", "low"], ["normal", "low"], ["normal", "low"], [], []]
    assert [(h.time, h.reason) for h in s.history] == [(1.0, "shed_kv"), (4.0, "")]


def test_anonymous_is_shed_whatever_its_class() -> None:
    s = shedder()
    assert s.refuses(VIP, True) is None
    s.on_use(0.9, 0.0)
    assert s.refuses(VIP, True) == "shed_kv"
    assert s.refuses(VIP, False) is None
    assert repr(s) == "<Shedder shed_kv, level 0.00, KV 90% of 80%>"


def test_a_rise_of_a_counter_multiplies_the_level_at_once_and_it_falls_slowly() -> None:
    s = shedder()
    s.on_report(100, None, 0.0)
    assert (s.level, refused(s)) == (0.0, [])
    s.on_report(101, None, 0.25)
    assert (s.level, refused(s)) == (0.25, ["low"])
    s.on_report(5_000_000, None, 0.25)
    assert (s.level, refused(s)) == (0.5, ["normal", "low"])
    s.on_report(5_000_001, 3, 0.25)
    s.on_report(5_000_002, 4, 0.25)
    assert s.level == 1.0
    assert s.reason == "shed_preempting"
    s.on_report(5_000_002, 4, 10.25)
    assert s.level == pytest.approx(0.8)
    s.on_report(5_000_002, 4, 60.0)
    assert (s.level, s.reason, refused(s)) == (0.0, "", [])
    assert [h.level for h in s.history] == [0.25, 0.5, 1.0, 1.0, 0.0]


def test_the_level_lowers_every_ceiling_and_the_line_and_keeps_their_order() -> None:
    s = shedder()
    full = [s.ceiling(cls) for cls in Class]
    assert full == sorted(full, reverse=True)
    s.on_use(0.7, 0.0)
    s.on_report(0, None, 0.0)
    for n in range(1, 4):
        s.on_report(n, None, 0.0)
    assert [s.ceiling(cls) for cls in Class] == pytest.approx([0.7 * c for c in full])
    assert s.over, "0.7 is over 0.85 × 0.7"
    s.on_use(0.55, 0.0)
    assert not s.over


def test_counters_that_are_missing_reset_or_absurd_say_nothing() -> None:
    s = shedder()
    for value in (None, 50, None, 50, 3, None, -7, 3):
        s.on_report(value, None, 0.0)
        s.on_report(None, value, 0.0)
    assert s.level == 0.0
    s.on_report(None, 4, 1.0)
    assert s.level == 0.25, "after the reset it counts from there"


def test_without_any_report_the_level_still_falls() -> None:
    s = shedder()
    s.on_report(0, 0, 0.0)
    s.on_report(1, 0, 0.0)
    s.on_use(0.1, 100.0)
    assert s.level == 0.0


def test_a_clock_that_goes_back_changes_nothing() -> None:
    s = shedder()
    s.on_report(0, 0, 10.0)
    s.on_report(1, 0, 10.0)
    s.on_report(1, 0, 5.0)
    s.on_report(1, 0, 10.0)
    assert s.level == 0.25
    s.on_use(nan, 10.0)
    assert s.use == 0.0


@given(
    st.lists(
        st.tuples(
            st.none() | st.integers(-5, 50),
            st.none() | st.integers(-5, 50),
            st.floats(0, 2),
            st.floats(0, 20),
        ),
        max_size=80,
    )
)
def test_the_level_keeps_its_bounds_and_vip_its_way(reports: list[Any]) -> None:
    s = shedder(history=10)
    now = 0.0
    for preemptions, swapped, use, passed in reports:
        before = s.level
        now += passed
        s.on_use(use, now)
        assert before - 0.02 * passed - 1e-9 <= s.level <= before, "slowly"
        s.on_report(preemptions, swapped, now)
        assert 0 <= s.level <= 1
        assert s.refuses(VIP, False) is None
        assert s.over or use < 0.85 * (1 - 0.3 * s.level)
        assert not s.over or use >= 0.8 * (1 - 0.3 * s.level)
        assert bool(s.refuses(NORMAL, False)) == bool(s.refuses(VIP, True)) <= bool(s.refuses(LOW, False))
        assert s.ceiling(VIP) > s.ceiling(NORMAL) > s.ceiling(LOW) > 0
    assert len(s.history) <= 10


def test_a_reload_keeps_the_level_and_judges_anew() -> None:
    s = shedder()
    s.on_use(0.7, 0.0)
    s.on_report(0, 0, 0.0)
    s.on_report(1, 0, 0.0)
    s.configure(ShedRules(shed_at=0.6, resume_at=0.5, history=1), {VIP: 0.9, NORMAL: 0.8, LOW: 0.1}, 0.0)
    assert (s.level, s.over, s.history.maxlen) == (0.25, True, 1)
    assert s.ceiling(LOW) == pytest.approx(0.1 * (1 - 0.3 * 0.25))


# --- rules ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rules", "field"),
    [
        ({"resume_at": 0.9}, "resume_at"),
        ({"shed_at": 1.1}, "shed_at"),
        ({"first": 0.0}, "first"),
        ({"normal_at": 2.0}, "normal_at"),
        ({"rise": 1.0}, "rise"),
        ({"fall_per_s": 0.0}, "fall_per_s"),
        ({"depth": 1.0}, "depth"),
        ({"history": 0}, "history"),
    ],
)
def test_shed_rules_that_contradict_themselves_are_refused_by_name(rules: dict[str, Any], field: str) -> None:
    with pytest.raises(ValueError, match=field):
        ShedRules(**rules)
