"""Answers come back as they came, in both forms; what is not whole is not kept."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from forebay.cache import answers, packing
from forebay.cache.answers import (
    About,
    Answer,
    Unfit,
    as_events,
    as_json,
    as_stream,
    bytes_of,
    from_stream,
    from_unary,
    in_form,
    text_of,
    turned,
)
from forebay.gateway import keeping
from forebay.ledger.tokens import Tokens
from forebay.wire import sse

ABOUT = About(
    id="0123456789abcdef",
    created=1_700_000_000.0,
    ttl=60.0,
    stale=5.0,
    model="chat",
    version="2",
    partition="acme/chat",
    question="怎么开具发票",
    tags=("faq",),
    sources=("doc:1",),
    tokens=Tokens(3, 1, 0, 0, 5, 2),
    avoided=77,
    price=b"{}",
    seconds=1.5,
)
USAGE = {"prompt_tokens": 4, "completion_tokens": 7, "total_tokens": 11}
CALLS = [
    {"id": "call_1", "type": "function", "function": {"name": "pay", "arguments": '{"to": "发票", "sum": 3}'}},
    {"id": "call_2", "type": "function", "function": {"name": "stop", "arguments": "{}"}},
]


def unary(message: dict[str, Any] | None = None, finish: Any = "stop", **more: Any) -> bytes:
    said = {"role": "assistant", "content": "你好, how are you?"} if message is None else message
    choice = {"index": 0, "message": said, "logprobs": None, "finish_reason": finish}
    return msgspec.json.encode(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 5,
            "model": "chat",
            "system_fingerprint": "fp",
            "choices": [choice],
            "usage": USAGE,
            **more,
        }
    )


def chunk(delta: dict[str, Any] | None, finish: str | None = None, index: int = 0, **more: Any) -> bytes:
    choices = [] if delta is None else [{"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}]
    return msgspec.json.encode(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "created": 5,
            "model": "chat",
            "choices": choices,
            **more,
        }
    )


def stream(*chunks: bytes, done: bool = True) -> bytes:
    return b"".join(b"data: %b\n\n" % c for c in chunks) + (b"data: [DONE]\n\n" if done else b"")


HELLO = (
    chunk({"role": "assistant", "content": ""}),
    chunk({"content": "你"}),
    chunk({"content": "好"}),
    chunk({}, "stop"),
)


def kept(found: Answer | Unfit) -> Answer:
    assert isinstance(found, Answer), found
    return found


def chunks_of(events: list[bytes]) -> list[ChatCompletionChunk]:
    """As the SDK reads them."""
    assert events[-1] == b"data: [DONE]\n\n"
    return [ChatCompletionChunk.model_validate_json(sse.data_of(event) or b"") for event in events[:-1]]


# --- as it came ------------------------------------------------------------------------------------------------------


def test_a_stream_comes_back_byte_for_byte_but_for_its_id() -> None:
    events = stream(*HELLO)
    answer = kept(from_stream(events, ABOUT, usage=msgspec.json.encode(USAGE)))
    assert bytes_of(answer) == events
    again = as_stream(answer, "chatcmpl-2", include_usage=False)
    assert again == events.replace(b"chatcmpl-1", b"chatcmpl-2")
    assert as_stream(answer, "chatcmpl-1", include_usage=False) == events
    *_, usage = chunks_of(as_events(answer, "chatcmpl-2", include_usage=True))
    assert usage.usage is not None
    assert (usage.usage.total_tokens, usage.choices, usage.id, usage.model) == (11, [], "chatcmpl-2", "chat")


def test_an_answer_comes_back_byte_for_byte_but_for_its_id() -> None:
    body = json.dumps(json.loads(unary()), indent=1).encode()
    answer = kept(from_unary(body, ABOUT))
    assert as_json(answer, "chatcmpl-2") == body.replace(b"chatcmpl-1", b"chatcmpl-2")
    assert (answer.finish_reason, answer.calls, answer.chat, answer.streamed) == ("stop", False, True, False)
    assert json.loads(answer.usage) == USAGE


def test_an_id_within_what_is_said_stays() -> None:
    said = 'as in {"id":"chatcmpl-1"}'
    answer = kept(from_unary(unary({"role": "assistant", "content": said}), ABOUT))
    assert ChatCompletion.model_validate_json(as_json(answer, "x")).choices[0].message.content == said


def test_an_answer_without_an_id_gets_none() -> None:
    body = unary({"role": "assistant", "content": None, "tool_calls": [{**CALLS[0], "id": ""}]}, "tool_calls", id="")
    answer = kept(from_unary(body, ABOUT))
    assert as_json(answer, "x") == body


def test_it_is_encoded_and_decoded() -> None:
    answer = kept(from_stream(stream(*HELLO), ABOUT))
    assert answers.decode(answers.encode(answer)) == answer
    for name in About.__struct_fields__:
        assert getattr(answer, name) == getattr(ABOUT, name)


def test_what_another_version_has_kept_is_none() -> None:
    data = answers.encode(kept(from_stream(stream(*HELLO), ABOUT)))
    assert answers.decode(data.replace(b"\xa2a1", b"\xa2a9")) is None
    assert answers.decode(data[:-9]) is None
    assert answers.decode(b"") is None


def test_what_a_later_version_adds_at_the_end_is_passed_over() -> None:
    fields = msgspec.msgpack.decode(answers.encode(kept(from_stream(stream(*HELLO), ABOUT))))
    assert answers.decode(msgspec.msgpack.encode([*fields, "more"])) == answers.decode(msgspec.msgpack.encode(fields))


def test_its_time() -> None:
    answer = kept(from_stream(stream(*HELLO), ABOUT))
    made = ABOUT.created
    assert [(answer.fresh(made + t), answer.usable(made + t)) for t in (0, 59, 60, 64, 65)] == (
        [(True, True), (True, True), (False, True), (False, True), (False, False)]
    )


# --- the other form --------------------------------------------------------------------------------------------------


def test_an_answer_is_given_as_a_stream() -> None:
    message = {
        "role": "assistant",
        "content": "你好, how are you?",
        "reasoning_content": "well, well",
        "annotations": [{"a": 1}],
    }
    answer = kept(from_unary(unary(message), ABOUT))
    chunks = chunks_of(as_events(answer, "chatcmpl-2", include_usage=True))
    assert [c.id for c in chunks] == ["chatcmpl-2"] * len(chunks)
    assert {c.object for c in chunks} == {"chat.completion.chunk"}
    deltas = [c.choices[0].delta for c in chunks[:-1]]
    assert deltas[0].role == "assistant"
    assert "".join(d.content or "" for d in deltas) == message["content"]
    assert "".join(getattr(d, "reasoning_content", None) or "" for d in deltas) == message["reasoning_content"]
    assert len([d for d in deltas if d.content]) > 3, "in pieces"
    assert [c.choices[0].finish_reason for c in chunks[:-1]] == [None] * (len(deltas) - 1) + ["stop"]
    assert chunks[-1].usage is not None
    without = chunks_of(as_events(answer, "chatcmpl-2", include_usage=False))
    assert [c.usage for c in without] == [None] * len(deltas)


def test_a_stream_is_given_as_an_answer() -> None:
    answer = kept(from_stream(stream(*HELLO), ABOUT, usage=msgspec.json.encode(USAGE)))
    whole = ChatCompletion.model_validate_json(as_json(answer, "chatcmpl-2"))
    assert (whole.id, whole.object, whole.created, whole.model) == ("chatcmpl-2", "chat.completion", 5, "chat")
    assert whole.choices[0].message.content == "你好"
    assert whole.choices[0].finish_reason == "stop"
    assert whole.usage is not None
    assert whole.usage.total_tokens == 11


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


@given(TEXT, TEXT, st.booleans(), st.lists(TEXT, max_size=2))
def test_turned_twice_it_says_the_same(content: str, reasoning: str, calls: bool, more: list[str]) -> None:
    message: dict[str, Any] = {"role": "assistant", "content": content or ("" if not calls else None)}
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = CALLS
    body = unary(message, "tool_calls" if calls else "stop")
    whole = json.loads(body)
    whole["choices"] += [
        {
            **whole["choices"][0],
            "index": i,
            "message": {"role": "assistant", "content": text or "x"},
            "finish_reason": "stop",
        }
        for i, text in enumerate(more, 1)
    ]
    found = from_unary(msgspec.json.encode(whole), ABOUT)
    if not content and not calls:
        assert found is Unfit.EMPTY
        return
    answer = kept(found)
    events = turned(answer, streamed=True)
    assert json.loads(bytes_of(turned(events, streamed=False))) == whole
    again = kept(from_stream(bytes_of(events), ABOUT, usage=answer.usage))
    assert (again.body, again.calls, again.finish_reason) == (events.body, answer.calls, answer.finish_reason)
    assert text_of(again) == text_of(answer)


def test_a_long_answer_is_cut_into_few_pieces() -> None:
    text = "word " * 20_000
    events = as_events(kept(from_unary(unary({"content": text}), ABOUT)), "x", include_usage=False)
    assert len(events) < 600
    assert "".join(c.choices[0].delta.content or "" for c in chunks_of(events)) == text


def test_completions_come_back_in_both_forms() -> None:
    body = msgspec.json.encode(
        {
            "id": "cmpl-1",
            "object": "text_completion",
            "created": 5,
            "model": "m",
            "choices": [{"index": 0, "text": "upon a time", "logprobs": None, "finish_reason": "stop"}],
            "usage": USAGE,
        }
    )
    answer = kept(from_unary(body, ABOUT))
    assert not answer.chat
    events = as_events(answer, "cmpl-2", include_usage=False)
    read = [json.loads(sse.data_of(event) or b"")["choices"][0] for event in events[:-1]]
    assert "".join(choice["text"] for choice in read) == "upon a time"
    assert [choice["finish_reason"] for choice in read] == [None] * (len(read) - 1) + ["stop"]
    again = kept(from_stream(b"".join(events), ABOUT, usage=answer.usage))
    assert not again.chat
    assert Completion.model_validate_json(as_json(again, "cmpl-3")).choices[0].text == "upon a time"
    assert text_of(again) == text_of(answer) == "upon a time"


# --- what engines do -------------------------------------------------------------------------------------------------


def test_usage_within_events_is_kept_beside_them() -> None:
    """Of clients that ask for it, of vLLM's continuous_usage_stats, of engines that say it with the last words."""
    plain = stream(chunk({"content": "hi"}), chunk({}, "stop"))
    for events in (
        stream(chunk({"content": "hi"}, usage=None), chunk({}, "stop", usage=None), chunk(None, usage=USAGE)),
        stream(chunk({"content": "hi"}, usage={"prompt_tokens": 1}), chunk({}, "stop", usage=USAGE)),
    ):
        answer = kept(from_stream(events, ABOUT))
        assert json.loads(answer.usage) == USAGE
        assert as_stream(answer, "chatcmpl-1", include_usage=False).replace(b',"usage":null', b"") == plain
        assert as_stream(answer, "chatcmpl-1", include_usage=True).count(b'"usage":{') == 1


