"""Use as it was booked, for a worker that begins to count."""

from __future__ import annotations

import msgspec
import pytest

from forebay.ledger.database import Database
from forebay.ledger.gates import Who
from forebay.ledger.limit_books import booked
from forebay.ledger.limit_state import Use, others
from forebay.ledger.limits import Denied, Held, Limits
from forebay.ledger.rules import Level, Measure, Rule, Window
from forebay.ledger.tokens import Tokens
from usage_entries import Usage, at

NOW = at("2026-11-30T11:30:00+01:00")
TEN = Tokens(input=6, cached=1, output=2, reasoning=1)
DAY = Rule(name="day", each=Level.PROJECT, tokens_per_day=40, money_per_month=1_000, zone="Europe/Berlin")
LAST = Rule(name="last", each=Level.END_USER, tokens_per_day=100, window=Window.SLIDING)
LARGE = Rule(name="large", each=Level.KEY, key="ci", models=("llama",), tokens_per_month=100)


@pytest.fixture
def filled(database: Database) -> Database:
    usage = Usage(database)
    usage.request(at("2026-11-30T00:30:00+01:00"), 5, project="a", tokens=TEN, end_user="x")
    usage.request(at("2026-11-29T23:30:00+01:00"), 7, project="a", tokens=TEN, end_user="x", served="llama")
    usage.request(at("2026-11-01T00:30:00+01:00"), 100, project="a", tokens=TEN)
    usage.request(at("2026-10-31T23:30:00+01:00"), 900, project="a", tokens=TEN, served="llama")
    usage.request(NOW - 3_600, None, project="b", key="k2", key_name="other", tokens=TEN, end_user="y", served="llama")
    usage.request(NOW - 60, 3, project="a", tokens=TEN)  # counted by the worker itself
    usage.request(NOW - 50, 3, tokens=TEN)  # of no project
    usage.book()
    return database


def test_use_by_scope_in_each_rule_s_own_window(filled: Database) -> None:
    since = dict.fromkeys((DAY.id, LAST.id, LARGE.id), NOW - 600)
    with filled.read() as connection:
        found, left_out = booked(connection, (DAY, LAST, LARGE), since, NOW)
    day, month = at("2026-11-30T00:00:00+01:00"), at("2026-11-01T00:00:00+01:00")
    utc = at("2026-11-01T00:00:00Z")
    assert left_out == []
    assert sorted(found, key=str) == sorted(
        [
            Use(DAY.id, ("acme", "", "a"), Measure.TOKENS_DAY, day, 10),
            Use(DAY.id, ("acme", "", "b"), Measure.TOKENS_DAY, day, 10),
            Use(DAY.id, ("acme", "", "a"), Measure.MONEY_MONTH, month, 112),
            Use(LAST.id, ("acme", "", "a", "x"), Measure.TOKENS_DAY, 0.0, 20),
            Use(LAST.id, ("acme", "", "b", "y"), Measure.TOKENS_DAY, 0.0, 10),
            Use(LARGE.id, ("k1",), Measure.TOKENS_MONTH, utc, 10),
        ],
        key=str,
    )


def test_a_worker_that_was_killed_goes_on_where_the_books_are(filled: Database) -> None:
    rule = msgspec.structs.replace(DAY, money_per_month=None)
    limits = Limits()
    limits.configure([rule], 0.0, NOW)
    with filled.read() as connection:
        others(limits, booked(connection, [rule], limits.scopes.since, NOW)[0], 0.0, NOW)
    gate = limits.gate(Who("k1", "ci", "acme", "", "a"))
    assert isinstance(limits.hold(gate, "m", 21, 0, None, "", 0.0, NOW), Denied)  # 20 of 40 are booked
    assert isinstance(limits.hold(gate, "m", 20, 0, None, "", 0.0, NOW), Held)
    limits.configure([rule], 0.0, NOW)  # a reload changes nothing of it
    assert isinstance(limits.hold(gate, "m", 1, 0, None, "", 0.0, NOW), Denied)


def test_nothing_is_read_where_the_worker_counted_the_whole_window(filled: Database) -> None:
    with filled.read() as connection:
        assert booked(connection, [DAY], {DAY.id: at("2026-10-01T00:00:00Z")}, NOW) == ([], [])


def test_too_many_scopes_are_said(filled: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forebay.ledger.reports.MOST_ROWS", 1)
    with filled.read() as connection:
        found, left_out = booked(connection, (DAY, LAST), {}, NOW)
    assert (found, left_out) == ([], ["day", "last"])
