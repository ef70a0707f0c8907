from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from math import inf
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.policy.asks import Ask, Class
from forebay.policy.queue import WaitingRoom
from forebay.policy.rules import Bounds, QueueRules

VIP, NORMAL, LOW = Class.VIP, Class.NORMAL, Class.LOW


def ask(key: int, cls: Class = NORMAL, tenant: str = "a", tokens: int = 100, **more: Any) -> Ask:
    return Ask(key, prompt_tokens=tokens, arrival=0.0, cls=cls, tenant=tenant, **more)


def room(**rules: Any) -> WaitingRoom:
    return WaitingRoom(QueueRules(**{"starved_share": 1.0, **rules}))


def drain(r: WaitingRoom, now: float = 0.0, *, idle: bool = True) -> list[int]:
    """Takes all, each charged its prompt."""
    keys = []
    while (a := r.head(now, idle=idle)) is not None:
        r.charge(a.tenant, r.take(a, now), a.prompt_tokens)
        keys.append(a.key)
    return keys


# --- the same, naively ------------------------------------------------------------------------------------------------


class Naive:
    """The rules of the room in plain lists, looked through at every question."""

    def __init__(self, rules: QueueRules) -> None:
        self.rules = rules
        self.waiting: list[dict[str, Any]] = []
        self.counters: dict[tuple[Class, str], dict[str, float]] = {}
        self.last: dict[Class, str] = {}
        self.number = 0
        self.turns = 0

    def of(self, band: Class) -> list[dict[str, Any]]:
        return [w for w in self.waiting if w["band"] is band]

    def account(self, band: Class, tenant: str) -> dict[str, float]:
        floor = self.floor(band)
        return self.counters.setdefault((band, tenant), {"c": floor, "base": floor, "at": -inf, "stamp": 0})

    def floor(self, band: Class) -> float:
        tenants = {w["ask"].tenant for w in self.of(band)}
        if tenants:
            return min(self.counters[band, t]["c"] for t in tenants)
        return self.counters[band, self.last[band]]["c"] if band in self.last else 0.0

    def join(self, w: dict[str, Any], band: Class, now: float) -> None:
        tenant = w["ask"].tenant
        if tenant not in {v["ask"].tenant for v in self.of(band)}:
            account, floor = self.account(band, tenant), self.floor(band)
            self.number += 1
            account.update(c=max(account["c"], floor), base=floor, at=now, stamp=self.number)
        w["band"] = band
        self.waiting.append(w)

    def leave(self, w: dict[str, Any]) -> None:
        self.waiting.remove(w)
        if w["ask"].tenant not in {v["ask"].tenant for v in self.of(w["band"])}:
            self.last[w["band"]] = w["ask"].tenant

    def starve(self, now: float) -> None:
        for w in sorted(self.of(LOW), key=lambda w: w["n"]):
            if w["since"] + self.rules.low_starvation_s <= now and self.may_promote():
                self.turns = 0
                self.leave(w)
                w["due"] = w["since"] + self.rules.low_starvation_s
                self.join(w, NORMAL, now)

    def may_promote(self) -> bool:
        share, normal = self.rules.starved_share, self.of(NORMAL)
        if share == 1:
            return True
        return not any(w["ask"].cls is LOW for w in normal) and (not normal or self.turns >= round(1 / share))

    def size(self, band: Class, tenant: str, extra: tuple[int, int] = (0, 0)) -> float:
        of = [w for w in self.of(band) if w["ask"].tenant == tenant]
        n, tokens = len(of) + extra[0], sum(w["ask"].prompt_tokens for w in of) + extra[1]
        return max(n / self.rules.requests, tokens / self.rules.tokens)

    def longest(self, band: Class) -> str:
        tenants = {w["ask"].tenant for w in self.of(band)}
        return max(tenants, key=lambda t: (self.size(band, t), self.counters[band, t]["stamp"]))

    def lacks(self, a: Ask) -> tuple[int, int, int, int]:
        """By how many requests and tokens the room, and the class's own bound, are exceeded with it."""
        rules, share, own = self.rules, self.rules.share(a.cls), self.rules.own(a.cls)
        room = max(1, int(rules.requests * share + 1e-9)), max(1, int(rules.tokens * share + 1e-9))
        n, t = (own.requests, own.tokens) if own else room
        same = [w["ask"].prompt_tokens for w in self.waiting if w["ask"].cls is a.cls]
        everyone = [w["ask"].prompt_tokens for w in self.waiting]
        return (
            len(everyone) + 1 - room[0],
            sum(everyone) + a.prompt_tokens - room[1],
            len(same) + 1 - n,
            sum(same) + a.prompt_tokens - t,
        )

    def put(self, a: Ask, now: float) -> list[int] | None:
        """Who was evicted; None: refused."""
        if a.deadline < now:
            return None
        self.starve(now)
        before = list(self.waiting)
        lasts = dict(self.last)
        evicted: list[int] = []
        if self.waiting:
            victims = self.displace(a)
            if victims is None:
                self.waiting, self.last = before, lasts
                return None
            for w in victims:
                self.leave(w)
            while a.cls is not LOW and max(self.lacks(a)[:2]) > 0 and self.of(LOW):
                tenant = self.longest(LOW)
                w = max((w for w in self.of(LOW) if w["ask"].tenant == tenant), key=lambda w: (w["due"], w["n"]))
                victims.append(w)
                self.leave(w)
            evicted = [w["ask"].key for w in victims]
        self.number += 1
        w = {"ask": a, "n": self.number, "since": now, "due": a.deadline}
        self.join(w, a.cls, now)
        return evicted

    def displace(self, a: Ask) -> list[dict[str, Any]] | None:
        over, over_t, mine, mine_t = self.lacks(a)
        low = self.of(LOW) if a.cls is not LOW else []
        need = max(mine, over - len(low))
        need_t = max(mine_t, over_t - sum(w["ask"].prompt_tokens for w in low))
        if need <= 0 and need_t <= 0:
            return []
        if not self.of(a.cls) or self.longest(a.cls) == a.tenant:
            return None
        longest = self.longest(a.cls)
        theirs = [w for w in self.of(a.cls) if w["ask"].tenant == longest]
        limit = self.size(a.cls, a.tenant, (1, a.prompt_tokens))
        found: list[dict[str, Any]] = []
        for w in sorted(theirs, key=lambda w: (w["due"], w["n"]), reverse=True):
            if need <= 0 and need_t <= 0:
                break
            gone = -len(found), -sum(f["ask"].prompt_tokens for f in found)
            if self.size(a.cls, longest, gone) <= limit:
                return None
            if w["ask"].cls is a.cls:
                found.append(w)
                need, need_t = need - 1, need_t - w["ask"].prompt_tokens
        return found if need <= 0 and need_t <= 0 else None

    def order(self) -> list[int]:
        return [
            w["ask"].key
            for band in Class
            for w in sorted(
                self.of(band),
                key=lambda w: (
                    self.counters[band, w["ask"].tenant]["c"],
                    self.counters[band, w["ask"].tenant]["stamp"],
                    w["due"],
                    w["n"],
                ),
            )
        ]

    def head(self, now: float, idle: bool) -> int | None:
        self.starve(now)
        bands = {w["ask"].key: w["band"] for w in self.waiting}
        return next((k for k in self.order() if idle or bands[k] is not LOW), None)

    def find(self, key: int) -> dict[str, Any]:
        return next(w for w in self.waiting if w["ask"].key == key)

    def expire(self, now: float) -> list[int]:
        gone = sorted((w for w in self.waiting if w["ask"].deadline <= now), key=lambda w: (w["ask"].deadline, w["n"]))
        for w in gone:
            self.leave(w)
        return [w["ask"].key for w in gone]

    def charge(self, tenant: str, band: Class, service: float) -> None:
        account = self.account(band, tenant)
        if not self.of(band):
            if account["c"] < self.floor(band):
                account["c"] = account["base"] = self.floor(band)
            self.last[band] = tenant
        account["c"] += service
        account["base"] += service

    def settle(self, tenant: str, band: Class, predicted: float, actual: float, at: float) -> None:
        account, more = self.counters[band, tenant], actual - predicted
        if at >= account["at"]:
            account["base"] += more
            account["c"] += more
        else:
            account["c"] = max(account["c"] + more, account["base"]) if more < 0 else account["c"] + more