def test_other_framings_become_the_common_one() -> None:
    first, *others = HELLO
    odd = (
        b": ping\r\n\r\nevent: message\r\ndata: " + first.replace(b",", b",\r\ndata: ") + b"\r\n\r\n" + stream(*others)
    )
    answer = kept(from_stream(odd, ABOUT))
    assert chunks_of(as_events(answer, "chatcmpl-1", include_usage=False)) == chunks_of(sse.split(stream(*HELLO)))
    assert b"\r" not in answer.body


def test_tool_calls_and_reasoning_stay_intact() -> None:
    events = stream(
        chunk({"role": "assistant", "reasoning_content": "hm"}),
        chunk(
            {
                "tool_calls": [
                    {"index": 0, "id": "call_1", "type": "function", "function": {"name": "pay", "arguments": ""}}
                ]
            }
        ),
        chunk({"tool_calls": [{"index": 0, "function": {"arguments": '{"a":'}}]}),
        chunk({"tool_calls": [{"index": 0, "function": {"arguments": "1}"}}]}),
        chunk({}, "tool_calls"),
    )
    answer = kept(from_stream(events, ABOUT))
    assert answer.calls
    assert bytes_of(answer) == events
    message = ChatCompletion.model_validate_json(as_json(answer, "x")).choices[0].message
    assert message.tool_calls is not None
    call = message.tool_calls[0]
    assert call.type == "function"
    assert (call.id, call.function.name, call.function.arguments) == ("call_1", "pay", '{"a":1}')
    assert getattr(message, "reasoning_content", None) == "hm"
    assert text_of(answer) == 'pay({"a":1})'


