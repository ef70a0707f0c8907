"""An answer as it is kept, and as it is given again: whole or event by event, whichever was asked for.

What is kept is what the client got, byte for byte, without the event that says usage, which is kept beside it. Given in
the form that it came in, only its `id` changes: two answers of one id would be one to who stores answers by it.
`created` stays, since that is when it was made.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from forebay.api import folding, openai
from forebay.cache import packing, refusing
from forebay.cache.answer_shape import About as About
from forebay.cache.answer_shape import Answer as Answer
from forebay.cache.answer_shape import Chunk
from forebay.cache.answer_shape import Unfit as Unfit
from forebay.wire import sse

DONE: Final = b"[DONE]"
_DONE: Final = b"data: [DONE]\n\n"
_EVENT: Final = b"data: %b\n\n"


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
    plain = _plain(events, about, usage, length=length)
    if plain is not None:
        return plain
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
            if _is_error(chunk):
                return Unfit.ERROR
            if chunk.get("usage") is not None:
                usage = _encode(chunk.pop("usage"))
                if not chunk.get("choices"):
                    continue
                event = _EVENT % _encode(chunk)
            elif event.count(b"\n") != _LINES or b"\r" in event:
                event = _EVENT % _encode(chunk)
            fold.add(chunk, len(data))
            kept.append(event)
    except (folding.NotFoldable, ValueError):
        return Unfit.UNREADABLE
    if not done or not fold.finished:
        return Unfit.CUT
    whole = folding.read(fold.answer())
    return _kept(
        whole, b"".join((*kept, _DONE)), about, streamed=True, usage=usage, length=length, tool_calls=tool_calls
    )


def from_chunks(chunks: Sequence[bytes], about: About, *, usage: bytes = b"", length: bool = False) -> Answer | Unfit:
    """As `from_stream`, of what the client was sent in HTTP's chunks, as they were framed, one or several each."""
    run = packing.run_of(chunks)
    if run is None and (apart := packing.single(chunks)) is not chunks:
        chunks = apart
        run = packing.run_of(chunks)
    if run is not None:
        found = _plain(run.same, about, usage, length=length, run=run)
        if found is not None:
            return found
    return from_stream(b"".join(map(packing.unframed, chunks)), about, usage=usage, length=length)


_chunks: Final = msgspec.json.Decoder(list[Chunk]).decode
_NEXT: Final = b"\n\ndata: "
_END: Final = b"\n\n" + _DONE


def _plain(
    events: bytes, about: About, usage: bytes, *, length: bool, run: packing.Run | None = None
) -> Answer | Unfit | None:
    """As `from_stream`, of one choice that only talks, as nearly all streams are: taken apart all at once, for a
    microsecond an event. None: it is another kind. `run`: what is kept of it, where `events` say the same in fewer."""
    if not events.startswith(b"data: ") or not events.endswith(_END) or b"\r" in events:
        return None
    try:
        chunks = _chunks(b"[" + events[6 : -len(_END)].replace(_NEXT, b",") + b"]")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if events.count(b"\n") != 2 * len(chunks) + 2:  # an event of several lines, or a line of several values
        return None
    finish: str | None = None
    speaks = refused = False
    said = ""
    first = chunks[0] if chunks else Chunk()
    for chunk in chunks:
        if chunk.object == "error":
            return Unfit.ERROR
        if chunk.id != first.id or chunk.object != first.object:
            return None
        for choice in chunk.choices:
            delta = choice.delta
            if choice.index or (delta is not None and delta.tool_calls):
                return None
            if choice.finish_reason is not None:
                finish = choice.finish_reason
            if delta is not None and delta.refusal:
                refused = True
            if len(said) <= refusing.LONGEST:
                said += choice.text or (delta.content if delta is not None else "") or ""
                speaks = refused or bool(said)
    unfit = _fault_of({"finish_reason": finish, "text": speaks}, [], length=length)
    if unfit is not None:
        return unfit
    if refused or refusing.refuses(said):
        return Unfit.REFUSED
    body, repeated = packing.pack(events) if run is None else (run.body, run.repeated)
    return Answer(
        **_told(about),
        chat=first.object != "text_completion",
        streamed=True,
        finish_reason=finish or "",
        calls=False,
        answer_id=first.id,
        body=body,
        usage=usage,
        repeated=repeated,
    )


