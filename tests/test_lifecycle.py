"""The table of moves, written a second time as a grid and compared cell by cell."""

from __future__ import annotations

import copy

import pytest

from forebay.lifecycle import ENDED, MOVES, Event, IllegalMove, State, advance

# One row a state, one column an event; "." is illegal. Abbreviations are the first letters of a state's name.
GRID = """
            hold  hit  queue admit dispatch retry first_token complete refuse expire cancel fail settle
received    held  .    .     .     .        .     .           .        refu   .      canc   fail .
held        .     hit  queu  admi  .        .     .           .        refu   expi   canc   fail .
queued      .     hit  .     admi  .        .     .           .        refu   expi   canc   fail .
admitted    .     .    queu  .     disp     .     .           .        refu   expi   canc   fail .
dispatched  .     .    .     .     .        held  stre        comp     refu   expi   canc   fail .
streaming   .     .    .     .     .        .     .           comp     .      .      canc   fail .
completed   .     .    .     .     .        .     .           .        .      .      .      .    sett
hit         .     .    .     .     .        .     .           .        .      .      .      .    sett
refused     .     .    .     .     .        .     .           .        .      .      .      .    sett
expired     .     .    .     .     .        .     .           .        .      .      .      .    sett
cancelled   .     .    .     .     .        .     .           .        .      .      .      .    sett
failed      .     .    .     .     .        .     .           .        .      .      .      .    sett
settled     .     .    .     .     .        .     .           .        .      .      .      .    .
"""


def read_grid() -> list[tuple[State, Event, State | None]]:
    short = {s.value[:4]: s for s in State}
    assert len(short) == len(State)
    head, *rows = GRID.strip().splitlines()
    events = [Event(name) for name in head.split()]
    return [
        (State(row.split()[0]), event, None if cell == "." else short[cell])
        for row in rows
        for event, cell in zip(events, row.split()[1:], strict=True)
    ]


CELLS = read_grid()


def test_the_grid_has_every_state_and_every_event() -> None:
    assert len(CELLS) == len(set(CELLS)) == len(State) * len(Event)
    assert {(s, e) for s, e, _ in CELLS} == {(s, e) for s in State for e in Event}


@pytest.mark.parametrize(("state", "event", "after"), [c for c in CELLS if c[2] is not None], ids=repr)
def test_legal(state: State, event: Event, after: State) -> None:
    assert advance(state, event) is after


@pytest.mark.parametrize(("state", "event", "after"), [c for c in CELLS if c[2] is None], ids=repr)
def test_illegal(state: State, event: Event, after: None) -> None:
    before = copy.deepcopy(MOVES)
    with pytest.raises(IllegalMove) as e:
        advance(state, event)
    assert (e.value.state, e.value.event) == (state, event)
    assert str(e.value) == f"'{event.value}' cannot happen to a request that is '{state.value}'"
    assert e.value.__cause__ is None  # compiled, `from None` does not hide the KeyError, which costs lines of a trace
    assert before == MOVES


def reachable(start: State) -> set[State]:
    seen = {start}
    todo = [start]
    while todo:
        state = todo.pop()
        for event in Event:
            try:
                after = advance(state, event)
            except IllegalMove:
                continue
            if after not in seen:
                seen.add(after)
                todo.append(after)
    return seen


@pytest.mark.parametrize("state", State, ids=repr)
def test_every_state_can_settle(state: State) -> None:
    assert State.SETTLED in reachable(state)


def test_a_request_can_be_in_every_state() -> None:
    assert reachable(State.RECEIVED) == set(State)


def test_nothing_leaves_settled() -> None:
    assert reachable(State.SETTLED) == {State.SETTLED}


def test_after_the_first_token_there_is_no_other_attempt() -> None:
    with pytest.raises(IllegalMove):
        advance(State.STREAMING, Event.RETRY)
    assert reachable(State.STREAMING) == {
        State.STREAMING, State.COMPLETED, State.CANCELLED, State.FAILED, State.SETTLED,
    }  # fmt: skip


@pytest.mark.parametrize("state", [s for s in State if s not in ENDED], ids=repr)
def test_a_client_may_leave_and_a_bug_may_strike_in_every_state_that_is_not_ended(state: State) -> None:
    assert advance(state, Event.CANCEL) is State.CANCELLED
    assert advance(state, Event.FAIL) is State.FAILED


def test_ended_is_what_can_only_settle() -> None:
    only_settle = {s for s in State if all(after is None or e is Event.SETTLE for t, e, after in CELLS if t is s)}
    assert only_settle == ENDED


def test_names_read_as_words_in_a_log_line() -> None:
    assert repr([State.HELD, Event.FIRST_TOKEN]) == "[held, first_token]"
