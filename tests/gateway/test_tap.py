"""The short cut of a stream: which reads go by it, and what it says of them."""

from __future__ import annotations

import asyncio

import pytest

from forebay.counters import Histogram
from forebay.gateway.tap import Tap, suffix_of
from forebay.wire.reply import Log

EVENT = b'data: {"choices":[{"delta":{"content":"%b"},"finish_reason":null}]}\n\n'


class Engine(asyncio.Protocol):
    """The connection that the tap stands in for."""

    def __init__(self) -> None:
        self.got: list[bytes] = []

    def data_received(self, data: bytes) -> None:
        self.got.append(data)


def chunk(event: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(event), event)


def tapped() -> tuple[Tap, Engine, list[bytes], Histogram]:
    gaps, engine, out = Histogram((1.0, 2.0)), Engine(), list[bytes]()
    tap = Tap(gaps, 0.0)
    suffix = suffix_of(EVENT % b"x")
    assert suffix is not None
    tap.follow(engine)
    tap.write_to(out.append)
    tap.learn(suffix)
    tap.between_chunks()
    return tap, engine, out, gaps


@pytest.mark.parametrize("words", [[b"a"], [b"a", b" longer than the first"], [b"x" * n for n in (1, 190, 200, 3_000)]])
def test_a_read_of_whole_chunks_goes_by_in_one_write(words: list[bytes]) -> None:
    tap, engine, out, gaps = tapped()
    data = b"".join(chunk(EVENT % w) for w in words)
    tap.data_received(data)
    assert (out, engine.got) == ([data], [])
    assert (tap.events, tap.sent) == (len(words), len(data))
    assert sum(gaps.counts) == len(words)
    assert gaps.counts[0] >= len(words) - 1  # those behind the first came with it
    tap.data_received(data)
    assert out == [data, data]


def test_what_it_takes_is_kept_where_a_log_is_given() -> None:
    tap, engine, out, _ = tapped()
    log = Log(1_000)
    tap.write_to(out.append, log)
    data = KNOWN + KNOWN
    tap.data_received(KNOWN)
    tap.data_received(data)
    assert (log.pieces, log.size, log.whole) == ([KNOWN, data], 3 * len(KNOWN), True)
    tap.data_received(chunk(EVENT % (b"x" * 1_000)))
    tap.data_received(KNOWN)
    assert (log.pieces, log.whole, len(out), engine.got) == ([], False, 4, [])


KNOWN = chunk(EVENT % b"a")
LONG = EVENT % (b"x" * (0xAB - len(EVENT % b"")))
END = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n'


@pytest.mark.parametrize(
    "data",
    [
        KNOWN + b"0\r\n\r\n",
        KNOWN + KNOWN[:-1],
        KNOWN[:-1] + KNOWN,
        chunk(END) + KNOWN,
        KNOWN + chunk(END) + KNOWN,
        chunk(END + EVENT % b"a") + KNOWN,  # two events in a chunk, the first an end
        KNOWN + b"0" + KNOWN,  # a leading zero: some other framing
        KNOWN + KNOWN.replace(b"\r\n", b";x=1\r\n", 1),
        KNOWN + b"%X\r\n%b\r\n" % (len(LONG), LONG),
        b"\r\n" + KNOWN + KNOWN,
        KNOWN + b"1000\r\n" + b"x" * (0x1000 - len(EVENT % b"a")) + EVENT % b"a" + b"\r\n",
    ],
    ids=["last", "cut", "shifted", "end", "end-within", "two", "zero", "extension", "upper", "line", "large"],
)
def test_whatever_is_not_as_known_goes_to_the_connection_whole(data: bytes) -> None:
    tap, engine, out, _ = tapped()
    tap.data_received(data)
    assert (out, engine.got, tap.events) == ([], [data], 0)
    tap.data_received(KNOWN)
    assert (out, engine.got) == ([], [data, KNOWN])  # until the next gap between chunks
    tap.between_chunks()
    tap.data_received(KNOWN)
    assert out == [KNOWN]


def test_gaps_are_counted_as_a_histogram_does(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.pure import pure

    module = pure("forebay.gateway.tap")
    times = [0.5, 1.5, 1.6, 3.4, 5.9, 7.9, 8.0, 8.9, 10.9]
    monkeypatch.setattr(module, "monotonic", iter(times).__next__)
    gaps, wanted = Histogram((1.0, 2.0)), Histogram((1.0, 2.0))
    tap = module.Tap(gaps, 0.0)
    for before, now in zip([0.0, *times], times, strict=False):
        tap.arrived()
        wanted.observe(now - before)
    assert gaps.counts == wanted.counts
    assert all(gaps.counts)
