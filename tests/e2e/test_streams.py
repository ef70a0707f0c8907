"""What a streaming client receives is what the engine sent, byte for byte, minus the usage chunk it did not ask for."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from e2e.client import Answer, chat, events, new_id, request
from e2e.conftest import Engines
from e2e.engine import (
    DONE,
    ROLE,
    SSE,
    USAGE,
    USAGE_CHUNK,
    Script,
    Talk,
    chunk,
    delta,
    event,
    head,
    paced,
    stream_head,
    streams,
)
from e2e.gateway import Gateway

USAGE_EVENT = event(USAGE_CHUNK)


def play(gateway: Gateway, engines: Engines, script: Script, model: str = "raw", **fields: Any) -> Answer:
    test = new_id("stream")
    engines.raw.scripts[test] = script
    return gateway.ask(chat(model, stream=True, **fields), x_test=test)


def words(*texts: str, end: str = "\n", finish: str | None = "stop") -> list[bytes]:
    last = len(texts) - 1
    return [event(delta({"content": t}, finish if i == last else None), end) for i, t in enumerate(texts)]


CALL = {"id": "call-1", "type": "function", "index": 0, "function": {"name": "look", "arguments": ""}}


def tool(fields: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
    return event(delta({"tool_calls": [fields], **more}, finish))


ARGUMENTS = {"index": 0, "function": {"arguments": '{"place": "Ås"}'}}
SHAPES: dict[str, list[bytes]] = {
    "words": [ROLE, *words("Hel", "lo")],
    "no role": words("Hel", "lo"),
    "finish in an event of its own": [ROLE, *words("Hi", finish=None), event(delta({}, "stop"))],
    "two roles": [ROLE, ROLE, *words("Hi")],
    "beyond ASCII": [ROLE, *words("日本", "🦫", "é\u2028")],
    "escapes": [event('{"choices":[{"index":0,"delta":{"content":"\\u0041\\"usage\\" [DONE] \\"error\\""}}]}')],
    "reasoning": [ROLE, event(delta({"reasoning_content": "Hm"})), event(delta({"reasoning": "Hm"})), *words("Hi")],
    "refusal": [ROLE, event(delta({"refusal": "No"})), event(delta({}, "stop"))],
    "audio": [ROLE, event(delta({"audio": {"id": "a", "data": "AAAA"}})), event(delta({}, "stop"))],
    "a whole call in one delta": [ROLE, tool({**CALL, "function": {"name": "look", "arguments": "{}"}}, "tool_calls")],
    "a call in pieces": [ROLE, tool(CALL), tool(ARGUMENTS), tool(ARGUMENTS), event(delta({}, "tool_calls"))],
    "arguments without an id": [ROLE, tool({"index": 0, "function": {"name": "look"}}), tool(ARGUMENTS, "tool_calls")],
    "empty arguments": [ROLE, tool(CALL), tool({"index": 0, "function": {"arguments": ""}}, "tool_calls")],
    "content and finish together": [ROLE, tool(CALL), tool(ARGUMENTS, "tool_calls", content="Done.")],
    "content beside a call": [ROLE, tool(CALL, content="Look:"), tool(ARGUMENTS, "tool_calls")],
    "function_call": [ROLE, event(delta({"function_call": {"name": "f", "arguments": ""}})), event(delta({}, "stop"))],
    "two choices": [
        event({"choices": [{"index": i, "delta": {"role": "assistant"}} for i in (0, 1)]}),
        event({"choices": [{"index": 1, "delta": {"content": "a"}}]}),
        event({"choices": [{"index": 0, "delta": {"content": "b"}, "finish_reason": "length"}]}),
        event({"choices": [{"index": 1, "delta": {}, "finish_reason": "stop"}]}),
    ],
    "no choices first": [event({"id": "x", "choices": [], "prompt_filter_results": []}), ROLE, *words("Hi")],
    "comments": [b": ping\n\n", ROLE, b": ping\n\n", *words("Hi", "there"), b":\n\n"],
    "other fields": [b"event: chunk\nid: 7\nretry: 10\n" + ROLE, b"event: x\n" + words("Hi")[0]],
    "data in two lines": [
        ROLE,
        b'data: {"choices": [{"index": 0,\ndata: "delta": {"content": "Hi"}}]}\n\n',
        *words("a"),
    ],
    "no space after the colon": [ROLE.replace(b"data: ", b"data:"), words("Hi")[0].replace(b"data: ", b"data:")],
    "spaces in JSON": [event('{ "choices" : [ { "index" : 0 , "delta" : { "content" : "Hi" } } ] }'), *words("a")],
    "not JSON": [ROLE, *words("Hi", finish=None), event("{oops"), *words("there")],
    "not JSON first": [event("hello"), *words("there")],
    "blank lines": [b"\n\n\n", ROLE, b"\n", *words("Hi"), b"\n\n"],
    "a byte order mark": [b"\xef\xbb\xbf" + ROLE, *words("Hi")],
    "null usage": [
        event(delta({"role": "assistant"}, usage=None)),
        event(delta({"content": "Hi"}, "stop", usage=None)),
    ],
}


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("asked", [False, True], ids=["hidden", "asked"])
def test_the_same_bytes(gateway: Gateway, engines: Engines, name: str, asked: bool) -> None:
    sent = SHAPES[name]
    fields = {"stream_options": {"include_usage": True}} if asked else {}
    answer = play(gateway, engines, streams(*sent, USAGE_EVENT, DONE), **fields)
    assert (answer.status, answer.get("content-type"), answer.whole) == (200, SSE, True)
    assert answer.body == b"".join([*sent, USAGE_EVENT if asked else b"", DONE])


def pieces(data: bytes, size: int) -> Iterator[bytes]:
    return (data[i : i + size] for i in range(0, len(data), size))


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"], ids=["LF", "CRLF", "CR"])
@pytest.mark.parametrize("size", [1, 2, 7, 1 << 20])
@pytest.mark.parametrize("asked", [False, True], ids=["hidden", "asked"])
def test_cut_up_anywhere(gateway: Gateway, engines: Engines, end: str, size: int, asked: bool) -> None:
    """In writes of so many bytes, whatever their line ends, also within characters."""
    shown = [event(delta({"role": "assistant"}), end), *words("Hel", "lo 🦫é", end=end)]
    hidden, done = event(USAGE_CHUNK, end), event("[DONE]", end)
    data = b"".join([*shown, hidden, done])

    def script(talk: Talk) -> None:
        talk.send(stream_head(), *(chunk(p) for p in pieces(data, size)), b"0\r\n\r\n")

    fields = {"stream_options": {"include_usage": True}} if asked else {}
    answer = play(gateway, engines, script, **fields)
    assert answer.whole
    assert answer.body == (data if asked else b"".join([*shown, done]))


@pytest.mark.parametrize("how", ["length", "close", "chunked in one"])
def test_framings(gateway: Gateway, engines: Engines, how: str) -> None:
    data = b"".join([ROLE, *words("Hel", "lo"), DONE])

    def script(talk: Talk) -> None:
        if how == "length":
            talk.send(head(200, f"content-length: {len(data)}", kind=SSE), data)
        elif how == "close":
            talk.send(head(200, "connection: close", kind=SSE), data)
            talk.close()
        else:
            talk.send(stream_head(), chunk(data), b"0\r\n\r\n")

    answer = play(gateway, engines, script)
    assert (answer.status, answer.body, answer.whole) == (200, data, True)
    assert (answer.get("transfer-encoding"), answer.get("content-length")) == ("chunked", None)


LIKE = [event(delta({"content": t})) for t in ("Hel", "lo", " wor", "ld", "\u00e9", "x" * 300)]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 11, 50, 177, 400, 1 << 20])
@pytest.mark.parametrize("form", ["%x\r\n", "%X;a=b\r\n", "0%x\r\n"], ids=["plain", "extension", "zeros"])
def test_chunks_cut_up_anywhere(gateway: Gateway, engines: Engines, size: int, form: str) -> None:
    """The engine's chunk framing comes in writes of so many bytes, and one event is like the other."""
    told = [ROLE, *LIKE, *LIKE, LIKE[0] + LIKE[1], LIKE[2][:30], LIKE[2][30:], *words("!"), USAGE_EVENT, DONE]
    data = b"".join((form % len(c)).encode() + c + b"\r\n" for c in told) + b"0\r\n\r\n"

    def script(talk: Talk) -> None:
        talk.send(stream_head())
        for piece in pieces(data, size):
            talk.send(piece)
            if size > 10:
                time.sleep(0.0005)  # so that they are reads of their own

    answer = play(gateway, engines, script)
    assert (answer.body, answer.whole) == (b"".join(told).replace(USAGE_EVENT, b""), True)


