"""Limits one at a time: who is counted with whom, what is held, what comes back, what is said."""

from __future__ import annotations

import asyncio
import random
import threading
from datetime import datetime

import pytest

from forebay.ledger.gates import Gate, Scopes, Who
from forebay.ledger.limit_state import standing
from forebay.ledger.limits import Denied, Held, Limits, Why
from forebay.ledger.records import KeyRecord
from forebay.ledger.rules import Hold, Level, Measure, Over, Rule, Unpriced, Window
from forebay.ledger.tariff import Costly

NOW = 1_000.0
WALL = datetime.fromisoformat("2026-11-01T12:00Z").timestamp()
HOUR, DAY = 3_600.0, 86_400.0
ANNA = Who("k1", "anna-laptop", "acme", "research", "search", "anna")
BERT = Who("k2", "bert", "acme", "research", "search", "bert")
CARL = Who("k3", "carl", "acme", "sales")
DORA = Who("k4", "dora", "other", "research", "search", "anna")
ANONYMOUS = Who("anonymous", "anonymous", "anonymous")


class PerToken(Costly):
    """1 nano-unit a prompt token, 3 one of an answer."""

    def most(self, prompt: int, completion: int, /) -> int:
        return prompt + 3 * completion


PRICE = PerToken()


class Book:
    """Limits with a clock; a hold is of 100 tokens and 50 more unless said otherwise."""

    def __init__(self, *rules: Rule, wall: float = WALL, end_users: int = 1_000) -> None:
        self.now, self.wall = NOW, wall
        self.limits = Limits(end_users)
        self.configure(*rules)
        self._gates: dict[Who, Gate] = {}

    def configure(self, *rules: Rule) -> None:
        self.limits.configure(rules, self.now, self.wall)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.wall += seconds

    def hold(
        self,
        who: Who = ANNA,
        prompt: int = 100,
        most: int | None = 50,
        *,
        model: str = "m",
        end_user: str = "",
        price: PerToken | None = PRICE,
        predicted: int | None = None,
        copies: int = 1,
        degraded: bool = False,
    ) -> Held | Denied:
        gate = self._gates.setdefault(who, self.limits.gate(who))
        return self.limits.hold(
            gate, model, prompt, most, price, end_user, self.now, self.wall,
            predicted=predicted, copies=copies, degraded=degraded,
        )  # fmt: skip

    def held(self, *args: object, **more: object) -> Held:
        found = self.hold(*args, **more)  # type: ignore[arg-type]
        assert isinstance(found, Held), found
        return found

    def denied(self, *args: object, **more: object) -> Denied:
        found = self.hold(*args, **more)  # type: ignore[arg-type]
        assert isinstance(found, Denied), found
        return found

    def settle(self, held: Held, tokens: int, cost: int | None = 0) -> None:
        self.limits.settle(held, tokens, cost, self.now)

    def used(self) -> dict[str, int]:
        """By scope, where there is one rule of one measure."""
        return {s.scope: s.used for s in standing(self.limits, self.now, self.wall)}


# --- who is counted together ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "used"),
    [
        (Rule(name="r", each=Level.ALL, tokens_per_day=9_999), {"all": 750}),
        (
            Rule(name="r", each=Level.ORGANISATION, tokens_per_day=9_999),
            {"organisation acme": 450, "organisation other": 150, "organisation anonymous": 150},
        ),
        (
            Rule(name="r", each=Level.DEPARTMENT, tokens_per_day=9_999),
            {"department acme/research": 300, "department acme/sales": 150, "department other/research": 150},
        ),
        (
            Rule(name="r", each=Level.PROJECT, tokens_per_day=9_999),
            {"project acme/research/search": 300, "project other/research/search": 150},
        ),
        (
            Rule(name="r", each=Level.USER, user="anna", tokens_per_day=9_999),
            {"user acme/research/search/anna": 150, "user other/research/search/anna": 150},
        ),
        (
            Rule(name="r", each=Level.KEY, department="research", tokens_per_day=9_999),
            {"key k1": 150, "key k2": 150, "key k4": 150},
        ),
        (Rule(name="r", each=Level.KEY, key="k1", tokens_per_day=9_999), {"key k1": 150}),
        (Rule(name="r", each=Level.KEY, key="bert", tokens_per_day=9_999), {"key k2": 150}),
        (Rule(name="r", each=Level.KEY, key="anonymous", tokens_per_day=9_999), {"key anonymous": 150}),
        (Rule(name="r", each=Level.KEY, organisation="acme", user="bert", tokens_per_day=9_999), {"key k2": 150}),
        (Rule(name="r", each=Level.KEY, key="nobody", tokens_per_day=9_999), {}),
        (Rule(name="r", each=Level.ALL, models=("other",), tokens_per_day=9_999), {}),
    ],
)
def test_whose_use_counts_where(rule: Rule, used: dict[str, int]) -> None:
    book = Book(rule)
    for who in (ANNA, BERT, CARL, DORA, ANONYMOUS):
        book.held(who)
    assert {scope: n for scope, n in book.used().items() if n} == used


