from __future__ import annotations

from datetime import date, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.ledger.trends import HOUR, forecast, usual

MONDAY = date(2026, 11, 30)
UTC = ZoneInfo("UTC")


def test_a_steady_rate_says_the_day() -> None:
    """100 a day and 350 left: the fourth day from today, whose whole is to come."""
    found = forecast([100] * 10, MONDAY, used=650, most=1_000, left=1.0, ends=date(2026, 12, 10))
    assert found is not None
    assert (found.rate, found.days, found.weekdays) == (100, 7, False)
    assert found.exhausted == date(2026, 12, 3)
    assert found.total == 1_650
    assert found.confidence == 0.99


def test_weekends_that_rest_are_told_apart_after_two_weeks() -> None:
    """500 from Monday to Friday each, nothing at weekends. On a Friday evening 900 are left: over the weekend they
    last, and Tuesday is the last day, where a rate that knew no weekdays would say Sunday."""
    weeks = [500, 500, 500, 500, 500, 0, 0] * 4
    friday = date(2026, 12, 4)
    series = weeks[4:] + weeks[:4]
    found = forecast(series, friday, used=9_100, most=10_000, left=0.0, ends=date(2026, 12, 15))
    assert found is not None
    assert found.weekdays
    assert found.exhausted == date(2026, 12, 8)
    two = forecast(series[-7:], friday, used=9_100, most=10_000, left=0.0, ends=date(2026, 12, 15))
    assert two is not None
    assert (two.weekdays, two.exhausted) == (False, date(2026, 12, 7))


def test_one_wild_day_moves_nothing() -> None:
    calm = forecast([100] * 28, MONDAY, used=0, most=2_000, left=1.0, ends=date(2026, 12, 20))
    wild = forecast([100] * 20 + [90_000] + [100] * 7, MONDAY, used=0, most=2_000, left=1.0, ends=date(2026, 12, 20))
    assert calm == wild


def test_a_job_of_one_day_a_week_is_not_taken_for_a_wild_day() -> None:
    found = forecast([700, 0, 0, 0, 0, 0, 0] * 4, MONDAY, used=0, most=1_250, left=1.0, ends=date(2026, 12, 20))
    assert found is not None
    assert found.rate == 100
    assert found.exhausted == date(2026, 12, 7)  # the second Monday from now


@pytest.mark.parametrize("days", [[], [5], [5, 5]])
def test_too_little_is_known(days: list[int]) -> None:
    assert forecast(days, MONDAY, used=5, most=6, left=1.0, ends=date(2026, 12, 31)) is None


def test_nothing_used_lasts_for_ever() -> None:
    found = forecast([0] * 14, MONDAY, used=0, most=1, left=1.0, ends=date(2026, 12, 31))
    assert found is not None
    assert (found.exhausted, found.confidence) == (None, pytest.approx(0.01))


def test_the_confidence_is_less_where_days_differ() -> None:
    def confidence(days: list[int]) -> float:
        found = forecast(days, MONDAY, used=0, most=950, left=1.0, ends=date(2026, 12, 10))
        assert found is not None
        assert found.total == 1_000
        return found.confidence

    assert confidence([100] * 7) == 0.99
    assert 0.5 < confidence([60, 140, 80, 120, 60, 140, 100]) < 0.75


@given(
    days=st.lists(st.integers(0, 10**15), min_size=3, max_size=40),
    today=st.dates(date(2024, 1, 1), date(2030, 1, 1)),
    left=st.floats(0, 1),
    used=st.integers(0, 10**15),
    most=st.integers(1, 10**16),
    span=st.integers(1, 31),
)
def test_any_series_has_a_sound_forecast(
    days: list[int], today: date, left: float, used: int, most: int, span: int
) -> None:
    ends = date.fromordinal(today.toordinal() + span)
    found = forecast(days, today, used=used, most=most, left=left, ends=ends)
    assert found is not None
    assert 0 <= found.confidence <= 0.99
    assert min(days) * 0.999 <= found.rate <= max(days) * 1.001
    assert found.exhausted is None or today <= found.exhausted < ends
    assert (found.exhausted is None) == (found.total < most)


# --- hours -----------------------------------------------------------------------------------------------------------


def at(*when: int, zone: ZoneInfo = UTC) -> int:
    return int(datetime(*when, tzinfo=zone).timestamp())  # type: ignore[misc,arg-type]


def test_an_hour_is_compared_with_its_own_weekday() -> None:
    """Mondays at ten cost 1,000, all else 10."""
    now = at(2026, 11, 30, 10)
    hours = {now - i * HOUR: 10 for i in range(1, 28 * 24 + 1)}
    for week in range(1, 5):
        for beside in (-1, 0, 1):
            hours[now - week * 7 * 24 * HOUR + beside * HOUR] = 1_000
    found = usual(hours, now, UTC)
    assert found is not None
    assert (found.median, found.deviation, found.weekday) == (1_000, 0, True)
    assert found.bound(6, 5) == 1_500
    assert found.bound(6, 800) == 1_800


def test_before_two_weeks_all_days_count() -> None:
    now = at(2026, 11, 30, 10)
    found = usual({now - i * HOUR: 10 for i in range(1, 5 * 24 + 1)}, now, UTC)
    assert found is not None
    assert (found.median, found.weekday, found.hours) == (
        10,
        False,
        15 - 1,
    )  # the hour after, of five days ago, is there


def test_a_day_is_too_little() -> None:
    now = at(2026, 11, 30, 10)
    assert usual({now - i * HOUR: 10 for i in range(1, 25)}, now, UTC) is None
    assert usual({}, now, UTC) is None


def test_the_hours_just_before_do_not_make_the_flood_usual() -> None:
    now = at(2026, 11, 30, 10)
    hours = {now - i * HOUR: 10 for i in range(1, 10 * 24)} | {now - i * HOUR: 90_000 for i in range(3)}
    found = usual(hours, now, UTC)
    assert found is not None
    assert found.median == 10


def test_hours_are_those_of_the_zone_over_a_change_of_clocks() -> None:
    """Berlin left summer time on 25 October 2026: nine o'clock was 07:00 UTC, and is 08:00 UTC. At eight and at ten it
    costs 500: by the clock of Berlin two of three hours, by that of UTC one."""
    berlin = ZoneInfo("Europe/Berlin")
    now = at(2026, 11, 2, 9, zone=berlin)
    hours = {now - i * HOUR: 0 for i in range(1, 28 * 24 + 1)}
    for day in range(5, 32):
        hours |= {at(2026, 10, day, 8, zone=berlin): 500, at(2026, 10, day, 10, zone=berlin): 500}
    found = usual(hours, now, berlin)
    assert found is not None
    assert (found.median, found.weekday) == (500, True)
