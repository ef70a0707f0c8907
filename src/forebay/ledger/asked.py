"""What is asked of the books as people and query strings write it: by what, of whom, from when to when.

Times are seconds since the Unix epoch; days and months are those of a time zone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from difflib import get_close_matches
from types import MappingProxyType
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from forebay.config.section import Class
from forebay.errors import shown
from forebay.ledger.entries import How

TIMES: Final = ("hour", "day", "week", "month")
LEVELS: Final = ("organisation", "department", "project", "user", "key")
DIMENSIONS: Final = (
    *LEVELS, "key_name", "model", "served", "engine", "tier", "class", "route", *TIMES, "end_user", "how", "outcome",
)  # fmt: skip
"""What rows may be of, beside `label:NAME`."""
KNOWN: Final = MappingProxyType(
    {"how": tuple(how.value for how in How), "class": tuple(class_.value for class_ in Class)}
)
"""Dimensions that have only these values, or none."""
LABEL: Final = "label:"
MOST_BY: Final = 8
"""Dimensions at once."""
PARAMETERS: Final = ("by", "where", "since", "until", "day", "month", "zone")
_UNITS: Final = {"m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_AGO: Final = re.compile(r"(\d{1,6})\s*([mhdw])")
_MONTH: Final = re.compile(r"(\d{4})-(\d{1,2})")
_DATE: Final = re.compile(r"\d{4}-\d{2}-\d{2}(T\d{2}(:\d{2}){0,2}([+-]\d{2}:\d{2}|Z)?)?$")
_FIRST, _LAST = datetime(1970, 1, 1, tzinfo=UTC).timestamp(), datetime(2200, 1, 1, tzinfo=UTC).timestamp()


class Wrong(Exception):
    """What was asked cannot be answered; `field` is the parameter's name."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


@dataclass(frozen=True, slots=True)
class Asked:
    by: tuple[str, ...]
    where: tuple[tuple[str, str], ...]
    """(dimension, value): several values of one dimension are each as good."""
    since: float
    until: float
    """Not included."""
    zone: str
    period: str
    """In words."""


def asked(given: Mapping[str, Sequence[str]], now: float, zone: str) -> Asked:
    """From what was given of PARAMETERS, each a list of texts; `zone` is what holds where none is given. Without
    `by`: by project. Without a time: this month. Raises Wrong."""
    for field in given:
        if field not in PARAMETERS:
            raise Wrong(shown(field), f"is not a parameter; there are {', '.join(PARAMETERS)}")
    by = tuple(
        dict.fromkeys(
            _dimension("by", word) for text in given.get("by", ()) for word in text.split(",") if word.strip()
        )
    )
    if len(by) > MOST_BY:
        raise Wrong("by", f"at most {MOST_BY} at once, not {len(by)}")
    if len(times := [name for name in by if name in TIMES]) > 1:
        raise Wrong("by", f"only one of {', '.join(times)} at once")
    where = tuple(dict.fromkeys(_condition(text) for text in given.get("where", ())))
    name = _one(given, "zone") or zone
    since, until, period = _period({f: _one(given, f) for f in ("since", "until", "day", "month")}, now, _zone(name))
    return Asked(by or ("project",), where, since, until, name, period)


def _one(given: Mapping[str, Sequence[str]], field: str) -> str | None:
    texts = given.get(field, ())
    if len(texts) > 1:
        raise Wrong(field, "is given more than once")
    return texts[0].strip() if texts else None


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise Wrong("zone", f"is named as in UTC, Europe/Berlin or Asia/Shanghai, not '{shown(name)}'") from None


def _dimension(field: str, text: str) -> str:
    word = text.strip()
    if word.startswith(LABEL) and len(word) > len(LABEL):
        return word
    found = word.lower().replace("-", "_").replace("organization", "organisation")
    if found in DIMENSIONS:
        return found
    near = get_close_matches(found, DIMENSIONS, n=1)
    advice = f"did you mean {near[0]}?" if near else f"there are {', '.join(DIMENSIONS)} and label:NAME"
    raise Wrong(field, f"nothing is booked by '{shown(word)}'; {advice}")


