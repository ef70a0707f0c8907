"""A client that leaves, in each state of its request and in each way, takes its engine's work with it."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from campaigns import cancel
from stack import Engine, Forebay, chat, config_of, connect, folder, half_close, raw_request, read_all, reset
from waiting import eventually, read_until, until_nobody_reads_from

WAYS: dict[str, Callable[[socket.socket], None]] = {
    "close": socket.socket.close,
    "reset": reset,
    "half-close": half_close,
}
every_way = pytest.mark.parametrize("way", WAYS)


class House:
    """`main` serves everything; `narrow` runs one sequence at a time; `broken` is told to fail; `fast` outruns
    any client; `deaf` cannot be connected to."""

    def __init__(self, forebay: Forebay, engines: list[Engine], deaf: cancel.DeafEngine) -> None:
        self.forebay = forebay
        self.main, self.narrow, self.broken, self.fast = engines
        self.deaf = deaf

    def send(self, body: dict[str, Any], name: str, fault: str = "") -> socket.socket:
        sock = connect(self.forebay.port)
        sock.sendall(raw_request(body, request_id=name, **({"x_forebay_fault": fault} if fault else {})))
        return sock

    def idle(self) -> bool:
        live = self.forebay.metric("forebay_requests_live") + self.forebay.metric("forebay_client_connections")
        return live + self.forebay.metric("forebay_engine_in_flight") == 0

    def connecting(self) -> bool:
        """The worker has a socket on its way to the deaf engine."""
        return any(c.raddr and c.raddr.port == self.deaf.port for c in self.forebay.worker.net_connections("tcp"))

    def left(self, sock: socket.socket, way: str, engine: Engine, name: str) -> dict[str, Any]:
        """Leave; returns the engine's record of its abort. How soon it comes is measured by `make campaign-cancel`."""
        WAYS[way](sock)
        eventually(lambda: (engine.record(name) or {}).get("how"))
        record = engine.record(name)
        assert record is not None and record["how"] == "aborted", record
        if way == "half-close":
            read_all(sock)  # the gateway closes once what it had sent is taken
        sock.close()
        eventually(self.idle)
        return record


@pytest.fixture(scope="module")
def house() -> Iterator[House]:
    with contextlib.ExitStack() as cleanup:
        where = cleanup.enter_context(folder())
        engines = [
            cleanup.enter_context(contextlib.closing(Engine(*arguments)))
            for arguments in (
                ("--model", "forebay-sim", "--model", "twice"),
                ("--model", "narrow", "--max-num-seqs", "1"),
                ("--model", "twice"),
                ("--model", "fast", "--decode-rate", "500", "--max-model-len", "100000"),
            )
        ]
        deaf = cleanup.enter_context(contextlib.closing(cancel.DeafEngine()))
        more = {"retries": {"budget": 1.0}, "timeouts": {"connect": 5.0}}
        config = config_of(where / "state", *engines, **more)
        slow = {"health_interval": 3600, "unhealthy_after": 100, "kind": "openai"}
        config["engines"].append({"name": "deaf", "url": deaf.url, "models": ["deaf"], **slow})
        forebay = cleanup.enter_context(contextlib.closing(Forebay(where, config)))
        eventually(lambda: forebay.metric('forebay_engine_healthy{engine="deaf"}'))
        deaf.deafen()
        yield House(forebay, engines, deaf)


@every_way
@pytest.mark.parametrize("part", ["head", "body"])
def test_before_the_request_is_whole(house: House, way: str, part: str) -> None:
    before = house.main.books()["started"]
    request = raw_request(chat(), request_id="unfinished")
    sock = connect(house.forebay.port)
    sock.sendall(request[:40] if part == "head" else request[:-10])
    eventually(lambda: house.forebay.metric("forebay_client_connections"))
    WAYS[way](sock)
    eventually(house.idle)
    sock.close()
    assert house.main.books()["started"] == before


@every_way
@pytest.mark.parametrize("stream", [False, True])
def test_while_the_engine_holds_it_in_its_queue(house: House, way: str, stream: bool) -> None:
    first = house.send(chat(5_000, model="narrow"), "runs")
    read_until(first, b'"content":"')
    name = f"queued-{way}-{stream}"
    second = house.send(chat(5, model="narrow", stream=stream), name)
    eventually(lambda: house.narrow.books()["waiting"])
    WAYS[way](second)
    eventually(lambda: (house.narrow.record(name) or {}).get("how"))
    record = house.narrow.record(name)
    assert record is not None and record["how"] == "aborted" and record["tokens"] == 0
    assert house.narrow.books()["waiting"] == 0
    second.close()
    house.left(first, "close", house.narrow, "runs")


