"""Engines that refuse, break, lie and overflow: what their clients are told, and who is asked again."""

from __future__ import annotations

import gzip
import json
import threading
import zlib
from collections.abc import Iterator
from typing import Any

import pytest

from e2e.client import KEY, Answer, chat, events, new_id, request
from e2e.conftest import Engines
from e2e.engine import (
    ANSWER,
    DONE,
    ROLE,
    SSE,
    USAGE_CHUNK,
    RawEngine,
    Script,
    Talk,
    chunk,
    delta,
    event,
    head,
    paced,
    says,
    stream_head,
    streams,
    whole,
)
from e2e.gateway import Gateway
from ports import free_port
from waiting import eventually

WORD = event(delta({"content": "Hi"}))
LAST = event(delta({"content": "!"}, "stop"))


def play(gateway: Gateway, engines: Engines, script: Script, *, model: str = "raw", **fields: Any) -> Answer:
    test = new_id("fault")
    engines.raw.scripts[test] = script
    answer = gateway.ask(chat(model, **fields), x_test=test)
    # A kept connection that closes without a byte may have been dead before: the request is sent again on a new one.
    assert len(engines.raw.requests(test)) in (1, 2)
    return answer


def failed(answer: Answer, message: str, status: int = 502, code: str = "engine_error") -> None:
    assert (answer.status, answer.message) == (status, message)
    kind = "rate_limit_error" if status == 429 else "api_error"
    assert answer.error == {"message": message, "type": kind, "param": None, "code": code}
    assert answer.get("x-forebay-reason") == code
    assert answer.get("x-request-id")
    assert answer.whole


def reset(talk: Talk) -> None:
    talk.reset()


def partly(*pieces: bytes, how: str = "close") -> Script:
    def script(talk: Talk) -> None:
        talk.send(*pieces)
        (talk.close if how == "close" else talk.reset)()

    return script


CLOSED = "The engine failed: closed the connection without an answer"
CUT = "The engine failed: closed the connection in the middle of its answer"
GARBAGE = "The engine failed: its answer is not HTTP"
BY_RESET = " (Connection reset by peer)"

