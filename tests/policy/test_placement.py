"""Which engine gets a request: by hand, through the admission that asks for it, gated and not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from random import Random

import pytest

from forebay.config.models import Class
from forebay.policy.admission import Admission
from forebay.policy.asks import Ask
from forebay.policy.decisions import Admit
from forebay.policy.facts import Facts, Report
from forebay.policy.placement import ALIKE, FEW, MOST_ADAPTERS, SAMPLED, RoundRobin
from forebay.policy.prefix import BLOCK_TOKENS, chain, salted
from forebay.policy.prior import PrefillPrior
from forebay.policy.rules import PlacementRules, Rules

PRIOR = PrefillPrior(
    base_s=0.005, per_token_s=1e-4, per_token_context_s=0.0, decode_step_s=0.005, per_sequence_s=1e-4,
    budget_tokens=2048,
)  # fmt: skip
FACTS = Facts(kv_tokens=200_000, block_size=16, max_num_seqs=64, prefill=PRIOR)
SLOW = replace(FACTS, prefill=replace(PRIOR, per_token_s=3e-4))
"""Prefill takes three times as long."""
FREE = Rules(gated=False)
SALT = salted(b"test")
ANSWER = 20
BOTH = pytest.mark.parametrize("gated", [False, True], ids=["placed", "gated"])


def blocks(name: str, count: int) -> list[int]:
    """The chain of a text of so many blocks; equal names give equal texts, and a longer one goes on as the shorter."""
    return chain(b"".join(f"{name} {i:4} ".encode().ljust(512, b".") for i in range(count)), SALT)


class House:
    """Engines and their clients: each request has its first token when the engine's arithmetic says so."""

    def __init__(self, rules: Rules = FREE, /, **engines: Facts) -> None:
        self.policy = Admission(rules, engines)
        self.placer = self.policy.placer
        self.now = 0.0
        self.keys = 0

    def ask(self, prefix: Sequence[int] = (), *, tokens: int = 0, **more: object) -> Ask:
        """`tokens`: beyond those of its prefix."""
        self.keys += 1
        return Ask(
            self.keys,
            prompt_tokens=len(prefix) * BLOCK_TOKENS + (tokens or 32),
            arrival=self.now,
            prefix=prefix,
            block_tokens=BLOCK_TOKENS,
            max_tokens=ANSWER,
            **more,  # type: ignore[arg-type]
        )

    def send(self, ask: Ask) -> str:
        decision = self.policy.offer(ask, self.now)
        assert isinstance(decision, Admit), decision
        assert decision.engine == ask.engine
        return decision.engine

    def answer(self, ask: Ask, cached: int | None = None) -> None:
        """First token and end, now; `cached`: tokens that the engine says were cached."""
        self.policy.on_first_token(ask, self.now)
        self.policy.on_end(ask, self.now, tokens=ANSWER, cached_tokens=cached)

    def one(self, prefix: Sequence[int] = (), *, after: float = 0.0, cached: int | None = None, **more: object) -> str:
        """A request from its beginning to its end, which come as was predicted; the next is sent `after` seconds
        later."""
        ask = self.ask(prefix, **more)  # type: ignore[arg-type]
        engine = self.send(ask)
        self.now += self.policy.books[engine].ttft.expected(ask.key)
        self.answer(ask, cached)
        self.now += after
        return engine

    def many(self, prefixes: Iterable[Sequence[int]], **more: object) -> Counter[str]:
        return Counter(self.one(prefix, **more) for prefix in prefixes)  # type: ignore[arg-type]


def house(gated: bool = False, facts: Facts = FACTS, names: Iterable[str] = "abc", **placement: object) -> House:
    rules = Rules(gated=gated, placement=PlacementRules(**placement))  # type: ignore[arg-type]
    return House(rules, **dict.fromkeys(names, facts))


def others(count: int, name: str = "other") -> list[list[int]]:
    """Prompts that have nothing in common."""
    return [blocks(f"{name} {i}", 8) for i in range(count)]


# --- prefixes --------------------------------------------------------------------------------------------------------


@BOTH
def test_a_cached_prefix_attracts_what_begins_with_it(gated: bool) -> None:
    it = house(gated)
    for prompt in others(10):
        it.one(prompt, after=1.0)
    first = it.one(blocks("talk", 8), after=1.0)
    for turn in range(9, 20):
        assert it.one(blocks("talk", turn), after=1.0) == first


