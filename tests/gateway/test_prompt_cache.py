"""What is changed of requests for their engine's prompt cache."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from forebay.api.anthropic_cache import mark
from forebay.api.openai import ChatBody
from forebay.config.cache_prefix import PromptCache, Whose
from forebay.gateway.callers import Caller
from forebay.gateway.prompt_cache import ToolOrder, marked
from forebay.ledger.records import KeyRecord

SALT = PromptCache(cache_salt=Whose.ORGANISATION)
KEY = PromptCache(prompt_cache_key=Whose.ORGANISATION)


def caller(key: str = "k1", organisation: str = "acme", **more: Any) -> Caller:
    return Caller(KeyRecord(id=key, name=key, organisation=organisation, sha256=b"\0" * 32, **more))


def sent(told: PromptCache, who: Caller | None, **fields: Any) -> dict[str, Any]:
    payload = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}).encode()
    body = msgspec.json.decode(payload, type=ChatBody)
    found = json.loads(marked(told, body, payload, who))
    assert isinstance(found, dict)
    return found


def salt(level: Whose, who: Caller | None, **fields: Any) -> str:
    found = sent(PromptCache(cache_salt=level), who, **fields)["cache_salt"]
    assert isinstance(found, str) and len(found) == 32
    return found


def test_who_shares_a_level_shares_its_salt_and_nobody_else() -> None:
    ann = caller("k1", department="d", project="p", user="ann")
    bob = caller("k2", department="d", project="p", user="bob")
    other = caller("k3", organisation="other", department="d", project="p", user="ann")
    for level in (Whose.ORGANISATION, Whose.DEPARTMENT, Whose.PROJECT):
        assert salt(level, ann) == salt(level, bob) != salt(level, other)
    for level in (Whose.USER, Whose.KEY, Whose.END_USER):
        assert len({salt(level, who) for who in (ann, bob, other)}) == 3
    assert salt(Whose.END_USER, ann, user="x") != salt(Whose.END_USER, ann, user="y")
    assert salt(Whose.END_USER, None, user="x") != salt(Whose.END_USER, None, user="y")
    assert len({salt(level, ann) for level in Whose}) == len(Whose)


def test_names_that_run_together_are_not_the_same() -> None:
    one, other = caller(organisation="ab", department="c"), caller(organisation="a", department="bc")
    assert salt(Whose.DEPARTMENT, one) != salt(Whose.DEPARTMENT, other)


def test_nobody_can_send_another_s_salt() -> None:
    mallory, acme = caller(organisation="mallory"), caller()
    theirs = salt(Whose.ORGANISATION, acme)
    assert salt(Whose.ORGANISATION, mallory, cache_salt=theirs) != theirs
    assert salt(Whose.ORGANISATION, acme, cache_salt="own") != theirs  # a client's own keeps apart still more
    assert salt(Whose.ORGANISATION, acme, cache_salt=None) == theirs
    payload = b'{"cache\\u005fsalt": "%b", "model": "m", "messages": []}' % theirs.encode()
    body = msgspec.json.decode(payload, type=ChatBody)
    found = json.loads(marked(SALT, body, payload, mallory))
    assert found["cache_salt"] not in (theirs, salt(Whose.ORGANISATION, mallory))


def test_a_client_s_own_key_of_a_prompt_cache_stands() -> None:
    assert sent(KEY, caller(), prompt_cache_key="mine")["prompt_cache_key"] == "mine"
    quoted = sent(KEY, caller(), user='"prompt_cache_key"')
    assert len(quoted["prompt_cache_key"]) == 32 and quoted["user"] == '"prompt_cache_key"'
    assert sent(KEY, caller())["prompt_cache_key"] != sent(SALT, caller())["cache_salt"]


def test_tools_are_put_in_order() -> None:
    order = ToolOrder()
    tools = [{"type": "function", "function": {"name": n, "parameters": {"b": 1.50, "a": 2}}} for n in ("z", "a")]

    def ordered(tools: Any) -> tuple[ChatBody, dict[str, Any]]:
        payload = json.dumps({"model": "m", "messages": [], "tools": tools, "n": 1}).encode()
        body, out = order.apply(msgspec.json.decode(payload, type=ChatBody), payload)
        assert isinstance(body, ChatBody)
        return body, json.loads(out)

    body, found = ordered(tools)
    assert [tool["function"]["name"] for tool in found["tools"]] == ["a", "z"]
    assert json.loads(bytes(body.tools)) == found["tools"] and found["n"] == 1
    assert bytes(body.tools) == bytes(ordered(tools[::-1])[0].tools)
    for i in range(200):
        ordered([{"function": {"name": str(i)}}])
    assert repr(order) == "<ToolOrder 64 known>"
    assert ordered(None)[1]["tools"] is None
    assert ordered([])[1]["tools"] == []


EPHEMERAL = {"type": "ephemeral"}


def anthropic(*turns: tuple[str, str], **more: Any) -> dict[str, Any]:
    messages = [{"role": role, "content": [{"type": "text", "text": text}]} for role, text in turns]
    return {"messages": messages, "system": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], **more}


def test_ends_are_marked() -> None:
    message = anthropic(("user", "a"), ("assistant", "b"), ("user", "c"), tools=[{"name": "t", "input_schema": {}}])
    mark(message, "5m")
    assert [part.get("cache_control") for part in message["system"]] == [None, EPHEMERAL]
    assert message["tools"][0]["cache_control"] == EPHEMERAL
    assert [turn["content"][0].get("cache_control") for turn in message["messages"]] == [None, None, EPHEMERAL]


def test_a_single_question_is_not_written_to_the_cache() -> None:
    message = anthropic(("user", "a"))
    mark(message, "1h")
    assert message["system"][1]["cache_control"] == {**EPHEMERAL, "ttl": "1h"}
    assert "cache_control" not in message["messages"][0]["content"][0]
    bare = {"messages": message["messages"]}
    mark(bare, "5m")
    assert bare == {"messages": message["messages"]}


@pytest.mark.parametrize("where", ["top", "system", "message"])
def test_a_client_s_own_marks_stand(where: str) -> None:
    message = anthropic(("user", "a"), ("assistant", "b"), ("user", "c"))
    marked_by_client = {"top": message, "system": message["system"][0], "message": message["messages"][0]["content"][0]}
    marked_by_client[where]["cache_control"] = EPHEMERAL
    before = json.dumps(message)
    mark(message, "5m")
    assert json.dumps(message) == before
