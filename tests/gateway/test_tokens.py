"""Prompt tokens before an engine has counted them."""

from __future__ import annotations

import json
import random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.api.openai import ChatBody, CompletionBody
from forebay.gateway.prompts import NAMES, look, prompts_of
from forebay.gateway.tokens import TokenEstimates
from forebay.sim.asks import chat_prompt


def body(text: str, **more: object) -> ChatBody:
    return chat([{"role": "user", "content": text}], **more)


def chat(messages: object, ascii_only: bool = True, **more: object) -> ChatBody:
    data = json.dumps({"model": "m", "messages": messages, **more}, ensure_ascii=ascii_only).encode()
    return msgspec.json.decode(data, type=ChatBody)


def completion(prompt: object) -> CompletionBody:
    return msgspec.json.decode(msgspec.json.encode({"prompt": prompt}), type=CompletionBody)


def actual(words: int) -> int:
    return chat_prompt([{"role": "user", "content": "word " * words}], [], 1 << 20).tokens


def counted(text: str) -> dict[str, float]:
    found = look(body(text)).counts
    empty = look(body("")).counts
    return {name: n - base for name, n, base in zip(NAMES, found, empty, strict=True) if n != base}


ENGLISH = "The reservoir fills at night, when nobody needs the water; by noon it is half empty again. "


def test_short_and_long_prompts_are_told_apart_by_the_same_weights() -> None:
    estimates = TokenEstimates()
    rng = random.Random(1)
    for _ in range(200):
        words = round(5 * 400 ** rng.random())
        _, prompt = estimates.of("m", body("word " * words))
        estimates.learn("m", prompt, actual(words))
    for words in (5, 20, 60):  # by their bytes alone
        assert estimates.of("m", body("word " * words))[0] == pytest.approx(actual(words), abs=12)
    for words in (120, 500, 2000):
        assert estimates.of("m", body("word " * words))[0] == pytest.approx(actual(words), rel=0.05)


def test_a_flood_that_was_estimated_before_anything_was_learned_teaches_what_one_does() -> None:
    estimates = TokenEstimates()
    asked = body("word " * 250)
    for prompt in [estimates.of("m", asked)[1] for _ in range(500)]:
        estimates.learn("m", prompt, actual(250))
    assert estimates.of("m", asked)[0] == pytest.approx(actual(250), rel=0.02)
    assert estimates.of("other", asked)[0] != estimates.of("m", asked)[0]


def test_it_follows_a_model_that_counts_otherwise_after_an_update() -> None:
    estimates = TokenEstimates()
    asked = body("word " * 250)
    for factor in (1, 2):
        for _ in range(1_000):
            estimates.learn("m", estimates.of("m", asked)[1], factor * actual(250))
    assert estimates.of("m", asked)[0] == pytest.approx(2 * actual(250), rel=0.06)


def test_what_is_learned_of_one_script_leaves_another_alone() -> None:
    estimates = TokenEstimates()
    chinese, english = body("水库在夜里慢慢满了，河水却少了。" * 40), body(ENGLISH * 20)
    before = estimates.of("m", english)[0]
    for _ in range(300):
        estimates.learn("m", estimates.of("m", chinese)[1], 900)
        estimates.learn("m", estimates.of("m", english)[1], before)
    assert estimates.of("m", chinese)[0] == pytest.approx(900, rel=0.05)
    assert estimates.of("m", english)[0] == pytest.approx(before, rel=0.05)


@pytest.mark.parametrize("wrong", [0, -5, 10**9])
def test_absurd_counts_teach_nothing(wrong: int) -> None:
    estimates = TokenEstimates()
    asked = body("word " * 250)
    before, prompt = estimates.of("m", asked)
    estimates.learn("m", prompt, wrong)
    assert estimates.of("m", asked)[0] == before


def test_one_outlier_moves_little() -> None:
    estimates = TokenEstimates()
    asked = body(ENGLISH * 20)
    before, prompt = estimates.of("m", asked)
    for _ in range(200):
        estimates.learn("m", prompt, before)
    estimates.learn("m", prompt, 10 * before)
    assert estimates.of("m", asked)[0] == pytest.approx(before, rel=0.05)


def test_a_picture_is_not_counted_by_its_bytes() -> None:
    estimates = TokenEstimates()
    text = {"type": "text", "text": "What is this?"}
    for url in ("data:image/png;base64," + "A" * 4_000_000, "https://example.com/" + "a" * 40 + ".png"):
        picture = {"type": "image_url", "image_url": {"url": url}}
        parts = [{"role": "user", "content": [text, picture, picture]}]
        assert 1_500 < estimates.of("m", chat(parts))[0] < 2_500


def test_a_sound_is_not_counted_by_its_bytes() -> None:
    sound = {"type": "input_audio", "input_audio": {"data": "A" * 1_000_000, "format": "wav"}}
    content = [sound, {"type": "text", "text": ENGLISH * 10}, sound]
    assert 150 < TokenEstimates().of("m", chat([{"role": "user", "content": content}]))[0] < 400