def test_events_alike_one_by_one(gateway: Gateway, engines: Engines) -> None:
    """Each a chunk, each a read of its own; the last ones are not alike."""
    told = [ROLE, *LIKE * 5, *words("!"), USAGE_EVENT, DONE]

    test = new_id("alike")
    engines.raw.scripts[test] = paced(*told)
    shown = b"".join(told).replace(USAGE_EVENT, b"")
    answer = gateway.ask(chat(stream=True), x_test=test, x_request_id=test)
    assert (answer.body, answer.whole) == (shown, True)
    assert gateway.logged(test)["bytes_out"] > len(shown)
    with gateway.client() as client:
        client.send(request(chat(stream=True), version="1.0", x_test=test))
        old = client.read()
        assert (old.body, old.get("transfer-encoding")) == (shown, None)


@pytest.mark.parametrize("before", [0, 1, 2, 5])
def test_usage_between_words_in_one_chunk(gateway: Gateway, engines: Engines, before: int) -> None:
    many = LIKE[:before]
    answer = play(gateway, engines, paced(ROLE, *many, LIKE[0], USAGE_EVENT + LIKE[0], *words("!"), DONE))
    assert answer.body == b"".join([ROLE, *many, LIKE[0], LIKE[0], *words("!"), DONE])


@pytest.mark.parametrize("before", [0, 1, 2, 5])
def test_words_behind_done_in_one_chunk(gateway: Gateway, engines: Engines, before: int) -> None:
    many = LIKE[:before]
    answer = play(gateway, engines, paced(ROLE, *many, LIKE[0], DONE + LIKE[0], LIKE[0]))
    assert answer.body == b"".join([ROLE, *many, LIKE[0], DONE])


