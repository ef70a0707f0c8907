"""SGLang's handover over real sockets: both engines are asked at once, and meet in a room."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from e2e.client import KEY, Answer, chat, new_id, request
from e2e.engine import ANSWER, DONE, ROLE, RawEngine, Script, Talk, chunk, delta, event, says, stream_head, whole
from e2e.gateway import Gateway
from engine_process import EngineProcess
from waiting import eventually, read_until

WORD = event(delta({"content": "Hi"}))
LAST = event(delta({}, "stop"))
MODELS = 13


@dataclass
class Rooms:
    """Where the two meet: the decode engine answers once the prefill engine is there."""

    there: dict[int, threading.Event] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def of(self, talk: Talk) -> threading.Event:
        with self.lock:
            return self.there.setdefault(talk.request.json["bootstrap_room"], threading.Event())

    def prefills(self, talk: Talk) -> None:
        self.of(talk).set()
        self.answers(talk)

    def decodes(self, talk: Talk) -> None:
        assert self.of(talk).wait(10)
        self.answers(talk)

    @staticmethod
    def answers(talk: Talk) -> None:
        if talk.request.json.get("stream"):
            talk.send(stream_head(), *(chunk(e) for e in (ROLE, WORD, LAST, DONE)), chunk(b""))
        else:
            talk.send(whole(200, ANSWER))


@dataclass
class Pools:
    gateway: Gateway
    prefill: RawEngine
    other: RawEngine
    decode: RawEngine
    rooms: Rooms
    left: Iterator[int] = field(default_factory=lambda: iter(range(MODELS)))

    def play(self, prefill: Script | None = None, decode: Script | None = None) -> tuple[str, str]:
        """A fresh model and the name of its scripts."""
        model, test = f"m{next(self.left)}", new_id("sgl")
        self.prefill.scripts[test] = prefill or self.rooms.prefills
        self.other.scripts[test] = self.rooms.prefills
        self.decode.scripts[test] = decode or self.rooms.decodes
        return model, test

    def ask(self, model: str, test: str, *, stream: bool = True) -> Answer:
        return self.gateway.ask(chat(model, stream=stream), x_test=test, x_request_id=test)


@pytest.fixture(scope="module")
def pools() -> Iterator[Pools]:
    names = [f"m{i}" for i in range(MODELS)]
    raws = prefill, other, decode = [RawEngine(names) for _ in range(3)]
    engines = []
    for name in [*names, "alone"]:
        roles = [("p", prefill, "prefill"), ("d", decode, "decode")]
        if name == "m0":
            roles.append(("q", other, "prefill"))
        for letter, engine, role in roles:
            engines.append(
                {
                    "name": f"{letter}-{name}",
                    "url": f"http://127.0.0.1:{engine.port}",
                    "kind": "sglang",
                    "models": [name],
                    "role": role,
                    "bootstrap_port": 9001,
                    "health_interval": 0.5,
                    "unhealthy_after": 1 if name == "alone" else 100,
                }
            )
    next(e for e in engines if e["name"] == "p-m1")["bootstrap_host"] = "prefill.internal"
    next(e for e in engines if e["name"] == "p-alone")["url"] = "http://127.0.0.1:1"
    made = Gateway(
        {
            "listeners": [{"address": "127.0.0.1:0"}],
            "engines": engines,
            "callers": {"keys": [{"name": "e2e", "key": KEY}]},
            "retries": {"budget": 1.0},
            "timeouts": {"first_byte": 3.0},
            "disaggregation": {"longest": 1.0},
        }
    )
    try:
        made.wait_until_ready("m0", f"m{MODELS - 1}")
        yield Pools(made, prefill, other, decode, Rooms())
    finally:
        made.stop()
        for engine in raws:
            engine.close()


@pytest.mark.parametrize("stream", [True, False])
def test_both_get_the_same_request_and_a_room(pools: Pools, stream: bool) -> None:
    next(pools.left) if stream else None  # m0 has two prefill engines
    model, test = pools.play()
    answer = pools.ask(model, test, stream=stream)
    assert answer.status == 200 and answer.whole and b"Hi" in answer.body
    body = pools.prefill.one(test).body
    assert body == pools.decode.one(test).body
    asked = json.loads(body)
    assert asked["bootstrap_host"] == ("prefill.internal" if model == "m1" else "127.0.0.1")
    assert asked["bootstrap_port"] == 9001 and 0 <= asked["bootstrap_room"] < 1 << 63
    assert asked.get("stream", False) is stream
    line = pools.gateway.logged(test)
    assert (line["engine"], line["prefill"], line["attempts"]) == (f"d-{model}", f"p-{model}", 1)


def test_no_room_is_used_twice_and_none_is_the_clients(pools: Pools) -> None:
    model, test = pools.play()
    for _ in range(3):
        body = chat(model, stream=True, bootstrap_room=7, bootstrap_host="10.0.0.1", n=2)
        assert pools.gateway.ask(body, x_test=test).status == 200
    rooms = {r.json["bootstrap_room"] for r in pools.decode.requests(test)}
    assert len(rooms) == 3 and 7 not in rooms
    assert {r.json["bootstrap_host"] for r in pools.decode.requests(test)} == {"127.0.0.1"}


def test_a_clients_own_rid_is_not_sent(pools: Pools) -> None:
    """SGLang refuses a rid that is in flight: two clients with the same one would be in each other's way."""
    model, test = pools.play()
    answer = pools.gateway.ask(chat(model, rid="mine", seed=7), x_test=test)
    assert answer.status == 200
    for engine in (pools.prefill, pools.decode):
        sent = engine.one(test).json
        assert "rid" not in sent and sent["seed"] == 7


