"""Whatever changes a request changes its key; what cannot change its answer does not."""

from __future__ import annotations

import contextlib
import copy
import json
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from forebay.api.routes import CHAT, COMPLETIONS
from forebay.cache import key as keys
from forebay.cache.key import ANYTHING, Asked, Bypassed, Facts, counted, labels_of, read, wish_of
from forebay.config.cache import Cache, CachedModel, Semantic, Share
from forebay.errors import Refusal

RULES = Cache(enabled=True, semantic=Semantic(enabled=True))
ACCOUNT = ("k1", "name", "acme", "sales", "bot", "ann")
CHAT_REQUEST: dict[str, Any] = {
    "model": "chat",
    "temperature": 0.7,
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hi, how can I help?"},
        {"role": "user", "content": "怎么开具发票"},
    ],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "required": ["a"]}}}],
    "max_tokens": 100,
    "seed": 7,
    "stop": ["\n"],
}


def facts(rules: Cache = RULES, account: tuple[str, ...] = ACCOUNT, **more: Any) -> Facts:
    return Facts(rules, account, **{"model": "chat", "target": "Qwen/Qwen3-8B", **more})  # type: ignore[arg-type]


def asked(request: dict[str, Any] | bytes, of: Facts | None = None, rules: Cache = RULES) -> Asked | Bypassed:
    payload = request if isinstance(request, bytes) else json.dumps(request).encode()
    route = COMPLETIONS if b'"prompt"' in payload else CHAT
    return read(route.parse(payload), payload, of or facts(rules), rules)


def key(request: dict[str, Any] | bytes, of: Facts | None = None, rules: Cache = RULES) -> Asked:
    found = asked(request, of, rules)
    assert isinstance(found, Asked), found
    return found


def why(request: dict[str, Any], rules: Cache = RULES) -> str:
    found = asked(request, rules=rules)
    assert isinstance(found, Bypassed), found
    return found.why


def with_(**more: Any) -> dict[str, Any]:
    return {**CHAT_REQUEST, **more}


def saying(*messages: Any) -> dict[str, Any]:
    return {"model": "chat", "messages": list(messages)}


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


# --- what makes no difference ----------------------------------------------------------------------------------------


def test_json_written_otherwise_is_the_same_request() -> None:
    request = with_(temperature=1)
    plain = key(request)
    assert len(plain.exact) == len(plain.scope) == 16
    assert plain.exact != plain.scope
    assert plain.question == "怎么开具发票"
    other = json.dumps(request, indent=3, ensure_ascii=False, sort_keys=True).replace(
        '"temperature": 1', '"temperature":1.0'
    )
    assert key(other.encode()) == plain
    assert key(json.dumps(request).replace('"role"', '"\\u0072ole"').encode()) == plain
    assert key(json.dumps(request).replace('"temperature": 1', '"temperature": 1e0').encode()) == plain


@pytest.mark.parametrize(
    "more",
    [
        {"stream": True, "stream_options": {"include_usage": True}},
        {"user": "u-1"},
        {"safety_identifier": "u-1"},
        {"metadata": {"trace": "1"}},
        {"store": True},
        {"service_tier": "flex"},
        {"priority": 3},
        {"prompt_cache_key": "x"},
        {"request_id": "x"},
        {"response_format": None},
        {"model": "Qwen/Qwen3-8B"},  # the facts say what was asked for
    ],
)
def test_what_does_not_change_the_answer_does_not_change_the_key(more: dict[str, Any]) -> None:
    assert key(with_(**more)) == key(CHAT_REQUEST)


# --- what does -------------------------------------------------------------------------------------------------------


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(value, dict):
        return [leaf for k, v in value.items() for leaf in leaves(v, (*path, k))]
    if isinstance(value, list):
        return [leaf for i, v in enumerate(value) for leaf in leaves(v, (*path, i))]
    return [path]


