"""A stream folded is the answer that the same request gets unstreamed."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine_process import EngineProcess
from forebay.api import folding

MODEL = "forebay-sim"
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "parameters": {"type": "object", "properties": {"place": {"type": "string"}, "days": {"type": "integer"}}},
        },
    }
]


@pytest.fixture(scope="module")
def engine() -> Iterator[EngineProcess]:
    process = EngineProcess(["--decode-rate", "20000", "--speed", "50", "--enable-prompt-tokens-details"])
    process.start()
    try:
        yield process
    finally:
        assert process.stop() == 0


def said(value: Any) -> Any:
    """Without what is null, whose keys an unstreamed answer has more of, and what differs from request to request."""
    if isinstance(value, dict):
        return {k: said(v) for k, v in value.items() if v is not None and k not in ("created", "prompt_tokens_details")}
    if isinstance(value, list):
        return [said(v) for v in value]
    return value


def fold(events: list[bytes], most: int = 1 << 20) -> Any:
    found = folding.Fold(most)
    for data in events:
        if data != b"[DONE]":
            found.add(folding.read(data), len(data))
    assert found.finished
    return json.loads(found.answer())


texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=40)
requests = st.fixed_dictionaries(
    {"max_tokens": st.integers(1, 40), "n": st.integers(1, 3)},
    optional={"ignore_eos": st.just(True), "stop": st.sampled_from([["the"], [" a", "."]])},
)
chats = st.one_of(
    requests,
    st.builds(dict.__or__, requests, st.builds(lambda n: {"logprobs": True, "top_logprobs": n}, st.integers(0, 3))),
    st.builds(dict.__or__, requests, st.sampled_from([{"tools": TOOLS, "tool_choice": "required", "max_tokens": 200}])),
)
completions = st.one_of(
    requests, st.builds(dict.__or__, requests, st.builds(lambda n: {"logprobs": n}, st.integers(0, 3)))
)
few = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def both(engine: EngineProcess, path: str, body: dict[str, Any]) -> tuple[Any, Any]:
    named = {"x-request-id": "the-same"}
    whole = engine.ask("POST", path, body, named)
    streamed = engine.ask("POST", path, {**body, "stream": True, "stream_options": {"include_usage": True}}, named)
    assert (whole.status, streamed.status) == (200, 200), (whole.body, streamed.body)
    return said(fold(streamed.events())), said(whole.json())


@few
@given(text=texts, more=chats)
def test_a_chat_folded_is_the_chat_unstreamed(engine: EngineProcess, text: str, more: dict[str, Any]) -> None:
    folded, whole = both(
        engine, "/v1/chat/completions", {"model": MODEL, "messages": [{"role": "user", "content": text}], **more}
    )
    assert folded == whole


@few
@given(text=texts, more=completions)
def test_a_completion_folded_is_the_completion_unstreamed(
    engine: EngineProcess, text: str, more: dict[str, Any]
) -> None:
    folded, whole = both(engine, "/v1/completions", {"model": MODEL, "prompt": text, **more})
    assert folded == whole


def chunk(delta: dict[str, Any], finish: str | None = None, index: int = 0, **more: Any) -> bytes:
    choice = {"index": index, "delta": delta, "finish_reason": finish}
    return json.dumps(
        {"id": "x", "object": "chat.completion.chunk", "model": "m", "choices": [choice], **more}
    ).encode()


def test_llama_cpp_as_it_was_recorded() -> None:
    """The first delta's content is null, the end has a chunk of its own, timings come with usage."""
    usage = {"completion_tokens": 2, "prompt_tokens": 31, "prompt_tokens_details": {"cached_tokens": 24}}
    last = {"id": "x", "object": "chat.completion.chunk", "model": "m", "choices": [], "usage": usage}
    answer = fold(
        [
            chunk({"role": "assistant", "content": None}),
            chunk({"reasoning_content": "hm"}),
            chunk({"content": "hel"}),
            chunk({"content": "lo"}),
            chunk({}, "length"),
            json.dumps({**last, "timings": {"cache_n": 24}}).encode(),
        ]
    )
    assert answer["object"] == "chat.completion"
    assert answer["usage"] == usage
    assert answer["timings"] == {"cache_n": 24}
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "hello", "reasoning_content": "hm"},
            "logprobs": None,
            "finish_reason": "length",
        }
    ]


