"""Waits are bounded on both sides: clients that dawdle, engines that stall. Configured to a few seconds, more than a
busy machine stands still, and so waited for all at once."""

from __future__ import annotations

import itertools
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

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

HEADER, BODY, IDLE, WRITE, FIRST_BYTE, STREAM_IDLE = 2.4, 3.2, 2.8, 4.0, 3.2, 2.6
GAP = STREAM_IDLE / 4
"""Seconds between two pieces that come in time."""
WORD = event(delta({"content": "Hi"}))
LAST = event(delta({"content": "!"}, "stop"))


@contextmanager
def takes(seconds: float, most: float = 40.0) -> Iterator[None]:
    """Begun before whatever the gateway measures from. Its clock ticks twice a second, and machines are busy."""
    began = time.monotonic()
    yield
    assert seconds - 0.3 <= time.monotonic() - began < most


Wait = Callable[[Gateway, Engines], None]
WAITS: dict[str, Wait] = {}
"""By name: each asks, waits for the gateway to give up, and looks at how it did."""


def wait(*cases: object) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Its third argument is each of `cases` in turn."""

    def add(function: Callable[..., None]) -> Callable[..., None]:
        name = function.__name__
        WAITS.update({f"{name}-{i}": partial(_with, function, case) for i, case in enumerate(cases)})
        if not cases:
            WAITS[name] = function
        return function

    return add


def _with(function: Callable[..., None], case: object, hasty: Gateway, engines: Engines) -> None:
    function(hasty, engines, case)


@pytest.fixture(scope="module")
def outcomes(hasty: Gateway, engines: Engines) -> dict[str, Future[None]]:
    with ThreadPoolExecutor(len(WAITS)) as threads:
        return {name: threads.submit(function, hasty, engines) for name, function in WAITS.items()}


def too_slow(client: Client, what: str, seconds: float) -> None:
    answer = client.read()
    assert (answer.status, answer.message) == (408, f"The {what} did not arrive within {seconds:g} s.")
    assert (answer.error["code"], answer.get("connection")) == ("request_timeout", "close")
    client.closed()


def drip(client: Client, data: bytes, gap: float = 0.1) -> threading.Thread:
    """A byte at a time, until the server will have no more."""

    def run() -> None:
        for byte in data:
            if not client.try_send(bytes([byte])):
                return
            time.sleep(gap)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def head_of(test: str, **more: str) -> bytes:
    """A head that promises a body of 68 bytes."""
    head, blank, body = request(chat(), x_test=test, **more).partition(b"\r\n\r\n")
    assert len(body) == 68
    return head + blank


def chunked(head: bytes) -> bytes:
    return head.replace(b"Content-Length: 68", b"Transfer-Encoding: chunked")


@wait(1, 8, 60, -1)
def slow_head(hasty: Gateway, engines: Engines, length: int) -> None:
    with takes(HEADER), hasty.client() as client:
        client.send(head_of("")[:length])
        too_slow(client, "request head", HEADER)


@wait()
def head_byte_by_byte(hasty: Gateway, engines: Engines) -> None:
    """A byte now and then buys no time."""
    test = new_id("drip")
    with takes(HEADER), hasty.client() as client:
        thread = drip(client, head_of(test))
        too_slow(client, "request head", HEADER)
        thread.join(60)
    assert engines.raw.requests(test) == []


@wait((False, b""), (False, b"1"), (True, b""), (True, b"1"))
def slow_body(hasty: Gateway, engines: Engines, case: tuple[bool, bytes]) -> None:
    test = new_id("slow")
    in_chunks, part = case
    head = head_of(test)
    with takes(BODY), hasty.client() as client:
        client.send((chunked(head) if in_chunks else head) + part)
        too_slow(client, "request body", BODY)
    assert engines.raw.requests(test) == []


@wait(False, True)
def body_byte_by_byte(hasty: Gateway, engines: Engines, in_chunks: bool) -> None:
    head = head_of("")
    with takes(BODY), hasty.client() as client:
        client.send(chunked(head) if in_chunks else head)
        thread = drip(client, b"1\r\n \r\n" * 20 if in_chunks else b" " * 60)
        too_slow(client, "request body", BODY)
        thread.join(60)


@wait()
def body_of_a_refused_request(hasty: Gateway, engines: Engines) -> None:
    """It is waited for, so that the connection can be kept, and no longer than any other."""
    with takes(BODY), hasty.client() as client:
        client.send(head_of("").replace(KEY.encode(), b"no") + b"{")
        answer = client.read()
        assert answer.status in (401, 408, 429)
        client.closed()


@wait()
def silence_is_closed(hasty: Gateway, engines: Engines) -> None:
    with takes(IDLE), hasty.client() as client:
        client.closed()


@wait()
def silence_after_an_answer_is_closed(hasty: Gateway, engines: Engines) -> None:
    with takes(IDLE), hasty.client() as client:
        for _ in range(2):
            client.send(request(chat()))
            assert client.read().status == 200
        client.closed()


@wait()
def slow_head_behind_an_answer(hasty: Gateway, engines: Engines) -> None:
    with takes(HEADER), hasty.client() as client:
        client.send(request(chat()) + head_of("")[:20])
        assert client.read().status == 200
        too_slow(client, "request head", HEADER)


@wait()
def a_long_answer_is_no_idleness(hasty: Gateway, engines: Engines) -> None:
    """A stream that takes longer than every time-out, no gap in it so long; half of the next head waits."""
    words = int(WRITE / GAP) + 3

    def script(talk: Talk) -> None:
        talk.send(stream_head(), chunk(ROLE))
        for _ in range(words):
            time.sleep(GAP)
            talk.send(chunk(WORD))
        talk.send(chunk(LAST + DONE), b"0\r\n\r\n")

    test = new_id("long")
    engines.raw.scripts[test] = script
    with takes(WRITE), hasty.client() as client:
        second = request(chat())
        client.send(request(chat(stream=True), x_test=test), second[:30])
        answer = client.read()
        assert (answer.body, answer.whole) == (ROLE + WORD * words + LAST + DONE, True)
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


NO_CONTENT = f"sent no content within {FIRST_BYTE:g} s"
NOTHING = f"sent nothing for {STREAM_IDLE:g} s"


@wait(*itertools.product(("raw", "twin"), (False, True), ((), (b"HTTP/1.1 2",), (b"HTTP/1.1 100 Continue\r\n\r\n",))))
def no_head(hasty: Gateway, engines: Engines, case: tuple[str, bool, tuple[bytes, ...]]) -> None:
    """Not retried: another engine would start the client's wait anew."""
    model, stream, pieces = case
    stall = Stall(engines, *pieces)
    with takes(FIRST_BYTE):
        answer = hasty.ask(chat(model, stream=stream), x_test=stall.test)
    timed_out(answer, NO_CONTENT)
    assert stall.gone.wait(60)
    assert stall.seen == 1


