"""Which paths there are, what browsers may do, cancelling, and request ids."""

from __future__ import annotations

import json
import re
import threading

import pytest

from e2e.client import CHAT, KEY, Answer, chat, events, new_id, request
from e2e.conftest import LOW_KEY, Engines
from e2e.engine import ROLE, Talk, chunk, delta, event, stream_head
from e2e.gateway import Gateway
from waiting import eventually

CANCEL = "/v1/requests/{}/cancel"


def refused(answer: Answer, status: int, code: str, message: str) -> None:
    assert (answer.status, answer.message, answer.error["code"]) == (status, message, code)
    assert answer.get("x-request-id")


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/v1",
        "/v1/",
        "/v2/chat/completions",
        "/v1/chat/completions/",
        "/V1/chat/completions",
        "//v1/chat/completions",
        "/v1//chat/completions",
        "/v1/./chat/completions",
        "/v1/x/../chat/completions",
        "/v1/chat%2Fcompletions",
        "/v1/chat/completions;x",
        "/v1/chat/completions%00",
        "/health",
        "/metrics",
        "/v1/modelsx",
        "/v1/requests/x",
        "/v1/requests/x/stop",
        "/control/faults",
        "/tokenize",
    ],
)
def test_no_route(gateway: Gateway, engines: Engines, method: str, path: str) -> None:
    before = engines.raw.total()
    answer = gateway.ask(chat() if method == "POST" else None, path, method)
    refused(answer, 404, "unknown_route", f"There is no {method} {path} here.")
    assert engines.raw.total() == before


def test_no_route_without_a_key(gateway: Gateway) -> None:
    """Who has no key learns nothing of the routes."""
    assert gateway.ask(path="/v1/nowhere", method="GET", key=None).status == 401


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/raw"])
def test_models_are_read_only(gateway: Gateway, method: str, path: str) -> None:
    answer = gateway.ask(path=path, method=method)
    refused(answer, 405, "method_not_allowed", f"{method} is not allowed on {path}; use GET, HEAD.")
    assert answer.get("allow") == "GET, HEAD"


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/raw", "/v1/models/none", "/v1/nowhere"])
def test_head_is_get_without_a_body(gateway: Gateway, path: str) -> None:
    with gateway.client() as client:
        client.send(request(path=path, method="GET"))
        got = client.read()
        client.send(request(path=path, method="HEAD") + request(path=path, method="GET"))
        head = client.read(head_only=True)
        again = client.read()
    assert (head.status, head.get("content-type")) == (got.status, got.get("content-type"))
    if got.status == 200:
        assert head.get("content-length") == got.get("content-length")
    assert again.body == got.body


def test_a_body_where_none_is_needed(gateway: Gateway) -> None:
    with gateway.client() as client:
        for _ in range(2):
            client.send(request(b'{"a": 1}', "/v1/models", "GET"))
            assert client.read().status == 200


def test_completions_and_embeddings(gateway: Gateway) -> None:
    answer = gateway.ask({"model": "forebay-sim", "prompt": "Hi", "max_tokens": 3}, "/v1/completions")
    assert (answer.status, answer.json["object"]) == (200, "text_completion")
    stream = gateway.ask({"model": "forebay-sim", "prompt": "Hi", "max_tokens": 3, "stream": True}, "/v1/completions")
    assert (stream.status, events(stream.body)[-1]) == (200, b"[DONE]")
    answer = gateway.ask({"model": "forebay-sim", "input": ["Hi", "there"]}, "/v1/embeddings")
    assert (answer.status, len(answer.json["data"])) == (200, 2)


# --- browsers ---------------------------------------------------------------------------------------------------------

ORIGIN = "https://app.example"
CORS = ("access-control-allow-origin", "access-control-allow-methods", "access-control-allow-headers")


def test_preflight(gateway: Gateway) -> None:
    """Without a key: browsers send none."""
    headers = {
        "Origin": ORIGIN,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type,x-stainless-os",
    }
    answer = gateway.ask(path=CHAT, method="OPTIONS", key=None, headers=headers)
    assert answer.status == 204
    assert [answer.get(n) for n in CORS] == [ORIGIN, "GET, POST, OPTIONS", "authorization,content-type,x-stainless-os"]
    assert "origin" in (answer.get("vary") or "").lower()
    assert answer.get("access-control-max-age") == "86400"


@pytest.mark.parametrize(
    "origin",
    ["https://evil.example", "https://app.example.evil", "null", "https://app.example:1", "http://app.example"],
)
def test_preflight_of_others(gateway: Gateway, origin: str) -> None:
    answer = gateway.ask(path=CHAT, method="OPTIONS", key=None, headers={"Origin": origin})
    assert [answer.get(n) for n in CORS] == [None] * 3


@pytest.mark.parametrize(
    ("body", "key", "status"),
    [(chat(), KEY, 200), (chat(stream=True), KEY, 200), (chat("none"), KEY, 404), ([], KEY, 400), (chat(), None, 401)],
)
def test_cors_of_answers(gateway: Gateway, body: object, key: str | None, status: int) -> None:
    """On refusals too: a page must be able to read why."""
    answer = gateway.ask(body, key=key, Origin=ORIGIN)
    assert (answer.status, answer.get("access-control-allow-origin")) == (status, ORIGIN)
    exposed = (answer.get("access-control-expose-headers") or "").split(", ")
    assert {"x-request-id", "retry-after", "x-forebay-reason", "forebay-predicted-ttft-ms"} <= set(exposed)
    assert "origin" in (answer.get("vary") or "").lower()
    assert gateway.ask(body, key=key, Origin="https://evil.example").get("access-control-allow-origin") is None