def same(r: WaitingRoom, naive: Naive) -> None:
    assert [a.key for a in r] == naive.order()
    assert len(r) == len(naive.waiting)
    assert r.tokens == sum(w["ask"].prompt_tokens for w in naive.waiting)
    for cls in Class:
        of = [w["ask"] for w in naive.waiting if w["ask"].cls is cls]
        assert (r.count(cls), r.tokens_of(cls)) == (len(of), sum(a.prompt_tokens for a in of))
    assert r.starved == sum(w["ask"].cls is LOW and w["band"] is NORMAL for w in naive.waiting)
    due = [w["ask"].deadline for w in naive.waiting if w["ask"].deadline < inf]
    assert r.next_deadline() == (min(due) if due else None)
    young = [w["since"] + naive.rules.low_starvation_s for w in naive.of(LOW)] if naive.may_promote() else []
    assert r.next_starving() == (min(young) if young else None)
    for (band, tenant), account in naive.counters.items():
        assert r.charged(tenant, band) == account["c"]
    order = list(r)
    for a in order:
        assert a in r
        assert 0 <= r.position(a) < len(order)
        assert 0 <= round(r.ahead(a)[1]) <= r.tokens - a.prompt_tokens


RULES = st.builds(
    QueueRules,
    requests=st.integers(1, 16),
    tokens=st.integers(10, 120),
    normal_share=st.sampled_from([0.8, 0.9, 1.0]),
    low_share=st.sampled_from([0.2, 0.5, 0.8]),
    vip=st.none() | st.builds(Bounds, st.integers(1, 8), st.integers(1, 40)),
    normal=st.none() | st.builds(Bounds, st.integers(1, 8), st.integers(1, 40)),
    low=st.none() | st.builds(Bounds, st.integers(1, 8), st.integers(1, 40)),
    low_starvation_s=st.sampled_from([1.0, 4.0, inf]),
    starved_share=st.sampled_from([0.25, 0.5, 1.0]),
)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["put"] * 9 + ["go", "go", "go", "drop", "end", "sleep", "sleep"]),
        st.sampled_from(list(Class)),
        st.sampled_from("aaabcd"),
        st.integers(1, 15),
        st.integers(0, 6),
    ),
    min_size=20,
    max_size=60,
)


