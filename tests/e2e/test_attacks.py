"""What was once possible to somebody who meant harm, or to an engine that splits its stream where nobody expects it."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import re
import select
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from e2e.client import Answer, chat, new_id, request
from e2e.conftest import ENGINE_KEY, LOW_KEY, Engines
from e2e.engine import ANSWER, DONE, USAGE, Script, Talk, chunk, event, says, stream_head, whole
from e2e.gateway import Gateway
from waiting import eventually

MiB = 1 << 20

# --- events cut anywhere ----------------------------------------------------------------------------------------------


def vllm(delta: dict[str, object], finish: str | None = None, **more: object) -> bytes:
    """An event as vLLM writes it."""
    return event(
        {
            "id": "chatcmpl-a9bd47762c9d7606",
            "object": "chat.completion.chunk",
            "created": 1795955823,
            "model": "raw",
            "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish, "token_ids": None}],
            **more,
        }
    )


def word(text: str, finish: str | None = None) -> bytes:
    return vllm({"content": text}, finish)


FIRST = vllm({"role": "assistant", "content": ""}, prompt_token_ids=None, prompt_text=None)
USAGE_EVENT = event(
    {
        "id": "chatcmpl-a9bd47762c9d7606",
        "object": "chat.completion.chunk",
        "created": 1795955823,
        "model": "raw",
        "choices": [],
        "usage": USAGE,
    }
)
LENGTH = len(word("cut"))


def writes(*pieces: bytes, pause: float = 0.002) -> Script:
    """A stream's bytes as they are given, framing and all, each far enough from the next to be a read of its own."""

    def script(talk: Talk) -> None:
        talk.send(stream_head())
        for piece in pieces:
            talk.send(piece)
            time.sleep(pause)

    return script


def play(gateway: Gateway, engines: Engines, script: Script) -> Answer:
    test = new_id("cut")
    engines.raw.scripts[test] = script
    return gateway.ask(chat(stream=True), x_test=test)


