"""The TTFT book: by hand, against plain references, and on the engine model with traffic that shifts."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.hardware.catalogue import find_gpu, find_model
from forebay.hardware.roofline import RooflineSteps
from forebay.hardware.steptime import Chunk
from forebay.policy.prior import PrefillPrior
from forebay.policy.ttft import LEVELS, TtftBook
from forebay.sim.engine import EngineModel
from forebay.sim.jobs import Job
from forebay.sim.settings import EngineSettings

PRIOR = PrefillPrior(0.01, 2e-5, 1e-9, 0.006, 4e-5, 2048)


class Linear:
    """A step time that the book's formula is able to express, times `slow`."""

    warnings: Sequence[str] = ()

    def __init__(self) -> None:
        self.slow = 1.0

    def decode(self, n: int, context: int, longest: int) -> float:
        return self.slow * (0.006 + 4e-5 * n + 5e-8 * context)

    def mixed(self, chunks: Sequence[Chunk], n: int, context: int, longest: int) -> float:
        work = sum(2e-5 * c.tokens + 1e-9 * c.tokens * (c.context + c.tokens / 2) for c in chunks)
        return self.slow * (0.01 + 4e-5 * n + 5e-8 * context + work)


class Outcome:
    def __init__(self, at: float, tokens: int, expected: float, bound: float) -> None:
        self.at = at
        self.tokens = tokens
        self.expected = expected
        self.bound = bound
        self.took = math.inf


class Served:
    """One engine with a book beside it. Takes what comes while fewer than `most` prompt tokens wait for prefill."""

    def __init__(self, book: TtftBook, steps: Linear, *, most: int = 30_000) -> None:
        self.book = book
        self.steps = steps
        self.most = most
        self.engine = EngineModel(EngineSettings(num_blocks=1 << 18, max_num_seqs=1024), steps, self)
        self.open: dict[Job, Outcome] = {}
        self.outcomes: list[Outcome] = []
        self.decoding = self.beside = 0
        self.waiting = 0

    def arrive(self, at: float, prompt: int, output: int) -> Job | None:
        self.engine.advance(at)
        if self.waiting + prompt > self.most:
            return None
        job = Job(prompt, output)
        quoted = self.book.quote(prompt, at, decoding=self.decoding)
        self.book.dispatched(job, prompt, 0, at, decoding=self.decoding)
        self.beside = self.decoding
        self.open[job] = Outcome(at, prompt, *quoted[:2])
        self.waiting += prompt
        self.engine.submit(job, at)
        return job

    def cancel(self, job: Job, at: float) -> None:
        self.engine.advance(at)
        if job in self.open:
            self.engine.cancel(job, at)
            self.waiting -= self.open.pop(job).tokens
            self.book.gone(job, at)

    def finish(self) -> None:
        while self.engine.due() < math.inf:
            self.engine.advance(self.engine.due())

    def on_first_token(self, job: Job, at: float) -> None:
        outcome = self.open.pop(job, None)
        if outcome is None:
            return
        self.decoding += job.output_tokens > 1
        self.waiting -= outcome.tokens
        outcome.took = at - outcome.at
        self.outcomes.append(outcome)
        self.book.first_token(job, at)

    def on_finish(self, job: Job, at: float) -> None:
        self.decoding -= job.output_tokens > 1

    def on_scheduled(self, job: Job, at: float) -> None: ...
    def on_tokens(self, n: int, steps: int, first: float, last: float, jobs: object, at: float) -> None: ...
    def on_preempt(self, job: Job, at: float) -> None: ...


