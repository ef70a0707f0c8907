"""Whatever a client or an upstream says, the translation refuses it by name or reads it: nothing else is raised."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from forebay.api import anthropic_answer, anthropic_request
from forebay.errors import Refusal

# ruff: noqa: SIM905 - words are easier to read without their quotes
NAMES = (
    "role content type text image_url url file file_data tool_calls function name arguments id tool_call_id "
    "thinking_blocks parameters json_schema schema cache_control input thinking signature data partial_json "
    "stop_reason usage input_tokens output_tokens message content_block delta index error output_tokens_details "
    "thinking_tokens model refusal"
).split()
WORDS = (
    "user assistant system tool text image_url file function tool_use thinking none any redacted_thinking json_schema "
    "https://x.example data:image/png;base64,aa {} { text_delta input_json_delta thinking_delta signature_delta "
    "message_start content_block_start message_stop content_block_delta content_block_stop message_delta ping error "
    "message overloaded_error"
).split()
SAID = "max_tokens messages system tools tool_choice stop_sequences temperature metadata output_config".split()
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 1 << 70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(WORDS)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=6),
    max_leaves=25,
)
FIELDS = sorted(anthropic_request._LEFT_OUT | anthropic_request._AS_IT_IS)
messages = st.lists(
    st.dictionaries(st.sampled_from(NAMES), values, max_size=5)
    | st.fixed_dictionaries({"role": st.sampled_from(WORDS[:4]), "content": values}, optional={"tool_calls": values}),
    max_size=4,
)


@given(
    st.dictionaries(st.sampled_from(FIELDS), values, max_size=8),
    st.just([{"role": "user", "content": "x"}]) | messages | values,
)
def test_a_request_is_translated_or_refused(fields: dict[str, Any], said: Any) -> None:
    payload = json.dumps({"model": "m", **fields, "messages": said}).encode()
    try:
        found = json.loads(anthropic_request.messages(payload))
    except Refusal as refusal:
        assert refusal.status == 400 and refusal.param
    else:
        assert found["messages"] and "max_tokens" in found
        assert set(found) <= set(SAID) | anthropic_request._AS_IT_IS


@given(st.lists(st.dictionaries(st.sampled_from(NAMES), values, max_size=6), max_size=8))
def test_a_stream_is_read_or_said_to_be_none(events: list[dict[str, Any]]) -> None:
    chunks = anthropic_answer.Chunks(1)
    try:
        out = [e for event in events for e in chunks.event(json.dumps(event).encode())]
    except anthropic_answer.NotAMessage:
        return
    for event in out:
        assert event.startswith(b"data: ") and event.endswith(b"\n\n") and event.count(b"\n") == 2


@given(values | st.binary())
def test_a_whole_answer_and_an_error_are_read_or_said_to_be_none(value: Any) -> None:
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    anthropic_answer.envelope(body)
    try:
        found = anthropic_answer.completion(body, 1)
    except anthropic_answer.NotAMessage:
        return
    assert found["object"] == "chat.completion"