def test_the_part_of_a_prompt_that_is_cached_is_not_counted_as_work() -> None:
    it = house()
    talk = blocks("talk", 16)
    home = it.one(talk)
    ask = it.ask(talk, tokens=100)
    it.send(ask)
    assert ask.cached == {home: 16 * BLOCK_TOKENS}
    assert ask.work == 100
    assert it.policy.books[home].ttft.tokens == 100


def test_the_last_token_of_a_prompt_is_computed_whatever_is_cached() -> None:
    it = house()
    it.one(blocks("talk", 4))
    ask = Ask(99, prompt_tokens=4 * BLOCK_TOKENS, arrival=0.0, prefix=blocks("talk", 4), block_tokens=BLOCK_TOKENS)
    it.send(ask)
    assert ask.work == 1


@BOTH
def test_prompts_without_a_common_prefix_are_spread_evenly(gated: bool) -> None:
    found = house(gated).many(others(300), after=0.05)
    assert set(found) == set("abc")
    assert max(found.values()) - min(found.values()) <= 6


def test_a_prefix_is_left_when_its_engine_was_given_much_more_work_lately() -> None:
    """recompute / balance is what decides: with less weight on recomputing or more on balance it is left sooner."""

    def stays(**weights: float) -> int:
        it = house(**weights)
        it.many(others(30), after=0.05)
        home = it.one(blocks("hot", 40))
        for count in range(1, 1_000):
            # Of the hot prefix, and each with a long end of its own.
            if it.one(blocks("hot", 40), tokens=2_000, after=0.05) != home:
                return count
        return 1_000

    usual = stays()
    assert 1 < usual < 200
    assert stays(balance=4.0) < usual < stays(balance=0.25)


def test_a_prefix_is_left_when_its_engine_would_be_late() -> None:
    it = house(late=1_000.0)
    talk = blocks("talk", 8)
    home = it.one(talk)
    for _ in range(10):
        it.one(others(1)[0], after=0.1)
    it.now += 1_000
    assert it.one(talk) == home
    flood = [it.ask(tokens=30_000, engines=(home,)) for _ in range(2)]  # some 6 s of prefill; 1.5 are promised
    for ask in flood:
        it.send(ask)
    ask = it.ask(talk)
    assert it.send(ask) != home
    assert it.placer.prefixes.match(talk) == {home: 8, ask.engine: 8}, "it took the prefix there"


def test_what_nobody_promised_is_never_late() -> None:
    patient = Rules(gated=False, ttft=dict.fromkeys(Class, 3600.0), placement=PlacementRules(late=1_000.0))
    it = House(patient, a=FACTS, b=FACTS)
    talk = blocks("talk", 40)
    home = it.one(talk)
    it.send(it.ask(tokens=20_000, engines=(home,)))
    assert it.send(it.ask(talk)) == home, "two seconds of waiting are worth less than half a second of prefill"


def test_with_admission_an_engine_that_would_be_late_is_none_at_all() -> None:
    it = house(gated=True, recompute=1e6)
    talk = blocks("talk", 8)
    home = it.one(talk)
    assert it.one(talk, after=1.0) == home
    it.send(it.ask(tokens=12_000, engines=(home,), cls=Class.VIP))
    assert it.send(it.ask(talk, cls=Class.VIP, ttft_slo=1.0)) != home


@BOTH
def test_a_hot_prefix_spreads_over_the_engines(gated: bool) -> None:
    """All of the traffic begins alike, and each request has work of its own: one engine is too few."""
    it = house(gated)
    hot = blocks("system", 16)
    found = it.many([hot] * 600, tokens=600, after=0.03)
    assert set(found) == set("abc")
    assert min(found.values()) > 100
    assert it.placer.prefixes.match(hot) == dict.fromkeys("abc", 16)


