"""Each fault does what it says, seen from a socket."""

from __future__ import annotations

import gzip
import http.client
import json
import re
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_process import EngineProcess
from forebay.sim.faults import SHAPES, BadFault, Books, FaultBook, Kind, from_json, make, parse
from waiting import eventually, read_until

ERROR_END = b"\n\ndata: [DONE]\n\n"


def raw_answer(engine: EngineProcess, fault: str, **more: Any) -> bytes:
    """All bytes up to the close. Raises ConnectionResetError for a reset."""
    with engine.open_chat(fault=fault, **more) as sock:
        return read_until(sock, b"\x00never")


def content_events(data: bytes) -> int:
    return data.count(b'"delta":{"content":')


def test_error_has_the_status_and_body_asked_for(shared_engine: EngineProcess) -> None:
    assert shared_engine.chat(fault="error=418").status == 418
    given_body = shared_engine.chat(fault='error=502:{"oops":1}')
    assert (given_body.status, given_body.json()) == (502, {"oops": 1})


def test_overload_of_both_kinds(shared_engine: EngineProcess) -> None:
    full = shared_engine.chat(fault="overload503")
    assert (full.status, full.json()["error"]["type"], full.headers["connection"]) == (
        503,
        "Service Unavailable",
        "close",
    )
    many = shared_engine.chat(fault="overload429=7")
    assert (many.status, many.headers["retry-after"]) == (429, "7")


@pytest.mark.parametrize("stream", [True, False])
def test_reset_before_the_head(shared_engine: EngineProcess, stream: bool) -> None:
    with pytest.raises(ConnectionResetError):
        raw_answer(shared_engine, "reset", stream=stream)


def test_garbage_is_no_http(shared_engine: EngineProcess) -> None:
    with pytest.raises(http.client.BadStatusLine):
        shared_engine.chat(fault="garbage")


def test_a_stall_says_nothing_until_its_time(shared_engine: EngineProcess) -> None:
    started = time.monotonic()
    assert shared_engine.chat(fault="stall=0.3", max_tokens=2).status == 200
    assert time.monotonic() - started >= 0.29
    with shared_engine.open_chat(fault="stall", request_id="stalled", stream=True) as sock:
        sock.settimeout(0.2)
        with pytest.raises(TimeoutError):
            sock.recv(1)
    books = shared_engine.until(lambda b: any(r["id"] == "stalled" and r["how"] for r in b["records"]))
    assert [r["how"] for r in books["records"] if r["id"] == "stalled"] == ["aborted"]


@pytest.mark.parametrize("tokens", [0, 1, 40])
def test_a_cut_stream_has_so_many_tokens_and_no_end(shared_engine: EngineProcess, tokens: int) -> None:
    data = raw_answer(shared_engine, f"cut={tokens}", stream=True, max_tokens=60)
    assert content_events(data) == tokens
    assert b"[DONE]" not in data
    assert not data.endswith(b"0\r\n\r\n")


def test_a_cut_whole_answer_is_half(shared_engine: EngineProcess) -> None:
    head, _, body = raw_answer(shared_engine, "cut=3", max_tokens=10).partition(b"\r\n\r\n")
    length = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.startswith(b"content-length"))
    assert len(body) == length // 2


def test_a_reset_after_tokens(shared_engine: EngineProcess) -> None:
    with shared_engine.open_chat(fault="reset-after=50", stream=True) as sock:
        assert content_events(read_until(sock, b'"delta":{"content":')) >= 1
        with pytest.raises(ConnectionResetError):
            read_until(sock, b"\x00never")


def test_a_stall_after_tokens_keeps_the_connection(shared_engine: EngineProcess) -> None:
    with shared_engine.open_chat(fault="stall-after=2", stream=True) as sock:
        data = b""
        while content_events(data) < 2:
            data += sock.recv(65_536)
        sock.settimeout(0.3)
        with pytest.raises(TimeoutError):
            while True:
                data += sock.recv(65_536)
    assert content_events(data) == 2


def test_an_error_event_then_done_as_vllm_does(shared_engine: EngineProcess) -> None:
    answer = shared_engine.chat(fault="error-event=3", stream=True, max_tokens=9)
    assert answer.status == 200
    *content, error, done = answer.events()
    assert len(content) == 4 and done == b"[DONE]"
    assert json.loads(error)["error"]["code"] == 500
    whole = shared_engine.chat(fault="error-event=3", max_tokens=9)
    assert (whole.status, whole.json()["error"]["code"]) == (500, 500)


