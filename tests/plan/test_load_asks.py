"""What a plan sends: times, lengths, prefixes, and the words and files that become bodies."""

from __future__ import annotations

import json
import statistics
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from forebay.plan.load.asks import asks, survey
from forebay.plan.load.bodies import Bodies, check_texts
from forebay.plan.load.callers import matched, read_keys
from forebay.plan.load.plan import COMPLETIONS, Plan
from forebay.plan.load.prompts import read_prompts
from forebay.plan.target import LoadError
from forebay.sim.workload import Ask
from forebay.sim.workloads import open_workload
from forebay.sim.workloads.distributions import Uniform
from forebay.sim.workloads.mix import Mix


def gaps(plan: Plan) -> list[float]:
    at = [ask.arrival for ask in asks(plan)]
    return [b - a for a, b in pairwise(at)]


@pytest.mark.parametrize(
    ("kind", "cv", "expected"), [("poisson", 1.0, 1.0), ("uniform", 1.0, 0.0), ("gamma", 3.0, 3.0)]
)
def test_arrivals_have_the_rate_and_the_burstiness_asked_for(kind: Any, cv: float, expected: float) -> None:
    found = gaps(Plan("m", rate=50, arrivals=kind, cv=cv, requests=20_000))
    mean = statistics.fmean(found)
    assert mean == pytest.approx(0.02, rel=0.06)
    assert statistics.pstdev(found) / mean == pytest.approx(expected, abs=0.15)


def trace(tmp_path: Path, rows: list[tuple[float, int, int]]) -> str:
    path = tmp_path / "trace.jsonl"
    path.write_text(
        "".join(json.dumps({"arrival": a, "prompt_tokens": p, "output_tokens": o}) + "\n" for a, p, o in rows)
    )
    return str(path)


def test_a_trace_keeps_its_times_and_lengths_or_runs_faster(tmp_path: Path) -> None:
    workload = open_workload(trace(tmp_path, [(0.0, 10, 2), (4.0, 20, 3), (6.0, 30, 4)]))
    assert [ask[:3] for ask in asks(Plan("m", workload=workload))] == [(0.0, 10, 2), (4.0, 20, 3), (6.0, 30, 4)]
    fast = asks(Plan("m", workload=workload, speed=2.0, seconds=2.5))
    assert [ask[:3] for ask in fast] == [(0.0, 10, 2), (2.0, 20, 3)]
    retimed = list(asks(Plan("m", workload=workload, rate=10, arrivals="uniform")))
    assert [ask.prompt_tokens for ask in retimed] == [10, 20, 30]
    assert [ask.arrival for ask in retimed] == pytest.approx([0.0, 0.1, 0.2])


def test_the_public_traces_are_read(tmp_path: Path) -> None:
    azure = tmp_path / "azure.csv"
    azure.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:48.6805900,396,109\n"
    )
    found = survey(Plan("m", workload=open_workload(str(azure))))
    assert (found.requests, found.last, found.prompt_tokens, found.output_tokens) == (2, 2.0, 770, 153)
    mooncake = tmp_path / "mooncake.jsonl"
    mooncake.write_text('{"timestamp": 500, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}\n')
    only = next(asks(Plan("m", workload=open_workload(str(mooncake)))))
    assert (only.arrival, only.prefix) == (0.5, ((1, 512), (2, 88)))


def test_a_trace_with_a_hole_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(
        '{"arrival": 0, "prompt_tokens": 5, "output_tokens": 5}\n'
        '{"arrival": 1, "prompt_tokens": 5, "output_tokens": 5}\n{"arrival": 2, "prompt_tokens": 5}\n'
    )
    with pytest.raises(LoadError, match=r"t\.jsonl:3: the field output_tokens is missing"):
        survey(Plan("m", workload=open_workload(str(path))))


def test_equal_loads_have_equal_fingerprints_and_others_have_not() -> None:
    plans = [
        Plan("m", rate=5, requests=50, seed=seed, prompt_tokens=n) for seed, n in ((1, 64), (1, 64), (2, 64), (1, 65))
    ]
    a, again, seed, length = [survey(plan).fingerprint for plan in plans]
    assert a == again
    assert len({a, seed, length}) == 3


def test_nothing_to_send_is_an_error() -> None:
    with pytest.raises(LoadError, match=r"there is no request to send within 0\.001 s"):
        survey(Plan("m", rate=0.01, seconds=0.001))


# --- words -----------------------------------------------------------------------------------------------------------


def prompt_of(bodies: Bodies, ask: Ask) -> str:
    text: str = json.loads(bodies.of(ask)[0])["messages"][0]["content"]
    return text