BROKEN: dict[str, tuple[Script, str]] = {
    "closes": (partly(), f"{CLOSED}."),
    "resets": (reset, f"{CLOSED}{BY_RESET}."),
    "closes in the head": (partly(head(200)[:-10]), f"{CUT}."),
    "closes behind the head": (partly(head(200, "content-length: 10")), f"{CUT}."),
    "closes in the body": (partly(whole(200, ANSWER)[:-1]), f"{CUT}."),
    "closes in a chunk": (partly(head(200, "transfer-encoding: chunked"), chunk(ANSWER)[:-9]), f"{CUT}."),
    "closes before the last chunk": (partly(head(200, "transfer-encoding: chunked"), chunk(ANSWER)), f"{CUT}."),
    "speaks TLS": (says(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"a" * 500, close=True), GARBAGE),
    "speaks HTML": (says(b"<html><body>502</body></html>", close=True), GARBAGE),
    "speaks of another length": (
        says(head(200, "content-length: 5", "content-length: 6") + b"12345", close=True),
        GARBAGE,
    ),
    "speaks of two framings": (
        says(head(200, "content-length: 5", "transfer-encoding: chunked") + chunk(ANSWER) + b"0\r\n\r\n", close=True),
        GARBAGE,
    ),
    "speaks of a negative length": (says(head(200, "content-length: -5"), close=True), GARBAGE),
    "speaks of a bad chunk": (
        says(head(200, "transfer-encoding: chunked") + b"5x\r\nhello\r\n0\r\n\r\n", close=True),
        "The engine failed: its answer is not HTTP",
    ),
    "a head without an end": (
        says(b"HTTP/1.1 200 OK\r\nX-A: " + b"b" * 1_000_000, hang=True),
        "The engine failed: a head of more than 65536 bytes.",
    ),
    "endless headers": (
        says(b"HTTP/1.1 200 OK\r\n" + b"X-A: b\r\n" * 200_000, hang=True),
        "The engine failed: a head of more than 65536 bytes.",
    ),
    "switches protocols": (
        says(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nx", close=True),
        GARBAGE,
    ),
    "not JSON": (says(whole(200, b"Hello")), "The engine failed: its answer is not JSON."),
    "not an object": (says(whole(200, b"[1]")), "The engine failed: its answer is not JSON."),
    "half of JSON": (says(whole(200, ANSWER[:-1])), "The engine failed: its answer is not JSON."),
    "nothing": (says(whole(200, b"")), "The engine failed: its answer is not JSON."),
    "no content": (says(b"HTTP/1.1 204 No Content\r\n\r\n"), "The engine failed: its answer is not JSON."),
    "brotli": (
        says(whole(200, ANSWER, "content-encoding: br")),
        "The engine failed: it answered in the Content-Encoding br, which nobody asked for.",
    ),
    "two codings": (
        says(whole(200, ANSWER, "content-encoding: gzip, gzip")),
        "The engine failed: it answered in the Content-Encoding gzip, gzip, which nobody asked for.",
    ),
    "gzip that is none": (
        says(whole(200, ANSWER, "content-encoding: gzip")),
        "The engine failed: its compressed answer cannot be read: Error -3 while decompressing data: incorrect header "
        "check.",
    ),
    "gzip cut short": (
        says(whole(200, gzip.compress(ANSWER)[:-9], "content-encoding: gzip")),
        "The engine failed: its compressed answer is cut short.",
    ),
    "a gzip bomb": (
        says(whole(200, gzip.compress(b" " * 100_000_000), "content-encoding: gzip")),
        "The engine failed: its compressed answer cannot be read: it unfolds to more than 4,194,304 bytes.",
    ),
    "says 302": (says(whole(302, b"", "location: http://127.0.0.1:1/")), "The engine failed: it answered 302."),
    "says 401": (
        says(whole(401, b'{"error": "Unauthorized"}')),
        "The engine failed: it answered 401.",
    ),
    "says 403": (says(whole(403, b"<html>", kind="text/html")), "The engine failed: it answered 403."),
    "says 500": (
        says(whole(500, b'{"error": {"message": "Out of\\nmemory", "code": 500}}')),
        "The engine failed: it answered 500: Out of\ufffdmemory.",
    ),
    "says 502": (says(whole(502, b"")), "The engine failed: it answered 502."),
    "says 599": (says(whole(599, b"{}")), "The engine failed: it answered 599."),
    "a long answer by its length": (
        says(head(200, f"content-length: {100_000_000}"), hang=True),
        "The engine failed: its answer is over the limit of 4,194,304 bytes (limits.response_bytes).",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_answer(gateway: Gateway, engines: Engines, name: str) -> None:
    """One engine, so nobody else to ask: 502 that says what happened. Later answers are not touched by it."""
    script, message = BROKEN[name]
    answer = play(gateway, engines, script)
    if message == GARBAGE:
        assert answer.message.startswith(GARBAGE)
        message = answer.message
    failed(answer, message)
    assert gateway.ask(chat()).status == 200


STREAM_BROKEN: dict[str, tuple[Script, str]] = {
    **{
        k: BROKEN[k]
        for k in ("closes", "resets", "closes in the head", "speaks HTML", "says 500", "says 302", "brotli")
    },
    "JSON": (
        says(whole(200, ANSWER)),
        "The engine failed: it answered a stream with the Content-Type 'application/json'.",
    ),
    "no kind": (says(whole(200, ROLE, kind=None)), "The engine failed: it answered a stream with the Content-Type ''."),
    "closes behind the head": (partly(stream_head()), f"{CUT}."),
    "closes behind the role": (partly(stream_head(), chunk(ROLE)), f"{CUT}."),
    "resets behind the role": (partly(stream_head(), chunk(ROLE), how="reset"), f"{CUT}{BY_RESET}."),
    "ends behind the role": (streams(ROLE), "The engine failed: its stream ended without an answer."),
    "ends at once": (streams(), "The engine failed: its stream ended without an answer."),
    "ends in the first event": (streams(ROLE, WORD[:-2]), "The engine failed: its stream ended without an answer."),
    "a first event without an end": (
        streams(b"data: " + b"a" * 70_000),
        "The engine failed: an event of the stream is over the limit of 65,536 bytes.",
    ),
    "gzip that is none": (
        says(head(200, "transfer-encoding: chunked", "content-encoding: gzip", kind=SSE), chunk(ROLE + WORD)),
        "The engine failed: its compressed answer cannot be read: Error -3 while decompressing data: incorrect header "
        "check.",
    ),
    "an error event": (
        streams(ROLE, event({"error": {"message": "No", "type": "x", "code": 500}}), DONE),
        "The engine failed: it answered 500: No.",
    ),
    "an error event without a code": (
        streams(event({"error": {"message": "No"}}), DONE),
        "The engine failed: it answered 502: No.",
    ),
    "an error event of words": (streams(event({"error": "No"}), DONE), "The engine failed: it answered 502: No."),
}


@pytest.mark.parametrize("name", STREAM_BROKEN)
def test_broken_stream_before_content(gateway: Gateway, engines: Engines, name: str) -> None:
    """The client has seen nothing, so it gets a status."""
    script, message = STREAM_BROKEN[name]
    answer = play(gateway, engines, script, stream=True)
    if message == GARBAGE:
        assert answer.message.startswith(GARBAGE)
        message = answer.message
    failed(answer, message)


def cut_short(answer: Answer, sent: bytes, message: str) -> None:
    """What was sent, an error event, no [DONE], no last chunk."""
    assert (answer.status, answer.whole) == (200, False)
    assert answer.body.startswith(sent)
    rest = events(answer.body[len(sent) :])
    assert len(rest) == 1
    assert b"[DONE]" not in rest[0]  # many clients look for it anywhere in a line
    error = {"message": message, "type": "api_error", "param": None, "code": "engine_cut"}
    assert json.loads(rest[0]) == {"error": error}


SENT = ROLE + WORD
AFTER: dict[str, tuple[Script, str]] = {
    "closes": (partly(stream_head(), chunk(SENT)), f"{CUT}."),
    "resets": (partly(stream_head(), chunk(SENT), how="reset"), f"{CUT}{BY_RESET}."),
    "closes in an event": (partly(stream_head(), chunk(SENT), chunk(LAST[:-5])), f"{CUT}."),
    "closes in a chunk": (partly(stream_head(), chunk(SENT), chunk(LAST)[:-5]), f"{CUT}."),
    "closes before the last chunk": (partly(stream_head(), chunk(SENT)), f"{CUT}."),
    "ends without [DONE]": (streams(SENT), "The engine failed: its stream ended too early."),
    "ends in an event": (streams(SENT, LAST[:-2]), "The engine failed: its stream ended too early."),
    "ends in [DONE]": (streams(SENT, DONE[:-1]), "The engine failed: its stream ended too early."),
    "closes a close-delimited stream": (
        says(head(200, "connection: close", kind=SSE), SENT, close=True),
        "The engine failed: its stream ended too early.",
    ),
    "an event without an end": (
        streams(SENT, b"data: " + b"a" * 70_000),
        "The engine failed: an event of the stream is over the limit of 65,536 bytes.",
    ),
    "a bad chunk": (says(stream_head(), chunk(SENT), b"zz\r\n", hang=True), GARBAGE),
    "a length too long": (
        says(head(200, f"content-length: {len(SENT) + 10}", kind=SSE), SENT, close=True),
        f"{CUT}.",
    ),
    "a length too short": (
        says(head(200, f"content-length: {len(SENT)}", kind=SSE), SENT, LAST, DONE),
        "The engine failed: its stream ended too early.",
    ),
}


@pytest.mark.parametrize("name", AFTER)
def test_broken_stream_after_content(gateway: Gateway, engines: Engines, name: str) -> None:
    script, message = AFTER[name]
    answer = play(gateway, engines, script, stream=True)
    if message == GARBAGE:
        message = json.loads(events(answer.body)[-1])["error"]["message"]
        assert message.startswith(GARBAGE)
    cut_short(answer, SENT, message)
    assert gateway.ask(chat(stream=True)).whole


def test_cut_for_http_1_0(gateway: Gateway, engines: Engines) -> None:
    """Without chunks only the error event tells a cut stream from a whole one."""
    test = new_id("fault")
    engines.raw.scripts[test] = partly(stream_head(), chunk(SENT))
    with gateway.client() as client:
        client.send(request(chat(stream=True), version="1.0", x_test=test))
        answer = client.read()
    assert json.loads(events(answer.body)[-1])["error"]["code"] == "engine_cut"
    assert b"[DONE]" not in answer.body


@pytest.mark.parametrize("fault", ["cut=40", "reset-after=40"])
def test_cut_after_40_of_60_tokens(gateway: Gateway, engines: Engines, fault: str) -> None:
    """The emulated engine, at its own pace."""
    body = chat("forebay-sim", stream=True, max_tokens=60, ignore_eos=True)
    answer = gateway.ask(body, headers={"x-forebay-fault": fault})
    assert (answer.status, answer.whole) == (200, False)
    got = events(answer.body)
    content = [json.loads(e)["choices"][0]["delta"].get("content") for e in got[:-1]]
    assert content[0] == ""
    assert all(content[1:])
    if fault == "cut=40":  # a reset may overtake what was sent
        assert len(content) == 41
    assert json.loads(got[-1])["error"]["code"] == "engine_cut"
    assert b"[DONE]" not in answer.body


@pytest.mark.parametrize(
    "error",
    [
        {"error": {"message": "Boom", "type": "InternalServerError", "param": None, "code": 500}},
        {"error": "Boom"},
        {"object": "error", "message": "Boom", "code": 500},
        {"error": {"message": "queue is full", "code": 503}},
    ],
)
def test_error_event_after_content(gateway: Gateway, engines: Engines, error: dict[str, Any]) -> None:
    """The engine's own words reach the client; its [DONE] does not."""
    spoken = event(error)
    answer = play(gateway, engines, streams(ROLE, WORD, spoken, DONE), stream=True)
    assert answer.body == ROLE + WORD + spoken
    assert not answer.whole
    together = play(gateway, engines, streams(ROLE, WORD + spoken + DONE), stream=True)
    assert together.body == ROLE + WORD + spoken
    assert not together.whole


@pytest.mark.parametrize("before", [0, 1, 2, 5])
def test_error_event_between_words_in_one_chunk(gateway: Gateway, engines: Engines, before: int) -> None:
    """However alike the events around it are, and however many there have been."""
    spoken = event({"error": {"message": "Boom", "code": 500}})
    many = [event(delta({"content": f"w{i}"})) for i in range(before)]
    script = paced(ROLE, *many, WORD + spoken + WORD, WORD, DONE)
    answer = play(gateway, engines, script, stream=True)
    assert answer.body == b"".join([ROLE, *many, WORD, spoken])
    assert not answer.whole
    first = play(gateway, engines, paced(ROLE, *many, WORD, spoken + WORD, DONE), stream=True)
    assert first.body == b"".join([ROLE, *many, WORD, spoken])
    assert not first.whole


def test_emulated_error_event(gateway: Gateway) -> None:
    body = chat("forebay-sim", stream=True, max_tokens=20, ignore_eos=True)
    answer = gateway.ask(body, headers={"x-forebay-fault": "error-event=5"})
    assert not answer.whole
    got = events(answer.body)
    assert len(got) == 7
    assert json.loads(got[-1])["error"]["message"].startswith("EngineCore")
    first = gateway.ask(body, headers={"x-forebay-fault": "error-event=0"})
    assert first.status == 502
    assert first.message.startswith("The engine failed: it answered 500: EngineCore")


@pytest.mark.parametrize("fields", [{"content": ""}, {"usage": None}])
def test_words_like_an_error(gateway: Gateway, engines: Engines, fields: dict[str, Any]) -> None:
    """An event that only speaks of "error" and [DONE] is content."""
    told = event(delta({"content": 'the "error" was [DONE]'}, error=None))
    answer = play(gateway, engines, streams(ROLE, told, LAST, DONE), stream=True)
    assert (answer.body, answer.whole) == (ROLE + told + LAST + DONE, True)


def test_finish_reason_stands_for_done(gateway: Gateway, engines: Engines) -> None:
    """Some engines send no [DONE]: a finish reason and a proper end is a whole answer."""
    answer = play(gateway, engines, streams(ROLE, WORD, LAST), stream=True)
    assert (answer.body, answer.whole) == (ROLE + WORD + LAST, True)


def test_whole_stream_without_content(gateway: Gateway, engines: Engines) -> None:
    answer = play(gateway, engines, streams(ROLE, DONE), stream=True)
    assert (answer.status, answer.body, answer.whole) == (200, ROLE + DONE, True)


# --- statuses that are the client's to read --------------------------------------------------------------------------


@pytest.mark.parametrize("status", [400, 404, 408, 409, 413, 422])
@pytest.mark.parametrize("stream", [False, True])
def test_refusal_of_the_engine(gateway: Gateway, engines: Engines, status: int, stream: bool) -> None:
    """Passed as it is, with its headers and without those of its connection."""
    body = b'{"error": {"message": "no such parameter", "type": "BadRequestError", "code": %d}}' % status
    script = says(whole(status, body, "x-engine: yes", "keep-alive: timeout=5", "connection: x-hop", "x-hop: 1"))
    answer = play(gateway, engines, script, stream=stream)
    assert (answer.status, answer.body, answer.whole) == (status, body, True)
    assert (answer.get("x-engine"), answer.get("keep-alive"), answer.get("x-hop")) == ("yes", None, None)


@pytest.mark.parametrize("kind", ["status", "event"])
def test_error_event_of_a_client_s_mistake(gateway: Gateway, engines: Engines, kind: str) -> None:
    body = {"error": {"message": "too long", "type": "BadRequestError", "param": None, "code": 400}}
    script = streams(ROLE, event(body), DONE) if kind == "event" else says(whole(400, json.dumps(body).encode()))
    answer = play(gateway, engines, script, stream=True)
    assert (answer.status, answer.json) == (400, body)


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize(
    ("line", "wanted"),
    [("retry-after: 7", "7"), ("x-a: b", "1"), ("retry-after: soon", "1"), ("retry-after: 900", "60")],
)
@pytest.mark.parametrize("stream", [False, True])
def test_back_pressure(gateway: Gateway, engines: Engines, status: int, line: str, wanted: str, stream: bool) -> None:
    answer = play(gateway, engines, says(whole(status, b'{"error": "busy"}', line)), stream=stream)
    failed(answer, "Every engine for this model is full.", 429, "engine_overloaded")
    assert answer.get("retry-after") == wanted
    assert answer.get("x-should-retry") == ("false" if wanted == "60" else None)


@pytest.mark.parametrize("fault", ["overload503", "overload429=3"])
def test_emulated_back_pressure(gateway: Gateway, fault: str) -> None:
    answer = gateway.ask(chat("forebay-sim"), headers={"x-forebay-fault": fault})
    failed(answer, "Every engine for this model is full.", 429, "engine_overloaded")
    assert answer.get("retry-after") == ("3" if "429" in fault else "1")


def test_queue_full_in_a_stream(gateway: Gateway, engines: Engines) -> None:
    """SGLang says so within a 200."""
    full = event({"error": {"message": "The request queue is full.", "code": 503}})
    answer = play(gateway, engines, streams(full, DONE), stream=True)
    failed(answer, "Every engine for this model is full.", 429, "engine_overloaded")


# --- sizes, odd but right answers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_error_body_of_100_mb(gateway: Gateway, stream: bool) -> None:
    """Bounded memory: it is given up, not read."""
    before = gateway.memory()
    body = chat("forebay-sim", stream=stream)
    answer = gateway.ask(body, headers={"x-forebay-fault": "huge-error=100"})
    failed(answer, "The engine failed: it answered 500 with more than 65,536 bytes.")
    assert gateway.memory() - before < 16 << 20


def test_error_body_as_large_as_allowed(gateway: Gateway, engines: Engines) -> None:
    body = b'"' + b"x" * 65_534 + b'"'
    assert play(gateway, engines, says(whole(422, body))).body == body
    answer = play(gateway, engines, says(whole(422, body + b" ")))
    failed(answer, "The engine failed: it answered 422 with more than 65,536 bytes.")


def test_long_answer(gateway: Gateway, engines: Engines) -> None:
    body = ANSWER[:-1] + b', "pad": "' + b"x" * 3_000_000 + b'"}'
    answer = play(gateway, engines, says(whole(200, body)))
    assert (answer.status, answer.whole) == (200, True)
    assert answer.body == body
    alias = play(gateway, engines, says(whole(200, body)), model="raw-alias")
    assert alias.body == body.replace(b'"model": "raw"', b'"model": "raw-alias"')


def test_endless_answer(gateway: Gateway, engines: Engines) -> None:
    """Over the limit after it has begun to be passed on: cut, so that it does not look whole."""
    piece = chunk(b"x" * 100_000)
    before = gateway.memory()
    answer = play(gateway, engines, partly(head(200, "transfer-encoding: chunked"), *[piece] * 1_000))
    assert (answer.status, answer.whole) == (200, False)
    assert len(answer.body) <= 4 << 20
    assert gateway.memory() - before < 24 << 20


@pytest.mark.parametrize("coding", ["gzip", "x-gzip", "deflate", "GZIP", "identity"])
def test_compressed_answer(gateway: Gateway, engines: Engines, coding: str) -> None:
    """Undone where nobody asked for it."""
    data = {"deflate": zlib.compress(ANSWER), "identity": ANSWER}.get(coding, gzip.compress(ANSWER))
    answer = play(gateway, engines, says(whole(200, data, f"content-encoding: {coding}")))
    assert (answer.status, answer.body, answer.get("content-encoding")) == (200, ANSWER, None)
    assert answer.get("content-length") == str(len(ANSWER))


@pytest.mark.parametrize("size", [1, 10, 1 << 20])
def test_compressed_stream(gateway: Gateway, engines: Engines, size: int) -> None:
    plain = ROLE + WORD + LAST + event(USAGE_CHUNK) + DONE
    data = gzip.compress(plain)
    pieces = [chunk(data[i : i + size]) for i in range(0, len(data), size)]
    lines = ("transfer-encoding: chunked", "content-encoding: gzip")
    answer = play(gateway, engines, says(head(200, *lines, kind=SSE), *pieces, b"0\r\n\r\n"), stream=True)
    assert (answer.body, answer.whole, answer.get("content-encoding")) == (ROLE + WORD + LAST + DONE, True, None)


def test_compressed_stream_cut(gateway: Gateway, engines: Engines) -> None:
    maker = zlib.compressobj(wbits=31)
    data = maker.compress(SENT) + maker.flush(zlib.Z_SYNC_FLUSH)
    lines = ("transfer-encoding: chunked", "content-encoding: gzip")
    answer = play(gateway, engines, partly(head(200, *lines, kind=SSE), chunk(data)), stream=True)
    cut_short(answer, SENT, f"{CUT}.")


@pytest.mark.parametrize(
    "before",
    [
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n",
        b"HTTP/1.1 102 Processing\r\n\r\n" * 3,
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_interim_answers(gateway: Gateway, engines: Engines, before: bytes, stream: bool) -> None:
    """They are the engine's own affair."""
    pieces = [stream_head(), chunk(ROLE + LAST + DONE), b"0\r\n\r\n"] if stream else [whole(200, ANSWER)]
    answer = play(gateway, engines, says(before, *pieces), stream=stream)
    assert (answer.status, answer.whole, answer.get("link")) == (200, True, None)
    assert answer.body == (ROLE + LAST + DONE if stream else ANSWER)


@pytest.mark.parametrize("status", ["000", "099"])
@pytest.mark.parametrize("stream", [False, True])
def test_status_that_is_none(gateway: Gateway, engines: Engines, status: str, stream: bool) -> None:
    """Nothing in it is taken for the answer, and nobody waits for another one."""
    said = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(ANSWER)}\r\n\r\n".encode()
    message = f"The engine failed: it answered with the status {int(status)}, which is none."
    failed(play(gateway, engines, says(said, ANSWER), stream=stream), message)


def test_close_delimited_answer(gateway: Gateway, engines: Engines) -> None:
    answer = play(gateway, engines, says(head(200, "connection: close"), ANSWER, close=True))
    assert (answer.status, answer.body, answer.get("content-length")) == (200, ANSWER, str(len(ANSWER)))


def test_http_1_0_answer(gateway: Gateway, engines: Engines) -> None:
    data = whole(200, ANSWER).replace(b"HTTP/1.1", b"HTTP/1.0")
    answer = play(gateway, engines, says(data, close=True))
    assert (answer.status, answer.body) == (200, ANSWER)


def test_more_bytes_than_promised(gateway: Gateway, engines: Engines) -> None:
    """They are nobody's: the next client's answer is its own."""
    poison = whole(200, b'{"poison": 1}')
    dropped = threading.Event()

    def poisoning(talk: Talk) -> None:
        talk.send(whole(200, ANSWER), poison)
        talk.wait_gone()
        dropped.set()

    for _ in range(3):
        dropped.clear()
        assert play(gateway, engines, poisoning).body == ANSWER
        assert dropped.wait(60)  # behind a request already sent they would pass for its answer
        assert gateway.ask(chat()).body == ANSWER
    two = whole(200, ANSWER) + poison
    for data in (two, two[:-5], two[:-20], whole(200, ANSWER) + b"HTTP/1.1 200"):
        assert play(gateway, engines, says(data)).body == ANSWER
        assert gateway.ask(chat()).body == ANSWER
    stream = stream_head() + chunk(ROLE + WORD) + chunk(LAST + DONE) + b"0\r\n\r\n"
    for data in (stream + poison, stream + stream, stream + stream[:-9]):
        answer = play(gateway, engines, says(data), stream=True)
        assert (answer.body, answer.whole) == (ROLE + WORD + LAST + DONE, True)
        assert gateway.ask(chat()).body == ANSWER
    answer = play(gateway, engines, says(head(200, "content-length: 5"), ANSWER))
    failed(answer, "The engine failed: its answer is not JSON.")
    assert gateway.ask(chat()).body == ANSWER


def test_late_bytes_on_a_kept_connection(gateway: Gateway, engines: Engines) -> None:
    sent = threading.Event()

    def script(talk: Talk) -> None:
        talk.send(whole(200, ANSWER))
        threading.Timer(0.05, late, (talk,)).start()

    def late(talk: Talk) -> None:
        talk.send(whole(200, b'{"poison": 1}'))
        sent.set()

    assert play(gateway, engines, script).body == ANSWER
    assert sent.wait(60)
    for _ in range(3):
        assert gateway.ask(chat()).body == ANSWER


def test_kept_connection_that_died(gateway: Gateway, engines: Engines) -> None:
    """The engine closes after its answer: the next request does not fail for it."""
    for _ in range(5):
        for closing in (True, False):
            assert play(gateway, engines, says(whole(200, ANSWER), close=closing)).status == 200


# --- another engine ---------------------------------------------------------------------------------------------------


class Twins:
    """Whichever engine is asked first breaks, the other one is well."""

    def __init__(self, gateway: Gateway, engines: Engines, breaks: Script, other: Script | None = None) -> None:
        self.gateway = gateway
        self.test = new_id("twin")
        self.order: list[str] = []
        """Engines as they were asked, each once."""
        lock = threading.Lock()

        def script(name: str) -> Script:
            def play(talk: Talk) -> None:
                with lock:
                    if name not in self.order:
                        self.order.append(name)
                    first = self.order[0] == name
                if first:
                    breaks(talk)
                elif other is not None:
                    other(talk)
                elif talk.request.json.get("stream"):
                    streams(ROLE, LAST, DONE)(talk)
                else:
                    talk.send(whole(200, ANSWER))

            return play

        engines.left.scripts[self.test] = script("left")
        engines.right.scripts[self.test] = script("right")

    def ask(self, **fields: Any) -> Answer:
        return self.gateway.ask(chat("twin", **fields), x_test=self.test)


RETRIED = {
    **{k: v for k, (v, _) in BROKEN.items() if k not in ("a gzip bomb",)},
    "says 429": says(whole(429, b"{}", "retry-after: 30")),
    "says 503": says(whole(503, b"{}")),
}


@pytest.mark.parametrize("name", RETRIED)
def test_retried_on_the_other_engine(gateway: Gateway, engines: Engines, name: str) -> None:
    twins = Twins(gateway, engines, RETRIED[name])
    answer = twins.ask()
    assert (answer.status, answer.body) == (200, ANSWER)
    assert len(twins.order) == 2


@pytest.mark.parametrize("name", STREAM_BROKEN)
def test_stream_retried_before_content(gateway: Gateway, engines: Engines, name: str) -> None:
    """Nothing of the first engine's role events is left over."""
    twins = Twins(gateway, engines, STREAM_BROKEN[name][0])
    answer = twins.ask(stream=True)
    assert (answer.status, answer.body, answer.whole) == (200, ROLE + LAST + DONE, True)
    assert len(twins.order) == 2


@pytest.mark.parametrize("name", AFTER)
def test_stream_never_retried_after_content(gateway: Gateway, engines: Engines, name: str) -> None:
    twins = Twins(gateway, engines, AFTER[name][0])
    answer = twins.ask(stream=True)
    assert (answer.status, answer.whole) == (200, False)
    assert answer.body.startswith(SENT)
    assert len(twins.order) == 1


@pytest.mark.parametrize("status", [400, 404, 422])
def test_client_s_mistakes_are_not_retried(gateway: Gateway, engines: Engines, status: int) -> None:
    twins = Twins(gateway, engines, says(whole(status, b'{"error": {"message": "no"}}')))
    assert twins.ask().status == status
    assert len(twins.order) == 1


def test_both_are_broken(gateway: Gateway, engines: Engines) -> None:
    """Each is asked once; the client hears of the last."""
    twins = Twins(gateway, engines, says(whole(500, b"{}")), says(whole(200, b"Hello")))
    failed(twins.ask(), "The engine failed: its answer is not JSON.")
    assert len(twins.order) == 2


def test_the_second_s_alias_and_headers(gateway: Gateway, engines: Engines) -> None:
    """The answer is the second engine's alone."""
    twins = Twins(
        gateway,
        engines,
        says(whole(500, b"{}", "x-engine: first", "content-encoding: identity")),
        says(whole(200, ANSWER, "x-engine: second")),
    )
    answer = twins.ask()
    assert (answer.status, answer.get("x-engine")) == (200, "second")


# --- health -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lazy() -> Iterator[tuple[Gateway, int]]:
    """A gateway in front of one engine that is not there yet: its models are asked for when it comes."""
    port = free_port()
    made = Gateway(
        {
            "listeners": [{"address": "127.0.0.1:0"}],
            "engines": [
                {"name": "late", "url": f"http://127.0.0.1:{port}", "health_interval": 0.2, "unhealthy_after": 1}
            ],
            "callers": {"keys": [{"name": "e2e", "key": KEY}]},
        }
    )
    try:
        yield made, port
    finally:
        made.stop()


def test_engine_comes_goes_and_comes_back(lazy: tuple[Gateway, int]) -> None:
    gateway, port = lazy
    answer = gateway.ask(chat())
    text = "No engine can take 'raw' now: an engine that may serve it has not answered yet."
    failed(answer, text, 503, "no_engine")
    assert 1 <= int(answer.get("retry-after") or 0) <= 60
    assert gateway.models() == []
    assert gateway.admin("/ready")[0] == 503

    engine = RawEngine(["raw", "more"], port)
    eventually(lambda: gateway.ask(chat()).status == 200)
    assert gateway.models() == ["more", "raw"]
    eventually(lambda: gateway.admin("/ready")[0] == 200)
    assert gateway.ask(chat("other")).message == (
        "The model 'other' does not exist here or your key may not use it. Known models: more, raw."
    )

    engine.healthy = False
    down = eventually(lambda: (a := gateway.ask(chat())).status == 503 and a)
    failed(down, "No engine can take 'raw' now: none of its engines is healthy.", 503, "no_engine")
    assert 1 <= int(down.get("retry-after") or 0) <= 60
    eventually(lambda: gateway.admin("/ready")[0] == 503)
    assert gateway.ask(chat("other")).status == 404

    engine.healthy = True
    eventually(lambda: gateway.ask(chat()).status == 200)
    eventually(lambda: gateway.admin("/ready")[0] == 200)

    engine.models = ["raw", "new"]
    eventually(lambda: gateway.models() == ["new", "raw"])

    engine.close()
    gone = eventually(lambda: (a := gateway.ask(chat())).status == 503 and a)
    failed(gone, "No engine can take 'raw' now: none of its engines is healthy.", 503, "no_engine")

    engine = RawEngine(["raw"], port)
    eventually(lambda: gateway.ask(chat()).status == 200)
    engine.close()


def test_engine_that_dies_under_load() -> None:
    """Health checks are far apart: the requests themselves find out, are retried, and none is lost."""
    one, two = RawEngine(["pair"]), RawEngine(["pair"])
    entries = [
        {"name": n, "url": f"http://127.0.0.1:{e.port}", "models": ["pair"], "health_interval": 30}
        for n, e in (("one", one), ("two", two))
    ]
    gateway = Gateway(
        {
            "listeners": [{"address": "127.0.0.1:0"}],
            "engines": entries,
            "callers": {"keys": [{"name": "e2e", "key": KEY}]},
        }
    )
    try:
        gateway.wait_until_ready("pair")
        eventually(lambda: all([gateway.ask(chat("pair")).status == 200] * 2) and one.total() and two.total())
        one.close()
        assert [gateway.ask(chat("pair", stream=bool(i % 2))).status for i in range(20)] == [200] * 20
        assert 1 <= gateway.metric("forebay_retries_total", engine="one") <= 10
        assert gateway.metric("forebay_retries_total", engine="two") == 0
    finally:
        one.close()
        two.close()
        gateway.stop()


def test_engine_that_refuses(gateway: Gateway) -> None:
    answer = gateway.ask(chat("away"))
    failed(answer, "No engine can take 'away' now: none of its engines is healthy.", 503, "no_engine")
    assert answer.get("retry-after") == "5"


def test_usage_that_no_float_holds_leaves_the_metrics_as_they_are(gateway: Gateway, engines: Engines) -> None:
    body = b'{"choices": [], "usage": {"prompt_tokens": %d, "completion_tokens": %d}}' % (10**400, 10**400)
    assert play(gateway, engines, says(whole(200, body))).body == body
    answered = gateway.metric("forebay_requests_total", outcome="ok")
    assert play(gateway, engines, says(whole(200, body))).status == 200
    assert gateway.metric("forebay_requests_total", outcome="ok") == answered + 1


def test_cached_tokens_that_no_float_holds_harm_nobody(gateway: Gateway, engines: Engines) -> None:
    """Of a prompt that was placed by its prefix, so that what was cached of it is learned from."""
    details = b'{"cached_tokens": %d}' % 10**400
    body = b'{"choices": [], "usage": {"prompt_tokens": 400, "prompt_tokens_details": %b}}' % details
    test = new_id("cached")
    engines.left.scripts[test] = engines.right.scripts[test] = says(whole(200, body))
    asked = chat("twin", messages=[{"role": "user", "content": "x" * 2_000}])
    answered = gateway.metric("forebay_requests_total", outcome="ok")
    for _ in range(3):
        assert gateway.ask(asked, x_test=test).body == body
    assert gateway.metric("forebay_requests_total", outcome="ok") == answered + 3
    assert gateway.metric("forebay_requests_live") == 0
    assert gateway.metric("forebay_worker_up") == 1