def drive(served: Served, n: int, rate: Callable[[int], float], *, seed: int = 1, cancel: float = 0.0) -> None:
    """`n` Poisson arrivals at `rate(i)` a second, prompts log-normal. A share `cancel` would leave after up to 1 s."""
    rng = random.Random(seed)
    at = 0.0
    leaving: list[tuple[float, int, Job]] = []
    for i in range(n):
        at += rng.expovariate(rate(i))
        while leaving and leaving[0][0] <= at:
            due, _, job = leaving.pop(0)
            served.cancel(job, due)
        prompt = min(8000, 1 + int(rng.lognormvariate(6.5, 1.0)))
        taken = served.arrive(at, prompt, 1 + int(rng.expovariate(1 / 150)))
        if taken is not None and rng.random() < cancel:
            leaving.append((at + rng.random(), i, taken))
            leaving.sort(key=lambda x: x[:2])
    served.finish()


def coverages(outcomes: Sequence[Outcome], window: int = 2000) -> list[float]:
    hits = [o.took <= o.bound for o in outcomes]
    return [sum(hits[i : i + window]) / window for i in range(0, len(hits) - window + 1, window)]


# --- the prior -------------------------------------------------------------------------------------------------------


def test_a_prior_of_linear_steps_is_exact() -> None:
    prior = PrefillPrior.of(Linear(), 2048)
    steps = Linear()
    book = TtftBook(prior)
    for tokens in (1, 100, 1000, 2048):
        assert book.ideal(tokens) == pytest.approx(steps.mixed([Chunk(tokens, 0)], 0, 0, 0), rel=0.02)
    long = steps.mixed([Chunk(2048, 0)], 0, 0, 0) + steps.mixed([Chunk(1000, 2048)], 0, 0, 0)
    assert book.ideal(3048) == pytest.approx(long, rel=0.02)
    cached = steps.mixed([Chunk(500, 8000)], 0, 0, 0)
    assert book.ideal(500, context_tokens=8000) == pytest.approx(cached, rel=0.02)


@pytest.mark.parametrize("gpu", ["h100", "rtx-4090"])
def test_a_prior_of_roofline_steps_is_near(gpu: str) -> None:
    steps = RooflineSteps(find_model("llama-3.1-8b"), find_gpu(gpu), host=0.001)
    prior = PrefillPrior.of(steps, 2048)
    assert prior.free_tokens > 50  # weights are read in the time of so many tokens
    book = TtftBook(prior)
    for tokens in (1, 64, 256, 512, 1024, 2048):
        assert book.ideal(tokens) == pytest.approx(steps.mixed([Chunk(tokens, 0)], 0, 0, 0), rel=0.15)


def test_a_prior_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="must be more than 0"):
        PrefillPrior(0.01, 0.0, 0.0, 0.01, 0.0)
    with pytest.raises(ValueError, match="must be at least 0"):
        PrefillPrior(0.01, 1e-5, -1e-9, 0.01, 0.0)


# --- the book --------------------------------------------------------------------------------------------------------


def test_an_idle_engine_a_decoding_one_and_a_queue() -> None:
    book = TtftBook(PRIOR)
    idle, bound, scale, *_ = book.quote(1000, 0.0)
    assert idle == pytest.approx(0.01 + 1000 * 2e-5 + 1000 * 500 * 1e-9)
    assert scale == 1.5 * idle
    assert bound == idle + scale
    decoding = book.quote(1000, 0.0, decoding=100).expected
    step = 0.006 + 100 * 4e-5
    assert decoding == pytest.approx(1.5 * step + idle + 100 * 4e-5)
    book.dispatched("a", 20_000, 0, 0.0)
    behind, bound, scale, *_ = book.quote(1000, 0.0)
    assert scale == book.full_step + behind / 2
    alone = TtftBook(PRIOR).quote(20_000, 0.0)[0]
    assert alone < behind < alone + 2 * idle
    assert repr(book) == ("<TtftBook 1 without a first token, 20,000 tokens | 38,600 tokens/s, pace 1.00, 0 learned>")


