"""Workloads made of workloads."""

from __future__ import annotations

import pickle
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.sim.workload import Ask
from forebay.sim.workloads import Listed, Source, Tally, open_workload
from forebay.sim.workloads.mix import Assigned, Mix, Who, one
from forebay.sim.workloads.transforms import Fitted, Limited, Merged, Repeated, Scaled, Skipped, Sped

keys = st.one_of(st.integers(-9, 9), st.text("0123456789~-", max_size=4))
pieces = st.lists(st.tuples(keys, st.integers(1, 50)), max_size=3).map(tuple)


@st.composite
def asks(draw: st.DrawFn, most: int = 12) -> tuple[Ask, ...]:
    arrivals = sorted(draw(st.lists(st.floats(0, 100), max_size=most)))
    out = []
    for at in arrivals:
        prefix = draw(pieces)
        prompt = sum(n for _, n in prefix) + draw(st.integers(1, 50))
        out.append(Ask(at, prompt, draw(st.integers(1, 50)), prefix, keeps=draw(st.none() | keys)))
    return tuple(out)


sources = asks().map(Listed)
factors = st.floats(0.05, 8)
transformed = st.recursive(
    sources,
    lambda inner: st.one_of(
        st.builds(Sped, inner, factors),
        st.builds(Scaled, inner, factors, st.floats(0, 50), st.booleans(), st.text("ab", max_size=2)),
        st.builds(Repeated, inner, st.integers(1, 4), st.booleans()),
        st.builds(Skipped, inner, st.floats(0, 50)),
        st.builds(Limited, inner, st.none() | st.integers(1, 20), st.none() | st.floats(0.1, 90)),
        st.builds(Fitted, inner, st.integers(2, 150), st.booleans()),
        st.builds(lambda s, r: Merged(tuple(s), r), st.lists(inner, min_size=1, max_size=3), st.booleans()),
        st.builds(lambda s: Assigned(s, Who(one("a"), Mix(("vip", "low"), (1, 1)), {"vip": 3}), "1"), inner),
    ),
    max_leaves=4,
)


def run(source: Source, tally: Tally | None = None) -> list[Ask]:
    return list(source.stream(Tally() if tally is None else tally))


@given(transformed)
def test_any_composition_is_in_order_sound_and_the_same_again(source: Source) -> None:
    out = run(source)
    assert all(a.arrival <= b.arrival for a, b in pairwise(out))
    for ask in out:
        assert ask.arrival >= 0
        assert ask.output_tokens >= 1
        assert all(tokens >= 1 for _, tokens in ask.prefix)
        assert sum(tokens for _, tokens in ask.prefix) <= ask.prompt_tokens
    assert out == run(source)
    assert out == run(pickle.loads(pickle.dumps(source)))


def ask(at: float, key: int | str | None = None) -> Ask:
    return Ask(at, 10, 5, () if key is None else ((key, 4),), keeps=key)


def test_speed_moves_arrivals_together() -> None:
    assert [a.arrival for a in run(Sped(Listed((ask(1), ask(4))), 2))] == [0.5, 2.0]


def test_repetition_leaves_a_mean_gap_and_renames() -> None:
    source = Listed((ask(1, 5), ask(2, "5"), ask(5)))
    out = run(Repeated(source, 3))
    assert [a.arrival for a in out] == [1, 2, 5, 8, 9, 12, 15, 16, 19]
    assert len({a.keeps for a in out}) == 7
    assert {a.keeps for a in run(Repeated(source, 3, rename=False))} == {5, "5", None}


def test_scaling_down_keeps_a_share_and_the_time() -> None:
    many = Listed(tuple(ask(n / 10) for n in range(5000)))
    out = run(Scaled(many, 0.3))
    assert len(out) == pytest.approx(1500, rel=0.1)
    assert set(out) <= set(many.given)


