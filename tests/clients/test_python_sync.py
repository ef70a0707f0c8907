"""The synchronous `openai` client through the gateway to an emulated engine."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI
from pydantic import BaseModel

from stack import KEY, MODEL, OTHER_KEY, Engine
from waiting import eventually

ASK: list[Any] = [{"role": "user", "content": "Tell me about the river."}]
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"place": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["place", "days"],
        },
    },
}
WEATHER_ASK: list[Any] = [{"role": "user", "content": "What is the weather in Basel?"}]
Make = Callable[..., OpenAI]


def fault(text: str) -> dict[str, str]:
    return {"x-forebay-fault": text}


@pytest.fixture
def make(gateway: Any) -> Iterator[Make]:
    """Clients that are closed at the end; `max_retries` is 0 where the test does not say otherwise."""
    made = []

    def make(**more: Any) -> OpenAI:
        client = OpenAI(**{"base_url": gateway.base_url, "api_key": KEY, "max_retries": 0, **more})
        made.append(client)
        return client

    yield make
    for client in made:
        client.close()


@pytest.fixture
def client(make: Make) -> OpenAI:
    return make()


def test_whole_answer(client: OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=ASK, max_tokens=12, extra_body={"ignore_eos": True})
    assert answer.object == "chat.completion" and answer.model == MODEL
    assert answer.choices[0].message.content
    assert answer.usage is not None and answer.usage.completion_tokens == 12


def test_a_stream_says_what_the_whole_answer_says(client: OpenAI) -> None:
    whole = client.chat.completions.create(model=MODEL, messages=ASK, max_tokens=30)
    chunks = list(client.chat.completions.create(model=MODEL, messages=ASK, max_tokens=30, stream=True))
    text = "".join(c.choices[0].delta.content or "" for c in chunks)
    assert text == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason
    assert all(c.usage is None for c in chunks), "nobody asked for usage"


def test_usage_comes_at_the_end_of_a_stream_that_asked(client: OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(
            model=MODEL,
            messages=ASK,
            max_tokens=9,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True},
        )
    )
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == 9


def test_the_stream_helper_collects_the_final_completion(client: OpenAI) -> None:
    with client.chat.completions.stream(model=MODEL, messages=ASK) as stream:
        text = "".join(event.delta for event in stream if event.type == "content.delta")
        assert stream.get_final_completion().choices[0].message.content == text != ""


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_call(client: OpenAI, stream: bool) -> None:
    common: dict[str, Any] = {"model": MODEL, "messages": WEATHER_ASK, "tools": [WEATHER]}
    if not stream:
        answer = client.chat.completions.create(**common)
        calls = answer.choices[0].message.tool_calls
        assert answer.choices[0].finish_reason == "tool_calls" and calls is not None
        call: Any = calls[0]
        name, arguments, id_ = call.function.name, call.function.arguments, call.id
    else:
        name = arguments = id_ = ""
        finish = None
        for chunk in client.chat.completions.create(**common, stream=True):
            for delta in chunk.choices[0].delta.tool_calls or ():
                id_ += delta.id or ""
                assert delta.function is not None
                name += delta.function.name or ""
                arguments += delta.function.arguments or ""
            finish = chunk.choices[0].finish_reason or finish
        assert finish == "tool_calls"
    assert name == "get_weather" and id_
    assert set(json.loads(arguments)) == {"place", "days"}


def test_words_follow_a_tools_result(client: OpenAI) -> None:
    call = {"id": "call-1", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
    talk: list[Any] = [
        *WEATHER_ASK,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call-1", "content": "rain"},
    ]
    answer = client.chat.completions.create(model=MODEL, messages=talk, tools=[WEATHER], max_tokens=10)
    assert answer.choices[0].message.content and not answer.choices[0].message.tool_calls


@pytest.mark.parametrize("kind", ["tool-whole", "tool-no-id", "tool-empty", "tool-finish"])
def test_odd_tool_deltas_arrive(client: OpenAI, kind: str) -> None:
    deltas = [
        delta
        for chunk in client.chat.completions.create(model=MODEL, messages=ASK, stream=True, extra_headers=fault(kind))
        for delta in chunk.choices[0].delta.tool_calls or ()
    ]
    assert deltas and deltas[0].function is not None and deltas[0].function.name == "lookup"


def test_json_mode(client: OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=ASK, response_format={"type": "json_object"})
    assert isinstance(json.loads(answer.choices[0].message.content or ""), dict)


def test_json_schema_is_parsed_into_a_model(client: OpenAI) -> None:
    class River(BaseModel):
        name: str
        length: int

    answer = client.chat.completions.parse(model=MODEL, messages=ASK, response_format=River)
    assert isinstance(answer.choices[0].message.parsed, River)


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs(client: OpenAI, stream: bool) -> None:
    common: dict[str, Any] = {
        "model": MODEL,
        "messages": ASK,
        "max_tokens": 5,
        "logprobs": True,
        "top_logprobs": 3,
        "extra_body": {"ignore_eos": True},
    }
    if stream:
        chunks = list(client.chat.completions.create(**common, stream=True))
        tokens = [t for c in chunks if c.choices[0].logprobs for t in c.choices[0].logprobs.content or ()]
    else:
        found = client.chat.completions.create(**common).choices[0].logprobs
        assert found is not None
        tokens = list(found.content or ())
    assert len(tokens) == 5
    assert all(t.logprob <= 0 and len(t.top_logprobs) == 3 for t in tokens)


@pytest.mark.parametrize("stream", [False, True])
def test_several_choices(client: OpenAI, stream: bool) -> None:
    common: dict[str, Any] = {"model": MODEL, "messages": ASK, "max_tokens": 6, "n": 3}
    if stream:
        texts = {0: "", 1: "", 2: ""}
        for chunk in client.chat.completions.create(**common, stream=True):
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
    else:
        texts = {c.index: c.message.content or "" for c in client.chat.completions.create(**common).choices}
    assert set(texts) == {0, 1, 2} and all(texts.values())


@pytest.mark.parametrize("stream", [False, True])
def test_text_completion(client: OpenAI, stream: bool) -> None:
    common: dict[str, Any] = {"model": MODEL, "prompt": "Once", "max_tokens": 8}
    if stream:
        text = "".join(c.choices[0].text for c in client.completions.create(**common, stream=True))
    else:
        text = client.completions.create(**common).choices[0].text
    assert text


def test_embeddings_in_both_encodings(client: OpenAI) -> None:
    floats = client.embeddings.create(model=MODEL, input=["one", "two"], encoding_format="float")
    packed = client.embeddings.create(model=MODEL, input=["one", "two"])  # base64, the SDK's own choice
    assert [d.index for d in floats.data] == [0, 1]
    assert packed.data[1].embedding == pytest.approx(floats.data[1].embedding, abs=1e-6)


def test_models(client: OpenAI) -> None:
    assert {m.id for m in client.models.list()} == {MODEL, "the-alias", "gone"}
    assert client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError, match="nothing"):
        client.models.retrieve("nothing")


@pytest.mark.parametrize("stream", [False, True])
def test_an_alias_is_the_name_that_comes_back(client: OpenAI, stream: bool) -> None:
    answer: Any = client.chat.completions.create(model="the-alias", messages=ASK, max_tokens=4, stream=stream)
    assert {a.model for a in (answer if stream else [answer])} == {"the-alias"}


# --- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "error", "status", "code"),
    [
        ({"messages": "not a list"}, openai.BadRequestError, 400, "wrong_type"),
        ({"extra_headers": {"Authorization": "Bearer wrong"}}, openai.AuthenticationError, 401, "invalid_api_key"),
        (
            {"extra_headers": fault("error=403")},
            openai.InternalServerError,
            502,
            "engine_error",
        ),  # the gateway's own key
        ({"model": "nothing"}, openai.NotFoundError, 404, "model_not_found"),
        ({"messages": [{"role": "user", "content": "x" * 250_000}]}, openai.APIStatusError, 413, "body_too_large"),
        ({"extra_headers": {"Content-Type": "text/plain"}}, openai.APIStatusError, 415, "unsupported_media_type"),
        ({"extra_headers": fault("error=422")}, openai.UnprocessableEntityError, 422, None),
        ({"extra_headers": fault("overload503")}, openai.RateLimitError, 429, "engine_overloaded"),
        ({"extra_headers": fault("overload429=7")}, openai.RateLimitError, 429, "engine_overloaded"),
        ({"extra_headers": fault("error=500")}, openai.InternalServerError, 502, "engine_error"),
        ({"extra_headers": fault("reset")}, openai.InternalServerError, 502, "engine_error"),
        ({"model": "gone"}, openai.InternalServerError, 503, "no_engine"),
        ({"extra_headers": fault("stall")}, openai.InternalServerError, 504, "engine_timeout"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_each_status_is_the_sdks_own_exception(
    client: OpenAI,
    more: dict[str, Any],
    error: type[openai.APIStatusError],
    status: int,
    code: str | None,
    stream: bool,
) -> None:
    with pytest.raises(error) as caught:
        client.chat.completions.create(**{"model": MODEL, "messages": ASK, "stream": stream, **more})
    assert caught.value.status_code == status
    if code is not None:
        assert caught.value.code == code
    assert caught.value.request_id
    if status == 429:
        wanted = "7" if more["extra_headers"]["x-forebay-fault"].endswith("7") else "1"
        assert caught.value.response.headers["retry-after"] == wanted


@pytest.mark.parametrize(
    ("kind", "code"), [("cut=3", "engine_cut"), ("reset-after=3", "engine_cut"), ("error-event=3", None)]
)
def test_a_stream_that_breaks_raises_after_its_words(client: OpenAI, kind: str, code: str | None) -> None:
    stream = client.chat.completions.create(model=MODEL, messages=ASK, stream=True, extra_headers=fault(kind))
    words = []
    with pytest.raises(openai.APIError) as caught:
        words.extend(chunk.choices[0].delta.content for chunk in stream)
    assert len([w for w in words if w]) == 3
    if code is not None:
        assert caught.value.code == code


# --- retries and time-outs -------------------------------------------------------------------------------------------


def starts(engine: Engine, request_id: str) -> list[float]:
    """When each try of a request reached the engine, in seconds."""
    return [r["started"] for r in engine.books()["records"] if r["id"] == request_id]


def test_retry_after_is_waited_for(gateway: Any, make: Make) -> None:
    gateway.engine.faults({"kind": "overload429", "arg": 2, "count": 1})
    answer = make(max_retries=2).chat.completions.create(
        model=MODEL, messages=ASK, max_tokens=3, extra_headers={"X-Request-Id": "told-to-wait"}
    )
    assert answer.choices[0].message.content
    first, second = starts(gateway.engine, "told-to-wait")
    assert second - first >= 2.0


def test_a_failing_engine_is_asked_again(gateway: Any, make: Make) -> None:
    gateway.engine.faults({"kind": "error", "arg": 500, "count": 2})
    stream = make(max_retries=2).chat.completions.create(
        model=MODEL, messages=ASK, max_tokens=3, stream=True, extra_headers={"X-Request-Id": "third-time-lucky"}
    )
    assert any(c.choices[0].delta.content for c in stream)
    assert len(starts(gateway.engine, "third-time-lucky")) == 3


def test_a_wrong_key_is_not_tried_again(gateway: Any, make: Make) -> None:
    refused = 'forebay_rejected_callers_total{code="invalid_api_key"}'
    before = gateway.forebay.metric(refused)
    with pytest.raises(openai.AuthenticationError):
        make(api_key="wrong", max_retries=5).models.list()
    assert gateway.forebay.metric(refused) == before + 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_time_out_ends_the_engines_work(gateway: Any, make: Make, stream: bool) -> None:
    name = f"timeout-{stream}"
    with pytest.raises(openai.APITimeoutError):
        make(timeout=0.3).chat.completions.create(
            model=MODEL, messages=ASK, stream=stream, extra_headers={**fault("stall"), "X-Request-Id": name}
        )
    assert eventually(lambda: gateway.engine.record(name)["how"]) == "aborted"


# --- leaving, cancelling, headers ------------------------------------------------------------------------------------


def test_closing_the_stream_ends_the_engines_work(gateway: Any, client: OpenAI) -> None:
    stream = client.chat.completions.create(
        model=MODEL,
        messages=ASK,
        max_tokens=5_000,
        stream=True,
        extra_headers={"X-Request-Id": "closed-stream"},
        extra_body={"ignore_eos": True},
    )
    next(stream)
    stream.close()
    assert eventually(lambda: gateway.engine.record("closed-stream")["how"]) == "aborted"


def test_request_id_is_ours_or_the_gateways(client: OpenAI) -> None:
    raw = client.chat.completions.with_raw_response
    given = raw.create(model=MODEL, messages=ASK, max_tokens=2, extra_headers={"X-Request-Id": "mine-1"})
    assert given.headers["x-request-id"] == "mine-1" == given.request_id
    made = raw.create(model=MODEL, messages=ASK, max_tokens=2)
    assert made.headers["x-request-id"].startswith("req-")
    assert made.parse()._request_id == made.headers["x-request-id"]
    with client.chat.completions.with_streaming_response.create(
        model=MODEL, messages=ASK, max_tokens=2, stream=True, extra_headers={"X-Request-Id": "mine-2"}
    ) as streamed:
        assert streamed.headers["x-request-id"] == "mine-2"
        assert list(streamed.iter_lines())[-2] == "data: [DONE]"


def test_cancel_ends_a_running_stream_of_the_same_key_only(gateway: Any, make: Make) -> None:
    client, stranger = make(), make(api_key=OTHER_KEY)
    stream = client.chat.completions.create(
        model=MODEL,
        messages=ASK,
        max_tokens=5_000,
        stream=True,
        extra_headers={"X-Request-Id": "to-cancel"},
        extra_body={"ignore_eos": True},
    )
    next(stream)
    with pytest.raises(openai.NotFoundError) as refused:
        stranger.post("/requests/to-cancel/cancel", cast_to=object)
    assert refused.value.code == "request_not_found"
    assert gateway.engine.record("to-cancel")["how"] is None
    said: Any = client.post("/requests/to-cancel/cancel", cast_to=object)
    assert said == {"id": "to-cancel", "object": "request.cancellation", "cancelled": 1}
    with pytest.raises(openai.APIError) as caught:
        for _ in stream:
            pass
    assert caught.value.code == "request_cancelled"
    assert eventually(lambda: gateway.engine.record("to-cancel")["how"]) == "aborted"
    with pytest.raises(openai.NotFoundError):
        client.post("/requests/to-cancel/cancel", cast_to=object)
