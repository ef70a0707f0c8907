"""Prompt tokens before an engine has counted them."""

from __future__ import annotations

import json
import random

import msgspec
import pytest

from forebay.api.openai import ChatBody, CompletionBody
from forebay.gateway.tokens import TokenEstimates, prompts_of
from forebay.sim.asks import chat_prompt


def body(text: str, **more: object) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": text}], **more}).encode()


def actual(words: int) -> int:
    return chat_prompt([{"role": "user", "content": "word " * words}], [], 1 << 20).tokens


def test_short_and_long_prompts_are_told_apart_by_one_line() -> None:
    estimates = TokenEstimates()
    rng = random.Random(1)
    for _ in range(200):
        words = round(5 * 400 ** rng.random())
        _, mark = estimates.of("m", body("word " * words))
        estimates.learn("m", mark, actual(words))
    for words in (5, 20, 100, 500, 2000):
        assert estimates.of("m", body("word " * words))[0] == pytest.approx(actual(words), rel=0.05)


def test_a_flood_that_was_estimated_before_anything_was_learned_teaches_what_one_does() -> None:
    estimates = TokenEstimates()
    prompt = body("word " * 250)
    marks = [estimates.of("m", prompt)[1] for _ in range(500)]
    for mark in marks:
        estimates.learn("m", mark, actual(250))
    assert estimates.of("m", prompt)[0] == pytest.approx(actual(250), rel=0.01)
    assert estimates.of("other", prompt)[0] > 1.1 * actual(250)  # by bytes alone, high


def test_it_follows_a_model_that_counts_otherwise_after_an_update() -> None:
    estimates = TokenEstimates()
    prompt = body("word " * 250)
    for factor in (1, 2):
        for _ in range(1_000):
            estimates.learn("m", estimates.of("m", prompt)[1], factor * actual(250))
    assert estimates.of("m", prompt)[0] == pytest.approx(2 * actual(250), rel=0.05)


@pytest.mark.parametrize("wrong", [0, -5, 10**9])
def test_absurd_counts_teach_nothing(wrong: int) -> None:
    estimates = TokenEstimates()
    prompt = body("word " * 250)
    before, mark = estimates.of("m", prompt)
    estimates.learn("m", mark, wrong)
    assert estimates.of("m", prompt)[0] == before


def test_a_picture_is_not_counted_by_its_bytes() -> None:
    estimates = TokenEstimates()
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 4_000_000}}
    text = {"type": "text", "text": "What is this?"}
    data = json.dumps({"model": "m", "messages": [{"role": "user", "content": [text, picture, picture]}]}).encode()
    assert 1_500 < estimates.of("m", data)[0] < 2_500
    cut = data[: data.index(b"AAAA") + 100]
    assert estimates.of("m", cut)[0] < 1_500


def test_chinese_is_counted_the_same_written_out_and_escaped() -> None:
    estimates = TokenEstimates()
    text = "水库在夜里慢慢满了。" * 60
    plain = json.dumps({"messages": [{"role": "user", "content": text}]}, ensure_ascii=False).encode()
    assert estimates.of("m", plain)[0] == pytest.approx(estimates.of("m", body(text))[0], rel=0.1)


def test_models_are_bounded() -> None:
    estimates = TokenEstimates()
    for i in range(3_000):
        estimates.learn(f"m{i}", estimates.of(f"m{i}", b"x" * 400)[1], 100)
    assert len(estimates._lines) <= 1_024
    assert "m2999" in repr(estimates)


@pytest.mark.parametrize(
    ("prompt", "n"),
    [('"one"', 1), ('["one","two","three"]', 3), ("[1,2,3]", 1), ("[[1,2],[3]]", 2), ("[]", 1), (' ["a"]', 1)],
)
def test_an_array_of_prompts_is_counted(prompt: str, n: int) -> None:
    found = msgspec.json.decode(f'{{"prompt":{prompt}}}', type=CompletionBody)
    assert prompts_of(found) == n
    assert prompts_of(ChatBody()) == 1
