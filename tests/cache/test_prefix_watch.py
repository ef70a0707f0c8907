"""Requests of an application, and what is found to break their prefix."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from forebay.cache.prefix.request import canonical_tools, segments
from forebay.cache.prefix.watch import FAMILIES, GROUPS, NOTHING, PrefixWatch, Seen

Chat = tuple[list[dict[str, Any]], list[dict[str, Any]] | None]
RULES = " ".join(f"Rule {i} of {i * 7 % 41}: be kind, and quote the handbook's page {i * 13}." for i in range(40))
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": f"tool_{c}",
            "description": f"Does {c * 20}",
            "parameters": {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "number"}}},
        },
    }
    for c in "abcdef"
]
ME = ("model", "org")


def look(watch: PrefixWatch, chat: Chat, group: tuple[str, str] = ME) -> Seen:
    messages, tools = chat
    text = json.dumps(messages, ensure_ascii=False).encode()
    return watch.look(group, text, json.dumps(tools).encode() if tools is not None else b"")


def asked(i: int) -> dict[str, Any]:
    rng = random.Random(i)
    return {"role": "user", "content": f"Question {rng.random()} about {rng.choice('abc') * 30}?"}


def system(text: str) -> Callable[[int], Chat]:
    return lambda i: ([{"role": "system", "content": text.format(i=i, uuid=uuid.UUID(int=i**9))}, asked(i)], None)


def run(make: Callable[[int], Chat], n: int = 12) -> Seen:
    watch = PrefixWatch(1 << 24)
    assert look(watch, make(0)) is NOTHING
    for i in range(1, n):
        seen = look(watch, make(i))
    return seen


def test_a_stable_prompt_breaks_nothing() -> None:
    seen = run(system(RULES))
    assert seen.breaks == () and 0.9 < seen.as_sent == seen.could_be < 1


@pytest.mark.parametrize(
    ("begin", "kind", "at"),
    [
        ("You are Ann. Now it is 2026-11-30T17:05:{i:02d}Z. ", "time", 23),
        ("Session {uuid}: ", "uuid", 8),
        ("这是第{i}位客户，", "number", 3),
    ],
)
def test_what_stands_before_the_rules_breaks_them(begin: str, kind: str, at: int) -> None:
    seen = run(system(begin + RULES))
    assert seen.as_sent < 0.05 and seen.could_be > 0.9
    (one,) = seen.breaks
    assert (one.where, one.kind, one.at) == ("messages[0] (system)", kind, at)
    assert one.lost > 0.9


def test_behind_the_rules_it_breaks_nothing() -> None:
    seen = run(system(RULES + " Now it is 2026-11-30T17:05:{i:02d}Z."))
    assert seen.breaks == () and seen.as_sent > 0.9


def test_tools_in_another_order_and_with_their_keys_in_another() -> None:
    def order(i: int) -> Chat:
        return [{"role": "system", "content": RULES}, asked(i)], random.Random(i).sample(TOOLS, len(TOOLS))

    def keys(i: int) -> Chat:
        tools = [dict(random.Random(i).sample(list(tool.items()), 2)) for tool in TOOLS]
        return [{"role": "system", "content": RULES}, asked(i)], tools

    for make, kind in ((order, "order"), (keys, "keys")):
        found = [look(watch := PrefixWatch(1 << 24), make(0))] + [look(watch, make(i)) for i in range(1, 12)]
        broken = [one for seen in found for one in seen.breaks]
        assert {(one.where, one.kind) for one in broken} == {("tools", kind)}
        assert max(one.lost for one in broken) > 0.5


def test_instructions_behind_the_text_they_are_about() -> None:
    def make(i: int) -> Chat:
        return [{"role": "user", "content": f"Text: {asked(i)['content']}\n\n{RULES}"}], None

    seen = run(make)
    assert seen.could_be > 0.9 and seen.as_sent < 0.1
    assert {one.where for one in seen.breaks} == {"messages[0] (user)"}


def test_askers_own_words_break_nothing() -> None:
    rng = random.Random(5)
    words = RULES.split()

    def make(i: int) -> Chat:
        return [{"role": "user", "content": " ".join(rng.choice(words) for _ in range(200))}], None

    watch = PrefixWatch(1 << 24)
    for i in range(30):
        seen = look(watch, make(i))
        assert seen.breaks == () and seen.could_be < 0.1


def test_of_a_conversation_all_but_the_last_turn_was_there_before() -> None:
    def make(i: int) -> Chat:
        turns = [
            {"role": r, "content": f"{r} {i} {k} " + "word " * 30} for k in range(4) for r in ("user", "assistant")
        ]
        return [{"role": "system", "content": RULES}, *turns, asked(i)], None

    seen = run(make)
    assert seen.breaks == () and seen.as_sent == seen.could_be > 0.95


def test_two_applications_of_one_organisation_are_kept_apart() -> None:
    other = RULES.replace("kind", "brief").replace("Rule", "Law").replace("handbook", "book of laws")
    watch = PrefixWatch(1 << 24)
    makes = (system("At 17:05:{i:02d}. " + RULES), system(other))
    for i in range(20):
        seen = look(watch, makes[i % 2](i))
    assert seen.breaks == () and seen.as_sent > 0.9


def test_groups_know_nothing_of_each_other() -> None:
    watch = PrefixWatch(1 << 24)
    for i in range(5):
        assert look(watch, system(RULES)(i), ("model", f"org-{i}")) is NOTHING


def test_memory_is_bounded() -> None:
    watch = PrefixWatch(100_000)
    for i in range(GROUPS * 2):
        look(watch, ([{"role": "system", "content": f"{i} " + RULES}], None), ("model", f"org-{i}"))
    assert 1 < len(watch) <= GROUPS and watch.cost <= 100_000
    for i in range(FAMILIES * 20):
        text = "".join(random.Random(i).choices("abcdefghij .", k=2_000))
        look(watch, ([{"role": "system", "content": text}], None), ("model", "one"))
    assert watch.cost <= 100_000
    kept = sum(len(f.prompts) for g in watch._groups.values() for f in g.families)
    assert kept <= FAMILIES * 4 * len(watch)


@pytest.mark.parametrize(
    ("messages", "tools"),
    [
        (b"", b""),
        (b"null", b"null"),
        (b"[1, 2, 3]", b""),
        (b'[{"role": 5, "content": {"x": 1}}]', b"{}"),
        (b"[" * 5_000, b""),
        (b'"' + b"x" * 300 + b'"', b"[[]]"),
        (b'["\xff"]', b""),
        (b"[]", b"[1]"),
        (
            b'[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:' + b"x" * 999 + b'"}}]}]',
            b"",
        ),
    ],
)
def test_odd_requests_are_passed_over(messages: bytes, tools: bytes) -> None:
    watch = PrefixWatch(1 << 20)
    for _ in range(3):
        seen = watch.look(ME, messages, tools)
        assert 0 <= seen.as_sent <= seen.could_be <= 1 and seen.breaks == ()


_json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@examples(max_examples=50)
@given(st.lists(st.dictionaries(st.text(max_size=5), _json, max_size=4), max_size=5), st.randoms(use_true_random=False))
def test_tools_in_any_order_come_out_as_one(tools: list[dict[str, Any]], rng: random.Random) -> None:
    shuffled = [dict(rng.sample(list(tool.items()), len(tool))) for tool in rng.sample(tools, len(tools))]
    a, b = (canonical_tools(json.dumps(found).encode()) for found in (tools, shuffled))
    assert a == b and canonical_tools(a) == a
    same, ours = ([json.dumps(tool, sort_keys=True) for tool in found] for found in (json.loads(a), tools))
    assert sorted(same) == sorted(ours)


@pytest.mark.parametrize("tools", [b"null", b"{}", b"[1]", b"[", b'["a"]', b"[" * 9_000])
def test_what_is_no_list_of_tools_stays_as_it_is(tools: bytes) -> None:
    assert canonical_tools(tools) == tools


def test_parts_are_as_engines_see_them() -> None:
    messages = [
        {"role": "system", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]},
        {"role": "odd", "content": "c"},
    ]
    found = segments(json.dumps(messages).encode(), b'[ {"b": 1,  "a": 2} ]')
    assert [(part.where, part.text, part.head) for part in found] == [
        ("tools", '[{"b":1,"a":2}]', True),
        ("messages[0] (system)", "a\nb", True),
        ("messages[1] (assistant)", '[{"id":"1"}]', False),
        ("messages[2] (other)", "c", False),
    ]
