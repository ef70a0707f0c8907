"""The books of prompt caches, and what is said of them."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from forebay.admin.prefixapi import _sum
from forebay.api.openai import ChatBody, Usage
from forebay.api.routes import CHAT
from forebay.config.cache_prefix import Prefix
from forebay.config.engine import Engine
from forebay.config.models import Config
from forebay.engines.registry import adapter
from forebay.errors import Outcome
from forebay.gateway.prefix_watch import EAGER, GROUPS, PromptWatch
from forebay.gateway.prefix_words import ENOUGH, HINTS, IN_TURN, SILENT, UNMARKED, advice, because
from forebay.ledger.tokens import Tokens
from forebay.state.messages import PrefixBreak, PrefixGroup

RULES = " ".join(f"Rule {i} of {i * 7 % 41}: be kind, and quote the handbook's page {i * 13}." for i in range(40))


class Books:
    """A watch on a loop that this test turns, with a clock that it sets."""

    def __init__(self, *engines: Engine, **settings: Any) -> None:
        self.now = 1_000.0
        self.loop = asyncio.new_event_loop()
        handles = {
            e.name: SimpleNamespace(config=e, adapter=adapter(e.kind), models=e.models, name=e.name) for e in engines
        }
        self.gateway = SimpleNamespace(fleet=SimpleNamespace(handles=handles), config=Config(engines=engines))
        section = Prefix(watch=True, **settings)
        self.watch = PromptWatch(section, cast(Any, self.gateway), self.loop, lambda: self.now)

    def ask(self, text: str = "", *, org: str = "org", model: str = "m", cached: int | None = 0, **more: Any) -> None:
        """One request of 1,000 tokens has ended."""
        messages = [{"role": "system", "content": text}, {"role": "user", "content": "Why?"}]
        payload = json.dumps({"model": model, "messages": messages}).encode()
        details = {"cached_tokens": cached} if cached is not None else None
        x = SimpleNamespace(
            usage=Usage(prompt_tokens=1_000, completion_tokens=1, prompt_tokens_details=details),
            outcome=Outcome.OK,
            attempts=1,
            front=SimpleNamespace(route=CHAT, caller=SimpleNamespace(organisation=org)),
            entry=SimpleNamespace(target=model),
            body=msgspec.json.decode(payload, type=ChatBody),
            engine="e",
            **more,
        )
        self.watch.settled(cast(Any, x), Tokens(1_000 - (cached or 0), cached or 0, 0, 0, 1, 0))

    def run(self) -> None:
        """Until what was to be compared is."""
        self.watch._thread.submit(int).result(10)
        self.loop.run_until_complete(asyncio.sleep(0))

    def compare(self, count: int, begin: str = "", **more: Any) -> None:
        for i in range(count):
            self.now += 5
            self.ask(begin.format(i=i) + RULES, **more)
            self.run()

    def group(self, org: str = "org") -> PrefixGroup:
        return next(g for g in self.watch.state().groups if g.organisation == org)

    def close(self) -> None:
        self.watch.close()
        self.loop.close()


@pytest.fixture
def books() -> Any:
    made = Books()
    yield made
    made.close()


def test_all_are_counted_and_some_compared(books: Books) -> None:
    for _ in range(100):
        books.ask(RULES, cached=250)
    books.run()
    group = books.group()
    assert (group.requests, group.prompt_tokens, group.reported_tokens, group.cached_tokens) == (
        100,
        100_000,
        100_000,
        25_000,
    )
    assert group.compared == 1  # no time has passed
    books.compare(EAGER)
    books.now += 0.5
    books.ask(RULES)
    books.run()
    assert books.group().compared == EAGER + 1  # the interval is not over


def test_figures_are_of_the_last_two_windows(books: Books) -> None:
    books.compare(3, "At 17:05:{i:02d}. ")
    assert [one.kind for one in books.group().breaks] == ["time"]
    books.now += 600
    assert books.group().requests == 3 and round(books.group().breaks[0].ago) == 600
    books.ask(RULES, cached=1_000)
    assert (books.group().requests, books.group().cached_tokens) == (4, 1_000)
    books.now += 600
    assert (books.group().requests, books.group().breaks) == (1, ())
    books.now += 1_300
    assert books.watch.state().groups == ()


def test_what_cost_no_engine_anything_is_not_counted(books: Books) -> None:
    for more in ({"usage": None}, {"attempts": 0}, {"outcome": Outcome.ENGINE_CUT}):
        x = SimpleNamespace(
            **{"usage": Usage(prompt_tokens=5), "outcome": Outcome.OK, "attempts": 1, **more},
            front=SimpleNamespace(route=CHAT, caller=None),
        )
        books.watch.settled(cast(Any, x), Tokens(5, 0, 0, 0, 1, 0))
    assert books.watch.state().groups == ()


def test_groups_are_bounded(books: Books) -> None:
    for i in range(GROUPS + 50):
        books.ask("short", org=f"org-{i}")
    books.run()
    groups = books.watch.state().groups
    assert len(groups) == GROUPS and groups[-1].organisation == f"org-{GROUPS + 49}"


def test_one_line_an_hour_says_what_breaks_it(books: Books, caplog: pytest.LogCaptureFixture) -> None:
    books.compare(2 * ENOUGH, "At 17:05:{i:02d}. ")
    (line,) = [record.message for record in caplog.records]
    assert line.startswith("prompts of org for m: the prefix hit could be 9") and "is 0%" in line
    assert "the system prompt (messages[0]) holds a time at character 3 (00:00:00)" in line


def test_a_prompt_that_fails_to_be_compared_is_passed_over(books: Books, caplog: pytest.LogCaptureFixture) -> None:
    books.watch._watch.look = lambda *_: 1 / 0  # type: ignore[assignment,method-assign,return-value]
    books.compare(2)
    assert books.group().requests == 2 and books.group().compared == 0
    assert "could not be compared" in caplog.text and "Rule" not in caplog.text


def test_hints_are_of_the_model_s_engines() -> None:
    one = {"url": "http://127.0.0.1:1", "models": ("m",)}
    claude = Engine(name="c", kind="anthropic", url="https://api.anthropic.com", models=("m",), api_key="k")
    told = Engine.model_validate({**claude.model_dump(), "name": "d", "prompt_cache": {"cache_control": "5m"}})
    for engines, policy, cached, hints in (
        ([Engine(name="a", **one)], "best", None, (SILENT,)),
        ([Engine(name="a", **one)], "round_robin", 0, ()),
        ([Engine(name="a", **one), Engine(name="b", **one)], "round_robin", 0, (IN_TURN,)),
        ([claude, Engine(name="b", **one)], "best", 0, (UNMARKED,)),
        ([told], "best", 0, ()),
    ):
        books = Books(*engines)
        books.gateway.config = Config.model_validate({"placement": {"policy": policy}})
        books.ask("short", cached=cached)
        assert books.group().engines == hints
        books.close()


def test_a_vendor_caches_nothing_under_its_least() -> None:
    books = Books(Engine(name="e", kind="openai", url="https://api.openai.com", models=("m",)))
    books.compare(5)  # 1,000 tokens
    assert books.group().compared == 5 and books.group().could_be_tokens == 0
    books.close()


def group(**more: Any) -> PrefixGroup:
    fields: dict[str, Any] = {
        "model": "m",
        "organisation": "o",
        "requests": 100,
        "prompt_tokens": 100_000,
        "reported_tokens": 100_000,
        "cached_tokens": 3_000,
        "compared": 50,
        "compared_tokens": 50_000,
        "as_sent_tokens": 1_000,
        "could_be_tokens": 40_000,
    }
    return PrefixGroup(**{**fields, **more})


TIME = PrefixBreak("messages[0] (system)", 41, "time", "0000-00-00T00:00", 48, 38_000)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"breaks": (TIME,)},
            "could be 80%, is 3%, because the system prompt (messages[0]) holds a time at character 41 (0000-",
        ),
        ({"breaks": (TIME,), "compared": ENOUGH - 1}, ""),
        ({"breaks": (TIME,), "cached_tokens": 70_000}, ""),
        ({"breaks": (TIME,), "reported_tokens": 0}, "could be 80%, is, as prompts are sent, 2%, because"),
        ({"as_sent_tokens": 40_000, "engines": (UNMARKED,)}, f"is 3%: {HINTS[UNMARKED]}"),
        ({"as_sent_tokens": 40_000}, "the engines forget them too soon"),
        ({"compared_tokens": 0}, ""),
    ],
)
def test_advice(given: dict[str, Any], said: str) -> None:
    found = advice(group(**given))
    assert said in found and bool(found) is bool(said)


def test_every_kind_of_break_has_its_words() -> None:
    from forebay.cache.prefix.kinds import KINDS

    for kind in KINDS:
        words = because(PrefixBreak("tools", 0, kind, "", 1, 1))
        assert words.startswith("the tools ") and not words.endswith(kind)
    assert because(PrefixBreak("messages[2] (user)", 7, "id", "xxx", 1, 1)) == (
        "the message messages[2] (user) holds an id at character 7 (xxx)"
    )


def test_workers_are_added_up() -> None:
    a, b = (
        group(breaks=(TIME,), engines=(SILENT,)),
        group(breaks=(TIME, PrefixBreak("tools", 0, "order", "", 1, 90_000))),
    )
    found = _sum(a, b)
    assert (found.requests, found.compared, found.could_be_tokens) == (200, 100, 80_000)
    assert [(one.kind, one.requests, one.lost_tokens) for one in found.breaks] == [
        ("order", 1, 90_000),
        ("time", 96, 76_000),
    ]
    assert found.engines == (SILENT,)
