from __future__ import annotations

import pytest

from forebay.ledger.gates import Who
from forebay.ledger.limits import Denied, Held, Limits, Why
from forebay.ledger.rules import Level, Rule

NOW = 1_000.0
WALL = 1_793_534_400.0  # 2026-11-01T12:00:00Z
ANNA = Who("k1", "anna-laptop", "acme", "research", "search", "anna")


class PerToken:
    """1 nano-unit a prompt token, 3 one of an answer."""

    def most(self, prompt: int, completion: int, /) -> int:
        return prompt + 3 * completion


def limits(*rules: Rule) -> Limits:
    made = Limits()
    made.configure(rules, NOW, WALL)
    return made


def test_a_budget_for_ten_admits_ten_of_fifty() -> None:
    book = limits(Rule(name="team", each=Level.PROJECT, money_per_month=10 * (100 + 3 * 50)))
    gate = book.gate(ANNA)
    got = [book.hold(gate, "m", 100, 50, PerToken(), "", NOW, WALL) for _ in range(50)]
    assert sum(isinstance(x, Held) for x in got) == 10
    denied = got[10]
    assert isinstance(denied, Denied)
    assert denied.why is Why.QUOTA
    assert (denied.used, denied.limit, denied.scope) == (2_500, 2_500, "project acme/research/search")


@pytest.mark.parametrize("how", ["settle", "release"])
def test_a_hold_comes_back_once(how: str) -> None:
    book = limits(Rule(name="key", each=Level.KEY, concurrent=1, tokens_per_day=150))
    gate = book.gate(ANNA)
    held = book.hold(gate, "m", 100, 50, None, "", NOW, WALL)
    assert isinstance(held, Held)
    assert isinstance(book.hold(gate, "m", 100, 50, None, "", NOW, WALL), Denied)
    for _ in range(2):
        if how == "settle":
            book.settle(held, 0, 0, NOW)
        else:
            book.release(held, NOW)
    held = book.hold(gate, "m", 100, 50, None, "", NOW, WALL)
    assert isinstance(held, Held)
    assert isinstance(book.hold(gate, "m", 100, 50, None, "", NOW, WALL), Denied)
