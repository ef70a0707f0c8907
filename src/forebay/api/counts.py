"""What is looked at in each usage that is read: compiled, where the struct itself (`openai.Usage`) cannot be."""

from __future__ import annotations

from typing import Any, Final

import msgspec

MOST_TOKENS: Final = 1 << 40
"""No prompt or answer has more, whatever is said of it. Python reads a number of 400 digits, which has no float."""
_COUNTS: Final = ("prompt_tokens", "completion_tokens", "total_tokens")


def bound_counts(usage: Any) -> None:
    """Of counts over `MOST_TOKENS` either way, that."""
    for name in _COUNTS:
        value: int | None = getattr(usage, name)
        if value is not None and not -MOST_TOKENS <= value <= MOST_TOKENS:
            msgspec.structs.force_setattr(usage, name, MOST_TOKENS if value > 0 else -MOST_TOKENS)


def cached_of(usage: Any) -> int | None:
    """Prompt tokens that were not computed, from 0; None where the engine does not say."""
    details: dict[str, Any] | None = usage.prompt_tokens_details
    found: Any = details.get("cached_tokens") if details is not None else None
    if type(found) is not int:
        found = usage.prompt_cache_hit_tokens
        if found is None:
            found = usage.cached_beside
    if type(found) is not int or found < 0:
        return None
    return found if found < MOST_TOKENS else MOST_TOKENS