@settings(max_examples=300, deadline=None)
@given(rules=RULES, steps=STEPS, next_rules=RULES)
def test_any_sequence_is_as_in_the_naive_room(rules: QueueRules, steps: list[Any], next_rules: QueueRules) -> None:
    if rules.low_starvation_s == inf:
        rules = replace(rules, low_starvation_s=1e9)  # so that the naive one needs no case of its own
    r, naive = WaitingRoom(rules), Naive(rules)
    now = 0.0
    flying: list[tuple[Ask, Class, float, float]] = []
    for key, (what, cls, tenant, size, x) in enumerate(steps):
        if what == "put":
            a = ask(key, cls, tenant, size, deadline=now + x if x else inf)
            put = r.put(a, now)
            expected = naive.put(a, now)
            assert put.accepted == (expected is not None), (put, expected)
            assert [e.key for e in put.evicted] == (expected or [])
            assert (put.reason is None) == put.accepted
        elif what == "go":
            a = r.head(now, idle=x > 2)  # type: ignore[assignment]
            assert (a.key if a is not None else None) == naive.head(now, x > 2)
            if a is not None:
                cls = naive.find(a.key)["band"]
                assert r.take(a, now) is cls
                naive.turns += cls is NORMAL and a.cls is not LOW
                naive.leave(naive.find(a.key))
                r.charge(a.tenant, cls, size)
                naive.charge(a.tenant, cls, size)
                flying.append((a, cls, size, now))
        elif what == "drop" and len(r):
            a = list(r)[size % len(r)]
            assert r.drop(a, now)
            assert not r.drop(a, now)
            naive.leave(naive.find(a.key))
        elif what == "end" and flying:
            a, cls, charged, at = flying.pop(size % len(flying))
            r.settle(a.tenant, cls, charged, x, at)
            naive.settle(a.tenant, cls, charged, x, at)
        elif what == "sleep":
            now += x
            assert [a.key for a in r.expire(now)] == naive.expire(now)
        same(r, naive)
    r.head(now, idle=True)
    before = list(r)
    gone = r.rejudge(next_rules, now)
    r.head(now, idle=True)  # the new starvation bound may have moved some already, in both
    left = list(r)
    assert sorted([*left, *gone], key=id) == sorted(before, key=id)
    kept = {a.key for a in left if a.cls is not LOW}
    assert [a.key for a in before if a.key in kept] == [a.key for a in left if a.key in kept]
    if len(left) > 1:
        assert len(r) <= next_rules.requests
        assert r.tokens <= next_rules.tokens
    if not gone:
        assert len(before) == len(left)
    assert len(drain(r, now)) == len(left)
    assert repr(r) == "<WaitingRoom [vip 0, normal 0, low 0 | 0 tokens]>"


