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
USAGE = b'{"prompt_tokens":3}'
DONE = b"data: [DONE]\n\n"


def event(*choices: Any, **more: Any) -> bytes:
    body = {"id": "x", "object": "chat.completion.chunk", "model": "m", "choices": choices, **more}
    return b"data: " + json.dumps(body, ensure_ascii=False).encode() + b"\n\n"


def says(finish: str | None = None, index: int = 0, **delta: Any) -> dict[str, Any]:
    return {"index": index, "delta": delta, "finish_reason": finish}


CALL = {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
ROLE, WORD, LAST = event(says(role="assistant", content="")), event(says(content="Hi")), event(says("stop"))
STREAMS: dict[str, tuple[list[bytes], bool]] = {
    "plain": ([ROLE, WORD, WORD, LAST, DONE], True),
    "last word with its end": ([ROLE, event(says("stop", content="你好")), DONE], True),
    "by length": ([WORD, event(says("length")), DONE], True),
    "text": ([event({"index": 0, "text": "a", "finish_reason": "stop"}, object="text_completion"), DONE], True),
    "words that look like an end": ([event(says(content='"finish_reason":"stop" [DONE]')), LAST, DONE], True),
    "no usage, said so": ([WORD, event(says("stop"), usage=None), DONE], True),
    "no calls, said so": ([event(says(content="Hi", tool_calls=[])), LAST, DONE], True),
    "usage": ([WORD, LAST, event(usage={"prompt_tokens": 9}), DONE], False),
    "tool calls": ([event(says(tool_calls=[CALL])), event(says("tool_calls")), DONE], False),
    "two choices": ([WORD, event(says(index=1, content="b")), LAST, event(says("stop", 1)), DONE], False),
    "comments": ([b": ping\n\n", WORD, LAST, DONE], False),
    "CR LF": ([part.replace(b"\n", b"\r\n") for part in (WORD, LAST, DONE)], False),
    "filtered": ([WORD, event(says("content_filter")), DONE], False),
    "empty": ([ROLE, LAST, DONE], False),
    "no end": ([WORD, DONE], False),
    "no [DONE]": ([WORD, LAST], False),
    "an error": ([WORD, event(error={"message": "no"}), LAST, DONE], False),
    "no JSON": ([WORD, b"data: {oh\n\n", LAST, DONE], False),
    "two in one line": ([WORD, b"data: {},{}\n\n", LAST, DONE], False),
    "nothing": ([], False),
    "only [DONE]": ([DONE], False),
}


@pytest.mark.parametrize("name", STREAMS)
def test_streams(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pieces, short = STREAMS[name]
    long = answers.from_stream(b"".join(pieces), ABOUT, usage=USAGE, length=True)
    looked = []
    folds = answers.from_stream
    monkeypatch.setattr(answers, "from_stream", lambda *a, **k: looked.append(1) or folds(*a, **k))
    assert keeping.of_stream(b"".join(pieces), ABOUT, USAGE) == long
    assert looked == ([] if short else [1])


def whole(message: Any = None, finish: Any = "stop", **more: Any) -> bytes:
    choice = {"index": 0, "message": message or {"role": "assistant", "content": "Hi"}, "finish_reason": finish}
    return json.dumps({"id": "x", "object": "chat.completion", "choices": [choice], **more}).encode()


UNARY = {
    "plain": whole(usage={"prompt_tokens": 3}),
    "by length": whole(finish="length"),
    "no calls, said so": whole({"role": "assistant", "content": "Hi", "tool_calls": []}),
    "text": b'{"id":"x","object":"text_completion","choices":[{"index":0,"text":"a","finish_reason":"stop"}]}',
    "tool calls": whole({"role": "assistant", "content": None, "tool_calls": [CALL]}, "tool_calls"),
    "bad arguments": whole({"content": "", "tool_calls": [{"function": {"arguments": "{"}}]}, "tool_calls"),
    "empty": whole({"role": "assistant", "content": ""}),
    "no end": whole(finish=None),
    "an error": whole(error={"message": "no"}),
    "no choices": b'{"id":"x","choices":[]}',
    "another shape": b'{"choices":7}',
    "no JSON": b"{",
}


@pytest.mark.parametrize("name", UNARY)
def test_whole_answers(name: str) -> None:
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