@wait()
def no_content(hasty: Gateway, engines: Engines) -> None:
    """The head and a role are no content."""
    stall = Stall(engines, stream_head(), chunk(ROLE))
    with takes(FIRST_BYTE):
        timed_out(hasty.ask(chat(stream=True), x_test=stall.test), NO_CONTENT)
    assert stall.gone.wait(60)


@wait(chunk(ROLE), chunk(b": ping\n\n"), chunk(b":"))
def signs_of_life_are_no_content(hasty: Gateway, engines: Engines, repeat: bytes) -> None:
    stall = Stall(engines, stream_head(), gap=0.2, repeat=repeat)
    with takes(FIRST_BYTE):
        timed_out(hasty.ask(chat(stream=True), x_test=stall.test), NO_CONTENT)
    assert stall.gone.wait(60)


@wait(1, 3)
def stall_within_a_stream(hasty: Gateway, engines: Engines, sent: int) -> None:
    stall = Stall(engines, stream_head(), chunk(ROLE), *[chunk(WORD)] * sent, gap=0.01)
    with takes(STREAM_IDLE):
        answer = hasty.ask(chat("twin", stream=True), x_test=stall.test)
    assert (answer.status, answer.whole) == (200, False)
    assert answer.body.startswith(ROLE + WORD * sent)
    rest = events(answer.body[len(ROLE + WORD * sent) :])
    assert [json.loads(e)["error"] for e in rest] == [
        {"message": f"The engine is too slow: {NOTHING}.", "type": "api_error", "param": None, "code": "engine_cut"}
    ]
    assert stall.gone.wait(60)
    assert stall.seen == 1


