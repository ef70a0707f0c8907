"""The rate model against what any engine must keep, whatever it is asked."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.sim.model import Ask, Event, Kind, RateModel, Rates

RATES = Rates(max_num_seqs=2, prefill_rate=100.0, decode_rate=10.0, kv_tokens=160, block_size=16)

asks = st.builds(Ask, st.integers(0, 300), st.integers(1, 40), st.integers(-2, 2))
steps = st.lists(
    st.tuples(st.floats(0, 3), st.one_of(asks, st.integers(0, 30))),  # wait, then submit or cancel
    min_size=1,
    max_size=30,
)


def drive(model: RateModel, plan: list[tuple[float, Ask | int]], *, looks: int = 0) -> tuple[list[Event], set[int]]:
    """All events of the plan, and who was cancelled; `advance` is called `looks` times between two steps."""
    now = 0.0
    events: list[Event] = []
    cancelled: set[int] = set()
    submitted = 0
    for wait, what in plan:
        for i in range(looks):
            events += model.advance(now + wait * i / looks)
        now += wait
        if isinstance(what, Ask):
            submitted += 1
            model.submit(what, now)
        elif what < submitted and model.cancel(what, now):
            cancelled.add(what)
        assert model.running <= model.rates.max_num_seqs
        assert not model.waiting or model.running == model.rates.max_num_seqs
    while (due := model.next_event()) is not None:
        now = max(now, due)
        events += model.advance(now)
    return events, cancelled


@given(steps)
def test_every_token_asked_for_comes_once_in_order_and_nothing_is_left(plan: list[tuple[float, Ask | int]]) -> None:
    model = RateModel(RATES)
    events, cancelled = drive(model, plan)
    tokens: dict[int, list[int]] = defaultdict(list)
    for event in events:
        if event.kind is Kind.TOKEN:
            tokens[event.seq].append(event.n)
    for seq, ask in enumerate(a for _, a in plan if isinstance(a, Ask)):
        wanted = list(range(1, ask.output_tokens + 1))
        assert tokens[seq] == (wanted[: len(tokens[seq])] if seq in cancelled else wanted)
    assert (model.running, model.waiting, model.kv_usage, model.next_event()) == (0, 0, 0.0, None)


@given(steps)
def test_never_more_than_max_num_seqs_run(plan: list[tuple[float, Ask | int]]) -> None:
    events, _ = drive(RateModel(RATES), [step for step in plan if isinstance(step[1], Ask)])
    running = 0
    for event in events:
        running += (event.kind is Kind.STARTED) - event.last
        assert 0 <= running <= RATES.max_num_seqs
    assert [e.at for e in events] == sorted(e.at for e in events)


@given(steps, st.integers(1, 5))
def test_what_happens_does_not_depend_on_how_often_one_looks(plan: list[tuple[float, Ask | int]], looks: int) -> None:
    only = [step for step in plan if isinstance(step[1], Ask)]
    assert drive(RateModel(RATES), only) == drive(RateModel(RATES), only, looks=looks)


@given(steps)
def test_the_same_plan_gives_the_same_events(plan: list[tuple[float, Ask | int]]) -> None:
    rates = replace(RATES, batch_slowdown=0.5)
    assert drive(RateModel(rates), plan) == drive(RateModel(rates), plan)


def test_prefill_is_serial_and_decode_is_even() -> None:
    model = RateModel(RATES)
    model.submit(Ask(100, 3), 0.0)
    model.submit(Ask(50, 2), 0.0)
    tokens = [(round(e.at, 6), e.seq, e.n, e.last) for e in model.advance(10.0) if e.kind is Kind.TOKEN]
    assert tokens == [
        (1.0, 0, 1, False),
        (1.1, 0, 2, False),
        (1.2, 0, 3, True),
        (1.5, 1, 1, False),
        (1.6, 1, 2, True),
    ]


def test_a_batch_slows_each_of_its_sequences() -> None:
    model = RateModel(replace(RATES, batch_slowdown=0.5))
    model.submit(Ask(0, 3), 0.0)
    model.submit(Ask(0, 3), 0.0)
    at = [round(e.at, 3) for e in model.advance(10.0) if e.kind is Kind.TOKEN and e.seq == 1]
    assert at == [0.02, 0.17, 0.32]


def test_lower_priority_numbers_go_first_then_who_came_first() -> None:
    model = RateModel(replace(RATES, max_num_seqs=1))
    for priority in (0, 5, 1, 1, -1):
        model.submit(Ask(1, 1, priority), 0.0)
    assert [e.seq for e in model.advance(10.0) if e.kind is Kind.STARTED] == [0, 4, 2, 3, 1]


@pytest.mark.parametrize("cancel_at", [0.0, 0.5, 1.05])
def test_a_cancel_frees_slot_and_kv_at_once(cancel_at: float) -> None:
    model = RateModel(replace(RATES, max_num_seqs=1))
    model.submit(Ask(100, 10), 0.0)
    model.submit(Ask(10, 1), 0.0)
    model.advance(cancel_at)
    assert model.kv_usage == pytest.approx(112 / 160)
    assert model.cancel(0, cancel_at)
    assert (model.running, model.waiting, model.kv_usage) == (1, 0, pytest.approx(0.1))
    assert not model.cancel(0, cancel_at)
    last = model.advance(cancel_at + 0.1 + 1e-9)[-1]
    assert (last.seq, last.last, last.at) == (1, True, pytest.approx(cancel_at + 0.1))


def test_cached_tokens_need_no_prefill() -> None:
    model = RateModel(RATES)
    model.submit(Ask(100, 1, cached_tokens=90), 0.0)
    assert model.advance(1.0)[-1].at == pytest.approx(0.1)
    assert model.cached_tokens == 90


def test_many_cancelled_waiters_leave_nothing_behind() -> None:
    model = RateModel(replace(RATES, max_num_seqs=1))
    model.submit(Ask(0, 10**6), 0.0)
    for _ in range(10_000):
        assert model.cancel(model.submit(Ask(1, 1), 0.0), 0.0)
    assert len(model._queue) <= 64 and model.waiting == 0


def test_time_that_runs_backward_is_refused() -> None:
    model = RateModel(RATES)
    model.advance(2.0)
    with pytest.raises(ValueError, match="time ran backward"):
        model.submit(Ask(1, 1), 1.0)


@pytest.mark.parametrize("bad", [{"decode_rate": 0.0}, {"max_num_seqs": -1}, {"batch_slowdown": float("nan")}])
def test_rates_that_are_none_are_named(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        replace(RATES, **bad)
    with pytest.raises(ValueError, match="output_tokens"):
        Ask(1, 0)
