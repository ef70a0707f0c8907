"""Every refusal, as it goes on the wire."""

from __future__ import annotations

import inspect
import json
import math
import re
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import NamedTuple

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay import errors
from forebay.errors import Header, Outcome, Refusal, field_value, retry_headers, shown
from forebay.wire.sse import Framer, count, data_of

CALLER = "invalid_request_error"
LOGIN = ((b"www-authenticate", b"Bearer"), (b"x-should-retry", b"false"))
NEVER = ((b"x-should-retry", b"false"),)


def after(seconds: int) -> tuple[Header, ...]:
    return ((b"retry-after", str(seconds).encode()),)


class Row(NamedTuple):
    refusal: Refusal
    status: int
    type: str
    code: str
    message: str
    outcome: Outcome
    param: str | None = None
    headers: tuple[Header, ...] = ()
    close: bool = False


VOCABULARY: dict[str, Row] = {
    "bad_request": Row(
        errors.bad_request("No.", param="n"), 400, CALLER, "invalid_request", "No.", Outcome.BAD_REQUEST, "n"
    ),
    "bad_json": Row(
        errors.bad_json("a comma is missing"), 400, CALLER, "invalid_json",
        "The body is not valid JSON: a comma is missing.", Outcome.BAD_REQUEST,
    ),
    "bad_http": Row(
        errors.bad_http("two Content-Length fields"), 400, CALLER, "bad_http",
        "Malformed HTTP: two Content-Length fields.", Outcome.BAD_REQUEST, close=True,
    ),
    "missing_field": Row(
        errors.missing_field("model", "name one"), 400, CALLER, "missing_field",
        "Missing required field 'model': name one.", Outcome.BAD_REQUEST, "model",
    ),
    "wrong_type": Row(
        errors.wrong_type("n", "an integer", "a string"), 400, CALLER, "wrong_type",
        "'n' must be an integer, not a string.", Outcome.BAD_REQUEST, "n",
    ),
    "body_too_large": Row(
        errors.body_too_large(1048576), 413, CALLER, "body_too_large",
        "The body is over the limit of 1,048,576 bytes (limits.body_bytes).", Outcome.BAD_REQUEST, close=True,
    ),
    "headers_too_large": Row(
        errors.headers_too_large(65536), 431, CALLER, "headers_too_large",
        "The request head is over the limit of 65,536 bytes (limits.header_bytes).", Outcome.BAD_REQUEST, close=True,
    ),
    "too_many_headers": Row(
        errors.too_many_headers(100), 431, CALLER, "headers_too_large",
        "The request has more than 100 header lines (limits.header_count).", Outcome.BAD_REQUEST, close=True,
    ),
    "too_slow": Row(
        errors.too_slow("body", 2.5), 408, CALLER, "request_timeout",
        "The body did not arrive within 2.5 s.", Outcome.BAD_REQUEST, close=True,
    ),
    "unsupported_media_type": Row(
        errors.unsupported_media_type("text/plain"), 415, CALLER, "unsupported_media_type",
        "Content-Type must be application/json, not 'text/plain'.", Outcome.BAD_REQUEST,
    ),
    "no_route": Row(
        errors.no_route("GET", "/v2"), 404, CALLER, "unknown_route", "There is no GET /v2 here.", Outcome.NOT_FOUND
    ),
    "wrong_method": Row(
        errors.wrong_method("PUT", "/v1/models", "GET, HEAD"), 405, CALLER, "method_not_allowed",
        "PUT is not allowed on /v1/models; use GET, HEAD.", Outcome.NOT_FOUND, headers=((b"allow", b"GET, HEAD"),),
    ),
    "unknown_model": Row(
        errors.unknown_model("m", ["a", "b"]), 404, CALLER, "model_not_found",
        "The model 'm' does not exist here or your key may not use it. Known models: a, b.", Outcome.NOT_FOUND, "model",
    ),
    "unknown_request": Row(
        errors.unknown_request("r-1"), 404, CALLER, "request_not_found",
        "No running or waiting request 'r-1' of this key.", Outcome.NOT_FOUND, "id",
    ),
    "no_key": Row(
        errors.no_key(), 401, "authentication_error", "missing_api_key",
        "No API key given. Send it as 'Authorization: Bearer <key>'.", Outcome.UNAUTHORIZED, headers=LOGIN,
    ),
    "bad_scheme": Row(
        errors.bad_scheme(), 401, "authentication_error", "invalid_api_key",
        "The Authorization header must be 'Bearer <key>'.", Outcome.UNAUTHORIZED, headers=LOGIN,
    ),
    "wrong_key": Row(
        errors.wrong_key(), 401, "authentication_error", "invalid_api_key",
        "The API key is not known here.", Outcome.UNAUTHORIZED, headers=LOGIN,
    ),
    "revoked_key": Row(
        errors.revoked_key(), 401, "authentication_error", "revoked_api_key",
        "The API key was revoked. Ask for a new one.", Outcome.UNAUTHORIZED, headers=LOGIN,
    ),
    "expired_key": Row(
        errors.expired_key("2026-01-01"), 401, "authentication_error", "expired_api_key",
        "The API key expired on 2026-01-01. Ask for a new one.", Outcome.UNAUTHORIZED, headers=LOGIN,
    ),
    "rotated_key": Row(
        errors.rotated_key("2026-01-01"), 401, "authentication_error", "rotated_api_key",
        "The API key got a new text, and this one ended on 2026-01-01. Use the new one.", Outcome.UNAUTHORIZED,
        headers=LOGIN,
    ),
    "suspended_key": Row(
        errors.suspended_key(), 403, "permission_error", "api_key_suspended",
        "The API key is suspended. Ask whoever manages the keys here.", Outcome.FORBIDDEN, headers=LOGIN[1:],
    ),
    "suspended_account": Row(
        errors.suspended_account("project", "p"), 403, "permission_error", "account_suspended",
        "The project 'p', which the API key belongs to, is suspended. Ask whoever manages the keys here.",
        Outcome.FORBIDDEN, headers=LOGIN[1:],
    ),
    "too_many_failed_keys": Row(
        errors.too_many_failed_keys(9.2), 429, "rate_limit_error", "too_many_failed_keys",
        "Too many requests with unknown API keys from this address.", Outcome.RATE_LIMITED, headers=after(10),
    ),
    "keys_unknown": Row(
        errors.keys_unknown(), 503, "api_error", "keys_not_loaded",
        "The gateway cannot check keys yet.", Outcome.NO_ENGINE, headers=after(1),
    ),
    "overloaded": Row(
        errors.overloaded("queue_full", "The queue is full.", 3), 429, "rate_limit_error", "queue_full",
        "The queue is full.", Outcome.OVERLOADED, headers=after(3),
    ),
    "waited_too_long": Row(
        errors.waited_too_long(30, 12), 429, "rate_limit_error", "deadline",
        "No engine became free within 30 s.", Outcome.EXPIRED, headers=after(12),
    ),
    "rate_limited": Row(
        errors.rate_limited("requests per minute", 0.2), 429, "rate_limit_error", "rate_limit_exceeded",
        "Rate limit 'requests per minute' reached.", Outcome.RATE_LIMITED,
        headers=((b"x-forebay-limit", b"requests per minute"), *after(1)),
    ),
    "over_rate": Row(
        errors.over_rate("each-key", "key k1: 9 of 5"), 429, "rate_limit_error", "rate_limit_exceeded",
        "The request is too large for the rate limit 'each-key' (key k1: 9 of 5). Send a shorter prompt.",
        Outcome.RATE_LIMITED, headers=((b"x-forebay-limit", b"each-key"), *NEVER),
    ),
    "quota_exhausted": Row(
        errors.quota_exhausted("project x, month", "2026-12-01T00:00:00Z"), 429, "insufficient_quota",
        "insufficient_quota", "The quota 'project x, month' is used up; it resets at 2026-12-01T00:00:00Z.",
        Outcome.QUOTA,
        headers=((b"x-forebay-limit", b"project x, month"), (b"x-forebay-reset", b"2026-12-01T00:00:00Z"), *NEVER),
    ),
    "unpriced": Row(
        errors.unpriced("m", "team"), 403, "permission_error", "model_unpriced",
        "The model 'm' has no price here, and the quota 'team' is in money. Ask for another model, or ask the operator "
        "to price it.",
        Outcome.QUOTA, param="model", headers=((b"x-forebay-limit", b"team"), *NEVER),
    ),
    "no_engine": Row(
        errors.no_engine("m", "all 2 are down"), 503, "api_error", "no_engine",
        "No engine can take 'm' now: all 2 are down.", Outcome.NO_ENGINE, headers=after(5),
    ),
    "draining": Row(
        errors.draining(), 503, "api_error", "draining",
        "This gateway is shutting down and takes no new work.", Outcome.NO_ENGINE, headers=after(1), close=True,
    ),
    "engine_failed": Row(
        errors.engine_failed("connection reset"), 502, "api_error", "engine_error",
        "The engine failed: connection reset.", Outcome.ENGINE_ERROR,
    ),
    "engine_timeout": Row(
        errors.engine_timeout("sent no first byte within 120 s"), 504, "api_error", "engine_timeout",
        "The engine is too slow: sent no first byte within 120 s.", Outcome.ENGINE_TIMEOUT,
    ),
    "engine_cut": Row(
        errors.engine_cut("The engine failed: connection reset."), 502, "api_error", "engine_cut",
        "The engine failed: connection reset.", Outcome.ENGINE_CUT,
    ),
    "usage_unavailable": Row(
        errors.usage_unavailable("the admin process does not answer"), 503, "api_error", "usage_unavailable",
        "Usage cannot be looked up now: the admin process does not answer.", Outcome.INTERNAL, headers=after(1),
    ),
    "books_full": Row(
        errors.books_full(), 503, "api_error", "ledger_full",
        "The ledger's journal is full, and nothing is served unbooked here (ledger.when_full). "
        "Its database has to take what waits.", Outcome.NO_ENGINE, headers=after(5),
    ),
    "too_slow_a_reader": Row(
        errors.too_slow_a_reader(), 429, "rate_limit_error", "slow_reader",
        "The answer was read too slowly to be kept for this client.", Outcome.OVERLOADED, headers=after(1),
    ),
    "unknown_entry": Row(
        errors.unknown_entry("00ff"), 404, CALLER, "entry_not_found",
        "No answer '00ff' that this key was given is known here; where another gateway gave it, say its 'model'.",
        Outcome.NOT_FOUND, "entry",
    ),
    "feedback_unavailable": Row(
        errors.feedback_unavailable(), 503, "api_error", "feedback_unavailable",
        "The cache does not answer now; the answer may be given again.", Outcome.INTERNAL, headers=after(1),
    ),
    "not_cached": Row(
        errors.not_cached("miss"), 504, "api_error", "not_cached",
        "No answer to this request is known here (miss), and none but a known one was asked for.",
        Outcome.NOT_FOUND, headers=NEVER,
    ),
    "drained": Row(
        errors.drained(), 503, "api_error", "drained",
        "The gateway's shutdown deadline ended this answer.", Outcome.DRAINED, close=True,
    ),
    "cancelled": Row(
        errors.cancelled(), 499, "cancelled", "request_cancelled",
        "The request was cancelled by its caller.", Outcome.CANCELLED, headers=NEVER,
    ),
    "internal": Row(
        errors.internal("r-1"), 500, "api_error", "internal_error",
        "The gateway failed; its log has the details under request id r-1.", Outcome.INTERNAL,
    ),
}  # fmt: skip