def test_a_decode_engine_without_a_prefill_engine_serves_nobody(pools: Pools) -> None:
    answer = pools.gateway.ask(chat("alone"))
    assert (answer.status, answer.error["code"]) == (503, "no_engine")
    eventually(lambda: "none of its prefill engines takes requests" in pools.gateway.ask(chat("alone")).message)


@pytest.mark.parametrize("how", ["reset", "500", "503", "silent"])
def test_a_prefill_that_fails_drops_the_decode_call(pools: Pools, how: str) -> None:
    gone = threading.Event()

    def waits(talk: Talk) -> None:
        talk.wait_gone()
        gone.set()

    def reset(talk: Talk) -> None:
        talk.reset()

    script = reset if how == "reset" else waits if how == "silent" else says(whole(int(how), b"{}"))
    model, test = pools.play(script, waits)
    answer = pools.ask(model, test)
    assert answer.status == 503 if how != "503" else answer.status in (429, 503)
    assert gone.wait(10)
    eventually(lambda: pools.gateway.metric("forebay_engine_in_flight", engine=f"p-{model}") == 0)
    assert pools.gateway.metric("forebay_engine_in_flight", engine=f"d-{model}") == 0


def test_another_prefill_engine_is_asked(pools: Pools) -> None:
    test = new_id("sgl")

    def reset(talk: Talk) -> None:
        talk.reset()

    def once(talk: Talk) -> None:
        if len(pools.decode.requests(test)) == 1:
            talk.wait_gone()
        else:
            pools.rooms.decodes(talk)

    for engine in (pools.prefill, pools.other):
        engine.scripts[test] = reset if engine is pools.prefill else pools.rooms.prefills
    pools.decode.scripts[test] = once
    answer = pools.gateway.ask(chat("m0", stream=True), x_test=test, x_request_id=test)
    if not pools.prefill.requests(test):  # its turn is the next
        pytest.fail("the first prefill engine was not asked first")
    assert answer.status == 200 and b"Hi" in answer.body
    line = pools.gateway.logged(test)
    assert (line["prefill"], line["attempts"]) == ("q-m0", 2)
    first, second = (r.json["bootstrap_room"] for r in pools.decode.requests(test))
    assert first != second


def test_what_the_prefill_engine_says_of_a_bad_request_is_the_clients(pools: Pools) -> None:
    refused = b'{"error":{"message":"too long","type":"x","param":null,"code":400}}'
    model, test = pools.play(says(whole(400, refused)), lambda talk: talk.wait_gone())
    answer = pools.ask(model, test)
    assert (answer.status, answer.body) == (400, refused)


def test_a_client_that_leaves_ends_both(pools: Pools) -> None:
    left = [threading.Event(), threading.Event()]

    def prefill(talk: Talk) -> None:
        talk.wait_gone()
        left[0].set()

    def decode(talk: Talk) -> None:
        talk.send(stream_head(), chunk(ROLE), chunk(WORD))
        talk.wait_gone()
        left[1].set()

    model, test = pools.play(prefill, decode)
    with pools.gateway.client() as client:
        client.send(request(chat(model, stream=True), x_test=test))
        read_until(client.sock, b"Hi")
    assert left[0].wait(10) and left[1].wait(10)


def test_an_emulated_pair_answers_and_hears_of_a_client_that_leaves() -> None:
    plain = ["--kind", "sglang", "--model", "sgl", "--keep-alive", "600"]
    prefill = EngineProcess([*plain, "--disaggregation-mode", "prefill", "--prefill-rate", "1500"])
    decode = EngineProcess([*plain, "--disaggregation-mode", "decode"])
    prefill.start()
    decode.start()
    roles = ((prefill, "prefill"), (decode, "decode"))
    gateway = Gateway(
        {
            "listeners": [{"address": "127.0.0.1:0"}],
            "engines": [
                {
                    "name": role,
                    "url": f"http://127.0.0.1:{engine.port}",
                    "kind": "sglang",
                    "models": ["sgl"],
                    "role": role,
                    "bootstrap_port": prefill.port,
                }
                for engine, role in roles
            ],
            "callers": {"keys": [{"name": "e2e", "key": KEY}]},
        }
    )
    try:
        gateway.wait_until_ready("sgl")
        answer = gateway.ask(chat("sgl", max_tokens=7, ignore_eos=True))
        assert answer.status == 200 and answer.json["usage"]["completion_tokens"] == 7
        prefill.until(lambda b: b["finished"] == 1)
        body = chat("sgl", stream=True, max_tokens=2000, ignore_eos=True)
        with gateway.client() as client:
            client.send(request(body))
            read_until(client.sock, b'"content":"')
        decode.until(lambda b: b["aborted"] == 1 and not b["open"])
        prefill.until(lambda b: not b["open"])
    finally:
        gateway.stop()
        prefill.stop()
        decode.stop()
