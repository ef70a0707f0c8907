"""What the rules ask, asked of real databases; and whose an alert is where hosts share one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from books import NANO, Books, spent
from forebay.config.alerts import Alerts, Level, Severity
from forebay.ledger import alert_book
from forebay.ledger.alert_usage import Memory, SqlUsage
from forebay.ledger.alerts import Alert, Rules, Unit
from forebay.ledger.database import Database
from forebay.ledger.rules import Level as Each
from forebay.ledger.rules import Over, Rule, Window

pytestmark = pytest.mark.books

ZONE = "Asia/Shanghai"


def at(*when: int) -> float:
    return datetime(*when, tzinfo=ZoneInfo(ZONE)).timestamp()  # type: ignore[misc,arg-type]


NOON = at(2026, 9, 15, 12)


@pytest.fixture
def books(database: Database) -> Books:
    database.migrate()
    return Books(database)


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[Database]:
    database = Database("", tmp_path)
    database.migrate()
    yield database
    database.close()


@contextmanager
def usage(database: Database, *rules: Rule, memory: Memory | None = None) -> Iterator[SqlUsage]:
    with database.read() as connection:
        yield SqlUsage(connection, rules, ZONE, memory or Memory())


def test_quotas_are_summed_by_their_scope_since_their_window_began(sqlite: Database) -> None:
    """The day of Shanghai began at 16:00 UTC of the day before."""
    books = Books(sqlite)
    books.add(
        [
            spent(at(2026, 9, 14, 23), tokens=1_000_000, cost=NANO),
            spent(at(2026, 9, 15, 0), tokens=100, cost=2 * NANO),
            spent(NOON - 1, tokens=40, cost=3 * NANO, key="k2", name="cd", user="ann"),
            spent(NOON - 1, tokens=7, cost=5 * NANO, project="other"),
            spent(NOON - 1, tokens=9, cost=7 * NANO, organisation="else", model="dear"),
            spent(at(2026, 8, 31, 23), tokens=3, cost=11 * NANO),
        ]
    )
    rules = [
        Rule(name="day", each=Each.PROJECT, zone=ZONE, tokens_per_day=1_000),
        Rule(name="month", each=Each.ORGANISATION, zone=ZONE, organisation="acme", money_per_month=100 * NANO),
        Rule(name="mine", each=Each.KEY, zone=ZONE, key="cd", tokens_per_day=50, over=Over.WARN),
        Rule(name="dear", each=Each.ALL, zone=ZONE, models=("dear",), money_per_day=8 * NANO),
        Rule(name="unused", each=Each.USER, zone=ZONE, user="bob", tokens_per_day=1),
        Rule(name="rate", each=Each.ALL, tokens_per_minute=1),
    ]
    with usage(sqlite, *rules) as asked:
        found = {(q.limit, str(q.scope)): q for q in asked.quotas(NOON)}
    assert {k: q.used for k, q in found.items()} == {
        ("day", "project acme / bot"): 140,
        ("day", "project acme / other"): 7,
        ("day", "project else / bot"): 9,
        ("month", "organisation acme"): 11 * NANO,
        ("mine", "key cd (acme / bot / ann)"): 40,
        ("dear", "everybody together"): 7 * NANO,
    }
    day = found["day", "project acme / bot"]
    assert (day.window.since, day.window.until) == (at(2026, 9, 15), at(2026, 9, 16))
    assert (day.unit, day.refuses, found["mine", "key cd (acme / bot / ann)"].refuses) == (Unit.TOKENS, True, False)


def test_one_end_user_and_sliding_windows(sqlite: Database) -> None:
    books = Books(sqlite)
    books.add(
        [
            spent(NOON - 86_000, tokens=10, end_user="eve"),
            spent(NOON - 86_500, tokens=20, end_user="eve"),
            spent(NOON - 60, tokens=40, end_user="bob"),
        ]
    )
    rules = [
        Rule(name="eve", each=Each.END_USER, end_user="eve", window=Window.SLIDING, tokens_per_day=100),
        Rule(name="all", each=Each.ALL, window=Window.SLIDING, tokens_per_day=100, tokens_per_month=100),
        Rule(name="each", each=Each.END_USER, tokens_per_day=1),
    ]
    with usage(sqlite, *rules) as asked:
        found = asked.quotas(NOON)
    assert [(q.limit, str(q.scope), q.used, q.sliding) for q in found] == [
        ("eve", "end user eve (acme / bot)", 10, True),
        ("all", "everybody together", 50, True),
        ("all", "everybody together", 70, True),
    ]
    assert found[0].window.since == at(2026, 9, 15)


def test_a_key_that_was_renamed_is_the_same(sqlite: Database) -> None:
    books = Books(sqlite)
    books.add([spent(NOON - 100, tokens=6_000, name="old"), spent(NOON - 10, tokens=6_000, name="new")])
    with usage(sqlite, Rule(name="day", each=Each.KEY, zone=ZONE, tokens_per_day=10)) as asked:
        assert [q.used for q in asked.quotas(NOON)] == [12_000]


def test_the_days_before(sqlite: Database) -> None:
    rule = Rule(name="month", each=Each.PROJECT, zone=ZONE, tokens_per_month=1_000)
    books = Books(sqlite)
    books.add(
        [
            *(spent(at(2026, 9, day, 1), tokens=day) for day in (10, 12, 13)),
            spent(at(2026, 9, 12, 23), tokens=100),
            spent(at(2026, 9, 12, 5), tokens=5_000, project="other"),
            spent(NOON - 1, tokens=1),
        ]
    )
    memory = Memory()
    with usage(sqlite, rule, memory=memory) as asked:
        (quota,) = [q for q in asked.quotas(NOON) if q.scope.names[2] == "bot"]
        assert asked.days(quota, NOON, 28) == [10, 0, 112, 13, 0]
        assert asked.days(quota, NOON, 3) == [112, 13, 0]
    books.add([spent(at(2026, 9, 14, 1), tokens=8)])
    with usage(sqlite, rule, memory=memory) as asked:
        assert asked.days(quota, NOON + 60, 3) == [112, 13, 0], "remembered"
        assert asked.days(quota, NOON + 7 * 3_600, 3) == [112, 13, 8]


def test_the_last_minute(sqlite: Database) -> None:
    books = Books(sqlite)
    books.add(
        [
            spent(NOON - 61, tokens=50_000),
            spent(NOON - 59, tokens=6_000),
            spent(NOON - 1, tokens=5_000),
            spent(NOON - 1, tokens=9_000, key="k2", name="cd"),
        ]
    )
    with usage(sqlite) as asked:
        assert [(str(b.scope), b.tokens) for b in asked.minute(Level.KEY, 10_000, NOON)] == [
            ("key ci (acme / bot)", 11_000)
        ]
        assert [b.tokens for b in asked.minute(Level.PROJECT, 10_000, NOON)] == [20_000]
        assert asked.minute(Level.DEPARTMENT, 1, NOON) == [], "none was given"


def test_models_without_a_price(sqlite: Database) -> None:
    books = Books(sqlite)
    books.add([spent(NOON - 9, tokens=5, cost=None, model="new"), spent(NOON - 8, tokens=6, model="old")])
    books.add([spent(NOON - 7, tokens=7, cost=None, model="new", engine="e2")])
    with usage(sqlite) as asked:
        ((use),) = asked.unpriced(NOON - 60, NOON)
        assert (use.model, use.attempts, use.tokens, use.since) == ("new", 2, 12, NOON - 60)
        assert asked.unpriced(NOON - 5, NOON) == []


def test_only_who_spends_now_is_compared(sqlite: Database) -> None:
    hour = int(NOON // 3_600 * 3_600)
    books = Books(sqlite)
    books.add(
        [
            *(spent(hour - back * 3_600 + 5, cost=back * NANO) for back in (1, 24, 48)),
            spent(hour + 1, cost=9 * NANO),
            spent(hour + 2, cost=1, project="calm"),
            spent(hour - 48 * 3_600, cost=99 * NANO, project="calm"),
        ]
    )
    with usage(sqlite) as asked:
        ((scope, hours),) = asked.hours(Level.PROJECT, 5 * NANO, NOON + 60).items()
    assert str(scope) == "project acme / bot"
    assert {(hour - h) // 3_600: c // NANO for h, c in hours.items()} == {0: 9, 1: 1, 24: 24, 48: 48}


def test_all_rules_over_real_books(database: Database, books: Books) -> None:
    days = [spent(at(2026, 9, day, 6), tokens=10, cost=60 * NANO) for day in range(1, 15)]
    days += [spent(at(2026, 9, day, hour), tokens=1, cost=NANO // 10) for day in range(1, 15) for hour in (11, 12, 13)]
    books.add([*days, spent(NOON + 20, tokens=12_000, cost=20 * NANO), spent(NOON + 20, cost=None, model="new")])
    rules = [
        Rule(name="tokens", each=Each.KEY, zone=ZONE, tokens_per_day=15_000),
        Rule(name="money", each=Each.ORGANISATION, zone=ZONE, money_per_month=1_000 * NANO),
    ]
    with usage(database, *rules) as asked:
        found = {alert.rule: alert for alert in Rules(Alerts(), "USD", ZONE).look(asked, NOON + 30)}
    assert set(found) == {"quota_near", "burst", "unpriced_model", "budget_forecast", "spend_anomaly"}
    assert found["quota_near"].data["used"] == 12_000
    assert found["budget_forecast"].data["exhausted_on"] == "2026-09-17"
    assert found["spend_anomaly"].data["median"] == NANO // 10


# --- whose it is -----------------------------------------------------------------------------------------------------


def alert(n: int, fired: float = NOON) -> Alert:
    return Alert(id=f"{n:032x}", rule="burst", severity=Severity.INFO, title=f"n {n}", text="💶", at=fired)


def test_of_hosts_that_race_each_alert_is_one_ones(database: Database, books: Books) -> None:
    found = [alert(n) for n in range(20)]
    start = threading.Barrier(4)

    def host(owner: str) -> None:
        start.wait(10)
        for one in found:
            with database.write() as connection:
                alert_book.claim(connection, [one], owner)

    threads = [threading.Thread(target=host, args=(f"host-{i}",)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    with database.read() as connection:
        owners = alert_book.known(connection, [a.id for a in found])
        ours = [a.id for i in range(4) for a in alert_book.of_owner(connection, f"host-{i}", 0.0)]
    assert sorted(ours) == [a.id for a in found]
    assert set(owners) == set(ours)


def test_alerts_are_kept_and_pruned(database: Database, books: Books) -> None:
    with database.write() as connection:
        alert_book.claim(connection, [alert(1, NOON - 100), alert(2), alert(3)], "me")
        alert_book.claim(connection, [alert(1)], "me")
    with database.write() as connection:
        assert [a.title for a in alert_book.newest(connection, 2)] == ["n 2", "n 3"]
        assert [a.title for a in alert_book.of_owner(connection, "me", NOON)] == ["n 2", "n 3"]
        assert alert_book.of_owner(connection, "other", 0) == []
        assert alert_book.prune(connection, NOON) == 1
        assert len(alert_book.known(connection, [alert(n).id for n in (1, 2, 3)])) == 2