# --- order ------------------------------------------------------------------------------------------------------------


def test_the_classes_go_strictly_by_rank_and_low_only_when_idle() -> None:
    r = room()
    for key, cls in enumerate([LOW, NORMAL, VIP, LOW, NORMAL, VIP]):
        assert r.put(ask(key, cls), 0.0).accepted
    assert repr(r) == "<WaitingRoom [vip 2, normal 2, low 2 | 600 tokens]>"
    assert drain(r, idle=False) == [2, 5, 1, 4]
    assert r.head(0.0, idle=False) is None
    assert drain(r) == [0, 3]


def test_within_a_tenant_the_earliest_deadline_goes_first_and_ties_by_arrival() -> None:
    r = room()
    for key, deadline in enumerate([9.0, 3.0, inf, 3.0, 5.0, inf]):
        r.put(ask(key, deadline=deadline), 0.0)
    assert drain(r) == [1, 3, 4, 0, 2, 5]


SIZES = st.lists(st.integers(1, 1000), min_size=5, max_size=40)


@settings(max_examples=100, deadline=None)
@given(st.lists(SIZES, min_size=2, max_size=5), st.sampled_from([0, 700]), st.randoms(use_true_random=False))
def test_backlogged_tenants_are_served_alike(lines: list[list[int]], window: float, random: Random) -> None:
    """Within one largest request since they began to wait, two over any window; a locality window adds itself."""
    r = WaitingRoom(QueueRules(locality_tokens=window), warm=lambda _: random.random() < 0.5)
    key = 0
    for i, line in enumerate(lines):
        for tokens in line:
            r.put(ask(key := key + 1, tenant=str(i), tokens=tokens), 0.0)
    largest = max(map(max, lines)) + window
    served = dict.fromkeys(map(str, range(len(lines))), 0)
    left = {str(i): len(line) for i, line in enumerate(lines)}
    apart: dict[tuple[str, str], list[int]] = {pair: [0] for pair in combinations(served, 2)}
    while all(left.values()):
        a = r.head(0.0, idle=False)
        assert a is not None
        r.charge(a.tenant, r.take(a, 0.0), a.prompt_tokens)
        served[a.tenant] += a.prompt_tokens
        left[a.tenant] -= 1
        for (one, other), differences in apart.items():
            differences.append(served[one] - served[other])
    for differences in apart.values():
        assert max(map(abs, differences)) <= largest
        assert max(differences) - min(differences) <= 2 * largest


def test_service_is_within_5_percent_however_wrong_the_predictions_and_whoever_cancels() -> None:
    random, r = Random(4), room(requests=100)
    served = dict.fromkeys("abc", 0.0)
    flying: list[tuple[Ask, float, float, float]] = []
    key, now = 0, 0.0
    waiting = dict.fromkeys("abc", 0)
    for turn in range(6_000):
        now = turn * 0.01
        for tenant in "abc":
            while waiting[tenant] < 3:
                assert r.put(ask(key := key + 1, tenant=tenant, tokens=random.randint(10, 2000)), now).accepted
                waiting[tenant] += 1
        a = r.head(now, idle=False)
        assert a is not None
        predicted = r.rules.service(a.prompt_tokens, 5_000 if a.tenant == "a" else 200)
        actual = r.rules.service(a.prompt_tokens, 0 if a.tenant == "b" else random.randint(1, 400))
        r.charge(a.tenant, r.take(a, now), predicted)
        waiting[a.tenant] -= 1
        flying.append((a, predicted, actual, now))
        if len(flying) > 30:
            a, predicted, actual, at = flying.pop(random.randrange(len(flying)))
            r.settle(a.tenant, NORMAL, predicted, actual, at)
            served[a.tenant] += actual
    assert max(served.values()) <= 1.05 * min(served.values())


def one_by_one(r: WaitingRoom, turns: int, keys: int = 10_000) -> list[str]:
    """Who goes, where all who wait always come again."""
    went = []
    for i in range(turns):
        a = r.head(0.0, idle=False)
        assert a is not None
        r.put(ask(keys + i, tenant=a.tenant), 0.0)
        r.charge(a.tenant, r.take(a, 0.0), 100)
        went.append(a.tenant)
    return went


