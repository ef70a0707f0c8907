"""The whole decision: by hand, and by properties against a model of an engine."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from forebay.config.models import Class
from forebay.policy.admission import Admission
from forebay.policy.asks import Ask, Stage
from forebay.policy.decisions import Admit, Decision, Refuse, Wait
from forebay.policy.engine_books import UNDER_WAY
from forebay.policy.facts import Facts, Report
from forebay.policy.lengths import LONGEST
from forebay.policy.lines import MOST_ROOMS
from forebay.policy.prior import PrefillPrior
from forebay.policy.rules import QueueRules, Rules

PRIOR = PrefillPrior(
    base_s=0.02, per_token_s=1e-4, per_token_context_s=0.0, decode_step_s=0.02, per_sequence_s=1e-4, budget_tokens=2048
)
FACTS = Facts(kv_tokens=200_000, block_size=16, max_num_seqs=64, prefill=PRIOR)
RULES = Rules()


def policy(rules: Rules = RULES, **engines: Facts) -> Admission:
    return Admission(rules, engines or {"a": FACTS})


class Asks:
    def __init__(self) -> None:
        self.n = 0

    def __call__(self, now: float = 0.0, tokens: int = 100, cls: Class = Class.NORMAL, **kw: object) -> Ask:
        self.n += 1
        return Ask(self.n, prompt_tokens=tokens, arrival=now, cls=cls, **kw)  # type: ignore[arg-type]


@pytest.fixture
def ask() -> Asks:
    return Asks()


def fill(admission: Admission, ask: Asks, n: int, now: float = 0.0, **kw: object) -> list[Ask]:
    """`n` asks on the engine that are past their first token."""
    made = [ask(now, **kw) for _ in range(n)]  # type: ignore[arg-type]
    for one in made:
        assert isinstance(admission.offer(one, now), Admit)
        admission.on_first_token(one, now + 0.01)
    return made


# --- by hand ---------------------------------------------------------------------------------------------------------


def test_an_idle_engine_takes_a_request_at_once_and_promises_its_prefill(ask: Asks) -> None:
    admission = policy()
    decision = admission.offer(ask(tokens=1000), 0.0)
    assert isinstance(decision, Admit)
    assert decision.engine == "a"
    assert 0.1 < decision.bound < 0.5


def test_without_an_engine_it_is_refused(ask: Asks) -> None:
    assert policy().offer(ask(engines=("b",)), 0.0) == Refuse("no_engine", 1.0)


def test_it_goes_where_it_is_answered_soonest(ask: Asks) -> None:
    admission = policy(a=FACTS, b=FACTS)
    first = admission.offer(ask(tokens=4000), 0.0)
    second = admission.offer(ask(tokens=100, cls=Class.VIP), 0.0)
    assert isinstance(first, Admit)
    assert isinstance(second, Admit)
    assert first.engine != second.engine


def test_what_waits_is_waiting_here_and_vip_is_handed_over(ask: Asks) -> None:
    admission = policy()
    admission.offer(ask(tokens=3200), 0.0)
    assert isinstance(admission.offer(ask(tokens=2000), 0.0), Wait)
    assert isinstance(admission.offer(ask(tokens=2000, cls=Class.VIP), 0.0), Admit)


def test_a_promise_that_cannot_be_kept_is_refused_at_once(ask: Asks) -> None:
    admission = policy()
    decision = admission.offer(ask(tokens=20_000), 0.0)  # 2 s of prefill
    assert isinstance(decision, Refuse)
    assert (decision.reason, decision.waited) == ("slo", False)
    assert decision.retry_after >= 1
    assert decision.expected == pytest.approx(2.2)  # prefill, and its steps


def test_a_prompt_that_is_long_by_itself_is_held_to_a_multiple_of_its_prefill(ask: Asks) -> None:
    admission = policy(replace(RULES, ttft_multiple=5.0))
    assert isinstance(admission.offer(ask(tokens=20_000), 0.0), Admit)
    more = [admission.offer(ask(tokens=20_000, cls=Class.VIP), 0.0) for _ in range(6)]
    assert [type(d) for d in more] == [Admit] * 3 + [
        Refuse
    ] * 3  # the fourth 20,000 tokens behind the first would end after five times its own prefill


def test_vip_goes_where_it_is_more_likely_in_time_than_not(ask: Asks) -> None:
    admission = policy()
    while isinstance(decision := admission.offer(ask(tokens=2000, cls=Class.VIP), 0.0), Admit):
        last = decision
    assert isinstance(decision, Refuse)
    assert decision.reason == "slo"
    assert last.bound > 1.5
    book = admission.books["a"].ttft
    assert 1.3 < book.quote(2000, 0.0).expected < 1.75
    assert isinstance(admission.offer(ask(tokens=2000), 0.0), Refuse)


def test_those_who_wait_are_looked_at_when_they_may_go(ask: Asks) -> None:
    admission = policy()
    now = 0.0
    while isinstance(admission.offer(ask(tokens=1000), now), Admit):
        pass
    looks = []
    while admission.books["a"].asks and (now := admission.next_due()) < inf:
        looks.append(now)
        assert len(looks) < 10
        if found := admission.due(now):
            break
    ((one, decision),) = found
    assert isinstance(decision, Admit)
    assert 0.001 < looks[-1] < 1.0
    early = policy()
    while isinstance(early.offer(ask(tokens=1000), 0.0), Admit):
        pass
    assert early.due(looks[-1] - 0.002) == []
    assert one.stage is Stage.ADMITTED


def test_no_more_sequences_than_the_engine_runs(ask: Asks) -> None:
    admission = policy(a=replace(FACTS, max_num_seqs=2))
    one, two = fill(admission, ask, 2)
    third = ask(0.1)
    assert isinstance(admission.offer(third, 0.1), Wait)
    assert admission.due(0.2) == []
    admission.on_end(one, 0.3, tokens=10)
    ((woken, decision),) = admission.due(0.3)
    assert woken is third
    assert isinstance(decision, Admit)
    assert two.stage is Stage.ANSWERING


def test_several_answers_take_several_places(ask: Asks) -> None:
    admission = policy(a=replace(FACTS, max_num_seqs=4))
    assert isinstance(admission.offer(ask(n=3), 0.0), Admit)
    assert isinstance(admission.offer(ask(n=2), 0.0), Wait)
    assert isinstance(admission.offer(ask(n=1, cls=Class.VIP), 0.0), Admit)


def test_the_kv_cache_is_not_filled_beyond_what_is_predicted_to_fit(ask: Asks) -> None:
    admission = policy(
        replace(RULES, shed=replace(RULES.shed, shed_at=1.0, resume_at=1.0)), a=replace(FACTS, kv_tokens=8_000)
    )
    taken = 0
    now = 0.0
    while True:
        one = ask(now, tokens=500, max_tokens=100)
        if not isinstance(admission.offer(one, now), Admit):
            break
        admission.on_first_token(one, now + 0.05)
        taken += 1
        now += 0.2
    assert 8 <= taken <= 12  # 600 tokens each at most, under 92 % of 8,000


def test_vip_may_fill_more_of_it_than_normal_and_normal_more_than_low(ask: Asks) -> None:
    shares = {}
    for cls in Class:
        admission = policy(
            replace(RULES, shed=replace(RULES.shed, shed_at=1.0, resume_at=1.0)), a=replace(FACTS, kv_tokens=40_000)
        )
        now = 0.0
        while True:
            one = ask(now, tokens=500, max_tokens=100, cls=cls)
            if not isinstance(admission.offer(one, now), Admit):
                break
            admission.on_first_token(one, now + 0.05)
            now += 0.2
        shares[cls] = admission.books["a"].use()
    assert shares[Class.VIP] > shares[Class.NORMAL] > shares[Class.LOW]


def test_over_the_line_all_but_vip_are_refused_at_once(ask: Asks) -> None:
    admission = policy(a=replace(FACTS, kv_tokens=10_000))
    now = 0.0
    while isinstance(admission.offer(one := ask(now, tokens=500, max_tokens=100, cls=Class.VIP), now), Admit):
        admission.on_first_token(one, now + 0.05)
        now += 0.2
    assert admission.books["a"].shed.over
    refused = admission.offer(ask(now, tokens=10, max_tokens=10), now)
    assert isinstance(refused, Refuse)
    assert refused.reason == "shed_kv"


def test_an_engine_that_preempts_is_over_the_line_already(ask: Asks) -> None:
    admission = policy()
    admission.on_report("a", Report(preemptions=5), 0.0)
    fill(admission, ask, 1)
    for i in range(3):
        admission.on_report("a", Report(preemptions=6 + i), 0.25 * (i + 1))
    refused = admission.offer(ask(1.0), 1.0)
    assert isinstance(refused, Refuse)
    assert (refused.reason, refused.expected) == ("shed_preempting", inf)
    vip = ask(1.0, cls=Class.VIP)
    assert isinstance(admission.offer(vip, 1.0), Admit)
    admission.on_first_token(vip, 1.1)
    admission.on_report("a", Report(preemptions=8), 89.0)
    assert isinstance(admission.offer(ask(90.0), 90.0), Admit), "the level falls while nothing is preempted"


def test_low_waits_for_idle_capacity(ask: Asks) -> None:
    admission = policy()
    admission.offer(ask(tokens=2100), 0.0)
    low = ask(tokens=100, cls=Class.LOW)
    assert isinstance(admission.offer(low, 0.0), Wait)
    assert admission.due(0.0) == []
    assert [(a, type(d)) for a, d in admission.due(admission.next_due())] == [(low, Admit)]


def test_better_classes_go_first_whoever_came_first(ask: Asks) -> None:
    admission = policy(a=replace(FACTS, max_num_seqs=1))
    (running,) = fill(admission, ask, 1)
    order = [ask(0.1, cls=c) for c in (Class.LOW, Class.NORMAL, Class.VIP, Class.NORMAL)]
    for one in order:
        assert isinstance(admission.offer(one, 0.1), Wait)
    went = []
    now = 0.2
    while running is not None:
        admission.on_end(running, now, tokens=1)
        found = admission.due(now)
        running = found[0][0] if found else None  # type: ignore[assignment]
        if running is not None:
            went.append(running)
            admission.on_first_token(running, now + 0.01)
        now += 0.05
    assert went == [order[2], order[1], order[3], order[0]]


def test_a_newcomer_does_not_overtake_those_who_wait(ask: Asks) -> None:
    admission = policy(a=replace(FACTS, max_num_seqs=2))
    fill(admission, ask, 1)
    big = ask(0.1, n=2)
    assert isinstance(admission.offer(big, 0.1), Wait)
    assert isinstance(admission.offer(ask(0.1), 0.1), Wait), "though one place is free"
    assert isinstance(admission.offer(ask(0.1, cls=Class.VIP), 0.1), Admit)


def test_waiting_ends_at_the_deadline(ask: Asks) -> None:
    admission = policy(replace(RULES, wait=dict.fromkeys(Class, 1.0)), a=replace(FACTS, max_num_seqs=1))
    fill(admission, ask, 1)
    low = ask(0.1, cls=Class.LOW)
    assert isinstance(admission.offer(low, 0.1), Wait)
    assert admission.due(1.05) == []
    ((late, decision),) = admission.due(1.2)
    assert late is low
    assert isinstance(decision, Refuse)
    assert (decision.reason, decision.waited) == ("deadline", True)


def test_one_whose_promise_is_out_of_reach_by_now_is_told_so(ask: Asks) -> None:
    admission = policy(a=replace(FACTS, max_num_seqs=1))
    fill(admission, ask, 1)
    normal = ask(0.1, tokens=5_000)
    assert isinstance(admission.offer(normal, 0.1), Wait)
    ((told, decision),) = admission.due(1.3)
    assert told is normal
    assert isinstance(decision, Refuse)
    assert decision.reason == "slo"


def test_one_of_low_that_is_out_of_reach_does_not_hold_up_the_next(ask: Asks) -> None:
    admission = policy(replace(RULES, ttft=dict.fromkeys(Class, 1.5)), a=replace(FACTS, max_num_seqs=1))
    (running,) = fill(admission, ask, 1)
    stale, fresh = ask(0.0, cls=Class.LOW), ask(1.4, cls=Class.LOW)
    assert isinstance(admission.offer(stale, 0.0), Wait)
    assert isinstance(admission.offer(fresh, 1.4), Wait)
    admission.on_end(running, 1.6, tokens=5)
    assert [(a, type(d)) for a, d in admission.due(1.6)] == [(stale, Refuse), (fresh, Admit)]


def test_a_client_that_leaves_while_waiting_leaves_nothing(ask: Asks) -> None:
    admission = policy(a=replace(FACTS, max_num_seqs=1))
    fill(admission, ask, 1)
    waiting = ask(0.1)
    admission.offer(waiting, 0.1)
    admission.on_end(waiting, 0.2, whole=False)
    assert admission.waiting(Class.NORMAL) == (0, 0)
    assert admission.due(0.3) == []


def test_models_do_not_block_each_other(ask: Asks) -> None:
    admission = policy(a=replace(FACTS, max_num_seqs=1), b=FACTS)
    assert isinstance(admission.offer(ask(model="x", engines=("a",)), 0.0), Admit)
    assert isinstance(admission.offer(ask(model="x", engines=("a",)), 0.0), Wait)
    assert isinstance(admission.offer(ask(model="y", engines=("b",)), 0.0), Admit)


def test_an_engine_that_goes_takes_no_more_and_one_that_comes_serves_those_who_wait(ask: Asks) -> None:
    admission = policy(a=replace(FACTS, max_num_seqs=1))
    (running,) = fill(admission, ask, 1)
    waiting = ask(0.1)
    admission.offer(waiting, 0.1)
    assert admission.engine_gone("a", 0.2) == [running]
    admission.on_end(running, 0.2, whole=False)
    assert admission.due(0.25) == []
    admission.engine_here("b", FACTS, 0.3)
    ((woken, decision),) = admission.due(0.3)
    assert woken is waiting
    assert isinstance(decision, Admit)
    assert decision.engine == "b"


def test_an_engine_that_comes_back_still_holds_what_it_held(ask: Asks) -> None:
    admission = policy(a=replace(FACTS, max_num_seqs=2))
    (first,), second = fill(admission, ask, 1), ask(0.1)
    admission.offer(second, 0.1)
    admission.engine_gone("a", 0.2)
    admission.on_first_token(second, 0.3)
    admission.engine_here("a", replace(FACTS, max_num_seqs=2), 0.4)
    assert isinstance(admission.offer(ask(0.5), 0.5), Wait)
    for one in (first, second):
        admission.on_end(one, 0.6, tokens=3)
    assert (admission.books["a"].sequences, admission.books["a"].decoding) == (1, 0) or not admission.books[
        "a"
    ].decoding


def test_what_fits_onto_no_empty_engine_is_refused_and_holds_nobody_up(ask: Asks) -> None:
    admission = policy(replace(RULES, ttft_multiple=100.0), a=replace(FACTS, kv_tokens=2_000, max_num_seqs=4))
    for large in (ask(tokens=1_950), ask(n=5), ask(tokens=1_600, cls=Class.LOW)):
        refused = admission.offer(large, 0.0)
        assert isinstance(refused, Refuse)
        assert refused.reason == "too_long"
    assert isinstance(admission.offer(ask(), 0.0), Admit)


def test_a_reload_keeps_order_and_loses_none(ask: Asks) -> None:
    admission = policy(a=replace(FACTS, max_num_seqs=1))
    fill(admission, ask, 1)
    waiting = [ask(0.1, tokens=10, cls=Class.LOW) for _ in range(5)]
    for one in waiting:
        assert isinstance(admission.offer(one, 0.1), Wait)
    told = admission.configure(replace(RULES, queue=QueueRules(requests=6, low_share=0.5)), 0.2)
    assert [a for a, d in told if isinstance(d, Refuse) and d.reason == "reload"] == [waiting[4], waiting[3]] or [
        a for a, _ in told
    ] == waiting[3:]
    assert admission.waiting(Class.LOW) == (3, 30)


def test_each_refusal_gets_a_later_slot_and_none_beyond_the_bound(ask: Asks) -> None:
    admission = policy()
    waits = []
    for _ in range(200):
        decision = admission.offer(ask(tokens=20_000), 0.0)
        assert isinstance(decision, Refuse)
        waits.append(decision.retry_after)
    assert waits[0] < waits[5] < waits[9]
    assert max(waits) <= 61
    assert len(set(waits[:10])) == 10


def test_an_answer_read_whole_is_presumed_to_have_begun_when_it_was_promised(ask: Asks) -> None:
    admission = policy()
    unary = ask(tokens=1000, streams=False)
    decision = admission.offer(unary, 0.0)
    assert isinstance(decision, Admit)
    admission.offer(ask(), decision.bound)
    assert unary.stage is Stage.ANSWERING
    assert admission.books["a"].decoding == 1
    assert admission.books["a"].ttft.learned == 0
    admission.on_end(unary, 2.0, tokens=30)
    assert admission.books["a"].decoding == 0


def test_a_prompt_that_is_computed_elsewhere_holds_kv_here_and_no_prefill(ask: Asks) -> None:
    admission = policy()
    books = admission.books["a"]
    one = ask(tokens=3_000, prefix=(1, 2, 3), block_tokens=800.0)
    assert isinstance(admission.offer(one, 0.0), Admit)
    held = books.kv.peak()
    assert books.ttft.backlog(0.0) > 0
    admission.engine_here("p", FACTS, 0.0)
    admission.on_split(one, "p", 0.0)
    assert (books.ttft.backlog(0.0), len(books.ttft), books.kv.peak()) == (0.0, 0, held)
    # The next one waits for nobody's prefill, and both engines have its prompt.
    assert books.bound(ask(), 0.0) == policy().books["a"].bound(ask(), 0.0)
    later = ask(tokens=3_000, prefix=(1, 2, 3), block_tokens=800.0)
    admission.quote(later, 0.0)
    assert later.matched == {"a": 3, "p": 3}
    admission.on_first_token(one, 1.0)
    assert (books.decoding, books.ttft.learned) == (1, 0)
    # What came by the handover is no hit of the engine's own cache.
    trust = admission.placer.prefixes.trust("a")
    admission.on_end(one, 2.0, tokens=5, cached_tokens=2_999)
    assert admission.placer.prefixes.trust("a") == trust
    assert (books.kv.peak(), books.sequences, books.decoding) == (0, 0, 0)
    admission.on_split(one, "p", 2.0)  # too late: nothing happens


def test_a_quote_decides_nothing(ask: Asks) -> None:
    admission = policy()
    one = ask(tokens=1000)
    first = admission.quote(one, 0.0)
    assert first.now
    assert first == admission.quote(one, 0.0)
    assert one.stage is Stage.NEW
    assert repr(admission.books["a"]).startswith("<EngineBooks a 0 in flight, 0 decoding")


def test_an_engine_that_does_not_say_its_capacity_has_none_until_it_does(ask: Asks) -> None:
    admission = policy(a=replace(FACTS, kv_tokens=None))
    fill(admission, ask, 30)
    assert admission.books["a"].use() < 0.01
    admission.on_report("a", Report(kv_tokens=4_000), 0.2)
    assert admission.books["a"].use() > 0.85


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("wait", dict.fromkeys(Class, 0.0), "wait needs a number greater than 0 for vip"),
        ("backlog_steps", 0.0, "backlog_steps must be greater than 0"),
        ("tpot", 0.0, "tpot must be greater than 0"),
        ("z", -1.0, "z must be at least 0"),
        ("ttft", {Class.VIP: 1.0}, "ttft needs a number greater than 0 for normal"),
        ("ceilings", dict.fromkeys(Class, 1.5), r"ceilings\.vip must be at most 1"),
        ("ttft_multiple", -1.0, "ttft_multiple must be at least 0"),
    ],
)
def test_rules_that_contradict_themselves(field: str, value: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        replace(RULES, **{field: value})


# --- by properties ---------------------------------------------------------------------------------------------------

STEP = st.tuples(
    st.floats(0, 0.3),
    st.sampled_from(["offer", "offer", "offer", "first", "end", "cancel", "report", "due", "gone", "here", "reload"]),
    st.integers(0, 1 << 30),
)


@examples(max_examples=200, deadline=None)
@given(st.lists(STEP, max_size=80))
def test_whatever_happens_the_books_are_right_and_everyone_is_told(steps: list[tuple[float, str, int]]) -> None:
    admission = policy(a=replace(FACTS, max_num_seqs=4, kv_tokens=20_000), b=replace(FACTS, kv_tokens=6_000))
    make = Asks()
    now = 0.0
    waiting: dict[int, Ask] = {}
    running: dict[int, Ask] = {}

    def hear(one: Ask, decision: Decision) -> None:
        waiting.pop(one.key, None)
        if isinstance(decision, Admit):
            running[one.key] = one
        elif isinstance(decision, Wait):
            waiting[one.key] = one
        else:
            assert one.stage is Stage.ENDED
            assert 1.0 <= decision.retry_after <= 61.0

    for gap, what, dice in steps:
        now += gap
        pick = sorted(running)[dice % len(running)] if running else None
        if what == "offer":
            cls = list(Class)[dice % 3]
            one = make(
                now, tokens=1 + dice % 3000, cls=cls, tenant=f"t{dice % 4}", max_tokens=dice % 500 + 1, n=1 + dice % 2
            )
            hear(one, admission.offer(one, now))
        elif what == "first" and pick is not None:
            admission.on_first_token(running[pick], now)
        elif what in ("end", "cancel") and pick is not None:
            admission.on_end(running.pop(pick), now, tokens=dice % 300, whole=what == "end")
        elif what == "cancel" and waiting:
            admission.on_end(waiting.pop(sorted(waiting)[dice % len(waiting)]), now, whole=False)
        elif what == "report":
            admission.on_report("ab"[dice % 2], Report(kv_used=dice % 100 / 99, preemptions=dice % 7), now)
        elif what == "gone":
            for one in admission.engine_gone("b", now):
                admission.on_end(running.pop(one.key), now, whole=False)
        elif what == "here" and "b" not in admission.books:
            admission.engine_here("b", FACTS, now)
        elif what == "reload":
            for one, decision in admission.configure(replace(RULES, wait=dict.fromkeys(Class, 1.0 + dice % 3)), now):
                hear(one, decision)
        for one, decision in admission.due(now):
            hear(one, decision)
        assert sum(admission.waiting(c)[0] for c in Class) == len(waiting)
        books = admission.books.values()
        assert sorted(k for b in books for k in b.asks) == sorted(running)
        for b in books:
            assert b.sequences == sum(a.n for a in b.asks.values())
            assert b.decoding == sum(a.n for a in b.asks.values() if a.stage is Stage.ANSWERING)
            assert len(b.ttft) == sum(a.stage is Stage.ADMITTED for a in b.asks.values())
            assert b.kv.requests == len(b.asks)
    for one in list(running.values()):
        admission.on_end(one, now, tokens=5)
    now += 31
    for one, decision in admission.due(now):
        hear(one, decision)
        if one.key in running and one.stage is not Stage.ENDED:
            admission.on_end(one, now, whole=False)
    assert not waiting
    assert all(b.kv.requests == b.sequences == b.decoding == 0 for b in admission.books.values())
    assert admission.next_due() == inf


# --- fairness --------------------------------------------------------------------------------------------------------


def test_a_tenant_that_floods_leaves_no_other_outside_the_door(ask: Asks) -> None:
    admission = policy(a=replace(FACTS, max_num_seqs=4))
    fill(admission, ask, 4)
    while not isinstance(admission.offer(ask(0.1, tokens=1_000, tenant="floods"), 0.1), Refuse):
        pass
    assert isinstance(admission.offer(ask(0.1, tokens=1_000, tenant="comes"), 0.1), Wait)
    assert isinstance(admission.offer(ask(0.1, tokens=1_000, tenant="floods"), 0.1), Refuse)


def counter(admission: Admission, tenant: str) -> float:
    admission.due(0.0)  # rooms are told in batches
    return admission.rooms[""].charged(tenant, Class.NORMAL)


def test_an_answer_that_gets_longer_than_predicted_is_paid_for_while_it_runs(ask: Asks) -> None:
    admission = policy()
    (one,) = fill(admission, ask, 1, tenant="a")
    before = counter(admission, "a")
    admission.on_tokens({one.key: 5_000}, 10.0)
    assert counter(admission, "a") > before + 2 * 4_000
    admission.on_end(one, 11.0, tokens=5_000)
    assert counter(admission, "a") == pytest.approx(RULES.queue.service(100, 5_000))


def test_who_leaves_before_the_first_token_pays_for_what_was_prefilled(ask: Asks) -> None:
    admission = policy()
    paid = []
    for i, waits in enumerate((0.0, 0.1, 1.0)):
        one = ask(10.0 * i, tokens=2_000, tenant=str(i))
        assert isinstance(admission.offer(one, 10.0 * i), Admit)
        expected = admission.books["a"].ttft.expected(one.key)
        admission.on_end(one, 10.0 * i + waits * expected, whole=False)
        paid.append(counter(admission, str(i)) - (counter(admission, str(i - 1)) if i else 0.0))
    assert paid == pytest.approx([0, 2_000 * 0.1 / UNDER_WAY, 2_000])


def test_a_first_token_of_an_answer_that_is_not_streamed_is_presumed_once(ask: Asks) -> None:
    """A long answer is passed on as it comes, so the driver sees some of it before its end."""
    admission = policy()
    long = ask(streams=False)
    admission.offer(long, 0.0)
    admission.on_first_token(long, 0.01)
    admission.on_end(long, 0.02, tokens=5)
    later = ask(60.0)
    assert isinstance(admission.offer(later, 60.0), Admit)
    book = admission.books["a"]
    assert (long.stage, book.decoding, book.unseen) == (Stage.ENDED, 0, {})
    assert book.ttft.learned == 0


def test_what_fits_onto_no_engine_goes_to_an_empty_one_alone(ask: Asks) -> None:
    """Its prompt and its predicted answer are over the ceiling: nothing would be gained by its waiting, and whoever
    comes behind it would wait for nothing."""
    admission = policy(RULES, a=replace(FACTS, kv_tokens=4096))
    large, small = ask(tokens=3000), ask(tokens=10, max_tokens=5)
    assert isinstance(admission.offer(large, 0.0), Admit)
    assert isinstance(admission.offer(small, 0.0), Wait)
    admission.on_end(large, 0.5)
    assert [(one, type(told)) for one, told in admission.due(0.5)] == [(small, Admit)]
    assert isinstance(admission.offer(ask(0.5, tokens=3000), 0.5), Wait)  # not beside another
    too_long = admission.offer(ask(0.5, tokens=4000), 0.5)
    assert isinstance(too_long, Refuse)
    assert too_long.reason == "too_long"


def test_low_goes_by_the_engines_that_could_serve_it(ask: Asks) -> None:
    admission = policy(a=FACTS, b=FACTS)
    admission.offer(ask(tokens=2500, engines=("a",), model="m"), 0.0)
    low = ask(tokens=100, engines=("a",), model="m", cls=Class.LOW)
    assert isinstance(admission.offer(low, 0.0), Wait)
    assert admission.due(0.001) == []
    assert [one for one, _ in admission.due(0.2)] == [low]


def test_low_is_not_kept_by_first_tokens_that_nobody_sees(ask: Asks) -> None:
    admission = policy()
    for i in range(5):
        assert isinstance(admission.offer(ask(i / 4, tokens=2000, streams=False), i / 4), Admit)
    assert isinstance(admission.offer(ask(20.0, cls=Class.LOW), 20.0), Admit)


@pytest.mark.parametrize("after", [1.0, 20.0])
def test_after_a_reload_those_who_wait_may_do_so_for_as_long_as_it_says(ask: Asks, after: float) -> None:
    def rules(wait: float) -> Rules:
        return replace(RULES, ttft=dict.fromkeys(Class, 30.0), wait=dict.fromkeys(Class, wait))

    admission = policy(rules(3.0), a=replace(FACTS, max_num_seqs=1))
    fill(admission, ask, 1)
    first, second = ask(0.1), ask(0.2)
    admission.offer(first, 0.1)
    admission.offer(second, 0.2)
    assert admission.configure(rules(after), 0.5) == []
    newcomer = ask(0.6)
    admission.offer(newcomer, 0.6)
    assert admission.rooms[""].position(newcomer) == 2
    assert admission.next_due() == pytest.approx(0.1 + after)
    assert admission.due(0.05 + after) == []
    gone = admission.due(0.9 + after)
    assert [one for one, _ in gone] == [first, second, newcomer]
    assert {told.reason for _, told in gone if isinstance(told, Refuse)} == {"deadline"}


def test_an_engine_that_comes_back_changed_still_holds_what_is_on_it(ask: Asks) -> None:
    """A reload of its entry, or a KV cache that it had not told of."""
    admission = policy(a=replace(FACTS, kv_tokens=None, max_num_seqs=4))
    answering, *_ = fill(admission, ask, 2)
    fresh, whole = ask(1.0, tokens=2000), ask(1.0, streams=False)
    for one in (fresh, whole):
        assert isinstance(admission.offer(one, 1.0), Admit)
    admission.produced(answering, 40, 1.1)
    assert len(admission.engine_gone("a", 1.2)) == 4
    admission.engine_here("a", replace(FACTS, max_num_seqs=5), 1.3)
    book = admission.books["a"]
    assert (book.sequences, book.decoding, len(book.ttft)) == (4, 2, 2)
    assert book.kv.held_blocks == 7 + 9 + 125 + 7
    assert isinstance(admission.offer(ask(1.3), 1.3), Admit)
    assert isinstance(admission.offer(ask(1.3), 1.3), Wait)
    for one in list(book.asks.values()):
        admission.on_first_token(one, 1.4)
        admission.on_end(one, 1.5, tokens=50)
    assert (book.sequences, book.decoding, len(book.ttft), book.kv.held_blocks, book.unseen) == (0, 0, 0, 0, {})
    assert len(admission.due(1.5)) == 1


@pytest.mark.parametrize("lie", [10**18, 10**400], ids=["10^18", "10^400"])
def test_an_engine_that_lies_of_tokens_takes_no_turn_from_a_tenant_for_ever(ask: Asks, lie: int) -> None:
    for most, believed in ((50, 50), (None, LONGEST)):
        admission = policy()
        one = ask(tenant="t", max_tokens=most)
        admission.offer(one, 0.0)
        admission.on_end(one, 1.0, tokens=lie)
        admission.due(1.0)
        assert admission.rooms[""].charged("t", Class.NORMAL) == 100 + 2 * believed


@pytest.mark.parametrize("share", [float("nan"), inf, -1.0, 1e308])
def test_a_use_that_is_none_is_passed_over(ask: Asks, share: float) -> None:
    admission = policy()
    for size in (0, -5, 1):
        admission.on_report("a", Report(kv_used=share, kv_tokens=size), 0.0)
    assert admission.books["a"].kv.foreign_blocks == 0
    assert admission.books["a"].kv_tokens == FACTS.kv_tokens - 16


def test_whoever_has_no_engine_left_keeps_nobody_from_another(ask: Asks) -> None:
    one = replace(FACTS, max_num_seqs=1)
    admission = policy(a=one, b=one)
    (on_a, _), both = fill(admission, ask, 2, engines=("a", "b")), ("a", "b")
    again, other = ask(engines=("b",)), ask(engines=both)
    for late in (again, other):
        assert isinstance(admission.offer(late, 0.1), Wait)
    admission.on_end(on_a, 0.2)
    for lost in admission.engine_gone("b", 0.2):
        admission.on_end(lost, 0.2, whole=False)
    (_, refused), (gone_on, admitted) = admission.due(0.2)
    assert (type(refused), getattr(refused, "reason", "")) == (Refuse, "no_engine")
    assert (gone_on, type(admitted)) == (other, Admit)
    last = ask(0.3, engines=both)
    assert isinstance(admission.offer(last, 0.3), Wait)
    admission.engine_gone("a", 0.3)
    assert admission.due(0.4) == []  # all are gone: whoever waits, waits for one to come back
    admission.engine_here("b", one, 0.5)
    assert [(who, type(told)) for who, told in admission.due(0.5)] == [(last, Admit)]


def test_a_bound_beyond_every_float_is_none(ask: Asks) -> None:
    admission = policy(a=replace(FACTS, max_num_seqs=1))
    fill(admission, ask, 1)
    for _ in range(3):
        one = ask(tokens=30_000, max_tokens=10**400)
        assert isinstance(admission.offer(one, 0.0), Refuse)


def test_an_answer_whose_model_is_forgotten_takes_nobody_s_room(ask: Asks) -> None:
    admission = policy()
    old = ask(model="old")
    assert isinstance(admission.offer(old, 0.0), Admit)
    names = iter(range(10_000))
    while "old" in admission.rooms or len(admission.rooms) < MOST_ROOMS - 1:
        one = ask(model=str(next(names)))
        admission.offer(one, 0.0)
        admission.on_end(one, 0.0, tokens=1)
    admission.due(0.0)
    admission.on_end(old, 1.0, tokens=1)
    assert isinstance(admission.offer(ask(1.0, model="new", tokens=100_000), 1.0), Refuse)
    assert "new" in admission.rooms
