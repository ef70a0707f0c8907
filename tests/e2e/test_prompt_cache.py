"""Prompt caches of engines, through a real gateway: what is seen of them, and what engines are told."""

from __future__ import annotations

import datetime
import json
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from anthropic.types.message_create_params import MessageCreateParamsNonStreaming
from pydantic import TypeAdapter

from e2e.client import KEY, chat, new_id
from e2e.engine import ANSWER, DONE, ROLE, RawEngine, delta, event, says, streams, whole
from e2e.gateway import Gateway
from engine_process import EngineProcess
from forebay.cli.adminsocket import AdminSocket
from forebay.cli.main import run
from forebay.state.messages import admin_socket
from waiting import eventually

OTHER = "e2e-other-0123456789abcdef"
TIMELY = "e2e-timely-0123456789abcdef"
RULES = " ".join(f"Rule {i} of {i * 7 % 41}: be kind, and quote the handbook's page {i * 13}." for i in range(60))
SECRET = "Zanzibar"
ENOUGH = 33
MESSAGE = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude",
    "content": [{"type": "text", "text": "Hi"}],
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 10, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 5, "output_tokens": 2},
}
PREFILLED = {"id": "c", "object": "chat.completion", "choices": [], "kv_transfer_params": {"do_remote_prefill": True}}


