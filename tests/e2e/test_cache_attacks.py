"""What must not get from one caller to another by way of what is kept."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from e2e.client import Answer, chat, new_id, request
from e2e.engine import RawEngine, whole
from e2e.gateway import Gateway
from forebay.gateway.feedback import PER_MINUTE
from waiting import eventually

MINE, COLLEAGUE, STRANGER = (f"attack-{name}-0123456789" for name in ("mine", "colleague", "stranger"))


@pytest.fixture(scope="module")
def raw() -> Iterator[RawEngine]:
    engine = RawEngine(["raw"])
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def gateway(raw: RawEngine) -> Iterator[Gateway]:
    made = Gateway(
        {
            "listeners": [{"address": "127.0.0.1:0"}],
            "engines": [{"name": "raw", "url": f"http://127.0.0.1:{raw.port}", "models": ["raw"]}],
            "callers": {
                "keys": [
                    {"name": "mine", "key": MINE, "organisation": "acme"},
                    {"name": "colleague", "key": COLLEAGUE, "organisation": "acme"},
                    {"name": "stranger", "key": STRANGER, "organisation": "other"},
                ],
                "anonymous": {"enabled": True},
            },
            "placement": {"session_header": "X-Session"},
            "cache": {"enabled": True, "disk_bytes": 0, "ignored_headers": ["x-test"]},
        }
    )
    try:
        eventually(lambda: "raw" in made.models(MINE))
        yield made
    finally:
        made.stop()


def about(text: str, **fields: Any) -> dict[str, Any]:
    return chat(**fields) | {"messages": [{"role": "user", "content": text}]}


def choice(text: str = "Hi", finish: str = "stop", index: int = 0, **message: Any) -> dict[str, Any]:
    return {
        "index": index,
        "message": {"role": "assistant", "content": text, **message},
        "finish_reason": finish,
    }


def play(raw: RawEngine, *choices: dict[str, Any], **more: Any) -> str:
    test = new_id("attack")
    body = json.dumps({"id": "c-1", "object": "chat.completion", "choices": choices} | more).encode()
    raw.scripts[test] = lambda talk: talk.send(whole(200, body))
    return test


def ask(gateway: Gateway, body: dict[str, Any], test: str, key: str = MINE, **headers: str) -> Answer:
    answer = gateway.ask(body, key=key, x_test=test, **headers)
    assert answer.status == 200, answer.body
    return answer


def kind(answer: Answer) -> str | None:
    return answer.get("x-forebay-cache")


def test_a_header_that_the_engine_gets_makes_another_request(gateway: Gateway, raw: RawEngine) -> None:
    test, body = play(raw, choice()), about(new_id("question"))
    assert (
        kind(ask(gateway, body, test, x_user_id="ann", x_request_id="1", traceparent="00-1", x_session="1")) == "miss"
    )
    assert (
        kind(ask(gateway, body, test, x_user_id="ann", x_request_id="2", traceparent="00-2", x_session="2")) == "exact"
    )
    assert kind(ask(gateway, body, test, x_user_id="bob")) == "miss"
    assert kind(ask(gateway, body, test)) == "miss"
    assert [one.get("x-user-id") for one in raw.requests(test)] == ["ann", "bob", None]


def test_a_knowledge_that_is_no_name_is_refused(gateway: Gateway) -> None:
    answer = gateway.ask(about("Hi"), key=MINE, x_forebay_knowledge="a" * 129)
    assert (answer.status, answer.error["param"]) == (400, "x-forebay-knowledge")


def test_what_was_cut_in_one_of_its_choices_is_not_kept(gateway: Gateway, raw: RawEngine) -> None:
    test, body = play(raw, choice(), choice("Hel", "length", 1)), about(new_id("question"), n=2)
    assert [kind(ask(gateway, body, test)) for _ in range(2)] == ["miss", "miss"]


def test_a_refusal_is_asked_again(gateway: Gateway, raw: RawEngine) -> None:
    test, body = play(raw, choice("I'm sorry, but I can't help with that.")), about(new_id("question"))
    assert [kind(ask(gateway, body, test)) for _ in range(2)] == ["miss", "miss"]


def bad(gateway: Gateway, entry: str | None, key: str, **more: Any) -> Answer:
    body = {"entry": entry, "good": False, **more}
    return gateway.ask(body, path="/v1/feedback", key=key)


def test_only_who_shares_an_answer_can_have_it_forgotten(gateway: Gateway, raw: RawEngine) -> None:
    test, body = play(raw, choice()), about(new_id("question"))
    entry = ask(gateway, body, test).get("x-forebay-cache-entry")
    for partition in ({}, {"model": "raw"}, {"model": "../acme/raw"}, {"model": ""}):
        assert bad(gateway, entry, STRANGER, **partition).status == 404
    assert kind(ask(gateway, body, test, COLLEAGUE)) == "exact"
    assert bad(gateway, entry, COLLEAGUE).status == 200
    assert kind(ask(gateway, body, test)) == "miss"


def test_a_flood_of_bad_words_is_stopped(gateway: Gateway, raw: RawEngine) -> None:
    test, body = play(raw, choice()), about(new_id("question"))
    entry = ask(gateway, body, test, STRANGER).get("x-forebay-cache-entry")
    with gateway.client() as client:
        told = []
        for _ in range(PER_MINUTE + 30):
            client.send(request({"entry": entry, "good": False}, path="/v1/feedback", key=STRANGER))
            told.append(client.read())
    assert {one.status for one in told[:PER_MINUTE]} == {200}
    assert (told[-1].status, told[-1].error["code"]) == (429, "rate_limit_exceeded")
    assert bad(gateway, entry, COLLEAGUE).status == 404, "its own are another's"


def test_an_answer_does_not_outlive_the_right_to_it(gateway: Gateway, raw: RawEngine) -> None:
    """No key, a wrong one: nothing, however well the answer is known."""
    test, body = play(raw, choice()), about(new_id("question"))
    assert kind(ask(gateway, body, test)) == "miss"
    eventually(lambda: gateway.ask(body, key="attack-wrong-0123456789", x_test=test).status == 401)
    nameless = gateway.raw(request(body, key=None, x_test=test))
    assert (nameless.status, kind(nameless)) == (200, "miss")
    assert len(raw.requests(test)) == 2


def test_a_key_that_is_taken_away_gets_nothing_on_a_connection_that_it_has(gateway: Gateway, raw: RawEngine) -> None:
    test, body = play(raw, choice()), about(new_id("question"))
    assert kind(ask(gateway, body, test)) == "miss"
    asked = request(body, key=COLLEAGUE, x_test=test)
    keys = gateway.config["callers"]["keys"]
    callers = {**gateway.config["callers"], "keys": [one for one in keys if one["key"] != COLLEAGUE]}
    with gateway.client() as client:

        def again() -> int:
            client.send(asked)
            return client.read().status

        assert again() == 200
        gateway.file.write_text(json.dumps({**gateway.config, "callers": callers}))
        gateway.process.send_signal(signal.SIGHUP)
        eventually(lambda: again() in (401, 503))
    assert kind(ask(gateway, body, test)) == "exact", "what it knows is still there"
    assert len(raw.requests(test)) == 1
