"""What requests show of an engine: breakers, rests, stalls; and engines that die under load."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from campaigns import engines as campaign
from e2e.client import KEY, Answer, chat
from e2e.engine import (
    DONE,
    ROLE,
    RawEngine,
    Script,
    Talk,
    chunk,
    delta,
    event,
    reply_ok,
    says,
    stream_head,
    whole,
)
from e2e.gateway import Gateway
from waiting import eventually

COUNTED: dict[str, dict[str, str]] = {
    **{e: {"name": "forebay_engine_breaker_total", "event": e} for e in ("failures", "stalled", "closed")},
    "moved": {"name": "forebay_upstream_errors_total", "failure": "stalled"},
    "retries": {"name": "forebay_retries_total"},
}
HEALTH = {"failures": 3, "open": 0.3, "probes": 2, "slow_start": 0, "stall_least": 0.6, "stall_gaps": 2}


class Pair:
    """Two engines with one model, whose every answer a test decides, behind a gateway that looks at them rarely."""

    def __init__(self) -> None:
        self.left, self.right = RawEngine(["pair"]), RawEngine(["pair"])
        entries = [
            {"name": n, "url": f"http://127.0.0.1:{e.port}", "models": ["pair"], "health_interval": 0.5}
            for n, e in (("left", self.left), ("right", self.right))
        ]
        self.gateway = Gateway(
            {
                "listeners": [{"address": "127.0.0.1:0"}],
                "engines": entries,
                "callers": {"keys": [{"name": "e2e", "key": KEY}]},
                "retries": {"budget": 1.0},
                "health": HEALTH,
                "placement": {"policy": "round_robin"},
            }
        )
        self.gateway.wait_until_ready("pair")

    def begin(self) -> None:
        """Nothing of the test before is left."""
        self.plays(reply_ok)
        eventually(lambda: self.ask() == [200] and self.state("left") == self.state("right") == "healthy", 30)
        for engine in (self.left, self.right):
            engine.seen.clear()
        self._before = {name: self._metrics(**labels) for name, labels in COUNTED.items()}
        self._said = len(self.gateway.log.read_text())

    def counted(self, name: str) -> float:
        """Of `COUNTED`, since the test began."""
        return self._metrics(**COUNTED[name]) - self._before[name]

    def said(self, text: str) -> int:
        return self.gateway.log.read_text()[self._said :].count(text)

    def _metrics(self, name: str, **labels: str) -> float:
        return self.gateway.metric(name, **labels)

    def plays(self, left: Script, right: Script = reply_ok) -> None:
        self.left.scripts["-"], self.right.scripts["-"] = left, right

    def ask(self, times: int = 1, **fields: Any) -> list[int]:
        return [self.gateway.ask(chat("pair", **fields)).status for _ in range(times)]

    def state(self, name: str = "left") -> str:
        rows = json.loads(self.gateway.admin("/admin/engines")[1])["engines"]
        return next(row["state"] for row in rows if row["name"] == name)

    def counts(self) -> tuple[int, int]:
        return self.left.total(), self.right.total()


@pytest.fixture(scope="module")
def house() -> Iterator[Pair]:
    made = Pair()
    try:
        yield made
    finally:
        made.left.close()
        made.right.close()
        made.gateway.stop()


@pytest.fixture
def pair(house: Pair) -> Pair:
    house.begin()
    return house


def test_a_breaker_opens_probes_and_closes(pair: Pair) -> None:
    """Its health checks pass all the time; the clients notice nothing."""
    pair.plays(says(whole(500, b"{}")))
    assert pair.ask(6) == [200] * 6
    eventually(lambda: pair.state() == "open")
    left = pair.left.total()
    assert left == 3
    eventually(lambda: pair.ask() == [200] and pair.left.total() > left)  # a probe, which fails, and is retried
    eventually(lambda: pair.state() == "open")
    assert pair.left.total() == left + 1
    pair.plays(reply_ok)
    eventually(lambda: pair.ask() == [200] and pair.state() == "healthy")
    assert pair.counted("closed") == 1
    assert pair.counted("failures") + pair.counted("stalled") >= 2  # a probe may stall on a busy machine
    assert pair.said("engine left gets no requests for now") == pair.said("engine left gets requests again") == 1


def test_both_broken_stay_in(pair: Pair) -> None:
    """Nobody is better off without the last one; each request is answered with what went wrong."""
    pair.plays(says(whole(500, b"{}")), says(whole(500, b"{}")))
    assert set(pair.ask(12)) == {502}
    assert sorted([pair.state("left"), pair.state("right")])[0] == "healthy"
    pair.plays(reply_ok)
    eventually(lambda: pair.ask() == [200] and {pair.state("left"), pair.state("right")} == {"healthy"})


def test_overload_is_no_failure(pair: Pair) -> None:
    """An engine that is full rests for as long as it asks, and is not taken out."""
    pair.plays(says(whole(503, b"{}", "retry-after: 2")))
    assert pair.ask(20) == [200] * 20
    assert pair.left.total() == 1
    assert pair.state() == "healthy"
    eventually(lambda: pair.ask() == [200] and pair.left.total() == 2)
    pair.plays(says(whole(503, b"{}", "retry-after: 2")), says(whole(429, b"{}", "retry-after: 2")))
    left, right = pair.counts()
    assert pair.ask(3) == [429] * 3  # where all rest, they are asked all the same
    assert pair.counts() == (left + 3, right + 3)
    assert {pair.state("left"), pair.state("right")} == {"healthy"}


@pytest.mark.parametrize("stream", [False, True])
def test_an_engine_that_accepts_and_never_answers(pair: Pair, stream: bool) -> None:
    """Its health checks pass; it is missed by what it does not send, and its requests are answered by the other."""
    release = threading.Event()

    def silent(talk: Talk) -> None:
        release.wait(20)
        talk.close()

    assert pair.ask(14, stream=stream) == [200] * 14  # what is usual must be known
    before = pair.left.total()
    pair.plays(silent)
    answers: list[list[int]] = []
    clients = [threading.Thread(target=lambda: answers.append(pair.ask(stream=stream))) for _ in range(6)]
    for client in clients:
        client.start()
    for client in clients:
        client.join(20)
    assert answers == [[200]] * 6
    assert pair.state() in ("stalled", "open")
    assert pair.counted("stalled") == 1
    assert pair.counted("moved") == pair.left.total() - before >= 1
    pair.plays(reply_ok)
    release.set()
    eventually(lambda: pair.ask() == [200] and pair.state() == "healthy")


def test_slow_is_not_dead(pair: Pair) -> None:
    """An engine that goes quiet gets nothing new; once it speaks again it is back at once, and its stream is whole."""
    speak = threading.Event()

    def pausing(talk: Talk) -> None:
        talk.send(stream_head(), chunk(ROLE + event(delta({"content": "Hi"}))))
        speak.wait(20)
        talk.send(chunk(event(delta({"content": "!"}))))
        eventually(lambda: pair.state(name) == "healthy")
        talk.send(chunk(event(delta({"content": "!"}, "stop")) + DONE), b"0\r\n\r\n")

    pair.plays(pausing, pausing)
    answers: list[Answer] = []
    client = threading.Thread(target=lambda: answers.append(pair.gateway.ask(chat("pair", stream=True))))
    client.start()
    eventually(lambda: sum(pair.counts()) == 1)
    name, other = ("left", "right") if pair.left.total() else ("right", "left")
    eventually(lambda: pair.state(name) in ("stalled", "open"))
    pair.plays(reply_ok)
    assert pair.ask(4) == [200] * 4
    assert pair.state(other) == "healthy"
    speak.set()
    client.join(20)
    assert answers[0].whole and answers[0].body.endswith(DONE)
    assert pair.counted("retries") == 0


def test_two_requests_of_one_id(pair: Pair) -> None:
    """Each client gets its own answer, and one that is retried takes nothing from its namesake."""
    one, both = threading.Event(), threading.Event()

    def breaks(talk: Talk) -> None:
        assert one.wait(20)
        talk.send(whole(500, b"{}"))

    def waits(talk: Talk) -> None:
        """Until both requests are here."""
        (both if one.is_set() else one).set()
        assert both.wait(20)
        seed = talk.request.json["seed"]
        talk.send(stream_head(), chunk(event(delta({"content": f"seed {seed}"}, "stop")) + DONE), b"0\r\n\r\n")

    pair.plays(breaks, waits)
    answers: dict[int, Answer] = {}

    def client(seed: int) -> None:
        body = chat("pair", stream=True, seed=seed)
        answers[seed] = pair.gateway.ask(body, headers={"x-request-id": "the-same"})

    clients = [threading.Thread(target=client, args=(i,)) for i in (1, 2)]
    for thread in clients:
        thread.start()
    for thread in clients:
        thread.join(20)
    for seed, answer in answers.items():
        assert (answer.status, answer.whole, answer.get("x-request-id")) == (200, True, "the-same")
        assert f'"seed {seed}"'.encode() in answer.body
    assert len(answers) == 2


def test_killed_frozen_and_restarted_under_load() -> None:
    """Show 4 in small: `make campaign-engines` is the long version."""
    result = campaign.run(3, seconds=3.0, clients=8)
    assert not result.problems(), "\n".join(result.problems())
    assert {t.way for t in result.troubles} == set(campaign.WAYS)
    assert result.verdicts["ok"] > 50
