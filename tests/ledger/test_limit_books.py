"""Use as it was booked, for a worker that begins to count or shares its limits with others."""

from __future__ import annotations

import random

import pytest

from forebay.ledger.database import Database
from forebay.ledger.gates import Who
from forebay.ledger.limit_books import Elsewhere
from forebay.ledger.limit_state import Use, others
from forebay.ledger.limits import Denied, Held, Limits
from forebay.ledger.rules import Level, Measure, Rule, Window
from forebay.ledger.tokens import Tokens
from usage_entries import OWNER, Usage, at

pytestmark = pytest.mark.books

NOW = at("2026-11-30T11:30:00+01:00")
TEN = Tokens(input=6, cached=1, output=2, reasoning=1)
DAY = Rule(name="day", each=Level.PROJECT, tokens_per_day=40, money_per_month=1_000, zone="Europe/Berlin")
LAST = Rule(name="last", each=Level.END_USER, tokens_per_day=100, window=Window.SLIDING)
LARGE = Rule(name="large", each=Level.KEY, key="ci", models=("llama",), tokens_per_month=100)
RULES = (DAY, LAST, LARGE)
OTHER = "ffeeddccbbaa9988"


def read(database: Database, elsewhere: Elsewhere, now: float = NOW) -> list[Use]:
    with database.read() as connection:
        found, left_out = elsewhere.read(connection, now)
    assert left_out == []
    return sorted(found, key=str)


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
    found = read(filled, Elsewhere(OWNER, RULES, {rule.id: NOW - 600 for rule in RULES}))
    day, month = at("2026-11-30T00:00:00+01:00"), at("2026-11-01T00:00:00+01:00")
    utc = at("2026-11-01T00:00:00Z")
    assert found == sorted(
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
    rule = Rule(name="day", each=Level.PROJECT, tokens_per_day=40, zone="Europe/Berlin")
    limits = Limits()
    limits.configure([rule], 0.0, NOW)
    others(limits, read(filled, Elsewhere(OWNER, [rule], limits.scopes.since)), 0.0, NOW)
    gate = limits.gate(Who("k1", "ci", "acme", "", "a"))
    assert isinstance(limits.hold(gate, "m", 21, 0, None, "", 0.0, NOW), Denied)  # 20 of 40 are booked
    assert isinstance(limits.hold(gate, "m", 20, 0, None, "", 0.0, NOW), Held)
    limits.configure([rule], 0.0, NOW)  # a reload changes nothing of it
    assert isinstance(limits.hold(gate, "m", 1, 0, None, "", 0.0, NOW), Denied)


def test_what_a_worker_counted_itself_is_read_once_and_never_told_to_it(database: Database) -> None:
    """Two journals grow; what is told is each time what a look at all entries of the window says."""
    rng, start = random.Random(7), NOW - 86_400
    since = {DAY.id: start, LAST.id: start + 40_000.0, LARGE.id: start + 3_000.0}
    journals = {OWNER: Usage(database), OTHER: Usage(database, OTHER)}
    elsewhere = Elsewhere(OWNER, RULES, since)
    made: list[tuple[float, str, str]] = []
    for step in range(12):
        until = start + 7_300.0 * (step + 1)
        for owner, usage in journals.items():
            for when in sorted(rng.uniform(until - 7_300, until) for _ in range(4)):
                project = rng.choice("ab")
                usage.request(when, 1, project=project, tokens=TEN, served="llama", end_user="x")
                made.append((when, owner, project))
            usage.book()
        for fresh in (elsewhere, Elsewhere(OWNER, RULES, since)):
            found = {(use.rule, use.path, use.measure): use.used for use in read(database, fresh, until)}
            day = at("2026-11-30T00:00:00+01:00")
            day = day if until >= day else day - 86_400
            sliding = until // 3_600 * 3_600 - 86_400
            for project in "ab":
                told = [
                    found.get((DAY.id, ("acme", "", project), Measure.TOKENS_DAY), 0),
                    found.get((DAY.id, ("acme", "", project), Measure.MONEY_MONTH), 0),
                    found.get((LAST.id, ("acme", "", project, "x"), Measure.TOKENS_DAY), 0),
                ]
                theirs = [
                    (t, o != OWNER or t < since[DAY.id], o != OWNER or t < since[LAST.id])
                    for t, o, p in made
                    if p == project
                ]
                assert told == [
                    sum(10 for t, other, _ in theirs if other and t >= day),
                    sum(1 for _, other, _ in theirs if other),
                    sum(10 for t, _, other in theirs if other and t >= sliding),
                ]
            mine = sum(10 for t, o, _ in made if o != OWNER or t < since[LARGE.id])
            assert found[LARGE.id, ("k1",), Measure.TOKENS_MONTH] == mine


def test_only_what_others_book_is_worth_a_look(database: Database) -> None:
    mine, theirs = Usage(database), Usage(database, OTHER)
    elsewhere = Elsewhere(OWNER, [DAY], {})

    def moved() -> bool:
        with database.read() as connection:
            return elsewhere.moved(connection)

    assert moved()  # nobody has looked yet
    for usage, shows in ((mine, False), (theirs, True), (mine, False), (theirs, True)):
        read(database, elsewhere, NOW)
        assert not moved()
        usage.request(NOW - 60, 1, project="a", tokens=TEN)
        usage.book()
        assert moved() is shows


def test_too_many_scopes_are_said(filled: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forebay.ledger.reports.MOST_ROWS", 1)
    with filled.read() as connection:
        found, left_out = Elsewhere(OWNER, (DAY, LAST), {}).read(connection, NOW)
    assert (found, left_out) == ([], ["day", "last"])
