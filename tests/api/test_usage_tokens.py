"""Any engine's usage as tokens by kind."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.api import anthropic_answer, reading
from forebay.api.counts import MOST_TOKENS
from forebay.api.openai import Usage
from forebay.api.usage import ABSURD, CONTRADICTS, EMPTY, NEGATIVE, UNSEEN, doubted, tokens_of, tokens_of_any
from forebay.ledger.tokens import NO_TOKENS, Tokens


def usage(prompt: Any = None, answer: Any = None, total: Any = None, **more: Any) -> Usage:
    """As an engine's answer says it."""
    said = {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": total, **more}
    found = reading.answer(json.dumps({"usage": said}).encode())
    assert found is not None and found.usage is not None
    return found.usage


def prompt_details(**counts: Any) -> dict[str, Any]:
    return {"prompt_tokens_details": counts}


def answer_details(**counts: Any) -> dict[str, Any]:
    return {"completion_tokens_details": counts}


@pytest.mark.parametrize(
    ("said", "tokens"),
    [
        (usage(10, 5, 15), Tokens(10, output=5)),
        (usage(10, 5), Tokens(10, output=5)),
        (usage(10, total=10), Tokens(10)),  # an embedding
        (usage(None, 5, 15), Tokens(10, output=5)),
        (usage(10, None, 15), Tokens(10, output=5)),
        (usage(10, 5, 15, **prompt_details(cached_tokens=4, audio_tokens=0)), Tokens(6, 4, output=5)),
        (usage(10, 5, 15, **prompt_details(cached_tokens=None), **answer_details()), Tokens(10, output=5)),
        (usage(10, 5, 15, **prompt_details(cached_tokens=10)), Tokens(0, 10, output=5)),
        (usage(10, 5, 15, **answer_details(reasoning_tokens=3, audio_tokens=1)), Tokens(10, 0, 0, 0, 1, 3, 0, 1)),
        (usage(10, 5, 15, **prompt_details(audio_tokens=3, image_tokens=2)), Tokens(5, 0, 0, 0, 5, 0, 3, 0, 2)),
        (usage(10, 5, 15, prompt_cache_hit_tokens=4, prompt_cache_miss_tokens=6), Tokens(6, 4, output=5)),  # DeepSeek
        (usage(10, 5, 15, cached_tokens=4), Tokens(6, 4, output=5)),  # Moonshot
        (usage(10, 5, 15, reasoning_tokens=2), Tokens(10, 0, 0, 0, 3, 2)),  # SGLang
        (usage(10, 5, 15, reasoning_tokens=200), Tokens(10, 0, 0, 0, 5, 200)),  # Perplexity
        (usage(6, 5, 15, **prompt_details(cached_tokens=4)), Tokens(6, 4, output=5)),  # beside the prompt
        (usage(10, 5, 18, **answer_details(reasoning_tokens=3)), Tokens(10, 0, 0, 0, 5, 3)),  # beside the answer: xAI
        (
            usage(6, 5, 18, **prompt_details(cached_tokens=4), **answer_details(reasoning_tokens=3)),
            Tokens(6, 4, 0, 0, 5, 3),
        ),
        (usage(20, 5, 25, **prompt_details(cached_tokens=4, cache_creation_tokens=6)), Tokens(10, 4, 6, 0, 5)),
        (usage(20, 5, 25, **prompt_details(cached_tokens=4, cache_write_tokens=6)), Tokens(10, 4, 6, 0, 5)),
        (usage(0, 0, 0), NO_TOKENS),
    ],
)
def test_kinds_do_not_overlap(said: Usage, tokens: Tokens) -> None:
    assert tokens_of(said) == (tokens, "")


@pytest.mark.parametrize(
    ("said", "tokens", "note"),
    [
        (usage(), NO_TOKENS, EMPTY),
        (usage(-3, 5, 2), Tokens(output=5), NEGATIVE),
        (usage(3, -5), Tokens(3), NEGATIVE),
        (usage(10, 5, 15, **prompt_details(cached_tokens=-4, audio_tokens=2)), Tokens(8, 0, 0, 0, 5, 0, 2), NEGATIVE),
        (usage(10**400, 5), Tokens(MOST_TOKENS, output=5), ABSURD),
        (usage(10, 5, **prompt_details(cached_tokens=10**400)), Tokens(0, 10, output=5), ABSURD),
        (usage(10, 5, 99), Tokens(10, output=5), CONTRADICTS),
        (usage(10, 5, 4), Tokens(10, output=5), CONTRADICTS),
        (usage(10, 5, 15, **prompt_details(cached_tokens=11)), Tokens(0, 10, output=5), CONTRADICTS),
        (usage(10, 5, 15, **answer_details(reasoning_tokens=6)), Tokens(10, 0, 0, 0, 0, 5), CONTRADICTS),
        (usage(10, 5, 15, **prompt_details(cached_tokens=8, audio_tokens=8)), Tokens(0, 8, 0, 0, 5, 0, 2), CONTRADICTS),
        (usage(10, 5, 15, **prompt_details(cached_tokens="4")), Tokens(10, output=5), CONTRADICTS),
        (usage(10, 5, 15, **prompt_details(cached_tokens=4.5)), Tokens(10, output=5), CONTRADICTS),
        (usage(10, 5, 15, **prompt_details(cached_tokens=[1])), Tokens(10, output=5), CONTRADICTS),
        (usage(10, 5, 15, completion_tokens_details=[]), Tokens(10, output=5), ""),
        (usage(10, 5, 15, **answer_details(reasoning_tokens=True)), Tokens(10, output=5), CONTRADICTS),
    ],
)
def test_what_cannot_be_is_corrected_and_said(said: Usage, tokens: Tokens, note: str) -> None:
    assert tokens_of(said) == (tokens, note)


def test_thoughts_that_only_the_sum_tells_of_are_billed() -> None:
    assert tokens_of(usage(20, 198, 623), hidden_thoughts=True) == (Tokens(20, 0, 0, 0, 198, 405), "")
    cached = usage(20, 198, 623, **prompt_details(cached_tokens=10))
    assert tokens_of(cached, hidden_thoughts=True) == (Tokens(10, 10, 0, 0, 198, 405), "")
    assert tokens_of(usage(20, 198, 200), hidden_thoughts=True) == (Tokens(20, output=198), CONTRADICTS)
    assert tokens_of(usage(20, 198, 623))[1] == CONTRADICTS


anything = st.one_of(st.none(), st.integers(-(10**30), 10**30), st.booleans(), st.floats(), st.text(max_size=2))
details = st.none() | st.dictionaries(
    st.sampled_from(
        ["cached_tokens", "audio_tokens", "image_tokens", "cache_creation_tokens", "cache_creation_token_details"]
    ),
    anything | st.dictionaries(st.just("ephemeral_1h_input_tokens"), anything),
)
counts = st.none() | st.integers(-(10**20), 10**20) | st.integers(0, 50)


@given(
    counts,
    counts,
    counts,
    details,
    anything | st.dictionaries(st.sampled_from(["reasoning_tokens", "audio_tokens"]), anything),
    anything,
    anything,
    st.booleans(),
)
def test_no_usage_makes_a_count_negative_or_absurd(
    prompt: Any, answer: Any, total: Any, before: Any, after: Any, cached: Any, thought: Any, hidden: bool
) -> None:
    said = Usage(prompt, answer, total, before, after, None, cached, thought)
    tokens, note = tokens_of(said, hidden)
    for kind in Tokens.__struct_fields__:
        assert 0 <= getattr(tokens, kind) <= 3 * MOST_TOKENS, (kind, tokens, note)
    if not note and prompt is not None and answer is not None:
        assert tokens.prompt >= prompt and tokens.completion >= answer
        assert total is None or tokens.total == min(total, MOST_TOKENS) or thought


@pytest.mark.parametrize(
    ("said", "tokens"),
    [
        ({"usage": {"prompt_tokens": 3, "completion_tokens": 1}}, Tokens(3, output=1)),
        (  # OpenAI's responses
            {
                "input_tokens": 20,
                "output_tokens": 9,
                "total_tokens": 29,
                "input_tokens_details": {"cached_tokens": 5},
                "output_tokens_details": {"reasoning_tokens": 4},
            },
            Tokens(15, 5, 0, 0, 5, 4),
        ),
        (  # Anthropic's messages
            {
                "type": "message",
                "usage": {
                    "input_tokens": 3,
                    "cache_creation_input_tokens": 12_304,
                    "cache_read_input_tokens": 7,
                    "cache_creation": {"ephemeral_5m_input_tokens": 12_000, "ephemeral_1h_input_tokens": 304},
                    "output_tokens": 550,
                },
            },
            Tokens(3, 7, 12_000, 304, 550),
        ),
        (  # Gemini
            {
                "usageMetadata": {
                    "promptTokenCount": 20,
                    "cachedContentTokenCount": 8,
                    "candidatesTokenCount": 198,
                    "thoughtsTokenCount": 405,
                    "toolUsePromptTokenCount": 2,
                    "totalTokenCount": 625,
                    "promptTokensDetails": [
                        {"modality": "TEXT", "tokenCount": 17},
                        {"modality": "AUDIO", "tokenCount": 3},
                    ],
                }
            },
            Tokens(11, 8, 0, 0, 198, 405, 3),
        ),
        (  # Bedrock
            {"inputTokens": 3, "outputTokens": 5, "cacheReadInputTokens": 2, "cacheWriteInputTokens": 4},
            Tokens(3, 2, 4, 0, 5),
        ),
        ({"prompt_eval_count": 26, "eval_count": 298}, Tokens(26, output=298)),  # Ollama
    ],
)
def test_each_makers_words_are_understood(said: dict[str, Any], tokens: Tokens) -> None:
    assert tokens_of_any(said) == (tokens, "")


def test_anthropics_usage_is_the_same_through_the_translation() -> None:
    said = {
        "input_tokens": 3,
        "cache_creation_input_tokens": 12_304,
        "cache_read_input_tokens": 7,
        "cache_creation": {"ephemeral_5m_input_tokens": 12_000, "ephemeral_1h_input_tokens": 304},
        "output_tokens": 550,
        "output_tokens_details": {"thinking_tokens": 50},
    }
    whole = {"type": "message", "id": "m", "model": "c", "content": [], "stop_reason": "end_turn", "usage": said}
    answer = reading.answer(json.dumps(anthropic_answer.completion(json.dumps(whole).encode(), 0)).encode())
    chunks = anthropic_answer.Chunks(0)
    chunks.event(json.dumps({"type": "message_start", "message": {"usage": said | {"output_tokens": 1}}}).encode())
    chunks.event(json.dumps({"type": "message_delta", "delta": {}, "usage": {"output_tokens": 550}}).encode())
    last = reading.chunk(chunks.event(b'{"type":"message_stop"}')[0].removeprefix(b"data: "))
    for found in (answer, last):
        assert found is not None and found.usage is not None
        assert tokens_of(found.usage) == (Tokens(3, 7, 12_000, 304, 500, 50), "")


@pytest.mark.parametrize(
    ("tokens", "known", "note"),
    [
        (Tokens(100, output=10), {"prompt_most": 100, "answer_most": 10, "events": 10}, ""),
        (Tokens(101, output=10), {"prompt_most": 100, "answer_most": 10, "events": 10}, ABSURD),
        (Tokens(10**9, output=10**9), {"prompt_most": 0, "answer_most": 0, "events": 0}, ""),
        (Tokens(1, output=85), {"prompt_most": 100, "answer_most": 10, "events": 10}, ABSURD),
        (Tokens(1), {"prompt_most": 100, "answer_most": 10, "events": 3}, UNSEEN),
        (Tokens(1), {"prompt_most": 100, "answer_most": 10, "events": 1}, ""),  # its end
        (Tokens(1, output=100), {"prompt_most": 100, "answer_most": 0, "events": 217}, UNSEEN),
        (Tokens(1, output=100), {"prompt_most": 100, "answer_most": 0, "events": 120}, ""),
        (Tokens(1), {"prompt_most": 100, "answer_most": 10, "events": 0}, ""),
    ],
)
def test_a_count_that_is_not_of_this_request_is_doubted(tokens: Tokens, known: dict[str, int], note: str) -> None:
    assert doubted(tokens.prompt, tokens.completion, **known) == note