CONSTRUCTORS: dict[str, Callable[..., Refusal]] = {
    name: f
    for name, f in inspect.getmembers(errors, inspect.isfunction)
    if not name.startswith("_") and inspect.signature(f).return_annotation == "Refusal"
}
rows = pytest.mark.parametrize("row", VOCABULARY.values(), ids=VOCABULARY)


def test_every_constructor_has_its_row() -> None:
    assert set(VOCABULARY) == set(CONSTRUCTORS)


@rows
def test_what_goes_on_the_wire(row: Row) -> None:
    refusal = row.refusal
    envelope = {"error": {"message": row.message, "type": row.type, "param": row.param, "code": row.code}}
    assert refusal.status == row.status
    assert json.loads(refusal.body()) == envelope
    assert list(json.loads(refusal.body())["error"]) == ["message", "type", "param", "code"]
    assert refusal.headers == ((b"x-forebay-reason", row.code.encode()), *row.headers)
    assert refusal.outcome is row.outcome
    assert refusal.close is row.close
    assert str(refusal) == row.message
    assert repr(refusal) == f"<Refusal {row.status} {row.code}: {row.message}>"


@rows
def test_inside_a_stream_it_is_one_event(row: Row) -> None:
    event = row.refusal.sse()
    assert Framer().feed(event) == event
    assert count(event) == 1
    assert data_of(event) == row.refusal.body()


