"""The survival estimate against plain means over what was observed, and against distributions whose rest is known."""

from __future__ import annotations

import random
from statistics import fmean, pvariance

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.policy.lengths import LONGEST, Lengths, bucket, first_of


@given(st.integers(0, LONGEST))
def test_a_length_lies_in_its_bucket_and_buckets_are_an_eighth_wide(tokens: int) -> None:
    at = bucket(tokens)
    assert first_of(at) <= tokens < first_of(at + 1)
    assert first_of(at + 1) - first_of(at) <= max(1, first_of(at) / 8)


def plain() -> Lengths:
    """Nearly without prior and without forgetting."""
    return Lengths(strength=1e-9, memory=1e9)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.integers(1, 16), min_size=1, max_size=15),
    st.integers(0, 15),
    st.one_of(st.none(), st.integers(1, 16)),
)
def test_where_buckets_are_single_lengths_it_is_the_mean_and_variance_of_those_still_running(
    answers: list[int], produced: int, cap: int | None
) -> None:
    lengths = plain()
    for tokens in answers:
        lengths.observe((), tokens, censored=False)
    rest = [min(t, cap or t) - produced for t in answers if t > produced]
    if cap is not None and cap <= produced:
        assert lengths.residual((), produced, cap) == (0.0, 0.0)
    elif rest:
        mean, var = lengths.residual((), produced, cap)
        assert mean == pytest.approx(fmean(rest), rel=1e-5)
        assert var == pytest.approx(pvariance(rest), rel=1e-4, abs=1e-3)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 16), st.booleans()), min_size=1, max_size=15))
def test_with_cut_answers_it_is_the_product_limit_estimate(answers: list[tuple[int, bool]]) -> None:
    """Kaplan and Meier 1958: the survival is the product over lengths t of 1 - ended(t) / reached(t)."""
    lengths = plain()
    for tokens, censored in answers:
        lengths.observe((), tokens, censored=censored)
    mean, alive = 0.0, 1.0
    for t in range(1, 17):
        mean += alive
        reached = sum(x > t - 1 for x, _ in answers)
        if reached:
            alive *= 1 - sum(x == t and not cut for x, cut in answers) / reached
        elif alive > 0:
            return  # nobody knows
    if alive == 0:
        assert lengths.residual((), 0, None)[0] == pytest.approx(mean, rel=1e-5)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 3000), min_size=50, max_size=300),
    st.integers(0, 2500),
    st.one_of(st.none(), st.integers(1, 4000)),
)
def test_it_is_between_the_shortest_and_the_longest_rest(answers: list[int], produced: int, cap: int | None) -> None:
    lengths = Lengths()
    for tokens in answers:
        lengths.observe(("m", "chat"), tokens, censored=False)
    mean, var = lengths.residual(("m", "chat"), produced, cap)
    assert var >= 0
    if cap is not None:
        more = max(0, cap - produced)
        assert 0 <= mean <= more + 1e-9
        assert var <= lengths.spread * more * more / 4 + 1e-6  # Popoviciu
        free, _ = lengths.residual(("m", "chat"), produced, None)
        assert mean <= free + 1e-9
    else:
        assert mean >= 1 - 1e-9