def test_idleness_earns_nothing() -> None:
    r = room()
    for key, tenant in enumerate("abz"):
        r.put(ask(key, tenant=tenant), 0.0)
    z = next(a for a in r if a.tenant == "z")
    r.charge("z", r.take(z, 0.0), 100)
    one_by_one(r, 1_000)
    r.put(ask(77, tenant="z"), 3_600.0)
    r.put(ask(78, tenant="fresh"), 3_600.0)
    went = one_by_one(r, 40, keys=50_000)
    assert {t: went.count(t) for t in set(went)} == {"a": 10, "b": 10, "z": 10, "fresh": 10}


def test_the_refund_of_an_old_charge_earns_nothing_after_the_lift_but_lowers_what_is_still_owed() -> None:
    r = room()
    r.put(ask(1, tenant="z"), 0.0)
    r.charge("z", r.take(next(iter(r)), 0.0), 500)
    r.put(ask(2, tenant="a"), 0.0)
    r.charge("a", NORMAL, 10_000)
    r.put(ask(3, tenant="z"), 60.0)
    assert r.charged("z", NORMAL) == r.charged("a", NORMAL) == 10_500
    r.settle("z", NORMAL, 500, 10, charged_at=0.0)
    assert r.charged("z", NORMAL) == 10_500
    r.charge("z", NORMAL, 300)
    r.settle("z", NORMAL, 300, 100, charged_at=61.0)
    assert r.charged("z", NORMAL) == 10_600
    r.settle("z", NORMAL, 500, 800, charged_at=0.0)
    assert r.charged("z", NORMAL) == 10_900
    r.settle("z", NORMAL, 250, 0, charged_at=0.0)
    assert r.charged("z", NORMAL) == 10_650
    r.settle("z", NORMAL, 250, 0, charged_at=0.0)
    assert r.charged("z", NORMAL) == 10_600


def test_who_was_admitted_without_waiting_owes_nothing_for_it_later() -> None:
    r = room()
    r.charge("busy", NORMAL, 1e6)
    r.put(ask(1, tenant="fresh"), 1.0)
    r.put(ask(2, tenant="busy"), 1.0)
    assert r.charged("fresh", NORMAL) == r.charged("busy", NORMAL) == 1e6


def test_idle_tenants_are_forgotten_the_longest_idle_first() -> None:
    r = room(idle_tenants=50)
    for i in range(500):
        r.put(ask(i, tenant=str(i)), 0.0)
        r.charge(str(i), r.take(next(iter(r)), 0.0), 100)
        r.charge(f"direct {i}", NORMAL, 1)
    band = repr(r._bands[NORMAL])
    assert band == "<Band normal 0 of 0 tenants, 50 idle | 0 tokens>"
    r.settle("17", NORMAL, 100, 40)
    r.settle("18", NORMAL, 100, 140)
    assert r.charged("18", NORMAL) == r.charged("direct 499", NORMAL) + 40
    assert repr(r._bands[NORMAL]) == band


def test_a_warm_prefix_goes_before_its_turn_within_the_window() -> None:
    r = WaitingRoom(QueueRules(locality_tokens=150), warm=lambda a: a.tenant == "warm")
    for key in range(3):
        r.put(ask(key, tenant="cold"), 0.0)
        r.put(ask(10 + key, tenant="warm"), 0.0)
    assert drain(r) == [10, 11, 0, 12, 1, 2]
    r = room(locality_tokens=150)
    r.put(ask(1), 0.0)
    r.put(ask(2, tenant="b"), 0.0)
    assert drain(r) == [1, 2]


# --- bounds -----------------------------------------------------------------------------------------------------------


def test_normal_is_refused_at_four_fifths_vip_when_full_and_low_leaves_for_both() -> None:
    r = room(requests=10)
    assert [r.put(ask(k, LOW), 0.0).accepted for k in range(6)] == [True] * 5 + [False]
    puts = [r.put(ask(10 + k), 0.0) for k in range(9)]
    assert [len(p.evicted) for p in puts] == [0, 0, 0, 1, 1, 1, 1, 1, 0]
    assert [e.key for p in puts for e in p.evicted] == [4, 3, 2, 1, 0]
    assert puts[-1].reason == "queue_held_back"
    puts = [r.put(ask(20 + k, VIP), 0.0) for k in range(3)]
    assert [p.reason for p in puts] == [None, None, "queue_full"]
    assert r.put(ask(30, LOW), 0.0).reason == "queue_full"
    assert len(r) == 10


