"""What is usual, and where it leads: robust estimates of spending, from sums by day and by hour. Pure.

Forecast. Let x₁ … xₙ be what the last n complete days used, whole weeks where there is one. One day in ten at each end
(at least one, from five days on) is pulled in to the next value, so that a single wild day moves nothing: the
winsorized mean r, and the standard deviation s of what is left, are those of Dixon & Tukey (1968, Technometrics 10(1),
"Approximate Behavior of the Distribution of Winsorized t"). From two weeks on a day of weekday w is expected to use
r · f(w), where f(w) is the mean of its k values over r, drawn to 1 by one more value: (k·mean/r + 1) / (k + 1). It is
the seasonal index of classical decomposition (Hyndman & Athanasopoulos, Forecasting: Principles and Practice, 3rd ed.,
§3.4). With F the sum of f over the h days that are left, what will be used is normal about r·F with the variance
h·s² + F²·s²/n: the days' own, and that of r. The confidence is its probability to exceed what remains.

Anomaly. The hour is compared with the same hour of the same weekday, and the hours beside it, of the last weeks; before
two weeks are known, with the same hours of any day. It is an outlier above median + k·1.4826·MAD, the modified
z-score of Iglewicz & Hoaglin (1993, How to Detect and Handle Outliers, §3.3), where 1.4826·MAD is the standard
deviation of a normal sample (Rousseeuw & Croux 1993, JASA 88(424)).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from statistics import median
from typing import Final
from zoneinfo import ZoneInfo

LEAST_DAYS: Final = 3
WEEK: Final = 7
HOUR: Final = 3_600
LEAST_HOURS: Final = 6
"""Values that an hour must be compared with."""
BACK: Final = 28
"""Days of hours that are looked at."""
_NORMAL: Final = 1.4826
_MOST_CONFIDENT: Final = 0.99


@dataclass(frozen=True, slots=True)
class Forecast:
    """`rate` is a day's use; amounts are in the unit of the series."""

    rate: float
    exhausted: date | None
    """The day within the window on which nothing is left; None where it lasts."""
    total: float
    """Expected use of the whole window."""
    confidence: float
    """Probability that the window's use exceeds the limit: 0.01 to 0.99."""
    days: int
    """Complete days that it is drawn from."""
    weekdays: bool
    """True where weekdays are told apart."""


def forecast(series: Sequence[int], today: date, *, used: int, most: int, left: float, ends: date) -> Forecast | None:
    """Whether `most` lasts until the window ends with the day before `ends`.

    `series`: use of the complete days before `today`, oldest first, without gaps. `used`: of the window so far.
    `left`: share of today that is to come. None where less than 3 days are known.
    """
    if len(series) < LEAST_DAYS:
        return None
    n = len(series) if len(series) < WEEK else len(series) // WEEK * WEEK
    days = _winsorized([float(x) for x in series[-n:]])
    rate = sum(days) / n
    weekdays = n >= 2 * WEEK and rate > 0
    factors = _factors(days, today, rate) if weekdays else [1.0] * WEEK
    first = today - timedelta(days=n)
    rest = [x - rate * factors[(first + timedelta(days=i)).weekday()] for i, x in enumerate(days)]
    variance = sum(x * x for x in rest) / (n - 1)

    expected, share, horizon = float(used), 0.0, 0.0
    exhausted: date | None = None
    day = today
    while day < ends:
        part = left if day == today else 1.0
        factor = part * factors[day.weekday()]
        share += factor
        horizon += part
        expected += rate * factor
        if exhausted is None and expected >= most:
            exhausted = day
        day += timedelta(days=1)
    spread = math.sqrt(variance * (horizon + share * share / n))
    return Forecast(rate, exhausted, expected, _exceeds(expected - most, spread), n, weekdays)


def _winsorized(values: list[float]) -> list[float]:
    n = len(values)
    cut = max(1, n // 10) if n >= 5 else 0
    ordered = sorted(values)
    low, high = ordered[cut], ordered[n - 1 - cut]
    return [min(max(x, low), high) for x in values]


def _factors(days: Sequence[float], today: date, rate: float) -> list[float]:
    """By weekday, Monday first; their mean is 1."""
    factors = [1.0] * WEEK
    for back in range(1, WEEK + 1):
        same = days[len(days) - back :: -WEEK]
        k = len(same)
        factors[(today - timedelta(days=back)).weekday()] = (sum(same) / rate + 1.0) / (k + 1)
    return factors


def _exceeds(margin: float, spread: float) -> float:
    """Probability that a normal value of mean `margin` is over 0."""
    if spread <= 0:
        p = 1.0 if margin >= 0 else 0.0
    else:
        p = 0.5 * math.erfc(-margin / spread / math.sqrt(2.0))
    return min(max(p, 1.0 - _MOST_CONFIDENT), _MOST_CONFIDENT)


@dataclass(frozen=True, slots=True)
class Usual:
    """What an hour usually costs."""

    median: float
    deviation: float
    """1.4826 · MAD."""
    hours: int
    """How many it is drawn from."""
    weekday: bool
    """True: of the same weekday; else of all days."""

    def bound(self, deviations: float, least: float) -> float:
        """From here on an hour is an outlier: above the median by so many deviations, by half of it, and by `least`."""
        return self.median + max(deviations * self.deviation, 0.5 * self.median, least)


def usual(hours: Mapping[int, int], at: int, zone: ZoneInfo) -> Usual | None:
    """What the hour that begins at the Unix time `at` is compared with; None where too little is known.

    `hours`: what each earlier hour cost, by its beginning; one that is left out cost nothing. What came before the
    first of them is not known.
    """
    first = min((h for h in hours if h < at), default=at)
    first = max(first, at - BACK * 86_400)
    weekday = at - first >= 2 * WEEK * 86_400
    then = datetime.fromtimestamp(at, zone)
    values: list[int] = []
    for hour in range(at - HOUR, first - 1, -HOUR):
        if at - hour < 12 * HOUR:  # the hours just before may be part of what is looked for
            continue
        local = datetime.fromtimestamp(hour + HOUR, zone)
        beside = (
            local.hour - then.hour
        ) % 24  # of the hour that follows: 0, 1 and 2 are one before, the same, one after
        if beside > 2:
            continue
        if weekday and datetime.fromtimestamp(hour + (1 - beside) * HOUR, zone).weekday() != then.weekday():
            continue
        values.append(hours.get(hour, 0))
    if len(values) < LEAST_HOURS:
        return None
    middle = median(values)
    return Usual(float(middle), _NORMAL * float(median(abs(x - middle) for x in values)), len(values), weekday)