def draws(kind: str, n: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    if kind == "geometric":
        return [1 + int(rng.expovariate(1 / 300)) for _ in range(n)]
    if kind == "lognormal":
        return [1 + int(rng.lognormvariate(4.5, 1.0)) for _ in range(n)]
    return [rng.choice([rng.randint(20, 40), rng.randint(390, 430)]) for _ in range(n)]  # two modes


@pytest.mark.parametrize("kind", ["geometric", "lognormal", "two modes"])
@pytest.mark.parametrize("produced", [0, 64, 100, 256])
@pytest.mark.parametrize("cap", [None, 400])
def test_the_rest_is_unbiased(kind: str, produced: int, cap: int | None) -> None:
    lengths = Lengths(memory=20_000)
    for tokens in draws(kind, 20_000, 1):
        lengths.observe("m", tokens, censored=False)
    rest = [min(t, cap or t) - produced for t in draws(kind, 100_000, 2) if t > produced]
    mean, var = lengths.residual("m", produced, cap)
    assert mean == pytest.approx(fmean(rest), rel=0.04)
    assert var / lengths.spread == pytest.approx(pvariance(rest), rel=0.15, abs=32**2 / 3)  # a bucket is 32 wide at 400


def test_answers_cut_short_do_not_shorten_the_estimate() -> None:
    """Half of the clients leave at a random moment; the estimate is that of the answers nobody cut."""
    rng = random.Random(3)
    lengths, naive = Lengths(memory=20_000), []
    whole = draws("lognormal", 20_000, 4)
    for tokens in whole:
        leaves = rng.randint(0, 400) if rng.random() < 0.5 else tokens
        lengths.observe("m", min(tokens, leaves), censored=leaves < tokens)
        naive.append(min(tokens, leaves))
    mean, _ = lengths.residual("m", 0, None)
    assert mean == pytest.approx(fmean(whole), rel=0.05)
    assert fmean(naive) < 0.85 * fmean(whole)


def test_a_cut_before_the_first_token_tells_nothing() -> None:
    lengths = Lengths()
    lengths.observe("m", 0, censored=True)
    assert repr(lengths) == "<Lengths 0 answers, 0 of 512 groups | mean 257 tokens, spread 1.0>"


def test_an_empty_answer_counts_as_one_token() -> None:
    lengths = plain()
    lengths.observe("m", 0, censored=False)
    assert lengths.residual("m", 0, None)[0] == pytest.approx(1.0, rel=1e-3)


def test_before_anything_is_observed_there_is_the_prior() -> None:
    lengths = Lengths(prior_tokens=300)
    mean, var = lengths.residual(("m", "chat", "acme"), 0, None)
    assert mean == pytest.approx(300, rel=0.01)
    assert var**0.5 == pytest.approx(1.41 * 300, rel=0.02)
    assert lengths.residual("m", 900, None)[0] == pytest.approx(600, rel=0.02)
    assert lengths.residual("m", 0, 50)[0] == pytest.approx(44.9, rel=0.01)  # 300 · (1 - (1 + 50/900)^-3)


def test_max_tokens_that_is_reached_or_enormous() -> None:
    lengths = Lengths()
    assert lengths.residual("m", 10, 10) == (0.0, 0.0)
    assert lengths.residual("m", 11, 10) == (0.0, 0.0)
    assert lengths.residual("m", 10, 10**12) == lengths.residual("m", 10, None)
    mean, var = lengths.residual("m", 10**12, None)
    assert mean >= 1 and var >= 0


def test_a_group_leans_on_the_coarser_one_until_it_has_its_own() -> None:
    lengths = Lengths()
    for tokens in draws("geometric", 2000, 5):
        lengths.observe(("m", "chat", "acme"), tokens, censored=False)
    chat, _ = lengths.residual(("m", "chat"), 0, None)
    assert lengths.residual(("m", "chat", "newcomer"), 0, None)[0] == chat
    lengths.observe(("m", "chat", "newcomer"), 10, censored=False)
    one, _ = lengths.residual(("m", "chat", "newcomer"), 0, None)
    assert 0.7 * chat < one < chat
    for _ in range(200):
        lengths.observe(("m", "chat", "newcomer"), 10, censored=False)
    assert lengths.residual(("m", "chat", "newcomer"), 0, None)[0] < 20


def test_beyond_what_a_group_has_seen_it_follows_its_parent() -> None:
    lengths = Lengths()
    for tokens in draws("geometric", 4000, 6):
        lengths.observe(("m", "chat"), tokens, censored=False)
    for _ in range(300):
        lengths.observe(("m", "title"), 8, censored=False)
    assert lengths.residual(("m", "title"), 500, None)[0] == pytest.approx(
        lengths.residual(("m",), 500, None)[0], rel=0.1
    )


def test_it_follows_traffic() -> None:
    lengths = Lengths(memory=500)
    for tokens in draws("geometric", 4000, 7):
        lengths.observe("m", tokens, censored=False)
    for tokens in draws("geometric", 6000, 8):
        lengths.observe("m", 1 + tokens // 6, censored=False)
    assert lengths.residual("m", 0, None)[0] == pytest.approx(51, rel=0.15)


def test_a_group_with_few_answers_does_not_lag_behind_a_drift_that_all_share() -> None:
    lengths = Lengths()
    for scale in (400, 100):
        for i, tokens in enumerate(draws("geometric", 6000, 13)):
            lengths.observe(("m", "chat", i % 50), 1 + tokens * scale // 300, censored=False)
    quiet = fmean(lengths.residual(("m", "chat", i), 0, None)[0] for i in range(50))
    assert quiet == pytest.approx(100, rel=0.2)


def test_a_rare_tail_is_remembered_longer_than_the_head() -> None:
    """One answer in fifty is long: the mean of the ten among the last 500 would be off by 10 %."""
    rng = random.Random(9)
    lengths = Lengths(memory=500)
    off = []
    for i in range(60_000):
        lengths.observe("m", 10 if i % 50 else 500 + rng.randint(0, 1000), censored=False)
        if i % 2000 == 1999:
            off.append(abs(lengths.residual("m", 256, None)[0] / 744 - 1))
    assert fmean(off[5:]) < 0.06


def test_sums_are_covered_as_often_as_z_says_when_traffic_drifts() -> None:
    """Lengths swing by ± 15 % every 1,500 answers; the sums are of 64 that end one after another."""
    rng = random.Random(10)
    lengths = Lengths()
    covered = plainly = blocks = 0
    for block in range(1200):
        scale = 200 * (1.15 if block // 23 % 2 else 0.85)
        mean, var = lengths.residual("m", 0, None)
        total = 0
        for _ in range(64):
            tokens = 1 + int(rng.expovariate(1 / scale))
            total += tokens
            lengths.observe("m", tokens, censored=False)
        if block >= 100:
            blocks += 1
            covered += total <= 64 * mean + 2.33 * (64 * var) ** 0.5
            plainly += total <= 64 * mean + 2.33 * (64 * var / lengths.spread) ** 0.5
    assert covered / blocks >= 0.97
    assert plainly / blocks < 0.97
    assert lengths.spread > 1.1


def test_a_steady_stream_has_no_spread() -> None:
    lengths = Lengths()
    for tokens in draws("geometric", 20_000, 11):
        lengths.observe("m", tokens, censored=False)
    assert lengths.spread < 1.6


def test_groups_are_bounded_and_the_least_recently_observed_goes() -> None:
    lengths = Lengths(groups=4)
    for _ in range(50):
        lengths.observe(("m", "regular"), 7, censored=False)
    for i in range(50):
        lengths.observe(("m", "regular"), 7, censored=False)
        lengths.observe(("m", f"guest {i}"), 3000, censored=False)
    assert repr(lengths).startswith("<Lengths 150 answers, 4 of 4 groups | ")
    assert lengths.residual(("m", "regular"), 0, None)[0] < 100
    assert lengths.residual(("m", "guest 0"), 0, None) == lengths.residual(("m",), 0, None)


def test_the_same_calls_give_the_same_estimates() -> None:
    def run() -> tuple[float, float]:
        lengths = Lengths()
        for i, tokens in enumerate(draws("lognormal", 1000, 12)):
            lengths.observe(("m", i % 7), tokens, censored=i % 5 == 0)
        return lengths.residual(("m", 3), 40, 900)

    assert run() == run()


@pytest.mark.parametrize("bad", [{"groups": 0}, {"memory": 0.5}, {"strength": 0.0}, {"prior_tokens": 0.0}])
def test_settings_that_cannot_work_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="lengths need"):
        Lengths(**bad)  # type: ignore[arg-type]
