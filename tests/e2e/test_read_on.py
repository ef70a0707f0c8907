"""`on_client_gone: drain`: an answer that is billed to its end is read to it, within bounds, and settled exactly."""

from __future__ import annotations

import json
import socket
import threading
import time
from typing import Any

import pytest

from e2e.client import KEY, Answer, chat, new_id, request
from e2e.engine import (
    ANSWER,
    DONE,
    ROLE,
    USAGE,
    USAGE_CHUNK,
    RawEngine,
    Script,
    Talk,
    chunk,
    delta,
    event,
    stream_head,
    whole,
)
from e2e.gateway import Gateway
from waiting import eventually

Spoken = tuple[Gateway, RawEngine]
WORD = event(delta({"content": "Hi"}))
LAST = event(delta({"content": "!"}, "stop"))
REST = (*map(chunk, (LAST, event(USAGE_CHUNK), DONE)), b"0\r\n\r\n")
EXACT = ("client_gone", "exact", USAGE["prompt_tokens"], USAGE["completion_tokens"])


class Scene:
    """An engine that waits for its cue in the middle of its answer, and a client that leaves there."""

    def __init__(
        self,
        spoken: Spoken,
        first: tuple[bytes, ...] = (stream_head(), chunk(ROLE), chunk(WORD)),
        model: str = "metered",
    ) -> None:
        self.gateway, self.engine = spoken
        self.model = model
        self.test = new_id("on")
        self.cue = threading.Event()
        self.gone = threading.Event()
        self._first = first
        self._then: Script = lambda t: t.send(*REST)
        self.engine.scripts[self.test] = self._play

    def _play(self, talk: Talk) -> None:
        talk.send(*self._first)
        assert self.cue.wait(60)
        self._then(talk)

    def then(self, script: Script) -> None:
        def watched(talk: Talk) -> None:
            try:
                script(talk)
            finally:
                self.gone.set()

        self._then = watched

    def leave(self, *, stream: bool = True, heard: bool = True, **fields: Any) -> None:
        with self.gateway.client() as client:
            client.send(request(chat(self.model, stream=stream, **fields), x_test=self.test, x_request_id=self.test))
            self.engine.wait_for(self.test)
            if heard:
                client.head()
        eventually(lambda: self.gateway.metric("forebay_requests_live") == 0)

    def settled(self) -> tuple[Any, ...]:
        line = self.gateway.logged(self.test)
        assert len(self.engine.requests(self.test)) == 1
        eventually(lambda: self.gateway.metric("forebay_engine_in_flight", engine=self.model) == 0)
        return line["outcome"], line["settled"], line.get("tokens_in"), line.get("tokens_out")


def test_a_stream_that_was_left(spoken: Spoken) -> None:
    scene = Scene(spoken)
    before = scene.gateway.metric("forebay_settled_total", how="exact")
    scene.leave()
    assert scene.gateway.metric("forebay_requests_drained") == 1
    scene.cue.set()
    assert scene.settled() == EXACT
    assert scene.gateway.metric("forebay_requests_drained") == 0
    assert scene.gateway.metric("forebay_settled_total", how="exact") == before + 1


@pytest.mark.parametrize("first", [(), (stream_head(), chunk(ROLE))], ids=["before the head", "held before content"])
def test_a_stream_that_was_left_before_its_content(spoken: Spoken, first: tuple[bytes, ...]) -> None:
    scene = Scene(spoken, first)
    scene.leave(heard=False)
    scene.then(lambda t: t.send(*(() if first else (stream_head(),)), chunk(WORD), *REST))
    scene.cue.set()
    assert scene.settled() == EXACT


def test_a_whole_answer_that_was_left(spoken: Spoken) -> None:
    scene = Scene(spoken, ())
    scene.then(lambda t: t.send(whole(200, ANSWER)))
    scene.leave(stream=False, heard=False)
    scene.cue.set()
    assert scene.settled() == EXACT


def test_a_cancelled_stream_has_its_end_at_once_and_is_settled_later(spoken: Spoken) -> None:
    scene = Scene(spoken)
    with scene.gateway.client() as client:
        client.send(request(chat("metered", stream=True), x_test=scene.test, x_request_id=scene.test))
        answer = client.head()
        found = scene.gateway.ask({}, f"/v1/requests/{scene.test}/cancel")
        assert found.json["cancelled"] == 1
        client.body(answer)
    assert b'"code":"request_cancelled"' in answer.body and not answer.whole
    assert scene.gateway.ask({}, f"/v1/requests/{scene.test}/cancel").status == 404
    scene.cue.set()
    assert scene.settled() == ("cancelled", *EXACT[1:])


def test_a_cancelled_unary_request(spoken: Spoken) -> None:
    scene = Scene(spoken, ())
    scene.then(lambda t: t.send(whole(200, ANSWER)))
    with scene.gateway.client() as client:
        client.send(request(chat("metered"), x_test=scene.test, x_request_id=scene.test))
        scene.engine.wait_for(scene.test)
        scene.gateway.ask({}, f"/v1/requests/{scene.test}/cancel")
        answer: Answer = client.read()
    assert (answer.status, answer.error["code"]) == (499, "request_cancelled")
    scene.cue.set()
    assert scene.settled() == ("cancelled", *EXACT[1:])
    assert scene.gateway.logged(scene.test)["status"] == 499


