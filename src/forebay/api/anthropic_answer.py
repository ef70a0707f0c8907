"""Answers of Anthropic's Messages API as OpenAI's chat completions: whole, event by event, and errors.

Thinking becomes `reasoning_content`; its blocks with their signatures go along as `thinking_blocks`, since a client
that continues after a tool call has to send them back as they were. Blocks of tools that run at Anthropic's are left
out.
Events: https://platform.claude.com/docs/en/build-with-claude/streaming.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, Final

import msgspec

Json = dict[str, Any]
_encode: Final = msgspec.json.Encoder().encode
_FINISH: Final = MappingProxyType(
    {
        "end_turn": "stop",
        "stop_sequence": "stop",
        "pause_turn": "stop",
        "max_tokens": "length",
        "model_context_window_exceeded": "length",
        "tool_use": "tool_calls",
        "refusal": "content_filter",
    }
)
_STATUS: Final = MappingProxyType(
    {
        "invalid_request_error": 400,
        "authentication_error": 401,
        "billing_error": 402,
        "permission_error": 403,
        "not_found_error": 404,
        "request_too_large": 413,
        "rate_limit_error": 429,
        "api_error": 500,
        "timeout_error": 504,
        "overloaded_error": 529,
    }
)
"""https://platform.claude.com/docs/en/api/errors"""
_DONE: Final = b"data: [DONE]\n\n"


class NotAMessage(Exception):
    """It is none of this API's answers; says why."""


class _Usage(msgspec.Struct, frozen=True):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_creation: Json | None = None
    output_tokens_details: Json | None = None
    service_tier: Any = None


class _Block(msgspec.Struct, frozen=True):
    type: str = ""
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None
    id: str | None = None
    name: str | None = None
    input: Any = None


class _Message(msgspec.Struct, frozen=True):
    id: str = ""
    model: str = ""
    content: list[_Block] | None = None
    stop_reason: str | None = None
    usage: _Usage | None = None


class _Delta(msgspec.Struct, frozen=True):
    type: str = ""
    text: str | None = None
    partial_json: str | None = None
    thinking: str | None = None
    signature: str | None = None
    stop_reason: str | None = None


class _Event(msgspec.Struct, frozen=True):
    type: str = ""
    index: int = 0
    message: _Message | None = None
    content_block: _Block | None = None
    delta: _Delta | None = None
    usage: _Usage | None = None
    error: Any = None


class _Whole(_Message, frozen=True):
    type: str = ""


_whole: Final = msgspec.json.Decoder(_Whole).decode
_event: Final = msgspec.json.Decoder(_Event).decode
_any: Final = msgspec.json.Decoder().decode


