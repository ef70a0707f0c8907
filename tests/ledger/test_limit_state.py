"""Use over a restart, use of others, and how limits stand."""

from __future__ import annotations

from datetime import datetime

import pytest

from forebay.ledger.gates import Who
from forebay.ledger.limit_state import BadSnapshot, Carried, Use, others, snapshot, standing, standing_of
from forebay.ledger.limits import Denied, Held, Limits
from forebay.ledger.rules import Level, Measure, Rule, Window

WALL = datetime.fromisoformat("2026-11-01T12:00Z").timestamp()
DAY = 86_400.0
WHO = Who("k1", "one", "acme", "", "search")
RULES = [
    Rule(name="key", each=Level.KEY, requests_per_minute=60, tokens_per_minute=600, concurrent=9, tokens_per_day=1_000),
    Rule(name="end", each=Level.END_USER, tokens_per_day=1_000, window=Window.SLIDING),
    Rule(name="org", each=Level.ORGANISATION, tokens_per_month=1_000),
]


def limits(wall: float, rules: list[Rule] = RULES) -> Limits:
    made = Limits()
    made.configure(rules, 0.0, wall)
    return made


def hold(book: Limits, wall: float, tokens: int = 100, end_user: str = "x", now: float = 0.0) -> Held | Denied:
    return book.hold(book.gate(WHO), "m", tokens, 0, None, end_user, now, wall)


def used(book: Limits, wall: float, now: float = 0.0) -> dict[str, int]:
    return {f"{s.rule} {s.measure.value}": s.used for s in standing(book, now, wall) if s.used}


def test_use_survives_a_restart() -> None:
    book = limits(WALL)
    assert isinstance(hold(book, WALL), Held)  # never ends
    data = snapshot(book, 0.0, WALL)
    for later, left in (
        (1.0, {"key requests_per_minute": 0, "key tokens_per_minute": 90}),
        (3_600.0, {}),
        (DAY / 2, {"key tokens_per_day": 0}),
        (2 * DAY, {"key tokens_per_day": 0, "end tokens_per_day": 0}),
        (31 * DAY, {"key tokens_per_day": 0, "end tokens_per_day": 0, "org tokens_per_month": 0}),
        (-5.0, {"key requests_per_minute": 1, "key tokens_per_minute": 100}),  # the clock was put back
    ):
        again = limits(WALL + later)
        assert Carried(data).take(again, 7_000.0, WALL + later) > 0
        budgets = {"key tokens_per_day": 100, "end tokens_per_day": 100, "org tokens_per_month": 100}
        assert used(again, WALL + later, 7_000.0) == {k: v for k, v in {**budgets, **left}.items() if v}
        assert again.scopes.since == {rule.id: min(WALL, WALL + later) for rule in RULES}


def test_a_snapshot_of_rules_that_are_gone_or_new() -> None:
    book = limits(WALL)
    hold(book, WALL)
    again = limits(WALL + 5, [RULES[2], Rule(name="new", each=Level.KEY, concurrent=1)])
    carried = Carried(snapshot(book, 0.0, WALL))
    assert carried.take(again, 0.0, WALL + 5) == 1
    assert carried.take(again, 0.0, WALL + 5) == 0  # once
    assert used(again, WALL + 5) == {"org tokens_per_month": 100}
    assert again.scopes.since == {RULES[2].id: WALL, "new key": WALL + 5}
    again.configure(RULES, 0.0, WALL + 6)  # the database's rules come later
    assert carried.take(again, 0.0, WALL + 6) > 0
    assert used(again, WALL + 6)["key tokens_per_day"] == 100
    assert used(again, WALL + 6)["org tokens_per_month"] == 100


