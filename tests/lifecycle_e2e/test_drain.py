"""SIGTERM under load: readiness goes first, no new work, streams finish or are told why not, nothing is left."""

from __future__ import annotations

import selectors
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from stack import KEY, Forebay, chat, connect, half_close, raw_request, read_all, reset, stack
from waiting import eventually, read_until

STREAMS = 500


def gone(processes: list[psutil.Process]) -> bool:
    return not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in processes)


def family(forebay: Forebay) -> list[psutil.Process]:
    return psutil.Process(forebay.pid).children(recursive=True)


def left_clean(forebay: Forebay, children: list[psutil.Process]) -> None:
    assert gone(children)
    assert not [p for p in forebay.folder.rglob("*") if p.is_socket()]
    with pytest.raises(ConnectionRefusedError):
        connect(forebay.port)


def read_them_all(socks: list[socket.socket], within: float) -> dict[socket.socket, bytes]:
    """What each got until its end."""
    got: dict[socket.socket, bytes] = dict.fromkeys(socks, b"")
    deadline = time.monotonic() + within
    with selectors.DefaultSelector() as ready:
        for s in socks:
            s.setblocking(False)
            ready.register(s, selectors.EVENT_READ)
        while ready.get_map():
            assert time.monotonic() < deadline, f"{len(ready.get_map())} did not end"
            for key, _ in ready.select(1.0):
                s: Any = key.fileobj
                try:
                    data = s.recv(65_536)
                except ConnectionResetError:
                    data = b""
                got[s] += data
                if not data:
                    ready.unregister(s)
    return got


@pytest.fixture
def clients() -> Iterator[list[socket.socket]]:
    socks: list[socket.socket] = []
    yield socks
    for s in socks:
        s.close()


def open_streams(forebay: Forebay, clients: list[socket.socket], n: int, tokens: int) -> None:
    request = raw_request(chat(tokens))
    for _ in range(n):
        s = connect(forebay.port)
        clients.append(s)
        s.sendall(request)
    eventually(lambda: forebay.metric("forebay_requests_live") == n)


def test_five_hundred_streams_finish_and_the_rude_ones_hold_nobody_up(clients: list[socket.socket]) -> None:
    with stack("--decode-rate", "20", "--max-num-seqs", "1000", timeouts={"drain": 20.0}) as (forebay, engine):
        children = family(forebay)
        open_streams(forebay, clients, STREAMS, 100)
        eventually(lambda: engine.books()["open"] == STREAMS)
        for s in clients[400:433]:
            half_close(s)
        for s in clients[433:466]:
            reset(s)
        silent = clients[466:]  # these read nothing until the others are done
        forebay.kill(signal.SIGTERM)
        got = read_them_all(clients[:400], 60)
        whole = sum(data.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n") for data in got.values())
        assert whole == 400, f"{whole} of 400 streams are whole"
        assert all(d.count(b'"content":"') == 101 for d in got.values())  # the role's is empty
        assert forebay.process.wait(60) == 0, forebay.text
        assert all(d.endswith(b"0\r\n\r\n") for d in read_them_all(silent, 60).values())
        left_clean(forebay, children)
        assert engine.books()["aborted"] == 66
        assert "drain deadline" not in forebay.text


def test_the_deadline_ends_what_is_left_in_words(clients: list[socket.socket]) -> None:
    with stack("--decode-rate", "20", "--max-num-seqs", "1000", timeouts={"drain": 1.0}) as (forebay, engine):
        children = family(forebay)
        open_streams(forebay, clients, 50, 5_000)
        whole = connect(forebay.port)
        clients.append(whole)
        whole.sendall(raw_request(chat(5_000, stream=False)))
        eventually(lambda: forebay.metric("forebay_requests_live") == 51)
        began = time.monotonic()
        forebay.kill(signal.SIGTERM)
        got = read_them_all(clients, 60)
        assert forebay.process.wait(60) == 0, forebay.text
        assert 0.9 <= time.monotonic() - began < 60  # the streams would take 250 s
        refusal = got.pop(whole)
        assert refusal.startswith(b"HTTP/1.1 503 ") and b'"code":"drained"' in refusal
        for data in got.values():
            assert b'"code":"drained"' in data, data[-300:]
            assert b"[DONE]" not in data and not data.endswith(b"0\r\n\r\n")
        left_clean(forebay, children)
        eventually(lambda: engine.books()["open"] == 0)
        assert engine.books()["aborted"] == 51


def test_readiness_goes_first_then_new_work(clients: list[socket.socket]) -> None:
    with stack("--decode-rate", "20", timeouts={"drain": 20.0, "drain_delay": 4.0}) as (forebay, _):
        open_streams(forebay, clients, 1, 60)
        idle, late = connect(forebay.port), connect(forebay.port)
        clients += [idle, late]
        models = f"GET /v1/models HTTP/1.1\r\nHost: g\r\nAuthorization: Bearer {KEY}\r\n\r\n".encode()
        idle.sendall(models)
        assert read_until(idle, b"}]}").startswith(b"HTTP/1.1 200")
        late.sendall(raw_request(chat(5))[:-5])  # a request that is not whole yet
        forebay.kill(signal.SIGTERM)
        eventually(lambda: "draining" in forebay.not_ready())
        assert forebay.call("GET", "/v1/models")[0] == 200, "load balancers have not noticed yet"

        def refused() -> bool:
            try:
                connect(forebay.port).close()
            except ConnectionRefusedError:
                return True
            return False

        eventually(refused)
        assert read_all(idle) == b"", "an idle connection is closed"
        late.sendall(raw_request(chat(5))[-5:])
        answer = read_all(late)
        assert b"200 OK" in answer or b'"code":"draining"' in answer
        assert b"connection: close" in answer.lower() or answer.endswith(b"0\r\n\r\n")
        assert "draining" in forebay.not_ready()
        assert b"data: [DONE]" in read_until(clients[0], b"data: [DONE]")
        assert forebay.process.wait(60) == 0


def test_a_second_signal_kills_at_once(clients: list[socket.socket]) -> None:
    with stack("--decode-rate", "20", timeouts={"drain": 100.0}) as (forebay, _):
        children = family(forebay)
        open_streams(forebay, clients, 3, 5_000)
        forebay.kill(signal.SIGTERM)
        eventually(lambda: "draining: 3 requests live" in forebay.text)
        forebay.kill(signal.SIGTERM)
        began = time.monotonic()
        forebay.process.wait(60)
        assert time.monotonic() - began < 50  # it was to drain for 100 s
        for data in read_them_all(clients, 60).values():
            assert b"[DONE]" not in data
        left_clean(forebay, children)


def test_a_stopped_worker_is_killed_after_the_deadline() -> None:
    with stack(timeouts={"drain": 0.5}) as (forebay, _):
        children = family(forebay)
        forebay.worker.suspend()
        assert forebay.stop() == 0
        assert "worker-0 did not leave and is killed" in forebay.text
        left_clean(forebay, children)


@pytest.mark.books
def test_an_admin_process_that_is_slow_to_leave_is_not_killed() -> None:
    with stack() as (gateway, _):
        assert gateway.call("POST", "/v1/chat/completions", chat(2, stream=False))[0] == 200
        admin = gateway.admin
        admin.suspend()
        try:
            gateway.kill(signal.SIGTERM)
            with pytest.raises(subprocess.TimeoutExpired):
                gateway.process.wait(4.5)  # the host has no time for it
        finally:
            admin.resume()
        assert gateway.process.wait(60) == 0
        assert "did not leave" not in gateway.text
