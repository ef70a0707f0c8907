"""wire/sse.py against the grammar, written out a second time here: byte by byte, without regard for speed."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.pure import pure

from forebay.wire import sse
from forebay.wire.sse import Event, EventTooLarge, Framer, count, data_of, parse, split

BOM = b"\xef\xbb\xbf"


# --- the grammar a second time ---------------------------------------------------------------------------------------


def lines_of(stream: bytes) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """(line, its end) of each finished line, and the unfinished rest."""
    lines = []
    line = b""
    i = 0
    while i < len(stream):
        byte = stream[i : i + 1]
        if byte == b"\n":
            lines.append((line, b"\n"))
            line = b""
        elif byte == b"\r":
            end = b"\r"
            if stream[i + 1 : i + 2] == b"\n":
                end = b"\r\n"
                i += 1
            lines.append((line, end))
            line = b""
        else:
            line += byte
        i += 1
    return lines, line


@dataclass
class Reference:
    """What a client makes of a whole stream."""

    raw: list[bytes] = field(default_factory=list)  # every event, its blank line with it
    sizes: list[int] = field(default_factory=list)  # of each, its blank line not counted; last, the tail
    dispatched: list[Event] = field(default_factory=list)
    tail: bytes = b""


def interpret(stream: bytes) -> Reference:
    ref = Reference()
    raw = b""
    data = ""
    kind = ""
    ident: str | None = None
    retry: int | None = None
    lines, rest = lines_of(stream)
    for number, (line, end) in enumerate(lines):
        content = line
        if number == 0 and content[:3] == BOM:
            content = content[3:]
        if content == b"":
            ref.sizes.append(len(raw) + len(line))
            ref.raw.append(raw + line + end)
            raw = b""
            if data != "":
                assert data[-1] == "\n"
                payload = data[:-1].encode("utf-8", "surrogateescape")
                ref.dispatched.append(Event(payload, kind if kind != "" else "message", ident, retry))
            data, kind, ident, retry = "", "", None, None
            continue
        raw += line + end
        if content[0:1] == b":":
            continue
        colon = content.find(b":")
        if colon == -1:
            name, value = content, b""
        else:
            name, value = content[:colon], content[colon + 1 :]
            if value[0:1] == b" ":
                value = value[1:]
        if name == b"data":
            data += value.decode("utf-8", "surrogateescape") + "\n"
        elif name == b"event":
            kind = value.decode("utf-8", "replace")
        elif name == b"id":
            if 0 not in value:
                ident = value.decode("utf-8", "replace")
        elif name == b"retry" and value != b"" and all(c in b"0123456789" for c in value):
            retry = int(value)
    ref.tail = raw + rest
    ref.sizes.append(len(ref.tail))
    return ref


# --- what to feed ----------------------------------------------------------------------------------------------------

PIECES = [
    b"\n", b"\r", b"\r\n", b"\n\n", b"\r\n\r\n", b"\r\r", b"data: ", b"data:", b"data", b"\ndata:", b"\n\ndata:",
    b":", b": ping", b" ", b"x", b"id: 7", b"id", b"id: \0", b"event: error", b"event:", b"retry: 10", b"retry: 1x",
    b"retry:", b'{"a":1}', "é€😀".encode(), b"\xe2\x82", b"\xff", b"\0", b"[DONE]", b"unknown: y",
]  # fmt: skip
streams = st.builds(
    lambda bom, pieces: bom + b"".join(pieces),
    st.sampled_from([b"", b"", BOM, BOM[:2]]),
    st.lists(st.one_of(st.sampled_from(PIECES), st.sampled_from(PIECES[:6])), max_size=40),
)
cuts = st.lists(st.integers(0, 120), max_size=30)


def cut_up(stream: bytes, where: list[int]) -> list[bytes]:
    edges = [0, *sorted(min(i, len(stream)) for i in where), len(stream)]
    return [stream[a:b] for a, b in pairwise(edges)]


def feed_all(chunks: list[bytes], framer: Framer) -> list[bytes]:
    return [framer.feed(chunk) for chunk in chunks]


def events_of(outputs: list[bytes]) -> list[Event]:
    return [parsed for out in outputs for raw in split(out) if (parsed := parse(raw)).data is not None]


# --- framing ---------------------------------------------------------------------------------------------------------


@given(streams | st.binary(max_size=60), cuts)
@example(b"data: a\r\r\ndata: b\r\r", [9])
@example(b"data: a\r\n\r\n\r\n", [10, 11])
@example(BOM + b"\ndata: a\n\n", [1, 2, 3])
@example(BOM + b"\n", [1])
@example(BOM + b"\n", [3])
@example(b"\xef\n", [1])
@example(b"data: a\n\n" + BOM + b"\n", [9])  # a mark that does not open the stream is text
def test_after_each_feed_what_is_out_is_whole_and_what_is_in_is_not(stream: bytes, where: list[int]) -> None:
    framer = Framer()
    fed = out = b""
    for chunk in cut_up(stream, where):
        out += framer.feed(chunk)
        fed += chunk
        assert out + framer.tail == fed
        assert framer.tail == interpret(fed).tail
        assert interpret(out).tail == b""


@given(streams, cuts)
@example(b"data: a\r\n\r\ndata: b\r\n\r\n", [10])
@example(BOM + b"data: a\n\ndata: b\n\n", [2])
def test_the_events_are_the_same_however_the_stream_is_cut(stream: bytes, where: list[int]) -> None:
    outputs = feed_all(cut_up(stream, where), Framer())
    assert events_of(outputs) == interpret(stream).dispatched
    assert sum(map(count, outputs)) == len(interpret(stream).dispatched)


@given(streams, cuts, st.integers(1, 40))
@example(b"data: a\r\n\r\nx", [10], 7)
@example(b"data: a\r\n\r\n" + b"x" * 9, [10], 9)
@example(b"12\n\n123\n\n", [], 3)
@example(b"1234\n\n", [5], 4)
def test_the_bound_holds_for_each_event_however_the_stream_is_cut(stream: bytes, where: list[int], bound: int) -> None:
    framer = Framer(max_event=bound)
    # The line end before the blank line is the event's; the tail's last line end may yet turn out to be one.
    if max(interpret(stream).sizes) > bound:
        with pytest.raises(EventTooLarge) as e:
            feed_all(cut_up(stream, where), framer)
        assert e.value.limit == bound
        with pytest.raises(EventTooLarge):
            framer.feed(b"\n\n")
    else:
        out = b"".join(feed_all(cut_up(stream, where), framer))
        assert out + framer.tail == stream


def test_whole_events_come_back_as_the_same_object() -> None:
    data = b'data: {"a":1}\n\ndata: [DONE]\n\n'
    framer = Framer()
    assert framer.feed(data) is data
    assert framer.feed(data) is data


def test_a_cr_that_ends_the_bytes_ends_the_event_and_its_lf_opens_no_line() -> None:
    framer = Framer()
    assert framer.feed(b"data: a\r\n\r") == b"data: a\r\n\r"
    assert framer.tail == b""
    assert framer.feed(b"\n") == b"\n"
    assert framer.tail == b""
    assert framer.feed(b"data: b\r\n") == b""
    assert framer.feed(b"\r\n") == b"data: b\r\n\r\n"


def test_the_late_lf_goes_out_ahead_of_an_unfinished_event() -> None:
    framer = Framer()
    framer.feed(b"data: a\r\r")
    assert framer.feed(b"\ndata: b\r") == b"\n"
    assert framer.tail == b"data: b\r"
    assert framer.feed(b"\n") == b""  # the other half of the CRLF, no blank line
    assert framer.feed(b"\n") == b"data: b\r\n\n"


def test_the_tail_shows_a_stream_cut_in_the_middle() -> None:
    framer = Framer()
    assert framer.feed(b"data: whole\n\ndata: {") == b"data: whole\n\n"
    assert framer.tail == b"data: {"
    assert repr(framer) == "<Framer 7 bytes carried>"
    framer.feed(b"}\n\n")
    assert framer.tail == b""
    assert repr(framer) == "<Framer 0 bytes carried>"


def test_no_bytes_change_nothing() -> None:
    framer = Framer()
    assert framer.feed(b"") == b""
    framer.feed(b"data: a\n")
    assert framer.feed(b"") == b""
    assert framer.feed(b"\n") == b"data: a\n\n"


def test_the_bound_must_be_positive() -> None:
    with pytest.raises(ValueError, match="max_event must be at least 1 byte, not 0"):
        Framer(max_event=0)


def test_the_bound_names_itself() -> None:
    with pytest.raises(EventTooLarge, match=r"over the limit of 1,048,576 bytes"):
        Framer().feed(b"data: " + b"x" * sse.MAX_EVENT)


class Counting(bytearray):
    """A bytearray that counts the bytes its operations read or write."""

    touched = 0

    def __iadd__(self, other: object) -> Counting:
        assert isinstance(other, bytes)
        Counting.touched += len(other)
        self.extend(other)
        return self

    def __bytes__(self) -> bytes:
        Counting.touched += len(self)
        return bytes(memoryview(self))


def _whole(name: str) -> object:
    def method(self: Counting, *args: object) -> object:
        Counting.touched += len(self)
        return getattr(bytearray, name)(self, *args)

    return method


for _name in ("__add__", "__contains__", "__getitem__", "__delitem__", "find", "rfind", "index", "count", "copy"):
    setattr(Counting, _name, _whole(_name))


def test_a_byte_at_a_time_costs_no_more_than_a_bounded_number_of_looks_at_each(monkeypatch: pytest.MonkeyPatch) -> None:
    module = pure("forebay.wire.sse")
    monkeypatch.setattr(module, "bytearray", Counting, raising=False)
    monkeypatch.setattr(Counting, "touched", 0)
    event = b"data: " + b"x" * 400_000 + b"\n\n"
    framer = module.Framer()
    out = b""
    for i in range(len(event)):
        out += framer.feed(event[i : i + 1])
    assert out == event
    # At least once, or the framer keeps its bytes where this test does not see them.
    assert len(event) <= Counting.touched <= 4 * len(event)


def test_two_megabytes_a_byte_at_a_time() -> None:
    event = b"data: " + b"x" * (2 << 20) + b"\n\n"
    framer = Framer(max_event=4 << 20)
    feed = framer.feed
    assert not any(feed(event[i : i + 1]) for i in range(len(event) - 1))
    assert feed(b"\n") == event


# --- recorded streams ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"], ids=["LF", "CRLF", "CR"])
@pytest.mark.parametrize(("name", "events"), [("vllm_chat.sse", 9), ("vllm_completion.sse", 6)])
def test_a_recorded_stream_split_at_every_byte(data_dir: Path, name: str, events: int, end: bytes) -> None:
    recorded = (data_dir / "sse" / name).read_bytes()
    payloads = [line[6:] for line in recorded.split(b"\n") if line.startswith(b"data: ")]
    assert payloads[-1] == b"[DONE]"
    assert all(isinstance(json.loads(p), dict) for p in payloads[:-1])
    stream = recorded.replace(b"\n", end)
    for i in range(len(stream) + 1):
        framer = Framer()
        outputs = [framer.feed(stream[:i]), framer.feed(stream[i:])]
        assert b"".join(outputs) == stream
        assert [e.data for e in events_of(outputs)] == payloads
        assert sum(map(count, outputs)) == len(payloads) == events
    framer = Framer()
    outputs = [framer.feed(stream[i : i + 1]) for i in range(len(stream))]
    assert b"".join(outputs) == stream
    assert [e.data for e in events_of(outputs)] == payloads


# --- one event, one block --------------------------------------------------------------------------------------------


@given(streams)
def test_split_count_and_data_of_agree_with_the_grammar(stream: bytes) -> None:
    ref = interpret(stream)
    block = b"".join(ref.raw)
    assert split(block) == ref.raw
    assert [e for e in map(parse, ref.raw) if e.data is not None] == ref.dispatched
    assert [d for d in map(data_of, ref.raw) if d is not None] == [e.data for e in ref.dispatched]
    assert count(block) == len(ref.dispatched)


@given(streams)
def test_half_an_event_is_no_block(stream: bytes) -> None:
    if interpret(stream).tail.removeprefix(BOM):
        with pytest.raises(ValueError, match="in the middle of an event"):
            split(stream)
        with pytest.raises(ValueError, match="in the middle of an event"):
            count(stream)


@pytest.mark.parametrize(
    ("event", "data"),
    [
        # the examples of WHATWG HTML §9.2.6
        (b"data: YHOO\ndata: +2\ndata: 10\n\n", b"YHOO\n+2\n10"),
        (b": test stream\n\n", None),
        (b"data: first event\nid: 1\n\n", b"first event"),
        (b"data:second event\nid\n\n", b"second event"),
        (b"data:  third event\n\n", b" third event"),
        (b"data\n\n", b""),
        (b"data\ndata\n\n", b"\n"),
        (b"data:test\n\n", b"test"),
        (b"data: test\n\n", b"test"),
        # and what is near them
        (b"data:\n\n", b""),
        (b"data: \n\n", b""),
        (b"data: a\r\n\r\n", b"a"),
        (b"data: a\r\r", b"a"),
        (b"data: a\rdata: b\n\n", b"a\nb"),
        (b"data: a\r\n\r", b"a"),
        (b"data: a: b\n\n", b"a: b"),
        (b" data: a\n\n", None),
        (b"Data: a\n\n", None),
        (b"dat: a\n\n", None),
        (b"\n", None),
        (BOM + b"data: a\n\n", b"a"),
        (b"data: a\xe2\x80\xa8b\x0bc\x0cd\x85e\n\n", b"a\xe2\x80\xa8b\x0bc\x0cd\x85e"),  # no line ends, these
    ],
)
def test_data_of(event: bytes, data: bytes | None) -> None:
    assert data_of(event) == data
    assert parse(event).data == data
    assert count(event) == (data is not None)


@pytest.mark.parametrize(
    ("event", "parsed"),
    [
        (b"event: error\ndata: {}\n\n", Event(b"{}", "error", None, None)),
        (b"event: a\nevent: b\ndata: x\n\n", Event(b"x", "b", None, None)),
        (b"event\ndata: x\n\n", Event(b"x", "message", None, None)),
        (b"id: 1\nid\ndata: x\n\n", Event(b"x", "message", "", None)),
        (b"id: 1\nid: 2\0\ndata: x\n\n", Event(b"x", "message", "1", None)),
        (b"retry: 1500\n\n", Event(None, "message", None, 1500)),
        (b"retry: -1\nretry: 1.5\nretry: \xd9\xa1\nretry:\n\n", Event(None, "message", None, None)),
        (b"retry: 9999999999999999999\n\n", Event(None, "message", None, None)),
        (b"event: \xff\ndata: \xff\n\n", Event(b"\xff", "\ufffd", None, None)),
    ],
)
def test_parse(event: bytes, parsed: Event) -> None:
    assert parse(event) == parsed


@pytest.mark.parametrize(
    ("block", "events"),
    [
        (b"", []),
        (b"\n", [b"\n"]),
        (b"\ndata: a\n\n", [b"\n", b"data: a\n\n"]),
        (b"a\n\n\nb\n\n", [b"a\n\n", b"\n", b"b\n\n"]),
        (b"a\r\n\r\nb\n\r\nc\r\r", [b"a\r\n\r\n", b"b\n\r\n", b"c\r\r"]),
        (BOM + b"\ndata: a\n\n", [BOM + b"\n", b"data: a\n\n"]),
    ],
)
def test_split(block: bytes, events: list[bytes]) -> None:
    assert split(block) == events


@pytest.mark.parametrize(
    ("block", "n"),
    [
        (b"", 0),
        (b": ping\n\n", 0),
        (b"data: a\n\n", 1),
        (b"data: a\n\ndata:b\n\n", 2),
        (b": ping\n\ndata: a\n\n", 1),
        (b"event: x\ndata: a\n\n", 1),
        (b"data: a\ndata: b\n\n", 1),
        (b"data: a\n\n\n\ndata: b\n\n", 2),
        (b"data: a\n\ndata\n\n", 2),
        (b"data: a\r\rdata: b\n\n", 2),  # two LFs, and yet two events
        (b"database: a\n\n", 0),
        (b"data: a\n\nid: 1\n\n", 1),
    ],
)
def test_count(block: bytes, n: int) -> None:
    assert count(block) == n