TALK = {"role": "assistant", "content": "x"}


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", Unfit.UNREADABLE),
        (b"<html>", Unfit.UNREADABLE),
        (b"[]", Unfit.UNREADABLE),
        (b"{}", Unfit.EMPTY),
        (unary(error={"message": "no"}), Unfit.ERROR),
        (unary(object="error"), Unfit.ERROR),
        (unary(TALK, None), Unfit.CUT),
        (unary(TALK, "abort"), Unfit.CUT),
        (unary(TALK, 7), Unfit.CUT),
        (unary(TALK, []), Unfit.CUT),
        (unary(TALK, {"a": 1}), Unfit.CUT),
        (unary(TALK | {"tool_calls": 7}), Unfit.TOOL_CALL),
        (unary(TALK | {"tool_calls": True}), Unfit.TOOL_CALL),
        (unary(TALK | {"tool_calls": {"a": 1}}), Unfit.TOOL_CALL),
        (unary(TALK, "length"), Unfit.LENGTH),
        (unary(TALK, "content_filter"), Unfit.FILTERED),
        (unary({"role": "assistant", "content": ""}), Unfit.EMPTY),
        (unary({"role": "assistant", "content": None, "reasoning_content": "hm"}), Unfit.EMPTY),
        (unary({"role": "assistant", "content": "x"}, "tool_calls"), Unfit.TOOL_CALL),
        (
            unary({"content": None, "tool_calls": [{"function": {"name": "f", "arguments": '{"a":'}}]}, "tool_calls"),
            Unfit.TOOL_CALL,
        ),
        (unary({"content": None, "tool_calls": ["f"]}, "tool_calls"), Unfit.TOOL_CALL),
        (unary({"content": None, "function_call": {"name": "f", "arguments": "{"}}, "function_call"), Unfit.TOOL_CALL),
        (unary(choices=["x"]), Unfit.UNREADABLE),
        (unary("x"), Unfit.UNREADABLE),  # type: ignore[arg-type]
        (unary(""), Unfit.EMPTY),  # type: ignore[arg-type]
    ],
)
def test_what_is_not_whole_is_not_kept(body: bytes, why: Unfit) -> None:
    assert from_unary(body, ABOUT) is why