def test_an_end_user_is_counted_over_all_keys_of_a_project_and_not_beyond() -> None:
    book = Book(Rule(name="r", each=Level.END_USER, tokens_per_day=300))
    for who in (ANNA, BERT):
        book.held(who, end_user="x")
    assert book.denied(end_user="x").scope == "end-user acme/research/search/x"
    book.held(end_user="y")
    book.held(DORA, end_user="x")
    book.held(end_user="")  # who names none is no end user
    assert set(book.used().values()) == {300, 150}


def test_a_limit_for_one_end_user() -> None:
    book = Book(Rule(name="r", each=Level.END_USER, end_user="x", tokens_per_day=150))
    book.held(end_user="x")
    book.denied(end_user="x")
    book.held(end_user="y")


def test_a_model_s_limit_counts_that_model_alone() -> None:
    book = Book(
        Rule(name="large", each=Level.KEY, models=("large", "huge"), tokens_per_day=300),
        Rule(name="any", each=Level.KEY, tokens_per_day=600),
    )
    for model in ("large", "huge"):
        book.held(model=model)
    assert book.denied(model="large").rule.name == "large"
    for model in ("small", "m"):
        book.held(model=model)
    assert book.denied(model="small").rule.name == "any"


def test_end_users_are_remembered_up_to_a_bound() -> None:
    book = Book(Rule(name="r", each=Level.END_USER, tokens_per_day=150, concurrent=5), end_users=10)
    first = book.held(end_user="0")
    for n in range(1, 200):
        book.held(end_user=str(n))
        book.denied(end_user="1" if n < 9 else str(n))  # whoever keeps coming is kept
    scopes = book.limits.scopes
    assert (len(scopes.end_users), scopes.forgotten) == (10, 190)
    book.held(end_user="0")  # forgotten
    book.settle(first, 0)  # of what was forgotten
    assert [s.used for s in standing(book.limits, NOW, WALL) if s.path[-1] == "0"] == [1, 150]  # at once, tokens


def test_callers_who_used_nothing_are_dropped() -> None:
    book = Book(Rule(name="r", each=Level.KEY, tokens_per_day=150))
    book.limits.scopes = Scopes(10, sweep=10)
    book.configure(Rule(name="r", each=Level.KEY, tokens_per_day=150))
    kept = book.held()
    for n in range(100):
        book.limits.release(book.held(Who(f"g{n}", "", "acme")), book.now)
    assert len(book.limits.scopes.groups) < 20
    book.denied()
    book.settle(kept, 0)
    book.held()


# --- all or none ------------------------------------------------------------------------------------------------------


def test_a_denied_request_takes_nothing_anywhere() -> None:
    names = [m.value for m in Measure if m is not Measure.MONEY_MONTH]
    wide = [Rule(name=n, each=Level.KEY, **{n: 100_000}) for n in names]  # type: ignore[arg-type]
    book = Book(*wide, Rule(name="narrow", each=Level.ALL, money_per_month=10))
    assert book.denied().rule.name == "narrow"
    assert {s.used for s in standing(book.limits, book.now, book.wall)} == {0}


@pytest.mark.parametrize("racers", ["threads", "tasks"])
def test_of_fifty_racers_a_budget_for_ten_admits_ten(racers: str) -> None:
    """The loop is the only one to touch the limits; requests come to it from everywhere and end in any order. What is
    held counts as used, so it never is that ten more slip in between."""
    book = Book(Rule(name="team", each=Level.PROJECT, money_per_month=10 * (100 + 3 * 50)))
    admitted: list[Held] = []
    order = random.Random(6)

    async def request() -> bool:
        for _ in range(order.randrange(5)):
            await asyncio.sleep(0)
        found = book.hold(order.choice((ANNA, BERT)))
        if isinstance(found, Denied):
            return False
        admitted.append(found)
        await asyncio.sleep(0)
        book.settle(found, 150, 250)  # what was held is what it used
        return True

    async def race() -> list[bool]:
        if racers == "tasks":
            return await asyncio.gather(*(request() for _ in range(50)))
        loop, gate = asyncio.get_running_loop(), threading.Barrier(50)
        results: list[bool] = []

        def client() -> None:
            gate.wait()
            results.append(asyncio.run_coroutine_threadsafe(request(), loop).result(30))

        threads = [threading.Thread(target=client) for _ in range(50)]
        for thread in threads:
            thread.start()
        await asyncio.gather(*(asyncio.to_thread(thread.join) for thread in threads))
        return results

    results = asyncio.run(race())
    assert (len(results), sum(results), len(admitted)) == (50, 10, 10)
    assert book.used() == {"project acme/research/search": 2_500}


