"""The states of one request and the moves between them.

Two rules:

1. Every move is in the table `MOVES`; a move that is not there raises `IllegalMove` and changes nothing.
2. Every request ends in `SETTLED`, whatever happened, and only once.

Theory of operation. A request walks down the main line::

    received → held → queued → admitted → dispatched → streaming → completed → settled

and may leave it at any point through one of the ways out (`hit`, `refused`, `expired`, `cancelled`, `failed`), each of
which is settled too. A retry on another engine, or a climb to a higher tier, is a new *attempt* of the same request: it
goes back to `held`, and is legal only before the first token. Pure: no I/O, no clock, no event loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final


class State(Enum):
    """Where a request is."""

    RECEIVED = "received"  # the body is whole and understood
    HELD = "held"  # the caller is known; rates and quotas are reserved
    QUEUED = "queued"  # waiting for an engine
    ADMITTED = "admitted"  # an engine and its capacity are reserved
    DISPATCHED = "dispatched"  # bytes went to the engine, no token came back
    STREAMING = "streaming"  # the client has bytes of the answer
    COMPLETED = "completed"  # the answer is whole
    HIT = "hit"  # answered from a cache
    REFUSED = "refused"  # never served: contention, quota, bad request, no engine
    EXPIRED = "expired"  # waited past its deadline
    CANCELLED = "cancelled"  # the client left or pressed "stop generating"
    FAILED = "failed"  # the engine or the gateway broke
    SETTLED = "settled"  # booked; nothing can happen any more

    __hash__ = object.__hash__  # Enum's own hashes its name in Python, at every look into the table

    def __repr__(self) -> str:
        return self.value


class Event(Enum):
    """What moves a request."""

    HOLD = "hold"
    HIT = "hit"
    QUEUE = "queue"
    ADMIT = "admit"
    DISPATCH = "dispatch"
    RETRY = "retry"
    FIRST_TOKEN = "first_token"  # noqa: S105 - a token of an answer, not of a login
    COMPLETE = "complete"
    REFUSE = "refuse"
    EXPIRE = "expire"
    CANCEL = "cancel"
    FAIL = "fail"
    SETTLE = "settle"

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return self.value


class IllegalMove(Exception):
    """The event cannot happen in this state."""

    def __init__(self, state: State, event: Event) -> None:
        super().__init__(f"{event.value!r} cannot happen to a request that is {state.value!r}")
        self.state = state
        self.event = event


_S, _E = State, Event

MOVES: Final[Mapping[State, Mapping[Event, State]]] = {
    _S.RECEIVED: {
        _E.HOLD: _S.HELD,
        _E.REFUSE: _S.REFUSED,
        _E.CANCEL: _S.CANCELLED,
        _E.FAIL: _S.FAILED,
    },
    _S.HELD: {
        _E.HIT: _S.HIT,
        _E.QUEUE: _S.QUEUED,
        _E.ADMIT: _S.ADMITTED,
        _E.REFUSE: _S.REFUSED,
        _E.EXPIRE: _S.EXPIRED,
        _E.CANCEL: _S.CANCELLED,
        _E.FAIL: _S.FAILED,
    },
    _S.QUEUED: {
        _E.HIT: _S.HIT,  # another request's flight brought the answer
        _E.ADMIT: _S.ADMITTED,
        _E.REFUSE: _S.REFUSED,
        _E.EXPIRE: _S.EXPIRED,
        _E.CANCEL: _S.CANCELLED,
        _E.FAIL: _S.FAILED,
    },
    _S.ADMITTED: {
        _E.QUEUE: _S.QUEUED,  # its engine went away before a byte was sent
        _E.DISPATCH: _S.DISPATCHED,
        _E.REFUSE: _S.REFUSED,
        _E.EXPIRE: _S.EXPIRED,
        _E.CANCEL: _S.CANCELLED,
        _E.FAIL: _S.FAILED,
    },
    _S.DISPATCHED: {
        _E.RETRY: _S.HELD,  # a new attempt
        _E.FIRST_TOKEN: _S.STREAMING,
        _E.COMPLETE: _S.COMPLETED,  # a unary answer
        _E.REFUSE: _S.REFUSED,  # every engine said "busy"
        _E.EXPIRE: _S.EXPIRED,
        _E.CANCEL: _S.CANCELLED,
        _E.FAIL: _S.FAILED,
    },
    _S.STREAMING: {
        _E.COMPLETE: _S.COMPLETED,
        _E.CANCEL: _S.CANCELLED,
        _E.FAIL: _S.FAILED,
    },
    _S.COMPLETED: {_E.SETTLE: _S.SETTLED},
    _S.HIT: {_E.SETTLE: _S.SETTLED},
    _S.REFUSED: {_E.SETTLE: _S.SETTLED},
    _S.EXPIRED: {_E.SETTLE: _S.SETTLED},
    _S.CANCELLED: {_E.SETTLE: _S.SETTLED},
    _S.FAILED: {_E.SETTLE: _S.SETTLED},
    _S.SETTLED: {},
}

ENDED = frozenset(
    {_S.COMPLETED, _S.HIT, _S.REFUSED, _S.EXPIRED, _S.CANCELLED, _S.FAILED, _S.SETTLED},
)
"""States in which the answer is decided: nothing more is sent to an engine."""


def advance(state: State, event: Event) -> State:
    """The state after `event`. Raises `IllegalMove` where the table has no such move."""
    try:
        return MOVES[state][event]
    except KeyError:
        raise IllegalMove(state, event) from None


def walk(state: State, *events: Event) -> State:
    """The state after all of `events`. Raises `IllegalMove` at the first that is not in the table."""
    for event in events:
        state = advance(state, event)
    return state
