"""How long an answer may become, as its request says: what is held for it, and what its usage is measured against.

Engines read the fields differently, so what counts is the longest answer that any of them would make.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from forebay.api import openai
from forebay.api.openai import AnyBody, ChatBody, CompletionBody
from forebay.gateway.prompts import prompts_of

MOST_ANSWERS: Final = 1 << 20
BOUNDS: Final = ("max_tokens", "max_completion_tokens")
_ONE: Final = b'"max_tokens"'
_OWN: Final = b"n_predict"
_ESCAPE: Final = ord("\\")
"""Looked for as a number: of bytes `in` first makes an error that says that they are none."""
_BRACE: Final = ord("{")
_ABSENT: Final = openai.Body().service_tier
_replace: Final = msgspec.structs.replace


def most_of(body: AnyBody) -> int | None:
    """Tokens of one answer at most; None: nothing bounds it that every engine would take for a bound.

    Completions have no max_completion_tokens: it is passed over there. Of chats vLLM takes max_completion_tokens, or
    else max_tokens, and 0 for none; older engines know max_tokens only. llama.cpp takes -1 for no bound."""
    first, other = body.max_tokens, body.max_completion_tokens
    if type(body) is CompletionBody:
        return first if first is None or first >= 0 else None
    if other is None:
        most = first
    elif first is None:
        most = other
    else:
        most = max(first, other) if first >= 0 and other >= 0 else None
    return most or None if most is None or most >= 0 else None


def defaults_for(body: AnyBody, defaults: Mapping[str, bytes]) -> Mapping[str, bytes]:
    """The operator's own fields for a request: a bound only where it says none, under either name."""
    if says_most(body) and not defaults.keys().isdisjoint(BOUNDS):
        return {name: value for name, value in defaults.items() if name not in BOUNDS}
    return defaults


def says_most(body: AnyBody) -> bool:
    """Whether it has a field for it, of whatever value."""
    return body.max_tokens is not None or body.max_completion_tokens is not None


def answers_of(body: AnyBody) -> int:
    """How many answers it asks for, those that are thrown away (`best_of`) among them."""
    n = body.n or 1
    if type(body) is ChatBody or type(body) is CompletionBody:
        best = body.best_of
        if best is not None and best > n:
            n = best
        if type(body) is CompletionBody:
            n *= prompts_of(body)
    return n if 1 <= n <= MOST_ANSWERS else max(1, min(n, MOST_ANSWERS))


def end_user_of(body: AnyBody) -> str:
    """As `Body.end_user`."""
    return body.user or body.safety_identifier or ""


def asked_tier(body: AnyBody) -> str:
    """The tier of a maker's service that it asks for; "" for none."""
    if type(body) is ChatBody or type(body) is CompletionBody:
        said = body.service_tier
        if said is not _ABSENT and bytes(memoryview(said)[:1]) == b'"':
            return openai.tier_of(msgspec.json.decode(said))
    return ""


def without_own_bound(payload: bytes) -> bytes:
    """As `openai.without_own_bound`."""
    if payload.find(_OWN) < 0 and _ESCAPE not in payload:
        return payload
    return openai.without_own_bound(payload)


def bounded(body: AnyBody, payload: bytes, most: int, defaults: Mapping[str, bytes]) -> tuple[AnyBody, bytes]:
    """With max_tokens set, under the names that the client or the operator used: engines differ in which one they
    read. Else under the one that every engine knows, as are completions, which have no other."""
    chat = type(body) is ChatBody
    if not says_most(body) and not (chat and defaults):
        changed: AnyBody = _replace(body, max_tokens=most)
        if payload[0] != _BRACE or _ESCAPE in payload or payload.find(_ONE) >= 0:
            return changed, openai.with_fields(payload, {"max_tokens": b"%d" % most})
        return changed, b'{"max_tokens":%d,%b' % (most, payload[1:])
    names = [name for name in BOUNDS if getattr(body, name) is not None or (chat and name in defaults)]
    if not names or not chat:
        names = sorted({"max_tokens", *names})
    changes = dict.fromkeys(names, most)
    return _replace(body, **changes), openai.with_fields(payload, dict.fromkeys(names, b"%d" % most))