@pytest.mark.parametrize(
    ("events", "why"),
    [
        (b"", Unfit.CUT),
        (stream(*HELLO, done=False), Unfit.CUT),
        (stream(*HELLO[:-1]), Unfit.CUT),
        (stream(*HELLO)[:-1], Unfit.UNREADABLE),
        (stream(*HELLO[:-1], chunk({}, "length")), Unfit.LENGTH),
        (stream(*HELLO[:-1], chunk({}, "content_filter")), Unfit.FILTERED),
        (stream(*HELLO[:-1], chunk({}, "abort")), Unfit.CUT),
        (stream(HELLO[0], HELLO[-1]), Unfit.EMPTY),
        (stream(HELLO[1], b'{"error":{"message":"out of memory"}}'), Unfit.ERROR),
        (stream(HELLO[1], b'{"object":"error","message":"x"}', HELLO[-1]), Unfit.ERROR),
        (stream(b"{", HELLO[-1]), Unfit.UNREADABLE),
        (stream(b"7", HELLO[-1]), Unfit.UNREADABLE),
        (stream(b"{},{}", *HELLO), Unfit.UNREADABLE),
        (stream(chunk({"content": "a"}, index=1), chunk({}, "stop")), Unfit.CUT),
        (stream(HELLO[1], chunk({}, "tool_calls")), Unfit.TOOL_CALL),
        (stream(HELLO[1], chunk({}, [])), Unfit.CUT),
        (stream(HELLO[1], chunk({}, {"a": 1})), Unfit.CUT),
    ],
)
def test_a_stream_that_is_not_whole_is_not_kept(events: bytes, why: Unfit) -> None:
    assert from_stream(events, ABOUT) is why


