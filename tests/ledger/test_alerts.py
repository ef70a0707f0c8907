"""The rules, over plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from zoneinfo import ZoneInfo

import msgspec
import pytest

from forebay.config.alerts import Alerts, Every, Level, Severity
from forebay.ledger import alert_words
from forebay.ledger.alerts import (
    SLOW,
    Alert,
    Burst,
    Quota,
    Rules,
    Scope,
    Trouble,
    TroubleKind,
    Unit,
    UnpricedUse,
    Windows,
    quota_alert,
)

ZONE = "Asia/Shanghai"
BOT = Scope("project", ("acme", "research", "chatbot"))
CI = Scope("key", ("acme", "research", "chatbot", "", "ci"), "0a1b2c")
EURO = 10**9


def at(*when: int, zone: str = ZONE) -> float:
    return datetime(*when, tzinfo=ZoneInfo(zone)).timestamp()  # type: ignore[misc,arg-type]


NOON = at(2026, 9, 15, 12)


class Plain:
    """Usage as plain data."""

    def __init__(self) -> None:
        self.limits: list[Quota] = []
        self.series: list[int] = []
        self.bursts: list[Burst] = []
        self.models: list[UnpricedUse] = []
        self.money: dict[Scope, dict[int, int]] = {}
        self.asked: list[str] = []

    def quotas(self, now: float) -> Sequence[Quota]:
        return self.limits

    def days(self, quota: Quota, now: float, most: int) -> Sequence[int]:
        self.asked.append("days")
        return self.series

    def minute(self, level: Level, least: int, now: float) -> Sequence[Burst]:
        return [b for b in self.bursts if b.scope.level == level and b.tokens >= least]

    def unpriced(self, since: float, now: float) -> Sequence[UnpricedUse]:
        return self.models

    def hours(self, level: Level, least: int, now: float) -> Mapping[Scope, Mapping[int, int]]:
        self.asked.append("hours")
        return {scope: hours for scope, hours in self.money.items() if scope.level == level}


def quota(
    used: int, most: int = 1_000_000, *, every: Every = Every.DAY, unit: Unit = Unit.TOKENS, **more: object
) -> Quota:
    window = Windows().at(every, ZONE, NOON)
    return Quota("chat", BOT, unit, window, most, used, **more)  # type: ignore[arg-type]


def look(usage: Plain, now: float = NOON, rules: Alerts | None = None) -> list[Alert]:
    return list(Rules(rules or Alerts(), "EUR", ZONE).look(usage, now))


def only(alerts: Sequence[Alert]) -> Alert:
    assert len(alerts) == 1, alerts
    return alerts[0]


# --- quotas ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("every", "used", "rule"),
    [
        (Every.DAY, 799_999, None),
        (Every.DAY, 800_000, "quota_near"),
        (Every.DAY, 999_999, "quota_near"),
        (Every.DAY, 1_000_000, "quota_reached"),
        (Every.DAY, 1_500_000, "quota_reached"),
        (Every.MONTH, 899_999, None),
        (Every.MONTH, 900_000, "quota_near"),
        (Every.MONTH, 1_000_000, "quota_reached"),
    ],
)
def test_the_thresholds_of_quotas(every: Every, used: int, rule: str | None) -> None:
    found = quota_alert(Alerts(), quota(used, every=every), NOON, "EUR")
    assert (found.rule if found else None) == rule


def test_a_limit_of_nothing_is_reached() -> None:
    found = quota_alert(Alerts(), quota(0, 0), NOON, "EUR")
    assert found is not None
    assert (found.rule, found.data["used_share"]) == ("quota_reached", 1.0)


@pytest.mark.parametrize(
    ("used", "each", "refuses", "rule"),
    [
        (990_000, 20_000, True, "quota_reached"),
        (990_000, 10_000, True, "quota_near"),
        (990_000, 20_000, False, "quota_near"),
        (750_000, 300_000, True, None),
    ],
)
def test_a_quota_with_too_little_left_for_a_request_is_reached(
    used: int, each: int, refuses: bool, rule: str | None
) -> None:
    found = quota_alert(Alerts(), msgspec.structs.replace(quota(used, refuses=refuses), each=each), NOON, "EUR")
    assert (found.rule if found else None) == rule
    if rule == "quota_reached":
        assert found is not None and "10,000 tokens are left, less than the 20,000 tokens" in found.text


def test_what_a_quota_says() -> None:
    usage = Plain()
    usage.limits = [quota(812_345)]
    found = only(look(usage))
    assert found.title == "Daily token quota 81 % used: project acme / research / chatbot"
    assert found.text == (
        "Project acme / research / chatbot has used 812,345 tokens of 1,000,000 tokens, 81 % of the daily token quota "
        "('chat'); 187,655 tokens are left. The alert is set to 80 %. It begins anew at 00:00 on Wednesday 16 "
        "September (Asia/Shanghai), in 12 h."
    )
    assert found.severity is Severity.WARNING
    assert found.data["used"] == 812_345
    assert found.window is not None
    assert found.window.until == at(2026, 9, 16)


def test_what_a_budget_that_is_used_up_says() -> None:
    usage = Plain()
    usage.limits = [quota(1_000 * EURO + 1, 1_000 * EURO, every=Every.MONTH, unit=Unit.MONEY)]
    found = only(look(usage))
    assert (found.severity, found.data["currency"]) == (Severity.CRITICAL, "EUR")
    assert found.text == (
        "Project acme / research / chatbot has used 1,000.00 EUR of 1,000.00 EUR: the monthly budget ('chat') is used "
        "up. Requests beyond it are refused (429 insufficient_quota). It begins anew at 00:00 on Thursday 1 October "
        "(Asia/Shanghai), in 15 days."
    )
    usage.limits = [quota(1_000 * EURO, 1_000 * EURO, every=Every.MONTH, unit=Unit.MONEY, refuses=False)]
    soft = only(look(usage))
    assert soft.severity is Severity.WARNING
    assert "It refuses nothing." in soft.text


def test_an_alert_is_the_same_within_its_window_and_another_in_the_next() -> None:
    """At midnight of the limit's zone, which is 16:00 in UTC."""

    def id_at(now: float, used: int, most: int = 1_000_000) -> str:
        state = Quota("chat", BOT, Unit.TOKENS, Windows().at(Every.DAY, ZONE, now), most, used)
        found = quota_alert(Alerts(), state, now, "EUR")
        assert found is not None
        return found.id

    midnight = at(2026, 9, 16)
    assert datetime.fromtimestamp(midnight, ZoneInfo("UTC")).hour == 16
    first = id_at(NOON, 800_000)
    assert id_at(midnight - 1, 950_000) == first
    assert id_at(midnight, 800_000) != first
    assert id_at(NOON, 1_000_000) != first
    assert id_at(NOON, 1_700_000, 2_000_000) != first, "a raised limit is another matter"