def test_options_without_an_origin(gateway: Gateway) -> None:
    for path in (CHAT, "*", "/v1/models"):
        answer = gateway.ask(path=path, method="OPTIONS", key=None)
        assert (answer.status, answer.body) == (204, b"")


def test_origin_changes_within_a_connection(gateway: Gateway) -> None:
    with gateway.client() as client:
        for origin in (ORIGIN, "https://evil.exampl", ORIGIN):
            client.send(request(chat(), Origin=origin))
            answer = client.read()
            assert answer.get("access-control-allow-origin") == (ORIGIN if origin == ORIGIN else None)


# --- cancelling -------------------------------------------------------------------------------------------------------


def hang(engines: Engines, *pieces: bytes) -> tuple[str, threading.Event]:
    test = new_id("hang")
    gone = threading.Event()

    def script(talk: Talk) -> None:
        talk.send(*pieces)
        talk.wait_gone()
        gone.set()

    engines.raw.scripts[test] = script
    return test, gone


def test_cancel_a_stream(gateway: Gateway, engines: Engines) -> None:
    word = event(delta({"content": "Hi"}))
    test, gone = hang(engines, stream_head(), chunk(ROLE + word))
    with gateway.client() as client:
        client.send(request(chat(stream=True), x_test=test, x_request_id=test))
        answer = client.head()
        assert answer.status == 200
        done = gateway.ask(path=CANCEL.format(test))
        assert (done.status, done.json) == (200, {"id": test, "object": "request.cancellation", "cancelled": 1})
        client.body(answer)
        assert not answer.whole
        got = events(answer.body)
        assert json.loads(got[-1])["error"] == {
            "message": "The request was cancelled by its caller.",
            "type": "cancelled",
            "param": None,
            "code": "request_cancelled",
        }
        assert b"[DONE]" not in answer.body
    assert gone.wait(60)


@pytest.mark.parametrize("stream", [False, True])
def test_cancel_before_content(gateway: Gateway, engines: Engines, stream: bool) -> None:
    test, gone = hang(engines)
    with gateway.client() as client:
        client.send(request(chat(stream=stream), x_test=test, x_request_id=test))
        engines.raw.wait_for(test)
        assert gateway.ask(path=CANCEL.format(test)).status == 200
        answer = client.read()
        refused(answer, 499, "request_cancelled", "The request was cancelled by its caller.")
        assert answer.get("x-should-retry") == "false"
    assert gone.wait(60)


def test_cancel_another_key_s_request(gateway: Gateway, engines: Engines) -> None:
    test, gone = hang(engines)
    with gateway.client() as client:
        client.send(request(chat(), x_test=test, x_request_id=test))
        engines.raw.wait_for(test)
        answer = gateway.ask(path=CANCEL.format(test), key=LOW_KEY)
        refused(answer, 404, "request_not_found", f"No running or waiting request '{test}' of this key.")
        assert not gone.is_set()
    assert gone.wait(60)
    eventually(lambda: gateway.ask(path=CANCEL.format(test)).status == 404)


def test_cancel_with_the_wrong_method(gateway: Gateway) -> None:
    path = CANCEL.format("x")
    answer = gateway.ask(path=path, method="GET")
    refused(answer, 405, "method_not_allowed", f"GET is not allowed on {path}; use POST.")


def test_cancel_without_a_key(gateway: Gateway) -> None:
    assert gateway.ask(path=CANCEL.format("x"), key=None).status == 401


# --- request ids ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", ["a", "x" * 128, "A-b_c.d:e-0", "550e8400-e29b-41d4-a716-446655440000"])
@pytest.mark.parametrize("body", [chat(), chat(stream=True), chat("none"), []], ids=["unary", "stream", "404", "400"])
def test_request_id_is_honoured(gateway: Gateway, engines: Engines, given: str, body: object) -> None:
    test = new_id("id")
    answer = gateway.ask(body, x_request_id=given, x_test=test)
    assert answer.get("x-request-id") == given
    if answer.status == 200:
        assert engines.raw.one(test).get("x-request-id") == given


@pytest.mark.parametrize("given", ["", "x" * 129, "a b", "a\tb", "<script>", 'a"b', "\xe9", "a/b", "a,b", "%0d%0a"])
def test_malformed_request_id_is_replaced(gateway: Gateway, engines: Engines, given: str) -> None:
    test = new_id("id")
    answer = gateway.ask(chat(), x_request_id=given, x_test=test)
    made = answer.get("x-request-id") or ""
    assert re.fullmatch(r"req-[0-9a-f]{24}", made)
    assert engines.raw.one(test).get("x-request-id") == made


def test_made_request_ids_differ(gateway: Gateway) -> None:
    with gateway.client() as client:
        ids = set()
        for _ in range(20):
            client.send(request(chat()))
            ids.add(client.read().get("x-request-id"))
    assert len(ids) == 20


def test_two_request_ids(gateway: Gateway, engines: Engines) -> None:
    """Refused, or one of them, the same everywhere."""
    test = new_id("id")
    data = request(chat(), x_test=test, x_request_id="first").replace(
        b"x-request-id: first\r\n", b"X-Request-Id: first\r\nx-request-id: second\r\n"
    )
    answer = gateway.raw(data)
    if answer.status == 400:  # as good: nobody is in doubt
        assert "x-request-id" in answer.message
        assert not engines.raw.requests(test)
        return
    assert answer.get("x-request-id") in ("first", "second")
    assert engines.raw.one(test).get("x-request-id") == answer.get("x-request-id")
