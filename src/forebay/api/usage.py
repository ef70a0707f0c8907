"""An engine's usage as tokens by kind that do not overlap, and what was wrong with it.

OpenAI's `prompt_tokens` hold those read from a cache, audio and all else; `completion_tokens` hold reasoning. Those who
count otherwise are found by their sum: where `total_tokens` is more than both by exactly the cached tokens, these stand
beside the prompt; by exactly the reasoning tokens, these stand beside the answer (xAI).

Sources: OpenAI's "Chat completion object"; DeepSeek's `prompt_cache_hit_tokens`; Moonshot's `cached_tokens`; LiteLLM's
`cache_creation_tokens` and OpenRouter's `cache_write_tokens`; Anthropic's usage as `api.anthropic_answer` hands it on.
"""

from __future__ import annotations

from typing import Any, Final

from forebay.api.openai import Usage
from forebay.ledger.tokens import MOST_TOKENS, NO_TOKENS, Tokens

NEGATIVE: Final = "usage_negative"
"""A count below 0, taken for 0."""
ABSURD: Final = "usage_absurd"
"""More than there can be, taken for the most there can be."""
CONTRADICTS: Final = "usage_contradicts"
"""Parts that are more than their whole, or a sum that is not one: the whole counts, and parts are cut to fit it."""
EMPTY: Final = "usage_empty"
"""No counts."""
UNSEEN: Final = "usage_unseen"
"""No such answer was delivered, or no such prompt was sent."""


def tokens_of(usage: Usage) -> tuple[Tokens, str]:
    """(tokens, "" or one of the notes above: they were corrected)."""
    prompt, answer, total = usage.prompt_tokens, usage.completion_tokens, usage.total_tokens
    if prompt is None or answer is None:
        if prompt is None and answer is None and total is None:
            return NO_TOKENS, EMPTY
        if prompt is None:
            prompt = total - (answer or 0) if total is not None else 0
        if answer is None:
            answer = total - prompt if total is not None else 0
    note = ""
    if prompt < 0 or answer < 0:
        prompt, answer, note = max(prompt, 0), max(answer, 0), NEGATIVE
    if prompt >= MOST_TOKENS or answer >= MOST_TOKENS:
        note = ABSURD
    cached = written = long = audio_in = images = thought = audio_out = 0
    more = usage.prompt_tokens_details
    if more is not None:
        for name, value in more.items():
            if value:
                if name == "cached_tokens":
                    cached = value
                elif name == "audio_tokens":
                    audio_in = value
                elif name in _WRITTEN:
                    written = value
                elif name == "image_tokens":
                    images = value
                elif name == "cache_creation_token_details":
                    long = _long(value)
    more = usage.completion_tokens_details
    if type(more) is dict:
        thought, audio_out = more.get("reasoning_tokens") or 0, more.get("audio_tokens") or 0
    if not cached:
        cached = usage.prompt_cache_hit_tokens or usage.cached_beside or 0
    if not thought and usage.reasoning_tokens:
        thought = usage.reasoning_tokens
        if type(thought) is int and answer < thought <= MOST_TOKENS:  # Perplexity: beside the answer, in no sum
            answer, total = answer + thought, None
    if cached or written or long or audio_in or images or thought or audio_out:
        parts = (cached, written, long, audio_in, images, thought, audio_out)
        return _in_parts(prompt, answer, total, parts, note)
    if total is not None and total != prompt + answer and not note:
        note = CONTRADICTS
    return Tokens(prompt, 0, 0, 0, answer), note


_WRITTEN: Final = frozenset({"cache_creation_tokens", "cache_write_tokens"})


def _long(details: Any) -> Any:
    return details.get("ephemeral_1h_input_tokens") if isinstance(details, dict) else 0


def _in_parts(prompt: int, answer: int, total: int | None, parts: tuple[Any, ...], note: str) -> tuple[Tokens, str]:
    """`parts` as an engine says them: of any type."""
    counts = [0] * len(parts)
    for i, value in enumerate(parts):
        if type(value) is int and 0 <= value <= MOST_TOKENS:
            counts[i] = value
        elif type(value) is int:
            counts[i] = MOST_TOKENS if value > 0 else 0
            note = note or (ABSURD if value > 0 else NEGATIVE)
        elif value is not None:
            note = note or CONTRADICTS
    cached, written, long, audio_in, images, thought, audio_out = counts
    if total is not None and not note and (beside := total - prompt - answer):
        if beside == cached + written:
            prompt += beside
        elif beside == thought:
            answer += beside
        elif beside == cached + written + thought:
            prompt += cached + written
            answer += thought
        else:
            note = CONTRADICTS
    rest = prompt
    kept = []
    for count in (cached, written, audio_in, images):
        kept.append(min(count, rest))
        rest -= kept[-1]
    said = answer
    out = []
    for count in (audio_out, thought):
        out.append(min(count, said))
        said -= out[-1]
    if [*kept, *out] != [cached, written, audio_in, images, audio_out, thought]:
        note = note or CONTRADICTS
    long = min(long, kept[1])
    tokens = Tokens(rest, kept[0], kept[1] - long, long, said, out[1], kept[2], out[0], kept[3])
    return tokens, note


def doubted(tokens: Tokens, *, prompt_most: int, answer_most: int, events: int) -> str:
    """Whether an engine's count can be of the request that it is for: "" or ABSURD, UNSEEN. Then its settlement is
    estimated from what was sent and delivered.

    `prompt_most`: more tokens than the prompt can have, for its bytes; `answer_most`: as many as were allowed; 0 where
    that is not known. `events`: content events that were delivered."""
    if prompt_most and tokens.prompt > prompt_most:
        return ABSURD
    if answer_most and tokens.completion > 2 * answer_most + 64:
        return ABSURD
    if events > 2 * tokens.completion + 16 or (events and not tokens.completion):
        return UNSEEN
    return ""
