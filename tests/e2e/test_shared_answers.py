"""`share: everyone`: what one organisation's request wrote is another's only once its own engine's answer agreed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from e2e.client import KEY, Answer, chat, new_id, request
from e2e.engine import DONE, ROLE, RawEngine, delta, event, streams
from forebay.cache import answers
from forebay.cache.messages import Store
from scripted_worker import OTHER, Worker, worker
from stack import folder


@pytest.fixture(scope="module")
def raw() -> Iterator[RawEngine]:
    engine = RawEngine(["raw"])
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def everyone(raw: RawEngine) -> Iterator[Worker]:
    with folder() as path, worker(path / "state", raw, share="everyone") as started:
        yield started


def ask(everyone: Worker, raw: RawEngine, question: str, key: str, says: str) -> Answer:
    raw.scripts[test := new_id("shared")] = streams(
        ROLE, event(delta({"content": says})), event(delta({}, "stop")), DONE
    )
    body = chat(stream=True) | {"messages": [{"role": "user", "content": question}]}
    with everyone.client() as client:
        client.send(request(body, key=key, x_test=test))
        return client.read()


def test_an_answer_is_anothers_once_an_engine_told_it_the_same(everyone: Worker, raw: RawEngine) -> None:
    everyone.helper.asked.clear()
    question = new_id("same")
    written: list[answers.Answer | None] = []
    for key in (KEY, OTHER):
        assert ask(everyone, raw, question, key, "fresh").get("x-forebay-cache") == "miss"
        written.append(answers.decode(everyone.helper.hears(Store).answer))
    mine, theirs = written
    assert mine and theirs and (mine.verified, theirs.verified) == (False, True)
    finds = [find.writer for find in everyone.helper.asked]
    assert finds == [mine.writer, theirs.writer]
    assert len(set(finds)) == 2
    for key in (KEY, OTHER):
        assert ask(everyone, raw, question, key, "never").get("x-forebay-cache") == "exact"


def test_another_answer_stays_its_writers(everyone: Worker, raw: RawEngine) -> None:
    question = new_id("otherwise")
    for key, says in ((KEY, "one"), (OTHER, "two"), (KEY, "three")):
        answer = ask(everyone, raw, question, key, says)
        assert answer.get("x-forebay-cache") == "miss"
        assert f'"{says}"'.encode() in answer.body
        kept = answers.decode(everyone.helper.hears(Store).answer)
        assert kept and not kept.verified
        again = ask(everyone, raw, question, key, "never")
        assert again.get("x-forebay-cache") == "exact"
        assert f'"{says}"'.encode() in again.body
