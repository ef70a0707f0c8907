"""A fault of the gateway's own ends the request that it struck, and no other."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
from tests.pure import pure

from forebay.errors import Refusal
from forebay.lifecycle import State
from forebay.wire.upstream import Failure

_exchange = pure("forebay.gateway.attempts", "forebay.gateway.exchange")
HELD = _exchange.HELD
Admitting = pure("forebay.gateway.admitting").Admitting
Gateway = pure("forebay.gateway.app").Gateway


class Exchange(_exchange.Exchange):  # type: ignore[name-defined, misc]
    """Of its gateway it finds nothing that works."""

    answer_begins = answer_data = answer_ends = account = heard_at = None

    def __init__(self, *, started: bool = False, state: State = HELD) -> None:
        self.request_id, self.state = b"r-1", state
        self.reply = SimpleNamespace(started=started)
        self.gateway = SimpleNamespace(live=set())
        self.told: list[tuple[str, str]] = []

    def nothing_there(self) -> None:
        raise RuntimeError("no such thing")

    def refuse(self, refusal: Refusal) -> None:
        self.told.append(("refuse", refusal.code))

    def cut(self, refusal: Refusal) -> None:
        self.told.append(("cut", refusal.code))


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.ERROR, "forebay.worker")
    return caplog


@pytest.mark.parametrize(("started", "end"), [(False, "refuse"), (True, "cut")])
def test_an_engines_failure_that_cannot_be_handled(
    logged: pytest.LogCaptureFixture, *, started: bool, end: str
) -> None:
    x = Exchange(started=started)
    x.on_fail(Failure.RESET, "closed the connection")
    assert x.told == [(end, "internal_error")]
    assert "request r-1 could not be handled" in logged.text


def test_a_second_try_that_cannot_be_placed(logged: pytest.LogCaptureFixture) -> None:
    x = Exchange()
    x._place_late(SimpleNamespace())
    assert x.told == [("refuse", "internal_error")]
    settled = Exchange(state=State.SETTLED)
    settled._place_late(SimpleNamespace())
    assert settled.told == []


def test_one_decision_that_cannot_be_carried_out_holds_up_no_other(logged: pytest.LogCaptureFixture) -> None:
    class Two(Admitting):  # type: ignore[misc]
        def __init__(self) -> None:
            self.carried: list[Any] = []

        def _carry_out(self, x: Any, ask: Any, decision: Any, now: float) -> None:
            if not self.carried:
                self.carried.append(None)
                raise AttributeError("an engine that left")
            self.carried.append(x)

    first, second = Exchange(), Exchange()
    asks = [SimpleNamespace(tag=first), SimpleNamespace(tag=second)]
    first.ask, second.ask = asks
    admitting = Two()
    admitting._tell([(asks[0], None), (asks[1], None)], 0.0)
    assert first.told == [("refuse", "internal_error")]
    assert admitting.carried == [None, second]
    assert second.told == []


def test_one_that_falls_before_it_is_live(logged: pytest.LogCaptureFixture) -> None:
    x = Exchange(state=State.RECEIVED)
    x.fell(RuntimeError("no such thing"))
    assert x.state is HELD
    assert x.gateway.live == {x}
    assert x.told == [("refuse", "internal_error")]


def test_one_that_cannot_be_begun(logged: pytest.LogCaptureFixture) -> None:
    x = Exchange(state=State.RECEIVED)
    x.go = x.nothing_there  # type: ignore[method-assign]
    entry = SimpleNamespace(candidates=("a",), renames=False, defaults=None)
    gateway = SimpleNamespace(
        fleet=SimpleNamespace(catalog={"m": entry}),
        retry_budget=SimpleNamespace(requests=0),
        made=lambda *_: x,
        **dict.fromkeys(("booking", "holding", "caching", "_order")),
    )
    route = SimpleNamespace(parse=lambda _: SimpleNamespace(model="m"), streams=True)
    request, front = SimpleNamespace(body=b'{"model":"m"}'), SimpleNamespace(route=route, caller=None)
    Gateway._exchange(gateway, request, x.reply, front, b"r-1", 0.0)
    assert x.told == [("refuse", "internal_error")]
