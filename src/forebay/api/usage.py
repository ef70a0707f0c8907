"""An engine's usage as tokens by kind that do not overlap, and what was wrong with it.

OpenAI's `prompt_tokens` hold those read from a cache, audio and all else; `completion_tokens` hold reasoning. Those who
count otherwise are found by their sum: where `total_tokens` is more than both by exactly the cached tokens, these stand
beside the prompt; by exactly the reasoning tokens, these stand beside the answer (xAI).

Sources: OpenAI's "Chat completion object"; DeepSeek's `prompt_cache_hit_tokens`; Moonshot's `cached_tokens`; LiteLLM's
`cache_creation_tokens` and OpenRouter's `cache_write_tokens`; Anthropic's usage as `api.anthropic_answer` hands it on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

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


HIDDEN_THOUGHTS: Final = frozenset({"google"})
"""Providers whose OpenAI-compatible API leaves reasoning out of `completion_tokens`; only its sum tells."""


def tokens_of(usage: Usage, hidden_thoughts: bool = False) -> tuple[Tokens, str]:
    """(tokens, "" or one of the notes above: they were corrected). `hidden_thoughts`: by `HIDDEN_THOUGHTS`."""
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
    cached: Any = 0  # as said, of any type: compiled, an int takes nothing else
    written: Any = 0
    long: Any = 0
    audio_in: Any = 0
    images: Any = 0
    thought: Any = 0
    audio_out: Any = 0
    before = usage.prompt_tokens_details
    if before is not None:
        for name, value in before.items():
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
    after: Any = usage.completion_tokens_details
    if type(after) is dict:
        thought, audio_out = after.get("reasoning_tokens") or 0, after.get("audio_tokens") or 0
    if not cached:
        cached = usage.prompt_cache_hit_tokens or usage.cached_beside or 0
    if not thought and usage.reasoning_tokens:
        thought = usage.reasoning_tokens
        if type(thought) is int and answer < thought <= MOST_TOKENS:  # Perplexity: beside the answer, in no sum
            answer, total = answer + thought, None
    if written or long or audio_in or images or audio_out or cached or thought:
        if (
            not (written or long or audio_in or images or audio_out or note)
            and type(cached) is int
            and type(thought) is int
            and 0 <= cached <= prompt
            and 0 <= thought <= answer
            and (total is None or total == prompt + answer)
        ):
            return Tokens(prompt - cached, cached, 0, 0, answer - thought, thought), ""
        parts = (cached, written, long, audio_in, images, thought, audio_out)
        return _in_parts(prompt, answer, total, parts, note, hidden_thoughts)
    if total is not None and total != prompt + answer and not note:
        if hidden_thoughts and total > prompt + answer:
            return Tokens(prompt, 0, 0, 0, answer, total - prompt - answer), ""
        note = CONTRADICTS
    return Tokens(prompt, 0, 0, 0, answer), note


_WRITTEN: Final = frozenset({"cache_creation_tokens", "cache_write_tokens"})


def _long(details: Any) -> Any:
    return details.get("ephemeral_1h_input_tokens") if isinstance(details, dict) else 0


def _in_parts(
    prompt: int, answer: int, total: int | None, parts: tuple[Any, ...], note: str, hidden_thoughts: bool
) -> tuple[Tokens, str]:
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
        elif hidden_thoughts and beside > 0 and not thought:
            answer += beside
            thought = beside
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


def tokens_of_any(found: Mapping[str, Any]) -> tuple[Tokens, str]:
    """As `tokens_of`, of a usage object, or an answer with one, in the words of any API that is known: OpenAI's chats
    and responses, Anthropic's messages, Gemini's generateContent, Bedrock's converse, Ollama's."""
    for name in ("usage", "usageMetadata", "message", "response"):
        inner = found.get(name)
        if isinstance(inner, dict):
            return tokens_of_any(inner)
    return tokens_of(msgspec.convert(_as_openai(found), Usage, strict=False))


def _as_openai(found: Mapping[str, Any]) -> Mapping[str, Any]:
    if "promptTokenCount" in found or "candidatesTokenCount" in found:
        return _gemini(found)
    if "prompt_eval_count" in found or "eval_count" in found:
        return {"prompt_tokens": found.get("prompt_eval_count"), "completion_tokens": found.get("eval_count")}
    if "inputTokens" in found or "outputTokens" in found:
        read, made = found.get("cacheReadInputTokens") or 0, found.get("cacheWriteInputTokens") or 0
        return _beside(found.get("inputTokens") or 0, read, made, 0, found.get("outputTokens") or 0)
    if "prompt_tokens" in found or "input_tokens" not in found:
        return found
    read, made = found.get("cache_read_input_tokens"), found.get("cache_creation_input_tokens")
    if read is None and made is None:
        return {
            "prompt_tokens": found["input_tokens"],
            "completion_tokens": found.get("output_tokens"),
            "total_tokens": found.get("total_tokens"),
            "prompt_tokens_details": found.get("input_tokens_details"),
            "completion_tokens_details": found.get("output_tokens_details"),
        }
    long = _long(found.get("cache_creation"))
    return _beside(found["input_tokens"], read or 0, made or 0, long or 0, found.get("output_tokens") or 0)


def _beside(prompt: int, read: int, made: int, long: int, answer: int) -> dict[str, Any]:
    """Of APIs whose input leaves out what a cache has to do with."""
    return {
        "prompt_tokens": prompt + read + made,
        "completion_tokens": answer,
        "prompt_tokens_details": {
            "cached_tokens": read,
            "cache_creation_tokens": made,
            "cache_creation_token_details": {"ephemeral_1h_input_tokens": long},
        },
    }


def _gemini(found: Mapping[str, Any]) -> dict[str, Any]:
    thought = found.get("thoughtsTokenCount") or 0
    heard = [
        part.get("tokenCount") or 0
        for part in found.get("promptTokensDetails") or ()
        if part.get("modality") == "AUDIO"
    ]
    return {
        "prompt_tokens": (found.get("promptTokenCount") or 0) + (found.get("toolUsePromptTokenCount") or 0),
        "completion_tokens": (found.get("candidatesTokenCount") or 0) + thought,
        "prompt_tokens_details": {"cached_tokens": found.get("cachedContentTokenCount"), "audio_tokens": sum(heard)},
        "completion_tokens_details": {"reasoning_tokens": thought},
    }


_EMPTY: Final = 2
"""Events that an answer without a token may have: its end is one."""


def doubted(prompt: int, completion: int, *, prompt_most: int, answer_most: int, events: int) -> str:
    """Whether an engine's count can be of the request that it is for: "" or ABSURD, UNSEEN. Then its settlement is
    estimated from what was sent and delivered.

    `prompt_most`: more tokens than the prompt can have, for its bytes; `answer_most`: as many as were allowed; 0 where
    that is not known. `events`: content events that were delivered."""
    if prompt_most and prompt > prompt_most:
        return ABSURD
    if answer_most and completion > 2 * answer_most + 64:
        return ABSURD
    if events > 2 * completion + 16 or (events > _EMPTY and not completion):
        return UNSEEN
    return ""