def test_long_contexts_make_decodes_dear() -> None:
    prior = PrefillPrior.of(Linear(), 2048)
    assert prior.kv_share == pytest.approx(5e-8 * 1024 / (4e-5 + 5e-8 * 1024), rel=0.05)
    book = TtftBook(prior)
    usual = book.quote(500, 0.0, decoding=50)
    assert book.quote(500, 0.0, decoding=50, decoding_tokens=50 * 1024) == usual
    long = book.quote(500, 0.0, decoding=50, decoding_tokens=50 * 9 * 1024).expected
    assert long - usual[0] == pytest.approx(2.5 * 50 * 8 * 1024 * 5e-8, rel=0.05)


def test_the_oldest_decays_and_no_more_than_it() -> None:
    book = TtftBook(PRIOR)
    book.dispatched("a", 4000, 0, 10.0)
    book.dispatched("b", 3000, 0, 10.0)
    assert book.backlog(10.0) == 7000
    assert book.backlog(10.05) == pytest.approx(7000 - 0.05 * book.prefill_rate, rel=0.02)
    assert book.backlog(book.until(5000, 10.0)) == pytest.approx(5000)
    assert book.until(2999, 10.0) == math.inf
    assert book.backlog(11.0) == 3000
    book.first_token("a", 11.0)
    assert book.backlog(11.0) == 3000
    book.gone("b", 11.0)
    assert book.backlog(11.0) == 0
    assert len(book) == 0


def test_a_long_prompt_gets_slower_as_it_goes_on() -> None:
    book = TtftBook(PRIOR)
    book.dispatched("long", 100_000, 0, 0.0)
    whole = book.ideal(100_000)
    assert whole > 2 * 100_000 / book.prefill_rate
    for share in (0.25, 0.5, 0.75):
        rest = book.quote(100, share * whole).expected
        assert rest == pytest.approx((1 - share) * whole, rel=0.1)


def test_a_level_that_has_seen_too_few_takes_the_margin_of_all() -> None:
    book = TtftBook(PRIOR)
    for i in range(300):
        book.dispatched(i, 1000, 0, i * 1.0)
        book.first_token(i, i + 0.0305)
    book.dispatched("first", 60_000, 0, 300.0)
    deep = book.quote(1000, 300.0)
    assert deep.level == len(LEVELS) - 1
    assert book.margin(deep.level) == book.overall.margin < 0.5
    assert deep.bound < 1.2 * deep.expected


def test_a_silent_engine_is_not_thought_to_be_quick() -> None:
    book = TtftBook(PRIOR)
    book.dispatched("a", 1000, 0, 0.0)
    before = book.quote(1000, 0.01)[0]
    assert book.quote(1000, 5.0)[0] > 4.9
    assert book.quote(1000, 9.0)[0] > 8.9
    book.gone("a", 9.0)
    assert book.quote(1000, 9.0)[0] < 20 * before  # an outlier, so far


def test_keys() -> None:
    book = TtftBook(PRIOR)
    book.dispatched("a", 10, 0, 0.0)
    with pytest.raises(ValueError, match="'a' was dispatched already"):
        book.dispatched("a", 10, 0, 0.0)
    book.first_token("a", 0.02)
    before = repr(book)
    book.first_token("a", 5.0)
    book.gone("a", 5.0)
    book.first_token("never", 5.0)
    assert repr(book) == before
    assert book.learned == 1


def test_leaving_early_is_not_learned_from_and_leaving_late_is() -> None:
    book = TtftBook(PRIOR)
    book.dispatched("a", 1000, 0, 0.0)
    book.gone("a", 0.001)
    assert (book.learned, len(book.levels[0])) == (0, 0)
    book.dispatched("b", 1000, 0, 1.0)
    book.gone("b", 1.5)
    assert (book.learned, len(book.levels[0])) == (1, 1)
    assert book.levels[0].margin > 1
    assert book.pace > 1


Move = tuple[int, int, int, int, float]


