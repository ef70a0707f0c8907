"""OpenAI's request and response shapes, as far as the gateway acts on them; every other byte passes through.

Decoding is strict about the few fields read and blind to the rest. Where a field must change, the body is taken apart
one level deep (`rewritten`) so that no value the gateway does not own is re-encoded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec

from forebay import errors
from forebay.errors import Refusal

Raw = msgspec.Raw
_ABSENT: Final = msgspec.Raw(b"")
_NONE_BEFORE: Final = (_ABSENT,) * 5
_NONE_BESIDE: Final = (_ABSENT,) * 4


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class Body(msgspec.Struct, frozen=True):
    """The fields of any generating request that the gateway reads. `content` is what the route calls it:
    messages, prompt or input."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: int | None = None
    best_of: int | None = None
    user: str | None = None
    safety_identifier: str | None = None
    metadata: Raw = _ABSENT
    kv_transfer_params: Raw = _ABSENT
    bootstrap_host: Raw = _ABSENT
    bootstrap_port: Raw = _ABSENT
    bootstrap_room: Raw = _ABSENT
    cache_salt: Raw = _ABSENT
    extra_key: Raw = _ABSENT
    documents: Raw = _ABSENT
    chat_template_kwargs: Raw = _ABSENT
    reasoning_effort: Raw = _ABSENT
    service_tier: Raw = _ABSENT
    prompt_logprobs: Raw = _ABSENT

    @property
    def before(self) -> bytes:
        """What decides, beside tools, what stands before the messages in the prompt, or whose cached blocks it may find
        (vLLM, SGLang): two requests of which it differs share nothing."""
        found = (
            self.cache_salt,
            self.extra_key,
            self.documents,
            self.chat_template_kwargs,
            self.reasoning_effort,
        )
        if found == _NONE_BEFORE:
            return b""
        return b"\0".join(map(bytes, found))

    @property
    def end_user(self) -> str:
        """Who asks, by the caller's own name for them; "" where it names nobody. OpenAI calls the field
        `safety_identifier` by now."""
        return self.user or self.safety_identifier or ""

    @property
    def skips_cache(self) -> bool:
        """Whether its prompt is computed whole, whatever is cached: vLLM has no log probabilities of cached tokens."""
        return self.prompt_logprobs is not _ABSENT and bytes(self.prompt_logprobs) != b"null"

    @property
    def says_where(self) -> bool:
        """Whether it has fields by which engines find each other's memory (vLLM's, SGLang's)."""
        return (
            self.kv_transfer_params is not _ABSENT
            or self.bootstrap_host is not _ABSENT
            or self.bootstrap_port is not _ABSENT
            or self.bootstrap_room is not _ABSENT
        )


class ChatBody(Body, frozen=True):
    messages: Raw = _ABSENT
    tools: Raw = _ABSENT
    functions: Raw = _ABSENT
    chat_template: Raw = _ABSENT
    response_format: Raw = _ABSENT

    @property
    def beside(self) -> bytes:
        """What a template puts into the prompt beside messages and tools."""
        found = (self.functions, self.documents, self.chat_template_kwargs, self.chat_template)
        return b"" if found == _NONE_BESIDE else b" ".join(map(bytes, found))


class CompletionBody(Body, frozen=True):
    prompt: Raw = _ABSENT
    suffix: Raw = _ABSENT

    @property
    def beside(self) -> bytes:
        """What the prompt has beside it."""
        return bytes(self.suffix)


class EmbeddingBody(msgspec.Struct, frozen=True):
    model: str | None = None
    input: Raw = _ABSENT
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: int | None = None
    user: str | None = None
    safety_identifier: str | None = None
    metadata: Raw = _ABSENT

    @property
    def end_user(self) -> str:
        return self.user or self.safety_identifier or ""


AnyBody = ChatBody | CompletionBody | EmbeddingBody


MOST_TOKENS: Final = 1 << 40
"""No prompt or answer has more, whatever is said of it. Python reads a number of 400 digits, which has no float."""