def test_an_engine_that_never_has_what_it_should_stops_attracting() -> None:
    it = house(names="ab")
    talk = blocks("talk", 8)
    home = it.one(talk, cached=0)
    trust = [it.placer.prefixes.trust(home)]
    for _ in range(5):
        it.one(talk, cached=0, engines=(home,))
        trust.append(it.placer.prefixes.trust(home))
    assert trust == sorted(trust, reverse=True)
    assert trust[-1] < 0.8
    it.one(talk, cached=0, engines=(home,))
    assert it.placer.prefixes.match(talk).get(home, 0) == 8, "as sent; what was there before is forgotten"
    for _ in range(200):
        it.one(talk, cached=0, engines=(home,), after=0.1)
    ask = it.ask(talk)
    it.placer.look(ask)
    assert ask.cached[home] < BLOCK_TOKENS / 8


def test_an_engine_that_has_what_it_should_is_believed_again() -> None:
    it = house(names="a")
    talk = blocks("talk", 8)
    for _ in range(50):
        it.one(talk, cached=0)
    low = it.placer.prefixes.trust("a")
    for _ in range(50):
        it.one(talk, cached=8 * BLOCK_TOKENS)
    assert low < 0.2 < 0.85 < it.placer.prefixes.trust("a")


def test_an_engine_that_does_not_say_what_was_cached_is_believed() -> None:
    it = house(names="a")
    for _ in range(20):
        it.one(blocks("talk", 8))
    assert it.placer.prefixes.trust("a") == 1.0


def test_what_an_engine_lost_or_cleared_does_not_attract() -> None:
    it = house()
    talk = blocks("talk", 8)
    home = it.one(talk)
    it.policy.cache_lost(home, talk, 3, it.now)
    assert it.placer.prefixes.match(talk) == {home: 3}
    it.policy.cache_cleared(home, it.now)
    ask = it.ask(talk)
    it.placer.look(ask)
    assert (ask.cached, ask.work) == ({}, ask.prompt_tokens)


def test_what_another_engine_prefilled_is_cached_on_both() -> None:
    it = house()
    talk = blocks("talk", 8)
    ask = it.ask(talk, engines=("a",))
    it.send(ask)
    it.policy.on_split(ask, "b", it.now)
    assert it.placer.prefixes.match(talk) == {"a": 8, "b": 8}
    it.answer(ask, cached=8 * BLOCK_TOKENS)  # was handed over; says nothing of a's cache
    assert it.placer.prefixes.trust("a") == 1.0


def test_the_index_follows_the_capacity_that_a_report_says() -> None:
    it = house(names="a", facts=replace(FACTS, kv_tokens=None))
    for prompt in others(40):
        it.one(prompt)
    assert it.placer.prefixes.held("a") == 320
    it.policy.on_report("a", Report(kv_tokens=100 * BLOCK_TOKENS), it.now)
    assert 90 <= it.placer.prefixes.held("a") <= 100
    assert it.policy.books["a"].kv_tokens == pytest.approx(100 * BLOCK_TOKENS, rel=0.01)


# --- load ------------------------------------------------------------------------------------------------------------


def test_it_goes_where_less_prefill_is_ahead() -> None:
    it = house()
    busy = {it.send(it.ask(tokens=5_000)) for _ in range(2)}
    assert len(busy) == 2
    assert it.send(it.ask(tokens=10)) not in busy


def test_it_goes_where_it_delays_fewer_answers() -> None:
    it = house(names="ab", interference=10.0, balance=0.0)
    for _ in range(10):
        ask = it.ask(engines=("a",))
        it.send(ask)
        it.policy.on_first_token(ask, it.now)
    assert [it.send(it.ask(tokens=500)) for _ in range(3)] == ["b"] * 3


def test_it_goes_where_there_is_room_though_the_engine_is_worse() -> None:
    it = House(replace(FREE, placement=PlacementRules(price=100.0)), a=replace(FACTS, max_num_seqs=2),
               b=replace(FACTS, cost=5.0))  # fmt: skip
    held = [it.ask() for _ in range(3)]
    assert [it.send(ask) for ask in held] == ["a", "a", "b"]
    it.answer(held[0])
    assert it.send(it.ask()) == "a"


def test_where_no_engine_has_room_it_goes_all_the_same() -> None:
    it = house(facts=replace(FACTS, max_num_seqs=1))
    assert Counter(it.send(it.ask()) for _ in range(9)) == {"a": 3, "b": 3, "c": 3}


