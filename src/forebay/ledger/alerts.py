"""What is worth an alert: rules over sums of the books. Pure; what they are asked of is in `Usage`.

A rule gives the alerts that hold now, each with an id made of what it is about and of its calendar window. Whoever
delivers them does so once an id; so an alert that holds for the rest of a window is told of once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime
from enum import StrEnum
from typing import Final, Protocol
from zoneinfo import ZoneInfo

import msgspec

from forebay.config.alerts import AlertRule, Alerts, Every, Level, Severity
from forebay.ledger import alert_words as words
from forebay.ledger.money import NANO
from forebay.ledger.trends import HOUR, forecast, usual
from forebay.ledger.windows import Calendar, Span

DAY: Final = 86_400.0


class Unit(StrEnum):
    TOKENS = "tokens"
    MONEY = "money"


class Scope(msgspec.Struct, frozen=True):
    """Whose use is meant. `names` are those of the hierarchy from the organisation down, "" for a level that was not
    given; empty: everybody's."""

    level: str
    """`Level`, or "all", "end_user"."""
    names: tuple[str, ...] = ()
    id: str = ""
    """A key's id; an end user's name."""

    @property
    def organisation(self) -> str:
        return self.names[0] if self.names else ""

    def __str__(self) -> str:
        return words.scope(self.level, self.names, self.id)


class Window(msgspec.Struct, frozen=True):
    """From `since` to before `until`, Unix times."""

    kind: Every
    since: float
    until: float
    zone: str


class Quota(msgspec.Struct, frozen=True):
    """A limit of tokens or money, and how much of it is used in its present window."""

    limit: str
    """Its name."""
    scope: Scope
    unit: Unit
    window: Window
    most: int
    """Tokens, or nano-units."""
    used: int
    refuses: bool = True
    """False: it only warns, or degrades."""
    models: tuple[str, ...] = ()
    """It counts only these; empty: all."""
    sliding: bool = False
    """It counts the last 24 hours or 30 days; `window` is the calendar's, within which it is told of once."""
    each: int = 0
    """What an attempt has used of it on average; 0: not known."""

    def reached(self, share: float) -> bool:
        """Whether nothing is left of it; or, where it refuses, less than the average request takes. `share`: of it must
        be used for that, so that a few large requests do not use it up early."""
        if self.used >= self.most:
            return True
        return self.refuses and self.most - self.used < self.each and self.near(share)

    def near(self, share: float) -> bool:
        """In whole numbers, for a share of a large amount has no exact float."""
        return self.used * 10_000 >= self.most * round(share * 10_000)


class Burst(msgspec.Struct, frozen=True):
    scope: Scope
    tokens: int
    """In the last minute."""


class UnpricedUse(msgspec.Struct, frozen=True):
    """What a model without a price did since `since`."""

    model: str
    """By the engine's own name."""
    engine: str
    attempts: int
    tokens: int
    since: float


class TroubleKind(StrEnum):
    JOURNAL_FULL = "journal_full"
    JOURNAL_FAILING = "journal_failing"
    DATABASE_DOWN = "database_down"
    INGEST_LAG = "ingest_lag"


class Trouble(msgspec.Struct, frozen=True):
    kind: TroubleKind
    where: str
    """The process or host that has it, in a few words."""
    why: str
    since: float
    """Unix time from which on it was seen without a break."""


AT_ONCE: Final = frozenset({TroubleKind.JOURNAL_FULL, TroubleKind.JOURNAL_FAILING})


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """One alert as it is kept and sent. Times are Unix times."""

    id: str
    """The same for the same matter within its window, on whichever host."""
    rule: str
    """`AlertRule`, or "test", "alerts_dropped"."""
    severity: Severity
    title: str
    text: str
    at: float
    scope: Scope | None = None
    window: Window | None = None
    data: dict[str, int | float | str | bool] = {}
    """The numbers in `text`: docs/alerts.md lists them by rule."""

    @property
    def organisation(self) -> str:
        return self.scope.organisation if self.scope else ""