class Usage(msgspec.Struct, frozen=True):
    """Token counts as an engine reports them, of what is over `MOST_TOKENS` either way that."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    prompt_tokens_details: dict[str, Any] | None = None
    completion_tokens_details: Any = None
    prompt_cache_hit_tokens: Any = None
    """DeepSeek's word for cached tokens, part of `prompt_tokens`."""
    cached_beside: Any = msgspec.field(name="cached_tokens", default=None)
    """Moonshot's."""
    reasoning_tokens: Any = None
    """Perplexity's and SGLang's."""

    def __post_init__(self) -> None:
        prompt, answer, total = self.prompt_tokens, self.completion_tokens, self.total_tokens
        if (
            (prompt is None or 0 <= prompt <= MOST_TOKENS)
            and (answer is None or 0 <= answer <= MOST_TOKENS)
            and (total is None or 0 <= total <= MOST_TOKENS)
        ):
            return
        for name in _COUNTS:
            value: int | None = getattr(self, name)
            if value is not None and not -MOST_TOKENS <= value <= MOST_TOKENS:
                msgspec.structs.force_setattr(self, name, MOST_TOKENS if value > 0 else -MOST_TOKENS)

    @property
    def cached_tokens(self) -> int | None:
        """Prompt tokens that were not computed, from 0; None where the engine does not say."""
        details = self.prompt_tokens_details
        found = details.get("cached_tokens") if details is not None else None
        if type(found) is not int:
            found = self.prompt_cache_hit_tokens if self.prompt_cache_hit_tokens is not None else self.cached_beside
        return min(found, MOST_TOKENS) if type(found) is int and found >= 0 else None


_COUNTS: Final = ("prompt_tokens", "completion_tokens", "total_tokens")


class Choice(msgspec.Struct, frozen=True):
    delta: dict[str, Any] | None = None
    text: str | None = None
    finish_reason: str | None = None

    @property
    def has_content(self) -> bool:
        """Content, reasoning, a tool call or an end: anything but a role."""
        if self.finish_reason is not None or self.text:
            return True
        for name, value in (self.delta or {}).items():
            if value is not None and value != "" and value != [] and name != "role":
                return True
        return False


class Chunk(msgspec.Struct, frozen=True):
    """One event of a stream. Unknown shapes decode to an empty one."""

    choices: list[Choice] | None = None
    usage: Usage | None = None
    error: Any = None
    code: Any = None
    error_type: Any = None
    object: str | None = None
    model: str | None = None
    service_tier: Any = None

    @property
    def has_content(self) -> bool:
        for choice in self.choices or ():
            if choice.has_content:
                return True
        return False

    @property
    def is_last(self) -> bool:
        """Whether a choice ends in it."""
        for choice in self.choices or ():
            if choice.finish_reason is not None:
                return True
        return False

    @property
    def is_error(self) -> bool:
        return self.error is not None or self.object == "error"


class Answer(msgspec.Struct, frozen=True):
    """A unary answer."""

    usage: Usage | None = None
    model: str | None = None
    service_tier: Any = None


def tier_of(said: Any) -> str:
    """A maker's tier, as an answer or a request calls it; "" for what is none."""
    return said.lower() if isinstance(said, str) and len(said) <= 32 else ""


_chunk_decoder = msgspec.json.Decoder(Chunk)
_answer_decoder = msgspec.json.Decoder(Answer)
_fields_decoder = msgspec.json.Decoder(dict[str, Raw])

_WRONG_TYPE: Final = re.compile(r"Expected `(?P<wanted>[^`]+)`, got `(?P<got>[^`]+)`(?: - at `\$\.?(?P<at>[^`]*)`)?")
_NAMES: Final = MappingProxyType(
    {
        "str": "a string",
        "int": "an integer",
        "float": "a number",
        "bool": "true or false",
        "object": "an object",
        "array": "an array",
        "null": "null",
    }
)
_CLOSE_LOOK: Final = 65_536
_EMPTY_ARRAY: Final = re.compile(rb"\[[ \t\r\n]*\]")
_FIRST_BYTE: Final = MappingProxyType(
    {ord("{"): "an object", ord('"'): "a string", ord("t"): "a boolean", ord("f"): "a boolean"}
)