@every_way
def test_after_the_role_and_before_the_first_content(house: House, way: str) -> None:
    name = f"role-{way}"
    sock = house.send(chat(), name, "role-wait=60")
    eventually(lambda: house.main.record(name))
    record = house.left(sock, way, house.main, name)
    assert record["tokens"] == 0


@every_way
def test_in_the_middle_of_a_stream(house: House, way: str) -> None:
    name = f"stream-{way}"
    sock = house.send(chat(5_000), name)
    read_until(sock, b'"content":"')
    record = house.left(sock, way, house.main, name)
    assert 0 < record["tokens"] < 5_000


@every_way
def test_a_client_that_reads_nothing_of_a_long_stream(house: House, way: str) -> None:
    """Back-pressure pauses the reading of the engine; the leaving is seen all the same."""
    name = f"clogged-{way}"
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    sock.connect(("127.0.0.1", house.forebay.port))
    body = chat(50_000, model="fast", n=4, logprobs=True, top_logprobs=20)
    sock.sendall(raw_request(body, request_id=name))
    until_nobody_reads_from(house.fast.port)
    house.left(sock, way, house.fast, name)


@every_way
def test_waiting_for_a_whole_answer(house: House, way: str) -> None:
    name = f"unary-{way}"
    sock = house.send(chat(5_000, stream=False), name)
    eventually(lambda: house.main.record(name))
    house.left(sock, way, house.main, name)


@every_way
def test_with_the_next_request_sent_ahead(house: House, way: str) -> None:
    """Pipelined requests are not begun for a client that has left."""
    before = house.main.books()["started"]
    name = f"ahead-{way}"
    sock = connect(house.forebay.port)
    sock.sendall(raw_request(chat(5_000), request_id=name) + raw_request(chat(5), request_id="second") * 20)
    read_until(sock, b'"content":"')
    house.left(sock, way, house.main, name)
    assert house.main.books()["started"] == before + 1


@every_way
def test_while_the_engine_is_being_connected_to(house: House, way: str) -> None:
    """The engine cannot know of it. The socket is gone once connecting has come to its end: timeouts.connect."""
    left = 'forebay_cancels_total{state="dispatched"}'
    before = house.forebay.metric(left)
    sock = house.send(chat(model="deaf"), f"connect-{way}")
    eventually(house.connecting)
    WAYS[way](sock)
    eventually(house.idle)
    sock.close()
    assert house.forebay.metric(left) == before + 1  # not the time-out
    eventually(lambda: not house.connecting())


@every_way
def test_while_it_is_tried_again(house: House, way: str) -> None:
    """The first engine fails, the second one stalls."""
    house.main.faults("stall")
    house.broken.faults({"kind": "error", "arg": 500})
    try:
        for i in range(2):  # placement alternates, so one of two goes to the broken one first
            name = f"retry-{way}-{i}"
            sock = house.send(chat(model="twice"), name)
            eventually(lambda n=name: house.main.record(n))  # type: ignore[misc]
            house.left(sock, way, house.main, name)
        assert any((house.broken.record(f"retry-{way}-{i}") or {}).get("how") == "faulted" for i in range(2))
    finally:
        house.main.faults()
        house.broken.faults()


@every_way
def test_when_the_stream_is_done(house: House, way: str) -> None:
    before = house.forebay.metric("forebay_requests_total")
    sock = house.send(chat(3), f"done-{way}")
    read_until(sock, b"data: [DONE]\n\n")
    WAYS[way](sock)
    eventually(house.idle)
    sock.close()
    record = house.main.record(f"done-{way}")
    assert record is not None and record["how"] == "finished"
    assert house.forebay.metric("forebay_requests_total") == before + 1


def test_three_hundred_random_cancels_leave_nothing() -> None:
    result = cancel.run(300)
    assert not result.problems(bars={"max": 30.0}), cancel.table(result)
    assert {x.state for x in result.leaves} == set(cancel.STATES)
    how = [r["how"] for rs in result.records.values() for r in rs]
    assert how.count("aborted") > 80, cancel.table(result)