LEAVES = [path for path in leaves(CHAT_REQUEST) if path != ("model",)]
QUESTION = ("messages", 3, "content")
VALUES = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8), st.integers(-9, 9), st.floats(-9, 0.9), st.booleans()
)


@given(st.sampled_from(LEAVES), VALUES)
def test_any_value_that_changes_changes_the_key(path: tuple[Any, ...], value: Any) -> None:
    changed = copy.deepcopy(CHAT_REQUEST)
    place: Any = changed
    for step in path[:-1]:
        place = place[step]
    old = place[path[-1]]
    assume(value != old or isinstance(value, bool) != isinstance(old, bool))
    place[path[-1]] = value
    try:
        found = asked(changed)
    except Refusal:
        return  # not a request at all
    if isinstance(found, Bypassed):
        return
    plain = key(CHAT_REQUEST)
    assert found.exact != plain.exact
    if path == QUESTION and isinstance(value, str):
        assert found.question == value
        assert found.scope in (b"", plain.scope) or not (value.isascii() and value.isalnum())
    else:
        assert found.scope != plain.scope


@given(st.text("abcdefghijklmnopqrstuvwxyz_", min_size=1, max_size=12), st.one_of(VALUES, st.lists(VALUES, max_size=2)))
def test_a_field_nobody_knows_changes_the_key(name: str, value: Any) -> None:
    assume(name not in CHAT_REQUEST)
    try:
        found = asked(with_(**{name: value}))
    except Refusal:
        return
    if isinstance(found, Asked) and name != "model" and name not in keys._MAY_LEAVE:
        assert found.exact != key(CHAT_REQUEST).exact
        assert found.scope != key(CHAT_REQUEST).scope


@pytest.mark.parametrize(
    "other",
    [
        facts(account=("k2", "name", "evil", "sales", "bot", "ann")),
        facts(model="alias"),
        facts(target="Qwen/Qwen3-32B"),
        facts(locale="zh-CN"),
        facts(knowledge="2026-11"),
        facts(Cache(enabled=True, semantic=RULES.semantic, version="2")),
        facts(Cache(enabled=True, semantic=RULES.semantic, models={"Qwen/Qwen3-8B": CachedModel(version="2")})),
        facts(Cache(enabled=True, semantic=RULES.semantic, share=Share.PROJECT)),
    ],
)
def test_other_facts_make_another_key(other: Facts) -> None:
    assert key(CHAT_REQUEST, other).exact != key(CHAT_REQUEST).exact
    assert key(CHAT_REQUEST, other).scope != key(CHAT_REQUEST).scope


def test_facts_do_not_run_into_one_another() -> None:
    assert (
        key(CHAT_REQUEST, facts(locale="a", knowledge="")).exact
        != key(CHAT_REQUEST, facts(locale="", knowledge="a")).exact
    )
    assert key(CHAT_REQUEST, facts(account=("k", "", "a/b", "", "", ""), model="c")).exact != (
        key(CHAT_REQUEST, facts(account=("k", "", "a", "", "", ""), model="b/c")).exact
    )
    assert facts(account=("k", "", "a/b", "", "", ""), model="c").partition == "a%2Fb/c"


def test_the_question_does_not_run_into_the_rest() -> None:
    """No request whose last turn is no question is that of one whose question is what the other has instead."""
    asks = key(saying(user("Hello")))
    assert key(saying({"role": "user", "content": None})).exact != asks.exact
    assert key(saying(user([{"type": "text", "text": "Hello"}]))).scope != asks.scope
    assert key(saying(user("Hello"), {"role": "assistant", "content": "Hello"})).scope == b""


# --- who shares ------------------------------------------------------------------------------------------------------

OTHERS = {
    Share.EVERYONE: ("k2", "n2", "other", "d2", "p2", "u2"),
    Share.ORGANISATION: ("k2", "n2", "acme", "d2", "p2", "u2"),
    Share.DEPARTMENT: ("k2", "n2", "acme", "sales", "p2", "u2"),
    Share.PROJECT: ("k2", "n2", "acme", "sales", "bot", "u2"),
    Share.USER: ("k2", "n2", "acme", "sales", "bot", "ann"),
    Share.KEY: ("k1", "n2", "acme", "sales", "bot", "ann"),
}