class Usage(Protocol):
    """What the rules ask of the books. Calls block and raise DatabaseError."""

    def quotas(self, now: float) -> Sequence[Quota]:
        """Every limit of tokens or money, of days and months, that something was used of. Not those of each end user:
        they are as many as there are end users."""
        ...

    def days(self, quota: Quota, now: float, most: int) -> Sequence[int]:
        """What was used of it on the complete days before now, in its zone: oldest first, at most `most`, beginning
        with the first on which something was."""
        ...

    def minute(self, level: Level, least: int, now: float) -> Sequence[Burst]:
        """Whose use in the last 60 s was `least` tokens or more."""
        ...

    def unpriced(self, since: float, now: float) -> Sequence[UnpricedUse]: ...

    def hours(self, level: Level, least: int, now: float) -> Mapping[Scope, Mapping[int, int]]:
        """Of those that cost `least` nano-units or more in this hour or the last: money by hour of the last
        `trends.BACK` days, the hour's beginning as a Unix time → nano-units, where there was any."""
        ...


class Windows:
    """Calendar windows, remembered."""

    def __init__(self) -> None:
        self._calendars: dict[tuple[Span, str], Calendar] = {}

    def at(self, every: Every, zone: str, now: float) -> Window:
        """Hours are those of UTC."""
        if every is Every.HOUR:
            since = now // HOUR * HOUR
            return Window(every, since, since + HOUR, zone)
        key = (Span(every.value), zone)
        calendar = self._calendars.get(key)
        if calendar is None:
            if len(self._calendars) >= 1_024:
                self._calendars.clear()
            calendar = self._calendars[key] = Calendar(*key)
        return Window(every, *calendar.window(now), zone)