def test_what_a_picture_takes_is_learned() -> None:
    estimates = TokenEstimates()
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    asked = chat([{"role": "user", "content": [{"type": "text", "text": "What is this?"}, picture]}])
    for _ in range(100):
        estimates.learn("m", estimates.of("m", asked)[1], 270)
    assert estimates.of("m", asked)[0] == pytest.approx(270, rel=0.05)
    assert estimates.of("m", body(ENGLISH))[0] == pytest.approx(TokenEstimates().of("m", body(ENGLISH))[0], abs=8)


@pytest.mark.parametrize(
    "text", ["水库在夜里慢慢满了。" * 60, "Où est l’œuvre d’été ?\n" * 60, "水库 and 河流, 😀\n" * 300]
)
def test_text_is_counted_the_same_written_out_and_escaped(text: str) -> None:
    estimates = TokenEstimates()
    messages = [{"role": "user", "content": text}]
    plain, escaped = (estimates.of("m", chat(messages, ascii_only=way))[0] for way in (False, True))
    assert plain == pytest.approx(escaped, rel=0.1)


def test_what_is_counted() -> None:
    assert counted("ab Cd") == {"bytes": 5, "small letters": 3, "capitals": 1}
    assert counted("a b")["words after a space"] == 1
    assert counted("aBC 10_") == {
        "bytes": 7,
        "small letters": 1,
        "capitals": 2,
        "pairs of capitals": 1,
        "capitals after a small letter": 1,
        "digits": 2,
        "numbers after a space": 1,
        "underscores": 1,
    }
    lines = counted('if x:\n  "y"\n\n')
    assert (lines["line ends"], lines["indented lines"], lines["signs"], lines["bytes"]) == (3, 1, 3, 13)
    assert counted("\\nabla") == {"bytes": 6, "small letters": 5, "signs": 1}  # a backslash of the text's own
    han = counted("的中国，é😀！")
    assert [han[n] for n in NAMES[-6:]] == [1, 2, 1, 3, 1, 1]


def test_a_long_text_is_sampled() -> None:
    rng = random.Random(1)
    words = ENGLISH.split()
    text = " ".join(rng.choice(words) for _ in range(50_000))
    found = counted(text)
    assert found["bytes"] == pytest.approx(len(text), rel=0.001)
    assert found["small letters"] == pytest.approx(sum(c.islower() for c in text), rel=0.02)
    assert found["signs"] == pytest.approx(text.count(",") + text.count(".") + text.count(";"), rel=0.3)


def test_tools_are_counted_and_other_fields_are_not() -> None:
    function = {"name": "f", "description": ENGLISH, "parameters": {"type": "object", "properties": {}}}
    tools = [{"type": "function", "function": function}] * 3
    bare, more = look(body("hi")), look(body("hi", metadata={"note": ENGLISH * 9}, response_format={"type": "text"}))
    assert bare == more
    found = dict(zip(NAMES, look(body("hi", tools=tools)).counts, strict=True))
    assert (found["with tools"], found["tools"]) == (1, 3)
    assert found["bytes"] > dict(zip(NAMES, bare.counts, strict=True))["bytes"] + 3 * len(ENGLISH)
    assert look(body("hi", tools=None)) == bare


@pytest.mark.parametrize(
    ("prompt", "tokens"), [([1, 2, 3], 3), ([[1, 2], [3]], 3), ([7], 1), ([[5] * 1_000] * 4, 4_000)]
)
def test_token_ids_are_counted_exactly(prompt: object, tokens: int) -> None:
    estimates = TokenEstimates()
    found, seen = estimates.of("m", completion(prompt))
    assert found == tokens
    estimates.learn("m", seen, 5 * tokens)
    assert estimates.of("m", completion(prompt))[0] == tokens
    assert "m" not in repr(estimates).removeprefix("<TokenEstimates")


def test_an_array_of_prompts_is_estimated_as_all_of_them() -> None:
    estimates = TokenEstimates()
    one, four = (estimates.of("m", completion(p))[0] for p in (ENGLISH * 10, [ENGLISH * 10] * 4))
    assert four == pytest.approx(4 * one, rel=0.15)


@pytest.mark.parametrize(
    "text", ["aA" * 3_000, "a " * 3_000, " " * 3_000, "\n" * 3_000, "\\" * 3_000, "\x00" * 3_000, "😀" * 900]
)
def test_no_text_has_fewer_than_no_tokens_or_more_than_bytes(text: str) -> None:
    estimates = TokenEstimates()
    asked = body(text)
    assert len(text) / 20 < estimates.of("m", asked)[0] < len(asked.messages) + 300


@given(st.binary(max_size=5_000))
def test_any_bytes_are_estimated(data: bytes) -> None:
    raw = msgspec.Raw(data)
    assert TokenEstimates().of("m", ChatBody(messages=raw, tools=raw))[0] >= 1
    assert TokenEstimates().of("m", CompletionBody(prompt=raw))[0] >= 1


