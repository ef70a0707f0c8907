"""An answer as it is kept, and as it is given again: whole or event by event, whichever was asked for.

What is kept is what the client got, byte for byte, without the event that says usage, which is kept beside it. Given in
the form that it came in, only its `id` changes: two answers of one id would be one to who stores answers by it.
`created` stays, since that is when it was made.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum
from typing import Any, Final

import msgspec

from forebay.api import folding, openai
from forebay.ledger.tokens import NO_TOKENS, Tokens
from forebay.wire import sse

DONE: Final = b"[DONE]"
_DONE: Final = b"data: [DONE]\n\n"
_EVENT: Final = b"data: %b\n\n"


class Unfit(StrEnum):
    """Why an answer is not kept."""

    UNREADABLE = "unreadable"
    ERROR = "error"
    CUT = "cut"  # it has no finish_reason, or no [DONE]
    LENGTH = "length"  # by max_tokens
    FILTERED = "filtered"
    EMPTY = "empty"
    TOOL_CALL = "tool_call"  # not wanted, or its arguments are no JSON
    LARGE = "large"


class About(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of an answer beside its bytes."""

    id: str
    """Of the entry: 16 hexadecimal digits."""
    created: float
    """Unix time."""
    ttl: float
    stale: float = 0.0
    model: str
    """As asked for."""
    version: str = ""
    partition: str = ""
    question: str = ""
    language: str = ""
    tags: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    tokens: Tokens = NO_TOKENS
    avoided: int = 0
    """What it cost, and the next one will not: nano-units of the ledger's currency."""
    price: bytes = b""
    """`ledger.pricing.Price` as JSON, which `avoided` was counted by; b"": none was known."""
    seconds: float = 0.0
    """That it took to make."""


class Answer(msgspec.Struct, frozen=True, array_like=True, tag="a1", gc=False):
    """Fields are only ever added at the end; what reads otherwise gets another tag, and is a miss to the others."""

    id: str
    created: float
    ttl: float
    stale: float
    model: str
    version: str
    partition: str
    question: str
    language: str
    tags: tuple[str, ...]
    sources: tuple[str, ...]
    tokens: Tokens
    avoided: int
    price: bytes
    seconds: float
    chat: bool
    """Else a completion."""
    streamed: bool
    """How it came, and `body` is: events, [DONE] last; else JSON."""
    finish_reason: str
    """Of the first choice."""
    calls: bool
    """It calls tools: for equal requests only."""
    answer_id: str
    """The `id` in its body."""
    body: bytes
    usage: bytes
    """JSON; b"": the engine said none."""

    @property
    def size(self) -> int:
        """Bytes it takes in memory, about."""
        return 900 + len(self.body) + 2 * len(self.question) + len(self.price) + len(self.usage)

    def fresh(self, now: float) -> bool:
        return now < self.created + self.ttl

    def usable(self, now: float) -> bool:
        """Fresh, or stale within what is allowed."""
        return now < self.created + self.ttl + self.stale


_encode: Final = msgspec.json.Encoder().encode
_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Answer)


def encode(answer: Answer) -> bytes:
    return _encoder.encode(answer)


def decode(data: bytes) -> Answer | None:
    """None: it is none, or another version's."""
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def from_unary(body: bytes, about: About, *, length: bool = False, tool_calls: bool = True) -> Answer | Unfit:
    """`length`, `tool_calls`: answers that were cut by max_tokens, or call tools, are kept, too."""
    try:
        found = folding.read(body)
    except folding.NotFoldable:
        return Unfit.UNREADABLE
    return _kept(found, body, about, streamed=False, length=length, tool_calls=tool_calls)


def from_stream(
    events: bytes, about: About, *, usage: bytes = b"", length: bool = False, tool_calls: bool = True
) -> Answer | Unfit:
    """`events`: all that the client was sent, unframed of HTTP. `usage`: what an event that it was not sent said."""
    fold = folding.Fold(1 << 40)
    kept: list[bytes] = []
    done = False
    try:
        for event in sse.split(events):
            data = sse.data_of(event)
            if data is None:
                continue
            if data == DONE:
                done = True
                break
            chunk = folding.read(data)
            if chunk.get("error") is not None:
                return Unfit.ERROR
            said = chunk.pop("usage", None)
            if said is not None:
                usage = msgspec.json.encode(said)
                if not chunk.get("choices"):
                    continue
                data = msgspec.json.encode(chunk)
            fold.add(chunk, len(data))
            kept.append(_EVENT % data)
    except (folding.NotFoldable, ValueError):
        return Unfit.UNREADABLE
    if not done or not fold.finished:
        return Unfit.CUT
    whole = folding.read(fold.answer())
    return _kept(
        whole, b"".join((*kept, _DONE)), about, streamed=True, usage=usage, length=length, tool_calls=tool_calls
    )


def _kept(
    whole: dict[str, Any],
    body: bytes,
    about: About,
    *,
    streamed: bool,
    usage: bytes = b"",
    length: bool,
    tool_calls: bool,
) -> Answer | Unfit:
    if whole.get("error") is not None:
        return Unfit.ERROR
    choices = whole.get("choices")
    if type(choices) is not list or not choices:
        return Unfit.EMPTY
    calls = False
    for choice in choices:
        message = choice.get("message") or {}
        match choice.get("finish_reason"):
            case None:
                return Unfit.CUT
            case "length" if not length:
                return Unfit.LENGTH
            case "content_filter":
                return Unfit.FILTERED
        for call in message.get("tool_calls") or ():
            calls = True
            try:
                msgspec.json.decode((call.get("function") or {}).get("arguments") or "{}")
            except msgspec.MsgspecError:
                return Unfit.TOOL_CALL
        if not (message.get("content") or message.get("tool_calls") or message.get("refusal") or choice.get("text")):
            return Unfit.EMPTY
    if calls and not tool_calls:
        return Unfit.TOOL_CALL
    said = whole.get("usage")
    if said is not None:
        usage = msgspec.json.encode(said)
    fields = {name: getattr(about, name) for name in About.__struct_fields__}
    return Answer(
        **fields,
        chat=whole.get("object") != "text_completion",
        streamed=streamed,
        finish_reason=str(choices[0]["finish_reason"]),
        calls=calls,
        answer_id=str(whole.get("id") or ""),
        body=body,
        usage=usage,
    )