def decode(body: bytes, decoder: msgspec.json.Decoder[Any]) -> Any:
    """`body` as the decoder's struct. Raises Refusal: not UTF-8, not JSON, not an object, a field of the wrong type."""
    if not body:
        raise errors.bad_json("it is empty")
    try:
        if not body.isascii():
            body.decode()
        return decoder.decode(body)
    except UnicodeDecodeError as e:
        raise errors.bad_json(f"it is not UTF-8 (byte {e.start})") from None
    except msgspec.ValidationError as e:
        raise _wrong_type(str(e)) from None
    except msgspec.DecodeError as e:
        raise errors.bad_json(str(e).removeprefix("JSON is malformed: ")) from None
    except RecursionError:
        raise errors.bad_json("it is nested too deeply") from None


def _named(kinds: str) -> str:
    parts = [_NAMES.get(k.strip(), k.strip()) for k in kinds.split("|")]
    return " or ".join(p for p in parts if p != "null") or "null"


def _wrong_type(text: str) -> Refusal:
    m = _WRONG_TYPE.search(text)
    if m is None:
        return errors.bad_request(f"The body is not as expected: {text}.", code="wrong_type")
    field = m["at"] or ""
    if not field:
        return errors.bad_request(f"The body must be a JSON object, not {_named(m['got'])}.", code="wrong_type")
    return errors.wrong_type(field, _named(m["wanted"]), _named(m["got"]))


def check_content(field: str, raw: Raw, *, kinds: bytes) -> None:
    """The content field is there, of one of the kinds given by their first byte, and not empty. Raises Refusal."""
    view = memoryview(raw)
    first = view[0] if view else ord("n")
    if first == ord("n"):
        raise errors.missing_field(field, _FIXES[field])
    if first not in kinds:
        wanted = " or ".join({ord("["): "an array", ord('"'): "a string"}[k] for k in kinds)
        raise errors.wrong_type(field, wanted, _FIRST_BYTE.get(first, "a number"))
    if first == ord("[") and _EMPTY_ARRAY.match(view):
        raise errors.bad_request(f"'{field}' must not be empty.", param=field, code="missing_field")


_FIXES: Final = MappingProxyType(
    {
        "model": "the name of the model to use, see GET /v1/models",
        "messages": 'an array such as [{"role": "user", "content": "…"}]',
        "prompt": "a string, or an array of strings or tokens",
        "input": "a string, or an array of strings or tokens",
    }
)


def no_model() -> Refusal:
    return errors.missing_field("model", _FIXES["model"])


def rewritten(body: bytes, replace: Mapping[str, bytes], defaults: Mapping[str, bytes]) -> bytes:
    """`body` with the fields of `replace` set, and those of `defaults` set where it has none. Values are JSON. Every
    other value keeps its bytes; of a key given twice the last counts."""
    fields: dict[str, Raw] = _fields_decoder.decode(body)
    for name, value in defaults.items():
        if name not in fields:
            fields[name] = Raw(value)
    for name, value in replace.items():
        fields[name] = Raw(value)
    return msgspec.json.encode(fields)


def without_own_bound(body: bytes) -> bytes:
    """`body` without llama.cpp's `n_predict`, which it takes before max_tokens (ggml-org/llama.cpp,
    tools/server, `oaicompat_chat_params_parse`)."""
    if b"n_predict" not in body and not _escapes_a_letter(body):
        return body
    fields: dict[str, Raw] = _fields_decoder.decode(body)
    if fields.pop("n_predict", None) is None:
        return body
    return msgspec.json.encode(fields)