def test_done_ends_the_stream(gateway: Gateway, engines: Engines) -> None:
    answer = play(gateway, engines, streams(ROLE, *words("Hi"), DONE, *words("more"), DONE))
    assert events(answer.body)[-1] == b"[DONE]"
    assert answer.body.count(b"[DONE]") == 1
    assert b"more" not in answer.body


def test_each_event_comes_at_once(gateway: Gateway, engines: Engines) -> None:
    """Content is passed on while the engine is silent; only role events wait for it."""
    go = [threading.Event() for _ in range(3)]

    def script(talk: Talk) -> None:
        talk.send(stream_head(), chunk(ROLE))
        for step, word in zip(go, words("a", "b", "c"), strict=True):
            assert step.wait(20)
            talk.send(chunk(word))
        talk.send(chunk(DONE), b"0\r\n\r\n")

    test = new_id("stream")
    engines.raw.scripts[test] = script
    with gateway.client() as client:
        client.send(request(chat(stream=True), x_test=test))
        engines.raw.wait_for(test)
        client.sock.settimeout(0.15)
        with pytest.raises(TimeoutError):
            client.head()
        client.sock.settimeout(10)
        go[0].set()
        answer = client.head()
        got = client.chunks()
        assert next(got) == ROLE
        for i, word in enumerate(words("a", "b", "c")):
            go[i].set()
            assert next(got) == word
        assert b"".join(got) == DONE
        assert answer.status == 200


# --- usage -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "sent", "hidden"),
    [
        (..., {"include_usage": True}, True),
        (None, {"include_usage": True}, True),
        ({}, {"include_usage": True}, True),
        ({"include_usage": False}, {"include_usage": True}, True),
        ({"other": [1]}, {"other": [1], "include_usage": True}, True),
        ({"include_usage": True}, {"include_usage": True}, False),
        ({"include_usage": True, "other": 1}, {"include_usage": True, "other": 1}, False),
        ({"continuous_usage_stats": True}, {"continuous_usage_stats": True}, False),
        (
            {"include_usage": True, "continuous_usage_stats": True},
            {"include_usage": True, "continuous_usage_stats": True},
            False,
        ),
        (
            {"include_usage": False, "continuous_usage_stats": False},
            {"include_usage": True, "continuous_usage_stats": False},
            True,
        ),
    ],
)
def test_usage_is_asked_for_and_hidden(
    gateway: Gateway, engines: Engines, options: Any, sent: Any, hidden: bool
) -> None:
    fields = {} if options is ... else {"stream_options": options}
    test = new_id("usage")
    engines.raw.scripts[test] = streams(ROLE, *words("Hi"), USAGE_EVENT, DONE)
    answer = gateway.ask(chat(stream=True, **fields), x_test=test, x_request_id=test)
    assert engines.raw.one(test).json == {**chat(stream=True), "stream_options": sent}
    assert (USAGE_EVENT in answer.body) is not hidden
    record = gateway.logged(test)
    assert (record["tokens_in"], record["tokens_out"]) == (7, 3)


def test_unary_is_not_asked_for_usage(gateway: Gateway, engines: Engines) -> None:
    test = new_id("usage")
    gateway.ask(chat(), x_test=test)
    assert engines.raw.one(test).json == chat()


def test_usage_in_every_chunk(gateway: Gateway, engines: Engines) -> None:
    """continuous_usage_stats: nothing is hidden, and the last one counts."""
    sent = [
        event(delta({"content": str(i)}, usage={"prompt_tokens": 7, "completion_tokens": i, "total_tokens": 7 + i}))
        for i in range(1, 4)
    ]
    test = new_id("usage")
    engines.raw.scripts[test] = streams(ROLE, *sent, USAGE_EVENT, DONE)
    options = {"include_usage": True, "continuous_usage_stats": True}
    answer = gateway.ask(chat(stream=True, stream_options=options), x_test=test, x_request_id=test)
    assert answer.body == b"".join([ROLE, *sent, USAGE_EVENT, DONE])
    assert gateway.logged(test)["tokens_out"] == 3


