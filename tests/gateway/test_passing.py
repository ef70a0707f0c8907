"""Usage within an answer that is passed on as it comes."""

from __future__ import annotations

import json

import pytest

from forebay.gateway.passing import UsageHunt

USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}}
BEFORE = {"choices": [{"logprobs": [{"token": "usage", "word": 'a "usage": {} b'}], "text": "x" * 3_000}]}


@pytest.mark.parametrize("size", [1, 7, 33, 1_000, 100_000])
@pytest.mark.parametrize("behind", [{}, {"prompt_logprobs": ["y" * 6_000]}], ids=["at the end", "in the middle"])
def test_it_is_found_wherever_it_stands(size: int, behind: dict[str, object]) -> None:
    body = json.dumps({**BEFORE, "usage": USAGE, **behind}).encode()
    hunt = UsageHunt()
    for at in range(0, len(body), size):
        hunt.feed(body[at : at + size])
    found = hunt.usage()
    assert found is not None
    assert (found.prompt_tokens, found.completion_tokens, found.cached_tokens) == (7, 3, 2)


@pytest.mark.parametrize(
    "end",
    [b"}", b',"usage":null}', b',"usage":"none"}', b',"usage":{"prompt_tokens":"7"}}', b',"usage":{"prompt_tokens":'],
)
def test_none_is_none(end: bytes) -> None:
    hunt = UsageHunt()
    hunt.feed(json.dumps(BEFORE).encode()[:-1] + end)
    found = hunt.usage()
    assert found is None or found.prompt_tokens is None
