"""The openai SDK against the engine: what an application would do."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from engine_process import EngineProcess

WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
                "days": {"type": "integer", "minimum": 1, "maximum": 7},
            },
            "required": ["city"],
        },
    },
}
ASK: Any = [{"role": "user", "content": "What is the weather in Bern?"}]
HI: Any = [{"role": "user", "content": "hi"}]


@pytest.fixture
def client(shared_engine: EngineProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"http://127.0.0.1:{shared_engine.port}/v1", api_key="any", max_retries=0, timeout=20
    ) as client:
        yield client


def test_stream_and_whole_say_the_same(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model="tiny", messages=HI, max_tokens=30)
    with client.chat.completions.create(
        model="tiny", messages=HI, max_tokens=30, stream=True, stream_options={"include_usage": True}
    ) as stream:
        chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage is not None and whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == 30
    assert len([c for c in chunks if c.choices and c.choices[0].delta.content]) == 30
    other = client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "ho"}], max_tokens=30)
    assert other.choices[0].message.content != text


@pytest.mark.parametrize("choice", ["auto", "required", {"type": "function", "function": {"name": "get_weather"}}])
def test_tools(client: openai.OpenAI, choice: Any) -> None:
    whole = client.chat.completions.create(model="tiny", messages=ASK, tools=[WEATHER], tool_choice=choice)
    assert whole.choices[0].finish_reason == "tool_calls"
    (call,) = whole.choices[0].message.tool_calls or []
    assert call.type == "function"
    arguments = json.loads(call.function.arguments)
    assert arguments["unit"] in ("celsius", "fahrenheit") and 1 <= arguments["days"] <= 7 and arguments["city"]
    with client.chat.completions.create(
        model="tiny", messages=ASK, tools=[WEATHER], tool_choice=choice, stream=True
    ) as stream:
        deltas = [c.choices[0].delta.tool_calls[0] for c in stream if c.choices[0].delta.tool_calls]
    assert deltas[0].id == call.id and deltas[0].function and deltas[0].function.name == "get_weather"
    assert len(deltas) > 3
    assert "".join(d.function.arguments or "" for d in deltas if d.function) == call.function.arguments


def test_no_tool_where_none_is_called_for(client: openai.OpenAI) -> None:
    for more in ({"messages": HI}, {"messages": ASK, "tool_choice": "none"}):
        answer = client.chat.completions.create(model="tiny", tools=[WEATHER], max_tokens=5, **more)  # type: ignore[call-overload]
        assert answer.choices[0].message.content and not answer.choices[0].message.tool_calls
    after = [*ASK, {"role": "tool", "tool_call_id": "x", "content": "sunny"}]
    assert (
        client.chat.completions.create(model="tiny", messages=after, tools=[WEATHER], max_tokens=5)
        .choices[0]
        .message.content
    )


def test_json_modes(client: openai.OpenAI) -> None:
    free = client.chat.completions.create(model="tiny", messages=HI, response_format={"type": "json_object"})
    assert isinstance(json.loads(free.choices[0].message.content or ""), dict)
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 30, "maxLength": 40},
            "tags": {"type": "array", "items": {"type": "string"}, "minItems": 3},
            "size": {"$ref": "#/$defs/size"},
            "ratio": {"type": "number", "minimum": 0, "maximum": 1},
            "on": {"type": ["boolean", "null"]},
        },
        "$defs": {"size": {"anyOf": [{"type": "integer", "minimum": 5, "maximum": 6}, {"type": "null"}]}},
    }
    answer = client.chat.completions.create(
        model="tiny",
        messages=HI,
        response_format={"type": "json_schema", "json_schema": {"name": "thing", "schema": schema}},
    )
    value = json.loads(answer.choices[0].message.content or "")
    assert list(value) == ["name", "tags", "size", "ratio", "on"]
    assert 30 <= len(value["name"]) <= 40 and len(value["tags"]) == 3
    assert value["size"] in (5, 6) and 0 <= value["ratio"] <= 1 and isinstance(value["on"], bool)


def test_logprobs(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="tiny", messages=HI, max_tokens=6, logprobs=True, top_logprobs=3)
    content = answer.choices[0].logprobs.content if answer.choices[0].logprobs else None
    assert content and "".join(t.token for t in content) == answer.choices[0].message.content
    for token in content:
        assert bytes(token.bytes or []).decode() == token.token
        assert [t.logprob for t in token.top_logprobs] == sorted((t.logprob for t in token.top_logprobs), reverse=True)
        assert len({t.token for t in token.top_logprobs}) == 3
    text = client.completions.create(model="tiny", prompt="a", max_tokens=6, logprobs=2).choices[0]
    assert text.logprobs and "".join(text.logprobs.tokens or []) == text.text
    assert text.logprobs.text_offset == [sum(map(len, (text.logprobs.tokens or [])[:i])) for i in range(6)]


def test_n_choices_differ_and_all_are_counted(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="tiny", messages=HI, max_tokens=8, n=3)
    assert len({c.message.content for c in answer.choices}) == 3
    assert [c.index for c in answer.choices] == [0, 1, 2]
    assert answer.usage and answer.usage.completion_tokens == 24
    texts = client.completions.create(model="tiny", prompt=["a", "b"], max_tokens=4, n=2)
    assert [c.index for c in texts.choices] == [0, 1, 2, 3]


def test_stop_strings(client: openai.OpenAI) -> None:
    full = client.chat.completions.create(model="tiny", messages=HI, max_tokens=60).choices[0].message.content or ""
    word = full.split()[7]
    answer = client.chat.completions.create(model="tiny", messages=HI, max_tokens=60, stop=["zzz", word])
    choice = answer.choices[0]
    assert choice.message.content == full[: full.index(word)]
    assert (choice.finish_reason, choice.model_extra["stop_reason"]) == ("stop", word)  # type: ignore[index]
    with client.chat.completions.create(model="tiny", messages=HI, max_tokens=60, stop=word, stream=True) as stream:
        assert "".join(c.choices[0].delta.content or "" for c in stream) == choice.message.content


def test_an_answer_ends_by_itself(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="tiny", messages=HI)
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage and 128 <= answer.usage.completion_tokens < 300
    assert (answer.choices[0].message.content or "").endswith(".")


def test_embeddings(client: openai.OpenAI) -> None:
    plain = client.embeddings.create(model="tiny", input=["one", "two", "one"], encoding_format="float", dimensions=64)
    one, two, again = (d.embedding for d in plain.data)
    assert one == again != two and len(one) == 64
    assert math.fsum(x * x for x in one) == pytest.approx(1)
    packed = client.embeddings.create(model="tiny", input="one", dimensions=64)  # the SDK asks for base64 by default
    assert packed.data[0].embedding == pytest.approx(one, rel=1e-6)
    assert len(client.embeddings.create(model="tiny", input="one").data[0].embedding) == 384


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ("error=500", openai.InternalServerError),
        ("error=401", openai.AuthenticationError),
        ("overload429", openai.RateLimitError),
        ("overload503", openai.InternalServerError),
        ("reset", openai.APIConnectionError),
        ("garbage", openai.APIConnectionError),
        ("error=400", openai.BadRequestError),
    ],
)
def test_errors_are_the_sdks_own(client: openai.OpenAI, fault: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        client.chat.completions.create(
            model="tiny", messages=HI, max_tokens=1, extra_headers={"x-forebay-fault": fault}
        )


def test_an_unknown_model_is_not_found(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="The model `nope` does not exist"):
        client.chat.completions.create(model="nope", messages=HI)
    assert [m.id for m in client.models.list()] == ["tiny"]