@pytest.mark.parametrize("share", list(OTHERS))
def test_an_answer_is_shared_at_its_level_and_not_beyond(share: Share) -> None:
    rules = Cache(enabled=True, share=share)
    own = key(CHAT_REQUEST, facts(rules), rules)
    for level, account in OTHERS.items():
        found = key(CHAT_REQUEST, facts(rules, account), rules)
        wider = list(OTHERS).index(level) < list(OTHERS).index(share)
        assert (found.exact == own.exact) is not wider, level


def test_a_key_without_a_name_at_that_level_shares_with_no_other() -> None:
    rules = Cache(enabled=True, share=Share.DEPARTMENT)
    found = {key(CHAT_REQUEST, facts(rules, (k, "", "acme", "", "", "")), rules).exact for k in ("k1", "k2")}
    assert len(found) == 2


def test_end_users_are_told_apart_and_must_be_named() -> None:
    rules = Cache(enabled=True, share=Share.END_USER, semantic=RULES.semantic)
    assert asked(CHAT_REQUEST, rules=rules) == Bypassed("end_user")
    ann, bob = (key(with_(user=name), rules=rules) for name in ("ann", "bob"))
    assert ann.exact != bob.exact
    assert ann.scope != bob.scope
    assert key(with_(safety_identifier="ann"), rules=rules) == ann
    assert key(with_(user="ann", safety_identifier="ann"), rules=rules) == ann
    both = {name: key(with_(user="app", safety_identifier=name), rules=rules) for name in ("ann", "bob")}
    other = key(with_(user="ann", safety_identifier="app"), rules=rules)
    assert len({ann.exact, *(one.exact for one in both.values()), other.exact}) == 4


def test_no_organisation_is_taken_for_everyone_for_nobody_or_for_who_shows_no_key() -> None:
    named = {name: facts(account=("k", "n", name, "", "", "")) for name in ("-", "*", "anonymous", "acme")}
    everyone = Cache(enabled=True, share=Share.EVERYONE, semantic=RULES.semantic)
    nobody = facts(account=("k", "n", "", "", "", ""))
    nameless = facts(account=("anonymous", "anonymous", "anonymous", "", "", ""))
    found = [*named.values(), facts(everyone), nobody, nameless]
    assert len({key(CHAT_REQUEST, one).exact for one in found}) == len(found)
    shown = [one.partition for one in (*named.values(), facts(everyone))]
    assert shown == ["%2D/chat", "%2A/chat", "anonymous/chat", "acme/chat", "*/chat"]
    assert nobody.partition.startswith("-/")


def test_a_chat_is_no_completion_whatever_fields_it_has() -> None:
    both = {"model": "chat", "prompt": "Hi", "messages": [{"role": "assistant", "content": "Hi"}]}
    payload = json.dumps(both).encode()
    found = [read(route.parse(payload), payload, facts(), RULES) for route in (CHAT, COMPLETIONS)]
    assert all(isinstance(one, Asked) for one in found)
    assert found[0] != found[1]


# --- headers ---------------------------------------------------------------------------------------------------------


def test_what_an_engine_gets_beside_the_body_counts_unless_it_is_known_to_say_nothing() -> None:
    plain = [(b"user-agent", b"x"), (b"accept", b"*/*"), (b"x-stainless-lang", b"python"), (b"traceparent", b"00-1")]
    assert counted(plain) == ()
    own = [*plain, (b"x-user-id", b"ann"), (b"openai-beta", b"assistants=v2")]
    assert counted(own) == (("openai-beta", "assistants=v2"), ("x-user-id", "ann"))
    assert counted(own, ("x-user-*",)) == (("openai-beta", "assistants=v2"),)
    assert counted(own, ("x-user", "openai-beta")) == (("x-user-id", "ann"),)
    ann, bob = (key(CHAT_REQUEST, facts(headers=(("x-user-id", name),))) for name in ("ann", "bob"))
    assert ann.exact != bob.exact
    assert ann.scope != bob.scope


