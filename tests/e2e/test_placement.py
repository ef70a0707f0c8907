"""Which engine gets a request, over real sockets: three emulated engines that say what was cached, and a gateway."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest

from stack import KEY, MODEL, OTHER_KEY, Engine, Forebay, config_of, folder
from waiting import eventually

OPTIONS = ("--enable-prompt-tokens-details", "--decode-rate", "2000", "--prefill-rate", "50000", "--keep-alive", "600")
CALLERS = {
    "keys": [
        {"name": "first", "key": KEY, "organisation": "acme"},
        {"name": "other", "key": OTHER_KEY, "organisation": "umbrella"},
    ]
}
_ids = itertools.count(1)
Message = dict[str, str]


def text(name: str, words: int = 300) -> str:
    return " ".join(f"{name}-{i}" for i in range(words))


def user(content: str) -> list[Message]:
    return [{"role": "user", "content": content}]


class House:
    """A gateway and its engines."""

    def __init__(self, forebay: Forebay, engines: list[Engine], config: dict[str, Any]) -> None:
        self.forebay = forebay
        self.engines = engines
        self.config = config

    def ask(
        self, messages: list[Message], *, key: str = KEY, stream: bool = False, **headers: str
    ) -> tuple[int, dict[str, Any], str]:
        """The engine that answered, by its own books; the usage; the answer's words."""
        name = f"placed-{next(_ids)}"
        body = {"model": MODEL, "messages": messages, "max_tokens": 8, "ignore_eos": True, "stream": stream}
        if stream:
            body["stream_options"] = {"include_usage": True}
        status, _, data = self.forebay.call(
            "POST", "/v1/chat/completions", body, key, **{"x-request-id": name}, **headers
        )
        assert status == 200, data
        if stream:
            events = [json.loads(e[6:]) for e in data.split(b"\n\n") if e.startswith(b"data: {")]
            words = "".join(c["delta"].get("content") or "" for e in events for c in e["choices"])
            usage = events[-1]["usage"]
        else:
            answer = json.loads(data)
            words, usage = answer["choices"][0]["message"]["content"], answer["usage"]
        [where] = [i for i, e in enumerate(self.engines) if e.record(name) is not None]
        return where, usage, words

    def where(self, messages: list[Message], **more: Any) -> int:
        return self.ask(messages, **more)[0]

    def talk(self, name: str, turns: int, **more: Any) -> list[tuple[int, int, int]]:
        """A conversation: of each turn the engine, its prompt tokens, and those that the engine had cached."""
        messages: list[Message] = [{"role": "system", "content": text(name)}]
        found = []
        for turn in range(turns):
            messages += user(text(f"{name}-{turn}", 60))
            where, usage, words = self.ask(messages, **more)
            found.append((where, usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]))
            messages.append({"role": "assistant", "content": words})
        return found

    def tokens(self) -> dict[str, float]:
        metrics = self.forebay.metrics()
        return {
            kind: metrics[f'forebay_placed_prompt_tokens_total{{tokens="{kind}"}}']
            for kind in ("all", "believed_cached", "cached")
        }

    def reload(self, **placement: Any) -> None:
        self.forebay.hup({**self.config, "placement": placement})


@contextlib.contextmanager
def house(*options: str, count: int = 3, each: dict[str, Any] | None = None, **more: Any) -> Iterator[House]:
    with folder() as where, contextlib.ExitStack() as stack:
        engines = [stack.enter_context(contextlib.closing(Engine(*OPTIONS, *options))) for _ in range(count)]
        config = config_of(where / "state", *engines, **{"callers": CALLERS, **more})
        config["engines"] = [{**e, **(each or {})} for e in config["engines"]]
        forebay = stack.enter_context(contextlib.closing(Forebay(where, config)))
        eventually(lambda: forebay.metric("forebay_engine_healthy") == count)
        yield House(forebay, engines, config)


@pytest.fixture(scope="module")
def it() -> Iterator[House]:
    with house() as made:
        yield made


@pytest.fixture
def changed(it: House) -> Iterator[House]:
    """The same, as it was configured once a test has changed that."""
    yield it
    it.reload()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_conversation_stays_on_one_engine_which_has_it_cached(it: House, stream: bool) -> None:
    before = it.tokens()
    talks = [it.talk(f"talk-{stream}-{i}", 4, stream=stream) for i in range(3)]
    after = it.tokens()
    for talk in talks:
        assert len({where for where, _, _ in talk}) == 1
        assert talk[0][2] < 100
        for (_, known, _), (_, _, cached) in itertools.pairwise(talk):
            assert cached >= 0.9 * known, "all of the turn before"
    assert len({talk[0][0] for talk in talks}) > 1, "and they are spread"
    told = sum(cached for talk in talks for _, _, cached in talk)
    sent = sum(prompt for talk in talks for _, prompt, _ in talk)
    assert after["cached"] - before["cached"] == told
    assert after["all"] - before["all"] == pytest.approx(sent, rel=0.35)
    assert after["believed_cached"] - before["believed_cached"] == pytest.approx(told, rel=0.35)
    assert it.forebay.metric("forebay_prefix_blocks") > 10


