"""Equal requests that come at once share one engine call; equal ones that come later get the answer that is known."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from openai import OpenAI

from e2e.client import Answer, chat, events, new_id, request
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
    streams,
    whole,
)
from e2e.gateway import Gateway
from waiting import eventually, in_books

MINE, COLLEAGUE, STRANGER, PRESSING, PATIENT = (
    f"cache-{name}-0123456789" for name in ("mine", "colleague", "stranger", "pressing", "patient")
)


@pytest.fixture(scope="module")
def raw() -> Iterator[RawEngine]:
    engine = RawEngine(["raw"])
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def cached(raw: RawEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    prices = tmp_path_factory.mktemp("prices") / "prices.yaml"
    prices.write_text(json.dumps({"prices": [{"model": "raw", "input": 3, "output": 15}]}))
    made = Gateway(
        {
            "listeners": [{"address": "127.0.0.1:0"}],
            "engines": [
                {
                    "name": "raw",
                    "url": f"http://127.0.0.1:{raw.port}",
                    "models": ["raw"],
                    "concurrency": 2,
                    "health_interval": 0.2,
                }
            ],
            "health": {"failures": 1_000, "error_share": 1.0, "rest_most": 0.001},
            "callers": {
                "keys": [
                    {"name": "mine", "key": MINE, "organisation": "acme"},
                    {"name": "colleague", "key": COLLEAGUE, "organisation": "acme"},
                    {"name": "pressing", "key": PRESSING, "organisation": "acme", "class": "vip"},
                    {"name": "patient", "key": PATIENT, "organisation": "acme", "class": "low"},
                    {"name": "stranger", "key": STRANGER, "organisation": "other"},
                ]
            },
            "retries": {"budget": 1.0},
            "ledger": {"prices": str(prices)},
            "admission": {
                "enabled": True,
                "report_interval": 0.05,
                "ttft": {"vip": 30.0, "normal": 30.0, "low": 30.0},
                "wait": {"vip": 20.0, "normal": 20.0, "low": 0.6},
            },
            "cache": {"enabled": True, "disk_bytes": 0, "ignored_headers": ["x-test"], "answer_bytes": 65_536},
        }
    )
    try:
        eventually(lambda: "raw" in made.models(MINE))
        yield made
    finally:
        made.stop()


def about(text: str, **fields: Any) -> dict[str, Any]:
    return chat(**{"stream": True, **fields}) | {"messages": [{"role": "user", "content": text}]}


def said(*texts: str) -> list[bytes]:
    return [event(delta({"content": t}, "stop" if t is texts[-1] else None)) for t in texts]


class Asking:
    """One request, sent and read on a thread of its own."""

    def __init__(self, gateway: Gateway, body: dict[str, Any], key: str = MINE, **headers: str) -> None:
        self.client = gateway.client()
        self.answer: Answer | None = None
        self.client.send(request(body, key=key, **headers))
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        try:
            self.answer = self.client.read()
        except (OSError, AssertionError):
            self.answer = None

    def leave(self) -> None:
        self.client.sock.shutdown(socket.SHUT_RDWR)
        self._thread.join(20)
        self.client.close()

    def result(self) -> Answer:
        self._thread.join(20)
        self.client.close()
        assert self.answer is not None
        return self.answer


class Held:
    """A script that says some, waits until it is told, and says the rest."""

    def __init__(self, first: list[bytes], rest: list[bytes], *, cut: bool = False) -> None:
        self.go = threading.Event()
        self.gone = threading.Event()
        self.first, self.rest, self.cut = first, rest, cut

    def __call__(self, talk: Talk) -> None:
        if self.first:
            talk.send(stream_head(), *map(chunk, self.first))
        assert self.go.wait(20)
        try:
            if self.cut:
                talk.close()
            else:
                head = () if self.first else (stream_head(),)
                talk.send(*head, *map(chunk, self.rest), b"0\r\n\r\n")
        except OSError:
            self.gone.set()


def reload(gateway: Gateway, **cache: Any) -> None:
    before = gateway.log.read_text().count("configuration reloaded")
    gateway.file.write_text(json.dumps({**gateway.config, "cache": {**gateway.config["cache"], **cache}}))
    gateway.process.send_signal(signal.SIGHUP)
    eventually(lambda: gateway.log.read_text().count("configuration reloaded") > before)


def joined(gateway: Gateway) -> float:
    return gateway.metric("forebay_cache_followers_total")


def lead(gateway: Gateway, raw: RawEngine, script: Script, body: dict[str, Any], **more: Any) -> tuple[str, Asking]:
    test = new_id("flight")
    raw.scripts[test] = script
    leader = Asking(gateway, body, x_test=test, **more)
    raw.wait_for(test)
    return test, leader


def follow(gateway: Gateway, body: dict[str, Any], count: int = 1, **more: Any) -> list[Asking]:
    before = joined(gateway)
    found = [Asking(gateway, body, **more) for _ in range(count)]
    eventually(lambda: joined(gateway) == before + count, every=0.03)
    return found


@pytest.mark.parametrize("came", [True, False])
def test_an_equal_request_gets_the_known_answer_in_the_form_it_asks_for(
    cached: Gateway, raw: RawEngine, came: bool
) -> None:
    question, test = new_id("question"), new_id("known")
    raw.scripts[test] = streams(ROLE, *said("Hel", "lo"), event(USAGE_CHUNK), DONE) if came else None  # type: ignore[assignment]
    if not came:
        raw.scripts[test] = lambda talk: talk.send(whole(200, ANSWER))
    first = cached.ask(about(question, stream=came), key=MINE, x_test=test)
    assert first.get("x-forebay-cache") == "miss"
    words = "Hello" if came else "Hi"
    for stream, options in ((True, {}), (True, {"stream_options": {"include_usage": True}}), (False, {})):
        answer = cached.ask(about(question, stream=stream, **options), key=COLLEAGUE, x_test=test)
        assert (answer.status, answer.get("x-forebay-cache")) == (200, "exact")
        assert answer.get("x-forebay-cache-entry") == first.get("x-forebay-cache-entry")
        assert int(answer.get("x-forebay-cache-age") or -1) >= 0
        if stream:
            data = events(answer.body)
            assert data[-1] == b"[DONE]"
            chunks = [json.loads(d) for d in data[:-1]]
            assert "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks if c["choices"]) == words
            assert [c["usage"] for c in chunks if c.get("usage")] == ([USAGE] if options else [])
            assert chunks[0]["id"] != "chatcmpl-1"
        else:
            assert answer.json["choices"][0]["message"]["content"] == words
            assert answer.json["choices"][0]["finish_reason"] == "stop"
            assert answer.json["usage"] == USAGE
    assert len(raw.requests(test)) == 1
    stranger = cached.ask(about(question, stream=came), key=STRANGER, x_test=test)
    assert stranger.get("x-forebay-cache") == "miss"
    assert len(raw.requests(test)) == 2


def test_the_openai_sdk_reads_what_is_known(cached: Gateway, raw: RawEngine) -> None:
    test = new_id("sdk")
    raw.scripts[test] = streams(ROLE, *said("Hel", "lo"), event(USAGE_CHUNK), DONE)
    asked: dict[str, Any] = {"model": "raw", "messages": [{"role": "user", "content": new_id("question")}]}
    url = f"http://127.0.0.1:{cached.ports[0]}/v1"
    with OpenAI(api_key=MINE, base_url=url, max_retries=0, default_headers={"x-test": test}) as client:
        for _ in range(2):
            found = client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
            chunks = list(found)
            assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "Hello"
            assert chunks[-1].usage is not None
            assert chunks[-1].usage.total_tokens == USAGE["total_tokens"]
        whole = client.chat.completions.create(**asked)
        assert (whole.choices[0].message.content, whole.choices[0].finish_reason) == ("Hello", "stop")
    assert len(raw.requests(test)) == 1


def test_a_hundred_at_once_are_one_engine_call_and_a_hundred_equal_streams(cached: Gateway, raw: RawEngine) -> None:
    body = about(new_id("question"))
    script = Held([ROLE, *said("a", "b")[:1]], [*said("c", "d"), event(USAGE_CHUNK), DONE])
    test, leader = lead(cached, raw, script, body)
    others = follow(cached, body, 99)
    script.go.set()
    answers = [asking.result() for asking in (leader, *others)]
    assert {a.status for a in answers} == {200}
    assert all(a.whole for a in answers)
    assert {a.body for a in answers} == {b"".join([ROLE, *said("a", "b")[:1], *said("c", "d"), DONE])}
    assert sorted(a.get("x-forebay-cache") or "" for a in answers) == ["flight"] * 99 + ["miss"]
    assert len(raw.requests(test)) == 1
    logged = cached.logged(others[0].answer.get("x-request-id") or "")  # type: ignore[union-attr]
    assert (logged["outcome"], logged["cache"], logged["attempts"]) == ("hit", "flight", 0)


def test_followers_of_other_forms_get_theirs(cached: Gateway, raw: RawEngine) -> None:
    body = about(new_id("question"))
    script = Held([ROLE], [*said("Hel", "lo"), event(USAGE_CHUNK), DONE])
    test, leader = lead(cached, raw, script, body)
    (unary,) = follow(cached, {**body, "stream": False})
    (told,) = follow(cached, {**body, "stream_options": {"include_usage": True}})
    script.go.set()
    plain = leader.result()
    assert unary.result().json["choices"][0]["message"]["content"] == "Hello"
    assert unary.result().json["usage"] == USAGE
    *chunks, end = events(told.result().body)
    assert end == b"[DONE]"
    assert chunks[:-1] == events(plain.body)[:-1]
    assert json.loads(chunks[-1])["usage"] == USAGE
    assert len(raw.requests(test)) == 1


def odd(stream: bool) -> Script:
    """An answer that is kept and has something in it that has no place in the other form."""
    if stream:
        strange = event(delta({"content": "Hi"})).replace(b'"logprobs":null', b'"logprobs":"x"')
        return streams(ROLE, strange, *said("!"), DONE)
    return lambda talk: talk.send(whole(200, ANSWER.replace(b'"index": 0', b'"logprobs": 1e400, "index": 0')))


@pytest.mark.parametrize("stream", [True, False])
def test_what_cannot_be_given_in_the_other_form_is_asked_anew(cached: Gateway, raw: RawEngine, stream: bool) -> None:
    question, test = new_id("question"), new_id("odd")
    raw.scripts[test] = odd(stream)
    asked = about(question, stream=stream)
    assert cached.ask(asked, key=MINE, x_test=test).get("x-forebay-cache") == "miss"
    assert cached.ask(asked, key=MINE, x_test=test).get("x-forebay-cache") == "exact"
    other = {**asked, "stream": not stream}
    refused = cached.ask(other, key=MINE, x_test=test, x_forebay_cache="only")
    assert (refused.status, refused.get("x-forebay-reason")) == (504, "not_cached")
    raw.scripts[test] = odd(not stream)
    answer = cached.ask(other, key=MINE, x_test=test)
    assert (answer.status, answer.get("x-forebay-cache"), answer.whole) == (200, "miss", True)
    assert len(raw.requests(test)) == 2


def test_followers_who_cannot_be_given_their_form_get_an_answer_of_their_own(cached: Gateway, raw: RawEngine) -> None:
    body = about(new_id("question"))
    go = threading.Event()

    def script(talk: Talk) -> None:
        assert go.wait(20)
        odd(talk.request.json["stream"])(talk)

    test, leader = lead(cached, raw, script, body)
    others = follow(cached, {**body, "stream": False}, 2, x_test=test)
    go.set()
    assert (leader.result().status, leader.result().whole) == (200, True)
    assert [(a.result().status, a.result().json["choices"][0]["message"]["content"]) for a in others] == [
        (200, "Hi")
    ] * 2
    assert len(raw.requests(test)) == 2


def test_usage_that_only_the_leader_asked_for_is_not_told_to_the_others(cached: Gateway, raw: RawEngine) -> None:
    body = about(new_id("question"))
    script = Held([ROLE], [*said("Hel", "lo"), event(USAGE_CHUNK), DONE])
    _, leader = lead(cached, raw, script, {**body, "stream_options": {"include_usage": True}})
    (other,) = follow(cached, body)
    script.go.set()
    assert json.loads(events(leader.result().body)[-2])["usage"] == USAGE
    assert other.result().body == b"".join([ROLE, *said("Hel", "lo"), DONE])


def test_the_leader_leaves_and_the_others_hear_the_rest(cached: Gateway, raw: RawEngine) -> None:
    body = about(new_id("question"))
    script = Held([ROLE, *said("a", "b")[:1]], [*said("c", "d"), DONE])
    test, leader = lead(cached, raw, script, body, x_request_id=(name := new_id("leader")))
    (other,) = follow(cached, body)
    live = cached.metric("forebay_cancels_total")
    leader.leave()
    eventually(lambda: cached.metric("forebay_cancels_total") == live + 1)
    script.go.set()
    assert other.result().body.endswith(DONE)
    assert cached.logged(name)["client_left"] is True
    assert len(raw.requests(test)) == 1
    assert cached.ask(body, key=MINE).get("x-forebay-cache") == "exact"


def test_the_last_one_to_leave_ends_the_flight(cached: Gateway, raw: RawEngine) -> None:
    body = about(new_id("question"))
    gone = threading.Event()

    def script(talk: Talk) -> None:
        talk.send(stream_head(), chunk(ROLE), chunk(said("a", "b")[0]))
        talk.wait_gone()
        gone.set()

    test, leader = lead(cached, raw, script, body)
    (other,) = follow(cached, body)
    leader.leave()
    other.leave()
    assert gone.wait(10)
    assert cached.ask(body, key=MINE, x_test=test + "-later").get("x-forebay-cache") == "miss"


def test_cancel_of_the_leader_ends_only_its_own_answer(cached: Gateway, raw: RawEngine) -> None:
    body = about(new_id("question"))
    script = Held([ROLE, *said("a", "b")[:1]], [*said("c", "d"), DONE])
    _, leader = lead(cached, raw, script, body, x_request_id=(name := new_id("cancelled")))
    (other,) = follow(cached, body)
    assert cached.ask(path=f"/v1/requests/{name}/cancel", key=MINE).json["cancelled"] == 1
    assert b"request_cancelled" in leader.result().body
    assert leader.result().status == 499 or not leader.result().whole  # it may have had no bytes yet
    script.go.set()
    assert other.result().body.endswith(DONE)


def test_a_leader_that_fails_before_a_byte_is_replaced_once(cached: Gateway, raw: RawEngine) -> None:
    body = about(new_id("question"))
    script = Held([], [], cut=True)
    _, leader = lead(cached, raw, script, body)
    good = new_id("good")
    raw.scripts[good] = streams(ROLE, *said("Hel", "lo"), DONE)
    first, *others = [*follow(cached, body, x_test=good), *follow(cached, body, 2)]
    script.go.set()
    assert leader.result().status == 502
    assert all(a.result().body.endswith(DONE) for a in (first, *others))
    assert (first.result().get("x-forebay-cache"), others[0].result().get("x-forebay-cache")) == ("miss", "flight")
    assert len(raw.requests(good)) == 1


def test_a_second_failure_is_told_to_all(cached: Gateway, raw: RawEngine) -> None:
    body = about(new_id("question"))
    script, again = Held([], [], cut=True), Held([], [], cut=True)
    _, leader = lead(cached, raw, script, body)
    raw.scripts[bad := new_id("bad")] = again
    others = [*follow(cached, body, x_test=bad), *follow(cached, body, 2)]
    script.go.set()
    raw.wait_for(bad)
    again.go.set()
    assert [a.result().status for a in (leader, *others)] == [502] * 4
    assert all(a.result().error["code"] == "engine_error" for a in others)


def test_a_leader_that_is_cut_within_its_answer_is_told_to_all(cached: Gateway, raw: RawEngine) -> None:
    body = about(new_id("question"))
    script = Held([ROLE, *said("a", "b")[:1]], [], cut=True)
    test, leader = lead(cached, raw, script, body)
    others = follow(cached, body, 3)
    (unary,) = follow(cached, {**body, "stream": False})
    script.go.set()
    for asking in (leader, *others):
        answer = asking.result()
        assert b'"engine_cut"' in answer.body
        assert DONE not in answer.body
        assert not answer.whole
    assert unary.result().status == 502
    assert cached.ask(body, key=MINE, x_test=test + "-later").get("x-forebay-cache") == "miss"


def test_what_the_engine_refuses_is_told_to_all_and_not_kept(cached: Gateway, raw: RawEngine) -> None:
    body = about(new_id("question"))
    go = threading.Event()

    def script(talk: Talk) -> None:
        assert go.wait(20)
        talk.send(whole(400, b'{"error":{"message":"no"}}'))

    test, leader = lead(cached, raw, script, body)
    others = [*follow(cached, body), *follow(cached, {**body, "stream": False})]
    go.set()
    assert [a.result().status for a in (leader, *others)] == [400] * 3
    assert {a.result().body for a in (leader, *others)} == {b'{"error":{"message":"no"}}'}
    assert cached.ask(body, key=MINE, x_test=test).get("x-forebay-cache") == "miss"


UNFIT: dict[str, list[bytes]] = {
    "length": [ROLE, event(delta({"content": "Hi"}, "length")), DONE],
    "filtered": [ROLE, event(delta({"content": "Hi"}, "content_filter")), DONE],
    "empty": [ROLE, event(delta({}, "stop")), DONE],
    "large": [ROLE, event(delta({"content": "x" * 70_000}, "stop")), DONE],
    "cut": [ROLE, event(delta({"content": "Hi"}, "stop"))],
}


@pytest.mark.parametrize("why", UNFIT)
def test_what_is_unfit_is_not_kept(cached: Gateway, raw: RawEngine, why: str) -> None:
    body, test = about(new_id("question")), new_id("unfit")
    raw.scripts[test] = streams(*UNFIT[why])
    before = cached.metric("forebay_cache_answers_total", result=why)
    for _ in range(2):
        answer = cached.ask(body, key=MINE, x_test=test)
        assert (answer.status, answer.get("x-forebay-cache")) == (200, "miss")
        assert answer.whole
    assert cached.metric("forebay_cache_answers_total", result=why) == before + 2
    assert len(raw.requests(test)) == 2


def test_a_request_says_what_it_wants_of_caches(cached: Gateway, raw: RawEngine) -> None:
    body, test = about(new_id("question")), new_id("wish")
    raw.scripts[test] = streams(ROLE, *said("Hel", "lo"), DONE)

    def ask(**headers: str) -> str:
        answer = cached.ask(body, key=MINE, x_test=test, forebay_explain="cache", **headers)
        return f"{answer.status} {answer.get('x-forebay-cache')} {answer.get('x-forebay-cache-why')}"

    assert ask(x_forebay_cache="only") == "504 miss None"
    assert ask(x_forebay_cache="bypass") == "200 bypass bypass"
    assert ask(cache_control="no-store") == "200 bypass no-store"
    assert ask() == "200 miss None"
    assert ask(x_forebay_cache="only") == "200 exact None"
    assert ask(x_forebay_cache="refresh") == "200 miss None"
    assert ask(x_forebay_cache="nonsense") == "400 None None"
    assert ask(x_forebay_knowledge="2026-12") == "200 miss None"
    assert len(raw.requests(test)) == 5
    assert "x-forebay-cache" not in {name for r in raw.requests(test) for name, _ in r.headers}


def test_a_new_version_lets_older_answers_go_unused(cached: Gateway, raw: RawEngine) -> None:
    body, test = about(new_id("question")), new_id("version")
    raw.scripts[test] = streams(ROLE, *said("Hel", "lo"), DONE)
    ask: Callable[[], str | None] = lambda: cached.ask(body, key=MINE, x_test=test).get("x-forebay-cache")  # noqa: E731
    assert [ask(), ask()] == ["miss", "exact"]
    reload(cached, version="2")
    assert [ask(), ask()] == ["miss", "exact"]


@contextlib.contextmanager
def full(gateway: Gateway, raw: RawEngine) -> Iterator[threading.Event]:
    """The engine has as many requests as it takes, until the event is set."""
    script = Held([ROLE, *said("a", "b")[:1]], [*said("c", "d"), DONE])
    held = [lead(gateway, raw, script, about(new_id("filling")), x_forebay_cache="bypass")[1] for _ in range(2)]
    try:
        yield script.go
    finally:
        script.go.set()
        for one in held:
            one.result()


def waiting(gateway: Gateway, cls: str) -> bool:
    return gateway.metric("forebay_queue_requests", **{"class": cls}) == 1


def test_a_flight_has_the_class_of_the_best_who_sit_in_it(cached: Gateway, raw: RawEngine) -> None:
    body, test = about(new_id("question")), new_id("class")
    raw.scripts[test] = streams(ROLE, *said("Hel", "lo"), DONE)
    with full(cached, raw) as go:
        low = Asking(cached, body, key=MINE, x_test=test)
        eventually(lambda: waiting(cached, "normal"), every=0.03)
        (vip,) = follow(cached, body, key=PRESSING, x_test=test)
        eventually(lambda: waiting(cached, "vip"), every=0.03)
        assert not waiting(cached, "normal")
        go.set()
        assert low.result().body == vip.result().body
    assert (low.result().get("x-forebay-cache"), vip.result().get("x-forebay-cache")) == ("flight", "miss")
    assert len(raw.requests(test)) == 1


def test_each_has_its_own_deadline_and_refusal(cached: Gateway, raw: RawEngine) -> None:
    """The first to come waits too long; the next one waits on, from its own arrival, and is refused by its own."""
    body, test = about(new_id("question")), new_id("deadline")
    with full(cached, raw):
        first = Asking(cached, body, key=PATIENT, x_test=test)
        eventually(lambda: waiting(cached, "low"), every=0.03)
        others = follow(cached, body, 3, key=PATIENT, x_test=test)
        answers = [a.result() for a in (first, *others)]
    assert [a.status for a in answers] == [429] * 4
    assert answers[0].error["code"] == "deadline"
    assert {a.error["code"] for a in answers} <= {"deadline", "deadline_passed"}
    assert all(int(a.get("retry-after") or 0) >= 1 for a in answers)
    assert not raw.requests(test)


def test_a_leader_that_leaves_while_it_waits_is_followed_by_the_next(cached: Gateway, raw: RawEngine) -> None:
    body, test = about(new_id("question")), new_id("next")
    raw.scripts[test] = streams(ROLE, *said("Hel", "lo"), DONE)
    with full(cached, raw) as go:
        first = Asking(cached, body, x_test=test)
        eventually(lambda: waiting(cached, "normal"), every=0.03)
        (other,) = follow(cached, body, x_test=test)
        first.leave()
        eventually(lambda: cached.metric("forebay_cancels_total", state="queued") >= 1)
        eventually(lambda: waiting(cached, "normal"), every=0.03)
        go.set()
        assert other.result().body.endswith(DONE)
    assert len(raw.requests(test)) == 1


def test_what_is_past_its_time_is_given_while_a_fresh_one_is_fetched(cached: Gateway, raw: RawEngine) -> None:
    body, test = about(new_id("question")), new_id("stale")
    calls: list[str] = []

    def script(talk: Talk) -> None:
        calls.append(talk.request.get("x-request-id") or "")
        streams(ROLE, *said(f"answer {len(calls)}", "."), DONE)(talk)

    raw.scripts[test] = script
    reload(cached, ttl=0.2, stale=600)
    try:
        ask = lambda: cached.ask(body, key=MINE, x_test=test)  # noqa: E731
        assert ask().get("x-forebay-cache") == "miss"
        old = eventually(lambda: found if (found := ask()).get("x-forebay-cache") == "stale" else None)
        assert b"answer 1" in old.body
        raw.wait_for(test, 2)
        eventually(lambda: b"answer 2" in ask().body)
        name = old.get("x-request-id") or ""
        assert f"{name}-refresh" in calls
        assert cached.logged(f"{name}-refresh")["background"] is True
        assert cached.metric("forebay_cache_background_total", why="refresh") >= 1
    finally:
        reload(cached)


def test_a_fetch_that_waits_ends_where_one_who_wants_the_answer_asks_for_it(cached: Gateway, raw: RawEngine) -> None:
    body, test = about(new_id("question")), new_id("overtaken")
    raw.scripts[test] = streams(ROLE, *said("Hel", "lo"), DONE)
    reload(cached, ttl=0.2, stale=600)

    def ask(**headers: str) -> Answer:
        return cached.ask(body, key=MINE, x_test=test, **headers)

    try:
        assert ask().get("x-forebay-cache") == "miss"
        eventually(lambda: ask(x_forebay_cache="only").get("x-forebay-cache-age") == "1")
        with full(cached, raw) as go:
            old = ask()
            assert old.get("x-forebay-cache") == "stale"
            eventually(lambda: waiting(cached, "low"), every=0.03)
            fresh = Asking(cached, body, x_test=test, cache_control="max-age=1")
            eventually(lambda: waiting(cached, "normal"), every=0.03)
            assert not waiting(cached, "low")
            assert cached.logged(f"{old.get('x-request-id')}-refresh")["background"] is True
            go.set()
            assert fresh.result().get("x-forebay-cache") == "miss"
        assert len(raw.requests(test)) == 2
    finally:
        reload(cached)


def test_an_answer_that_is_said_to_be_bad_is_not_given_again(cached: Gateway, raw: RawEngine) -> None:
    body, test = about(new_id("question")), new_id("feedback")
    raw.scripts[test] = streams(ROLE, *said("Hel", "lo"), DONE)

    def ask() -> Answer:
        return cached.ask(body, key=MINE, x_test=test)

    def say(key: str = COLLEAGUE, **fields: Any) -> Answer:
        return cached.ask(fields, path="/v1/feedback", key=key)

    entry = ask().get("x-forebay-cache-entry")
    assert ask().get("x-forebay-cache") == "exact"
    assert say(STRANGER, entry=entry, good=False).error["code"] == "entry_not_found"
    assert say(entry=entry, good=True).json == {"object": "cache.feedback", "entry": entry, "good": True}
    assert ask().get("x-forebay-cache") == "exact"
    assert say(entry=entry, good=False).status == 200
    assert ask().get("x-forebay-cache") == "miss"
    for wrong, param in (
        ({"good": True}, "entry"),
        ({"entry": "x", "good": True}, "entry"),
        ({"entry": entry}, "good"),
    ):
        assert (say(**wrong).status, say(**wrong).error["param"]) == (400, param)


def test_a_hit_is_booked_with_what_it_avoided(cached: Gateway, raw: RawEngine) -> None:
    body, test = about(new_id("question")), new_id("booked")
    raw.scripts[test] = streams(ROLE, *said("Hel", "lo"), event(USAGE_CHUNK), DONE)
    names = [new_id("entry") for _ in range(2)]
    for name in names:
        cached.ask(body, key=MINE, x_test=test, x_request_id=name)

    def booked() -> list[tuple[Any, ...]]:
        query = "SELECT how, cost, avoided, input, output, outcome FROM entries WHERE request_id IN (?, ?) ORDER BY seq"
        found = [tuple(row.values()) for row in in_books(cached.config["state_dir"], query, names)]
        return found if len(found) == 2 else []

    made, hit = eventually(booked)
    assert made[1] > 0
    assert (made[0], *made[2:]) == ("exact", 0, 7, 3, "ok")
    assert hit == ("cache", 0, made[1], 0, 0, "hit")
    saved = cached.metric("forebay_cache_saved_nano_total")
    assert saved >= made[1]