# --- forecast --------------------------------------------------------------------------------------------------------


def month(used: int) -> Quota:
    return quota(used * EURO, 1_000 * EURO, every=Every.MONTH, unit=Unit.MONEY)


def test_a_budget_will_be_exhausted_on_thursday() -> None:
    """Tuesday noon; 40 a day, 85 left: half of Tuesday, Wednesday, and on Thursday the rest."""
    usage = Plain()
    usage.limits, usage.series = [month(915)], [40 * EURO] * 28
    found = only(look(usage, rules=Alerts.model_validate({"quota": {"enabled": False}})))
    assert found.rule == "budget_forecast"
    assert found.data["exhausted_on"] == "2026-09-17"
    assert found.title == "Monthly budget will be exhausted on Thursday at this rate: project acme / research / chatbot"
    assert found.text == (
        "Project acme / research / chatbot has used 915.00 EUR of 1,000.00 EUR of the monthly budget ('chat'). It will "
        "be exhausted on Thursday 17 September at this rate: 13 days before the month ends. The rate is 40.00 EUR a "
        "day, from the last 28 days (with weekdays told apart); 1,535.00 EUR are expected by the month's end, and the "
        "limit is exceeded with a probability of 99 %."
    )
    assert found.data["confidence"] == 0.99


@pytest.mark.parametrize(
    ("series", "why"),
    [
        ([1 * EURO] * 28, "it lasts"),
        ([40 * EURO] * 2, "too few days"),
        ([], "nothing is known"),
        ([0, 300 * EURO, 0, 0, 0, 0, 0], "one day of seven is no rate"),
    ],
)
def test_no_forecast(series: list[int], why: str) -> None:
    usage = Plain()
    usage.limits, usage.series = [month(700)], series
    assert look(usage) == [], why


def test_a_forecast_needs_its_confidence() -> None:
    usage = Plain()
    usage.limits = [month(700)]
    usage.series = [x * EURO for x in (2, 40, 10, 35, 3, 38, 12)]
    sure = Alerts.model_validate({"forecast": {"confidence": 0.95}})
    likely = Alerts.model_validate({"forecast": {"confidence": 0.5}})
    assert look(usage, rules=sure) == []
    assert only(look(usage, rules=likely)).rule == "budget_forecast"


# --- bursts, models, hours -------------------------------------------------------------------------------------------


def test_a_burst() -> None:
    usage = Plain()
    usage.bursts = [Burst(CI, 14_210), Burst(Scope("key", ("acme", "", "", "", "calm"), "9"), 9_999)]
    found = only(look(usage))
    assert found.title == "14,210 tokens in a minute: key ci (acme / research / chatbot)"
    assert found.text == (
        "Key ci (acme / research / chatbot) used 14,210 tokens in the last minute; the alert is set to 10,000 a minute."
    )
    again = only(look(usage, NOON + 3_600))
    assert again.id == found.id
    assert only(look(usage, NOON + 86_400)).id != found.id


