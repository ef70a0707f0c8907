"""What is kept of an engine's answer, and why another is not.

Most whole answers are one choice of text that ended by itself. Those are looked through here without decoding all of
them; any other goes to `cache.answers`, whose verdict is the same for both.
"""

from __future__ import annotations

from typing import Final

import msgspec

from forebay.cache import answers
from forebay.cache.answers import About, Answer, Unfit
from forebay.cache.refusing import refuses
from forebay.config.cache import Cache
from forebay.gateway.kept_shape import Whole

_decode: Final = msgspec.json.Decoder(Whole).decode
_LOOSE: Final = b" \t\r\n\\"
"""Signs that the same in few words has not."""
_PLAIN: Final = frozenset({"stop", "length"})


def of_unary(body: bytes, about: About) -> Answer | Unfit:
    """Kept also where it was cut by max_tokens or calls tools."""
    found = _plain(body)
    if found is None:
        return answers.from_unary(body, about, length=True)
    return Answer(
        about.id,
        about.created,
        about.ttl,
        about.stale,
        about.model,
        about.version,
        about.partition,
        about.question,
        "",
        about.tags,
        about.sources,
        about.tokens,
        about.avoided,
        about.price,
        about.seconds,
        found.object != "text_completion",
        False,
        found.choices[0].finish_reason or "",
        False,
        found.id or "",
        body,
        bytes(found.usage),
    )


def unfit(found: Answer | Unfit, rules: Cache, *, stores: bool, bounded: bool, size: int = -1) -> str:
    """Why it is not kept; "" where it is. `stores`: its request lets it; `bounded`: limits lowered its max_tokens;
    `size`: the answer's, where it is known."""
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
    return Unfit.LARGE.value if (size if size >= 0 else found.size) > rules.answer_bytes else ""


def written(found: Answer, writer: bytes, known: Answer | None) -> Answer:
    """`found`, an engine's answer to `writer`. `known`: to the same request before; that it says the same verifies it,
    where it is another's or was verified itself."""
    verified = known is not None and (known.verified or known.writer != writer)
    if verified:
        verified = known is not None and answers.text_of(found) == answers.text_of(known)
    return msgspec.structs.replace(found, writer=writer, verified=verified)


def _plain(body: bytes) -> Whole | None:
    """An answer like most. None: it is another, or none."""
    try:
        found = _decode(body)
        usage = bytes(found.usage)
        if usage and (usage == b"null" or not usage.isascii() or usage.translate(None, _LOOSE) != usage):
            said = msgspec.json.decode(usage)
            found.usage = msgspec.Raw(msgspec.json.encode(said) if said is not None else b"")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if found.error is not None or found.object == "error" or len(found.choices) != 1:
        return None
    choice = found.choices[0]
    message = choice.message
    if choice.finish_reason not in _PLAIN or not (message.content if message is not None else choice.text):
        return None
    if message is not None and (message.tool_calls or message.function_call is not None or message.refusal):
        return None  # vLLM says [] of calls
    return None if refuses((message.content if message is not None else choice.text) or "") else found
