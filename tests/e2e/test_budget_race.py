"""Fifty callers race for a budget that has room for ten: ten pass, of whatever sort their requests are, each time."""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from e2e.client import CHAT, KEY, Answer, Client, request
from e2e.engine import DONE, ROLE, RawEngine, Talk, chunk, delta, event, stream_head, whole
from e2e.gateway import Gateway

RACERS, ROOM, ROUNDS = 50, 10, 5
MOST = 10_000
"""`max_tokens` of each; the budget has room for ten such and no eleventh, however a short prompt is estimated."""
PROMPT, ANSWER = 11, 7
"""What the engine says was used."""
KEYS = [f"race-key-{i:02}-0123456789abcdef" for i in range(2 * ROUNDS + 1)]
_keys = itertools.cycle(KEYS)


class Gate:
    """Answers of the engine wait until it is opened: a request that has its answer makes room for the next."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.fails = False

    def __call__(self, talk: Talk) -> None:
        assert self.opened.wait(20)
        usage = {"prompt_tokens": PROMPT, "completion_tokens": ANSWER, "total_tokens": PROMPT + ANSWER}
        if self.fails:
            talk.send(whole(500, b'{"error": {"message": "broken", "type": "server_error"}}'))
        elif talk.request.json.get("stream"):
            said = delta({"content": "Hi"}, "stop")
            last = {
                "id": "chatcmpl-1",
                "object": "chat.completion.chunk",
                "model": "raw",
                "choices": [],
                "usage": usage,
            }
            talk.send(stream_head(), *map(chunk, (ROLE, event(said), event(last), DONE)), chunk(b""))
        else:
            message = {"role": "assistant", "content": "Hi"}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            answer = {"id": "chatcmpl-1", "object": "chat.completion", "model": "raw", "choices": [choice]}
            talk.send(whole(200, json.dumps({**answer, "usage": usage}).encode()))


class Race:
    def __init__(self, gateway: Gateway, engine: RawEngine) -> None:
        self.gateway = gateway
        self.engine = engine
        self.names = (f"race-{i}" for i in itertools.count())

    def body(self, stream: bool) -> dict[str, object]:
        messages = [{"role": "user", "content": "Who is first?"}]
        return {"model": "raw", "messages": messages, "max_tokens": MOST, "stream": stream}

    def __call__(self, key: str, stream: bool, *, fails: bool = False) -> list[Answer]:
        """Every request is sent at one moment, each on a connection of its own; the engine answers none before all are
        there or refused. How they were answered."""
        name, gate = next(self.names), Gate()
        gate.fails = fails
        self.engine.scripts[name] = gate
        ready, refused = threading.Barrier(RACERS), threading.Semaphore(0)

        def one(_: int) -> Answer:
            with contextlib.closing(Client(self.gateway.where, wait=20)) as client:
                ready.wait(20)
                client.send(request(self.body(stream), CHAT, key=key, x_test=name))
                answer = client.read()
            if answer.status == 429:
                refused.release()
            return answer

        with ThreadPoolExecutor(RACERS) as pool:
            racers = [pool.submit(one, i) for i in range(RACERS)]
            try:
                for _ in range(RACERS - ROOM):
                    assert refused.acquire(timeout=20), f"{len(self.engine.requests(name))} are with the engine"
                assert len(self.engine.wait_for(name, ROOM)) == ROOM
            finally:
                gate.opened.set()
            return [racer.result() for racer in racers]


@pytest.fixture(scope="module")
def race() -> Iterator[Race]:
    engine = RawEngine(["raw"])
    with contextlib.closing(engine):
        gateway = Gateway(
            {
                "listeners": [{"address": "127.0.0.1:0"}],
                "engines": [{"name": "raw", "url": f"http://127.0.0.1:{engine.port}", "models": ["raw"]}],
                "callers": {"keys": [{"name": f"racer-{i}", "key": key} for i, key in enumerate([KEY, *KEYS])]},
                "quotas": [
                    {
                        "name": "for-ten",
                        "each": "key",
                        "tokens_per_day": MOST * ROOM + MOST // 2,
                        "least_answer_tokens": MOST,
                        "answer_tokens": MOST,
                    }
                ],
                "health": {"failures": 1_000, "error_share": 1.0, "rest_most": 0.001},
            }
        )
        try:
            gateway.wait_until_ready("raw")
            yield Race(gateway, engine)
        finally:
            gateway.stop()


def statuses(answers: list[Answer]) -> Counter[int]:
    return Counter(answer.status for answer in answers)


@pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
def test_of_fifty_ten_pass(race: Race, stream: bool) -> None:
    for _ in range(ROUNDS):
        answers = race(next(_keys), stream)
        assert statuses(answers) == {200: ROOM, 429: RACERS - ROOM}
        codes = {answer.error["code"] for answer in answers if answer.status == 429}
        assert codes == {"insufficient_quota"}
        assert all(answer.whole for answer in answers)


def test_an_engine_that_fails_gives_the_budget_back(race: Race) -> None:
    """Before the first token nothing was used: the next ten pass, and after them there is less by what they used."""
    key = next(_keys)
    for fails in (True, False, True):
        answers = race(key, stream=fails, fails=fails)
        assert statuses(answers) == {502 if fails else 200: ROOM, 429: RACERS - ROOM}
    race.engine.scripts["after"] = gate = Gate()
    gate.opened.set()
    left = race.gateway.ask(race.body(stream=False), key=key, x_test="after").get("x-ratelimit-remaining-tokens")
    assert left is not None
    used = ROOM * (PROMPT + ANSWER)
    held = MOST * ROOM + MOST // 2 - used - int(left)
    assert MOST < held < MOST + 100  # this one's, with its prompt as estimated