def test_tokens_are_bounded_too_and_low_leaves_until_there_are_enough() -> None:
    r = room(tokens=1_000)
    for k in range(5):
        assert r.put(ask(k, LOW), 0.0).accepted
    put = r.put(ask(9, VIP, tokens=750), 0.0)
    assert (put.accepted, [e.key for e in put.evicted]) == (True, [4, 3, 2])
    assert r.put(ask(10, VIP, tokens=300), 0.0).reason == "queue_full"
    assert r.count(LOW) == 2, "nobody leaves for one that is refused"


def test_an_empty_room_takes_a_prompt_of_any_length() -> None:
    r = room(tokens=1_000)
    assert r.put(ask(1, LOW, tokens=90_000), 0.0).accepted
    assert r.put(ask(2, LOW, tokens=1), 0.0).reason == "queue_full"


def test_low_does_not_leave_for_low() -> None:
    r = room(requests=10)
    for k in range(5):
        r.put(ask(k, LOW if k < 2 else NORMAL, tenant="a"), 0.0)
    put = r.put(ask(9, LOW, tenant="a"), 0.0)
    assert (put.accepted, put.reason, put.evicted) == (False, "queue_held_back", ())


def test_what_starved_is_not_displaced_by_normal() -> None:
    r = room(normal=Bounds(10, 400), low_starvation_s=1.0)
    for k in range(5):
        r.put(ask(k, LOW, tenant="flood"), 0.0)
    r.put(ask(5, NORMAL, tenant="flood"), 0.0)
    r.put(ask(6, NORMAL, tenant="b", tokens=300), 0.0)
    put = r.put(ask(7, NORMAL, tenant="c", tokens=200), 2.0)
    assert (put.accepted, put.reason, r.starved, len(r)) == (False, "queue_class_full", 5, 7)
    assert [a.key for a in r.put(ask(8, NORMAL, tenant="c"), 2.0).evicted] == [5]


def test_what_starves_at_this_moment_is_not_evicted() -> None:
    r = room(requests=2, normal_share=1.0, low_starvation_s=1.0)
    r.put(ask(1, LOW), 0.0)
    r.put(ask(2, VIP), 0.0)
    assert not r.put(ask(3, VIP), 1.0).accepted


def test_a_class_may_have_a_bound_of_its_own() -> None:
    r = room(vip=Bounds(2, 500))
    assert [r.put(ask(k, VIP), 0.0).reason for k in range(3)] == [None, None, "queue_class_full"]
    assert r.put(ask(9, NORMAL), 0.0).accepted


def test_a_flood_of_one_tenant_leaves_the_room_to_others() -> None:
    r = room(requests=100)
    assert sum(r.put(ask(k, tenant="flood"), 0.0).accepted for k in range(10_000)) == 80
    puts = [r.put(ask(20_000 + k, tenant="quiet"), 0.0) for k in range(45)]
    assert [p.accepted for p in puts] == [True] * 40 + [False] * 5
    assert [e.key for p in puts for e in p.evicted] == list(range(79, 39, -1))
    assert not r.put(ask(30_000, tenant="flood"), 0.0).accepted


def test_who_waits_cannot_come_twice_and_who_does_not_cannot_go() -> None:
    r, a = room(), ask(1)
    r.put(a, 0.0)
    with pytest.raises(ValueError, match="waits already"):
        r.put(a, 0.0)
    r.take(a, 0.0)
    with pytest.raises(KeyError):
        r.take(a, 0.0)
    with pytest.raises(KeyError):
        r.position(a)
    assert not r.drop(a, 0.0)
    assert a not in r


@pytest.mark.parametrize("tokens", [-1.0, inf, float("nan")])
def test_only_numbers_of_tokens_are_charged(tokens: float) -> None:
    r = room()
    with pytest.raises(ValueError, match="cannot be charged"):
        r.charge("a", NORMAL, tokens)
    with pytest.raises(ValueError, match="cannot be settled"):
        r.settle("a", NORMAL, 1.0, tokens)


# --- time -------------------------------------------------------------------------------------------------------------