@pytest.mark.parametrize("stream", [True, False])
def test_lengths_that_lie(shared_engine: EngineProcess, stream: bool) -> None:
    for fault, lie in (("short-length=10", -10), ("long-length=10", 10)):
        with shared_engine.open_chat(fault=fault, stream=stream, max_tokens=5) as sock:
            data = read_until(sock, b"[DONE]\n\n" if stream else b'"metrics":null}')
        head, _, body = data.partition(b"\r\n\r\n")
        length = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.startswith(b"content-length"))
        assert length == len(body) + lie
        assert b"transfer-encoding" not in head


def test_a_huge_error_body_is_streamed(shared_engine: EngineProcess) -> None:
    answer = shared_engine.chat(fault="huge-error=30")
    assert (answer.status, len(answer.body)) == (500, 30_000_000)


def test_slow_bytes_are_whole_in_the_end(shared_engine: EngineProcess) -> None:
    with shared_engine.open_chat(fault="slow-bytes=0", stream=True, max_tokens=3) as sock:
        data = read_until(sock, b"0\r\n\r\n")
    body = data.partition(b"\r\n\r\n")[2]
    sizes = {body[i : i + 3] for i in range(0, len(body) - 5, 6)}
    assert sizes == {b"1\r\n"}
    assert bytes(body[i + 3] for i in range(0, len(body) - 5, 6)).endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("stream", [True, False])
def test_gzip_nobody_asked_for(shared_engine: EngineProcess, stream: bool) -> None:
    answer = shared_engine.chat(fault="gzip", stream=stream, max_tokens=5)
    assert answer.headers["content-encoding"] == "gzip"
    plain = gzip.decompress(answer.body)
    assert plain.endswith(b"data: [DONE]\n\n") if stream else json.loads(plain)["usage"]["completion_tokens"] == 5


@pytest.mark.parametrize(("fault", "ending"), [("sse-crlf", b"\r\n"), ("sse-cr", b"\r")])
def test_line_ends_of_sse(shared_engine: EngineProcess, fault: str, ending: bytes) -> None:
    plain = shared_engine.chat(stream=True, max_tokens=5).body
    bent = shared_engine.chat(fault=fault, stream=True, max_tokens=5).body
    assert bent.count(ending * 2) == plain.count(b"\n\n") == 7
    assert b"\n" not in bent.replace(ending, b"")


def test_utf8_is_cut_inside_its_characters(shared_engine: EngineProcess) -> None:
    with shared_engine.open_chat(fault="split-utf8", stream=True, max_tokens=12) as sock:
        data = read_until(sock, b"0\r\n\r\n")
    body = data.partition(b"\r\n\r\n")[2]
    pieces = []
    while body:
        size, _, rest = body.partition(b"\r\n")
        pieces.append(rest[: int(size, 16)])
        body = rest[int(size, 16) + 2 :]
    assert any(p[-1] >= 0xC0 for p in pieces if p)
    assert "�" not in b"".join(pieces).decode()


def deltas(engine: EngineProcess, fault: str) -> list[Any]:
    chunks = engine.chat(fault=fault, stream=True).chunks()
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"
    return [c["choices"][0]["delta"] for c in chunks[1:]]


def test_tool_call_deltas_of_every_odd_shape(shared_engine: EngineProcess) -> None:
    whole = deltas(shared_engine, "tool-whole")
    assert len(whole) == 2 and whole[1] == {}
    call = whole[0]["tool_calls"][0]
    assert call["id"] and json.loads(call["function"]["arguments"]).keys() == {"place", "day"}
    no_id = deltas(shared_engine, "tool-no-id")
    assert all("id" not in d["tool_calls"][0] for d in no_id)
    assert json.loads("".join(d["tool_calls"][0]["function"]["arguments"] for d in no_id))
    empty = deltas(shared_engine, "tool-empty")
    assert {d["tool_calls"][0]["function"]["arguments"] for d in empty} == {""}
    together = deltas(shared_engine, "tool-finish")[-1]
    assert together["content"] == "Done." and together["tool_calls"]


