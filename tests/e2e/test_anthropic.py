"""Anthropic's Messages API behind OpenAI's chat completions: the client is the real OpenAI SDK, the request bodies are
checked by the real Anthropic SDK's types, and so are the answers that the emulated API gives."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import anthropic.types
import openai
import pytest
from anthropic.types.message_create_params import MessageCreateParamsNonStreaming, MessageCreateParamsStreaming
from pydantic import TypeAdapter

from e2e.client import KEY, Answer, chat, new_id, request
from e2e.conftest import ENGINE_KEY
from e2e.engine import RawEngine, Received, Script, Talk, chunk, stream_head, whole
from e2e.gateway import Gateway

Spoken = tuple[Gateway, RawEngine]
REQUESTS: dict[bool, TypeAdapter[Any]] = {
    False: TypeAdapter(MessageCreateParamsNonStreaming),
    True: TypeAdapter(MessageCreateParamsStreaming),
}
EVENTS: TypeAdapter[Any] = TypeAdapter(anthropic.types.RawMessageStreamEvent)
USAGE = {"input_tokens": 10, "cache_read_input_tokens": 100, "cache_creation_input_tokens": 5, "output_tokens": 20}
COUNTED = {
    "prompt_tokens": 115,
    "completion_tokens": 20,
    "total_tokens": 135,
    "prompt_tokens_details": {"cached_tokens": 100, "cache_creation_tokens": 5},
}
CALL = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"place": "Ås"}}
THOUGHT = {"type": "thinking", "thinking": "Hm, Ås.", "signature": "c2ln"}
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Of a place",
            "strict": True,
            "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
        },
    }
]


def sound(got: dict[str, Any], *, stream: bool = False) -> None:
    """It is a body as the real SDK types it. Its iterables are checked only as they are walked through."""

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            value = value.values()
        if not isinstance(value, str | bytes) and isinstance(value, Iterable):
            for inner in value:
                walk(inner)

    walk(REQUESTS[stream].validate_python(got))


def message(*content: dict[str, Any], stop: str = "end_turn") -> bytes:
    found = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude",
        "content": list(content),
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": USAGE,
    }
    anthropic.types.Message.model_validate(found)
    return json.dumps(found).encode()


def sse(*events: dict[str, Any]) -> list[bytes]:
    for event in events:
        if event["type"] not in ("ping", "error"):
            EVENTS.validate_python(event)
    return [f"event: {e['type']}\ndata: {json.dumps(e)}\n\n".encode() for e in events]


START = {
    "type": "message_start",
    "message": {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "claude", "content": [], "stop_reason": None,
        "stop_sequence": None, "usage": {**USAGE, "output_tokens": 1},
    },
}  # fmt: skip
PING = {"type": "ping"}
STOP = {"type": "message_stop"}


def block(index: int, start: dict[str, Any], *deltas: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"type": "content_block_start", "index": index, "content_block": start},
        *({"type": "content_block_delta", "index": index, "delta": d} for d in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def text(*words: str, index: int = 0) -> list[dict[str, Any]]:
    return block(index, {"type": "text", "text": ""}, *({"type": "text_delta", "text": w} for w in words))


def ended(stop: str = "end_turn") -> dict[str, Any]:
    return {
        "type": "message_delta",
        "delta": {"stop_reason": stop, "stop_sequence": None},
        "usage": {"output_tokens": 20},
    }


def streamed(*events: dict[str, Any], end: bool = True) -> Script:
    """Each event a chunk, but for every third, which is cut in two."""

    def script(talk: Talk) -> None:
        talk.send(stream_head())
        for i, piece in enumerate(sse(*events)):
            cut = len(piece) // 2 if i % 3 == 2 else len(piece)
            talk.send(*(chunk(p) for p in (piece[:cut], piece[cut:]) if p))
        if end:
            talk.send(b"0\r\n\r\n")
        else:
            talk.close()

    return script


HELLO = streamed(START, PING, *text("Hel", "lo"), ended(), STOP)


def ask(spoken: Spoken, script: Script, body: dict[str, Any] | None = None, **named: Any) -> tuple[Answer, Received]:
    gateway, engine = spoken
    test = new_id("anthropic")
    engine.scripts[test] = script
    answer = gateway.ask(body or chat("claude"), x_test=test, **named)
    return answer, engine.one(test)


@pytest.fixture
def sdk(spoken: Spoken) -> Iterator[openai.OpenAI]:
    url = f"http://127.0.0.1:{spoken[0].ports[0]}/v1"
    with openai.OpenAI(api_key=KEY, base_url=url, max_retries=0, timeout=10) as client:
        yield client


# --- the whole way, with the SDK --------------------------------------------------------------------------------------


def test_an_answer(spoken: Spoken, sdk: openai.OpenAI) -> None:
    _, engine = spoken
    test = new_id("anthropic")
    engine.scripts[test] = lambda t: t.send(whole(200, message({"type": "text", "text": "Hello"})))
    found = sdk.chat.completions.create(
        model="claude",
        messages=[{"role": "system", "content": "Be short."}, {"role": "user", "content": "Hi"}],
        max_tokens=50,
        extra_headers={"x-test": test},
    )
    assert found.choices[0].message.content == "Hello" and found.choices[0].finish_reason == "stop"
    assert found.usage is not None and found.usage.model_dump(exclude_none=True) == COUNTED
    got = engine.one(test)
    assert got.line == b"POST /v1/messages HTTP/1.1"
    assert got.get("x-api-key") == ENGINE_KEY and got.get("authorization") is None
    assert got.get("anthropic-version") == "2023-06-01"
    sound(got.json)
    assert got.json == {
        "model": "claude",
        "max_tokens": 50,
        "system": [{"type": "text", "text": "Be short."}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
    }


def test_a_stream_with_thinking_and_two_tools(spoken: Spoken, sdk: openai.OpenAI) -> None:
    _, engine = spoken
    test = new_id("anthropic")
    engine.scripts[test] = streamed(
        START,
        *block(
            0,
            {"type": "thinking", "thinking": "", "signature": ""},
            {"type": "thinking_delta", "thinking": "Hm, "},
            {"type": "thinking_delta", "thinking": "Ås."},
            {"type": "signature_delta", "signature": "c2ln"},
        ),
        *text("Let me ", "see.", index=1),
        PING,
        *block(
            2,
            {**CALL, "input": {}},
            {"type": "input_json_delta", "partial_json": ""},
            {"type": "input_json_delta", "partial_json": '{"place"'},
            {"type": "input_json_delta", "partial_json": ': "Ås"}'},
        ),
        *block(
            3,
            {"type": "tool_use", "id": "toolu_2", "name": "now", "input": {}},
            {"type": "input_json_delta", "partial_json": ""},
        ),
        ended("tool_use"),
        STOP,
    )
    chunks = list(
        sdk.chat.completions.create(
            model="claude",
            messages=[{"role": "user", "content": "Hi"}],
            tools=TOOLS,
            stream=True,
            stream_options={"include_usage": True},
            extra_headers={"x-test": test},
        )
    )
    got = engine.one(test).json
    sound(got, stream=True)
    assert got["tools"] == [
        {
            "name": "weather",
            "description": "Of a place",
            "strict": True,
            "input_schema": TOOLS[0]["function"]["parameters"],
        }
    ]
    assert "stream_options" not in got
    deltas = [c.choices[0].delta for c in chunks if c.choices]
    assert "".join(d.content or "" for d in deltas) == "Let me see."
    assert "".join(getattr(d, "reasoning_content", None) or "" for d in deltas) == THOUGHT["thinking"]
    assert [b for d in deltas for b in getattr(d, "thinking_blocks", ())] == [THOUGHT]
    calls: dict[int, list[str]] = {}
    for call in [c for d in deltas for c in d.tool_calls or ()]:
        assert call.function is not None
        known = calls.setdefault(call.index, [call.id or "", call.function.name or "", ""])
        known[2] += call.function.arguments or ""
    assert list(calls.values()) == [["toolu_1", "weather", '{"place": "Ås"}'], ["toolu_2", "now", "{}"]]
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "tool_calls"
    assert chunks[-1].usage is not None and chunks[-1].usage.model_dump(exclude_none=True) == COUNTED
    assert {(c.id, c.model) for c in chunks} == {("msg_1", "claude")}


def test_a_conversation_goes_on_after_a_tool_call(spoken: Spoken, sdk: openai.OpenAI) -> None:
    """What the SDK got is sent back as it was, thinking with its signature included."""
    _, engine = spoken
    first, second = new_id("anthropic"), new_id("anthropic")
    content = [THOUGHT, {"type": "text", "text": "Let me see."}, CALL]
    engine.scripts[first] = lambda t: t.send(whole(200, message(*content, stop="tool_use")))
    messages: list[Any] = [{"role": "user", "content": "Weather?"}]
    found = sdk.chat.completions.create(model="claude", messages=messages, tools=TOOLS, extra_headers={"x-test": first})
    answer = found.choices[0].message
    assert found.choices[0].finish_reason == "tool_calls" and answer.tool_calls is not None
    messages += [
        answer.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": answer.tool_calls[0].id, "content": "rain"},
        {"role": "user", "content": "And?"},
    ]
    engine.scripts[second] = lambda t: t.send(whole(200, message({"type": "text", "text": "Rain."})))
    sdk.chat.completions.create(model="claude", messages=messages, tools=TOOLS, extra_headers={"x-test": second})
    got = engine.one(second).json
    sound(got)
    assert got["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": "Weather?"}]},
        {"role": "assistant", "content": content},
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "rain"}]},
                {"type": "text", "text": "And?"},
            ],
        },
    ]


# --- requests ---------------------------------------------------------------------------------------------------------

SAID: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "no bound": ({}, {"max_tokens": 8192}),
    "max_completion_tokens": ({"max_tokens": 5, "max_completion_tokens": 7}, {"max_tokens": 7}),
    "stop": ({"stop": "x"}, {"stop_sequences": ["x"]}),
    "stops": ({"stop": ["x", "y"]}, {"stop_sequences": ["x", "y"]}),
    "sampling": ({"temperature": 0.5, "top_p": 0.9}, {"temperature": 0.5, "top_p": 0.9}),
    "user": ({"user": "u-1"}, {"metadata": {"user_id": "u-1"}}),
    "effort": ({"reasoning_effort": "minimal"}, {"output_config": {"effort": "low"}}),
    "no effort": ({"reasoning_effort": "none"}, {"thinking": {"type": "disabled"}}),
    "thinking, as it is said there": (
        {"thinking": {"type": "enabled", "budget_tokens": 2048}, "reasoning_effort": "none"},
        {"thinking": {"type": "enabled", "budget_tokens": 2048}},
    ),
    "a schema": (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}},
        {"output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}},
    ),
    "only text": ({"response_format": {"type": "text"}, "n": 1, "logprobs": False, "seed": 5, "store": False}, {}),
    "null is nothing": ({"temperature": None, "tools": None, "stop": None, "n": None}, {}),
    "any tool": ({"tools": TOOLS, "tool_choice": "required"}, {"tool_choice": {"type": "any"}}),
    "one tool": (
        {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "weather"}}},
        {"tool_choice": {"type": "tool", "name": "weather"}},
    ),
    "no tool": (
        {"tools": TOOLS, "tool_choice": "none", "parallel_tool_calls": False},
        {"tool_choice": {"type": "none"}},
    ),
    "one at a time": (
        {"tools": TOOLS, "parallel_tool_calls": False},
        {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
    ),
    "a tool without parameters": (
        {"tools": [{"type": "function", "function": {"name": "now"}}]},
        {"tools": [{"name": "now", "input_schema": {"type": "object", "properties": {}}}]},
    ),
    "a cache mark": ({"cache_control": {"type": "ephemeral"}}, {"cache_control": {"type": "ephemeral"}}),
}  # fmt: skip


@pytest.mark.parametrize("name", SAID)
def test_a_field_is_said_as_the_messages_api_says_it(spoken: Spoken, name: str) -> None:
    fields, said = SAID[name]
    answer, got = ask(spoken, lambda t: t.send(whole(200, message())), chat("claude", **fields))
    assert answer.status == 200
    sound(got.json)
    rest = {k: v for k, v in got.json.items() if k not in ("model", "messages") and (k, v) != ("max_tokens", 8192)}
    rest = rest if "tools" in said else {k: v for k, v in rest.items() if k != "tools"}
    assert rest == {k: v for k, v in said.items() if (k, v) != ("max_tokens", 8192)}
    assert got.json["max_tokens"] == said.get("max_tokens", 8192)


PNG = "data:image/png;base64,iVBORw0KGgo="
PARTS: dict[str, tuple[Any, list[dict[str, Any]]]] = {
    "texts": ([{"type": "text", "text": "a"}, {"type": "text", "text": ""}], [{"type": "text", "text": "a"}]),
    "a picture in it": (
        [{"type": "image_url", "image_url": {"url": PNG, "detail": "low"}}],
        [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}],
    ),
    "a picture elsewhere": (
        [{"type": "image_url", "image_url": {"url": "https://x.example/a.png"}}],
        [{"type": "image", "source": {"type": "url", "url": "https://x.example/a.png"}}],
    ),
    "a document": (
        [{"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERi0="}}],
        [{"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}}],
    ),
    "a cache mark": (
        [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}],
        [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}],
    ),
}


@pytest.mark.parametrize("name", PARTS)
def test_content_in_parts(spoken: Spoken, name: str) -> None:
    content, said = PARTS[name]
    body = {"model": "claude", "messages": [{"role": "user", "content": content}]}
    _, got = ask(spoken, lambda t: t.send(whole(200, message())), body)
    sound(got.json)
    assert got.json["messages"][0]["content"] == said


UNSAID: dict[str, tuple[dict[str, Any], str, str]] = {
    "n": ({"n": 2}, "n", "ask once for each answer"),
    "logprobs": ({"logprobs": True}, "logprobs", "leave it out"),
    "logit_bias": ({"logit_bias": {"5": 1}}, "logit_bias", "leave it out"),
    "a penalty": ({"frequency_penalty": 0.5}, "frequency_penalty", "leave it out"),
    "hot": ({"temperature": 1.5}, "temperature", "it goes from 0 to 1 there"),
    "a loose format": ({"response_format": {"type": "json_object"}}, "response_format", "use the type json_schema"),
    "an unknown field": ({"min_p": 0.1}, "min_p", "leave it out"),
    "an unknown effort": ({"reasoning_effort": "huge"}, "reasoning_effort", "use one of none, minimal"),
    "another tool": ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0].type", "only functions"),
    "allowed tools": ({"tools": TOOLS, "tool_choice": {"type": "allowed_tools"}}, "tool_choice", "use none, auto"),
    "sound": (
        {"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]},
        "messages[0].content[0].type", "use text, image_url or file",
    ),
    "a file by its id": (
        {"messages": [{"role": "user", "content": [{"type": "file", "file": {"file_id": "f"}}]}]},
        "messages[0].content[0].file", "send its bytes as file_data",
    ),
    "another scheme": (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///x"}}]}]},
        "messages[0].content[0].image_url.url", "use https:// or data:",
    ),
    "another role": ({"messages": [{"role": "function", "content": "x"}]}, "messages[0].role", "use system"),
    "only a system message": ({"messages": [{"role": "system", "content": "x"}]}, "messages", "one of a user"),
}  # fmt: skip


@pytest.mark.parametrize("name", UNSAID)
def test_what_cannot_be_said_is_refused_by_its_name(spoken: Spoken, name: str) -> None:
    gateway, engine = spoken
    fields, param, fix = UNSAID[name]
    before = engine.total()
    answer = gateway.ask({**chat("claude"), **fields})
    assert (answer.status, answer.error["param"]) == (400, param), answer.body
    assert answer.message.startswith(f"'{param}' cannot be said to Anthropic's API: {fix}")
    assert engine.total() == before


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "arguments that are no JSON": (
        {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "x", "arguments": "{"}}]},
        "messages[1].tool_calls[0].function.arguments",
    ),
    "a result of nothing": ({"role": "tool", "content": "x"}, "messages[1].tool_call_id"),
    "nothing said": ({"role": "user", "content": ""}, "messages[1].content"),
    "content that is none": ({"role": "user", "content": 5}, "messages[1].content"),
    "a part that is none": ({"role": "user", "content": [5]}, "messages[1].content[0]"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_message_that_is_none_is_refused_by_its_place(spoken: Spoken, name: str) -> None:
    bad, param = BAD[name]
    answer = spoken[0].ask({"model": "claude", "messages": [{"role": "user", "content": "Hi"}, bad]})
    assert (answer.status, answer.error["param"]) == (400, param), answer.body


@pytest.mark.parametrize(("path", "field"), [("/v1/completions", "prompt"), ("/v1/embeddings", "input")])
def test_other_routes_are_refused(spoken: Spoken, path: str, field: str) -> None:
    answer = spoken[0].ask({"model": "claude", field: "x"}, path=path)
    assert (answer.status, answer.error["code"]) == (400, "unsupported_route")
    assert "/v1/chat/completions" in answer.message


# --- answers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stop", "finish"),
    [("end_turn", "stop"), ("max_tokens", "length"), ("stop_sequence", "stop"), ("refusal", "content_filter"),
     ("pause_turn", "stop"), ("model_context_window_exceeded", "length"), ("tool_use", "tool_calls")],
)  # fmt: skip
def test_why_it_ended(spoken: Spoken, stop: str, finish: str) -> None:
    answer, _ = ask(spoken, lambda t: t.send(whole(200, message({"type": "text", "text": "x"}, stop=stop))))
    assert answer.json["choices"][0]["finish_reason"] == finish
    body = chat("claude", stream=True)
    answer, _ = ask(spoken, streamed(START, *text("x"), ended(stop), STOP), body)
    assert f'"finish_reason":"{finish}"'.encode() in answer.body and answer.body.endswith(b"data: [DONE]\n\n")


def test_usage_is_shown_only_to_who_asks(spoken: Spoken) -> None:
    plain, _ = ask(spoken, HELLO, chat("claude", stream=True))
    asked, _ = ask(spoken, HELLO, chat("claude", stream=True, stream_options={"include_usage": True}))
    assert b'"usage"' not in plain.body and b'"usage"' in asked.body
    assert plain.whole and asked.whole


def test_an_alias_is_answered_by_its_own_name(spoken: Spoken) -> None:
    found = message({"type": "text", "text": "x"}).replace(b'"claude"', b'"claude-long-name"')
    answer, got = ask(spoken, lambda t: t.send(whole(200, found)), chat("short"))
    assert got.json["model"] == "claude-long-name"
    assert answer.json["model"] == "short"


def refusal(kind: str, text: str = "No.") -> bytes:
    return json.dumps({"type": "error", "error": {"type": kind, "message": text}, "request_id": "req_1"}).encode()


@pytest.mark.parametrize(
    ("status", "kind", "shown", "code"),
    [
        (529, "overloaded_error", 429, "engine_overloaded"),
        (429, "rate_limit_error", 429, "engine_overloaded"),
        (500, "api_error", 502, "engine_error"),
        (401, "authentication_error", 502, "engine_error"),
        (402, "billing_error", 502, "engine_error"),
        (400, "invalid_request_error", 400, "invalid_request_error"),
        (404, "not_found_error", 404, "not_found_error"),
        (413, "request_too_large", 413, "request_too_large"),
    ],
)
def test_an_error_is_said_as_openai_does(spoken: Spoken, status: int, kind: str, shown: int, code: str) -> None:
    answer, _ = ask(spoken, lambda t: t.send(whole(status, refusal(kind), "retry-after: 7")))
    assert (answer.status, answer.error["code"]) == (shown, code)
    if shown == 429:
        assert answer.get("retry-after") == "7"
    if code == kind:
        assert answer.error == {"message": "No.", "type": kind, "param": None, "code": kind}
    assert ENGINE_KEY.encode() not in answer.body


@pytest.mark.parametrize(
    ("kind", "status"), [("overloaded_error", 429), ("api_error", 502), ("invalid_request_error", 400)]
)
def test_an_error_event_before_content_is_a_status(spoken: Spoken, kind: str, status: int) -> None:
    script = streamed(START, PING, {"type": "error", "error": {"type": kind, "message": "No."}})
    answer, _ = ask(spoken, script, chat("claude", stream=True))
    assert answer.status == status


def test_an_error_event_after_content_ends_the_stream(spoken: Spoken) -> None:
    fault = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    answer, _ = ask(spoken, streamed(START, *text("Hi"), fault, STOP), chat("claude", stream=True))
    assert answer.status == 200 and not answer.whole and b"[DONE]" not in answer.body
    last = json.loads(answer.body.rstrip().rpartition(b"data: ")[2])
    assert last == {"error": {"message": "Overloaded", "type": "overloaded_error", "param": None, "code": 529}}


BROKEN: dict[str, tuple[Script, bool, str]] = {
    "no message": (lambda t: t.send(whole(200, b'{"type":"x"}')), False, "its answer cannot be read: it is no message"),
    "no JSON": (lambda t: t.send(whole(200, b"{")), False, "its answer cannot be read: it is no message in JSON"),
    "HTML": (lambda t: t.send(whole(200, b"<p>", kind="text/html")), False, "its answer is not JSON"),
    "a stream of nothing": (streamed(), True, "its stream ended too early"),
    "cut before content": (streamed(START), True, "its stream ended too early"),
    "an event that is none": (
        lambda t: t.send(stream_head(), chunk(b"data: [1]\n\n"), b"0\r\n\r\n"), True,
        "its stream cannot be read: it has an event that is none of this API's",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_an_answer_that_is_none_is_a_failure(spoken: Spoken, name: str) -> None:
    script, stream, why = BROKEN[name]
    answer, _ = ask(spoken, script, chat("claude", stream=stream))
    assert (answer.status, answer.message) == (502, f"The engine failed: {why}.")


@pytest.mark.parametrize("end", [True, False])
def test_a_stream_cut_after_content_says_so(spoken: Spoken, end: bool) -> None:
    answer, _ = ask(spoken, streamed(START, *text("Hi"), end=end), chat("claude", stream=True))
    assert not answer.whole and b'"code":"engine_cut"' in answer.body and b"[DONE]" not in answer.body


def test_a_client_that_leaves_is_settled_exactly(spoken: Spoken) -> None:
    """This API bills to the end, and is configured to be read on."""
    gateway, engine = spoken
    test = new_id("anthropic")

    def script(talk: Talk) -> None:
        talk.send(stream_head(), *map(chunk, sse(START, *text("Hi")[:-1])))
        left.wait(10)
        talk.send(*map(chunk, sse(text("Hi")[-1], ended(), STOP)), b"0\r\n\r\n")

    left = threading.Event()
    engine.scripts[test] = script
    with gateway.client() as client:
        client.send(request(chat("claude", stream=True), x_test=test, x_request_id=test))
        client.head()
    left.set()
    line = gateway.logged(test)
    assert (line["outcome"], line["settled"], line["tokens_in"], line["tokens_out"]) == (
        "client_gone",
        "exact",
        115,
        20,
    )
    assert line["tokens_cached"] == 100