# --- what is held, and what comes back --------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["settle", "release"])
def test_a_hold_comes_back_once(how: str) -> None:
    book = Book(Rule(name="key", each=Level.KEY, concurrent=1, tokens_per_day=150))
    first = book.held()
    book.denied()
    for _ in range(2):
        if how == "settle":
            book.settle(first, 0)
        else:
            book.limits.release(first, book.now)
    book.held()
    book.denied()


def test_a_settlement_over_the_hold_is_counted() -> None:
    book = Book(Rule(name="day", each=Level.KEY, tokens_per_day=1_000))
    book.settle(book.held(), 2_000)
    assert book.used() == {"key k1": 2_000}
    assert book.denied().used == 2_000


def test_max_tokens_is_lowered_to_what_remains() -> None:
    book = Book(Rule(name="day", each=Level.KEY, tokens_per_day=400, least_answer=20))
    assert book.held().max_tokens is None
    second = book.held(most=500)
    assert (second.max_tokens, second.lowered_by, second.full) == (150, "day", 250)
    book.settle(second, 120)
    third = book.hold(prompt=111)  # 130 are left: an answer of 19 would be under the least
    assert isinstance(third, Denied)
    assert (third.needs, third.used) == (131, 270)
    assert book.held(prompt=110).max_tokens == 20
    book.held(prompt=0, most=0)  # embeddings of nothing fit into nothing


def test_a_short_answer_that_was_asked_for_needs_no_more_than_itself() -> None:
    book = Book(Rule(name="day", each=Level.KEY, tokens_per_day=105, least_answer=20))
    assert book.held(most=5).max_tokens is None


def test_a_request_without_max_tokens_is_given_one_by_budgets_that_hold_the_most() -> None:
    first = Book(Rule(name="day", each=Level.KEY, tokens_per_day=10_000, answer=300)).held(most=None)
    assert (first.max_tokens, first.lowered_by, first.full) == (300, "day", 400)
    for rule in (
        Rule(name="r", each=Level.KEY, tokens_per_minute=10_000, answer=300),
        Rule(name="r", each=Level.KEY, tokens_per_day=10_000, answer=300, hold=Hold.PREDICTED),
        Rule(name="r", each=Level.KEY, tokens_per_day=10_000, answer=300, over=Over.WARN),
    ):
        book = Book(rule)
        assert book.held(most=None).max_tokens is None
        assert book.used() == {"key k1": 400}


def test_money_lowers_max_tokens_to_what_can_be_paid() -> None:
    book = Book(Rule(name="month", each=Level.KEY, money_per_month=500))
    first = book.held(most=1_000_000)
    assert (first.max_tokens, first.full_cost) == (133, 499)
    denied = book.denied()
    assert (denied.why, denied.used, denied.limit, denied.needs) == (Why.QUOTA, 499, 500, 148)
    book.settle(first, 150, None)  # the price was lost: what was held stays spent
    assert book.used() == {"key k1": 499}


def test_several_answers_share_what_remains() -> None:
    book = Book(Rule(name="day", each=Level.KEY, tokens_per_day=200))
    held = book.held(most=50, copies=3)
    assert (held.max_tokens, held.full) == (33, 199)


def test_the_predicted_answer_is_held_where_the_rule_says_so() -> None:
    book = Book(Rule(name="day", each=Level.KEY, tokens_per_day=300, hold=Hold.PREDICTED))
    for _ in range(2):
        assert book.held(most=100_000, predicted=30).guess == 130
    assert book.denied(predicted=30).why is Why.QUOTA


def test_what_was_never_sent_counts_no_request_and_what_failed_does() -> None:
    book = Book(Rule(name="rate", each=Level.KEY, requests_per_minute=2))
    book.limits.release(book.held(), book.now)
    book.settle(book.held(), 0)
    book.held()
    book.denied()