@dataclass
class Stack:
    gateway: Gateway
    raw: RawEngine
    prefill: RawEngine

    def seen(self, model: str, key: str = KEY, engine: RawEngine | None = None, **fields: Any) -> dict[str, Any]:
        """What the engine got of a request."""
        engine = engine or self.raw
        test = new_id("cache")
        claude = whole(200, json.dumps(MESSAGE).encode())
        self.raw.scripts[test] = says(claude if model == "claude" else whole(200, ANSWER))
        self.prefill.scripts[test] = says(whole(200, json.dumps(PREFILLED).encode()))
        answer = self.gateway.ask(chat(model, **fields), x_test=test, key=key)
        assert answer.status == 200, answer
        found = engine.one(test).json
        assert isinstance(found, dict)
        return found

    def cached(self, model: str, key: str, text: str) -> int:
        answer = self.gateway.ask(chat(model, messages=[{"role": "system", "content": text}], max_tokens=2), key=key)
        found = answer.json["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert isinstance(found, int)
        return found

    def page(self, organisation: str) -> dict[str, Any]:
        found = self.asked()
        assert found["watched"] is True and found["silent"] == []
        return next((group for group in found["groups"] if group["organisation"] == organisation), {"compared": 0})

    def asked(self) -> dict[str, Any]:
        return AdminSocket(admin_socket(self.gateway.folder / "state"), "test").ask("GET", "/cache/prefix")


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    raw, prefill = RawEngine(["any"]), RawEngine(["any"])
    sim = EngineProcess(
        [
            *("--model", "plain", "--model", "apart", "--enable-prefix-caching", "--enable-prompt-tokens-details"),
            *("--speed", "20", "--keep-alive", "600"),
        ]
    )
    sim.start()

    def engine(name: str, kind: str, port: int, **more: Any) -> dict[str, Any]:
        return {"name": name, "url": f"http://127.0.0.1:{port}", "kind": kind, "models": [name], **more}

    salt = {"cache_salt": "organisation"}
    split = {"models": ["split"], "prompt_cache": salt}
    gateway = Gateway(
        {
            "listeners": [{"address": "127.0.0.1:0"}],
            "engines": [
                engine("plain", "vllm", sim.port),
                engine("apart", "vllm", sim.port, prompt_cache=salt),
                engine("keyed", "openai", raw.port, prompt_cache={"prompt_cache_key": "key"}),
                engine("claude", "anthropic", raw.port, api_key="sk", prompt_cache={"cache_control": "1h"}),
                engine("radix", "sglang", raw.port, prompt_cache=salt),
                engine("decoder", "vllm", raw.port, **split, role="decode", prefill_tokens_per_s=10),
                engine("prefiller", "vllm", prefill.port, **split, role="prefill"),
            ],
            "disaggregation": {"least_tokens": 1},
            "cache": {"prefix": {"watch": True, "interval": 0.01, "reorder": "tools"}},
            "callers": {
                "keys": [
                    {"name": "e2e", "key": KEY, "organisation": "first"},
                    {"name": "other", "key": OTHER, "organisation": "second"},
                    {"name": "timely", "key": TIMELY, "organisation": "timely"},
                ]
            },
        }
    )
    try:
        gateway.wait_until_ready("plain", "apart", "keyed", "claude")
        yield Stack(gateway, raw, prefill)
    finally:
        gateway.stop()
        raw.close()
        prefill.close()
        assert sim.stop() == 0


def ask_until_compared(stack: Stack, key: str, organisation: str, begin: str, *, stream: bool) -> dict[str, Any]:
    """Requests with `begin` before the same rules, {time} in it another one each time."""
    now = datetime.datetime(2026, 11, 30, 17, 5, tzinfo=datetime.UTC)
    for i in range(2_000):
        time = (now + datetime.timedelta(seconds=17 * i)).strftime("%Y-%m-%dT%H:%M:%S")
        messages = [
            {"role": "system", "content": begin.format(time=time) + RULES},
            {"role": "user", "content": f"What of {SECRET} {i}?"},
        ]
        body = chat("plain", messages=messages, max_tokens=2, stream=stream)
        assert stack.gateway.ask(body, key=key).status == 200
        if i % 10 == 9 and i > ENOUGH and (page := stack.page(organisation))["compared"] >= ENOUGH:
            return page
    raise AssertionError(page)


def test_a_time_in_the_system_prompt_is_found_and_told(stack: Stack, capsys: pytest.CaptureFixture[str]) -> None:
    page = ask_until_compared(stack, TIMELY, "timely", "You are Ann. It is {time}. ", stream=True)
    assert page["reported"] < 0.1 and page["as_sent"] < 0.1
    assert page["could_be"] > 0.85
    one = page["breaks"][0]
    assert (one["where"], one["kind"], one["shape"]) == ("messages[0] (system)", "time", "0000-00-00T00:00:00")
    assert one["at"] == len("You are Ann. It is ") and one["requests"] > 0.9 and one["lost"] > 0.85
    assert "the system prompt (messages[0]) holds a time at character 19" in page["advice"]
    said = eventually(lambda: [x for x in stack.gateway.log.read_text().splitlines() if '"forebay.prefix"' in x])
    assert len(said) == 1 and "prompts of timely for plain: the prefix hit could be 9" in said[0]
    assert run(["cache", "prefix", "--organisation", "timely", "--config", str(stack.gateway.file)]) == 0
    table = capsys.readouterr().out
    assert "holds a time at character 19 (0000-00-00T00:00:00)" in table
    for shown in (stack.gateway.log.read_text(), json.dumps(page), table):
        assert SECRET not in shown and "handbook" not in shown and "2026-11-30T17:05" not in shown
    metric = stack.gateway.metric
    assert eventually(lambda: metric("forebay_prompt_cache_breaks_total", model="plain", kind="time")) >= ENOUGH - 1
    could, sent = (metric("forebay_prompt_cache_tokens_total", model="plain", kind=k) for k in ("could_be", "as_sent"))
    assert could > 5 * sent


def test_where_nothing_varies_before_the_rules_the_engine_finds_them(stack: Stack) -> None:
    page = ask_until_compared(stack, OTHER, "second", "", stream=False)
    assert page["breaks"] == [] and page["advice"] == "" and page["notes"] == []
    assert page["reported"] > 0.85 and page["as_sent"] > 0.85
    assert abs(page["could_be"] - page["reported"]) < 0.1


def test_two_organisations_find_each_other_s_prompts_only_without_a_salt(stack: Stack) -> None:
    text = "Both of us ask this. " + RULES
    assert stack.cached("plain", KEY, text) == 0
    assert stack.cached("plain", OTHER, text) > 500
    assert stack.cached("apart", KEY, text) == 0
    assert stack.cached("apart", OTHER, text) == 0
    assert stack.cached("apart", KEY, text) > 500


def test_what_engines_are_told(stack: Stack) -> None:
    first, second = stack.seen("radix"), stack.seen("radix", OTHER)
    assert first["cache_salt"] != second["cache_salt"] and len(first["rid"]) > 16
    assert "cache_salt" not in stack.seen("keyed")
    assert stack.seen("keyed")["prompt_cache_key"] != stack.seen("keyed", OTHER)["prompt_cache_key"]
    assert stack.seen("keyed", prompt_cache_key="mine")["prompt_cache_key"] == "mine"


def test_a_salt_goes_to_both_halves_of_a_split_attempt(stack: Stack) -> None:
    test = new_id("cache")
    stack.prefill.scripts[test] = says(whole(200, json.dumps(PREFILLED).encode()))
    stack.raw.scripts[test] = streams(ROLE, event(delta({"content": "Hi"}, "stop")), DONE)
    messages = [{"role": "user", "content": RULES * 8}]
    assert stack.gateway.ask(chat("split", messages=messages, stream=True), x_test=test).status == 200
    halves = [engine.one(test).json for engine in (stack.prefill, stack.raw)]
    assert halves[1]["kv_transfer_params"] == PREFILLED["kv_transfer_params"]
    assert halves[0]["cache_salt"] == halves[1]["cache_salt"] and len(halves[0]["cache_salt"]) == 32


def test_anthropic_gets_marks_that_its_sdk_knows(stack: Stack) -> None:
    tools = [{"type": "function", "function": {"name": n, "parameters": {"type": "object"}}} for n in ("b", "a")]
    turns = [{"role": r, "content": r} for r in ("system", "user", "assistant", "user")]
    got = stack.seen("claude", messages=turns, tools=tools)
    TypeAdapter(MessageCreateParamsNonStreaming).validate_python(got)
    mark = {"type": "ephemeral", "ttl": "1h"}
    assert [tool["name"] for tool in got["tools"]] == ["a", "b"]
    assert [tool.get("cache_control") for tool in got["tools"]] == [None, mark]
    assert got["system"] == [{"type": "text", "text": "system", "cache_control": mark}]
    assert [turn["content"][-1].get("cache_control") for turn in got["messages"]] == [None, None, mark]


def test_the_watch_is_switched_by_a_reload_and_says_so(stack: Stack, capsys: pytest.CaptureFixture[str]) -> None:
    config = stack.gateway.config
    off = {**config, "cache": {"prefix": {"watch": False}}}

    def reload(config: dict[str, Any]) -> None:
        stack.gateway.file.write_text(json.dumps(config))
        stack.gateway.process.send_signal(signal.SIGHUP)

    reload(off)
    eventually(lambda: not stack.asked()["watched"])
    assert run(["cache", "prefix", "--config", str(stack.gateway.file)]) == 1
    assert "set cache.prefix.watch: true" in capsys.readouterr().err
    assert stack.gateway.ask(chat("plain", max_tokens=2)).status == 200
    reload(config)
    eventually(lambda: stack.asked()["watched"])
    assert stack.asked()["groups"] == []