def test_who_waited_until_its_deadline_leaves() -> None:
    r = room()
    for key, deadline in enumerate([3.0, 1.0, inf, 2.0]):
        r.put(ask(key, deadline=deadline), 0.0)
    r.drop(next(a for a in r if a.key == 1), 0.0)
    assert r.next_deadline() == 2.0
    assert r.expire(1.99) == []
    assert [a.key for a in r.expire(3.0)] == [3, 0]
    assert r.next_deadline() is None
    assert r.put(ask(9, deadline=2.0), 3.0).reason == "deadline_passed"
    assert r.put(ask(9, deadline=3.0), 3.0).accepted, "it may be admitted at its deadline"


def test_the_deadlines_of_those_who_left_are_not_kept() -> None:
    r = room()
    r.put(ask(0, deadline=1e9), 0.0)
    for key in range(1, 5_000):
        a = ask(key, deadline=1e6 + key)
        r.put(a, 0.0)
        r.drop(a, 0.0)
    assert len(r._deadlines) < 200


def test_low_that_starves_goes_among_its_tenants_normal_ones_and_first() -> None:
    r = room(requests=10, low_starvation_s=5.0)
    r.put(ask(1, LOW, tenant="a"), 0.0)
    r.put(ask(2, NORMAL, tenant="a", deadline=6.0), 1.0)
    r.put(ask(3, NORMAL, tenant="b"), 1.0)
    r.put(ask(4, LOW, tenant="b"), 1.0)
    assert r.next_starving() == 5.0
    assert r.head(4.9, idle=False).key == 2  # type: ignore[union-attr]
    first = r.head(5.0, idle=False)
    assert first is not None
    assert (first.key, r.starved, r.count(LOW), r.count(NORMAL)) == (1, 1, 2, 2)
    assert repr(r) == "<WaitingRoom [vip 0, normal 2, low 2 (1 starved) | 400 tokens]>"
    assert r.next_starving() == 6.0
    evicted = [e.key for k in range(6) for e in r.put(ask(10 + k, tenant="c"), 5.0).evicted]
    assert evicted == [4], "not the one that starved"
    assert r.take(first, 5.0) is NORMAL, "whose turn it took"
    assert r.starved == 0


def test_where_normal_ones_wait_so_many_go_before_the_next_that_starves() -> None:
    r = room(low_starvation_s=1.0, starved_share=0.25)
    for k in range(20):
        r.put(ask(k, LOW), 0.0)
        r.put(ask(100 + k, NORMAL), 0.0)
    turns = [k >= 100 for k in drain(r, 10.0, idle=False)]
    assert turns == [True, True, True, True, False] * 5 + [False] * 15, "all of them once no other waits"


def test_starving_ones_do_not_go_before_other_tenants_turns() -> None:
    r = room(low_starvation_s=1.0)
    for k in range(20):
        r.put(ask(k, LOW, tenant="batch"), 0.0)
        r.put(ask(100 + k, NORMAL, tenant="chat"), 0.0)
    assert [k >= 100 for k in drain(r, 10.0, idle=False)] == [True, False] * 20


# --- where one stands -------------------------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(list(Class)), st.sampled_from("abcd"), st.integers(1, 5)), max_size=40),
    st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 900)), max_size=6),
)
def test_the_place_is_exact_where_the_asks_of_each_tenant_are_alike(puts: list[Any], charges: list[Any]) -> None:
    r = room(normal_share=1.0, low_share=1.0)
    for key, (cls, tenant, deadline) in enumerate(puts):
        r.put(ask(key, cls, tenant, 40 + 70 * "abcd".index(tenant), deadline=float(deadline)), 0.0)
    for tenant, tokens in charges:
        r.charge(tenant, NORMAL, tokens)
    asks = {a.key: a for a in r}
    places = {k: r.ahead(a) for k, a in asks.items()}
    ahead = 0
    for i, key in enumerate(drain(r)):
        assert (places[key][0], round(places[key][1])) == (i, ahead)
        ahead += asks[key].prompt_tokens


def test_the_place_among_a_thousand_tenants_is_near() -> None:
    random, r = Random(7), room()
    for key in range(1_500):
        r.put(ask(key, tenant=str(random.randrange(1_000)), tokens=random.randint(50, 150)), 0.0)
    asks = {a.key: a for a in r}
    places = {k: r.ahead(a) for k, a in asks.items()}
    ahead = 0
    for i, key in enumerate(drain(r)):
        assert abs(places[key][0] - i) <= 150
        assert abs(places[key][1] - ahead) <= 15_000
        ahead += asks[key].prompt_tokens