def test_usage_beside_choices_is_shown(gateway: Gateway, engines: Engines) -> None:
    """Some engines send usage with the last content: that event is content."""
    last = event(delta({"content": "Hi"}, "stop", usage=USAGE))
    answer = play(gateway, engines, streams(ROLE, last, DONE))
    assert answer.body == ROLE + last + DONE


# --- aliases, defaults ------------------------------------------------------------------------------------------------


def test_alias_of_a_stream(gateway: Gateway, engines: Engines) -> None:
    """Rewritten on the way in, and in every event on the way out."""
    test = new_id("alias")
    sent = [ROLE, *words("Hel", 'model": "raw"', '"model":"raw"'), USAGE_EVENT, DONE]
    engines.raw.scripts[test] = streams(*sent)
    answer = gateway.ask(chat("raw-alias", stream=True, stream_options={"include_usage": True}), x_test=test)
    assert engines.raw.one(test).json["model"] == "raw"
    assert answer.body == b"".join(e.replace(b'"model":"raw"', b'"model":"raw-alias"') for e in sent)


def test_alias_of_an_answer(gateway: Gateway, engines: Engines) -> None:
    test = new_id("alias")
    answer = gateway.ask(chat("raw-alias", temperature=0.1), x_test=test)
    assert engines.raw.one(test).json == chat("raw", temperature=0.1)
    assert answer.json["model"] == "raw-alias"
    assert answer.json["choices"][0]["message"]["content"] == "Hi"


def test_alias_cut_up(gateway: Gateway, engines: Engines) -> None:
    """The name is rewritten also where it comes in two reads."""
    data = b"".join([ROLE, *words("Hel", "lo"), DONE])

    def script(talk: Talk) -> None:
        talk.send(stream_head(), *(chunk(p) for p in pieces(data, 1)), b"0\r\n\r\n")

    answer = play(gateway, engines, script, "raw-alias")
    assert answer.body == data.replace(b'"model":"raw"', b'"model":"raw-alias"')


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ({}, {"temperature": 0.25, "max_tokens": 77, "stop": ["x"]}),
        ({"temperature": 1}, {"temperature": 1, "max_tokens": 77, "stop": ["x"]}),
        ({"max_tokens": 5, "stop": None}, {"temperature": 0.25, "max_tokens": 5, "stop": None}),
        ({"max_completion_tokens": 5}, {"temperature": 0.25, "stop": ["x"], "max_completion_tokens": 5}),
    ],
)
def test_defaults_where_absent(
    gateway: Gateway, engines: Engines, given: dict[str, Any], sent: dict[str, Any], stream: bool
) -> None:
    test = new_id("default")
    body = chat("raw-set", **given, **({"stream": True} if stream else {}))
    assert gateway.ask(body, x_test=test).status == 200
    usage = {"stream_options": {"include_usage": True}} if stream else {}
    assert engines.raw.one(test).json == {**body, **sent, **usage}


def test_no_defaults_elsewhere(gateway: Gateway, engines: Engines) -> None:
    test = new_id("default")
    gateway.ask(chat("raw-below"), x_test=test)
    assert engines.raw.one(test).json == chat("raw-below")


# --- the emulated engine, as the raw one ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault",
    [
        None,
        "slow-bytes=0",
        "gzip",
        "sse-crlf",
        "sse-cr",
        "split-utf8",
        "tool-whole",
        "tool-no-id",
        "tool-empty",
        "tool-finish",
    ],
)
def test_emulated_engine(gateway: Gateway, engines: Engines, fault: str | None) -> None:
    """Asked for usage, the gateway's bytes are those the engine says to anyone; not asked, they lack that chunk."""
    headers = {"x-forebay-fault": fault} if fault is not None else {}
    body = chat("forebay-sim", stream=True, max_tokens=12, stream_options={"include_usage": True})
    if fault is None or not fault.startswith("tool"):
        body["ignore_eos"] = True
    request_id = new_id("sim")
    shown = gateway.ask(body, x_request_id=request_id, headers=headers)
    assert shown.whole
    end = {"sse-crlf": b"\r\n", "sse-cr": b"\r"}.get(fault or "", b"\n") * 2
    assert shown.body.endswith(b"data: [DONE]" + end)
    usage = next(e for e in shown.body.split(end) if b'"choices":[]' in e) + end
    del body["stream_options"]
    hidden = gateway.ask(body, x_request_id=request_id, headers=headers)
    stamp = b'"created":'

    def unstamped(data: bytes) -> list[bytes]:
        return [p[10:] if i else p for i, p in enumerate(data.split(stamp))]

    assert unstamped(hidden.body) == unstamped(shown.body.replace(usage, b""))
