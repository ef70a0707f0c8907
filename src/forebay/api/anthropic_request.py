"""OpenAI's chat request as one of Anthropic's Messages API.

What the Messages API cannot say is refused with 400 and the field's name, where leaving it out would change the answer;
what only describes the request (`store`, `seed`, `service_tier`, …) is left out. Fields: OpenAI's API reference,
"Create chat completion"; Anthropic's, https://platform.claude.com/docs/en/api/messages.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from types import MappingProxyType
from typing import Any, Final

import msgspec

from forebay import errors
from forebay.api import reading
from forebay.api.anthropic_cache import mark
from forebay.errors import Refusal

MAX_TOKENS: Final = 8_192
"""The Messages API wants a bound on the answer: this one, where neither client nor the model's defaults give one."""

Json = dict[str, Any]
_decoder: Final = msgspec.json.Decoder(Json)
_encode: Final = msgspec.json.Encoder().encode

_LEFT_OUT: Final = frozenset(
    {
        "stream_options", "store", "seed", "service_tier", "safety_identifier", "prompt_cache_key",
        "prompt_cache_retention", "verbosity", "top_logprobs", "priority", "parallel_tool_calls", "max_tokens",
        "max_completion_tokens", "user", "n", "logprobs", "logit_bias", "frequency_penalty", "presence_penalty",
        "response_format", "reasoning_effort", "messages", "tools", "tool_choice", "stop", "temperature", "metadata",
    }
)  # fmt: skip
"""Read one by one below, or of no account to an answer."""
_AS_IT_IS: Final = frozenset({"model", "stream", "top_p", "top_k", "thinking", "cache_control", "container"})
"""The same in both APIs, or of Anthropic's own."""
_EFFORTS: Final = MappingProxyType({"minimal": "low", **{e: e for e in ("low", "medium", "high", "xhigh", "max")}})
_DATA_URL: Final = re.compile(
    r"data:(?P<kind>[a-z0-9.+-]+/[a-z0-9.+-]+);base64,(?P<data>.*)", re.DOTALL | re.IGNORECASE
)


def no_such_route(path: str) -> Refusal:
    return errors.bad_request(
        f"This model is served by Anthropic's API, which has nothing like {path}; use /v1/chat/completions.",
        param="model",
        code="unsupported_route",
    )


def _cannot(field: str, fix: str) -> Refusal:
    return errors.bad_request(
        f"'{field}' cannot be said to Anthropic's API: {fix}.", param=field, code="unsupported_parameter"
    )


def messages(payload: bytes, cache: str = "") -> bytes:
    """The body for POST /v1/messages. `cache`: for how long its prompt cache is asked to keep the prompt, 5m or 1h; "":
    only as the client asks. Raises Refusal."""
    given = {k: v for k, v in reading.decode(payload, _decoder).items() if v is not None}
    out: Json = {}
    for name, value in given.items():
        if name in _AS_IT_IS:
            out[name] = value
        elif name not in _LEFT_OUT:
            raise _cannot(errors.shown(name), "leave it out")
    _refuse(given)
    bound = given.get("max_completion_tokens", given.get("max_tokens", MAX_TOKENS))
    out["max_tokens"] = bound
    system, out["messages"] = _messages(given.get("messages"))
    if system:
        out["system"] = system
    if given.get("tools"):
        out["tools"] = [_tool(t, f"tools[{i}]") for i, t in enumerate(_list(given["tools"], "tools"))]
        choice = _tool_choice(given.get("tool_choice"), parallel=given.get("parallel_tool_calls", True))
        if choice is not None:
            out["tool_choice"] = choice
    elif given.get("tool_choice") not in (None, "none", "auto"):
        raise errors.bad_request("'tool_choice' needs 'tools'.", param="tool_choice")
    stop = given.get("stop")
    if stop:
        out["stop_sequences"] = [stop] if isinstance(stop, str) else stop
    temperature = given.get("temperature")
    if temperature is not None:
        if isinstance(temperature, int | float) and temperature > 1:
            raise _cannot("temperature", "it goes from 0 to 1 there")
        out["temperature"] = temperature
    user = given.get("safety_identifier", given.get("user"))
    if isinstance(user, str) and user:
        out["metadata"] = {"user_id": user}
    output = _output(given)
    if output:
        out["output_config"] = output
    if given.get("reasoning_effort") == "none":
        out.setdefault("thinking", {"type": "disabled"})
    if cache:
        mark(out, cache)
    return _encode(out)