def test_a_model_without_a_price() -> None:
    usage = Plain()
    usage.models = [UnpricedUse("gpt-x", "azure", 1, 1_200, at(2026, 9, 1))]
    found = only(look(usage))
    assert found.rule == "unpriced_model"
    assert found.text.startswith(
        "The model gpt-x has no price: 1 request with 1,200 tokens since 00:00 on Tuesday 1 September are in no sum of "
        "money, and no budget counts them."
    )
    assert only(look(usage, NOON + 10 * 86_400)).id == found.id, "once a month"


def spending(cost: float, before: float, days: int = 20) -> dict[int, int]:
    hour = int(NOON // 3_600 * 3_600)
    hours = {hour - i * 3_600: int(before * EURO) for i in range(1, days * 24)}
    return {h: c for h, c in hours.items() if c} | {hour: int(cost * EURO), hour - days * 86_400: 1}


def test_an_hour_that_costs_too_much() -> None:
    usage = Plain()
    usage.money = {BOT: spending(80, 4)}
    found = only(look(usage))
    assert found.rule == "spend_anomaly"
    assert found.text == (
        "Project acme / research / chatbot has spent 80.00 EUR in the hour from 12:00 on Tuesday 15 September "
        "(Asia/Shanghai), which still runs: 20.0 times the median of 4.00 EUR, of the same hours of a Tuesday (6 "
        "hours; robust standard deviation 0.00 EUR)."
    )


@pytest.mark.parametrize(
    ("cost", "before", "days", "why"),
    [
        (4.5, 0.01, 20, "450 times as much, but pennies"),
        (8.9, 4, 20, "not twice what is usual, and less than 5 more"),
        (149, 100, 20, "less than half as much again"),
        (80, 4, 1, "a day is too little to know"),
    ],
)
def test_no_anomaly(cost: float, before: float, days: int, why: str) -> None:
    usage = Plain()
    usage.money = {BOT: spending(cost, before, days)}
    assert look(usage) == [], why


def test_the_hour_that_has_just_ended_is_looked_at_too() -> None:
    usage = Plain()
    usage.money = {BOT: spending(80, 4)}
    found = only(look(usage, NOON + 3_600 + 30))
    assert found.data["hour"] == NOON
    assert "which still runs" not in found.text


# --- trouble ---------------------------------------------------------------------------------------------------------


def test_trouble_is_told_at_once_or_after_a_while() -> None:
    rules = Rules(Alerts(), "EUR", ZONE)
    down = Trouble(TroubleKind.DATABASE_DOWN, "this host", "connection refused", NOON)
    full = Trouble(TroubleKind.JOURNAL_FULL, "worker 0", "1,073,741,824 bytes are taken", NOON)
    assert [a.data["kind"] for a in rules.troubles([down, full], NOON, "host")] == ["journal_full"]
    found = rules.troubles([down, full], NOON + 60, "host")
    assert [a.data["kind"] for a in found] == ["database_down", "journal_full"]
    assert found[0].text == (
        "The database cannot be used (this host), for 1 min now: connection refused. Requests go on and are booked in "
        "the journals until those are full; sums, and quotas that hosts share, stand still."
    )
    assert rules.troubles([down], NOON + 60, "another")[0].id != found[0].id
    assert rules.troubles([down], NOON + 3_600, "host")[0].id == found[0].id


# --- all together ----------------------------------------------------------------------------------------------------


def test_months_are_read_only_now_and_then() -> None:
    usage = Plain()
    usage.limits = [month(100)]
    rules = Rules(Alerts(), "EUR", ZONE)
    list(rules.look(usage, NOON))
    asked = len(usage.asked)
    assert asked == 3
    list(rules.look(usage, NOON + 15))
    assert len(usage.asked) == asked
    list(rules.look(usage, NOON + SLOW))
    assert len(usage.asked) == 2 * asked


def test_what_is_off_is_not_asked() -> None:
    class Never:
        def __getattr__(self, name: str) -> object:
            raise AssertionError(name)

    off = {name: {"enabled": False} for name in ("quota", "burst", "forecast", "unpriced", "anomaly", "trouble")}
    rules = Rules(Alerts.model_validate(off), "EUR", ZONE)
    assert list(rules.look(Never(), NOON)) == []  # type: ignore[arg-type]
    assert rules.troubles([Trouble(TroubleKind.JOURNAL_FULL, "w", "y", 0)], NOON, "host") == []


@pytest.mark.parametrize(
    ("nanos", "text"),
    [
        (0, "0.00 EUR"),
        (1_234_567_890_123, "1,234.57 EUR"),
        (-5 * EURO, "-5.00 EUR"),
        (EURO // 20, "0.05 EUR"),
        (12_345, "0.000012345 EUR"),
        (1, "0.000000001 EUR"),
    ],
)
def test_money_for_people(nanos: int, text: str) -> None:
    assert alert_words.money(nanos, "EUR") == text


def test_names_cannot_break_a_line() -> None:
    scope = Scope("end_user", ("acme",), "a\nb<!channel>\x00" + "x" * 200)
    assert "\n" not in str(scope)
    assert len(str(scope)) < 120
