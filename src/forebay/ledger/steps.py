"""The steps of a report: hours, days, weeks and months of a time zone."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime, timedelta
from enum import StrEnum
from typing import Final
from zoneinfo import ZoneInfo

_HOUR: Final = 3_600


class Step(StrEnum):
    HOUR = "hour"
    DAY = "day"
    WEEK = "week"
    """From Monday."""
    MONTH = "month"


def edges(since: float, until: float, step: Step, zone: ZoneInfo) -> Iterator[float]:
    """Where steps end, after `since`; the last is `until`. Steps begin at full hours and midnights of the zone's
    clocks: where those change by half an hour, or skip a day, a step is as much shorter."""
    edge = since
    if step is Step.HOUR:
        while (edge := _hour_after(edge, zone)) < until:
            yield edge
    else:
        day = datetime.fromtimestamp(since, zone).date()
        last = since
        while (edge := _midnight(day := _after(day, step), zone)) < until:
            if edge > last:
                yield edge
                last = edge
    yield until


def _hour_after(moment: float, zone: ZoneInfo) -> float:
    offset = datetime.fromtimestamp(moment, zone).utcoffset() or timedelta()
    past = offset.total_seconds() % _HOUR
    return (moment + past) // _HOUR * _HOUR - past + _HOUR


def _after(day: date, step: Step) -> date:
    """Where the step after that of `day` begins."""
    match step:
        case Step.MONTH:
            return (day.replace(day=1) + timedelta(days=32)).replace(day=1)
        case Step.WEEK:
            return day + timedelta(days=7 - day.weekday())
        case _:
            return day + timedelta(days=1)


def _midnight(day: date, zone: ZoneInfo) -> float:
    """The first moment of a day: where its midnight is left out, what comes instead."""
    return datetime(day.year, day.month, day.day, tzinfo=zone).timestamp()