@settings(max_examples=150)
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 5), st.integers(0, 9000), st.integers(0, 300), st.floats(0, 2))
    )
)
def test_whatever_happens_the_book_adds_up_and_stays_physical(moves: list[Move]) -> None:
    book = TtftBook(PRIOR)
    plain: dict[int, int] = {}
    now = 0.0
    for what, key, tokens, decoding, passed in moves:
        now += passed
        if what == 0 and key not in plain:
            book.dispatched(key, tokens, tokens * 3 % 1000, now, decoding=decoding)
            plain[key] = max(1, tokens)
        elif what == 1:
            book.first_token(key, now)
            plain.pop(key, None)
        elif what == 2:
            book.gone(key, now)
            plain.pop(key, None)
        ahead = list(plain.values())
        assert len(book) == len(ahead)
        lowest = sum(ahead) - max(ahead[0], PRIOR.budget_tokens) if ahead else 0
        assert max(0, lowest) - 1e-6 <= book.backlog(now) <= sum(ahead)
        assert all(c >= 0 and math.isfinite(c) for c in book.coefficients)
        assert 0 < book.prefill_rate < math.inf
        few, most = book.quote(100, now, decoding=decoding), book.quote(5000, now, decoding=decoding)
        assert 0 < few[0] <= most[0] < math.inf
        assert 0 < few[1] < math.inf