def alert_id(*parts: str | float) -> str:
    return hashlib.sha256("\x1f".join(map(str, parts)).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _about(scope: Scope) -> str:
    """A key stays the same whatever it is called."""
    if scope.level == "key" and scope.id:
        return f"key\x1e{scope.id}"
    return "\x1e".join((scope.level, *scope.names, scope.id))


def quota_alert(rules: Alerts, quota: Quota, now: float, currency: str) -> Alert | None:
    """That it is reached, or nearly: the graver of the two alone. A limit whose amount changes is a new matter."""
    share = rules.quota.monthly if quota.window.kind is Every.MONTH else rules.quota.daily
    reached = quota.reached(share)
    if not reached and not quota.near(share):
        return None
    rule = AlertRule.QUOTA_REACHED if reached else AlertRule.QUOTA_NEAR
    title, text = words.quota(quota, currency, now, share)
    return Alert(
        id=_quota_id(rule, quota),
        rule=rule,
        severity=Severity.CRITICAL if reached and quota.refuses else Severity.WARNING,
        title=title,
        text=text,
        at=now,
        scope=quota.scope,
        window=quota.window,
        data={**_quota_data(quota, currency), "share": 1.0 if reached else share},
    )


def _quota_id(rule: AlertRule, quota: Quota) -> str:
    window = quota.window
    return alert_id(rule, quota.limit, _about(quota.scope), quota.unit, quota.most, window.kind, window.since)


def _quota_data(quota: Quota, currency: str) -> dict[str, int | float | str | bool]:
    data: dict[str, int | float | str | bool] = {
        "limit": quota.limit,
        "unit": quota.unit.value,
        "used": quota.used,
        "most": quota.most,
        "used_share": round(quota.used / quota.most, 4) if quota.most else 1.0,
        "refuses": quota.refuses,
    }
    if quota.models:
        data["models"] = ", ".join(quota.models)
    if quota.unit is Unit.MONEY:
        data["currency"] = currency
    return data


def forecast_alert(rules: Alerts, quota: Quota, days: Sequence[int], now: float, currency: str) -> Alert | None:
    """That a month's quota will be used up before its end: `ledger.trends.forecast`. `days`: as `Usage.days`."""
    window = quota.window
    if window.kind is not Every.MONTH or quota.sliding or quota.used >= quota.most:
        return None
    zone = ZoneInfo(window.zone)
    today = datetime.fromtimestamp(now, zone).date()
    ends = datetime.fromtimestamp(window.until, zone).date()
    left = min(max((_midnight_after(today, zone) - now) / DAY, 0.0), 1.0)
    found = forecast(days, today, used=quota.used, most=quota.most, left=left, ends=ends)
    if found is None or found.exhausted is None or found.confidence < rules.forecast.confidence:
        return None
    title, text = words.budget(quota, found, currency, today, ends)
    return Alert(
        id=_quota_id(AlertRule.BUDGET_FORECAST, quota),
        rule=AlertRule.BUDGET_FORECAST,
        severity=Severity.WARNING,
        title=title,
        text=text,
        at=now,
        scope=quota.scope,
        window=window,
        data={
            **_quota_data(quota, currency),
            "exhausted_on": found.exhausted.isoformat(),
            "per_day": round(found.rate),
            "expected": round(found.total),
            "confidence": round(found.confidence, 2),
            "days": found.days,
            "weekdays": found.weekdays,
        },
    )


def _midnight_after(day: date, zone: ZoneInfo) -> float:
    following = date.fromordinal(day.toordinal() + 1)
    return datetime(following.year, following.month, following.day, tzinfo=zone).timestamp()


def burst_alert(rules: Alerts, burst: Burst, window: Window, now: float) -> Alert | None:
    most = rules.burst.tokens_per_minute
    if burst.tokens < most:
        return None
    title, text = words.burst(burst, most)
    return Alert(
        id=alert_id(AlertRule.BURST, _about(burst.scope), window.kind, window.since),
        rule=AlertRule.BURST,
        severity=Severity.WARNING,
        title=title,
        text=text,
        at=now,
        scope=burst.scope,
        window=window,
        data={"tokens": burst.tokens, "bound": most, "seconds": 60},
    )


def unpriced_alert(use: UnpricedUse, window: Window, now: float) -> Alert:
    title, text = words.unpriced(use, window.zone)
    return Alert(
        id=alert_id(AlertRule.UNPRICED_MODEL, use.model, window.kind, window.since),
        rule=AlertRule.UNPRICED_MODEL,
        severity=Severity.WARNING,
        title=title,
        text=text,
        at=now,
        window=window,
        data={
            "model": use.model,
            "engine": use.engine,
            "attempts": use.attempts,
            "tokens": use.tokens,
            "since": round(use.since),
        },
    )


def anomaly_alert(
    rules: Alerts, scope: Scope, hours: Mapping[int, int], window: Window, now: float, currency: str
) -> Alert | None:
    """Of the hour that runs, as soon as it has cost too much, or of the one before it. `hours`: as `Usage.hours`."""
    zone = ZoneInfo(window.zone)
    least = rules.anomaly.least * NANO
    present = int(now // HOUR * HOUR)
    for at in (present, present - HOUR):
        cost = hours.get(at, 0)
        if cost < least or at < window.since - HOUR:
            continue
        found = usual(hours, at, zone)
        if found is None or cost <= found.bound(rules.anomaly.deviations, least):
            continue
        title, text = words.anomaly(scope, cost, found, at, at == present, currency, window.zone)
        return Alert(
            id=alert_id(AlertRule.SPEND_ANOMALY, _about(scope), window.kind, window.since),
            rule=AlertRule.SPEND_ANOMALY,
            severity=Severity.WARNING,
            title=title,
            text=text,
            at=now,
            scope=scope,
            window=window,
            data={
                "hour": at,
                "cost": cost,
                "median": round(found.median),
                "deviation": round(found.deviation),
                "hours": found.hours,
                "weekday": found.weekday,
                "currency": currency,
            },
        )
    return None


def trouble_alert(rules: Alerts, trouble: Trouble, window: Window, now: float, host: str) -> Alert | None:
    """`host`: whose books' own trouble it is; the same trouble of another host is another matter."""
    if trouble.kind not in AT_ONCE and now - trouble.since < rules.trouble.after:
        return None
    title, text = words.trouble(trouble, now)
    return Alert(
        id=alert_id(AlertRule.LEDGER_TROUBLE, host, trouble.kind, trouble.where, window.kind, window.since),
        rule=AlertRule.LEDGER_TROUBLE,
        severity=Severity.CRITICAL,
        title=title,
        text=text,
        at=now,
        window=window,
        data={
            "kind": trouble.kind.value,
            "where": trouble.where,
            "why": trouble.why,
            "seconds": round(max(0.0, now - trouble.since)),
        },
    )


class Rules:
    """Asks all of them. Mutable state: windows, and when the slower questions were asked last."""

    def __init__(self, rules: Alerts, currency: str, zone: str) -> None:
        self.rules = rules
        self._currency = currency
        self._zone = zone
        self._windows = Windows()
        self._slow: float = -1.0

    def troubles(self, troubles: Iterable[Trouble], now: float, host: str) -> list[Alert]:
        """Needs no database."""
        if not self.rules.trouble.enabled:
            return []
        window = self._windows.at(self.rules.trouble.once_a, self._zone, now)
        return [a for t in troubles if (a := trouble_alert(self.rules, t, window, now, host)) is not None]

    def again(self) -> None:
        """Ask everything at the next look: this one was broken off."""
        self._slow = -1.0

    def look(self, usage: Usage, now: float) -> Iterator[Alert]:
        """What holds now. Forecasts and anomalies, which read months, are looked for every `SLOW` seconds. Raises
        DatabaseError."""
        rules = self.rules
        slow = not 0 <= now - self._slow < SLOW
        quotas = usage.quotas(now) if rules.quota.enabled or (slow and rules.forecast.enabled) else ()
        if rules.quota.enabled:
            for quota in quotas:
                if (found := quota_alert(rules, quota, now, self._currency)) is not None:
                    yield found
        if rules.burst.enabled:
            window = self._windows.at(rules.burst.once_a, self._zone, now)
            for level in rules.burst.levels:
                for burst in usage.minute(level, rules.burst.tokens_per_minute, now):
                    if (found := burst_alert(rules, burst, window, now)) is not None:
                        yield found
        if rules.unpriced.enabled:
            window = self._windows.at(rules.unpriced.once_a, self._zone, now)
            for use in usage.unpriced(window.since if slow else max(window.since, now - RECENT), now):
                yield unpriced_alert(use, window, now)
        if not slow:
            return
        if rules.forecast.enabled:
            yield from self._forecasts(usage, quotas, now)
        if rules.anomaly.enabled:
            window = self._windows.at(rules.anomaly.once_a, self._zone, now)
            for level in rules.anomaly.levels:
                least = round(rules.anomaly.least * NANO)
                for scope, hours in usage.hours(level, least, now).items():
                    found = anomaly_alert(rules, scope, hours, window, now, self._currency)
                    if found is not None:
                        yield found
        self._slow = now

    def _forecasts(self, usage: Usage, quotas: Sequence[Quota], now: float) -> Iterator[Alert]:
        for quota in quotas:
            if quota.window.kind is not Every.MONTH or quota.sliding or quota.used >= quota.most:
                continue
            days = usage.days(quota, now, self.rules.forecast.days)
            if (found := forecast_alert(self.rules, quota, days, now, self._currency)) is not None:
                yield found


SLOW: Final = 300.0
"""Seconds between looks at what reads months."""
RECENT: Final = 900.0
"""Seconds that are looked at for unpriced models in between."""
