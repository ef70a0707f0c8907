"""Whether a prompt goes to a prefill engine: the formula's sides, one by one, and what is learned."""

from __future__ import annotations

import pytest

from forebay.policy.disaggregation import Disaggregation, SplitRules, Whole
from forebay.policy.prior import PrefillPrior

PRIOR = PrefillPrior(0.01, 1e-4, 0.0, 0.01, 0.0)
RULES = SplitRules(least_tokens=100, weight=1.0, longest=5.0, latency=0.01, per_token=1e-5)


def policy(**rules: float) -> Disaggregation:
    made = Disaggregation(RULES._replace(**rules))
    for name in ("p", "q", "d"):
        made.engine_here(name, PRIOR)
    return made


def busy(made: Disaggregation, engine: str, tokens: int, key: object = "ahead") -> None:
    made.began(key, engine, tokens, 0.0)


def test_an_idle_pair_gains_nothing_by_a_handover() -> None:
    made = policy()
    whole = made.whole("d", 4_000, 0.0)
    assert (whole.ttft, whole.decoding) == (pytest.approx(0.4, rel=0.1), 0)
    assert made.decide("d", 4_000, whole, ["p"], 0.0) is None


def test_it_is_split_from_the_first_sequence_that_would_wait_longer_than_the_handover_takes() -> None:
    made = policy()
    whole = made.whole("d", 4_000, 0.0)
    # Handover 0.05 s against n · 0.4 s.
    for decoding in (0, 1, 40):
        found = made.decide("d", 4_000, whole._replace(decoding=decoding), ["p"], 0.0)
        assert (found is not None) == (decoding > 0)
    found = made.decide("d", 4_000, whole._replace(decoding=1), ["p"], 0.0)
    assert found is not None and found.prefill == "p"
    assert found.ttft == pytest.approx(whole.ttft + 0.05)


def test_a_weight_of_0_looks_at_its_own_first_token_only() -> None:
    made = policy(weight=0.0)
    assert made.decide("d", 4_000, Whole(0.4, 0.4, 50), ["p"], 0.0) is None
    assert made.decide("d", 4_000, Whole(0.6, 0.4, 50), ["p"], 0.0) is not None


def test_what_the_decode_engine_has_cached_is_neither_moved_nor_worth_a_prefill() -> None:
    made = policy()
    whole = Whole(9.0, 0.4, 9)
    assert made.decide("d", 4_000, whole, ["p"], 0.0, cached=3_901) is None  # 99 are left
    assert made.decide("d", 4_000, whole, ["p"], 0.0, cached=3_900) is not None
    all_moved = made.decide("d", 4_000, whole, ["p"], 0.0)
    few_moved = made.decide("d", 4_000, whole, ["p"], 0.0, cached=3_000)
    assert all_moved is not None and few_moved is not None
    assert all_moved.ttft - few_moved.ttft == pytest.approx(3_000 * 1e-5)


def test_the_prefill_engine_that_is_done_first_gets_it() -> None:
    made = policy()
    whole = Whole(9.0, 0.4, 9)
    busy(made, "p", 8_000)
    assert made.decide("d", 4_000, whole, ["p", "q"], 0.0) is not None
    assert made.soonest(4_000, ["p", "q"], 0.0) == made.soonest(4_000, ["q"], 0.0)
    found = made.soonest(4_000, ["p", "q"], 0.0, cached_at={"p": 3_990})
    assert found is not None and found.prefill == "q"  # 8,000 ahead are more than 3,990 cached
    found = made.soonest(40_000, ["p", "q"], 0.0, cached_at={"p": 39_000})
    assert found is not None and found.prefill == "p"


def test_a_flood_at_the_prefill_engines_spills_over() -> None:
    made = policy()
    whole = Whole(0.4, 0.4, 2)
    sent = 0
    while made.decide("d", 4_000, whole, ["p"], 0.0) is not None:
        busy(made, "p", 4_000, key=sent)
        sent += 1
        assert sent < 10
    assert sent == 2  # a third of 1.25 s is more than 0.4 + 2 · 0.4 s


def test_whoever_would_be_given_up_is_not_sent() -> None:
    made = policy(longest=1.0)
    whole = Whole(100.0, 0.4, 50)
    assert made.decide("d", 9_000, whole, ["p"], 0.0) is not None
    assert made.decide("d", 11_000, whole, ["p"], 0.0) is None


def test_an_engine_that_failed_is_rested_twice_as_long_each_time_until_it_does_its_part() -> None:
    made = policy()
    whole = Whole(9.0, 0.4, 9)

    def sent(now: float) -> bool:
        return made.decide("d", 4_000, whole, ["p"], now) is not None

    at = 0.0
    for seconds in (1, 2, 4, 8, 16, 32, 60, 60):
        made.failed("p", at)
        made.failed("p", at + 0.1)  # of the same fall
        assert not sent(at + seconds - 0.01) and sent(at + seconds)
        at += seconds
    assert made.soonest(4_000, ["p"], at - 1, resting=True) is not None
    made.began("x", "p", 100, at)
    made.computed("x", "p", at + 0.1)
    made.failed("p", at + 1)
    assert sent(at + 2)


def test_the_books_follow_what_is_sent_and_answered() -> None:
    made = policy()
    quiet = made.soonest(1_000, ["p"], 0.0)
    busy(made, "p", 50_000)
    loaded = made.soonest(1_000, ["p"], 0.0)
    assert quiet is not None and loaded is not None and loaded.ttft > 4 * quiet.ttft
    with pytest.raises(ValueError):
        busy(made, "p", 1)
    made.gone("ahead", "p", 0.0)
    again = made.soonest(1_000, ["p"], 0.0)
    assert again is not None and again.ttft == pytest.approx(quiet.ttft)
    made.began("slow", "p", 1_000, 0.0)
    made.computed("slow", "p", 2.0)
    slower = made.soonest(1_000, ["p"], 2.0)
    assert slower is not None and slower.ttft > quiet.ttft


def test_handovers_are_learned_and_one_says_only_so_much() -> None:
    made = policy()
    before = made.handover("d", 10_000)
    assert before == pytest.approx(0.01 + 0.1)
    made.fetched("d", 10_000, 1_000.0)
    assert made.handover("d", 10_000) == pytest.approx(0.01 + 0.13)
    for _ in range(200):
        made.fetched("d", 10_000, 0.01 + 0.02 + 0.4, step=0.02)
    assert made.handover("d", 10_000) == pytest.approx(0.01 + 0.4, rel=0.01)
    assert made.handover("other", 10_000) == pytest.approx(before)
    for _ in range(500):
        made.fetched("d", 10, 0.0)
    assert made.handover("d", 10_000) >= 0.01


def test_an_engine_that_is_gone_is_forgotten() -> None:
    made = policy()
    made.fetched("p", 10, 1.0)
    made.failed("p", 0.0)
    made.engine_gone("p")
    assert set(made.books) == {"q", "d"}
    made.gone("x", "p", 0.0)
    made.computed("x", "p", 0.0)
    made.unseen("x", "p")
    made.engine_here("p", PRIOR)
    assert made.decide("d", 4_000, Whole(9.0, 0.4, 9), ["p"], 0.0) is not None