SORRY = "I'm sorry, but I can't help with that."


@pytest.mark.parametrize(
    "events",
    [
        stream(HELLO[0], *(chunk({"content": f"{word} "}) for word in SORRY.split(" ")), chunk({}, "stop")),
        stream(HELLO[0], chunk({"refusal": "No."}), chunk({}, "stop")),
        stream(HELLO[0], chunk({"content": SORRY}), chunk({"content": "Hi"}, "stop", 1), chunk({}, "stop")),
    ],
)
def test_a_refusal_is_not_kept(events: bytes) -> None:
    assert from_stream(events, ABOUT) is Unfit.REFUSED


def test_one_choice_that_was_cut_makes_all_of_it_cut() -> None:
    two = [
        {"index": i, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": finish}
        for i, finish in enumerate(("stop", "length"))
    ]
    assert from_unary(unary(choices=two), ABOUT) is Unfit.LENGTH
    kept = from_unary(unary(choices=two), ABOUT, length=True)
    assert isinstance(kept, Answer)
    assert kept.finish_reason == "length"


def test_names_and_wide_letters_count_in_its_size() -> None:
    one = from_unary(unary(), ABOUT)
    assert isinstance(one, Answer)
    more = msgspec.structs.replace(one, tags=("t" * 100,) * 16, question="😀" * 100)
    assert more.size - one.size > 16 * 150 + 300


def test_what_is_kept_only_where_it_is_wanted() -> None:
    assert kept(from_unary(unary(TALK, "length"), ABOUT, length=True)).finish_reason == "length"
    assert kept(from_stream(stream(HELLO[1], chunk({}, "length")), ABOUT, length=True)).finish_reason == "length"
    calling = unary({"content": None, "tool_calls": CALLS}, "tool_calls")
    assert from_unary(calling, ABOUT, tool_calls=False) is Unfit.TOOL_CALL
    assert kept(from_unary(calling, ABOUT)).calls


@given(
    st.lists(
        st.sampled_from([*HELLO, chunk({"content": "\n\ndata: "}), b"{}", b"{},{}", b"7", chunk(None, usage=USAGE)]),
        max_size=6,
    ),
    st.booleans(),
)
def test_the_quick_way_agrees_with_the_slow_one(chunks: list[bytes], done: bool) -> None:
    events = stream(*chunks, done=done)
    slow = from_stream(b": slow\n\n" + events, ABOUT)  # a comment is not of the common kind
    assert from_stream(events, ABOUT) == slow


def test_a_stream_takes_little_more_than_its_words() -> None:
    """As engines say it, with thoughts before the words and calls behind them."""
    words = [f'word{n} "q" 好\n' for n in range(300)]
    thoughts = [chunk({"reasoning_content": word}) for word in words]
    calls = [chunk({"tool_calls": [{"index": 0, "function": {"arguments": "1"}}]}) for _ in range(300)]
    events = stream(HELLO[0], *thoughts, *(chunk({"content": word}) for word in words), *calls, chunk({}, "stop"))
    answer = kept(from_stream(events, ABOUT, tool_calls=True))
    assert bytes_of(answer) == events
    assert len(answer.repeated) == 3
    assert len(answer.body) < 0.15 * len(events)
    again = as_stream(answer, "chatcmpl-2", include_usage=False)
    assert again == events.replace(b"chatcmpl-1", b"chatcmpl-2")
    assert bytes_of(turned(turned(answer, streamed=False), streamed=True)) != b""


PIECES = (
    *(b"a", b" the", "你好".encode(), b"x" * 120, b'\\"', b"\\\\", b"\\", b"\\u4f", b"60"),
    *(b"\\ud83d\\ude00", b"\\ud83d", b"\\ude00", b"", b"\n", b"\n\n", b"\0", b"\xff"),
    *(b'"', b'","tool_calls":[{"index":0}],"x":"', b'","reasoning":"b'),
)
"""What an engine may write between the quotes, or should not."""


def framed(event: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(event), event)


def in_chunks(pieces: list[bytes], name: bytes = b"content", size: int = 40) -> list[bytes]:
    """As an engine writes them: `pieces` are what stands between the quotes."""
    whole = chunk({"content": "@@"}, system_fingerprint="f" * size).replace(b'"content"', b'"%b"' % name)
    said = [b"data: %b\n\n" % whole.replace(b"@@", piece) for piece in pieces]
    return [framed(one) for one in (stream(HELLO[0], done=False), *said, stream(HELLO[-1], done=False), stream())]


@given(
    st.lists(st.one_of(st.just(b"a"), st.sampled_from(PIECES)), min_size=8, max_size=30),
    st.sampled_from([b"content", b"reasoning", b"refusal", b"text"]),
    st.integers(0, 100),
    st.lists(st.integers(1, 3), min_size=1, max_size=40),
)
def test_a_stream_in_its_chunks_is_what_it_is_as_a_whole(
    pieces: list[bytes], name: bytes, size: int, together: list[int]
) -> None:
    """Also where some of them were read together."""
    each = in_chunks(pieces, name, size)
    events = b"".join([one[one.index(b"\r\n") + 2 : -2] for one in each])
    chunks: list[bytes] = []
    at = 0
    while at < len(each):
        n = together[len(chunks) % len(together)]
        chunks.append(b"".join(each[at : at + n]))
        at += n
    assert b"".join(map(packing.unframed, chunks)) == events
    slow, quick = from_stream(events, ABOUT), answers.from_chunks(chunks, ABOUT)
    if isinstance(slow, Unfit):
        assert quick is slow
    else:
        assert bytes_of(kept(quick)) == bytes_of(slow)
        assert msgspec.structs.replace(kept(quick), body=b"", repeated=()) == msgspec.structs.replace(
            slow, body=b"", repeated=()
        )


@pytest.mark.parametrize("size", [0, 40, 100])
def test_events_that_differ_in_their_words_alone_are_taken_together(size: int) -> None:
    """Also where the sizes of their chunks have two digits, or three, or some of them two."""
    words = [b"word%d" % n for n in range(300)]
    run = packing.run_of(in_chunks(words, size=size))
    assert run is not None
    assert len(run.body) < 4 * len(b"".join(words))
    assert b"".join(words) in run.same
    assert packing.run_of(in_chunks([*words[:150], b'","x":"', *words[150:]])) is None
    assert packing.run_of(in_chunks([*words[:150], b"\\u4f", b"60", *words[150:]])) is None


@given(st.lists(st.sampled_from([*HELLO * 2, chunk({"content": 'a\\"\n'}), b"data: ", b'"content":"', b"\0", b"\x01"])))
def test_packing_loses_nothing(parts: list[bytes]) -> None:
    for events in (stream(*parts), b"".join(parts), b"\n\n".join(parts)):
        assert packing.unpack(*packing.pack(events)) == events


_INPUT = {"name": "f", "input": "x", "arguments": 5}


@pytest.mark.parametrize(
    "body",
    [
        unary(TALK).replace(b'"index":0', b'"index":"a"'),
        unary(TALK).replace(b'"index":0', b'"index":1.5'),
        unary(TALK).replace(b'"logprobs":null', b'"logprobs":1e400'),
        unary(TALK | {"tool_calls": [{"id": "c", "type": "custom", "custom": _INPUT, "function": _INPUT}]}),
        msgspec.json.encode(
            {"object": "text_completion", "choices": [{"index": 0, "text": ["x"], "finish_reason": "stop"}]}
        ),
    ],
)
def test_what_is_of_an_unknown_shape_is_given_as_it_came_alone(body: bytes) -> None:
    for answer in (from_unary(body, ABOUT), keeping.of_unary(body, ABOUT)):
        if answer is Unfit.UNREADABLE:
            continue
        assert isinstance(answer, Answer)
        assert in_form(answer, streamed=True) is None
        assert bytes_of(answer) == as_json(msgspec.structs.replace(answer, answer_id=""), "new") == body
        assert isinstance(text_of(answer), str)


def test_a_stream_of_an_unknown_shape_is_given_as_it_came_alone() -> None:
    events = stream(*HELLO).replace(b'"logprobs":null', b'"logprobs":"x"')
    assert events != stream(*HELLO)
    answer = from_stream(events, ABOUT)
    assert isinstance(answer, Answer)
    assert in_form(answer, streamed=False) is None
    assert as_stream(msgspec.structs.replace(answer, answer_id=""), "new", False) == events
    assert text_of(answer) == events.decode()


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from([0.5, 1e300, "", "x", "stop", "length"]),
    lambda value: st.lists(value, max_size=2) | st.dictionaries(st.sampled_from(["function", "a"]), value, max_size=2),
    max_leaves=3,
)


