"""What people write when they ask for a report."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from forebay.ledger.asked import Asked, Wrong, asked

BERLIN = ZoneInfo("Europe/Berlin")
NOW = datetime(2026, 11, 30, 11, 30, tzinfo=BERLIN).timestamp()


def ask(now: float = NOW, zone: str = "Europe/Berlin", **given: str | list[str]) -> Asked:
    return asked({k: v if isinstance(v, list) else [v] for k, v in given.items()}, now, zone)


def local(*when: int, zone: ZoneInfo = BERLIN) -> float:
    return datetime(*when, tzinfo=zone).timestamp()  # type: ignore[arg-type, misc] # no tzinfo among the numbers


def test_nothing_given_is_this_month_by_project() -> None:
    found = ask()
    assert (found.by, found.where, found.zone) == (("project",), (), "Europe/Berlin")
    assert (found.since, found.until) == (local(2026, 11, 1), local(2026, 12, 1))
    assert found.period == "November 2026, so far"


def test_dimensions_with_commas_and_again_each_once() -> None:
    found = ask(by=["department, Model", "end-user", "label:team", "department", "organization"])
    assert found.by == ("department", "model", "end_user", "label:team", "organisation")


@pytest.mark.parametrize(
    ("given", "since", "until", "period"),
    [
        ({"month": "2026-02"}, (2026, 2, 1), (2026, 3, 1), "February 2026"),
        ({"month": "2028-02"}, (2028, 2, 1), (2028, 3, 1), "February 2028"),
        ({"month": "last"}, (2026, 10, 1), (2026, 11, 1), "October 2026"),
        ({"month": "2025-12"}, (2025, 12, 1), (2026, 1, 1), "December 2025"),
        ({"month": ""}, (2026, 11, 1), (2026, 12, 1), "November 2026, so far"),
        ({"day": "this"}, (2026, 11, 30), (2026, 12, 1), "Monday, 30 November 2026, so far"),
        ({"day": "yesterday"}, (2026, 11, 29), (2026, 11, 30), "Sunday, 29 November 2026"),
        ({"day": "2028-02-29"}, (2028, 2, 29), (2028, 3, 1), "Tuesday, 29 February 2028"),
        ({"since": "2026-11-03", "until": "2026-11-10"}, (2026, 11, 3), (2026, 11, 10), None),
        ({"since": "2026-11-03T06:30", "until": "today"}, (2026, 11, 3, 6, 30), (2026, 11, 30), None),
        ({"since": "7d"}, (2026, 11, 23, 11, 30), (2026, 11, 30, 11, 30), None),
        ({"since": "yesterday"}, (2026, 11, 29), (2026, 11, 30, 11, 30), None),
        ({"until": "2026-11-20"}, (2026, 11, 1), (2026, 11, 20), "1 November 2026 to 20 November 2026"),
    ],
)
def test_periods(given: dict[str, str], since: tuple[int, ...], until: tuple[int, ...], period: str | None) -> None:
    found = ask(**given)
    assert (found.since, found.until) == (local(*since), local(*until))
    assert period is None or found.period == period


def test_a_time_with_an_offset_is_not_the_zone_s() -> None:
    assert ask(since="2026-11-03T00:00Z").since == local(2026, 11, 3, 1)


def test_days_are_as_long_as_they_are() -> None:
    """The clocks change on 29 March and 25 October."""
    assert [ask(day=day).until - ask(day=day).since for day in ("2026-03-29", "2026-10-25", "2026-10-26")] == [
        23 * 3600,
        25 * 3600,
        24 * 3600,
    ]


def test_today_is_the_zone_s() -> None:
    """At 23:30 in Berlin it is tomorrow in Shanghai."""
    late = local(2026, 11, 30, 23, 30)
    assert ask(late, day="today", zone="Asia/Shanghai").since == local(2026, 12, 1, zone=ZoneInfo("Asia/Shanghai"))
    assert asked({}, late, "Asia/Shanghai").period == "December 2026, so far"


def test_conditions_of_one_dimension_are_kept_beside_one_another() -> None:
    found = ask(where=["department=a=b", "department= research ", "key=", "label:team=x"])
    assert found.where == (("department", "a=b"), ("department", "research"), ("key", ""), ("label:team", "x"))
    assert ask(where=["how=", "class=low"]).where == (("how", ""), ("class", "low"))
    assert ask(day="2028-02-29").until - ask(day="2028-02-29").since == 86_400


@pytest.mark.parametrize(
    ("given", "field", "words"),
    [
        ({"by": "departmnt"}, "by", "did you mean department?"),
        ({"by": "label:"}, "by", "nothing is booked by 'label:'"),
        ({"by": "day,hour"}, "by", "only one of day, hour"),
        ({"by": "a\x1b[31m"}, "by", "'a�[31m'"),
        ({"by": "organisation,department,project,user,key,model,served,engine,tier"}, "by", "at most 8"),
        ({"where": "department"}, "where", "is written department=research"),
        ({"where": "day=2026-11-01"}, "where", "since and until"),
        ({"where": "how=Exact"}, "where", "how is one of exact, estimated, unpriced, cache, not 'Exact'"),
        ({"where": "class=high"}, "where", "class is one of vip, normal, low, not 'high'"),
        ({"month": "2026-13"}, "month", "there is no 2026-13"),
        ({"month": "1950-01"}, "month", "between the years 1970 and 2200"),
        ({"month": "november"}, "month", "'november'"),
        ({"day": "2026-02-29"}, "day", "there is no 2026-02-29"),
        ({"day": "29 February"}, "day", "is written 2026-11-30"),
        ({"since": "2026-02-29T12:00+01:00"}, "since", "there is no 2026-02-29T12:00+01:00"),
        ({"day": "today", "month": "this"}, "day", "beside month"),
        ({"day": "today", "since": "7d"}, "day", "beside since or until"),
        ({"since": "soon"}, "since", "a time ago like 7d"),
        ({"since": "2026-11-10", "until": "2026-11-10"}, "since", "is not before"),
        ({"since": "9999-12-31"}, "since", "between the years 1970 and 2200"),
        ({"since": ["7d", "8d"]}, "since", "more than once"),
        ({"zone": "Mars/Base"}, "zone", "Europe/Berlin"),
        ({"zone": "../../etc/passwd"}, "zone", "is named as in"),
        ({"group": "x"}, "group", "is not a parameter"),
    ],
)
def test_what_cannot_be_answered_names_its_field(given: dict[str, str | list[str]], field: str, words: str) -> None:
    with pytest.raises(Wrong) as e:
        ask(**given)
    assert e.value.field == field
    assert str(e.value).startswith(f"{field}: ")
    assert words in str(e.value)