def test_a_stream_paused_by_back_pressure_is_read_on(spoken: Spoken) -> None:
    """The client reads nothing, so the gateway had stopped reading; it must begin again."""
    gateway, engine = spoken
    test = new_id("on")
    long = [event(delta({"content": "x" * 60_000}))] * 200

    def script(talk: Talk) -> None:
        talk.send(stream_head(), *map(chunk, (ROLE, WORD)))
        talk.sock.settimeout(0.5)
        try:
            for piece in long:
                talk.send(chunk(piece))
        except TimeoutError:
            stuck.set()
        talk.sock.settimeout(None)

    stuck = threading.Event()
    engine.scripts[test] = script
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        sock.connect(gateway.where)
        sock.sendall(request(chat("metered", stream=True), x_test=test, x_request_id=test))
        assert stuck.wait(60)
    line = gateway.logged(test)
    # What waited in the sockets is far over the bound of bytes, so reading on comes to that, and not to a stand-still.
    assert (line["outcome"], line["settled"]) == ("client_gone", "estimated")
    assert line["tokens_out"] >= 1


def test_over_the_bound_of_bytes_it_is_cancelled_and_estimated(spoken: Spoken) -> None:
    scene = Scene(spoken)

    def floods(talk: Talk) -> None:
        talk.send(*[chunk(event(delta({"content": "x" * 1_000})))] * 30)
        talk.wait_gone()

    scene.then(floods)
    scene.leave()
    scene.cue.set()
    outcome, how, tokens_in, tokens_out = scene.settled()
    assert (outcome, how) == ("client_gone", "estimated")
    assert 1 <= tokens_out <= 30 * 1_000 // 4 and 1 <= tokens_in <= 50
    assert scene.gone.wait(60)


def test_over_the_bound_of_seconds_it_is_cancelled_and_estimated(spoken: Spoken) -> None:
    scene = Scene(spoken, model="briefly")

    def trickles(talk: Talk) -> None:
        talk.sock.settimeout(0.2)
        while True:
            talk.send(chunk(WORD))
            try:
                if not talk.sock.recv(1):
                    return
            except TimeoutError:
                continue

    scene.then(trickles)
    before = scene.gateway.metric("forebay_tokens_total", kind="completion_estimated")
    left = time.monotonic()
    scene.leave()
    scene.cue.set()
    outcome, how, _, tokens_out = scene.settled()
    assert (outcome, how) == ("client_gone", "estimated") and tokens_out > 3
    assert 1.0 < time.monotonic() - left < 40  # it trickles for ever
    assert scene.gateway.metric("forebay_tokens_total", kind="completion_estimated") == before + tokens_out


def test_no_more_than_so_many_are_read_on_at_once(spoken: Spoken) -> None:
    scenes = [Scene(spoken) for _ in range(3)]
    scenes[2].then(Talk.wait_gone)
    for scene in scenes:
        scene.leave()
    assert scenes[2].gateway.metric("forebay_requests_drained") == 2
    assert scenes[2].gateway.logged(scenes[2].test)["settled"] == "estimated"
    for scene in scenes:
        scene.cue.set()
    assert [scene.settled()[1] for scene in scenes] == ["exact", "exact", "estimated"]
    assert scenes[2].gone.wait(60)


def fails(talk: Talk) -> None:
    talk.reset()


def errs(talk: Talk) -> None:
    talk.send(chunk(event({"error": {"message": "died", "code": 500}})), chunk(DONE), b"0\r\n\r\n")


@pytest.mark.parametrize("how", [fails, errs])
@pytest.mark.parametrize("begun", [True, False])
def test_an_engine_that_fails_then_is_not_asked_again(spoken: Spoken, how: Script, begun: bool) -> None:
    scene = Scene(spoken) if begun else Scene(spoken, (stream_head(), chunk(ROLE)))
    scene.then(how)
    scene.leave(heard=begun)
    scene.cue.set()
    outcome, settled, _, tokens_out = scene.settled()
    assert outcome == "client_gone"
    # An engine that refuses has not worked for it.
    assert settled == ("exact" if how is errs and not begun else "estimated")
    assert (tokens_out or 0) == (1 if begun else 0) or how is errs


def test_a_refusal_that_comes_then_cost_nothing(spoken: Spoken) -> None:
    scene = Scene(spoken, ())
    scene.then(lambda t: t.send(whole(400, json.dumps({"error": {"message": "no"}}).encode())))
    scene.leave(heard=False)
    scene.cue.set()
    assert scene.settled() == ("client_gone", "exact", None, None)


def test_shutdown_does_not_wait_for_them() -> None:
    engine = RawEngine(["slow"])
    entry = {"name": "slow", "url": f"http://127.0.0.1:{engine.port}", "models": ["slow"], "on_client_gone": "drain"}
    gateway = Gateway(
        {
            "engines": [entry],
            "listeners": [{"address": "127.0.0.1:0"}],
            "callers": {"keys": [{"name": "e2e", "key": KEY}]},
        }
    )
    stopped = False
    try:
        gateway.wait_until_ready("slow")
        gone = threading.Event()

        def script(talk: Talk) -> None:
            talk.send(stream_head(), chunk(ROLE), chunk(WORD))
            talk.wait_gone()
            gone.set()

        engine.scripts["shutdown"] = script
        with gateway.client() as client:
            client.send(request(chat("slow", stream=True), x_test="shutdown", x_request_id="left"))
            client.head()
        eventually(lambda: gateway.metric("forebay_requests_drained") == 1)
        began = time.monotonic()
        stopped = True
        log = gateway.log.open()
        gateway.stop()
        assert time.monotonic() - began < 60  # it would be read on for 120 s
        with log:
            line = next(json.loads(x) for x in log if '"left"' in x)
        assert (line["outcome"], line["settled"], line["tokens_out"]) == ("client_gone", "estimated", 1)
        assert gone.wait(60)
    finally:
        if not stopped:
            gateway.stop()
        engine.close()
