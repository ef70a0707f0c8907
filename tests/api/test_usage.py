"""What is read of an engine's usage."""

from __future__ import annotations

import json

import pytest

from forebay.api import openai, reading


@pytest.mark.parametrize(
    ("details", "cached"),
    [
        ({"cached_tokens": 96, "audio_tokens": 0}, 96),
        ({"cached_tokens": 0}, 0),
        ({"cached_tokens": None}, None),
        ({"cached_tokens": "many"}, None),
        ({"cached_tokens": -1}, None),
        ({"cached_tokens": True}, None),
        ({}, None),
        (None, None),
    ],
)
def test_cached_tokens_are_a_count_or_not_said(details: object, cached: int | None) -> None:
    usage = {"prompt_tokens": 100, "completion_tokens": 1, "total_tokens": 101, "prompt_tokens_details": details}
    for found in (
        reading.answer(json.dumps({"usage": usage}).encode()),
        reading.chunk(json.dumps({"usage": usage}).encode()),
    ):
        assert found is not None and found.usage is not None
        assert found.usage.cached_tokens == cached
        assert found.usage.prompt_tokens == 100


def test_a_usage_without_details_says_nothing_of_the_cache() -> None:
    assert openai.Usage(prompt_tokens=5).cached_tokens is None


def test_counts_that_no_float_holds_are_brought_down() -> None:
    many = 10**400
    details = {"cached_tokens": many}
    said = {"prompt_tokens": many, "completion_tokens": -many, "total_tokens": 7, "prompt_tokens_details": details}
    found = reading.chunk(json.dumps({"usage": said}).encode())
    assert found is not None and found.usage is not None
    most = openai.MOST_TOKENS
    usage = found.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (most, -most, 7)
    assert usage.cached_tokens == most