def odd(good: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Mostly as it ought to be."""
    return st.integers(0, 5).flatmap(lambda n: ANYTHING if n == 0 else good)


FUNCTION = odd(
    st.fixed_dictionaries(
        {"name": odd(st.just("f"))},
        optional={"arguments": odd(st.sampled_from(["{}", "{"])), "input": odd(st.just("x"))},
    )
)
CALL = odd(
    st.fixed_dictionaries(
        {"index": odd(st.just(0)), "function": FUNCTION}, optional={"id": odd(st.just("c")), "custom": FUNCTION}
    )
)
TOLD = odd(
    st.fixed_dictionaries(
        {"content": odd(st.sampled_from(["Hi", "", None]))},
        optional={
            "role": odd(st.just("assistant")),
            "tool_calls": odd(st.lists(CALL, max_size=2)),
            "function_call": FUNCTION,
            "reasoning": odd(st.just("hm")),
            "refusal": odd(st.none()),
        },
    )
)


def choices(name: str) -> st.SearchStrategy[Any]:
    one = st.fixed_dictionaries(
        {"index": odd(st.just(0)), name: TOLD, "finish_reason": odd(st.sampled_from(["stop", "tool_calls", None]))},
        optional={"text": odd(st.just("Hi")), "logprobs": odd(st.none())},
    )
    return odd(st.lists(odd(one), min_size=1, max_size=2))


def answered(name: str) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries(
        {"id": odd(st.just("1")), "choices": choices(name)},
        optional={
            "object": odd(st.sampled_from(["chat.completion", "text_completion"])),
            "usage": odd(st.just(USAGE)),
            "error": odd(st.none()),
        },
    )


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(answered("message"), st.lists(answered("delta"), min_size=1, max_size=3))
def test_an_engine_may_say_anything_anywhere(whole: Any, said: list[Any]) -> None:
    """It is kept or not, can be given in the other form or not, and what can be compared: nothing raises."""
    body = json.dumps(whole).encode()
    events = stream(*(json.dumps(one).encode() for one in (*said, {"choices": [{"finish_reason": "stop"}]})))
    for found in (from_unary(body, ABOUT), keeping.of_unary(body, ABOUT), from_stream(events, ABOUT)):
        if isinstance(found, Answer):
            other = in_form(found, streamed=not found.streamed)
            assert other is None or isinstance(text_of(other), str)
            assert isinstance(text_of(found), str)
            assert answers.decode(answers.encode(found)) == found
            assert (as_stream if found.streamed else as_json)(found, "new", *([True] if found.streamed else []))


@given(st.binary(max_size=80))
def test_whatever_comes_is_kept_or_not(data: bytes) -> None:
    assert isinstance(from_stream(data, ABOUT), Unfit)
    assert isinstance(from_unary(data, ABOUT), Unfit)
    assert isinstance(from_stream(b"data: " + data + b"\n\ndata: [DONE]\n\n", ABOUT), Unfit)