def _condition(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise Wrong("where", f"is written department=research, not '{shown(text)}'")
    dimension = _dimension("where", name)
    if dimension in TIMES:
        raise Wrong("where", f"a {dimension} is asked for with since and until, day or month")
    value = value.strip()
    if value and dimension in KNOWN and value not in KNOWN[dimension]:
        raise Wrong("where", f"{dimension} is one of {', '.join(KNOWN[dimension])}, not '{shown(value)}'")
    return dimension, value


def _period(given: Mapping[str, str | None], now: float, zone: tzinfo) -> tuple[float, float, str]:
    day, month, since, until = given["day"], given["month"], given["since"], given["until"]
    if day is not None and month is not None:
        raise Wrong("day", "is given beside month; leave one out")
    for field, whole in (("day", day), ("month", month)):
        if whole is not None and (since is not None or until is not None):
            raise Wrong(field, "is given beside since or until; leave one out")
    if day is not None:
        return _day(day, now, zone)
    if since is None and until is None:
        return _month(month or "this", now, zone)
    end = _moment("until", until, now, zone) if until is not None else now
    start = _moment("since", since, now, zone) if since is not None else _start_of_month(_local(end, zone)).timestamp()
    if start >= end:
        raise Wrong("since", f"{_words(start, zone)} is not before {_words(end, zone)}")
    return start, end, f"{_words(start, zone)} to {_words(end, zone)}"


def _day(text: str, now: float, zone: tzinfo) -> tuple[float, float, str]:
    today = _local(now, zone).replace(hour=0, minute=0, second=0, microsecond=0, fold=0)
    if text in ("", "this", "today"):
        start = today
    elif text == "yesterday":
        start = today - timedelta(days=1)
    else:
        try:
            start = datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=zone)
        except ValueError:
            raise _no_day("day", text, "is written 2026-11-30, today or yesterday") from None
    _bounded("day", start)
    end = start + timedelta(days=1)
    return start.timestamp(), end.timestamp(), start.strftime("%A, %-d %B %Y") + (", so far" if start == today else "")


def _month(text: str, now: float, zone: tzinfo) -> tuple[float, float, str]:
    this = _start_of_month(_local(now, zone))
    if text in ("", "this"):
        start = this
    elif text == "last":
        start = _start_of_month(this - timedelta(days=1))
    else:
        found = _MONTH.fullmatch(text)
        if found is None:
            raise Wrong("month", f"is written 2026-11, this or last, not '{shown(text)}'")
        if not 1 <= int(found[2]) <= 12:
            raise Wrong("month", f"there is no {text}")
        if not 1970 <= int(found[1]) < 2200:
            raise Wrong("month", "is between the years 1970 and 2200")
        start = datetime(int(found[1]), int(found[2]), 1, tzinfo=zone)
    end = _start_of_month(start + timedelta(days=32))
    return start.timestamp(), end.timestamp(), start.strftime("%B %Y") + (", so far" if start == this else "")


def _moment(field: str, text: str, now: float, zone: tzinfo) -> float:
    today = _local(now, zone).replace(hour=0, minute=0, second=0, microsecond=0, fold=0)
    if text == "now":
        return now
    if text in ("today", "yesterday"):
        return (today - timedelta(days=text == "yesterday")).timestamp()
    ago = _AGO.fullmatch(text)
    if ago is not None:
        return max(_FIRST, now - int(ago[1]) * _UNITS[ago[2]])
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise _no_day(
            field,
            text,
            "is a date or time like 2026-11-01 or 2026-11-01T12:00+08:00, a time ago like 7d or 12h, today, yesterday "
            "or now",
        ) from None
    return _bounded(field, found if found.tzinfo is not None else found.replace(tzinfo=zone))


def _no_day(field: str, text: str, form: str) -> Wrong:
    if _DATE.match(text):  # 29 February, say
        return Wrong(field, f"there is no {shown(text)}")
    return Wrong(field, f"{form}; not '{shown(text)}'")


def _bounded(field: str, when: datetime) -> float:
    try:
        seconds = when.timestamp()
    except (OverflowError, ValueError):
        seconds = -1.0
    if not _FIRST <= seconds <= _LAST:
        raise Wrong(field, "is between the years 1970 and 2200")
    return seconds


def _local(seconds: float, zone: tzinfo) -> datetime:
    return datetime.fromtimestamp(seconds, zone)


def _start_of_month(when: datetime) -> datetime:
    return when.replace(day=1, hour=0, minute=0, second=0, microsecond=0, fold=0)


def _words(seconds: float, zone: tzinfo) -> str:
    when = _local(seconds, zone)
    midnight = when.hour == when.minute == when.second == 0
    return when.strftime("%-d %B %Y") if midnight else when.strftime("%-d %B %Y %H:%M")
