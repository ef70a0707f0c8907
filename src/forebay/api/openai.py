"""OpenAI's request and response shapes, as far as the gateway acts on them; every other byte passes through.

Decoding is strict about the few fields read and blind to the rest. Where a field must change, the body is taken apart
one level deep (`rewritten`) so that no value the gateway does not own is re-encoded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from forebay.api.counts import MOST_TOKENS as MOST_TOKENS
from forebay.api.counts import bound_counts, cached_of

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

    if not TYPE_CHECKING:  # a method would call it from Python's loop
        __post_init__ = bound_counts

    @property
    def cached_tokens(self) -> int | None:
        """Prompt tokens that were not computed, from 0; None where the engine does not say."""
        return cached_of(self)


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


_fields_decoder = msgspec.json.Decoder(dict[str, Raw])


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
    if b"n_predict" not in body and not escapes_a_letter(body):
        return body
    fields: dict[str, Raw] = _fields_decoder.decode(body)
    if fields.pop("n_predict", None) is None:
        return body
    return msgspec.json.encode(fields)


def asking_for_usage(body: bytes) -> bytes:
    """A stream request's body with `stream_options.include_usage` set, its other options untouched."""
    if b'"stream_options"' not in body and not escapes_a_letter(body):
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
    if escapes_a_letter(body):
        return rewritten(body, fields, {})
    return with_first_field(body, b",".join(added))


def escapes_a_letter(body: bytes) -> bool:
    """Whether a lower-case letter or `_` may be written as an escape somewhere: a key can be hidden that way."""
    return b"\\" in body and (b"\\u006" in body or b"\\u007" in body or b"\\u005" in body)


def with_first_field(body: bytes, field: bytes) -> bytes:
    """`body`, an object that is not empty, with one more field at its front: cheaper than taking it apart."""
    brace = body.index(b"{") + 1
    return body[:brace] + field + b"," + body[brace:]


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
