"""Waits are bounded on both sides: clients that dawdle, engines that stall. Configured to parts of a second."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from e2e.client import KEY, Answer, Client, chat, events, new_id, request
from e2e.conftest import Engines
from e2e.engine import (
    ANSWER,
    DONE,
    ROLE,
    Talk,
    chunk,
    delta,
    event,
    stream_head,
    streams,
    whole,
)
from e2e.gateway import Gateway

HEADER, BODY, IDLE, WRITE, FIRST_BYTE, STREAM_IDLE = 0.6, 0.8, 0.7, 1.0, 0.8, 0.6
WORD = event(delta({"content": "Hi"}))
LAST = event(delta({"content": "!"}, "stop"))


@contextmanager
def takes(seconds: float, more: float = 2.5) -> Iterator[None]:
    """The gateway's clock ticks every quarter of a second, so a wait may be that much off; and machines are busy."""
    began = time.monotonic()
    yield
    took = time.monotonic() - began
    assert seconds - 0.3 <= took < seconds + more, took


def too_slow(client: Client, what: str, seconds: float) -> None:
    answer = client.read()
    assert (answer.status, answer.message) == (408, f"The {what} did not arrive within {seconds:g} s.")
    assert (answer.error["code"], answer.get("connection")) == ("request_timeout", "close")
    client.closed()


def drip(client: Client, data: bytes, gap: float = 0.05) -> threading.Thread:
    """A byte at a time, until the server will have no more."""

    def run() -> None:
        for byte in data:
            if not client.try_send(bytes([byte])):
                return
            time.sleep(gap)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


POST = request(chat())
HEAD_BYTES = POST.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
CHUNKED = HEAD_BYTES.replace(b"Content-Length: 68", b"Transfer-Encoding: chunked")
assert CHUNKED != HEAD_BYTES


@pytest.mark.parametrize("part", [b"P", b"POST /v1", HEAD_BYTES[:60], HEAD_BYTES[:-1]], ids=range(4))
def test_slow_head(hasty: Gateway, part: bytes) -> None:
    with hasty.client() as client:
        client.send(part)
        with takes(HEADER):
            too_slow(client, "request head", HEADER)


def test_head_byte_by_byte(hasty: Gateway, engines: Engines) -> None:
    """A byte now and then buys no time."""
    before = engines.raw.total()
    with hasty.client() as client, takes(HEADER, 5):
        thread = drip(client, HEAD_BYTES)
        too_slow(client, "request head", HEADER)
        thread.join(10)
    assert engines.raw.total() == before


@pytest.mark.parametrize("head_bytes", [HEAD_BYTES, CHUNKED], ids=["length", "chunked"])
@pytest.mark.parametrize("part", [b"", b"1"])
def test_slow_body(hasty: Gateway, engines: Engines, head_bytes: bytes, part: bytes) -> None:
    before = engines.raw.total()
    with hasty.client() as client:
        client.send(head_bytes + part)
        with takes(BODY):
            too_slow(client, "request body", BODY)
    assert engines.raw.total() == before


@pytest.mark.parametrize("form", ["length", "chunked"])
def test_body_byte_by_byte(hasty: Gateway, form: str) -> None:
    with hasty.client() as client, takes(BODY, 5):
        client.send(HEAD_BYTES if form == "length" else CHUNKED)
        thread = drip(client, b" " * 60 if form == "length" else b"1\r\n \r\n" * 20)
        too_slow(client, "request body", BODY)
        thread.join(10)


def test_body_of_a_refused_request(hasty: Gateway) -> None:
    """It is waited for, so that the connection can be kept, and no longer than any other."""
    with hasty.client() as client:
        client.send(HEAD_BYTES.replace(KEY.encode(), b"no") + b"{")
        with takes(BODY):
            answer = client.read()
        assert answer.status in (401, 408, 429)
        client.closed()


def test_silence_is_closed(hasty: Gateway) -> None:
    with hasty.client() as client, takes(IDLE):
        client.closed()


def test_silence_after_an_answer_is_closed(hasty: Gateway) -> None:
    with hasty.client() as client:
        for _ in range(2):
            client.send(request(chat()))
            assert client.read().status == 200
        with takes(IDLE):
            client.closed()