def test_bad_http_may_have_another_status() -> None:
    refusal = errors.bad_http("HTTP/3.0", 505)
    assert (refusal.status, refusal.envelope()["error"]) == (
        505, {"message": "Malformed HTTP: HTTP/3.0.", "type": "api_error", "param": None, "code": "bad_http"},
    )  # fmt: skip


def test_unknown_model_lists_twenty_and_counts_the_rest() -> None:
    known = [f"m{i}" for i in range(23)]
    assert errors.unknown_model("x", known).message.endswith(f"Known models: {', '.join(known[:20])} and 3 more.")
    assert errors.unknown_model("x", known[:20]).message.endswith(f"Known models: {', '.join(known[:20])}.")
    assert errors.unknown_model("x", []).message.endswith("Known models: none.")


# --- Retry-After -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "headers"),
    [
        (-math.inf, after(1)),
        (-5, after(1)),
        (0, after(1)),
        (0.2, after(1)),
        (1, after(1)),
        (1.0001, after(2)),
        (59.01, after(60)),
        (60, after(60)),
        (60.0001, after(60) + NEVER),
        (61, after(60) + NEVER),
        (1e300, after(60) + NEVER),
        (math.inf, after(60) + NEVER),
        (math.nan, after(60) + NEVER),
    ],
)
def test_retry_headers(seconds: float, headers: tuple[Header, ...]) -> None:
    assert retry_headers(seconds) == headers