def test_an_engine_three_times_slower_gets_about_a_third_of_the_work() -> None:
    it = House(FREE, fast=FACTS, slow=SLOW)
    tokens: Counter[str] = Counter()
    dice = Random(1)
    for i in range(2_000):
        size = dice.randrange(2, 30)
        tokens[it.one(blocks(f"p{i}", size), after=0.02)] += size
    assert 0.2 < tokens["slow"] / tokens["fast"] < 0.45


@pytest.mark.parametrize("factor", [1 / (ALIKE - 0.05), ALIKE - 0.05])
def test_an_engine_whose_rate_is_a_little_off_is_not_favoured(factor: float) -> None:
    off = replace(FACTS, prefill=replace(PRIOR, per_token_s=PRIOR.per_token_s * factor))
    it = House(FREE, a=FACTS, b=off, c=FACTS)
    found = it.many(others(300), after=0.05)
    assert 80 <= found["b"] <= 120


def test_a_rate_that_is_learned_counts_from_the_next_report_on() -> None:
    it = House(FREE, a=FACTS, b=FACTS)
    for _ in range(200):  # b takes four times as long as its configuration says
        ask = it.ask(tokens=4_000, engines=("b",))
        it.send(ask)
        it.now += 1.6
        it.answer(ask)
    assert it.policy.books["b"].slow == 1.0
    it.policy.on_report("b", Report(), it.now)
    assert 3.0 < it.policy.books["b"].slow < 5.0


def test_a_new_engine_is_not_flooded() -> None:
    it = house(names="ab")
    it.many(others(200), after=0.05)
    it.policy.engine_here("c", FACTS, it.now)
    found = it.many(others(90, "more"), after=0.05)
    assert 20 <= found["c"] <= 40


def test_an_engine_that_comes_back_has_an_empty_cache_and_is_not_flooded() -> None:
    it = house()
    talk = blocks("talk", 8)
    it.many(others(60), after=0.05)
    home = it.one(talk)
    it.policy.engine_gone(home, it.now)
    assert it.one(talk) != home
    it.policy.engine_here(home, FACTS, it.now)
    assert home not in it.placer.prefixes.match(talk)
    assert it.many(others(60, "more"), after=0.05)[home] <= 30


def test_the_first_of_all_engines_may_leave() -> None:
    """Others' speeds are measured by it."""
    it = House(FREE, a=SLOW, b=FACTS, c=FACTS)
    assert [it.policy.books[name].slow for name in "bc"] == pytest.approx([1 / 3, 1 / 3], rel=0.2)
    it.policy.engine_gone("a", it.now)
    found = it.many(others(100), after=0.05)
    assert max(found.values()) - min(found.values()) <= 4
    assert [it.policy.books[name].slow for name in "bc"] == [1.0, 1.0]


@BOTH
@pytest.mark.parametrize("share", [0.01, 0.3, 0.5])
def test_an_engine_that_starts_slowly_gets_its_share(gated: bool, share: float) -> None:
    it = house(gated)
    it.many(others(60), after=0.05)
    found: Counter[str] = Counter()
    for prompt in others(300, "more"):
        it.policy.on_report("c", Report(share=share), it.now)
        found[it.one(prompt, tokens=1_000, after=0.02)] += 1
    assert 0.8 * share - 0.01 <= found["c"] / found["a"] <= 1.2 * share
    it.policy.on_report("c", Report(share=1.0), it.now)
    after = it.many(others(300, "then"), tokens=1_000, after=0.02)
    assert 80 <= after["c"] <= 130, "and it is not flooded when that is over"


def test_work_of_long_ago_does_not_count_even_after_hours() -> None:
    it = house(names="ab")
    for _ in range(20):
        it.one(blocks("x", 40), tokens=2_000, engines=("a",))
    assert it.many(others(10))["b"] == 10
    it.now += 5 * 3600
    found = it.many(others(100, "more"), after=0.05)
    assert abs(found["a"] - found["b"]) <= 4


# --- what an engine is -----------------------------------------------------------------------------------------------


