"""A worker and the helper process of its cache: what it asks, what it hands back, and that it never waits."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from e2e.client import KEY, Answer, chat, new_id, request
from e2e.engine import ANSWER, DONE, ROLE, USAGE_CHUNK, RawEngine, Talk, delta, event, streams
from forebay.cache import answers
from forebay.cache.answers import About
from forebay.cache.messages import Drop, Feedback, Find, Found, Heard, Kind, Purge, Store, Unanswered
from forebay.gateway.keeping import of_unary
from scripted_worker import PRESSING, SPENT, Worker, worker
from stack import folder

SEMANTIC = {"enabled": True, "budget": 5.0}
WORDS = [ROLE, event(delta({"content": "fresh"})), event(delta({}, "stop"))]


@pytest.fixture(scope="module")
def raw() -> Iterator[RawEngine]:
    engine = RawEngine(["raw"])
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    with folder() as path:
        yield path


@pytest.fixture(scope="module")
def shared(place: Path, raw: RawEngine) -> Iterator[Worker]:
    with worker(place / "state", raw, semantic=SEMANTIC) as started:
        yield started


@pytest.fixture
def helped(shared: Worker) -> Worker:
    shared.helper.finds = lambda find: Found(find.n, Kind.MISS)
    assert shared.helper.heard.empty()
    shared.helper.asked.clear()
    return shared


def kept(text: str, **more: Any) -> bytes:
    """An answer as the helper has it."""
    body = b"".join([ROLE, event(delta({"content": text})), event(delta({}, "stop")), DONE])
    about = About(id="feed" * 4, created=1e9, ttl=1e10, model="raw", partition="acme/raw", question="?")
    found = answers.from_stream(body, msgspec.structs.replace(about, **more))
    assert isinstance(found, answers.Answer)
    return answers.encode(found)


def about(question: str, **fields: Any) -> dict[str, Any]:
    return chat(stream=True, **fields) | {"messages": [{"role": "user", "content": question}]}


def ask(helped: Worker, question: str, test: str = "", **more: Any) -> Answer:
    headers = {name: more.pop(name) for name in tuple(more) if name.startswith(("x_", "forebay", "cache_"))}
    with helped.client() as client:
        client.send(request(about(question, **more), x_test=test or new_id("none"), **headers))
        return client.read()


def play(raw: RawEngine, *pieces: bytes, end: bool = True) -> str:
    test = new_id("helped")
    raw.scripts[test] = streams(*pieces, end=end)
    return test


def test_what_a_miss_is_asked_and_what_is_stored(helped: Worker, raw: RawEngine) -> None:
    helped.helper.finds = lambda find: Found(find.n, Kind.MISS, b"", "near", 0.83, ticket=7, why="number")
    test = play(raw, *WORDS, event(USAGE_CHUNK), DONE)
    question = new_id("how many")
    answer = ask(helped, question, test, x_forebay_cache_tags="faq", forebay_explain="cache")
    assert [answer.get(f"x-forebay-cache{x}") for x in ("", "-why", "-similarity")] == ["miss", "number", "0.8300"]
    (find,) = helped.helper.asked
    store = helped.helper.hears(Store)
    assert (find.question, find.partition, find.budget) == (question, "acme/raw", 5.0)
    assert (store.exact, store.scope, store.question, store.partition) == (
        find.exact,
        find.scope,
        question,
        "acme/raw",
    )
    assert (len(find.exact), len(find.scope), store.ticket) == (16, 16, 7)
    found = answers.decode(store.answer)
    assert found is not None
    assert (found.id, found.tags) == (answer.get("x-forebay-cache-entry"), ("faq",))
    assert answers.text_of(found) == "fresh"
    assert 0 < found.seconds < 5


def test_a_question_that_means_the_same_is_answered_without_the_engine(helped: Worker, raw: RawEngine) -> None:
    helped.helper.finds = lambda find: Found(find.n, Kind.SEMANTIC, kept("known"), "feed" * 4, 0.97, 0.99)
    test = play(raw, *WORDS, DONE)
    question = new_id("what is it")
    for _ in range(2):  # never from this worker's memory: the helper decides each time
        answer = ask(helped, question, test)
        assert b'"known"' in answer.body
        assert answer.get("x-forebay-cache") == "semantic"
        assert answer.get("x-forebay-cache-similarity") == "0.9700"
        assert answer.get("x-forebay-cache-entry") == "feed" * 4
    assert len(helped.helper.asked) == 2
    assert not raw.requests(test)


@pytest.mark.parametrize("whole", [True, False])
def test_a_hit_that_is_sampled_is_served_and_the_engine_asked_behind_it(
    helped: Worker, raw: RawEngine, whole: bool
) -> None:
    helped.helper.finds = lambda find: Found(find.n, Kind.SEMANTIC, kept("known"), "feed" * 4, 0.97, ticket=9)
    test = play(raw, *WORDS, DONE, end=True) if whole else play(raw, *WORDS[:2], end=False)
    assert ask(helped, new_id("sampled"), test).get("x-forebay-cache") == "semantic"
    if whole:
        store = helped.helper.hears(Store)
        found = answers.decode(store.answer)
        assert found is not None
        assert (store.ticket, answers.text_of(found)) == (9, "fresh")
    else:
        assert helped.helper.hears(Unanswered) == Unanswered(9)
    assert len(raw.requests(test)) == 1


def test_who_asks_the_same_while_it_is_compared_waits_for_no_engine(helped: Worker, raw: RawEngine) -> None:
    tickets = iter((21, 22, 23))
    helped.helper.finds = lambda find: Found(
        find.n, Kind.SEMANTIC, kept("known"), "feed" * 4, 0.97, ticket=next(tickets)
    )
    question, test, go = new_id("sampled"), new_id("helped"), threading.Event()

    def script(talk: Talk) -> None:
        assert go.wait(20)
        streams(*WORDS, DONE)(talk)

    raw.scripts[test] = script
    for _ in range(3):
        assert ask(helped, question, test).get("x-forebay-cache") == "semantic"
    assert [helped.helper.hears(Unanswered) for _ in range(2)] == [Unanswered(22), Unanswered(23)]
    go.set()
    assert helped.helper.hears(Store).ticket == 21
    assert len(raw.requests(test)) == 1
    assert ask(helped, question, test).get("x-forebay-cache") == "exact"


def test_a_ticket_whose_answer_is_not_kept_is_handed_back(helped: Worker, raw: RawEngine) -> None:
    helped.helper.finds = lambda find: Found(find.n, Kind.MISS, ticket=5)
    ask(helped, new_id("cut"), play(raw, ROLE, event(delta({"content": "x"}, "length")), DONE))
    assert helped.helper.hears(Unanswered) == Unanswered(5)
    ask(helped, new_id("broken"), play(raw, *WORDS[:2], end=False))
    assert helped.helper.hears(Unanswered) == Unanswered(5)


def test_who_leaves_while_the_helper_thinks_hands_its_ticket_back(helped: Worker, raw: RawEngine) -> None:
    asked: list[Find] = []
    helped.helper.finds = lambda find: asked.append(find)
    test = play(raw, *WORDS, DONE)
    client = helped.client()
    client.send(request(about(new_id("left")), x_test=test, x_request_id=(name := new_id("left"))))
    helped.helper.wait_asked(1)
    client.close()
    cancelled = request({}, f"/v1/requests/{name}/cancel")
    with helped.client() as other:  # no such request any more: its leaving was heard
        while True:
            other.send(cancelled)
            if other.read().status == 404:
                break
    helped.helper.say(Found(asked[0].n, Kind.MISS, ticket=3))
    assert helped.helper.hears(Unanswered) == Unanswered(3)
    assert not raw.requests(test)


def test_those_who_come_while_the_helper_thinks_share_what_it_finds(helped: Worker, raw: RawEngine) -> None:
    asked: list[Find] = []
    helped.helper.finds = lambda find: asked.append(find)
    question, test = new_id("together"), play(raw, *WORDS, DONE)
    clients = [helped.client() for _ in range(5)]
    for client in clients:
        client.send(request(about(question), x_test=test))
    helped.helper.wait_asked(1)
    asking = threading.Thread(target=lambda: ask(helped, new_id("later"), play(raw, *WORDS, DONE)))
    asking.start()  # behind the five on the loop: when it is asked for, they are all there
    helped.helper.wait_asked(2)
    helped.helper.say(Found(asked[0].n, Kind.EXACT, kept("known"), "feed" * 4))
    heard = [client.read() for client in clients]
    assert {a.get("x-forebay-cache") for a in heard} == {"exact"}
    assert all(b'"known"' in a.body for a in heard)
    helped.helper.say(Found(asked[1].n, Kind.MISS))
    asking.join(10)
    helped.helper.hears(Store)
    for client in clients:
        client.close()
    assert len(helped.helper.asked) == 2
    assert not raw.requests(test)


def together(
    helped: Worker, raw: RawEngine, test: str, found: Any, *others: dict[str, str], **fields: Any
) -> list[Answer]:
    """One who asks, and others who come while the helper thinks; it says `found` to all that it is asked for."""
    asked: list[Find] = []
    helped.helper.finds = lambda find: asked.append(find)
    question = new_id("together")
    clients = []
    for headers in ({}, *others):
        clients.append(helped.client())
        clients[-1].send(request(about(question, **fields), x_test=test, **headers))
        if not headers:
            helped.helper.wait_asked(1)
    asking = threading.Thread(target=lambda: ask(helped, new_id("later"), play(raw, *WORDS, DONE)))
    asking.start()  # behind the others on the loop
    while not any(find.question.startswith("later") for find in asked):
        helped.helper.wait_asked(len(asked) + 1)
    for find in asked:
        helped.helper.say(found(find) if find.question == question else Found(find.n, Kind.MISS))
    asking.join(10)
    answers = [client.read() for client in clients]
    for client in clients:
        client.close()
    return answers


def test_the_best_of_those_who_came_leads_and_the_one_who_asked_follows(helped: Worker, raw: RawEngine) -> None:
    test = play(raw, *WORDS, DONE)
    heard = together(helped, raw, test, lambda find: Found(find.n, Kind.MISS), {"key": PRESSING})
    assert [a.get("x-forebay-cache") for a in heard] == ["flight", "miss"]
    assert len({a.get("x-forebay-cache-entry") for a in heard}) == 1
    assert len(raw.requests(test)) == 1
    for _ in range(2):
        helped.helper.hears(Store)


def test_who_wants_a_younger_answer_than_the_others_gets_one(helped: Worker, raw: RawEngine) -> None:
    test = play(raw, *WORDS, DONE)
    found = lambda find: Found(find.n, Kind.EXACT, kept("known"), "feed" * 4)  # noqa: E731
    heard = together(helped, raw, test, found, {"cache_control": "max-age=60"}, {"x_more": "1"})
    assert [a.get("x-forebay-cache") for a in heard] == ["exact", "miss", "exact"]
    assert [b'"fresh"' in a.body for a in heard] == [False, True, False]
    for _ in range(2):
        helped.helper.hears(Store)


def test_who_cannot_be_given_what_is_found_in_their_form_is_answered_by_the_engine(
    helped: Worker, raw: RawEngine
) -> None:
    about = About(id="feed" * 4, created=1e9, ttl=1e10, model="raw", partition="acme/raw", question="?")
    body = ANSWER.replace(b'"index": 0', b'"logprobs": 1e400, "index": 0')
    known = of_unary(body, about)
    assert isinstance(known, answers.Answer)
    test = play(raw, *WORDS, DONE)
    heard = together(
        helped, raw, test, lambda f: Found(f.n, Kind.EXACT, answers.encode(known), "feed" * 4), {"x_more": "1"}
    )
    assert [(a.status, a.get("x-forebay-cache"), b'"fresh"' in a.body) for a in heard] == [(200, "miss", True)] * 2
    for _ in range(3):
        helped.helper.hears(Store)


def test_who_may_have_only_a_part_of_an_answer_shares_it_with_those_only(helped: Worker, raw: RawEngine) -> None:
    test = play(raw, *WORDS, DONE)
    spent = {"key": SPENT}
    heard = together(
        helped, raw, test, lambda find: Found(find.n, Kind.MISS), spent, {"key": PRESSING}, max_tokens=None
    )
    assert [a.get("x-forebay-cache") for a in heard] == ["flight", "miss", "miss"]
    assert sorted(one.json.get("max_tokens") or 0 for one in raw.requests(test)) == [0, 1_000]
    for _ in range(3):
        helped.helper.hears(Store)


def test_what_must_go_goes_from_memory_too(helped: Worker, raw: RawEngine) -> None:
    helped.helper.finds = lambda find: Found(find.n, Kind.EXACT, kept("known", tags=("prices",)), "feed" * 4)
    question = new_id("memory")
    drops = (Drop(None, ("feed" * 4,)), Drop(Purge(0, tag="prices")), Drop(Purge(0)))
    for n, drop in enumerate(drops, 1):
        assert ask(helped, question).get("x-forebay-cache") == "exact"
        assert ask(helped, question).get("x-forebay-cache") == "exact"
        assert len(helped.helper.asked) == n  # the second time it was in memory
        helped.helper.say(drop)
        # It is heard before the answer to a question that is asked after it was said.
        finds, helped.helper.finds = helped.helper.finds, lambda find: Found(find.n, Kind.SEMANTIC, kept("x"), "beef")
        assert ask(helped, new_id("between")).get("x-forebay-cache") == "semantic"
        helped.helper.finds = finds
        helped.helper.asked.pop()


def test_only_a_known_answer_is_looked_for_everywhere(helped: Worker) -> None:
    answer = ask(helped, new_id("only"), x_forebay_cache="only")
    assert (answer.status, answer.error["code"]) == (504, "not_cached")
    helped.helper.finds = lambda find: Found(find.n, Kind.SEMANTIC, kept("known"), "feed" * 4, 0.97)
    assert ask(helped, new_id("only"), x_forebay_cache="only").get("x-forebay-cache") == "semantic"
    helped.helper.finds = lambda find: Found(find.n, Kind.SEMANTIC, kept("known"), "feed" * 4, 0.97, ticket=4)
    assert ask(helped, new_id("only"), x_forebay_cache="only").get("x-forebay-cache") == "semantic"
    assert helped.helper.hears(Unanswered) == Unanswered(4)  # no engine is asked to compare, either


def test_an_answer_that_is_older_than_is_wanted_is_none(helped: Worker, raw: RawEngine) -> None:
    helped.helper.finds = lambda find: Found(find.n, Kind.EXACT, kept("known"), "feed" * 4)
    answer = ask(helped, new_id("young"), play(raw, *WORDS, DONE), cache_control="max-age=60")
    assert (answer.get("x-forebay-cache"), b'"fresh"' in answer.body) == ("miss", True)
    helped.helper.hears(Store)


def test_calls_of_tools_are_kept_for_equal_requests_only(helped: Worker, raw: RawEngine) -> None:
    call = {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    test = play(raw, ROLE, event(delta({"tool_calls": [call]})), event(delta({}, "tool_calls")), DONE)
    ask(helped, new_id("tools"), test)
    store = helped.helper.hears(Store)
    assert (len(store.exact), store.scope) == (16, b"")


def test_feedback_names_the_question_that_was_asked(helped: Worker) -> None:
    helped.helper.finds = lambda find: Found(find.n, Kind.SEMANTIC, kept("known"), "feed" * 4, 0.97)
    question = new_id("wrong")
    ask(helped, question)
    with helped.client() as client:
        client.send(request({"entry": "feed" * 4, "good": False}, "/v1/feedback", key=KEY))
        said = helped.helper.hears(Feedback)
        assert (said.entry, said.partition, said.good, said.question) == ("feed" * 4, "acme/raw", False, question)
        helped.helper.say(Heard(said.n, False))
        assert client.read().status == 404


def test_a_helper_that_is_slow_or_gone_is_a_miss(place: Path, raw: RawEngine) -> None:
    with worker(place / "slow", raw, semantic={"enabled": True, "budget": 0.02}) as helped:
        helped.helper.finds = lambda find: None
        answer = ask(helped, new_id("slow"), play(raw, *WORDS, DONE), forebay_explain="cache")
        assert [answer.get(f"x-forebay-cache{x}") for x in ("", "-why")] == ["miss", "budget"]
        helped.helper.hears(Store)
        helped.helper.close()
        answer = ask(helped, new_id("gone"), play(raw, *WORDS, DONE), forebay_explain="cache")
        assert (answer.status, answer.get("x-forebay-cache")) == (200, "miss")
        assert answer.get("x-forebay-cache-why") in ("away", "budget")