# --- what clients and configuration files can put in ------------------------------------------------------------------

BAD_TEXT = [
    "\r\nx-evil: 1",
    "a\nb",
    "\0",
    "\ud800",
    "\udfff\ud800",
    "é😀",
    "\u202egnp.exe",
    "\u2028",
    "\x85",
    "\x7f",
    "",
]
texts = st.text(st.characters(codec=None, exclude_categories=[]), max_size=40) | st.sampled_from(BAD_TEXT)
WIRE_VALUE = re.compile(rb"[\x20-\x7e]*")


@pytest.mark.parametrize("name", CONSTRUCTORS)
@given(data=st.data())
def test_any_text_makes_a_sendable_refusal(name: str, data: st.DataObject) -> None:
    constructor = CONSTRUCTORS[name]
    kinds: dict[str, st.SearchStrategy[object]] = {
        "str": texts, "str | None": st.none() | texts, "list[str]": st.lists(texts, max_size=25),
        "float": st.floats(), "int": st.integers(0, 2**70), "tuple[Header, ...]": st.just(((b"x-a", b"1"),)),
    }  # fmt: skip
    parameters = inspect.signature(constructor).parameters
    arguments = {n: data.draw(kinds[p.annotation], label=n) for n, p in parameters.items() if n != "status"}
    refusal = constructor(**arguments)

    error = json.loads(refusal.body().decode("utf-8", "strict"))["error"]
    sendable = {k: v.encode("utf-8", "replace").decode() if v is not None else None for k, v in vars(refusal).items()
                if k in ("message", "code", "param")}  # fmt: skip
    assert {k: error[k] for k in sendable} == sendable
    for header, value in refusal.headers:
        assert re.fullmatch(rb"[a-z-]+", header)
        assert WIRE_VALUE.fullmatch(value)
        assert value == value.strip()
    assert Framer().feed(refusal.sse()) == refusal.sse()
    assert data_of(refusal.sse()) == refusal.body()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("month", b"month"),
        ("a\r\nx-evil: 1", b"a??x-evil: 1"),
        ("é", b"?"),
        ("\ud800", b"?"),
        ("a\tb", b"a?b"),
        ("  a b  ", b"a b"),
        ("", b""),
    ],
)
def test_field_value(text: str, value: bytes) -> None:
    assert field_value(text) == value


def test_a_limit_named_by_an_attacker_adds_no_header() -> None:
    refusal = errors.quota_exhausted("x\r\nset-cookie: a=b", "now\r\n\r\n<html>")
    assert dict(refusal.headers) == {
        b"x-forebay-reason": b"insufficient_quota",
        b"x-forebay-limit": b"x??set-cookie: a=b",
        b"x-forebay-reset": b"now????<html>",
        b"x-should-retry": b"false",
    }
    assert dict(errors.overloaded("a\r\nb: c", "m", 1).headers)[b"x-forebay-reason"] == b"a??b: c"
    assert dict(errors.wrong_method("PUT", "/", "GET\r\nx: y").headers)[b"allow"] == b"GET??x: y"


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("gpt-4", "gpt-4"),
        ("模型 é😀", "模型 é😀"),
        ("a\r\n\t\0\x1b[31mb", "a\ufffd\ufffd\ufffd\ufffd\ufffd[31mb"),
        ("\x7f\x85\u2028\u202e\ufeff", "\ufffd" * 5),
        ("\ud800x", "\ufffdx"),
        ("", ""),
        (7, "7"),
        (None, "None"),
        ("x" * 80, "x" * 80),
        ("x" * 81, "x" * 80 + "…"),
        ("\n" * 81, "\ufffd" * 80 + "…"),
    ],
)
def test_shown(text: object, safe: str) -> None:
    assert shown(text) == safe