def test_a_cheaper_engine_is_preferred_until_it_is_slower_by_the_price() -> None:
    it = House(
        replace(FREE, placement=PlacementRules(price=1.0, balance=0.0, recompute=0.0, late=0.0)), cheap=FACTS,
        dear=replace(FACTS, cost=2.0),
    )  # fmt: skip
    assert it.send(it.ask(tokens=3_000)) == it.send(it.ask(tokens=2_000)) == "cheap"  # 0.3 and 0.2 s
    while it.policy.books["cheap"].bound(it.ask(), it.now) < it.policy.books["dear"].bound(it.ask(), it.now) + 1.0:
        it.send(it.ask(tokens=500, engines=("cheap",)))
    assert it.send(it.ask()) == "dear"
    it.policy.configure(
        replace(FREE, placement=PlacementRules(price=100.0, balance=0.0, recompute=0.0, late=0.0)), it.now
    )
    assert it.send(it.ask()) == "cheap"


def test_an_engine_of_another_zone_is_farther() -> None:
    here = PlacementRules(zone="north", zone_penalty=50.0)
    it = House(replace(FREE, placement=here), a=replace(FACTS, zone="south"), b=replace(FACTS, zone="north"), c=FACTS)
    found = it.many(others(60), after=0.02)
    assert found["a"] == 0
    assert min(found["b"], found["c"]) > 20, "one whose zone is not known is not far"
    it.policy.configure(FREE, it.now)
    assert it.many(others(60, "more"), after=0.02)["a"] > 10


def test_a_request_for_an_adapter_goes_where_it_is_loaded() -> None:
    it = house(adapter_load=50.0)
    it.policy.on_report("b", Report(adapters=("sql", "poet")), it.now)
    it.policy.on_report("c", Report(adapters=()), it.now)
    assert it.many(others(20), model="sql") == {"b": 20}
    assert it.many(others(20, "more"), model="sql", engines=("a", "c")).total() == 20, "elsewhere it is loaded"
    assert set(it.many(others(60, "less"), model="base", after=0.05)) == set("abc"), "nobody said so of the base model"
    it.policy.on_report("b", Report(adapters=("poet",)), it.now)
    it.policy.on_report("c", Report(adapters=("sql",)), it.now)
    assert it.one(model="sql") == "c"
    it.policy.on_report("c", Report(), it.now)
    assert it.one(model="sql") == "c", "a report that does not say leaves what is known"
    it.policy.engine_gone("c", it.now)
    assert it.one(model="sql") in "ab"
    assert it.one(model="poet") == "b"


def test_adapters_are_bounded() -> None:
    it = house()
    for engine in "abc":
        it.policy.on_report(engine, Report(adapters=tuple(f"{engine}-{i}" for i in range(MOST_ADAPTERS))), it.now)
    assert len(it.placer._adapters) == MOST_ADAPTERS


# --- sessions --------------------------------------------------------------------------------------------------------

SESSIONS = [(salted(str(i).encode()) | 1) for i in range(400)]


@BOTH
@pytest.mark.parametrize("engines", [5, FEW + 4, SAMPLED + 6])
def test_a_session_stays_on_one_engine_and_few_move_when_one_leaves(gated: bool, engines: int) -> None:
    names = [f"e{i}" for i in range(engines)]
    it = house(gated, names=names, affinity=100.0)

    def where() -> dict[int, str]:
        return {session: it.one(session=session, after=0.05) for session in SESSIONS}

    before = where()
    assert where() == before
    found = Counter(before.values())
    assert max(found.values()) < 3.5 * len(SESSIONS) / engines, "they are spread"
    gone = before[SESSIONS[0]]
    it.policy.engine_gone(gone, it.now)
    after = where()
    assert {s for s in SESSIONS if after[s] != before[s]} == {s for s in SESSIONS if before[s] == gone}
    it.policy.engine_here(gone, FACTS, it.now)
    assert where() == before


def test_a_session_leaves_its_engine_where_that_is_worse_by_its_weight() -> None:
    it = house(affinity=2.0, recompute=0.0, late=0.0)
    home = it.one(session=7)
    it.send(it.ask(tokens=10_000, engines=(home,)))
    assert it.send(it.ask(session=7)) == home
    it.send(it.ask(tokens=10_000, engines=(home,)))
    assert it.send(it.ask(session=7)) != home


def test_requests_of_no_session_do_not_gather() -> None:
    assert set(house(affinity=100.0).many(others(30), after=0.05)) == set("abc")


# --- many engines ----------------------------------------------------------------------------------------------------