def _refuse(given: Json) -> None:
    """What would change the answer. Raises Refusal."""
    if given.get("n", 1) != 1:
        raise _cannot("n", "ask once for each answer")
    for name in ("logprobs", "logit_bias", "frequency_penalty", "presence_penalty"):
        if given.get(name):
            raise _cannot(name, "leave it out")


def _output(given: Json) -> Json:
    out: Json = {}
    effort = given.get("reasoning_effort")
    if effort is not None and effort != "none":
        if not isinstance(effort, str) or effort not in _EFFORTS:
            raise _cannot("reasoning_effort", f"use one of none, {', '.join(_EFFORTS)}")
        out["effort"] = _EFFORTS[effort]
    wanted: Any = given.get("response_format")
    kind = wanted.get("type") if isinstance(wanted, dict) else None
    if kind == "json_schema":
        schema = wanted.get("json_schema")
        if not isinstance(schema, dict) or not isinstance(schema.get("schema"), dict):
            raise errors.missing_field("response_format.json_schema.schema", "a JSON schema")
        out["format"] = {"type": "json_schema", "schema": schema["schema"]}
    elif wanted is not None and kind != "text":
        raise _cannot("response_format", "use the type json_schema, and say which schema")
    return out


# --- tools -----------------------------------------------------------------------------------------------------------


def _tool(given: object, at: str) -> Json:
    found = given if isinstance(given, dict) else {}
    function = found.get("function")
    if found.get("type", "function") != "function" or not isinstance(function, dict):
        raise _cannot(f"{at}.type", "only functions can be tools")
    if not isinstance(function.get("name"), str):
        raise errors.missing_field(f"{at}.function.name", "the name of the function")
    out: Json = {
        "name": function["name"],
        "input_schema": function.get("parameters") or {"type": "object", "properties": {}},
    }
    for name in ("description", "strict"):
        if function.get(name):
            out[name] = function[name]
    if "cache_control" in found:
        out["cache_control"] = found["cache_control"]
    return out


def _tool_choice(given: object, *, parallel: object) -> Json | None:
    out: Json | None
    if given is None or given == "auto":
        out = None if parallel is not False else {"type": "auto"}
    elif given == "none":
        return {"type": "none"}
    elif given == "required":
        out = {"type": "any"}
    else:
        function = given.get("function") if isinstance(given, dict) and given.get("type") == "function" else None
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(name, str):
            raise _cannot("tool_choice", "use none, auto, required, or the name of a function")
        out = {"type": "tool", "name": name}
    if out is not None and parallel is False:
        out["disable_parallel_tool_use"] = True
    return out


# --- messages --------------------------------------------------------------------------------------------------------


def _messages(given: object) -> tuple[list[Json], list[Json]]:
    """(system, messages). System messages, wherever they stand, go into the first; those of one role in a row become
    one, since tool results belong into the user's turn. Raises Refusal."""
    system: list[Json] = []
    out: list[Json] = []
    for i, message in enumerate(_list(given, "messages")):
        at = f"messages[{i}]"
        role = message.get("role") if isinstance(message, dict) else None
        match role:
            case "system" | "developer":
                system += _parts(message.get("content"), f"{at}.content", _text_part)
                continue
            case "user":
                turn, blocks = "user", _parts(message.get("content"), f"{at}.content", _part)
            case "assistant":
                turn, blocks = "assistant", _assistant(message, at)
            case "tool":
                turn, blocks = "user", [_tool_result(message, at)]
            case _:
                raise _cannot(f"{at}.role", "use system, developer, user, assistant or tool")
        if not blocks:
            if turn == "user":
                raise errors.bad_request(f"'{at}.content' must not be empty.", param=f"{at}.content")
            continue
        if out and out[-1]["role"] == turn:
            out[-1]["content"] += blocks
        else:
            out.append({"role": turn, "content": blocks})
    if not out:
        raise _cannot("messages", "one of a user is needed beside the system's")
    return system, out