def test_a_sliding_window_goes_on_after_a_restart() -> None:
    book = limits(WALL)
    hold(book, WALL)
    hold(book, WALL + 7_200, 50, now=7_200.0)
    data = snapshot(book, 7_200.0, WALL + 7_200)
    again = limits(WALL + 10_000)
    Carried(data).take(again, 0.0, WALL + 10_000)
    assert used(again, WALL + 10_000)["end tokens_per_day"] == 150
    assert used(again, WALL + DAY + 3_600)["end tokens_per_day"] == 50
    assert "end tokens_per_day" not in used(again, WALL + DAY + 3 * 3_600)


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x93\x01\x02\x03", b"not a snapshot"])
def test_a_damaged_snapshot_is_said(data: bytes) -> None:
    with pytest.raises(BadSnapshot, match="the snapshot of limits cannot be read"):
        Carried(data)


def test_what_others_have_used_counts_with_one_s_own() -> None:
    book = limits(WALL)
    hold(book, WALL)
    day = WALL // DAY * DAY
    elsewhere = [
        Use(RULES[0].id, ("k1",), Measure.TOKENS_DAY, day, 850),
        Use(RULES[0].id, ("k2",), Measure.TOKENS_DAY, day, 1_000),
        Use(RULES[1].id, ("acme", "", "search", "x"), Measure.TOKENS_DAY, 0.0, 200),
        Use(RULES[2].id, ("acme",), Measure.TOKENS_MONTH, day - 31 * DAY, 900),  # of a month that is over
        Use("gone key", ("k1",), Measure.TOKENS_DAY, day, 1_000),
    ]
    others(book, elsewhere, 0.0, WALL)
    assert {(s.rule, s.path[-1], s.used) for s in standing(book, 0.0, WALL) if s.measure is not Measure.CONCURRENT} >= {
        ("key", "k1", 950),
        ("key", "k2", 1_000),  # of a key that has not come here yet
        ("end", "x", 300),
        ("org", "acme", 100),
    }
    denied = hold(book, WALL)
    assert isinstance(denied, Denied)
    assert (denied.rule.name, denied.used) == ("key", 950)
    # It outlives a restart; what is said again takes the place of what was said; a new day begins at none.
    left = Limits()
    left.configure(RULES, 0.0, WALL)
    Carried(snapshot(book, 0.0, WALL)).take(left, 0.0, WALL)
    assert used(left, WALL) == {k: n for k, n in used(book, WALL).items() if "concurrent" not in k}
    others(book, [Use(RULES[0].id, ("k1",), Measure.TOKENS_DAY, day, 10)], 0.0, WALL)
    found = {(s.rule, s.path[-1]): s.used for s in standing(book, 0.0, WALL) if s.measure is Measure.TOKENS_DAY}
    assert found == {("key", "k1"): 110, ("key", "k2"): 1_000, ("end", "x"): 300}
    assert "key tokens_per_day" not in used(book, WALL + DAY)


def test_what_others_used_of_a_sliding_window_is_forgotten_with_it() -> None:
    book = limits(WALL)
    others(book, [Use(RULES[1].id, ("acme", "", "search", "x"), Measure.TOKENS_DAY, 0.0, 1_000)], 0.0, WALL)
    assert isinstance(hold(book, WALL + DAY), Denied)
    assert isinstance(hold(book, WALL + DAY + 3_600), Held)


def test_how_one_caller_s_limits_stand() -> None:
    book = limits(WALL)
    gate = book.gate(WHO)
    assert [(s.rule, s.measure.value, s.limit, s.used) for s in standing_of(book, gate, 0.0, WALL)] == [
        ("key", "requests_per_minute", 60, 0),
        ("key", "tokens_per_minute", 600, 0),
        ("key", "concurrent", 9, 0),
        ("key", "tokens_per_day", 1_000, 0),
        ("org", "tokens_per_month", 1_000, 0),
    ]
    hold(book, WALL)
    found = {s.measure.value: (s.used, s.start - WALL if s.start else 0.0, s.resets - WALL) for s in
             standing_of(book, gate, 0.0, WALL)}  # fmt: skip
    assert found == {
        "requests_per_minute": (1, 0.0, 1.0),
        "tokens_per_minute": (100, 0.0, 10.0),
        "concurrent": (1, 0.0, 0.0),
        "tokens_per_day": (100, -DAY / 2, DAY / 2),
        "tokens_per_month": (100, -DAY / 2, 29.5 * DAY),
    }