@given(texts, st.integers(1, 50))
def test_shown_is_printable_and_bounded(text: str, limit: int) -> None:
    safe = shown(text, limit)
    assert safe.isprintable()
    assert len(safe) <= limit + 1
    assert safe.encode().decode() == safe


# --- what the OpenAI SDK makes of it ---------------------------------------------------------------------------------


class Gateway(ThreadingHTTPServer):
    """Answers every POST as told, and counts them."""

    daemon_threads = True
    answer: tuple[int, tuple[Header, ...], bytes]
    asked = 0


class Respond(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Gateway

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.server.asked += 1
        status, headers, body = self.server.answer
        self.send_response(status)
        for name, value in headers:
            self.send_header(name.decode(), value.decode())
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Quiet."""


@pytest.fixture(scope="module")
def listening() -> Iterator[Gateway]:
    with Gateway(("127.0.0.1", 0), Respond) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def client(listening: Gateway) -> Iterator[openai.OpenAI]:
    url = f"http://127.0.0.1:{listening.server_port}/v1"
    with openai.OpenAI(api_key="k", base_url=url, max_retries=0) as client:
        yield client


@pytest.fixture
def gateway(listening: Gateway) -> Gateway:
    listening.asked = 0
    return listening


def chat(client: openai.OpenAI) -> object:
    return client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])


def as_answer(refusal: Refusal) -> tuple[int, tuple[Header, ...], bytes]:
    return refusal.status, ((b"content-type", b"application/json"), *refusal.headers), refusal.body()


SDK = {
    400: openai.BadRequestError,
    401: openai.AuthenticationError,
    403: openai.PermissionDeniedError,
    404: openai.NotFoundError,
    429: openai.RateLimitError,
    500: openai.InternalServerError,
    502: openai.InternalServerError,
    503: openai.InternalServerError,
    504: openai.InternalServerError,
}


@rows
def test_the_sdk_raises_its_own_exception(gateway: Gateway, client: openai.OpenAI, row: Row) -> None:
    gateway.answer = as_answer(row.refusal)
    with pytest.raises(openai.APIStatusError) as e:
        chat(client)
    assert type(e.value) is SDK.get(row.status, openai.APIStatusError)
    assert (e.value.status_code, e.value.code, e.value.param, e.value.type) == (
        row.status, row.code, row.param, row.type,
    )  # fmt: skip
    assert row.message in e.value.message


@pytest.mark.parametrize("name", [n for n, r in VOCABULARY.items() if NEVER[0] in r.headers])
def test_the_sdk_does_not_ask_again_where_it_is_told_so(gateway: Gateway, client: openai.OpenAI, name: str) -> None:
    gateway.answer = as_answer(VOCABULARY[name].refusal)
    with pytest.raises(openai.APIStatusError):
        chat(client.with_options(max_retries=3))
    assert gateway.asked == 1


@pytest.mark.parametrize(("wait", "slept"), [(7.5, [8, 8]), (60, [60, 60]), (61, [])])
def test_the_sdk_waits_as_long_as_it_is_told(
    gateway: Gateway, client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch, wait: float, slept: list[int]
) -> None:
    sleeps: list[float] = []
    monkeypatch.setattr("time.sleep", sleeps.append)
    gateway.answer = as_answer(errors.overloaded("queue_full", "Full.", wait))
    with pytest.raises(openai.RateLimitError):
        chat(client.with_options(max_retries=2))
    assert sleeps == slept
    assert gateway.asked == 1 + len(slept)


def test_the_sdk_raises_where_the_stream_carries_a_refusal(gateway: Gateway, client: openai.OpenAI) -> None:
    chunk = {
        "id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m",
        "choices": [{"index": 0, "delta": {"content": "half"}, "finish_reason": None}],
    }  # fmt: skip
    cut = errors.engine_cut("The engine failed: connection reset.").sse()
    body = b"data: " + json.dumps(chunk).encode() + b"\n\n" + cut
    gateway.answer = (200, ((b"content-type", b"text/event-stream"),), body)
    words: list[str | None] = []
    with (
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}], stream=True) as stream,
        pytest.raises(openai.APIError, match=r"The engine failed: connection reset\.") as e,
    ):
        words.extend(chunk.choices[0].delta.content for chunk in stream)
    assert words == ["half"]
    assert e.value.code == "engine_cut"


def test_outcomes_are_labels() -> None:
    assert len({o.value for o in Outcome}) == len(Outcome)
    assert all(re.fullmatch(r"[a-z_]+", o.value) for o in Outcome)