def test_the_log_line_says_what_was_believed(it: House) -> None:
    where, usage, words = it.ask([*user(text("logged"))])
    more = [*user(text("logged")), {"role": "assistant", "content": words}, *user(text("logged-more", 60))]
    where, usage, _ = it.ask(more)

    def last() -> dict[str, Any] | None:
        rows = [json.loads(line) for line in it.forebay.text.splitlines() if '"msg":"request"' in line]
        return next((r for r in rows if r.get("tokens_in") == usage["prompt_tokens"]), None)

    row = eventually(last)
    assert row is not None and row["engine"] == f"engine-{where}"
    assert row["believed_cached"] == pytest.approx(usage["prompt_tokens_details"]["cached_tokens"], rel=0.35)


def test_what_one_organisation_has_cached_counts_for_another_only_where_that_is_wanted(changed: House) -> None:
    it = changed

    def believed(**more: Any) -> tuple[int, float]:
        before = it.tokens()["believed_cached"]
        return it.where(user(text("shared", 900)), **more), it.tokens()["believed_cached"] - before

    home, none = believed()
    assert none == 0
    assert believed()[0] == home
    assert believed()[1] > 1_000
    _, none = believed(key=OTHER_KEY)
    assert none == 0
    it.reload(share_prefixes=True)
    _, none = believed()
    assert none == 0, "other salts: nothing that was known is known by them"
    assert believed(key=OTHER_KEY)[1] > 1_000


def test_the_requests_of_a_session_go_to_one_engine(changed: House) -> None:
    it = changed
    it.reload(session_header="X-Session", session_cookie="sid")
    found = {i: {it.where(user("Hi."), **{"x-session": f"s{i}"}) for _ in range(3)} for i in range(8)}
    assert all(len(engines) == 1 for engines in found.values())
    assert len(set.union(*found.values())) > 1
    cookies = {it.where(user("Hi."), cookie=f"theme=dark; sid=s{i}") for i in range(8) for _ in range(2)}
    assert cookies == set.union(*found.values())
    assert all(it.where(user("Hi."), cookie=f"sid=s{i}") in found[i] for i in range(8)), "the same session"


def test_the_policy_can_be_changed_while_the_gateway_runs(changed: House) -> None:
    it = changed
    it.reload(policy="round_robin")
    before = it.tokens()
    found = [where for where, _, _ in it.talk("in turn", 6)]
    assert sorted(found[:3]) == [0, 1, 2]
    assert found[3:] == found[:3]
    assert it.tokens() == before, "nothing was placed"
    it.reload(policy="best")
    assert len({where for where, _, _ in it.talk("again", 4)}) == 1
    assert it.tokens()["all"] > before["all"]


def test_an_engine_that_started_anew_attracts_nothing_and_the_index_is_bounded_by_the_engines_caches() -> None:
    """The restart is too short for a health check to see it: what tells is a counter that fell."""
    kv = 8_192
    rare = {"health_interval": 60.0, "unhealthy_after": 100}
    with house("--kv-tokens", str(kv), count=2, each=rare, placement={"report_interval": 0.05}) as it:
        for i in range(16):
            it.where(user(text(f"filler-{i}", 500)))
        eventually(lambda: 0.7 * 2 * kv / 128 < it.forebay.metric("forebay_prefix_blocks") <= 2 * kv / 128)
        home = it.where(user(text("kept", 900)))
        before = it.tokens()["believed_cached"]
        assert it.where(user(text("kept", 900))) == home
        assert it.tokens()["believed_cached"] > before + 1_000
        engine = it.engines[home]
        assert engine.stop() == 0
        engine.options += ["--port", str(engine.port)]
        engine.start()
        eventually(lambda: "has started anew: its caches are empty" in it.forebay.text)
        before = it.tokens()["believed_cached"]
        _, usage, _ = it.ask(user(text("kept", 900)))
        assert it.tokens()["believed_cached"] == before
        assert usage["prompt_tokens_details"]["cached_tokens"] < 100