def test_usage_left_out(shared_engine: EngineProcess) -> None:
    assert "usage" not in shared_engine.chat(fault="no-usage", max_tokens=2).json()
    chunks = shared_engine.chat(fault="no-usage", max_tokens=2, stream=True, stream_options={"include_usage": True})
    assert all("usage" not in c for c in chunks.chunks())


def test_the_role_comes_at_once_and_words_much_later(shared_engine: EngineProcess) -> None:
    started = time.monotonic()
    with shared_engine.open_chat(fault="role-wait=0.4", stream=True, max_tokens=2) as sock:
        read_until(sock, b"[DONE]")
        assert time.monotonic() - started >= 0.39
    with shared_engine.open_chat(fault="role-wait=60", stream=True, max_tokens=2) as sock:
        told = read_until(sock, b'"role"')
    assert b'"role":"assistant"' in told and time.monotonic() - started < 40


def test_connections_are_refused_for_a_while(start_engine: Any) -> None:
    engine = start_engine()
    keeper = http.client.HTTPConnection("127.0.0.1", engine.port, timeout=60)
    keeper.request("PUT", "/control/faults", json.dumps([{"kind": "refuse", "arg": 3}]))
    assert keeper.getresponse().read() == b"[]"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", engine.port))
    keeper.request("GET", "/health")
    assert keeper.getresponse().status == 200  # what was connected stays
    deadline = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(("127.0.0.1", engine.port)).close()
            break
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
    keeper.close()


def test_faults_by_command_line_and_by_http(start_engine: Any) -> None:
    engine = start_engine("--fault", "error=500@0.5", "--decode-rate", "1000")
    assert [engine.chat(max_tokens=1).status for _ in range(6)] == [200, 500, 200, 500, 200, 500]
    assert engine.chat(max_tokens=1, fault="error=418").status == 200  # the header is not obeyed unless allowed
    assert engine.ask("GET", "/control/faults").json() == [{"kind": "error", "arg": 500, "share": 0.5, "count": None}]
    put = engine.ask("PUT", "/control/faults", ["overload503", {"kind": "error", "arg": 501, "count": 1}])
    assert [f["kind"] for f in put.json()] == ["overload503", "error"]
    assert engine.chat().status == 503
    assert engine.ask("DELETE", "/control/faults").json() == []
    assert engine.chat(max_tokens=1).status == 200
    bad = engine.ask("PUT", "/control/faults", ["explode"])
    assert bad.status == 400 and "fault kind 'explode' is unknown; known: error, " in bad.json()["error"]["message"]
    assert engine.ask("GET", "/metrics").status == 200  # faults are for the generating routes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("explode", "fault kind 'explode' is unknown"),
        ("cut", "fault 'cut' needs an argument: cut=NUMBER"),
        ("cut=x", "the argument must be a number, not 'x'"),
        ("cut=-1", "a whole number from 0 to 1e+06"),
        ("cut=1.5", "a whole number"),
        ("error=200", "from 400 to 599"),
        ("reset=1", "takes no argument"),
        ("error=500@0", "share must be over 0 and at most 1"),
        ("error=500@half", "share after @ must be a number"),
        ("huge-error=5000", "from 1 to 1024"),
    ],
)
def test_a_fault_that_makes_no_sense_is_named(text: str, message: str) -> None:
    with pytest.raises(BadFault) as caught:
        parse(text)
    assert message in str(caught.value)


def test_every_kind_is_described_and_survives_json() -> None:
    assert SHAPES.keys() == set(Kind)
    for kind in Kind:
        shape = SHAPES[kind]
        fault = make(kind.value, 500 if shape.takes and shape.default is None and kind is Kind.ERROR else (
            max(1, int(shape.low)) if shape.takes else None
        ))  # fmt: skip
        assert from_json([fault.as_json()]) == [fault]


@given(st.sampled_from([1.0, 0.5, 0.25, 0.2, 0.1, 0.3]), st.integers(1, 400))
def test_shares_are_exact(share: float, requests: int) -> None:
    book = FaultBook([make("reset", share=share)])
    hits = sum(book.draw() is not None for _ in range(requests))
    assert abs(hits - share * requests) < 1


