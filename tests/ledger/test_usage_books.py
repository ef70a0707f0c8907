"""Reports out of a database, and a key's own use."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from forebay.config.ledger import Ledger
from forebay.ledger.asked import Wrong
from forebay.ledger.database import Database
from forebay.ledger.entries import How
from forebay.ledger.money import nano
from forebay.ledger.reports import Query
from forebay.ledger.reports import report as sums
from forebay.ledger.tokens import Tokens
from forebay.ledger.usage import Report
from forebay.ledger.usage_books import answer, of_key
from usage_entries import Usage, at

NOW = at("2026-11-30T11:30:00+01:00")
BOOKS = Ledger(zone="Europe/Berlin", labels=("team",))
EVIL = "x'; DROP TABLE entries;--, 🤖\n=1"


@pytest.fixture
def filled(database: Database) -> Database:
    usage = Usage(database)
    ten = Tokens(input=6, cached=1, output=2, reasoning=1)
    first = usage.request(at("2026-11-01T00:30:00+01:00"), 1_000_000_001, department="research", tokens=ten)
    usage.request(at("2026-10-31T23:30:00+01:00"), 7, department="research", tokens=ten)  # last month
    usage.request(NOW - 60, 2, department=EVIL, project=EVIL, labels=(("team", EVIL),), tokens=ten, engine="e1",
                  outcome="engine_error")  # fmt: skip
    again = usage.request(NOW - 59, 3, department=EVIL, project=EVIL, tokens=ten, engine="e2", of=3, how=How.ESTIMATED)
    usage.request(NOW - 50, None, department="research", model="new", tokens=ten)
    usage.request(NOW - 40, 0, department="research", how=How.CACHE, avoided=44, outcome="hit")
    usage.adjust(NOW, first, -1)
    assert again == 4
    usage.book()
    return database


def ask(database: Database, **given: str | list[str]) -> Report:
    return answer(
        database, {k: v if isinstance(v, list) else [v] for k, v in given.items()}, BOOKS, NOW, Path("/nonexistent")
    )


def test_rows_of_this_month_add_up_to_what_the_database_sums(filled: Database) -> None:
    found = ask(filled, by="department")
    by = {line.of[0]: line for line in found.lines}
    assert by.keys() == {"research", EVIL}
    research, evil = by["research"], by[EVIL]
    assert (research.requests, research.attempts, research.unpriced, research.hits) == (3, 3, 1, 1)
    assert (research.cost, research.adjusted, research.avoided) == (1_000_000_001, -1, 44)
    assert (evil.requests, evil.attempts, evil.succeeded, evil.estimated, evil.cost) == (1, 2, 1, 1, 5)
    with filled.read() as connection:
        (row,) = sums(connection, Query(found.since, found.until))
    assert (found.total.total, found.total.tokens) == (row.total, row.tokens)
    assert found.currency == "USD"


def test_one_value_of_several_and_every_one_of_several_names(filled: Database) -> None:
    both = ask(filled, by="model", where=["department=research", f"department={EVIL}"])
    assert {line.of[0] for line in both.lines} == {"m", "new"}
    assert ask(filled, by="model", where=["department=research", "model=new"]).total.unpriced == 1
    assert ask(filled, where=[f"label:team={EVIL}"]).total.cost == 2
    assert ask(filled, where=["department=nobody"]).lines == ()


def test_a_time_is_where_it_was_asked_for(filled: Database) -> None:
    found = ask(filled, by="department,day", since="2026-10-31")
    assert {line.of for line in found.lines} == {
        ("research", "2026-10-31T00:00:00+01:00"),
        ("research", "2026-11-01T00:00:00+01:00"),
        ("research", "2026-11-30T00:00:00+01:00"),
        (EVIL, "2026-11-30T00:00:00+01:00"),
    }
    months = ask(filled, by="month", since="2026-10-01", until="2026-12-01")
    assert [(line.of[0], line.cost) for line in months.lines] == [
        ("2026-10-01T00:00:00+02:00", 7),
        ("2026-11-01T00:00:00+01:00", 1_000_000_006),
    ]


def test_an_export_as_focus_is_by_all_that_it_needs(filled: Database) -> None:
    found = ask(filled, by="department,end_user", day="today", focus="true")
    assert found.by[0] == "day"
    assert {"organisation", "key", "how", "label:team", "end_user"} <= set(found.by)
    assert found.total.total == ask(filled, day="today").total.total == 5
    assert ask(filled, by="hour", day="today", focus="true").by[0] == "hour"


def test_too_much_is_refused_with_a_name(filled: Database) -> None:
    with pytest.raises(Wrong, match="step: over"):
        ask(filled, by="hour", since="2020-01-01")


def test_a_key_s_own_use(filled: Database) -> None:
    with filled.read() as connection:
        found = of_key(connection, "k1", BOOKS, NOW)
        other = of_key(connection, "nobody", BOOKS, NOW)
    today, month, days = (found["periods"][name] for name in ("today", "month", "last_30_days"))
    assert (today["requests"], today["succeeded"], today["unpriced"], today["estimated"]) == (3, 3, 1, 1)
    assert today["cost"] == "0.000000005"
    assert (month["cost"], month["since"]) == ("1.000000005", "2026-11-01T00:00:00+01:00")
    assert month["tokens"]["total"] == 40
    assert month["tokens"]["reasoning"] == 4
    assert days["since"] == "2026-11-01T00:00:00+01:00"
    assert [day["day"] for day in days["days"]] == ["2026-11-01", "2026-11-30"]
    assert sum(nano(Decimal(day["cost"])) for day in days["days"]) == nano(Decimal(days["cost"]))
    assert (found["currency"], found["zone"], found["at"]) == ("USD", "Europe/Berlin", "2026-11-30T10:30:00Z")
    assert (other["periods"]["month"]["requests"], other["periods"]["last_30_days"]["days"]) == (0, [])


def test_a_key_of_which_nothing_has_a_price_has_no_cost(database: Database) -> None:
    usage = Usage(database)
    usage.request(NOW - 5, None, key="k2")
    usage.book()
    with database.read() as connection:
        found = of_key(connection, "k2", BOOKS, NOW)["periods"]["today"]
    assert (found["cost"], found["unpriced"]) == (None, 1)
