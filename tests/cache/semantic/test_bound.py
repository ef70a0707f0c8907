from __future__ import annotations

import math
import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.cache.semantic.bound import ALPHA, CLEAN, Pool, enough, interval

DELTA = 0.05
RUNGS = (0.9, 0.7, 0.5)


def pool() -> Pool:
    return Pool.of(RUNGS, 0.7)


def test_clean_labels_certify_no_later_than_enough_says() -> None:
    p = pool()
    for n in range(1, enough(0.01) + 1):
        p.learn(0.8, 0.0, 1.0, 0.01, 1)
        assert n > 350 or p.certified() == -1
    assert p.certified() == 2


def test_nothing_is_believed_before_300_labels_however_lax_delta_is() -> None:
    p = pool()
    for _ in range(CLEAN - 1):
        p.learn(0.8, 0.0, 1.0, 0.5, 1)
    assert p.certified() == -1
    p.learn(0.8, 0.0, 1.0, 0.5, 1)
    assert p.certified() == 2


def test_a_laxer_rung_waits_for_the_shipped_one() -> None:
    p = pool()
    for _ in range(2 * enough(DELTA)):
        p.learn(0.6, 0.0, 1.0, DELTA, 1)  # below the shipped rung: says nothing of it
    assert p.certified() == -1
    for _ in range(enough(DELTA)):
        p.learn(0.95, 0.0, 1.0, DELTA, 1)
    assert p.certified() == 2


def test_where_the_shipped_rung_fails_a_stricter_one_may_still_be_earned() -> None:
    rng, p = random.Random(1), pool()
    for _ in range(3_000):
        score = rng.choice((0.95, 0.75))
        p.learn(score, float(score < 0.9 and rng.random() < 0.3), 1.0, DELTA, p.serving(DELTA, True))
    assert p.refuted and p.certified() == 0


def false_certificates(risk: float, runs: int, labels: int) -> int:
    """Runs in which a rung whose risk is `risk` was ever certified, looked at after every label."""
    found = 0
    for seed in range(runs):
        rng, p = random.Random(seed), pool()
        for _ in range(labels):
            p.learn(0.8, float(rng.random() < risk), 1.0, DELTA, -1)
            if p.certified() >= 0:
                found += 1
                break
    return found


def test_a_rung_that_is_just_too_wrong_is_hardly_ever_certified_under_continuous_looking() -> None:
    # At most Binomial(40, 0.05): more than 6 has a probability below 0.4 %.
    assert false_certificates(DELTA * 1.02, 40, 1_000) <= 6


def test_a_rung_that_is_good_enough_is_certified() -> None:
    assert false_certificates(DELTA / 4, 10, 1_500) == 10


def test_weights_make_up_for_labels_of_near_misses_being_more_frequent() -> None:
    """Hits (score 0.8) are always right and labelled in one of ten; near misses (0.6), half as frequent as hits, are
    wrong in one of ten and always labelled. The risk of rung 0.5 is 1/30, above what the unweighted labels would say
    is allowed and below what it would have to be without weights."""
    rng, p, share = random.Random(3), pool(), 0.1
    for _ in range(60_000):
        if rng.random() < 2 / 3:
            if rng.random() < share:
                p.learn(0.8, 0.0, 1.0, DELTA, 1)
        else:
            p.learn(0.6, float(rng.random() < 0.1), share, DELTA, 1)
    lax = p.rungs[2]
    assert lax.wrong / lax.labels == pytest.approx(1 / 30, rel=0.15)
    assert p.certified() == 2


def test_drift_takes_a_certificate_back_and_later_data_give_it_again() -> None:
    rng, p = random.Random(4), pool()
    for _ in range(2_000):
        p.learn(0.8, 0.0, 1.0, DELTA, p.serving(DELTA, False))
    assert p.certified() == 2
    wrong = 0
    while p.certified() == 2:
        wrong += p.learn(0.8, float(rng.random() < 0.4), 1.0, DELTA, p.serving(DELTA, False)) or 1
    assert wrong < 60
    for _ in range(2_000):
        p.learn(0.8, 0.0, 1.0, DELTA, p.serving(DELTA, False))
    assert p.certified() == 2


def test_what_differs_only_in_form_is_closed_by_evidence_and_opened_by_evidence() -> None:
    p = pool()
    while not p.same_closed:
        p.learn_same(1.0, 1.0, DELTA)
    for _ in range(enough(DELTA) + 50):
        p.learn_same(0.0, 1.0, DELTA)
    assert not p.same_closed


def labels_until_given_up(p: Pool) -> int:
    """One label in four is wrong."""
    n = 0
    while not p.learn(0.8, float(n % 4 == 0), 1.0, DELTA, p.serving(DELTA, True)):
        n += 1
    return n


def test_what_is_served_on_trust_is_given_up_on_less_than_what_was_earned() -> None:
    trusted, earned = pool(), pool()
    for _ in range(enough(DELTA) + 1):
        earned.learn(0.8, 0.0, 1.0, DELTA, 1)
    assert earned.certified() == 2 and trusted.certified() == -1
    assert labels_until_given_up(trusted) < labels_until_given_up(earned)


def test_shipped_is_trusted_only_until_there_are_labels_enough() -> None:
    p = pool()
    assert p.serving(DELTA, True) == 1 and p.serving(DELTA, False) == -1
    for i in range(enough(DELTA)):
        p.learn(0.8, float(i % 18 == 0), 1.0, DELTA, 1)  # just above δ: neither proved nor refuted
    assert not p.refuted
    assert p.serving(DELTA, True) == -1


def test_a_pool_comes_back_from_json_as_it_was() -> None:
    p = pool()
    for i in range(400):
        p.learn(0.8, float(i % 7 == 0), 1.0, DELTA, 1)
    assert msgspec.json.decode(msgspec.json.encode(p), type=Pool) == p


@given(st.integers(1, 3_000), st.floats(0, 1))
def test_an_interval_holds_the_estimate_and_stays_in_bounds(labels: int, share: float) -> None:
    wrong = math.floor(share * labels)
    low, high = interval(labels, wrong)
    assert 0 <= low <= wrong / labels <= high <= 1


def test_an_interval_covers_at_all_times_at_once() -> None:
    missed, runs = 0, 100
    for seed in range(runs):
        rng, wrong = random.Random(seed), 0
        for n in range(1, 300):
            wrong += rng.random() < 0.1
            low, high = interval(n, wrong) if n % 10 == 0 else (0.0, 1.0)
            if not low <= 0.1 <= high:
                missed += 1
                break
    assert missed <= 12  # Binomial(100, 0.05): more has a probability below 0.2 %


def test_without_labels_nothing_is_known() -> None:
    assert interval(0, 0) == (0.0, 1.0)
    assert ALPHA == 0.05