def test_equal_prefixes_are_equal_words_and_the_rest_is_each_request_s_own() -> None:
    bodies = Bodies(Plan("m", rate=1, requests=1))
    a = prompt_of(bodies, Ask(0, 100, 1, (("p", 60),)))
    b = prompt_of(bodies, Ask(0, 90, 1, (("p", 60),)))
    c = prompt_of(bodies, Ask(0, 90, 1, (("q", 60),)))
    assert [len(x.split()) for x in (a, b, c)] == [100, 90, 90]
    assert a.split()[:60] == b.split()[:60] != c.split()[:60]
    assert a.split()[60:72] != b.split()[60:72]


def test_a_conversation_s_next_turn_begins_with_the_one_before() -> None:
    bodies = Bodies(Plan("m", rate=1, requests=1))
    first = prompt_of(bodies, Ask(0, 50, 10, (("system", 20),), keeps="chat"))
    second = prompt_of(bodies, Ask(1, 90, 10, (("system", 20), ("chat", 40)), keeps="chat"))
    assert second.startswith(first)
    assert len(second.split()) == 90


def test_the_words_of_two_runs_differ_unless_told_otherwise() -> None:
    ask = Ask(0, 40, 1)
    own = [prompt_of(Bodies(Plan("m", rate=1, requests=1)), ask) for _ in range(2)]
    same = [prompt_of(Bodies(Plan("m", rate=1, requests=1, same_words=True)), ask) for _ in range(2)]
    assert own[0] != own[1]
    assert same[0] == same[1]


def test_words_are_as_many_as_make_the_tokens() -> None:
    bodies = Bodies(Plan("m", rate=1, requests=1, words=(1.25, 10.0)))
    assert len(prompt_of(bodies, Ask(0, 260, 1)).split()) == 200


def test_a_completion_has_a_prompt_and_its_own_length() -> None:
    plan = Plan("m", rate=1, requests=1, path=COMPLETIONS, lengths=(Uniform(5, 5), Uniform(7, 7)))
    body = json.loads(Bodies(plan).of(next(asks(plan)))[0])
    assert len(body["prompt"].split()) == 5
    assert (body["max_tokens"], body["stream"], "messages" in body) == (7, True, False)


def test_shared_prefixes_are_in_groups() -> None:
    plan = Plan("m", rate=1, requests=60, prompt_tokens=20, shared_prefix=30, prefix_groups=3)
    bodies = Bodies(plan)
    heads = [" ".join(prompt_of(bodies, ask).split()[:30]) for ask in asks(plan)]
    assert len(set(heads)) == 3


# --- prompts of a file -----------------------------------------------------------------------------------------------

SHAREGPT = [
    {
        "id": "1",
        "conversations": [{"from": "human", "value": "Why is the sky blue?"}, {"from": "gpt", "value": "x" * 40}],
    },
    {"id": "2", "conversations": [{"from": "gpt", "value": "I begin."}]},
    {
        "id": "3",
        "conversations": [
            {"from": "system", "value": "Be brief."},
            {"from": "human", "value": "Hi"},
            {"from": "gpt", "value": "Hello!"},
        ],
    },
]