def test_tool_calls_are_joined_by_their_index() -> None:
    def call(index: int, arguments: str, **more: Any) -> dict[str, Any]:
        return {"tool_calls": [{"index": index, "function": {"arguments": arguments, **more.pop("f", {})}, **more}]}

    answer = fold(
        [
            chunk({"role": "assistant", "content": ""}),
            chunk(call(1, "", id="b", type="function", f={"name": "second"})),
            chunk(call(0, '{"a"', id="a", type="function", f={"name": "first"})),
            chunk(call(1, "{}")),
            chunk(call(0, ":1}")),
            chunk({}, "tool_calls"),
        ]
    )
    assert answer["choices"][0]["message"] == {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "first", "arguments": '{"a":1}'}},
            {"id": "b", "type": "function", "function": {"name": "second", "arguments": "{}"}},
        ],
    }


@pytest.mark.parametrize(
    "event",
    [
        chunk({"content": "x" * 2_000}),
        chunk({f"field-{'y' * 20}": 1}),
        chunk({"tool_calls": [{"index": 7, "function": {"arguments": "z" * 2_000}}]}),
        chunk({}, more=["w" * 2_000]),
    ],
)
def test_what_is_kept_is_bounded(event: bytes) -> None:
    found = folding.Fold(100_000)
    with pytest.raises(folding.TooLarge):
        for i in range(100_000):
            data = event.replace(b"field-", b"field-%d" % i)
            found.add(folding.read(data), len(data))


@pytest.mark.parametrize(
    "data",
    [
        b"[1]",
        b"<html>",
        b'{"choices":{"a":1}}',
        b'{"choices":[1]}',
        b'{"choices":[{"index":"a"}]}',
        b'{"choices":[{"index":0,"delta":[1]}]}',
        b'{"choices":[{"index":0,"delta":{"content":5}}]}',
        b'{"choices":[{"index":0,"delta":{"tool_calls":[5]}}]}',
        b'{"choices":[{"index":0,"delta":{"tool_calls":[{"index":"a"}]}}]}',
        b'{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":5}]}}]}',
        b'{"choices":[{"index":0,"delta":{"function_call":"f"}}]}',
        b'{"choices":[{"index":0,"logprobs":[]}]}',
        b'{"choices":[{"index":0,"text":1}]}',
        b"[" * 100_000,
    ],
)
def test_what_is_no_chunk_is_said_to_be_none(data: bytes) -> None:
    with pytest.raises(folding.NotFoldable):
        folding.Fold(1 << 20).add(folding.read(data), len(data))


@pytest.mark.parametrize("piece", ["", "ab"])
def test_what_a_fold_keeps_is_the_text_and_not_its_pieces(piece: str) -> None:
    """An engine may send tiny or empty pieces for ever: what they take is bounded by what they are counted at."""
    fold = folding.Fold(1 << 20)
    calls = [{"index": 0, "function": {"name": "f", "arguments": piece}}]
    chunks = [
        {"choices": [{"index": 0, "delta": {"content": piece, "tool_calls": calls}}]},
        {"choices": [{"index": 1, "text": piece}]},
    ]
    tracemalloc.start()
    try:
        for _ in range(20_000):
            for chunk in chunks:
                fold.add(json.loads(json.dumps(chunk)), 100)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 20_000 * 3 * len(piece) * 2 + 400_000
    said = json.loads(fold.answer())["choices"][0]["message"]
    assert (said["content"] or "", said["tool_calls"][0]["function"]["arguments"]) == (piece * 20_000, piece * 20_000)