def test_small_chats_are_learned_by_their_bytes() -> None:
    estimates = TokenEstimates()
    dense, plain = body("你好，世界。" * 10), body("word " * 40)
    for asked, tokens in ((dense, 90), (plain, 52)) * 200:
        estimates.learn("m", estimates.of("m", asked)[1], tokens)
    assert estimates.of("m", dense)[0] == pytest.approx(90, abs=5)
    assert estimates.of("m", plain)[0] == pytest.approx(52, abs=5)
    before = estimates.of("m", plain)[0]
    estimates.learn("m", estimates.of("m", plain)[1], 1_000_000)
    assert estimates.of("m", plain)[0] == before


def test_models_are_bounded() -> None:
    estimates = TokenEstimates()
    for i in range(600):
        estimates.learn(f"m{i}", estimates.of(f"m{i}", body("x" * 600))[1], 100)
        estimates.learn(f"m{i}", estimates.of(f"m{i}", body("x" * 60))[1], 20)
    assert len(estimates._models) == len(estimates._small) == 256
    assert "m599" in repr(estimates)


@pytest.mark.parametrize(
    ("prompt", "n"),
    [('"one"', 1), ('["one","two","three"]', 3), ("[1,2,3]", 1), ("[[1,2],[3]]", 2), ("[]", 1), (' ["a"]', 1)],
)
def test_an_array_of_prompts_is_counted(prompt: str, n: int) -> None:
    found = msgspec.json.decode(f'{{"prompt":{prompt}}}', type=CompletionBody)
    assert prompts_of(found) == n
    assert prompts_of(ChatBody()) == 1


WORDS = "word " * 20_000
SAMPLES = "A1b2" * 25_000


def of_parts(*parts: dict[str, Any]) -> int:
    return TokenEstimates().of("m", chat([{"role": "user", "content": parts}]))[0]


@pytest.mark.parametrize(
    "part",
    [
        {"type": "input_audio", "input_audio": {"data": SAMPLES, "format": "wav"}},
        {"type": "input_audio", "input_audio": {"format": "wav", "data": SAMPLES}},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64," + SAMPLES}},
        {"type": "file", "file": {"file_data": "data:application/pdf;base64," + SAMPLES}},
    ],
)
def test_what_is_no_text_is_not_counted_as_one(part: dict[str, Any]) -> None:
    assert of_parts({"type": "text", "text": "x"}, part) < 2_000


@pytest.mark.parametrize(
    "part",
    [
        {"type": "text", "text": "data:image/png;base64," + WORDS},
        {"type": "text", "text": '"url":"data:image/png;base64,' + WORDS},
        {"type": "text", "input_audio": 1, "data": 2, "text": WORDS},
        {"type": "input_audio", "text": WORDS},
    ],
)
def test_a_text_that_looks_like_something_else_is_counted(part: dict[str, Any]) -> None:
    assert 20_000 < of_parts(part) < 26_000


def test_a_sound_without_samples_ends_nothing() -> None:
    """It was looked for from the beginning again, for ever."""
    assert of_parts({"type": "text", "text": "x"}, {"type": "input_audio"}) < 100
    assert of_parts({"type": "input_audio", "input_audio": {}}, {"type": "input_audio"}) < 100


@pytest.mark.parametrize("field", ["documents", "functions", "chat_template_kwargs", "chat_template"])
def test_what_a_template_puts_into_the_prompt_is_counted(field: str) -> None:
    asked = {"model": "m", "messages": [{"role": "user", "content": "x"}], field: [{"text": WORDS}]}
    assert 20_000 < TokenEstimates().of("m", msgspec.json.decode(json.dumps(asked), type=ChatBody))[0] < 26_000


SCHEMA = {
    "type": "json_schema",
    "json_schema": {
        "name": "reservoir",
        "schema": {
            "type": "object",
            "properties": {f"level_{i}": {"type": "number", "description": "Metres above the sea."} for i in range(40)},
        },
    },
}


@pytest.mark.parametrize("per_byte", [0.0, 0.25], ids=["held to it", "told of it"])
def test_whether_an_answer_s_schema_is_in_the_prompt_is_learned(per_byte: float) -> None:
    estimates = TokenEstimates()
    plain, asked = body("How full is it?"), body("How full is it?", response_format=SCHEMA)
    first = estimates.of("m", asked)[0]
    size = len(json.dumps(SCHEMA))
    assert 0.05 * size < first < 0.3 * size, "not known yet"
    own = estimates.of("m", plain)[0]
    actual = own + round(per_byte * size)
    for _ in range(30):
        counted = estimates.of("m", asked)[1]
        estimates.learn("m", counted, actual)
    assert estimates.of("m", asked)[0] == pytest.approx(actual, abs=0.03 * size)
    assert estimates.of("m", plain)[0] == pytest.approx(own, abs=10)


def test_a_format_without_a_schema_is_nothing() -> None:
    assert look(body("x", response_format={"type": "json_object"})) == look(body("x"))