@pytest.mark.parametrize("ahead", [0, 1, 3], ids=lambda n: f"after {n}")
@pytest.mark.parametrize("at", [1, 5, 6, 7, 60, LENGTH // 2, LENGTH - 3, LENGTH - 2, LENGTH - 1])
@pytest.mark.parametrize("whole_before", [True, False], ids=["event and a half", "half"])
def test_half_an_event_then_the_rest(
    gateway: Gateway, engines: Engines, at: int, ahead: int, whole_before: bool
) -> None:
    """Nothing overtakes the half that is held, however well the shape of what follows is known."""
    cut = word("cut")
    before = word("whole") if whole_before else b""
    learned = [word(f"w{i}") for i in range(ahead)]
    told = [FIRST, *learned, before + cut[:at], cut[at:], word("E"), word("F"), word("", "stop"), DONE]
    answer = play(gateway, engines, writes(*map(chunk, told), chunk(b"")))
    assert answer.whole
    assert answer.body == b"".join(told)


@pytest.mark.parametrize("at", [1, 40, LENGTH - 1])
def test_half_an_event_then_the_rest_and_more(gateway: Gateway, engines: Engines, at: int) -> None:
    cut = word("cut")
    told = [FIRST, word("A"), word("B"), cut[:at], cut[at:] + cut[:at], cut[at:] + word("E"), word("", "stop"), DONE]
    answer = play(gateway, engines, writes(*map(chunk, told), chunk(b"")))
    assert answer.whole
    assert answer.body == b"".join(told)


TEXTS = ["a", "bb", " the", "é", "日本", 'q"\\', "\n", "", "[DONE]", "x" * 50, "x" * 300, "x" * 3000]


def some_stream(rnd: random.Random) -> tuple[list[bytes], bytes]:
    """The events told by an engine, and what a client that did not ask for usage is to receive."""
    told = [FIRST]
    for _ in range(rnd.randint(4, 22)):
        text = rnd.choice(TEXTS)
        told.append(rnd.choice([word(text)] * 12 + [b": ping\n\n", vllm({"content": text}, usage=None)]))
    told.append(word("", "stop"))
    hidden = [USAGE_EVENT] if rnd.random() < 0.7 else []
    return [*told, *hidden, DONE], b"".join([*told, DONE])


def cut_anywhere(rnd: random.Random, data: bytes) -> list[bytes]:
    pieces = []
    while data:
        size = rnd.choice([1, 3, 40, 100, LENGTH - 1, LENGTH, LENGTH + 1, 700, 4000])
        pieces.append(data[:size])
        data = data[size:]
    return pieces


def joined_and_halved(rnd: random.Random, pieces: list[bytes]) -> list[bytes]:
    """As engines do under load: some together, some in two."""
    out: list[bytes] = []
    while pieces:
        count = rnd.choice([1, 1, 1, 2, 3])
        block, pieces = b"".join(pieces[:count]), pieces[count:]
        at = rnd.randint(1, len(block) - 1)
        out += [block[:at], block[at:]] if rnd.random() < 0.4 else [block]
    return out


Cut = Callable[[random.Random, list[bytes]], list[bytes]]
CHUNKS: dict[str, Cut] = {
    "an event a chunk": lambda _, told: told,
    "events joined and halved": joined_and_halved,
    "chunks anywhere": lambda rnd, told: cut_anywhere(rnd, b"".join(told)),
}
WRITES: dict[str, Cut] = {
    "a chunk a write": lambda _, chunks: chunks,
    "chunks joined and halved": joined_and_halved,
    "writes anywhere": lambda rnd, chunks: cut_anywhere(rnd, b"".join(chunks)),
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("cut", CHUNKS)
def test_a_stream_cut_at_random(gateway: Gateway, engines: Engines, cut: str, write: str) -> None:
    """In chunks and in TCP segments."""
    for seed in range(8):
        rnd = random.Random(f"{cut} {write} {seed}")
        told, expected = some_stream(rnd)
        chunks = [*map(chunk, CHUNKS[cut](rnd, told)), chunk(b"")]
        answer = play(gateway, engines, writes(*WRITES[write](rnd, chunks), pause=0.001))
        assert answer.whole, seed
        assert answer.body == expected, seed


# --- what one connection may hold -------------------------------------------------------------------------------------


def resident(gateway: Gateway) -> int:
    """Bytes of the worker's memory now; its highest mark is set back to it."""
    process = Path(f"/proc/{gateway.worker_pid()}")
    (process / "clear_refs").write_text("5")
    found = re.search(r"VmRSS:\s+(\d+) kB", (process / "status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def test_answers_that_nobody_reads(gateway: Gateway) -> None:
    """20,000 requests in a row and not one answer read: little is held, nobody else waits; and once they are read,
    all come, in order."""
    count = 20_000
    data = b"".join(request(path="/v1/models", method="GET", x_request_id=f"p{i}") for i in range(count))
    with contextlib.closing(socket.socket()) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(gateway.where)
        sock.setblocking(False)
        before = resident(gateway)
        slowest, sent = 0.0, 0
        turns = 60  # of the worker's loop, each of which reads some of what was sent
        while turns:
            if sent < len(data) and select.select([], [sock], [], 0)[1]:
                sent += sock.send(data[sent : sent + 250_000])
            else:
                turns -= 1
            begun = time.monotonic()
            assert gateway.ask(path="/v1/models", method="GET").status == 200
            slowest = max(slowest, time.monotonic() - begun)
        assert slowest < 2
        assert gateway.memory() - before < 60 * MiB

        got = bytearray()
        ids: list[int] = []
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        until = time.monotonic() + 60
        while len(ids) < count:
            assert time.monotonic() < until, len(ids)
            readable, writable, _ = select.select([sock], [sock] if sent < len(data) else [], [], 10)
            assert readable or writable, len(ids)
            if writable:
                sent += sock.send(data[sent : sent + 65536])
            if readable:
                read = sock.recv(1 << 20)
                assert read, "closed"
                got += read
                end = got.rfind(b"\r\n\r\n") + 1
                ids += [int(x) for x in re.findall(rb"\r\nx-request-id: p(\d+)\r\n", got[: end + 1])]
                del got[:end]
    assert ids == list(range(count))
    assert gateway.memory() - before < 60 * MiB


def test_a_crowd_that_reads_nothing(gateway: Gateway) -> None:
    """A read of the server's may hold thousands of small requests: no more are parsed than may be ahead."""
    data = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" * 20_000
    with contextlib.ExitStack() as stack:
        socks = []
        for _ in range(20):
            sock = stack.enter_context(contextlib.closing(socket.socket()))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.connect(gateway.where)
            sock.setblocking(False)
            socks.append(sock)
        before = resident(gateway)
        slowest = 0.0
        for sock in socks * 3:
            with contextlib.suppress(BlockingIOError):
                sock.send(data)
            begun = time.monotonic()
            assert gateway.ask(path="/v1/models", method="GET").status == 200
            slowest = max(slowest, time.monotonic() - begun)
        assert slowest < 2
        assert gateway.memory() - before < 60 * MiB


@pytest.mark.parametrize("lines", [100, 3000, 9000])
def test_a_head_of_many_lines_without_an_end(gateway: Gateway, lines: int) -> None:
    with gateway.client() as client:
        client.try_send(b"GET /v1/models HTTP/1.1\r\nHost: g\r\n" + b"a:\r\n" * lines)
        answer = client.read()
        assert (answer.status, answer.get("connection")) == (431, "close")


# --- keys -------------------------------------------------------------------------------------------------------------


def test_a_key_revoked_while_a_body_comes(gateway: Gateway, engines: Engines) -> None:
    made = json.loads(gateway.cli("key", "create", "--name", "slow-body", "--json"))
    key, key_id = made["key"], made["record"]["id"]
    somewhere = {"X-Forwarded-For": "198.51.200.1"}
    eventually(lambda: gateway.ask(chat(), key=key, headers=somewhere).status == 200)
    test = new_id("revoked")
    data = request(chat(), key=key, x_test=test)
    with gateway.client() as client:
        client.send(data[:-5])
        gateway.cli("key", "revoke", key_id)
        eventually(lambda: gateway.ask(chat(), key=key, headers=somewhere).status == 401)
        client.send(data[-5:])
        answer = client.read()
    assert (answer.status, answer.error["code"]) == (401, "revoked_api_key")
    assert engines.raw.requests(test) == []


def test_ids_cannot_be_guessed(gateway: Gateway) -> None:
    with gateway.client() as client:
        ids = []
        for _ in range(300):
            client.send(request(path="/v1/models", method="GET"))
            ids.append(client.read().get("x-request-id") or "")
    assert all(re.fullmatch("req-[0-9a-f]{24}", x) for x in ids), ids[:3]
    for part in (slice(4, 16), slice(16, 28)):  # neither half is a prefix or a count
        assert len({x[part] for x in ids}) == len(ids)
        numbers = [int(x[part], 16) for x in ids]
        steps = [abs(b - a) for a, b in itertools.pairwise(numbers)]
        assert min(steps) > 1 << 16


def test_a_known_id_of_another_key_is_not_cancelled(gateway: Gateway, engines: Engines) -> None:
    test, go_on = new_id("foreign"), threading.Event()

    def script(talk: Talk) -> None:
        talk.send(stream_head(), chunk(FIRST + word("A")))
        go_on.wait(10)
        talk.send(chunk(word("B", "stop") + DONE), chunk(b""))

    engines.raw.scripts[test] = script
    with gateway.client() as client:
        client.send(request(chat(stream=True), key=LOW_KEY, x_test=test))
        answer = client.head()
        request_id = answer.get("x-request-id")
        cancelled = gateway.ask(path=f"/v1/requests/{request_id}/cancel")
        assert (cancelled.status, cancelled.error["code"]) == (404, "request_not_found")
        assert gateway.ask(path=f"/v1/requests/{request_id}/cancel", key=None).status == 401
        go_on.set()
        client.body(answer)
    assert answer.whole
    assert answer.body == FIRST + word("A") + word("B", "stop") + DONE


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("status", [401, 403, 407])
def test_an_engine_s_words_about_credentials_stay(
    gateway: Gateway, engines: Engines, status: int, stream: bool
) -> None:
    test = new_id("echo")

    def script(talk: Talk) -> None:
        said = talk.request.get("authorization")
        talk.send(whole(status, json.dumps({"error": {"message": f"Invalid key: {said}"}}).encode()))

    engines.raw.scripts[test] = script
    answer = gateway.ask(chat(stream=stream), x_test=test)
    assert engines.raw.requests(test)[0].get("authorization") == f"Bearer {ENGINE_KEY}"
    assert (answer.status, answer.message) == (502, f"The engine failed: it answered {status}.")
    assert ENGINE_KEY not in str(answer)
    assert ENGINE_KEY not in gateway.log.read_text()
    assert gateway.ask(chat()).status == 200


# --- requests ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [b"1" * 5000, b"-" + b"7" * 5000, b"1" * 5000 + b".5", b"1e" + b"9" * 5000])
def test_the_model_twice_and_an_endless_number(gateway: Gateway, engines: Engines, number: bytes) -> None:
    """Served with the model named once, or refused."""
    test = new_id("digits")
    engines.raw.scripts[test] = says(whole(200, ANSWER))
    message = b'"messages":[{"role":"user","content":"x"}]'
    answer = gateway.ask(b'{"model":"raw",' + message + b',"model":"raw","x":' + number + b"}", x_test=test)
    got = engines.raw.requests(test)
    if answer.status == 200:
        assert [r.body.count(b'"model"') for r in got] == [1]
    else:
        assert 400 <= answer.status < 500, answer
        assert got == []


def test_a_browser_that_says_no_content_type(gateway: Gateway, engines: Engines) -> None:
    """Such a request comes from any page without leave having been asked first."""
    test = new_id("browser")
    kind = b"Content-Type: application/json\r\n"
    data = request(chat(), x_test=test, Origin="http://evil.example")
    assert kind in data
    answer = gateway.raw(data.replace(kind, b""))
    assert answer.status == 415
    assert engines.raw.requests(test) == []
    assert gateway.raw(request(chat(), x_test=test).replace(kind, b"")).status == 200