def _assistant(message: Json, at: str) -> list[Json]:
    thinking = message.get("thinking_blocks")
    blocks = [dict(b) for b in _list(thinking, f"{at}.thinking_blocks") if isinstance(b, dict)] if thinking else []
    blocks += _parts(message.get("content"), f"{at}.content", _text_part)
    calls = message.get("tool_calls")
    for i, call in enumerate(_list(calls, f"{at}.tool_calls") if calls is not None else ()):
        where = f"{at}.tool_calls[{i}]"
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise _cannot(where, "only calls of functions can be said")
        blocks.append(
            {
                "type": "tool_use",
                "id": call.get("id"),
                "name": function["name"],
                "input": _arguments(function.get("arguments"), f"{where}.function.arguments"),
            }
        )
    return blocks


def _arguments(given: object, at: str) -> Json:
    if not given:
        return {}
    try:
        return _decoder.decode(given) if isinstance(given, str) else {}
    except (msgspec.MsgspecError, RecursionError):
        raise errors.bad_request(f"'{at}' must be a JSON object, written as a string.", param=at) from None


def _tool_result(message: Json, at: str) -> Json:
    if not isinstance(message.get("tool_call_id"), str):
        raise errors.missing_field(f"{at}.tool_call_id", "the id of the call it answers")
    out: Json = {"type": "tool_result", "tool_use_id": message["tool_call_id"]}
    content = _parts(message.get("content"), f"{at}.content", _part)
    if content:
        out["content"] = content
    return out


def _parts(content: object, at: str, part: Callable[[Json, str], Json | None]) -> list[Json]:
    """The blocks of a message's content; texts that are empty are left out, since they are refused there."""
    if content is None:
        return []
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    out = []
    for i, given in enumerate(_list(content, at)):
        if not isinstance(given, dict):
            raise errors.wrong_type(f"{at}[{i}]", "an object", "something else")
        block = part(given, f"{at}[{i}]")
        if block is not None:
            if "cache_control" in given:
                block["cache_control"] = given["cache_control"]
            out.append(block)
    return out


def _text_part(given: Json, at: str) -> Json | None:
    text = given.get("refusal") if given.get("type") == "refusal" else given.get("text")
    if given.get("type") not in ("text", "refusal") or not isinstance(text, str):
        raise _cannot(f"{at}.type", "only text can stand here")
    return {"type": "text", "text": text} if text else None


def _part(given: Json, at: str) -> Json | None:
    match given.get("type"):
        case "text":
            return _text_part(given, at)
        case "image_url":
            image = given.get("image_url")
            url = image.get("url") if isinstance(image, dict) else image
            return {"type": "image", "source": _source(url, f"{at}.image_url.url")}
        case "file":
            file = given.get("file")
            data = file.get("file_data") if isinstance(file, dict) else None
            if data is None:
                raise _cannot(f"{at}.file", "send its bytes as file_data, a data: URL")
            return {"type": "document", "source": _source(data, f"{at}.file.file_data")}
        case _:
            raise _cannot(f"{at}.type", "use text, image_url or file")


def _source(url: object, at: str) -> Json:
    if not isinstance(url, str):
        raise errors.missing_field(at, "a URL")
    found = _DATA_URL.fullmatch(url)
    if found is not None:
        return {"type": "base64", "media_type": found["kind"].lower(), "data": found["data"]}
    if url.startswith(("https://", "http://")):
        return {"type": "url", "url": url}
    raise _cannot(at, "use https:// or data:…;base64,…")


def _list(given: object, at: str) -> list[Any]:
    if not isinstance(given, list):
        raise errors.wrong_type(at, "an array", "something else")
    return given
