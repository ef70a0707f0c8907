"""The steps of a report: hours, days, weeks and months of a time zone."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from enum import StrEnum
from zoneinfo import ZoneInfo

from forebay.ledger.schema import HOUR


class Step(StrEnum):
    HOUR = "hour"
    DAY = "day"
    WEEK = "week"
    """From Monday."""
    MONTH = "month"


def edges(since: float, until: float, step: Step, zone: ZoneInfo) -> Iterator[float]:
    """Where steps end, after `since`; the last is `until`."""
    if step is Step.HOUR:
        # Hours go on through a change of the clocks; zones are off UTC by quarters of an hour.
        offset = datetime.fromtimestamp(since, zone).utcoffset() or timedelta()
        past = offset.total_seconds() % HOUR
        edge = (since + past) // HOUR * HOUR - past + HOUR
        while edge < until:
            yield edge
            edge += HOUR
    else:
        day = datetime.fromtimestamp(since, zone).date()
        while True:
            if step is Step.MONTH:
                day = (day.replace(day=1) + timedelta(days=32)).replace(day=1)
            elif step is Step.WEEK:
                day += timedelta(days=7 - day.weekday())
            else:
                day += timedelta(days=1)
            edge = datetime(day.year, day.month, day.day, tzinfo=zone).timestamp()
            if edge >= until:
                break
            if edge > since:
                yield edge
    yield until