def asking_for_usage(body: bytes) -> bytes:
    """A stream request's body with `stream_options.include_usage` set, its other options untouched."""
    if b'"stream_options"' not in body and not _escapes_a_letter(body):
        return with_first_field(body, b'"stream_options":{"include_usage":true}')
    fields: dict[str, Raw] = _fields_decoder.decode(body)
    given = fields.get("stream_options")
    options: dict[str, Raw] = (
        (msgspec.json.decode(given, type=dict[str, Raw] | None) or {}) if given is not None else {}
    )
    options["include_usage"] = Raw(b"true")
    fields["stream_options"] = Raw(msgspec.json.encode(options))
    return msgspec.json.encode(fields)


def has_field(body: bytes, name: str) -> bool:
    """Whether the request itself has a field of that name, be it null."""
    return b'"%b"' % name.encode() in body and name in _fields_decoder.decode(body)


def with_fields(body: bytes, fields: Mapping[str, bytes]) -> bytes:
    """`body`, an object that is not empty, with these fields set whatever it says of them; values are JSON."""
    added = []
    for name, value in fields.items():
        key = b'"' + name.encode() + b'"'
        if key in body:
            return rewritten(body, fields, {})
        added.append(key + b":" + value)
    if _escapes_a_letter(body):
        return rewritten(body, fields, {})
    return with_first_field(body, b",".join(added))


def _escapes_a_letter(body: bytes) -> bool:
    """Whether a lower-case letter or `_` may be written as an escape somewhere: a key can be hidden that way."""
    return b"\\" in body and (b"\\u006" in body or b"\\u007" in body or b"\\u005" in body)


def names_twice(body: bytes) -> bool:
    """Whether the body may hold a key of the request itself twice, "model" above all, spelt out or with an escape (its
    letters are all \\u006X): of two, an engine could read the other one than was checked. Bodies over 64 KiB that look
    like it are taken to."""
    if body.count(b'"model"') == 1 and not _escapes_a_letter(body):
        return False
    if len(body) > _CLOSE_LOOK:
        return True
    pairs: list[list[tuple[str, object]]] = []

    def keep(found: list[tuple[str, object]]) -> None:
        pairs.append(found)

    try:
        json.loads(body, object_pairs_hook=keep, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):  # msgspec read it, so it is JSON: look no closer
        return True
    keys = [key for key, _ in pairs[-1]]  # the outermost object is closed last
    return len(set(keys)) != len(keys)


def with_first_field(body: bytes, field: bytes) -> bytes:
    """`body`, an object that is not empty, with one more field at its front: cheaper than taking it apart."""
    brace = body.index(b"{") + 1
    return body[:brace] + field + b"," + body[brace:]


def chunk(data: bytes) -> Chunk | None:
    """A stream event's data as far as it is understood; None where it is no such JSON."""
    try:
        return _chunk_decoder.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None


def answer(body: bytes) -> Answer | None:
    """A unary answer as far as it is understood; None where it is no JSON object."""
    try:
        return _answer_decoder.decode(body)
    except msgspec.ValidationError:
        return Answer() if body.lstrip()[:1] == b"{" else None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None


class _Said(msgspec.Struct, frozen=True):
    content: Any = None
    reasoning: Any = None
    reasoning_content: Any = None
    refusal: Any = None
    tool_calls: Any = None


class _SaidChoice(msgspec.Struct, frozen=True):
    message: _Said | None = None
    text: Any = None


class _SaidAnswer(msgspec.Struct, frozen=True):
    choices: list[_SaidChoice] = []


_said_decoder: Final = msgspec.json.Decoder(_SaidAnswer)


def text_of_answer(body: bytes) -> str:
    """What a model said in a whole answer, reasoning and tool calls included; "" for other shapes."""
    try:
        choices = _said_decoder.decode(body).choices
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""
    texts: list[str] = []
    for choice in choices:
        said = choice.message or _Said()
        parts = (choice.text, said.reasoning or said.reasoning_content, said.content, said.refusal)
        texts += [part for part in parts if isinstance(part, str)]
        if said.tool_calls:
            texts.append(msgspec.json.encode(said.tool_calls).decode())
    return "\n".join(texts)