def test_a_count_runs_out() -> None:
    book = FaultBook([make("reset", count=2), make("gzip")])
    drawn = [fault.kind for _ in range(4) if (fault := book.draw())]
    assert drawn == [Kind.RESET, Kind.RESET, Kind.GZIP, Kind.GZIP]


def test_the_books_are_bounded_and_close_once() -> None:
    books = Books(keep=3)
    records = [books.open(str(i), "/", None, 0.0) for i in range(5)]
    assert books.close(records[0], "aborted", 1.0) and not books.close(records[0], "finished", 2.0)
    assert [r.id for r in books.records] == ["2", "3", "4"]
    assert books.ended["aborted"] == 1 and books.ended["finished"] == 0


def test_the_guide_lists_every_kind() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "engine.md").read_text()
    assert re.findall(r"^\| `([a-z0-9-]+)` \|", guide, re.MULTILINE) == [k.value for k in Kind]


def test_a_wrong_model_and_chunks_after_the_end(shared_engine: EngineProcess) -> None:
    assert shared_engine.chat(fault="wrong-model", max_tokens=1).json()["model"] == "forebay-other"
    stream = shared_engine.chat(fault="after-done=2", max_tokens=3, stream=True)
    events = stream.events()
    assert events[-3] == b"[DONE]"
    assert all(json.loads(e)["choices"][0]["delta"]["content"] for e in events[-2:])


def test_html_has_the_status_asked_for(shared_engine: EngineProcess) -> None:
    page = shared_engine.chat(fault="html=502")
    assert (page.status, page.headers["content-type"], page.body[:15]) == (502, "text/html", b"<!DOCTYPE html>")


@pytest.mark.parametrize("stream", [True, False])
def test_a_connection_closes_though_the_head_keeps_it(shared_engine: EngineProcess, stream: bool) -> None:
    with shared_engine.open_chat(fault="close-idle", max_tokens=1, stream=stream) as sock:
        data = read_until(sock, b"\x00never")  # to the close
    assert b"HTTP/1.1 200" in data and b"connection: close" not in data.lower()
    assert data.endswith(b"0\r\n\r\n" if stream else b"}")


def test_a_restart_forgets_the_cache_and_cuts_what_runs(start_engine: Callable[..., EngineProcess]) -> None:
    engine = start_engine("--enable-prompt-tokens-details")

    def cached() -> Any:
        return engine.chat("word " * 50, max_tokens=1).json()["usage"]["prompt_tokens_details"]["cached_tokens"]

    assert cached() == 0 and cached() > 0
    with engine.open_chat(stream=True, max_tokens=4000) as sock:
        read_until(sock, b'"content":"')
        assert engine.ask("PUT", "/control/faults", ["kv-size=16384"]).status == 200
        assert b"[DONE]" not in read_until(sock, b"\x00never")
    assert cached() == 0 and cached() > 0
    assert 'kv_cache_size_tokens="16384"' in engine.ask("GET", "/metrics").body.decode()
    assert engine.ask("PUT", "/control/faults", ["kv-size=16"]).status == 400
    books = engine.books()
    assert (books["finished"], books["faulted"], books["open"]) == (4, 1, 0)
    engine.ask("PUT", "/control/faults", [{"kind": "restart", "arg": 0.3}])
    with pytest.raises(ConnectionRefusedError):
        engine.ask("GET", "/health")
    assert eventually(lambda: answers(engine))
    assert cached() == 0


def answers(engine: EngineProcess) -> bool:
    try:
        return engine.ask("GET", "/health").status == 200
    except ConnectionRefusedError:
        return False


def test_pages_of_another_engine_of_html_and_of_nobody(start_engine: Callable[..., EngineProcess]) -> None:
    engine = start_engine("--fault", "other-metrics")
    assert engine.ask("GET", "/metrics").body.startswith(b"# TYPE tgi_batch_max_total_tokens gauge")
    engine.ask("PUT", "/control/faults", ["html-metrics"])
    assert engine.ask("GET", "/metrics").headers["content-type"] == "text/html"
    engine.ask("PUT", "/control/faults", ["deaf"])
    with pytest.raises(TimeoutError):
        engine.ask("GET", "/health", timeout=0.2)
    engine.ask("DELETE", "/control/faults")
    assert engine.ask("GET", "/health").status == 200