def test_slow_head_behind_an_answer(hasty: Gateway) -> None:
    with hasty.client() as client:
        client.send(request(chat()) + HEAD_BYTES[:20])
        assert client.read().status == 200
        with takes(HEADER):
            too_slow(client, "request head", HEADER)


def test_a_long_answer_is_no_idleness(hasty: Gateway, engines: Engines) -> None:
    """A stream that takes longer than every time-out, no gap in it so long; half of the next head waits."""

    def script(talk: Talk) -> None:
        talk.send(stream_head(), chunk(ROLE))
        for _ in range(12):
            time.sleep(0.17)
            talk.send(chunk(WORD))
        talk.send(chunk(LAST + DONE), b"0\r\n\r\n")

    test = new_id("long")
    engines.raw.scripts[test] = script
    with hasty.client() as client:
        second = request(chat())
        client.send(request(chat(stream=True), x_test=test), second[:30])
        answer = client.read()
        assert (answer.body, answer.whole) == (ROLE + WORD * 12 + LAST + DONE, True)
        client.send(second[30:])
        assert client.read().status == 200


# --- engines ----------------------------------------------------------------------------------------------------------


class Stall:
    """Sends what it is given, then nothing; knows when the gateway has closed."""

    def __init__(self, engines: Engines, *pieces: bytes, gap: float = 0.0, repeat: bytes = b"") -> None:
        self.test = new_id("stall")
        self.gone = threading.Event()
        self.engines = engines

        def script(talk: Talk) -> None:
            try:
                for piece in pieces:
                    talk.send(piece)
                    time.sleep(gap)
                while repeat:
                    talk.send(repeat)
                    time.sleep(gap)
                talk.wait_gone()
            finally:
                self.gone.set()

        for engine in (engines.raw, engines.left, engines.right):
            engine.scripts[self.test] = script

    @property
    def seen(self) -> int:
        engines = self.engines
        return sum(len(e.requests(self.test)) for e in (engines.raw, engines.left, engines.right))


def timed_out(answer: Answer, what: str) -> None:
    assert (answer.status, answer.message) == (504, f"The engine is too slow: {what}.")
    assert (answer.error["type"], answer.error["code"]) == ("api_error", "engine_timeout")


NO_CONTENT = "sent no content within 0.8 s"
NOTHING = "sent nothing for 0.6 s"


