"""What an answer's head says of its admission, where the request asks."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from e2e.client import Answer, chat, new_id, request
from e2e.crowd import KEYS, house
from e2e.engine import ANSWER, RawEngine, Script, Talk, reply_ok, says, whole
from e2e.gateway import Gateway
from waiting import eventually

ASKS = {"Forebay-Explain": "admission"}
PREDICTED, POSITION, WAITED = "forebay-predicted-ttft-ms", "forebay-queue-position", "forebay-waited-ms"
ALL = (PREDICTED, POSITION, WAITED)
LIES = [f"{name}: 99" for name in ALL]


@pytest.fixture(scope="module")
def engines() -> Iterator[tuple[RawEngine, RawEngine]]:
    raw, other = RawEngine(["raw", "two"]), RawEngine(["two"])
    yield raw, other
    raw.close()
    other.close()


@pytest.fixture(scope="module")
def raw(engines: tuple[RawEngine, RawEngine]) -> RawEngine:
    return engines[0]


@pytest.fixture(scope="module")
def gateway(engines: tuple[RawEngine, RawEngine]) -> Iterator[Gateway]:
    """`vip` waits shortly; what `low` is promised is too little for long prompts."""
    with house(
        *engines,
        admission={
            "ttft": {"vip": 30.0, "normal": 30.0, "low": 0.5},
            "wait": {"vip": 0.3, "normal": 30.0, "low": 30.0},
        },
        of_each={"max_num_seqs": 1},
    ) as made:
        yield made


def ask(gateway: Gateway, cls: str = "normal", headers: dict[str, str] | None = None, **fields: Any) -> Answer:
    return gateway.ask(chat(**fields), key=KEYS[cls], headers=ASKS if headers is None else headers)


def told(answer: Answer) -> list[int | None]:
    return [int(v) if (v := answer.get(name)) is not None else None for name in ALL]


def held(raw: RawEngine, answer: Script = reply_ok) -> tuple[str, threading.Event]:
    """A name under which a request is held by the engine until the event."""
    test, go = new_id("held"), threading.Event()

    def script(talk: Talk) -> None:
        assert go.wait(20)
        answer(talk)

    raw.scripts[test] = script
    return test, go


@pytest.mark.parametrize("stream", [False, True])
def test_what_goes_at_once_is_told_its_bound(gateway: Gateway, stream: bool) -> None:
    answer = ask(gateway, stream=stream)
    predicted, position, waited = told(answer)
    assert (answer.status, position, waited) == (200, 0, 0)
    assert predicted is not None
    assert 0 < predicted <= 30_000


def test_a_connection_s_requests_are_told_apart(gateway: Gateway) -> None:
    with gateway.client() as client:
        for asks in (False, True, True, False, True):
            client.send(request(chat(), key=KEYS["normal"], headers=ASKS if asks else {}))
            answer = client.read()
            assert [name for name in ALL if answer.get(name) is not None] == (list(ALL) if asks else [])


@pytest.mark.parametrize(
    ("value", "asks"),
    [("Admission", True), ("placement , admission", True), ("", False), ("placement", False), ("admissions", False)],
)
def test_the_value_is_a_list_of_names(gateway: Gateway, value: str, asks: bool) -> None:
    assert (told(ask(gateway, headers={"Forebay-Explain": value}))[1] == 0) is asks


def test_an_engine_is_neither_asked_nor_believed(gateway: Gateway, raw: RawEngine) -> None:
    test = new_id("lies")
    raw.scripts[test] = says(whole(200, ANSWER, *LIES))
    assert told(ask(gateway, headers={"x-test": test})) == [None] * 3
    predicted, position, waited = told(ask(gateway, headers={"x-test": test, **ASKS}))
    assert (position, waited) == (0, 0)
    assert predicted != 99
    for received in raw.requests(test):
        assert not received.all("forebay-explain")


def test_those_who_wait_are_told_who_was_ahead_and_how_long_it_took(gateway: Gateway, raw: RawEngine) -> None:
    test, go = held(raw)
    with gateway.client() as first, gateway.client() as second, gateway.client() as third:
        clients = (first, second, third)
        for i, client in enumerate(clients):
            client.send(request(chat(stream=i == 1), key=KEYS["normal"], headers={"x-test": test, **ASKS}))
            if i == 0:
                raw.wait_for(test)
            else:
                eventually(lambda i=i: gateway.metric("forebay_queue_requests") == i)  # type: ignore[misc]
        began = time.monotonic()
        eventually(lambda: time.monotonic() > began + 0.05)
        go.set()
        answers = [client.read() for client in clients]
    assert [told(a)[1] for a in answers] == [0, 0, 1]
    times = [waited for _, _, waited in map(told, answers) if waited is not None]
    assert times[0] == 0
    assert all(50 <= waited < 30_000 for waited in times[1:])
    for answer, waited in zip(answers, times, strict=True):
        predicted = told(answer)[0]
        assert predicted is not None
        assert waited < predicted <= 30_000  # from its arrival, so the wait is in it


def test_whoever_waits_too_long_is_told_what_was_predicted(gateway: Gateway, raw: RawEngine) -> None:
    test, go = held(raw)
    with gateway.client() as first:
        first.send(request(chat(), key=KEYS["normal"], headers={"x-test": test}))
        raw.wait_for(test)
        late = ask(gateway, "vip")
        go.set()
        assert first.read().status == 200
    predicted, position, waited = told(late)
    assert (late.status, late.get("x-forebay-reason"), position) == (429, "deadline", 0)
    assert waited is not None
    assert 290 <= waited < 30_000  # the others would wait so long
    assert predicted is not None
    assert 0 < predicted < 30_000


def test_whoever_is_refused_at_the_door_is_told_why(gateway: Gateway) -> None:
    answer = ask(gateway, "low", messages=[{"role": "user", "content": "word " * 60_000}])
    predicted, position, waited = told(answer)
    assert (answer.status, answer.get("x-forebay-reason"), position, waited) == (429, "slo", None, 0)
    assert predicted is not None
    assert predicted > 500


def test_a_retry_says_it_anew(gateway: Gateway, engines: tuple[RawEngine, RawEngine]) -> None:
    """The engine that comes first fails; each header comes once, of the other's admission."""
    test = new_id("again")
    failed = threading.Event()

    def script(talk: Talk) -> None:
        if failed.is_set():
            reply_ok(talk)
        else:
            failed.set()
            talk.send(whole(500, b"{}"))

    for engine in engines:
        engine.scripts[test] = script
    answer = ask(gateway, headers={"x-test": test, **ASKS}, model="two")
    assert answer.status == 200
    assert sum(len(e.requests(test)) for e in engines) == 2
    assert told(answer)[1:] == [0, 0]  # `get` fails where a header comes twice