def completion(body: bytes, created: int) -> Json:
    """A whole message as a chat completion; `created` in seconds since 1970. Raises NotAMessage."""
    try:
        found = _whole(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise NotAMessage("it is no message in JSON") from None
    if found.type != "message":
        raise NotAMessage("it is no message")
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[Json] = []
    thinking: list[Json] = []
    for block in found.content or ():
        match block.type:
            case "text":
                texts.append(block.text or "")
            case "thinking":
                thoughts.append(block.thinking or "")
                thinking.append(
                    {"type": "thinking", "thinking": block.thinking or "", "signature": block.signature or ""}
                )
            case "redacted_thinking":
                thinking.append({"type": "redacted_thinking", "data": block.data or ""})
            case "tool_use":
                arguments = _encode(block.input if block.input is not None else {}).decode()
                calls.append(
                    {"id": block.id, "type": "function", "function": {"name": block.name, "arguments": arguments}}
                )
    message: Json = {"role": "assistant", "content": "".join(texts) if texts or not calls else None, "refusal": None}
    if calls:
        message["tool_calls"] = calls
    if thinking:
        message["reasoning_content"] = "".join(thoughts)
        message["thinking_blocks"] = thinking
    finish = _FINISH.get(found.stop_reason or "", "stop")
    return {
        "id": found.id,
        "object": "chat.completion",
        "created": created,
        "model": found.model,
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": finish}],
        "usage": (count := _Count().add(found.usage)).as_json(),
        **count.tier(),
    }


class _Count:
    """Usage, which a stream says at its start and again, cumulatively, at its end."""

    def __init__(self) -> None:
        self._found: dict[str, int] = {}
        self._details: Json | None = None
        self._made: Json | None = None
        """By how long it is kept."""
        self._tier: Any = None

    def add(self, usage: _Usage | None) -> _Count:
        if usage is not None:
            for name in ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"):
                value = getattr(usage, name)
                if value is not None:
                    self._found[name] = value
            self._details = usage.output_tokens_details or self._details
            self._made = usage.cache_creation or self._made
            self._tier = usage.service_tier or self._tier
        return self

    def tier(self) -> Json:
        return {"service_tier": self._tier} if self._tier is not None else {}

    def as_json(self) -> Json:
        """`prompt_tokens` are all of the prompt: Anthropic's `input_tokens` are those that no cache has to do with."""
        found = self._found
        read, made = found.get("cache_read_input_tokens", 0), found.get("cache_creation_input_tokens", 0)
        prompt = found.get("input_tokens", 0) + read + made
        answer = found.get("output_tokens", 0)
        out: Json = {
            "prompt_tokens": prompt,
            "completion_tokens": answer,
            "total_tokens": prompt + answer,
            "prompt_tokens_details": {"cached_tokens": read, "cache_creation_tokens": made},
        }
        if self._made and made:
            out["prompt_tokens_details"]["cache_creation_token_details"] = self._made
        thought = (self._details or {}).get("thinking_tokens")
        if isinstance(thought, int):
            out["completion_tokens_details"] = {"reasoning_tokens": thought}
        return out


class Chunks:
    """One stream. Mutable state: the message's id and model, its usage, the tool calls so far, the open block."""

    def __init__(self, created: int) -> None:
        self._created = created
        self._id = self._model = ""
        self._usage = _Count()
        self._calls = -1
        self._open: _Block | None = None
        self._said = 0
        """Characters of the open block's arguments."""
        self._thought: list[str] = []
        self._signature = ""
        self.stopped = False

    def event(self, data: bytes) -> list[bytes]:
        """One event's data as OpenAI's events. Raises NotAMessage."""
        try:
            found = _event(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise NotAMessage("it has an event that is none of this API's") from None
        if self.stopped:
            return []
        match found.type:
            case "message_start":
                return self._start(found.message or _Message())
            case "content_block_start":
                return self._block(found.content_block or _Block())
            case "content_block_delta":
                return self._delta(found.delta or _Delta())
            case "content_block_stop":
                return self._block_stop()
            case "message_delta":
                self._usage.add(found.usage)
                reason = found.delta.stop_reason if found.delta is not None else None
                return [self._chunk({}, _FINISH.get(reason, "stop"))] if reason is not None else []
            case "message_stop":
                self.stopped = True
                return [self._chunk(None), _DONE]
            case "error":
                return [b"data: %b\n\n" % _encode(_error(found.error))]
            case _:  # ping, and what is yet to come
                return []

    def _start(self, message: _Message) -> list[bytes]:
        self._id, self._model = message.id, message.model
        self._usage.add(message.usage)
        return [self._chunk({"role": "assistant", "content": ""})]

    def _block(self, block: _Block) -> list[bytes]:
        self._open, self._said = block, 0
        match block.type:
            case "tool_use":
                self._calls += 1
                function = {"name": block.name, "arguments": ""}
                call = {"index": self._calls, "id": block.id, "type": "function", "function": function}
                return [self._chunk({"tool_calls": [call]})]
            case "thinking":
                self._thought, self._signature = [block.thinking or ""], block.signature or ""
                return [self._chunk({"reasoning_content": block.thinking})] if block.thinking else []
            case "text" if block.text:
                return [self._chunk({"content": block.text})]
            case _:
                return []

    def _delta(self, delta: _Delta) -> list[bytes]:
        match delta.type:
            case "text_delta" if delta.text:
                return [self._chunk({"content": delta.text})]
            case "input_json_delta" if delta.partial_json and self._is_call():
                self._said += len(delta.partial_json)
                return [self._arguments(delta.partial_json)]
            case "thinking_delta" if delta.thinking:
                self._thought.append(delta.thinking)
                return [self._chunk({"reasoning_content": delta.thinking})]
            case "signature_delta":
                self._signature += delta.signature or ""
        return []

    def _block_stop(self) -> list[bytes]:
        block, self._open = self._open, None
        match block.type if block is not None else "":
            case "tool_use" if block is not None and not self._said:
                return [self._arguments(_encode(block.input or {}).decode())]
            case "thinking":
                thinking = {"type": "thinking", "thinking": "".join(self._thought), "signature": self._signature}
                return [self._chunk({"thinking_blocks": [thinking]})]
            case "redacted_thinking" if block is not None:
                return [self._chunk({"thinking_blocks": [{"type": block.type, "data": block.data or ""}]})]
        return []

    def _is_call(self) -> bool:
        return self._open is not None and self._open.type == "tool_use"

    def _arguments(self, text: str) -> bytes:
        return self._chunk({"tool_calls": [{"index": self._calls, "function": {"arguments": text}}]})

    def _chunk(self, delta: Json | None, finish: str | None = None) -> bytes:
        """`delta` None: the last one, which has the usage."""
        choices = [] if delta is None else [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]
        chunk: Json = {
            "id": self._id,
            "object": "chat.completion.chunk",
            "created": self._created,
            "model": self._model,
            "choices": choices,
        }
        if delta is None:
            chunk |= {"usage": self._usage.as_json(), **self._usage.tier()}
        return b"data: %b\n\n" % _encode(chunk)


def _error(error: object) -> Json:
    """As OpenAI's envelope; the code is the status that the error has by itself."""
    found = error if isinstance(error, dict) else {}
    kind = found.get("type") if isinstance(found.get("type"), str) else "api_error"
    message = found.get("message") if isinstance(found.get("message"), str) else "The engine failed."
    return {"error": {"message": message, "type": kind, "param": None, "code": _STATUS.get(kind or "", 502)}}


def envelope(body: bytes) -> bytes:
    """An error's body as OpenAI's; as it is where it is none of this API's."""
    try:
        found = _any(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return body
    if not isinstance(found, dict) or not isinstance(found.get("error"), dict):
        return body
    out = _error(found["error"])
    out["error"]["code"] = out["error"]["type"]
    return _encode(out)
