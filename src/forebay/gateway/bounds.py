"""How long an answer may become, as its request says: what is held for it, and what its usage is measured against.

Engines read the fields differently, so what counts is the longest answer that any of them would make.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from forebay.api.openai import AnyBody, CompletionBody, EmbeddingBody
from forebay.gateway.prompts import prompts_of

MOST_ANSWERS: Final = 1 << 20
BOUNDS: Final = ("max_tokens", "max_completion_tokens")


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
    if not isinstance(body, EmbeddingBody):
        if body.best_of is not None and body.best_of > n:
            n = body.best_of
        if type(body) is CompletionBody:
            n *= prompts_of(body)
    return max(1, min(n, MOST_ANSWERS))