def test_it_learns_an_engine_that_is_not_as_the_prior_says() -> None:
    wrong = PrefillPrior(0.03, 6e-5, 0.0, 0.02, 1e-5, 2048)
    served = Served(TtftBook(wrong), Linear())
    drive(served, 6000, lambda i: (10.0, 20.0, 28.0)[i // 500 % 3])
    late = served.outcomes[2000:]
    assert median(abs(o.expected / o.took - 1) for o in late) < 0.12
    assert 0.95 < median(o.expected / o.took for o in late) < 1.05
    n = served.beside
    step = Linear().mixed([Chunk(2048 - n, 0)], n, 1100 * n, 0)
    assert served.book.prefill_rate == pytest.approx((2048 - n) / step, rel=0.2)


def test_a_bound_that_lets_nobody_in_does_not_stand_for_ever() -> None:
    book = TtftBook(PRIOR)
    for i in range(300):  # an engine that is ten times as slow, and now and then a hundred times
        book.dispatched(i, 1000, 0, i * 5.0)
        book.first_token(i, i * 5.0 + (3.0 if i % 10 == 0 else 0.3))
    at = 299 * 5.0
    quote = book.quote(1000, at + 1)
    assert quote.bound > 1
    assert book.quote(1000, at + 60) == quote
    later, relaxed, scale, *_ = book.quote(1000, at + 62)
    assert (book.pace, relaxed) == (1.0, later + scale)
    book.dispatched("probe", 1000, 0, at + 63)
    book.first_token("probe", at + 63 + later)
    assert book.levels[0].margin <= 1


def test_the_pace_is_followed_within_a_few_first_tokens() -> None:
    book = TtftBook(PRIOR)
    for i in range(300):
        book.dispatched(i, 1000, 0, i * 1.0)
        book.first_token(i, i + 0.0305)
    for i in range(300, 312):
        book.dispatched(i, 1000, 0, i * 1.0)
        book.first_token(i, i + 0.305)
    assert book.quote(1000, 312.0)[0] == pytest.approx(0.305, rel=0.25)
    rate = book.prefill_rate
    assert rate < 0.3 * TtftBook(PRIOR).prefill_rate


def test_what_the_pace_has_learned_since_is_no_matter_of_the_margin() -> None:
    book = TtftBook(PRIOR)
    for i in range(1000):
        book.dispatched(i, 1000, 0, i * 1.0)
        book.first_token(i, i + 0.0305)
    for i in range(40):  # all dispatched before the first of them shows that the engine has become slow
        book.dispatched(("slow", i), 2048, 0, 1000 + i * 1e-3)
    for i in range(40):
        book.first_token(("slow", i), 1000.6 + i * 0.6)
    assert book.pace > 4
    late = [level.margin for level in book.levels[4:]]
    assert max(late) < 20  # of scores up to a hundred


def test_what_ends_leaves_nothing_behind() -> None:
    one, two = TtftBook(PRIOR), TtftBook(PRIOR)
    for book in (one, two):
        book.dispatched("stays", 3000, 5000, 0.0)
    two.dispatched("goes", 6000, 9000, 0.0)
    assert two.quote(100, 0.0)[0] > 2 * one.quote(100, 0.0)[0]
    two.gone("goes", 0.0)
    assert two.quote(100, 0.0) == one.quote(100, 0.0)
    two.dispatched("goes", 6000, 9000, 0.0)
    two.first_token("goes", 0.0)
    assert two.backlog(0.0) == one.backlog(0.0)


def test_a_lone_outlier_moves_little() -> None:
    book = TtftBook(PRIOR)
    for i in range(300):
        book.dispatched(i, 1000, 0, i * 1.0)
        book.first_token(i, i + 0.0305)
    before = book.quote(1000, 300.0)
    book.dispatched("slow", 1000, 0, 300.0)
    book.first_token("slow", 301.0)
    after = book.quote(1000, 302.0)
    assert after[0] < 1.25 * before[0]
    assert after[1] < 1.6 * before[1]


# --- on the engine model ---------------------------------------------------------------------------------------------


def test_the_bound_holds_for_99_of_100_while_traffic_shifts() -> None:
    served = Served(TtftBook(PrefillPrior.of(Linear(), 2048)), Linear())
    drive(served, 16_000, lambda i: (8.0, 30.0, 15.0, 45.0)[i // 1300 % 4])
    outcomes = served.outcomes
    shares = coverages(outcomes)
    assert len(shares) >= 5
    assert all(0.985 <= share <= 0.995 for share in shares), shares
    assert median(o.bound / o.took for o in outcomes) < 2
    total = sum(o.took for o in outcomes)
    assert sum(abs(o.expected - o.took) for o in outcomes) < 0.1 * total
    used = [name for name, level in zip(LEVELS, served.book.levels, strict=True) if len(level) > 100]
    assert used == ["decoding", "short", "middle", "long", "flood"]


def test_the_bound_holds_where_a_third_leaves() -> None:
    served = Served(TtftBook(PrefillPrior.of(Linear(), 2048)), Linear())
    drive(served, 12_000, lambda i: (20.0, 50.0)[i // 1500 % 2], cancel=0.33)
    shares = coverages(served.outcomes)
    assert len(shares) >= 3
    assert all(0.985 <= share <= 0.998 for share in shares), shares
    assert median(o.bound / o.took for o in served.outcomes) < 2.5


def test_an_engine_that_slows_ten_times_for_a_minute_and_comes_back() -> None:
    steps = Linear()
    served = Served(TtftBook(PrefillPrior.of(Linear(), 2048)), steps)

    def rate(i: int) -> float:
        steps.slow = 10.0 if 300 < served.engine.now < 360 else 1.0
        return 15.0

    drive(served, 9000, rate)

    def within(begin: float, end: float) -> list[Outcome]:
        return [o for o in served.outcomes if begin <= o.at < end]

    slow, back = within(320, 350), within(380, 500)
    assert sum(o.took <= o.bound for o in slow) >= 0.95 * len(slow)
    assert 0.8 < median(o.expected / o.took for o in slow) < 1.25
    assert 0.9 < median(o.expected / o.took for o in back) < 1.1
    assert sum(o.took <= o.bound for o in within(360, 420)) >= 0.97 * len(within(360, 420))
    assert median(o.bound / o.took for o in within(450, 600)) < 4


def test_scores_have_a_unit_even_where_nothing_is_expected_to_take_time() -> None:
    book = TtftBook(PrefillPrior(1e-12, 1e-15, 0.0, 1e-12, 0.0, 2048))
    for key in range(50):
        assert book.quote(5, key / 10).scale >= 1e-9
        book.dispatched(key, 5, 0, key / 10)
        book.first_token(key, key / 10)
    assert book.quote(5, 6.0).bound < math.inf