_LINES: Final = 2
"""Of an event as nearly all write it."""
_WHOLE: Final = frozenset({"stop", "tool_calls", "function_call", "eos", "eos_token", "stop_sequence", "end_turn"})
_CALLED: Final = frozenset({"tool_calls", "function_call"})


def _is_error(found: dict[str, Any]) -> bool:
    return found.get("error") is not None or found.get("object") == "error"


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
    if _is_error(whole):
        return Unfit.ERROR
    choices = whole.get("choices")
    if type(choices) is not list or not choices:
        return Unfit.EMPTY
    calls = False
    finishes: set[str] = set()
    for choice in choices:
        if type(choice) is not dict or type(choice.get("message") or {}) is not dict:
            return Unfit.UNREADABLE
        called = _called(choice.get("message") or {})  # "" and 0 are messages to some engines
        unfit = _fault_of(choice, called, length=length)
        if unfit is not None:
            return unfit
        if _refuses(choice, called):
            return Unfit.REFUSED
        calls = calls or bool(called)
        finishes.add(choice["finish_reason"])
    if calls and not tool_calls:
        return Unfit.TOOL_CALL
    said = whole.get("usage")
    if said is not None:
        usage = _encode(said)
    body, repeated = packing.pack(body) if streamed else (body, ())
    return Answer(
        **_told(about),
        chat=whole.get("object") != "text_completion",
        streamed=streamed,
        finish_reason="length" if "length" in finishes else choices[0]["finish_reason"],
        calls=calls,
        answer_id=str(whole.get("id") or ""),
        body=body,
        usage=usage,
        repeated=repeated,
    )


def _told(about: About) -> dict[str, Any]:
    return {"language": "", **{name: getattr(about, name) for name in About.__struct_fields__}}


def _called(message: dict[str, Any] | None) -> list[Any]:
    """The functions that it calls, each with its arguments."""
    if not message:
        return []
    calls: Any = message.get("tool_calls") or ()
    if type(calls) is not list and type(calls) is not tuple:
        return [None]
    found = [call.get("function") or call.get("custom") if type(call) is dict else None for call in calls]
    return [*found, message["function_call"]] if message.get("function_call") else found


def _fault_of(choice: dict[str, Any], called: list[Any], *, length: bool) -> Unfit | None:
    finish: Any = choice.get("finish_reason")
    if finish == "content_filter":
        return Unfit.FILTERED
    if finish == "length":
        if not length:
            return Unfit.LENGTH
    elif type(finish) is not str or finish not in _WHOLE:
        return Unfit.CUT
    if finish in _CALLED and not called:
        return Unfit.TOOL_CALL
    for function in called:
        if type(function) is not dict or not _is_json(function):
            return Unfit.TOOL_CALL
    message = choice.get("message") or {}
    if not (called or message.get("content") or message.get("refusal") or choice.get("text")):
        return Unfit.EMPTY
    return None


def _refuses(choice: dict[str, Any], called: list[Any]) -> bool:
    message = choice.get("message") or {}
    if message.get("refusal"):
        return True
    text = message.get("content") or choice.get("text")
    return not called and type(text) is str and refusing.refuses(text)


def _is_json(function: dict[str, Any]) -> bool:
    if "input" in function:  # of a custom tool: any text
        return True
    try:
        msgspec.json.decode(function.get("arguments") or "{}")
    except (msgspec.MsgspecError, TypeError, RecursionError):
        return False
    return True


def as_json(answer: Answer, answer_id: str) -> bytes:
    """The whole answer, under an id of its own."""
    return _renamed(turned(answer, streamed=False), answer_id)


def as_stream(answer: Answer, answer_id: str, include_usage: bool) -> bytes:
    """All of its events in one, [DONE] last. `include_usage`: as `stream_options` asked."""
    answer = turned(answer, streamed=True)
    events = _renamed(answer, answer_id)
    if not include_usage or not answer.usage:
        return events
    said = events[: -len(_DONE)]
    return said + _usage_event(said, answer.usage) + _DONE


def as_events(answer: Answer, answer_id: str, include_usage: bool) -> list[bytes]:
    """As `as_stream`, event by event, each with its blank line."""
    return sse.split(as_stream(answer, answer_id, include_usage))