def test_sharegpt_gives_first_questions_and_the_length_of_their_answers(tmp_path: Path) -> None:
    path = tmp_path / "sharegpt.json"
    path.write_text(json.dumps(SHAREGPT))
    texts = read_prompts(str(path))
    assert (len(texts.prompts), texts.skipped) == (2, 1)
    assert texts.prompts[0].messages == ({"role": "user", "content": "Why is the sky blue?"},)
    assert [prompt.output_tokens for prompt in texts.prompts] == [10, 2]
    assert [m["role"] for m in texts.prompts[1].messages] == ["system", "user"]
    plan = Plan("m", rate=1, requests=3, texts=texts, max_tokens=None)
    bodies = Bodies(plan)
    sent = [json.loads(bodies.of(ask)[0]) for ask in asks(plan)]
    assert [body["max_tokens"] for body in sent] == [10, 2, 10], "from the start again at the end"
    with pytest.raises(LoadError, match=r"prompt 2 .* is a conversation"):
        check_texts(Plan("m", rate=1, requests=1, texts=texts, path=COMPLETIONS))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("one\n\ntwo\n", [("one", None), ("two", None)]),
        ('{"prompt": "a"}\n{"prompt": "b", "output_tokens": 9}\n', [("a", None), ("b", 9)]),
        ('{"messages": [{"role": "user", "content": "m"}], "max_tokens": 3}\n', [("m", 3)]),
        (
            '{"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "x", '
            '"messages": [{"role": "user", "content": "q"}], "max_completion_tokens": 4}}\n',
            [("q", 4)],
        ),
        ('["p", {"prompt": "r"}]', [("p", None), ("r", None)]),
    ],
)
def test_prompts_are_told_by_their_form(tmp_path: Path, text: str, expected: list[tuple[str, int | None]]) -> None:
    path = tmp_path / "prompts"
    path.write_text(text)
    assert [(prompt.text, prompt.output_tokens) for prompt in read_prompts(str(path)).prompts] == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no prompts"),
        ('{"prompt": "a"}\n{"question": "b"}\n', "line 2: has neither prompt"),
        ('{"prompt": "a"}\n{"prompt": \n', "line 2 is no prompt in JSON"),
        ("[1, 2]", "entry 1 is no prompt"),
        ("[1, 2", "begins like a JSON array of prompts and is none"),
        ('{"messages": [{"content": "x"}]}', "line 1: a message has no role"),
        (json.dumps(SHAREGPT[1:2]), "none of its 1 entries has something to ask"),
    ],
)
def test_a_file_that_is_no_prompts_is_refused_with_the_place(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "prompts"
    path.write_text(text)
    with pytest.raises(LoadError, match=message):
        read_prompts(str(path))


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(LoadError, match="nowhere cannot be read: No such file"):
        read_prompts("nowhere")


# --- keys ------------------------------------------------------------------------------------------------------------


def test_keys_go_to_the_tenants_that_the_file_names(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("# ours\nacme sk-a\nglobex sk-b\n")
    keys = read_keys(str(path))
    assert keys == {"acme": "sk-a", "globex": "sk-b"}
    assert matched(keys, {"acme"}, "keys")["acme"] == "sk-a"
    with pytest.raises(LoadError, match="has no key for the tenant 'initech'"):
        matched(keys, {"acme", "initech"}, "keys")


def test_keys_without_names_go_round(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("sk-a\nsk-b\n")
    keys = read_keys(str(path))
    assert list(keys) == ["key-1", "key-2"]
    assert matched(keys, {"t1", "t2", "t3"}, "keys") == {"t1": "sk-a", "t2": "sk-b", "t3": "sk-a"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no keys"),
        ("a b c\n", "line 1: a line is TENANT KEY"),
        ("a sk-1\na sk-2\n", "line 2: the tenant 'a' is there already"),
        ("a sk-sécret\n", "line 1 holds characters that a key cannot have"),
    ],
)
def test_a_file_of_keys_is_refused_without_showing_one(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "keys"
    path.write_text(text)
    with pytest.raises(LoadError, match=message) as e:
        read_keys(str(path))
    assert "cret" not in str(e.value)


def test_classes_and_tenants_are_drawn() -> None:
    plan = Plan("m", rate=1, requests=400, classes=Mix(("vip", "low"), (1.0, 3.0)), tenants=Mix(("a", "b"), (1.0, 1.0)))
    found = list(asks(plan))
    assert 60 < sum(ask.cls == "vip" for ask in found) < 140
    assert {ask.tenant for ask in found} == {"a", "b"}


def test_odd_entries_of_a_dump_are_passed_over_and_the_rest_is_asked(tmp_path: Path) -> None:
    good = '{"conversations":[{"from":"human","value":"hi 🎉"},{"from":"gpt","value":"yo"}]}'
    odd = (
        '{"conversations":[]}',
        '{"conversations":"none"}',
        '{"conversations":[null]}',
        '{"conversations":[{"from":"human","value":5},{"from":"gpt","value":"x"}]}',
        '{"conversations":[{"from":"human","value":""},{"from":"gpt","value":"x"}]}',
        '{"conversations":[{"from":"human","value":"half \\ud83c"},{"from":"gpt","value":"x"}]}',
    )
    path = tmp_path / "dump.json"
    for some in (odd[:-1], odd):
        path.write_text(f"[{good},{','.join(some)},{good}]")
        found = read_prompts(str(path))
        assert (len(found.prompts), found.skipped) == (2, len(some))
        assert found.prompts[1].text == "hi 🎉"
    path.write_text(f"[{good}, null]")
    with pytest.raises(LoadError, match="entry 2 is no prompt"):
        read_prompts(str(path))


def test_a_keys_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_bytes(b"\xef\xbb\xbfacme sk-1\r\nglobex sk-2\r\n")
    assert read_keys(str(path)) == {"acme": "sk-1", "globex": "sk-2"}