# --- signs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("is this ok 👍", "is this ok 👎"),
        ("怎么开发票", "怎么❌开发票"),
        ("what does the 🇺🇸 flag mean", "what does the 🇫🇷 flag mean"),
        ("how do I enable it", "how do I ¬ enable it"),
        ("what does a && b do", "what does a || b do"),
        ("what is === in js", "what is == in js"),
        ("is a ≥ b", "is a ≤ b"),
        ("price in $", "price in €"),
        ("how to delete ./tmp", "how to delete /tmp"),
        ("how to delete ~/x", "how to delete /x"),
        ("what is !x", "what is x"),
        ("is googIe.com safe", "is google.com safe"),
        ("how do I enable it", "how do I enable\u200b it"),
        ("how to pay", "\u202eyap ot woh"),
        ("read a file", "read a file\0"),
    ],
)
def test_questions_of_other_signs_are_never_compared(one: str, other: str) -> None:
    a, b = (key(saying(user(text))) for text in (one, other))
    assert a.scope
    assert b.scope
    assert a.scope != b.scope


@given(text=st.text(st.sampled_from("ab1_- \n.,?~!/=$&中：") | st.characters(codec="utf-8"), max_size=12))
def test_the_quick_look_for_signs_overlooks_none(text: str) -> None:
    for one in (text, *text):
        assert keys._MAY_BE_SIGNS.search(one) or not keys._SIGNS.findall(one)


def test_questions_of_the_same_signs_or_none_are() -> None:
    for one, other in (
        ("怎么开具发票？", "发票如何开"),
        ("How do I get an invoice, please?", "how can I get an invoice!"),
        ("open google.com for me", "how do I open google.com"),
        ("价格是$5吗", "是不是$5"),
    ):
        assert key(saying(user(one))).scope == key(saying(user(other))).scope


# --- what is not looked for ------------------------------------------------------------------------------------------

PICTURE = {"type": "image_url", "image_url": {"url": "https://example.org/1.png"}}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (with_(temperature=1.1), "temperature"),
        (with_(temperature="hot"), "temperature"),
        (with_(logprobs=True), "logprobs"),
        (with_(prompt_logprobs=1), "logprobs"),
        (with_(web_search_options={"a": 1}), "search"),
        (with_(enable_search=True), "search"),
        (with_(tools=[{"type": "web_search"}]), "search"),
        (with_(modalities=["text", "audio"]), "audio"),
        (with_(modalities=["text", "image"]), "modality"),
        (with_(modalities=5), "modality"),
        (with_(web_search_options={}), "search"),
        (with_(search_recency_filter="day"), "search"),
        (with_(plugins=[{"id": "web"}]), "search"),
        (with_(tools=[{"google_search": {}}]), "search"),
        (with_(tools=[{"type": {}}]), "search"),
        (with_(tools=7), "search"),
        (saying(user([{"type": {}}])), "attachment"),
        ({"model": "chat", "prompt": "What time is it now?"}, "time"),
        ({"model": "chat", "prompt": "What is my balance?"}, "personal"),
        (saying(*[{}] * 10_001, user("x" * 16_384)), "large"),
        (with_(logit_bias={str(i): 1 for i in range(10_001)}), "large"),
        (saying(user([PICTURE, {"type": "text", "text": "What is it?"}])), "attachment"),
        (saying(user([PICTURE]), {"role": "assistant", "content": "A cat"}, user("Which?")), "attachment"),
        (saying(user("Hi"), {"role": "assistant", "tool_calls": [CALL]}, user("And?")), "tools"),
        (saying(user("Hi"), {"role": "tool", "tool_call_id": "c", "content": "7"}), "tools"),
        (saying(user("Hi"), {"role": "function", "name": "f", "content": "7"}), "tools"),
        (saying(user("What's the weather in Paris?")), "time"),
        (
            saying(user("What's the weather in Paris?"), {"role": "assistant", "content": "Rain"}, user("In Rome?")),
            "time",
        ),
        (saying(user("What is my balance?")), "personal"),
        (saying(user([{"type": "text", "text": "我的余额是多少"}])), "personal"),
        (saying(user("restaurants near me")), "place"),
        (saying(user("generate a password")), "chance"),
        (saying("Hi"), "unreadable"),
        (saying(user("Hi" * (1 << 19))), "large"),
    ],
)
def test_what_is_not_looked_for(request_: dict[str, Any], reason: str) -> None:
    assert why(request_) == reason


