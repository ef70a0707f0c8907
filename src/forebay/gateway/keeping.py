"""What is kept of an engine's answer, and why another is not.

Most answers are one choice of text that ended by itself. Those are looked through here without folding them, which
takes a third of the time; any other goes to `cache.answers`, whose verdict is the same for both.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from forebay.cache import answers
from forebay.cache.answers import About, Answer, Unfit
from forebay.config.cache import Cache

_LEAD: Final = b"data: "
_BETWEEN: Final = b"\n\ndata: "
_LAST: Final = b"\n\ndata: [DONE]\n\n"


class _Said(msgspec.Struct, gc=False):
    content: str | None = None
    tool_calls: Any = None
    function_call: Any = None


class _Choice(msgspec.Struct, gc=False):
    index: int = 0
    delta: _Said | None = None
    message: _Said | None = None
    text: str | None = None
    finish_reason: str | None = None


class _Found(msgspec.Struct, gc=False):
    id: str | None = None
    object: str | None = None
    choices: tuple[_Choice, ...] = ()
    usage: Any = None
    error: Any = None


_decode: Final = msgspec.json.Decoder(_Found).decode
_decode_all: Final = msgspec.json.Decoder(list[_Found]).decode
_PLAIN: Final = frozenset({"stop", "length"})


def of_stream(events: bytes, about: About, usage: bytes) -> Answer | Unfit:
    """`events`: all that the client was sent. Kept also where it was cut by max_tokens or calls tools."""
    found = _plain_stream(events, about, usage)
    return found if found is not None else answers.from_stream(events, about, usage=usage, length=True)


def of_unary(body: bytes, about: About) -> Answer | Unfit:
    """As `of_stream`."""
    found = _plain_unary(body, about)
    return found if found is not None else answers.from_unary(body, about, length=True)


def unfit(found: Answer | Unfit, rules: Cache, *, stores: bool, bounded: bool) -> str:
    """Why it is not kept; "" where it is. `stores`: its request lets it; `bounded`: limits lowered its max_tokens."""
    if isinstance(found, Unfit):
        return found.value
    if not rules.enabled:
        return "off"
    if not stores:
        return "no-store"
    if found.finish_reason == "length" and (bounded or not rules.length):
        return Unfit.LENGTH.value
    if found.calls and not rules.tool_calls:
        return Unfit.TOOL_CALL.value
    return Unfit.LARGE.value if found.size > rules.answer_bytes else ""


def _plain_unary(body: bytes, about: About) -> Answer | None:
    try:
        found = _decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if found.error is not None or len(found.choices) != 1:
        return None
    choice = found.choices[0]
    message = choice.message
    if choice.finish_reason not in _PLAIN or not (message.content if message is not None else choice.text):
        return None
    if message is not None and (message.tool_calls or message.function_call is not None):  # vLLM says []
        return None
    usage = msgspec.json.encode(found.usage) if found.usage is not None else b""
    return _answer(about, found, choice.finish_reason, body, usage, streamed=False)


def _plain_stream(events: bytes, about: About, usage: bytes) -> Answer | None:
    if not events.startswith(_LEAD) or not events.endswith(_LAST):
        return None
    # JSON's strings have no line ends: where every event is one line of data, this is an array of them.
    joined = b"[%b]" % events[len(_LEAD) : -len(_LAST)].replace(_BETWEEN, b",")
    try:
        found = _decode_all(joined)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if 2 * len(found) + 2 != events.count(b"\n"):
        return None
    finish, says = "", False
    for one in found:
        choices = one.choices
        if finish or len(choices) != 1 or one.usage is not None or one.error is not None:
            return None
        choice = choices[0]
        delta = choice.delta
        if choice.index or (delta is not None and (delta.tool_calls or delta.function_call is not None)):
            return None
        if not says and (delta.content if delta is not None else choice.text):
            says = True
        if choice.finish_reason is not None:
            finish = choice.finish_reason
    if not says or finish not in _PLAIN:
        return None
    return _answer(about, found[0], finish, events, usage, streamed=True)


def _answer(about: About, found: _Found, finish: str, body: bytes, usage: bytes, *, streamed: bool) -> Answer:
    return Answer(
        about.id,
        about.created,
        about.ttl,
        about.stale,
        about.model,
        about.version,
        about.partition,
        about.question,
        about.language,
        about.tags,
        about.sources,
        about.tokens,
        about.avoided,
        about.price,
        about.seconds,
        found.object != "text_completion",
        streamed,
        finish,
        False,
        found.id or "",
        body,
        usage,
    )