@wait()
def stall_within_an_answer(hasty: Gateway, engines: Engines) -> None:
    stall = Stall(engines, whole(200, ANSWER)[:-5])
    with takes(STREAM_IDLE):
        timed_out(hasty.ask(chat(), x_test=stall.test), NOTHING)
    assert stall.gone.wait(60)


@wait()
def stall_within_an_error(hasty: Gateway, engines: Engines) -> None:
    stall = Stall(engines, whole(400, b'{"error": {"message": "no"}}')[:-5])
    with takes(STREAM_IDLE):
        answer = hasty.ask(chat(), x_test=stall.test)
    assert (answer.status, answer.error["code"]) == (504, "engine_timeout")
    assert stall.gone.wait(60)


@wait()
def slow_and_steady_answer(hasty: Gateway, engines: Engines) -> None:
    data = whole(200, ANSWER)
    count = int(WRITE / GAP) + 3
    size = -(-len(data) // count)

    def script(talk: Talk) -> None:
        for i in range(0, len(data), size):
            talk.send(data[i : i + size])
            time.sleep(GAP)

    test = new_id("steady")
    engines.raw.scripts[test] = script
    with takes(WRITE):
        assert hasty.ask(chat(), x_test=test).body == ANSWER


@wait()
def an_interim_head_keeps_nobody_alive(hasty: Gateway, engines: Engines) -> None:
    stall = Stall(engines, gap=0.2, repeat=b"HTTP/1.1 102 Processing\r\n\r\n")
    with takes(FIRST_BYTE):
        timed_out(hasty.ask(chat(), x_test=stall.test), NO_CONTENT)


@wait()
def a_client_that_reads_slowly(hasty: Gateway, engines: Engines) -> None:
    """It takes longer than the write time-out in all, and gets everything."""
    told = [event(delta({"content": "x" * 4_000})) for _ in range(100)]
    test = new_id("slow")
    engines.raw.scripts[test] = streams(ROLE, *told, LAST, DONE)
    with takes(WRITE), socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        sock.connect(hasty.where)
        sock.settimeout(60)
        sock.sendall(request(chat(stream=True), x_test=test, Connection="close"))
        data = b""
        while got := sock.recv(8_192):
            data += got
            time.sleep(0.1)
    assert data.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    assert data.count(b"x" * 4_000) == 100


@wait()
def lingering_is_bounded(hasty: Gateway, engines: Engines) -> None:
    """A client that goes on sending after it was refused is let go within a few seconds."""
    with hasty.client() as client, takes(0):
        client.send(head_of("").replace(b"Content-Length: 68", b"Content-Length: 100000000"))
        assert client.read().status == 413
        until = time.monotonic() + 40
        while client.try_send(b"x" * 1000):
            assert time.monotonic() < until
            time.sleep(0.05)


@pytest.mark.parametrize("name", WAITS)
def test_it_ends_in_time_and_in_words(outcomes: dict[str, Future[None]], name: str) -> None:
    outcomes[name].result()


def test_the_pool_survives_stalls(outcomes: object, hasty: Gateway, engines: Engines) -> None:
    """Many at once, each bounded by its own wait."""
    stall = Stall(engines)
    with takes(FIRST_BYTE), ThreadPoolExecutor(20) as threads:
        answers = list(threads.map(lambda _: hasty.ask(chat(), x_test=stall.test).status, range(20)))
    assert answers == [504] * 20
    assert hasty.ask(chat()).status == 200


# --- clients that do not take their answer ----------------------------------------------------------------------------


def test_a_client_that_reads_nothing(hasty: Gateway, engines: Engines) -> None:
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
        assert gone.wait(60)
    assert sent < 64 << 20
    assert hasty.memory() - before < 16 << 20
    assert hasty.ask(chat()).status == 200