LITERALS = ("1", "1.0", "-0.0", "1e2", "1.5", "12345678901234567890123", "1e400", '"1.0"', "null", "true", "1E-2")
NESTED = ("%s", "[%s]", '{"a": %s}', '[["x", {"b": [%s]}]]')


@given(st.sampled_from(LITERALS), st.sampled_from(NESTED), st.sampled_from(["temperature", "field", "seed"]))
def test_numbers_are_what_they_are_wherever_they_stand(literal: str, nested: str, name: str) -> None:
    """One by one as they are read, or all at once where none stands deep."""
    raw = json.dumps(CHAT_REQUEST | {name: "@@"}).replace('"@@"', nested % literal).encode()
    try:
        expected = keys._encode(keys._decode(raw))
    except (msgspec.MsgspecError, ValueError, OverflowError):
        expected = b""
    try:
        fields = keys._decode_as_it_is(raw)
    except msgspec.MsgspecError:
        assert not expected
        return
    if keys._settles(fields):
        assert keys._encode(fields) == expected
    else:
        assert nested != "%s"
        assert type(json.loads(literal)) is float


def test_numbers_that_python_has_no_number_for_are_unreadable() -> None:
    payload = json.dumps(CHAT_REQUEST).replace("0.7", "1e400").encode()
    assert asked(payload) == Bypassed("unreadable")


def test_what_asks_for_ones_own_is_kept_for_oneself_where_that_is_allowed() -> None:
    rules = Cache(enabled=True, share=Share.USER, personal=True)
    assert key(saying(user("What is my balance?")), rules=rules).exact
    assert why(saying(user("What is my balance today?")), rules=rules) == "time"


def test_a_model_may_be_left_out_or_kept_from_comparing_meaning() -> None:
    off = Cache(enabled=True, semantic=RULES.semantic, models={"Qwen/Qwen3-8B": CachedModel(enabled=False)})
    assert asked(CHAT_REQUEST, rules=off) == Bypassed("model")
    exact = Cache(enabled=True, semantic=RULES.semantic, models={"Qwen/Qwen3-8B": CachedModel(semantic=False)})
    found = key(CHAT_REQUEST, rules=exact)
    assert (found.scope, found.why) == (b"", "semantic")
    assert found.exact == key(CHAT_REQUEST).exact


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (saying({"role": "system", "content": "Talk"}), "last_turn"),
        (saying(user("Hi"), {"role": "assistant", "content": "H"}), "last_turn"),
        (saying(user(" \n")), "empty"),
        (with_(n=2), "n"),
        (saying(user("x" * 1_025)), "long"),
        ({"model": "chat", "prompt": "Once upon a"}, "completion"),
        ({"model": "chat", "prompt": [1, 2]}, "completion"),
    ],
)
def test_what_is_kept_for_equal_requests_only(request_: dict[str, Any], reason: str) -> None:
    found = key(request_)
    assert (found.scope, found.why) == (b"", reason)


def test_completions_are_told_apart() -> None:
    prompts = ["Once", "Once ", ["Once"], [1], [1, 2], [[1], [2]]]
    assert len({key({"model": "chat", "prompt": prompt}).exact for prompt in prompts}) == len(prompts)