@pytest.mark.parametrize("model", ["raw", "twin"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "pieces", [[], [b"HTTP/1.1 2"], [b"HTTP/1.1 100 Continue\r\n\r\n"]], ids=["nothing", "half", "100"]
)
def test_no_head(hasty: Gateway, engines: Engines, model: str, stream: bool, pieces: list[bytes]) -> None:
    """Not retried: another engine would start the client's wait anew."""
    stall = Stall(engines, *pieces)
    with takes(FIRST_BYTE):
        answer = hasty.ask(chat(model, stream=stream), x_test=stall.test)
    timed_out(answer, NO_CONTENT)
    assert stall.gone.wait(1)
    assert stall.seen == 1


def test_no_content(hasty: Gateway, engines: Engines) -> None:
    """The head and a role are no content."""
    stall = Stall(engines, stream_head(), chunk(ROLE))
    with takes(FIRST_BYTE):
        timed_out(hasty.ask(chat(stream=True), x_test=stall.test), NO_CONTENT)
    assert stall.gone.wait(1)


@pytest.mark.parametrize("repeat", [chunk(ROLE), chunk(b": ping\n\n"), chunk(b":")], ids=["roles", "comments", "bytes"])
def test_signs_of_life_are_no_content(hasty: Gateway, engines: Engines, repeat: bytes) -> None:
    stall = Stall(engines, stream_head(), gap=0.1, repeat=repeat)
    with takes(FIRST_BYTE):
        timed_out(hasty.ask(chat(stream=True), x_test=stall.test), NO_CONTENT)
    assert stall.gone.wait(1)


@pytest.mark.parametrize("sent", [1, 3])
def test_stall_within_a_stream(hasty: Gateway, engines: Engines, sent: int) -> None:
    stall = Stall(engines, stream_head(), chunk(ROLE), *[chunk(WORD)] * sent, gap=0.01)
    with takes(STREAM_IDLE):
        answer = hasty.ask(chat("twin", stream=True), x_test=stall.test)
    assert (answer.status, answer.whole) == (200, False)
    assert answer.body.startswith(ROLE + WORD * sent)
    rest = events(answer.body[len(ROLE + WORD * sent) :])
    assert [json.loads(e)["error"] for e in rest] == [
        {"message": f"The engine is too slow: {NOTHING}.", "type": "api_error", "param": None, "code": "engine_cut"}
    ]
    assert stall.gone.wait(1)
    assert stall.seen == 1


def test_stall_within_an_answer(hasty: Gateway, engines: Engines) -> None:
    stall = Stall(engines, whole(200, ANSWER)[:-5])
    with takes(STREAM_IDLE):
        timed_out(hasty.ask(chat(), x_test=stall.test), NOTHING)
    assert stall.gone.wait(1)


def test_stall_within_an_error(hasty: Gateway, engines: Engines) -> None:
    stall = Stall(engines, whole(400, b'{"error": {"message": "no"}}')[:-5])
    with takes(min(FIRST_BYTE, STREAM_IDLE)):
        answer = hasty.ask(chat(), x_test=stall.test)
    assert (answer.status, answer.error["code"]) == (504, "engine_timeout")
    assert stall.gone.wait(1)


def test_slow_and_steady_answer(hasty: Gateway, engines: Engines) -> None:
    def script(talk: Talk) -> None:
        data = whole(200, ANSWER)
        for i in range(0, len(data), 25):
            talk.send(data[i : i + 25])
            time.sleep(0.12)

    test = new_id("steady")
    engines.raw.scripts[test] = script
    assert hasty.ask(chat(), x_test=test).body == ANSWER


def test_pool_survives_stalls(hasty: Gateway, engines: Engines) -> None:
    """Many at once, each bounded by its own wait."""
    stall = Stall(engines)
    answers: list[Any] = [None] * 20

    def one(i: int) -> None:
        answers[i] = hasty.ask(chat(), x_test=stall.test).status

    threads = [threading.Thread(target=one, args=(i,)) for i in range(20)]
    with takes(FIRST_BYTE):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert answers == [504] * 20
    assert hasty.ask(chat()).status == 200


# --- clients that do not take their answer ----------------------------------------------------------------------------


def test_client_that_reads_nothing(hasty: Gateway, engines: Engines) -> None:
    """Its engine is held back, and after the write time-out both are let go."""
    gone = threading.Event()
    sent = 0

    def script(talk: Talk) -> None:
        nonlocal sent
        piece = chunk(event(delta({"content": "x" * 16_000})))
        try:
            talk.send(stream_head())
            while True:
                talk.send(piece)
                sent += len(piece)
        finally:
            gone.set()

    test = new_id("deaf")
    engines.raw.scripts[test] = script
    before = hasty.memory()
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(hasty.where)
        sock.sendall(request(chat(stream=True), x_test=test))
        assert gone.wait(10)
    assert sent < 64 << 20
    assert hasty.memory() - before < 16 << 20
    assert hasty.ask(chat()).status == 200


def test_client_that_reads_slowly(hasty: Gateway, engines: Engines) -> None:
    """It takes longer than the write time-out in all, and gets everything."""
    told = [event(delta({"content": "x" * 4_000})) for _ in range(100)]
    test = new_id("slow")
    engines.raw.scripts[test] = streams(ROLE, *told, LAST, DONE)
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        sock.connect(hasty.where)
        sock.settimeout(10)
        sock.sendall(request(chat(stream=True), x_test=test, Connection="close"))
        data = b""
        while True:
            got = sock.recv(16_384)
            if not got:
                break
            data += got
            time.sleep(0.06)
    assert data.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    assert data.count(b"x" * 4_000) == 100


def test_lingering_is_bounded(hasty: Gateway) -> None:
    """A client that goes on sending after it was refused is let go within a few seconds."""
    with hasty.client() as client:
        client.send(HEAD_BYTES.replace(b"Content-Length: 68", b"Content-Length: 100000000"))
        assert client.read().status == 413
        deadline = time.monotonic() + 8
        while client.try_send(b"x" * 1000):
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_interim_head_keeps_nobody_alive(hasty: Gateway, engines: Engines) -> None:
    stall = Stall(engines, gap=0.1, repeat=b"HTTP/1.1 102 Processing\r\n\r\n")
    with takes(FIRST_BYTE):
        timed_out(hasty.ask(chat(), x_test=stall.test), NO_CONTENT)
