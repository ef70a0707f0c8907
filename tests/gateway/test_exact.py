"""Counting with a model's own tokenizer, beside the loop."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path

import msgspec
import pytest

from forebay.api.openai import ChatBody, CompletionBody, EmbeddingBody
from forebay.gateway.exact import ExactCounts, open_tokenizer, text_of
from forebay.gateway.prompts import Prompt
from forebay.gateway.tokens import TokenEstimates
from tokenizer_file import make_tokenizer


def on_a_loop(test: Callable[..., Coroutine[None, None, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(*args: object, **kwargs: object) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


CHINESE = "水库在夜里慢慢满了，到了中午又空了一半；没有人知道明天会不会下雨。"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return make_tokenizer(tmp_path)


def chat(text: str) -> ChatBody:
    messages = [{"role": "user", "content": text}]
    return msgspec.json.decode(msgspec.json.encode({"messages": messages}), type=ChatBody)


@on_a_loop
async def test_estimates_learn_from_it_before_any_answer(file: Path) -> None:
    estimates = TokenEstimates()
    learned = asyncio.Event()
    left = 60

    def learn(model: str, prompt: Prompt, tokens: int) -> None:
        nonlocal left
        estimates.learn(model, prompt, tokens)
        left -= 1
        learned.set()

    exact = ExactCounts.load({"m": file}, asyncio.get_running_loop(), learn)
    assert exact is not None
    estimates.exact = exact
    asked = chat(CHINESE * 10)
    true = open_tokenizer(file)(CHINESE * 10)
    assert estimates.of("m", asked)[0] < 0.7 * true
    while left:
        learned.clear()
        estimates.of("m", asked)
        await asyncio.wait_for(learned.wait(), 10)
    assert estimates.of("m", asked)[0] == pytest.approx(true, rel=0.1)
    assert estimates.of("other", asked)[0] < 0.7 * true
    estimates.close()


@on_a_loop
async def test_what_waits_for_the_thread_is_bounded_and_so_is_what_is_counted() -> None:
    loop = asyncio.get_running_loop()
    go, done = threading.Event(), asyncio.Event()
    counted: list[str] = []
    learned: list[int] = []

    def count(text: str) -> int:
        go.wait(10)
        counted.append(text)
        return 7

    def learn(model: str, prompt: Prompt, tokens: int) -> None:
        learned.append(tokens)
        if len(learned) == 4:
            done.set()

    exact = ExactCounts({"m": count}, loop, learn)
    exact.offer("m", chat("x" * 300_000))
    exact.offer("unknown", chat("x"))
    assert repr(exact) == "<ExactCounts {'m': 0}, 0 waiting>"
    for _ in range(50):
        exact.offer("m", chat("long " * 10_000))
    assert repr(exact) == "<ExactCounts {'m': 4}, 4 waiting>"
    go.set()
    await asyncio.wait_for(done.wait(), 10)
    assert [len(text) for text in counted] == [16_384] * 4
    assert repr(exact) == "<ExactCounts {'m': 4}, 0 waiting>"
    exact.close()


@on_a_loop
async def test_a_tokenizer_that_fails_is_told_of_and_hinders_nothing(caplog: pytest.LogCaptureFixture) -> None:
    done = asyncio.Event()
    fails = True

    def count(text: str) -> int:
        if fails:
            raise RuntimeError("no such merge")
        return 1

    exact = ExactCounts({"m": count}, asyncio.get_running_loop(), lambda *_: done.set())
    exact.offer("m", chat("x"))
    exact._thread.submit(lambda: None).result(10)
    assert "a prompt for m could not be counted" in caplog.text
    fails = False
    exact.offer("m", chat("x"))
    await asyncio.wait_for(done.wait(), 10)
    assert repr(exact).endswith("0 waiting>")
    exact.close()


@on_a_loop
async def test_a_file_that_went_bad_is_left_out(file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "bad.json").write_text("{}")
    loop = asyncio.get_running_loop()
    files = {"bad": tmp_path / "bad.json", "gone": tmp_path / "gone.json"}
    assert ExactCounts.load(files, loop, lambda *_: None) is None
    assert "models.bad.tokenizer:" in caplog.text and "models.gone.tokenizer:" in caplog.text
    exact = ExactCounts.load({**files, "m": file}, loop, lambda *_: None)
    assert repr(exact) == "<ExactCounts {'m': 0}, 0 waiting>"
    exact.close()  # type: ignore[union-attr]


def test_what_people_wrote() -> None:
    parts = [{"type": "text", "text": "b"}, {"type": "image_url", "image_url": {"url": "data:,x"}}]
    messages = [{"role": "system", "content": "a"}, {"role": "user", "content": parts}, {"role": "assistant"}]
    body = msgspec.json.decode(msgspec.json.encode({"messages": messages, "tools": [1]}), type=ChatBody)
    assert text_of(body) == "a\nb\n"
    for prompt, text in (("a", "a"), (["a", "b"], "a\nb"), ([1, 2], ""), ([[1]], ""), ({}, "")):
        raw = msgspec.Raw(msgspec.json.encode(prompt))
        assert text_of(CompletionBody(prompt=raw)) == text
        assert text_of(EmbeddingBody(input=raw)) == text
    assert text_of(ChatBody(messages=msgspec.Raw(b'[{"content": 3}]'))) == ""
