"""Days and months of time zones: no overlap, no gap, whatever the clocks do there."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from forebay.ledger.windows import Calendar, Span, iso


def at(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


ZONES = [
    "UTC",
    "Europe/Berlin",
    "Asia/Shanghai",
    "Asia/Kolkata",
    "America/New_York",
    "America/St_Johns",  # clocks were changed at 00:01
    "America/Havana",  # at 00:00 and 01:00
    "America/Sao_Paulo",  # at 00:00
    "Africa/Cairo",
    "Australia/Lord_Howe",  # by half an hour
    "Pacific/Apia",  # had no 30 December 2011
    "Pacific/Kiritimati",
    "Antarctica/Troll",
]
times = st.floats(at("1991-01-01T00:00Z"), at("2045-01-01T00:00Z"), allow_nan=False)


@example(zone="UTC", span=Span.DAY, when=1_183_420_799.9999995)
@given(zone=st.sampled_from(ZONES), span=st.sampled_from(Span), when=times)
def test_windows_follow_each_other_without_a_gap(zone: str, span: Span, when: float) -> None:
    calendar = Calendar(span, zone)
    first, until = calendar.window(when)
    assert first <= when < until
    assert calendar.window(until)[0] == until
    before = calendar.window(first - 0.001)
    assert before[1] == first
    for inside in (first, until - 0.001):
        assert Calendar(span, zone).window(inside) == (first, until)


@pytest.mark.parametrize(
    ("zone", "span", "when", "first", "until"),
    [
        ("UTC", Span.DAY, "2026-11-30T11:00Z", "2026-11-30T00:00Z", "2026-12-01T00:00Z"),
        ("Asia/Shanghai", Span.DAY, "2026-11-30T16:00Z", "2026-11-30T16:00Z", "2026-12-01T16:00Z"),
        ("Asia/Shanghai", Span.MONTH, "2026-11-30T15:59:59Z", "2026-10-31T16:00Z", "2026-11-30T16:00Z"),
        ("Europe/Berlin", Span.DAY, "2026-03-29T12:00Z", "2026-03-28T23:00Z", "2026-03-29T22:00Z"),  # 23 hours
        ("Europe/Berlin", Span.DAY, "2026-10-25T12:00Z", "2026-10-24T22:00Z", "2026-10-25T23:00Z"),  # 25
        ("Europe/Berlin", Span.MONTH, "2026-03-30T00:00Z", "2026-02-28T23:00Z", "2026-03-31T22:00Z"),
        ("UTC", Span.DAY, "2028-02-29T23:59:59Z", "2028-02-29T00:00Z", "2028-03-01T00:00Z"),
        ("UTC", Span.MONTH, "2028-02-29T12:00Z", "2028-02-01T00:00Z", "2028-03-01T00:00Z"),
        ("UTC", Span.MONTH, "2026-12-31T23:59Z", "2026-12-01T00:00Z", "2027-01-01T00:00Z"),
        # Midnight was skipped: the day began at 01:00.
        ("America/Sao_Paulo", Span.DAY, "2018-11-04T12:00Z", "2018-11-04T03:00Z", "2018-11-05T02:00Z"),
        # It came twice, an hour apart: the day begins with the first.
        ("America/Havana", Span.DAY, "2025-11-02T04:30Z", "2025-11-02T04:00Z", "2025-11-03T05:00Z"),
        ("America/Havana", Span.DAY, "2025-11-02T05:30Z", "2025-11-02T04:00Z", "2025-11-03T05:00Z"),
        # Back from 00:01 to 23:01: the hour of the day before that comes again is the new day's.
        ("America/St_Johns", Span.DAY, "2006-10-29T02:45Z", "2006-10-29T02:30Z", "2006-10-30T03:30Z"),
        # No 30 December: the 29th is followed by the 31st.
        ("Pacific/Apia", Span.DAY, "2011-12-30T09:59Z", "2011-12-29T10:00Z", "2011-12-30T10:00Z"),
        ("Pacific/Apia", Span.DAY, "2011-12-30T10:00Z", "2011-12-30T10:00Z", "2011-12-31T10:00Z"),
    ],
)
def test_windows(zone: str, span: Span, when: str, first: str, until: str) -> None:
    found = Calendar(span, zone).window(at(when))
    assert [datetime.fromtimestamp(x, UTC).isoformat() for x in found] == [
        datetime.fromtimestamp(at(x), UTC).isoformat() for x in (first, until)
    ]


@pytest.mark.parametrize("when", [-1e18, -1.0, 0.0, 1e12, 1e300, float("inf")])
@pytest.mark.parametrize("zone", ["Pacific/Kiritimati", "America/Adak"])
@pytest.mark.parametrize("span", Span)
def test_a_clock_gone_mad_raises_nothing(when: float, zone: str, span: Span) -> None:
    first, until = Calendar(span, zone).window(when)
    assert first < until
    assert iso(when).endswith("Z")


def test_an_unknown_zone_is_an_error() -> None:
    with pytest.raises(KeyError):
        Calendar(Span.DAY, "Mars/Olympus")
