"""Alerts in plain English: (title, text), with the numbers and what to do. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Final
from zoneinfo import ZoneInfo

from forebay.config.alerts import Every
from forebay.errors import shown
from forebay.ledger.money import NANO, rounded
from forebay.ledger.trends import Forecast, Usual

if TYPE_CHECKING:
    from forebay.ledger.alerts import Burst, Quota, Trouble, UnpricedUse

_CENT: Final = NANO // 100
Said = tuple[str, str]


def scope(level: str, names: Sequence[str], id_: str) -> str:
    """`project acme / chatbot`, `key ci (acme / chatbot)`: levels that were not given are left out."""
    path = [shown(name) for name in names if name]
    match level:
        case "all":
            return "everybody together"
        case "key":
            name, above = (path[-1] if path else shown(id_)), " / ".join(path[:-1])
            return f"key {name}" + (f" ({above})" if above else "")
        case "end_user":
            above = " / ".join(path)
            return f"end user {shown(id_)}" + (f" ({above})" if above else "")
        case _:
            return f"{level} {' / '.join(path)}" if path else f"no {level}"


def money(nanos: float, currency: str) -> str:
    """To the cent, half to even; less than ten cents to the nano-unit's first digits."""
    whole = round(nanos)
    if abs(whole) >= 10 * _CENT or whole == 0:
        cents = rounded(whole, _CENT)
        sign = "-" if cents < 0 else ""
        return f"{sign}{abs(cents) // 100:,}.{abs(cents) % 100:02d} {currency}"
    return (
        f"{whole / NANO:.3g} {currency}"
        if abs(whole) >= 100_000
        else f"{whole / NANO:.9f}".rstrip("0") + f" {currency}"
    )


def amount(value: float, unit: str, currency: str) -> str:
    return money(value, currency) if unit == "money" else f"{round(value):,} tokens"


def percent(part: int, whole: int) -> str:
    """Rounded down, so that 100 % is said only where it is so."""
    return f"{part * 100 // whole if whole else 100:,} %"


def moment(at: float, zone: str) -> str:
    local = datetime.fromtimestamp(at, ZoneInfo(zone))
    return f"{local:%H:%M} on {_date(local.date())} ({zone})"


def _date(day: date) -> str:
    return f"{day:%A} {day.day} {day:%B}"


def lasting(seconds: float) -> str:
    minutes = max(0, round(seconds / 60))
    if minutes < 1:
        return f"{max(0, round(seconds))} s"
    if minutes < 120:
        return f"{minutes} min"
    if minutes < 48 * 60:
        return f"{minutes // 60} h" + (f" {minutes % 60} min" if minutes % 60 else "")
    return f"{minutes // 1_440} days"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _kind(quota: Quota) -> str:
    what = "budget" if quota.unit == "money" else "token quota"
    return f"{'monthly' if quota.window.kind is Every.MONTH else 'daily'} {what}"


def _of(quota: Quota) -> str:
    only = f", which counts only {', '.join(map(shown, quota.models[:5]))}" if quota.models else ""
    return f"{_kind(quota)} ('{shown(quota.limit)}'{only})"


def quota(quota: Quota, currency: str, now: float, share: float) -> Said:
    who, unit = str(quota.scope), quota.unit
    used, most = amount(quota.used, unit, currency), amount(quota.most, unit, currency)
    window = quota.window
    fresh = f"It begins anew at {moment(window.until, window.zone)}, in {lasting(window.until - now)}."
    if quota.sliding:
        fresh = f"It counts the last {'30 days' if window.kind is Every.MONTH else '24 hours'}."
    if quota.used >= quota.most:
        then = "Requests beyond it are refused (429 insufficient_quota)." if quota.refuses else "It refuses nothing."
        return (
            f"{_capital(_kind(quota))} used up: {who}",
            f"{_capital(who)} has used {used} of {most}: the {_of(quota)} is used up. {then} {fresh}",
        )
    left = amount(quota.most - quota.used, unit, currency)
    if quota.reached(share):
        return (
            f"{_capital(_kind(quota))} used up: {who}",
            f"{_capital(who)} has used {used} of {most} of the {_of(quota)}. {left} are left, less than the "
            f"{amount(quota.each, unit, currency)} that a request has used on average: others than small ones are "
            f"refused (429 insufficient_quota). {fresh}",
        )
    return (
        f"{_capital(_kind(quota))} {percent(quota.used, quota.most)} used: {who}",
        f"{_capital(who)} has used {used} of {most}, {percent(quota.used, quota.most)} of the {_of(quota)}; "
        f"{left} are left. The alert is set to {share * 100:g} %. {fresh}",
    )


