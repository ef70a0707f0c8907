"""The short look at an answer says what the long one does."""

from __future__ import annotations

import json
from typing import Any

import pytest

from forebay.cache import answers
from forebay.cache.answers import About, Answer, Unfit
from forebay.config.cache import Cache
from forebay.gateway import keeping

ABOUT = About(id="0" * 16, created=1.0, ttl=60.0, model="m")


CALL = {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def whole(message: Any = None, finish: Any = "stop", **more: Any) -> bytes:
    choice = {"index": 0, "message": message or {"role": "assistant", "content": "Hi"}, "finish_reason": finish}
    return json.dumps({"id": "x", "object": "chat.completion", "choices": [choice]} | more).encode()


UNARY = {
    "plain": whole(usage={"prompt_tokens": 3}),
    "by length": whole(finish="length"),
    "no calls, said so": whole({"role": "assistant", "content": "Hi", "tool_calls": []}),
    "text": b'{"id":"x","object":"text_completion","choices":[{"index":0,"text":"a","finish_reason":"stop"}]}',
    "tool calls": whole({"role": "assistant", "content": None, "tool_calls": [CALL]}, "tool_calls"),
    "bad arguments": whole({"content": "", "tool_calls": [{"function": {"arguments": "{"}}]}, "tool_calls"),
    "a refusal": whole({"role": "assistant", "content": "I'm sorry, but I can't help with that."}),
    "a refusal, said so": whole({"role": "assistant", "content": "Hi", "refusal": "No."}),
    "empty": whole({"role": "assistant", "content": ""}),
    "no end": whole(finish=None),
    "an error": whole(error={"message": "no"}),
    "an error by its kind": whole(object="error"),
    "no choices": b'{"id":"x","choices":[]}',
    "another shape": b'{"choices":7}',
    "no JSON": b"{",
}


@pytest.mark.parametrize("name", UNARY)
def test_it_says_what_the_long_look_does(name: str) -> None:
    assert keeping.of_unary(UNARY[name], ABOUT) == answers.from_unary(UNARY[name], ABOUT, length=True)


def test_what_is_not_kept() -> None:
    rules = Cache(enabled=True)
    plain, cut, calls = (keeping.of_unary(UNARY[name], ABOUT) for name in ("plain", "by length", "tool calls"))

    def why(found: Answer | Unfit, rules: Cache = rules, *, stores: bool = True, bounded: bool = False) -> str:
        return keeping.unfit(found, rules, stores=stores, bounded=bounded)

    lengthy = Cache(enabled=True, length=True)
    assert [why(plain), why(calls), why(cut, lengthy)] == ["", "", ""]
    assert why(cut) == "length"
    assert why(cut, lengthy, bounded=True) == "length"
    assert why(calls, Cache(enabled=True, tool_calls=False)) == "tool_call"
    assert why(plain, stores=False) == "no-store"
    assert why(plain, Cache()) == "off"
    assert why(plain, Cache(enabled=True, answer_bytes=1_024)) == ("" if plain.size <= 1_024 else "large")  # type: ignore[union-attr]
    assert why(Unfit.EMPTY) == "empty"