def test_of_many_engines_one_that_has_the_prefix_is_always_looked_at() -> None:
    it = house(names=[f"e{i}" for i in range(SAMPLED + 36)])
    talks = [blocks(f"talk {i}", 12) for i in range(50)]
    homes = [it.one(talk, after=0.05) for talk in talks]
    assert len(set(homes)) > 25
    for _ in range(3):
        assert [it.one(talk, after=0.05) for talk in talks] == homes


def test_of_many_engines_some_are_asked_and_all_get_work() -> None:
    names = [f"e{i}" for i in range(1_000)]
    it = house(names=names)
    ask = it.ask(others(1)[0])
    near = it.placer.near(it.policy._candidates(ask), ask, it.now)
    assert 1 < len(near) <= 24
    found = it.many([[]] * 6_000, tokens=500, after=0.001)
    assert len(found) > 990
    assert max(found.values()) <= 16


def test_of_many_engines_that_all_have_the_prefix_none_is_favoured() -> None:
    names = [f"e{i}" for i in range(SAMPLED + 36)]
    it = house(names=names)
    hot = blocks("system", 8)
    for name in names:
        it.one(hot, engines=(name,))
    found = it.many([hot] * 1_000, tokens=500, after=0.01)
    assert len(found) >= 95
    assert max(found.values()) <= 25


@pytest.mark.parametrize("engines", [2, FEW, FEW + 1, SAMPLED, SAMPLED + 1])
def test_load_is_even_at_every_size_of_fleet(engines: int) -> None:
    it = house(names=[f"e{i}" for i in range(engines)])
    found = it.many([[]] * (20 * engines), tokens=500, after=0.01)
    assert len(found) == engines
    assert max(found.values()) <= 32


# --- equal calls, bad weights ----------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("engines", [3, FEW + 4, SAMPLED + 6])
def test_equal_calls_give_equal_decisions(gated: bool, engines: int) -> None:
    def run() -> list[str]:
        dice = Random(5)
        names = [f"e{i}" for i in range(engines)]
        it = house(gated, names=names)
        found = []
        for i in range(400):
            prefix = blocks(f"talk {dice.randrange(40)}", dice.randrange(1, 20))
            session = dice.choice(SESSIONS) if dice.random() < 0.2 else 0
            found.append(it.one(prefix, cached=dice.choice((None, 0, 512)), session=session, after=0.02))
            if i % 50 == 49:
                name = dice.choice(names)
                it.policy.engine_gone(name, it.now)
                it.policy.engine_here(name, FACTS, it.now)
        return found

    assert run() == run()


def test_a_quote_names_the_engine_that_an_offer_takes() -> None:
    it = house()
    for prompt in [blocks("talk", 8), *others(5), blocks("talk", 9)]:
        quoted = it.policy.quote(it.ask(prompt), it.now)
        assert it.one(prompt, after=0.1) == quoted.engine


@pytest.mark.parametrize("name", ["interference", "balance", "recompute", "late", "price", "zone_penalty",
                                  "adapter_load", "affinity"])  # fmt: skip
@pytest.mark.parametrize("value", [-1.0, float("inf"), float("nan")])
def test_a_weight_that_is_none_is_named(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{name} must be at least 0"):
        PlacementRules(**{name: value})  # type: ignore[arg-type]


def test_an_index_without_room_is_refused() -> None:
    with pytest.raises(ValueError, match="index_bytes must be at least"):
        PlacementRules(index_bytes=1)


def test_all_weights_at_zero_still_place_everything() -> None:
    zero = dict.fromkeys(("interference", "balance", "recompute", "late", "price", "zone_penalty", "adapter_load",
                          "affinity"), 0.0)  # fmt: skip
    assert house(**zero).many(others(30), after=0.05).total() == 30


def test_in_turn_means_in_turn_for_each_model() -> None:
    it = RoundRobin(bound=2)
    assert [it.choose("m", "abc", 0.0) for _ in range(4)] == ["a", "b", "c", "a"]
    assert [it.choose("n", "ab", 0.0) for _ in range(3)] == ["a", "b", "a"]
    assert it.choose("m", "abc", 0.0) == "b"
    assert (it.choose("m", "", 0.0), it.choose("m", "z", 0.0)) == (None, "z")
    it.choose("third", "ab", 0.0)
    assert len(it._turns) <= 2
