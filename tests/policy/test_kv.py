"""The KV book against the formula of the peak, evaluated over every request."""

from __future__ import annotations

from math import ceil, sqrt
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from forebay.policy.kv import KvBook

B = 16
Z = 2.33


class Req(NamedTuple):
    prompt: int
    produced: int
    mean: float
    var: float
    shared: int = 0
    n: int = 1
    prefix: int | None = None


def shared_blocks(reqs: list[Req]) -> int:
    longest: dict[object, int] = {}
    for i, r in enumerate(reqs):
        name = ("own", i) if r.prefix is None else r.prefix
        longest[name] = max(longest.get(name, 0), r.shared // B)
    return sum(longest.values())


def answers(reqs: list[Req]) -> list[tuple[float, int, float]]:
    """(rest, private, variance) of each answer, the longest rest first."""
    return sorted(
        ((r.mean, r.prompt - r.shared // B * B + r.produced // r.n, r.var) for r in reqs for _ in range(r.n)),
        reverse=True,
    )


def exact_peak(reqs: list[Req], z: float = Z) -> float:
    rows = answers(reqs)
    best = 0.0
    for i, (rest, _, _) in enumerate(rows):
        ahead = rows[: i + 1]
        blocks = sum(ceil((private + rest) / B) for _, private, _ in ahead)
        best = max(best, blocks + z * sqrt(sum(var for _, _, var in ahead)) / B)
    return best + shared_blocks(reqs)


def bound(reqs: list[Req]) -> float:
    """How far the book may be above the formula, in blocks: a block and an eighth of its rest an answer, and what
    rounding var up adds to the margin."""
    rows = answers(reqs)
    return sum(1 + max(1.0, ceil(rest) / 8) / B for rest, _, _ in rows) + Z * sqrt(len(rows)) / B


def book_of(reqs: list[Req], capacity: int = 1000) -> KvBook:
    book = KvBook(B, capacity, z=Z)
    for key, r in enumerate(reqs):
        book.hold(key, r.prompt, r.mean, r.var, shared_tokens=r.shared, n=r.n, prefix=r.prefix)
        if r.produced:
            book.progress(key, r.produced, r.mean, r.var)
    return book


requests = st.builds(
    lambda prompt, produced, mean, var, shared, n, prefix: Req(
        prompt, produced * n, mean, var, int(shared * prompt), n, prefix
    ),
    st.integers(1, 5000),
    st.integers(0, 800),
    st.floats(0, 3000),
    st.floats(0, 1e6),
    st.sampled_from([0.0, 0.0, 0.5, 0.9, 1.0]),
    st.sampled_from([1, 1, 1, 2, 5]),
    st.sampled_from([None, None, 1, 2]),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(requests, max_size=25))
def test_the_peak_is_the_formula_or_a_bounded_bit_more(reqs: list[Req]) -> None:
    peak = book_of(reqs).peak()
    assert exact_peak(reqs) - 1e-6 <= peak <= exact_peak(reqs) + bound(reqs) + 1e-6


@settings(max_examples=300, deadline=None)
@given(st.lists(requests, max_size=25), requests, st.floats(0.1, 1.5), st.integers(100, 30_000))
def test_peak_with_and_fits_say_what_a_hold_would_come_to(
    reqs: list[Req], new: Req, ceiling: float, capacity: int
) -> None:
    new = new._replace(produced=0)
    book = book_of(reqs, capacity)
    with_it = book.peak_with(new.prompt, new.mean, new.var, new.n, shared_tokens=new.shared, prefix=new.prefix)
    fits = book.fits(
        new.prompt,
        new.mean,
        new.var,
        new.n,
        ceiling_share=ceiling,
        shared_tokens=new.shared,
        prefix=new.prefix,
    )
    after = book_of([*reqs, new], capacity)
    assert with_it == pytest.approx(after.peak())
    free = ceiling * after.capacity_blocks - after.peak()
    if abs(free) > 1e-6:
        assert fits is (free > 0)


def test_a_flood_of_like_requests_is_exact_to_a_block_each() -> None:
    reqs = [Req(1000, 0, 200.0, 0.0)] * 100
    assert exact_peak(reqs) == 100 * 75
    assert book_of(reqs).peak() == pytest.approx(100 * (1200 + 15) / 16)


def test_the_margin_is_on_the_sum() -> None:
    """100 answers of 200 ± 200 tokens: 2.33 · √100 · 200 tokens, not 100 · 2.33 · 200."""
    book = book_of([Req(1000, 0, 200.0, 40_000.0)] * 100)
    assert book.peak() == pytest.approx((100 * 1215 + 2.33 * 10 * 200) / 16)


def test_those_that_leave_before_are_not_there_at_the_worst_moment() -> None:
    """Nine short answers end after 10 tokens; when the long one has grown by 1,600 it is alone."""
    reqs = [Req(160, 0, 1600.0, 0.0)] + [Req(160, 0, 10.0, 0.0)] * 9
    peak = book_of(reqs).peak()
    assert peak < 10 * 11 + 10 + 1
    assert sum((160 + r.mean) / 16 for r in reqs) > 190


def test_a_shared_prefix_is_counted_once_and_until_its_last_holder_leaves() -> None:
    book = KvBook(16, 1000)
    book.hold("a", 1600, 0, 0, shared_tokens=1600, prefix="system")
    book.hold("b", 1600, 0, 0, shared_tokens=805, prefix="system")
    assert book.held_blocks == 100 + 50  # 50 blocks and 5 tokens of b are shared, 795 tokens are its own
    book.hold("c", 1600, 0, 0, shared_tokens=1600, prefix="other")
    assert book.held_blocks == 250
    book.drop("a")
    assert book.held_blocks == 50 + 50 + 100
    book.drop("b")
    book.drop("c")
    assert (book.held_blocks, book.peak()) == (0, 0.0)
    assert repr(book) == "<KvBook 0 of 1,000 blocks held, peak 0 | 0 requests>"


def test_n_answers_share_the_prompt_where_it_is_said_to_be_shared() -> None:
    apart, together = KvBook(16, 1000), KvBook(16, 1000)
    apart.hold(1, 160, 32, 0, n=4)
    together.hold(1, 160, 32, 0, n=4, shared_tokens=160)
    assert (apart.held_blocks, together.held_blocks) == (40, 10)
    apart.progress(1, 4 * 16, 16, 0)
    together.progress(1, 4 * 16, 16, 0)
    assert (apart.held_blocks, together.held_blocks) == (44, 14)
    assert together.peak() == pytest.approx(10 + 4 * (32 + 15) / 16)


def test_it_reads_as_a_story() -> None:
    book = KvBook(16, 2000)
    book.hold("a", 1000, 200, 0)
    assert repr(book) == "<KvBook 63 of 2,000 blocks held, peak 76 | 1 requests>"
    book.progress("a", 100, 60, 0)
    assert repr(book) == "<KvBook 69 of 2,000 blocks held, peak 73 | 1 requests>"
    book.correct(200, 2000, 0.0)
    assert repr(book) == "<KvBook 135 of 2,000 blocks held, 66 of them not its own, peak 139 | 1 requests>"


def test_holding_twice_raises_and_changes_nothing_dropping_is_always_safe() -> None:
    book = KvBook(16, 2000)
    book.hold("a", 1000, 200, 0)
    before = repr(book)
    with pytest.raises(ValueError, match="'a' is held already"):
        book.hold("a", 5, 5, 5)
    with pytest.raises(KeyError):
        book.progress("b", 1, 1, 1)
    assert not book.drop("b")
    assert repr(book) == before
    assert book.drop("a")
    assert not book.drop("a")


@pytest.mark.parametrize("bad", [(0, 10, 1.0), (16, 0, 1.0), (16, 10, -1.0)])
def test_a_book_that_cannot_work_is_refused(bad: tuple[int, int, float]) -> None:
    with pytest.raises(ValueError, match="a KV book needs"):
        KvBook(bad[0], bad[1], z=bad[2])


# --- the engine's reports ---------------------------------------------------------------------------------------------


def reported(book: KvBook, used: int | None, start: float, count: int, wobble: int = 1) -> float:
    for i in range(count):
        book.correct(None if used is None else used + i % 2 * wobble, None, start + 0.25 * i)
    return start + 0.25 * count


def test_what_others_use_is_added_and_taken_back() -> None:
    book = book_of([Req(1600, 0, 0.0, 0.0)])
    now = reported(book, 400, 0.0, 20)
    assert book.foreign_blocks in (300, 301)
    assert book.peak() == pytest.approx(book_of([Req(1600, 0, 0.0, 0.0)]).peak() + 300, abs=1.5)
    reported(book, 100, now, 20)
    assert book.foreign_blocks <= 1


def test_an_engine_that_says_less_than_the_books_is_not_believed() -> None:
    """It may be prefilling, have restarted, or lie."""
    book = book_of([Req(1600, 0, 160.0, 0.0)])
    peak = book.peak()
    reported(book, 0, 0.0, 20)
    assert (book.held_blocks, book.peak()) == (100, peak)


def test_without_reports_the_books_stand_alone() -> None:
    book = book_of([Req(1600, 0, 0.0, 0.0)])
    now = reported(book, 900, 0.0, 20)
    assert book.foreign_blocks > 790
    now = reported(book, None, now, 8)
    assert 350 < book.foreign_blocks < 450  # half after two seconds
    reported(book, None, now, 80)
    assert book.foreign_blocks == 0


def test_metrics_frozen_at_full_do_not_stop_it_for_long() -> None:
    book = KvBook(B, 1000)
    now = reported(book, 999, 0.0, 20, wobble=0)
    assert not book.fits(100, 10, 0, ceiling_share=0.9)
    reported(book, 999, now, 60, wobble=0)
    assert book.fits(100, 10, 0, ceiling_share=0.9)


@pytest.mark.parametrize("absurd", [-1, 1001, 10**12])
def test_absurd_use_is_no_report(absurd: int) -> None:
    book = KvBook(B, 1000)
    now = reported(book, 500, 0.0, 20)
    before = book.foreign_blocks
    book.correct(absurd, None, now)
    assert 0.85 * before < book.foreign_blocks <= before


def test_clock_jumps_do_no_harm() -> None:
    book = KvBook(B, 1000)
    now = reported(book, 500, 100.0, 20)
    before = book.foreign_blocks
    book.correct(None, None, now - 1000)
    assert book.foreign_blocks == before
    book.correct(None, None, 1e300)
    assert book.foreign_blocks == 0


def test_a_capacity_counts_when_said_twice_and_within_reason() -> None:
    book = KvBook(B, 1000)
    book.correct(None, 800, 0.0)
    assert book.capacity_blocks == 1000
    book.correct(None, 1000, 0.25)
    book.correct(None, 800, 0.5)
    assert book.capacity_blocks == 1000
    book.correct(None, 800, 0.75)
    assert book.capacity_blocks == 800
    for absurd in (0, -5, 10**9, 1):
        book.correct(None, absurd, 1.0)
        book.correct(None, absurd, 1.25)
    assert book.capacity_blocks == 800


def test_a_capacity_that_is_insisted_on_counts_in_the_end() -> None:
    """The first one may have been the lie."""
    book = KvBook(B, 1)
    for i in range(240):
        book.correct(None, 1000 if i % 2 else None, i / 4)
    assert book.capacity_blocks == 1
    book.correct(None, 1000, 60.25)
    assert book.capacity_blocks == 1000
    for i in range(400):
        book.correct(None, -5, 100.0 + i)
    assert book.capacity_blocks == 1000


# --- long runs --------------------------------------------------------------------------------------------------------


class Books(RuleBasedStateMachine):
    """Whatever comes in whatever order, the book equals one written anew."""

    def __init__(self) -> None:
        super().__init__()
        self.book = KvBook(B, 5000, z=Z)
        self.held: dict[int, Req] = {}
        self.next = 0

    @rule(req=requests)
    def hold(self, req: Req) -> None:
        req = req._replace(produced=0)
        self.book.hold(self.next, req.prompt, req.mean, req.var, shared_tokens=req.shared, n=req.n, prefix=req.prefix)
        self.held[self.next] = req
        self.next += 1

    @precondition(lambda self: self.held)
    @rule(data=st.data(), more=st.integers(0, 300), mean=st.floats(0, 2000), var=st.floats(0, 1e5))
    def progress(self, data: st.DataObject, more: int, mean: float, var: float) -> None:
        key = data.draw(st.sampled_from(sorted(self.held)))
        req = self.held[key]
        req = self.held[key] = req._replace(produced=req.produced + more * req.n, mean=mean, var=var)
        self.book.progress(key, req.produced, mean, var)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.held)))
        del self.held[key]
        assert self.book.drop(key)

    @invariant()
    def it_is_as_if_written_anew(self) -> None:
        reqs = list(self.held.values())
        anew = book_of(reqs, 5000)
        assert repr(self.book) == repr(anew)
        assert self.book.peak() == anew.peak()
        assert self.book.held_blocks == shared_blocks(reqs) + sum(ceil(private / B) for _, private, _ in answers(reqs))


TestBooks = Books.TestCase
TestBooks.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