# --- no price ---------------------------------------------------------------------------------------------------------


def test_a_limit_of_money_refuses_what_has_no_price() -> None:
    rule = Rule(name="month", each=Level.KEY, money_per_month=500)
    denied = Book(rule).denied(price=None)
    assert (denied.why, denied.rule) == (Why.UNPRICED, rule)


@pytest.mark.parametrize("more", [{"unpriced": Unpriced.PASS}, {"over": Over.WARN}])
def test_or_lets_it_pass_with_a_warning(more: dict[str, str]) -> None:
    book = Book(Rule(name="month", each=Level.KEY, money_per_month=500, **more))  # type: ignore[arg-type]
    held = book.held(price=None)
    assert held.warnings == ("month (no price)",)
    book.settle(held, 150, None)
    assert book.used() == {"key k1": 0}


# --- soft limits ------------------------------------------------------------------------------------------------------


def test_soft_limits_warn_and_degrade_and_count_on() -> None:
    book = Book(
        Rule(name="warns", each=Level.KEY, tokens_per_day=150, over=Over.WARN),
        Rule(name="lowers", each=Level.KEY, concurrent=2, over=Over.DEGRADE, degrade_class="low"),
        Rule(name="swaps", each=Level.KEY, money_per_day=800, over=Over.DEGRADE, degrade_model="small"),
    )
    said = [(h.warnings, h.degrade_class, h.degrade_model) for h in (book.held() for _ in range(4))]
    assert said == [
        ((), "", ""),
        (("warns",), "", ""),
        (("lowers", "warns"), "low", ""),
        (("lowers", "warns", "swaps"), "low", "small"),
    ]
    again = book.held(degraded=True)
    assert (again.warnings, again.degrade_class, again.degrade_model) == (("lowers", "warns", "swaps"), "", "")
    assert sorted(s.used for s in standing(book.limits, book.now, book.wall)) == [5, 750, 1_250]


def test_a_quota_is_named_before_a_rate_and_the_longest_of_them() -> None:
    book = Book(
        Rule(name="rate", each=Level.KEY, requests_per_minute=1),
        Rule(name="day", each=Level.KEY, tokens_per_day=150),
        Rule(name="month", each=Level.KEY, tokens_per_month=150),
    )
    book.held()
    denied = book.denied()
    assert (denied.rule.name, denied.resets - book.wall) == ("month", 29.5 * DAY)


# --- windows ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", Window)
def test_a_hold_belongs_to_the_window_it_was_made_in(window: Window) -> None:
    book = Book(Rule(name="day", each=Level.KEY, tokens_per_day=300, window=window))
    old = book.held()
    book.pass_time(DAY + 13 * HOUR)
    new = book.held(prompt=200)
    book.settle(old, 0)  # nothing comes back into the new window
    assert book.used() == {"key k1": 250}
    book.settle(new, 240)
    assert book.used() == {"key k1": 240}


def test_a_late_settlement_over_its_hold_is_the_old_window_s() -> None:
    book = Book(Rule(name="day", each=Level.KEY, tokens_per_day=300))
    old = book.held()
    book.pass_time(13 * HOUR)
    book.held(prompt=1, most=1)
    book.settle(old, 10_000)
    assert book.used() == {"key k1": 2}


def test_a_sliding_window_forgets_by_the_hour() -> None:
    book = Book(Rule(name="day", each=Level.KEY, tokens_per_day=300, window=Window.SLIDING))
    book.held()
    book.pass_time(HOUR)
    late = book.held()
    denied = book.denied()
    assert denied.resets - book.wall == 24 * HOUR  # the first hour is out of it then
    book.settle(late, 50)
    assert book.used() == {"key k1": 200}
    book.pass_time(24 * HOUR - 1)
    assert book.used() == {"key k1": 200}
    book.pass_time(1)
    assert book.used() == {"key k1": 50}
    book.pass_time(HOUR)
    assert book.used() == {"key k1": 0}


def test_days_turn_at_midnight_of_the_rule_s_zone() -> None:
    book = Book(
        Rule(name="day", each=Level.KEY, tokens_per_day=150, zone="Europe/Berlin"),
        wall=datetime.fromisoformat("2026-10-24T22:00:00Z").timestamp(),
    )
    book.held()
    denied = book.denied()
    assert denied.resets - book.wall == 25 * HOUR  # clocks are put back in that night
    book.pass_time(25 * HOUR - 1)
    book.denied()
    book.pass_time(1)
    book.held()