@given(
    st.binary(max_size=60),
    st.sampled_from([b'{"model":"m","messages":[%b]}', b'{"model":"m","messages":[{"role":"user","content":"%b"}]}']),
)
def test_whatever_is_no_request_is_refused_or_bypassed(data: bytes, around: bytes) -> None:
    with contextlib.suppress(Refusal):
        asked(around % data)


def test_numbers_of_any_size_are_told_apart() -> None:
    assert key(with_(seed=1 << 80)).exact != key(with_(seed=(1 << 80) + 1)).exact
    assert key(with_(seed=10**22)) == key(json.dumps(with_(seed=10**22)).replace("0" * 22, "e22").encode())


# --- heads -----------------------------------------------------------------------------------------------------------


def test_the_wishes_of_a_head() -> None:
    assert wish_of({}) is ANYTHING
    for head, looks, stores, only in (
        ({b"x-forebay-cache": b"bypass"}, False, False, False),
        ({b"x-forebay-cache": b"Refresh"}, False, True, False),
        ({b"x-forebay-cache": b"only"}, True, True, True),
        ({b"x-forebay-cache": b"use"}, True, True, False),
        ({b"cache-control": b"no-store"}, False, False, False),
        ({b"cache-control": b"no-cache, no-store"}, False, False, False),
        ({b"cache-control": b"no-cache"}, False, True, False),
        ({b"cache-control": b"max-age=0"}, False, True, False),
        ({b"cache-control": b"only-if-cached"}, True, True, True),
        ({b"cache-control": b"no-transform"}, True, True, False),
        ({b"cache-control": b"no-store", b"x-forebay-cache": b"refresh"}, False, False, False),
    ):
        wish = wish_of(head)
        assert (wish.looks, wish.stores, wish.only) == (looks, stores, only), head
    assert wish_of({b"cache-control": b"Max-Age=60"}).most_age == 60
    with pytest.raises(Refusal, match="bypass, refresh, only or use"):
        wish_of({b"x-forebay-cache": b"off"})


def test_the_labels_of_a_head() -> None:
    assert labels_of({}) == ((), ())
    head = {b"x-forebay-cache-tags": b" faq, billing,,faq", b"x-forebay-cache-sources": b"doc:1"}
    assert labels_of(head) == (("faq", "billing"), ("doc:1",))
    with pytest.raises(Refusal, match="'a b' is none"):
        labels_of({b"x-forebay-cache-tags": b"a b"})
    assert labels_of({b"x-forebay-knowledge": b"kb:2026-11-30"}) == ((), ())
    for wrong in (b"a b", b"x" * 129, b"\x9b2J"):
        with pytest.raises(Refusal, match="X-Forebay-Knowledge must have"):
            labels_of({b"x-forebay-knowledge": wrong})
    with pytest.raises(Refusal, match="more than 16"):
        labels_of({b"x-forebay-cache-sources": b",".join(b"%d" % i for i in range(17))})


def test_a_key_is_the_same_in_every_process_and_release() -> None:
    """Hosts and restarts share answers by it: where this fails, `FORM` must change with what it stands for."""
    plain = Cache(enabled=True, semantic=Semantic(enabled=True))
    found = key(msgspec.json.encode(CHAT_REQUEST), Facts(plain, ACCOUNT, "chat", "Qwen/Qwen3-8B"))
    assert (found.exact.hex(), found.scope.hex()) == (
        "11d235422d5d97853946b6397d0dc7aa",
        "0749676c3361013fcb53ccb978aa813b",
    )


@given(st.text(st.sampled_from("ab. \n!/~$é_0"), max_size=12))
def test_signs_are_told_at_a_glance_as_by_a_search(text: str) -> None:
    assert keys._may_be_signs(text) is (keys._MAY_BE_SIGNS.search(text) is not None)