def as_json(answer: Answer, answer_id: str) -> bytes:
    """The whole answer, under an id of its own."""
    return _renamed(turned(answer, streamed=False), answer_id)


def as_stream(answer: Answer, answer_id: str, include_usage: bool) -> bytes:
    """All of its events in one, [DONE] last. `include_usage`: as `stream_options` asked."""
    answer = turned(answer, streamed=True)
    events = _renamed(answer, answer_id)
    if not include_usage or not answer.usage:
        return events
    end = events.rindex(b"data:")
    return events[:end] + _usage_event(events, answer.usage) + events[end:]


def as_events(answer: Answer, answer_id: str, include_usage: bool) -> list[bytes]:
    """As `as_stream`, event by event, each with its blank line."""
    return sse.split(as_stream(answer, answer_id, include_usage))


def turned(answer: Answer, *, streamed: bool) -> Answer:
    """The same answer as if it had come that way."""
    if answer.streamed == streamed:
        return answer
    body = _unfolded(answer) if streamed else _folded(answer)
    return msgspec.structs.replace(answer, streamed=streamed, body=body)


def _folded(answer: Answer) -> bytes:
    fold = folding.Fold(1 << 40)
    for event in sse.split(answer.body):
        data = sse.data_of(event)
        if data is not None and data != DONE:
            fold.add(folding.read(data), len(data))
    whole = fold.answer()
    return openai.rewritten(whole, {"usage": answer.usage}, {}) if answer.usage else whole


def _usage_event(events: bytes, usage: bytes) -> bytes:
    """Like the other events of these."""
    first = sse.data_of(events[: events.index(b"\n\n") + 2]) or b"{}"
    return _EVENT % openai.rewritten(first, {"choices": b"[]", "usage": usage}, {})


def _unfolded(answer: Answer) -> bytes:
    whole = folding.read(answer.body)
    kind = "chat.completion.chunk" if answer.chat else "text_completion"
    head = {**{k: v for k, v in whole.items() if k not in ("choices", "usage")}, "object": kind}
    events: list[bytes] = []

    def say(index: int, said: dict[str, Any], finish: object = None, logprobs: object = None) -> None:
        choice = {"index": index, **said, "logprobs": logprobs, "finish_reason": finish}
        events.append(_EVENT % _encode({**head, "choices": [choice]}))

    for place, choice in enumerate(whole["choices"]):
        index = choice.get("index", place)
        rest = {k: v for k, v in choice.items() if k not in _OF_CHOICE}
        if answer.chat:
            for delta in _deltas(choice.get("message") or {}):
                say(index, {"delta": delta})
            say(index, {"delta": {}, **rest}, choice.get("finish_reason"), choice.get("logprobs"))
        else:
            for piece in _pieces(choice.get("text") or ""):
                say(index, {"text": piece})
            say(index, {"text": "", **rest}, choice.get("finish_reason"), choice.get("logprobs"))
    return b"".join((*events, _DONE))


_OF_CHOICE: Final = frozenset({"index", "message", "text", "finish_reason", "logprobs"})


def _deltas(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield {"role": message.get("role") or "assistant", "content": ""}
    others = {k: v for k, v in message.items() if k not in _SAID and v is not None}
    if others:
        yield others
    for name in ("reasoning_content", "reasoning", "content", "refusal"):
        text = message.get(name)
        if type(text) is str:
            for piece in _pieces(text):
                yield {name: piece}
    for index, call in enumerate(message.get("tool_calls") or ()):
        function = call.get("function") or {}
        arguments = function.get("arguments")
        yield {"tool_calls": [{**call, "index": index, "function": {**function, "arguments": ""}}]}
        for piece in _pieces(arguments or ""):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


_SAID: Final = frozenset({"role", "content", "reasoning", "reasoning_content", "refusal", "tool_calls"})
_WORD: Final = re.compile(r"\s*(?:[\u3000-\u9fff\uf900-\ufaff\uff00-\uffef]{1,2}|[^\s\u3000-\u9fff]{1,12})|\s+")
_MOST_PIECES: Final = 512


def _pieces(text: str) -> list[str]:
    """About as an engine would say it, token by token; a long text in larger ones."""
    if len(text) > 2 * _MOST_PIECES:
        size = -(-len(text) // _MOST_PIECES)
        return [text[at : at + size] for at in range(0, len(text), size)]
    return _WORD.findall(text)


def _renamed(answer: Answer, answer_id: str) -> bytes:
    """JSON strings cannot contain the pattern: their quotes are escaped."""
    old, new = _encode(answer.answer_id), _encode(answer_id)
    return answer.body.replace(b'"id":' + old, b'"id":' + new).replace(b'"id": ' + old, b'"id": ' + new)


def text_of(answer: Answer) -> str:
    """What it says, for comparing."""
    return openai.text_of_answer(turned(answer, streamed=False).body)