# --- reload -----------------------------------------------------------------------------------------------------------


def test_a_reload_keeps_the_order_and_returns_whoever_finds_no_place() -> None:
    r = room()
    key = 0
    for cls in (VIP, NORMAL, LOW):
        for tenant, n in (("a", 6), ("b", 2)):
            for _ in range(n):
                r.put(ask(key := key + 1, cls, tenant), 0.0)
    before = [a.key for a in r]
    gone = [a.key for a in r.rejudge(QueueRules(starved_share=1.0, requests=12), 1.0)]
    # low to its 6, normal is within its 9; then low, then normal, until 12 are left; of the longer line its last
    assert gone == [22, 21, 20, 19, 24, 18, 23, 17, 14, 13, 12, 11][: len(gone)]
    assert len(r) == 12
    assert (r.count(VIP), r.count(NORMAL), r.count(LOW)) == (8, 4, 0)
    assert [a.key for a in r] == [k for k in before if k not in gone]
    assert r.rejudge(QueueRules(starved_share=1.0), 1.0) == []


def test_a_reload_of_the_starvation_bound_holds_for_those_who_wait() -> None:
    r = room(low_starvation_s=inf)
    r.put(ask(1, LOW), 0.0)
    assert r.head(1e6, idle=False) is None
    assert r.next_starving() is None
    r.rejudge(QueueRules(starved_share=1.0, low_starvation_s=5.0), 2.0)
    assert r.next_starving() == 5.0
    assert r.head(5.0, idle=False) is not None


def test_under_less_room_those_of_low_that_starved_leave_before_normal() -> None:
    r = room(low_starvation_s=1.0)
    for k in range(4):
        r.put(ask(k, LOW), 0.0)
        r.put(ask(10 + k, NORMAL), 0.0)
    r.head(1.0, idle=False)
    assert r.starved == 4
    assert [a.key for a in r.rejudge(QueueRules(starved_share=1.0, requests=5, low_share=0.4), 1.0)] == [3, 2, 1]
    assert (r.starved, r.count(LOW), r.count(NORMAL)) == (1, 1, 4)


def test_a_reload_forgets_idle_tenants_beyond_the_new_bound() -> None:
    r = room()
    for i in range(20):
        r.charge(str(i), NORMAL, 1.0)
    r.rejudge(QueueRules(starved_share=1.0, idle_tenants=5), 0.0)
    assert repr(r._bands[NORMAL]) == "<Band normal 0 of 0 tenants, 5 idle | 0 tokens>"


@pytest.mark.parametrize(
    ("rules", "field"),
    [
        ({"requests": 0}, "requests"),
        ({"tokens": 0}, "tokens"),
        ({"normal_share": 1.1}, "normal_share"),
        ({"low_share": 0.9}, "low_share"),
        ({"low_starvation_s": 0.0}, "low_starvation_s"),
        ({"starved_share": 0.0}, "starved_share"),
        ({"locality_tokens": inf}, "locality_tokens"),
        ({"input_weight": -1.0}, "input_weight"),
        ({"input_weight": 0.0, "output_weight": 0.0}, "output_weight"),
        ({"idle_tenants": 0}, "idle_tenants"),
    ],
)
def test_rules_that_contradict_themselves_are_refused_by_name(rules: dict[str, Any], field: str) -> None:
    with pytest.raises(ValueError, match=field):
        QueueRules(**rules)
    with pytest.raises(ValueError, match="requests"):
        Bounds(0, 1)


@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 5_000), st.sampled_from(Class)), min_size=1, max_size=30)
)
def test_a_newcomer_is_told_the_place_it_then_has(coming: list[tuple[str, int, Class]]) -> None:
    r = room()
    for key, (tenant, tokens, cls) in enumerate(coming):
        one = ask(key, cls, tenant, tokens)
        told = r.ahead_of_new(one)
        r.put(one, 0.0)
        assert r.ahead(one) == pytest.approx(told)
        if key % 3 == 2 and (head := r.head(0.0, idle=True)) is not None:
            r.charge(head.tenant, r.take(head, 0.0), head.prompt_tokens)
