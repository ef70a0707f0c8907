"""What engines of each kind are sent, and how their answers come back."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from e2e.client import Answer, chat, new_id, request
from e2e.conftest import ENGINE_KEY, RAISE_KEY
from e2e.engine import (
    ANSWER,
    DONE,
    ROLE,
    USAGE,
    USAGE_CHUNK,
    RawEngine,
    Received,
    Script,
    Talk,
    chunk,
    delta,
    event,
    stream_head,
    streams,
    whole,
)
from e2e.gateway import Gateway
from waiting import eventually

Spoken = tuple[Gateway, RawEngine]
WORDS = [ROLE, event(delta({"content": "Hel"})), event(delta({"content": "lo"}, "stop"))]
USED = event(USAGE_CHUNK)


def play(
    spoken: Spoken, body: dict[str, Any], script: Script | None = None, **named: Any
) -> tuple[Answer, list[Received]]:
    gateway, engine = spoken
    test = new_id("dialect")
    if script is not None:
        engine.scripts[test] = script
    answer = gateway.ask(body, x_test=test, **named)
    return answer, engine.requests(test)


# --- llama.cpp: always a stream --------------------------------------------------------------------------------------


def test_llama_cpp_is_asked_for_a_stream_and_its_client_gets_one_answer(spoken: Spoken) -> None:
    answer, (got,) = play(spoken, chat("llamacpp", stop=["x"]), streams(*WORDS, USED, DONE))
    assert got.json["stream"] is True and got.json["stream_options"] == {"include_usage": True}
    assert got.json["stop"] == ["x"]
    assert got.get("authorization") == f"Bearer {ENGINE_KEY}"
    assert (answer.status, answer.get("content-type")) == (200, "application/json")
    assert answer.get("content-length") is not None and answer.get("transfer-encoding") is None
    assert answer.json["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello"},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    assert answer.json["usage"] == USAGE
    assert answer.json["object"] == "chat.completion"


def test_a_stream_of_llama_cpp_passes_as_any_other(spoken: Spoken) -> None:
    answer, (got,) = play(spoken, chat("llamacpp", stream=True), streams(*WORDS, USED, DONE))
    assert got.json["stream"] is True
    assert answer.body == b"".join([*WORDS, DONE])


def test_what_a_client_says_of_streams_is_overruled_where_it_is_folded(spoken: Spoken) -> None:
    body = chat("llamacpp", stream=False, stream_options={"include_usage": False, "continuous_usage_stats": True})
    answer, (got,) = play(spoken, body, streams(*WORDS, USED, DONE))
    assert answer.status == 200
    assert (got.json["stream"], got.json["stream_options"]) == (True, {"include_usage": True})


def test_folding_is_for_any_engine_and_embeddings_have_no_stream(spoken: Spoken) -> None:
    text = {"id": "c", "object": "text_completion", "model": "folded"}
    pieces = [
        event({**text, "choices": [{"index": 0, "text": t, "finish_reason": f}]})
        for t, f in (("a", None), ("b", "stop"))
    ]
    answer, (got,) = play(
        spoken,
        {"model": "folded", "prompt": "x"},
        streams(*pieces, event({**text, "choices": [], "usage": USAGE}), DONE),
        path="/v1/completions",
    )
    assert got.json["stream"] is True
    assert (answer.json["object"], answer.json["choices"][0]["text"]) == ("text_completion", "ab")
    answer, (got,) = play(spoken, {"model": "folded", "input": "x"}, path="/v1/embeddings")
    assert answer.body == ANSWER and "stream" not in got.json


BROKEN: dict[str, tuple[Script, str]] = {
    "cut": (streams(*WORDS[:2], end=False), "closed the connection in the middle of its answer"),
    "ended without an end": (streams(*WORDS[:2]), "its stream ended too early"),
    "ended within an event": (streams(*WORDS, event(delta({"content": "!"}))[:-2]), "its stream ended too early"),
    "nothing": (streams(), "its stream ended too early"),
    "only [DONE]": (streams(DONE), "its stream ended too early"),
    "no JSON": (streams(ROLE, event("<html>")), "its stream cannot be folded: it has an event that is no JSON object"),
    "too large": (
        streams(ROLE, *[event(delta({"content": "x" * 60_000}))] * 20),
        "its answer is over the limit of 1,048,576 bytes (limits.response_bytes)",
    ),
    "an event too large": (
        streams(event(delta({"content": "x" * 70_000}))),
        "an event of the stream is over the limit of 65,536 bytes",
    ),
    "an error": (
        streams(ROLE, event({"error": {"message": "the engine died", "code": 500}}), DONE),
        "it answered 500: the engine died",
    ),
    "HTML": (lambda t: t.send(whole(200, b"<html>", kind="text/html")), "its answer is not JSON"),
    "gzip": (
        lambda t: t.send(stream_head("content-encoding: gzip")),
        "it answered in the Content-Encoding gzip, which nobody asked for",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_stream_that_cannot_be_folded_is_a_failure_of_the_engine(spoken: Spoken, name: str) -> None:
    script, why = BROKEN[name]
    answer, _ = play(spoken, chat("folded"), script)
    assert (answer.status, answer.message) == (502, f"The engine failed: {why}.")


def test_an_engine_that_stalls_within_a_folded_stream_is_given_up(spoken: Spoken) -> None:
    def stalls(talk: Talk) -> None:
        talk.send(stream_head(), *map(chunk, WORDS[:2]))
        talk.wait_gone()

    answer, _ = play(spoken, chat("folded"), stalls)
    assert (answer.status, answer.error["code"]) == (504, "engine_timeout")


def test_an_engine_that_folds_by_itself_is_believed(spoken: Spoken) -> None:
    answer, _ = play(spoken, chat("folded"), lambda t: t.send(whole(200, ANSWER)))
    assert answer.body == ANSWER


def test_an_error_status_passes_a_fold_as_it_is(spoken: Spoken) -> None:
    body = json.dumps({"error": {"message": "too long", "type": "exceed_context_size_error", "code": 400}}).encode()
    answer, _ = play(spoken, chat("folded"), lambda t: t.send(whole(400, body)))
    assert (answer.status, answer.body) == (400, body)


# --- error events in a 200, in each engine's own shape ----------------------------------------------------------------

SAID: dict[str, tuple[dict[str, Any], int, str]] = {
    "SGLang is full": (
        {"error": {"object": "error", "message": "The request queue is full.", "type": "x", "code": 503}}, 429,
        "engine_overloaded",
    ),
    "older SGLang is full": ({"error": {"message": "It is full."}, "code": 503}, 429, "engine_overloaded"),
    "TGI is full": ({"error": {"message": "Model is overloaded", "http_status_code": 422}}, 429, "engine_overloaded"),
    "TGI's own route is full": ({"error": "Model is overloaded", "error_type": "overloaded"}, 429, "engine_overloaded"),
    "TGI failed": (
        {"error": {"message": "Request failed during generation: OOM", "http_status_code": 422}}, 502, "engine_error",
    ),
    "TGI does not like it": (
        {"error": {"message": "Input validation error: too long", "http_status_code": 422}}, 422, "",
    ),
    "vLLM died": ({"error": {"message": "It died", "type": "InternalServerError", "code": 500}}, 502, "engine_error"),
    "no code at all": ({"error": {"message": "?"}}, 502, "engine_error"),
}  # fmt: skip


@pytest.mark.parametrize("model", ["folded", "sglang"])
@pytest.mark.parametrize("name", SAID)
def test_an_error_before_content_is_the_status_it_means(spoken: Spoken, name: str, model: str) -> None:
    said, status, reason = SAID[name]
    body = chat(model, stream=model != "folded")
    answer, _ = play(spoken, body, streams(ROLE, event(said), DONE))
    assert (answer.status, answer.get("x-forebay-reason") or "") == (status, reason)
    if not reason:
        assert answer.json == said


@pytest.mark.parametrize("name", SAID)
def test_an_error_after_content_ends_the_stream_without_done(spoken: Spoken, name: str) -> None:
    answer, _ = play(spoken, chat("sglang", stream=True), streams(*WORDS[:2], event(SAID[name][0]), DONE))
    assert answer.status == 200 and not answer.whole
    assert answer.body == b"".join([*WORDS[:2], event(SAID[name][0])])


@pytest.mark.parametrize("stream", [False, True])
def test_what_follows_done_is_not_part_of_an_answer(spoken: Spoken, stream: bool) -> None:
    late = event(delta({"content": "late"}))
    answer, _ = play(spoken, chat("llamacpp", stream=stream), streams(*WORDS, USED, DONE, late))
    if stream:
        assert answer.body == b"".join([*WORDS, DONE])
    else:
        assert answer.json["choices"][0]["message"]["content"] == "Hello"


# --- SGLang: ids and aborts -------------------------------------------------------------------------------------------


def aborted(engine: RawEngine) -> list[str]:
    return [r.json["rid"] for r in engine.requests("-") if r.line == b"POST /abort_request HTTP/1.1"]


def until_gone(talk: Talk) -> None:
    talk.send(stream_head(), *map(chunk, WORDS[:2]))
    talk.wait_gone()


@pytest.mark.parametrize("where", ["before the head", "in the stream", "unary"])
def test_sglang_is_told_which_request_is_not_wanted(spoken: Spoken, where: str) -> None:
    gateway, engine = spoken
    test = new_id("abort")
    engine.scripts[test] = until_gone if where == "in the stream" else Talk.wait_gone
    with gateway.client() as client:
        client.send(request(chat("sglang", stream=where != "unary"), x_test=test, x_request_id=test))
        (got,) = engine.wait_for(test)
        if where == "in the stream":
            client.head()
    rid = got.json["rid"]
    assert rid.endswith(f"-{test}") and len(rid) == 17 + len(test)
    eventually(lambda: rid in aborted(engine))
    assert aborted(engine).count(rid) == 1
    assert {r.get("authorization") for r in engine.requests("-")} == {f"Bearer {ENGINE_KEY}"}
    line = gateway.logged(test)
    assert (line["outcome"], line["settled"]) == ("client_gone", "estimated")


def test_an_abort_is_for_the_engine_that_has_the_request(spoken: Spoken) -> None:
    """SGLang refuses, another engine takes it, and the client leaves there."""
    gateway, engine = spoken
    seen = []
    for _ in range(2):  # placement alternates, so that SGLang is asked first once
        test = new_id("abort")

        def script(talk: Talk, test: str = test) -> None:
            if len(engine.requests(test)) == 1:
                talk.send(whole(503, b"{}"))
            else:
                until_gone(talk)

        engine.scripts[test] = script
        with gateway.client() as client:
            client.send(request(chat("both", stream=True), x_test=test, x_request_id=test))
            client.head()
        assert gateway.logged(test)["attempts"] == 2
        seen.append([r.json.get("rid") for r in engine.requests(test)])
    eventually(lambda: any(rid in aborted(engine) for _, rid in seen if rid))
    refused = [rid for rid, _ in seen if rid]
    assert len(refused) == 1 and refused[0] not in aborted(engine)


def test_sglang_hears_nothing_of_what_ended_by_itself(spoken: Spoken) -> None:
    _, engine = spoken
    answer, (got,) = play(spoken, chat("sglang"))
    assert answer.status == 200
    assert got.json["rid"] not in aborted(engine)


def test_no_two_requests_have_one_rid_whatever_their_clients_say(spoken: Spoken) -> None:
    bodies = [chat("sglang"), chat("sglang", rid="mine"), chat("sglang", rid="mine")]
    rids = [play(spoken, body, x_request_id="the-same")[1][0].json["rid"] for body in bodies]
    assert len(set(rids)) == 3 and len({len(r) for r in rids}) == 1
    assert all(r.endswith("-the-same") for r in rids)


@pytest.mark.parametrize(
    ("body", "path"),
    [
        (chat("sglang", n=2), "/v1/chat/completions"),
        ({"model": "sglang", "prompt": ["a", "b"]}, "/v1/completions"),
        ({"model": "sglang", "input": ["a", "b"]}, "/v1/embeddings"),
    ],
)
def test_several_sequences_have_no_rid(spoken: Spoken, body: dict[str, Any], path: str) -> None:
    answer, (got,) = play(spoken, body, path=path)
    assert answer.status == 200
    assert got.json == body


# --- priority ---------------------------------------------------------------------------------------------------------


def of_class(name: str) -> Callable[[Spoken, dict[str, Any]], dict[str, Any]]:
    def ask(spoken: Spoken, body: dict[str, Any]) -> dict[str, Any]:
        answer, (got,) = play(spoken, body, key=RAISE_KEY, x_priority=name)
        assert answer.status == 200
        return got.json  # type: ignore[no-any-return]

    return ask


@pytest.mark.parametrize(("model", "first"), [("ranked", min), ("ranked-sglang", max)])
def test_the_class_is_the_priority_with_the_engines_sign(spoken: Spoken, model: str, first: Any) -> None:
    sent = {name: of_class(name)(spoken, chat(model))["priority"] for name in ("vip", "normal", "low")}
    assert sorted(sent.values()) == [-1, 0, 1] and sent["normal"] == 0
    assert sent["vip"] == first(sent.values())


@pytest.mark.parametrize("key", ["priority", "priorit\\u0079"])
def test_a_client_cannot_raise_itself_above_its_class(spoken: Spoken, key: str) -> None:
    raw = json.dumps(chat("ranked"))[:-1] + f', "{key}": -1000}}'
    gateway, engine = spoken
    test = new_id("priority")
    with gateway.client() as client:
        client.send(request(raw.encode(), x_test=test))
        assert client.read().status == 200
    assert engine.one(test).json["priority"] == 0


# --- a wrong name -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("said", "counted"), [("another", 1), ("metered-2026-11-30", 0), ("metered", 0)])
def test_an_answer_in_another_models_name_is_passed_and_counted(
    spoken: Spoken, said: str, counted: int, stream: bool
) -> None:
    def named(data: bytes) -> bytes:
        return data.replace(b'"model":"raw"', b'"model":"%b"' % said.encode()).replace(
            b'"model": "raw"', b'"model": "%b"' % said.encode()
        )

    gateway, _ = spoken
    before = gateway.metric("forebay_upstream_errors_total", engine="metered", failure="other_model")
    script = streams(*map(named, WORDS), DONE) if stream else (lambda t: t.send(whole(200, named(ANSWER))))
    answer, _ = play(spoken, chat("metered", stream=stream), script)
    assert answer.status == 200 and f'"{said}"'.encode() in answer.body
    after = gateway.metric("forebay_upstream_errors_total", engine="metered", failure="other_model")
    assert after == before + counted


# --- after the end ---------------------------------------------------------------------------------------------------


def goes_on(*said: bytes, more: bytes) -> Script:
    """`more` again and again once all is said, until the gateway closes."""

    def script(talk: Talk) -> None:
        talk.keep = False
        talk.send(stream_head(), *map(chunk, said))
        with contextlib.suppress(OSError):
            while True:
                talk.send(chunk(more))

    return script


def hangs(*said: bytes, more: bytes = b"") -> Script:
    def script(talk: Talk) -> None:
        talk.send(stream_head(), *map(chunk, said))
        talk.wait_gone()

    return script


def breaks_off(*said: bytes, more: bytes = b"") -> Script:
    def script(talk: Talk) -> None:
        talk.send(stream_head(), *map(chunk, said))
        talk.close()

    return script


MORE = [event(delta({"content": "more"})), b": ping\n\n", event("<html>")]
CLAUDE = [
    b'data: {"type":"message_start","message":{"id":"m","model":"claude"}}\n\n',
    b'data: {"type":"content_block_delta","delta":{"type":"text_delta","text":"Hello"}}\n\n',
    b'data: {"type":"message_delta","delta":{"stop_reason":"end_turn"}}\n\n',
    b'data: {"type":"message_stop"}\n\n',
]


@pytest.mark.parametrize(
    ("after", "more"),
    [*((goes_on, more) for more in MORE), (hangs, b""), (breaks_off, b"")],
    ids=["tokens", "comments", "HTML", "silence", "the end"],
)
def test_after_its_end_an_answer_is_whole_whatever_the_engine_does(
    spoken: Spoken, after: Callable[..., Script], more: bytes
) -> None:
    with ThreadPoolExecutor(3) as threads:  # each may be waited for until the engine is given up
        folded, streamed, claude = (
            threads.submit(play, spoken, chat(model, stream=stream), after(*said, more=more))
            for model, stream, said in (
                ("folded", False, (*WORDS, USED, DONE)),
                ("folded", True, (*WORDS, USED, DONE)),
                ("claude", True, CLAUDE),
            )
        )
    answer, _ = folded.result()
    assert (answer.status, answer.whole) == (200, True)
    assert answer.json["choices"][0]["message"]["content"] == "Hello"
    assert answer.json["usage"] == USAGE
    answer, _ = streamed.result()
    assert (answer.status, answer.whole, answer.body) == (200, True, b"".join([*WORDS, DONE]))
    answer, _ = claude.result()
    assert (answer.status, answer.whole) == (200, True)
    assert answer.body.count(b"Hello") == 1 and answer.body.endswith(DONE) and b"more" not in answer.body
    gateway, _ = spoken
    assert gateway.metric("forebay_engine_in_flight") == 0