def turned(answer: Answer, *, streamed: bool) -> Answer:
    """The same answer as if it had come that way. Raises NotFoldable: something in it that nobody looked at when it
    was kept is of no shape that can be turned."""
    if answer.streamed == streamed:
        return answer
    body, repeated = packing.pack(_unfolded(answer)) if streamed else (_folded(answer), ())
    return msgspec.structs.replace(answer, streamed=streamed, body=body, repeated=repeated)


def in_form(answer: Answer, *, streamed: bool) -> Answer | None:
    """As `turned`; None where it can be given only as it came."""
    try:
        return turned(answer, streamed=streamed)
    except folding.NotFoldable:
        return None


def bytes_of(answer: Answer) -> bytes:
    """As it came: all of its events, or its JSON."""
    return packing.unpack(answer.body, answer.repeated)


def _folded(answer: Answer) -> bytes:
    fold = folding.Fold(1 << 40)
    for event in sse.split(bytes_of(answer)):
        data = sse.data_of(event)
        if data is not None and data != DONE:
            fold.add(folding.read(data), len(data))
    whole = fold.answer()
    return openai.rewritten(whole, {"usage": answer.usage}, {}) if answer.usage else whole


def _usage_event(events: bytes, usage: bytes) -> bytes:
    """Like the other events of these."""
    first = events[events.index(b"{") : events.index(b"\n")]
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
        index: Any = choice.get("index", place)
        if type(index) is not int:
            raise folding.NotFoldable("it has a choice without an index")
        rest = {k: v for k, v in choice.items() if k not in _OF_CHOICE}
        if answer.chat:
            for delta in _deltas(choice.get("message") or {}):
                say(index, {"delta": delta})
            say(index, {"delta": {}, **rest}, choice.get("finish_reason"), choice.get("logprobs"))
        else:
            for piece in _pieces(_text(choice.get("text") or None)):
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
        for piece in _pieces(_text(arguments or None)):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


_SAID: Final = frozenset({"role", "content", "reasoning", "reasoning_content", "refusal", "tool_calls"})
_WORD: Final = re.compile(r"\s*(?:[\u3000-\u9fff\uf900-\ufaff\uff00-\uffef]{1,2}|[^\s\u3000-\u9fff]{1,12})|\s+")
_MOST_PIECES: Final = 512


def _text(said: Any) -> str:
    """Raises NotFoldable."""
    if said is not None and type(said) is not str:
        raise folding.NotFoldable("it has a text that is no string")
    return said or ""


def _pieces(text: str) -> list[str]:
    """About as an engine would say it, token by token; a long text in larger ones."""
    if len(text) > 2 * _MOST_PIECES:
        size = -(-len(text) // _MOST_PIECES)
        return [text[at : at + size] for at in range(0, len(text), size)]
    return _WORD.findall(text)


def _renamed(answer: Answer, answer_id: str) -> bytes:
    """JSON strings cannot contain the pattern: their quotes are escaped."""
    if not answer.answer_id:
        return bytes_of(answer)
    old, new = _encode(answer.answer_id), _encode(answer_id)
    names = ((b'"id":' + old, b'"id":' + new), (b'"id": ' + old, b'"id": ' + new))
    body, *repeated = (answer.body, *answer.repeated)
    for theirs, ours in names:
        body = body.replace(theirs, ours)
        repeated = [between.replace(theirs, ours) for between in repeated]
    return packing.unpack(body, tuple(repeated))


def text_of(answer: Answer) -> str:
    """What it says and calls, its reasoning left out, for comparing."""
    texts: list[str] = []
    try:
        choices = folding.read(turned(answer, streamed=False).body)["choices"]
    except folding.NotFoldable:  # its id is in it: it says the same as no other
        return bytes_of(answer).decode("utf-8", "replace")
    for choice in choices:
        message = choice.get("message") or {}
        parts = (choice.get("text"), message.get("content"), message.get("refusal"))
        texts += [part for part in parts if type(part) is str and part]
        for function in _called(message):
            texts.append(f"{function.get('name')}({function.get('arguments') or function.get('input') or ''})")
    return "\n".join(texts)