def budget(quota: Quota, found: Forecast, currency: str, today: date, ends: date) -> Said:
    assert found.exhausted is not None
    who, unit, day = str(quota.scope), quota.unit, found.exhausted
    away = (day - today).days
    when = ("today", "tomorrow")[away] if away < 2 else f"on {day:%A}"
    dated = f"{when}, {_date(day)}," if away < 2 else f"{when} {day.day} {day:%B}"
    early = (ends - day).days - 1
    before = f"{early} day{'s' * (early != 1)} before the month ends" if early > 0 else "the month's last day"
    by = "with weekdays told apart" if found.weekdays else "all weekdays alike"
    return (
        f"{_capital(_kind(quota))} will be exhausted {when} at this rate: {who}",
        f"{_capital(who)} has used {amount(quota.used, unit, currency)} of {amount(quota.most, unit, currency)} of the "
        f"{_of(quota)}. It will be exhausted {dated} at this rate: {before}. The rate is "
        f"{amount(found.rate, unit, currency)} a day, from the last {found.days} days ({by}); "
        f"{amount(found.total, unit, currency)} are expected by the month's end, and the limit is exceeded with a "
        f"probability of {found.confidence * 100:.0f} %.",
    )


def burst(burst: Burst, most: int) -> Said:
    who = str(burst.scope)
    return (
        f"{burst.tokens:,} tokens in a minute: {who}",
        f"{_capital(who)} used {burst.tokens:,} tokens in the last minute; the alert is set to {most:,} a minute.",
    )


def unpriced(use: UnpricedUse, zone: str) -> Said:
    model, n = shown(use.model), use.attempts
    since = datetime.fromtimestamp(use.since, ZoneInfo(zone))
    return (
        f"No price for the model {model}",
        f"The model {model} has no price: {n:,} request{'s' * (n != 1)} with {use.tokens:,} "
        f"tokens since {since:%H:%M} on {_date(since.date())} are in no sum of money, and no budget counts them. The "
        f"engine {shown(use.engine)} served it. Add it to the price file (ledger.prices; with `service_tier`, if it is "
        "only a tier of its maker's that lacks one), or give a self-hosted engine the price of its GPU-hour.",
    )


def anomaly(scope: object, cost: int, found: Usual, at: int, running: bool, currency: str, zone: str) -> Said:
    who = str(scope)
    times = f"{cost / found.median:,.1f} times" if found.median > 0 else "where there is usually nothing"
    local = datetime.fromtimestamp(at, ZoneInfo(zone))
    hour = f"from {local:%H:%M} on {_date(local.date())} ({zone})"
    like = f"of the same hours of a {local:%A}" if found.weekday else "of the same hours of the days before"
    than = f"{times} the median of {money(found.median, currency)}" if found.median > 0 else times
    return (
        f"Unusual spending: {who}",
        f"{_capital(who)} has spent {money(cost, currency)} in the hour {hour}{', which still runs' * running}: "
        f"{than}, {like} ({found.hours} hours; robust standard deviation {money(found.deviation, currency)}).",
    )


_TROUBLE: Final = MappingProxyType(
    {
        "journal_full": (
            "A journal is full",
            "Requests go on unbooked, or are refused, as ledger.when_full says. Bring the database back, or raise "
            "ledger.journal_bytes.",
        ),
        "journal_failing": (
            "A journal cannot be written",
            "Reservations and settlements are held in memory, up to a bound, and are lost if the worker dies. See to "
            "the disk.",
        ),
        "database_down": (
            "The database cannot be used",
            "Requests go on and are booked in the journals until those are full; sums, and quotas that hosts share, "
            "stand still.",
        ),
        "ingest_lag": (
            "The books are behind",
            "What was settled since is in the journals, not in the database: sums, quotas and alerts are as old.",
        ),
    }
)


def trouble(trouble: Trouble, now: float) -> Said:
    title, then = _TROUBLE[trouble.kind.value]
    for_ = f", for {lasting(now - trouble.since)} now" if now - trouble.since >= 1 else ""
    return f"{title}: {trouble.where}", f"{title} ({trouble.where}){for_}: {trouble.why.rstrip('.')}. {then}"