def test_scaling_up_moves_whole_copies() -> None:
    many = Listed(tuple(ask(n / 10, n % 7) for n in range(1000)))
    out = run(Scaled(many, 2.5, spread=20))
    assert len(out) == pytest.approx(2500, rel=0.05)
    copy = [a for a in out if str(a.keeps).endswith("~1")]
    assert len(copy) == 1000
    shift = copy[0].arrival
    assert 0 < shift <= 20
    assert [a.arrival - shift for a in copy] == pytest.approx([a.arrival for a in many.given])
    assert sum(a.keeps in range(7) for a in out) == 1000


@given(asks(), asks())
def test_merging_takes_all_and_keeps_prefixes_apart(one: tuple[Ask, ...], two: tuple[Ask, ...]) -> None:
    out = run(Merged((Listed(one), Listed(two))))
    assert Counter(a[:3] for a in out) == Counter(a[:3] for a in (*one, *two))
    kept = run(Merged((Listed(one), Listed(two)), rename=False))
    assert Counter(kept) == Counter((*one, *two))
    # Equal keys stay equal and different ones different, within each.
    renamed = run(Merged((Listed(()), Listed(two))))
    before = [key for ask in two for key, _ in ask.prefix]
    after = [key for ask in renamed for key, _ in ask.prefix]
    pairs = set(zip(before, after, strict=True))
    assert len({x for x, _ in pairs}) == len({y for _, y in pairs}) == len(pairs)


def test_skipping_makes_a_new_begin() -> None:
    assert [a.arrival for a in run(Skipped(Listed((ask(1), ask(4), ask(6))), 4))] == [0, 2]


def test_limits() -> None:
    source = Listed((ask(1), ask(4), ask(6)))
    assert len(run(Limited(source, 2))) == 2
    assert len(run(Limited(source, None, 4.0))) == 1
    assert len(run(Limited(source, 5, 90.0))) == 3


def test_a_limit_reads_no_further() -> None:
    def endless():
        yield ask(0)
        raise AssertionError("read on")

    class Once:
        size = Listed(()).size

        def stream(self, tally: Tally):
            return endless()

    assert len(run(Limited(Once(), 1))) == 1


def test_what_is_longer_than_the_context_is_dropped_or_cut_and_counted() -> None:
    source = Listed((Ask(0, 10, 5, ((1, 4), (2, 4))), Ask(1, 10, 90), Ask(2, 30, 5, ((1, 4), (2, 20)))))
    tally = Tally()
    assert [a.arrival for a in run(Fitted(source, 15), tally)] == [0]
    assert tally.notes() == ["2 requests dropped that were longer than the context"]
    assert run(Fitted(source, 15, clip=True), tally)[1:] == [Ask(1, 10, 5), Ask(2, 14, 1, ((1, 4), (2, 10)))]
    assert tally.clipped == 2


def test_assignment_keeps_what_it_is_not_told() -> None:
    source = Listed((Ask(0, 1, 1, (), "t", "vip", 7),))
    assert run(Assigned(source, Who(), "1")) == list(source.given)
    assert run(Assigned(source, Who(priorities={"vip": -4}), "1"))[0][4:7] == ("t", "vip", -4)
    assert run(Assigned(source, Who(classes=one("low")), "1"))[0][4:7] == ("t", "low", 7)


def test_bounds() -> None:
    source = Listed(())
    for make, said in (
        (lambda: Sped(source, 0), "speed must be from 1e-06 to 1,000,000, not 0"),
        (lambda: Scaled(source, -1), "scale must be greater than 0"),
        (lambda: Repeated(source, 0), "repeat must be from 1 to 10,000, not 0"),
        (lambda: Limited(source, 0), "requests must be at least 1, not 0"),
        (lambda: Limited(source, None, 0), "duration must be greater than 0"),
        (lambda: Fitted(source, 1), "context must be at least 2 tokens, not 1"),
        (lambda: Merged(()), "nothing to merge"),
    ):
        with pytest.raises(ValueError, match=said):
            make()


def test_merged_specifications_draw_apart() -> None:
    twice = list(open_workload("poisson:rate=5,requests=50 + poisson:rate=5,requests=50"))
    assert len({a.arrival for a in twice}) == 100