# --- clocks that jump -------------------------------------------------------------------------------------------------


def test_a_clock_that_jumped_ahead_and_is_put_right_gives_nothing_away() -> None:
    book = Book(Rule(name="day", each=Level.KEY, tokens_per_day=400))
    first = book.held()
    book.wall += 40 * DAY
    book.held()
    assert book.used() == {"key k1": 150}
    book.wall -= 40 * DAY
    assert book.used() == {"key k1": 300}
    book.settle(first, 100)
    assert book.used() == {"key k1": 250}
    book.wall += DAY
    assert book.used() == {"key k1": 0}


@pytest.mark.parametrize("window", Window)
@pytest.mark.parametrize("back", [1.0, 2 * HOUR, 13 * HOUR, 400 * DAY])
def test_a_clock_put_back_keeps_what_is_used_and_goes_on(window: Window, back: float) -> None:
    book = Book(Rule(name="day", each=Level.KEY, tokens_per_day=300, window=window), wall=WALL + HOUR / 2)
    first = book.held()
    book.pass_time(HOUR)
    book.held()
    book.wall -= back
    book.denied()
    book.settle(first, 100)
    assert book.used() == {"key k1": 250}
    book.wall += 3 * DAY
    assert book.used() == {"key k1": 0}


def test_holds_over_a_clock_that_crosses_midnight_twice() -> None:
    midnight = datetime.fromisoformat("2026-11-02T00:00Z").timestamp()
    book = Book(Rule(name="day", each=Level.KEY, tokens_per_day=1_000), wall=midnight - 1)
    holds = [book.held()]
    for wall in (midnight + 1, midnight - 1, midnight + 2):
        book.wall = wall
        holds.append(book.held())
    assert book.used() == {"key k1": 150}
    for held in holds:
        book.settle(held, 10)
    assert book.used() == {"key k1": 10}


# --- rules that change ------------------------------------------------------------------------------------------------


def test_what_is_used_stays_when_the_amounts_change() -> None:
    book = Book(Rule(name="day", each=Level.KEY, tokens_per_day=1_000, concurrent=4, tokens_per_minute=1_000))
    running = book.held()
    book.settle(book.held(), 100)
    book.configure(Rule(name="day", each=Level.KEY, tokens_per_day=120, concurrent=1, tokens_per_minute=200))
    denied = book.denied()
    assert (denied.measure, denied.used, denied.limit) == (Measure.TOKENS_DAY, 250, 120)  # under what is spent
    book.settle(running, 10)
    assert {s.measure: s.used for s in standing(book.limits, book.now, book.wall)} == {
        Measure.TOKENS_DAY: 110,
        Measure.CONCURRENT: 0,
        Measure.TOKENS_MINUTE: 110,
    }
    book.held(prompt=5, most=5)


def test_another_measure_window_or_zone_of_a_rule() -> None:
    book = Book(Rule(name="day", each=Level.KEY, tokens_per_day=1_000))
    book.settle(book.held(), 120)
    for more in ({"window": Window.SLIDING}, {"zone": "Asia/Shanghai"}, {}):
        book.configure(Rule(name="day", each=Level.KEY, tokens_per_day=1_000, **more))  # type: ignore[arg-type]
        assert book.used() == {"key k1": 120}
    book.configure(Rule(name="day", each=Level.KEY, concurrent=7))
    assert book.used() == {"key k1": 0}


def test_another_scope_is_another_rule() -> None:
    book = Book(Rule(name="day", each=Level.KEY, tokens_per_day=1_000))
    book.held()
    book.configure(Rule(name="day", each=Level.KEY, models=("m",), tokens_per_day=1_000))
    assert book.used() == {}
    book.held()
    assert book.used() == {"key k1": 150}


def test_a_rule_and_a_key_that_go_while_a_request_runs() -> None:
    book = Book(Rule(name="day", each=Level.KEY, tokens_per_day=1_000, concurrent=1))
    running = book.held()
    book.configure()
    assert not book.limits.active
    assert book.held().meters.all == ()
    book.settle(running, 10)
    book.configure(Rule(name="day", each=Level.KEY, tokens_per_day=1_000, concurrent=1))
    book.held()


def test_who_is_made_of_a_key() -> None:
    record = KeyRecord(id="k", sha256=b"", name="n", organisation="o", project="p")
    assert Who.of(record) == Who("k", "n", "o", "", "p", "")
