"""How long an answer may become, as a request says."""

from __future__ import annotations

import json
from typing import Any

import pytest

from forebay.api.routes import CHAT, COMPLETIONS
from forebay.gateway.bounds import MOST_ANSWERS, answers_of, bounded, defaults_for, most_of


def chat(**fields: Any) -> Any:
    return CHAT.parse(json.dumps({"model": "m", "messages": [{}], **fields}).encode())


def completion(**fields: Any) -> Any:
    return COMPLETIONS.parse(json.dumps({"model": "m", "prompt": "p", **fields}).encode())


@pytest.mark.parametrize(
    ("fields", "of_chat", "of_completion"),
    [
        ({}, None, None),
        ({"max_tokens": 5}, 5, 5),
        ({"max_completion_tokens": 5}, 5, None),
        ({"max_tokens": 900, "max_completion_tokens": 1}, 900, 900),
        ({"max_tokens": 1, "max_completion_tokens": 900}, 900, 1),
        ({"max_tokens": 900, "max_completion_tokens": 0}, 900, 900),
        ({"max_completion_tokens": 0}, None, None),
        ({"max_tokens": 0}, None, 0),
        ({"max_tokens": -1}, None, None),
        ({"max_tokens": 5, "max_completion_tokens": -1}, None, 5),
        ({"max_tokens": int("9" * 400)}, int("9" * 400), int("9" * 400)),
    ],
)
def test_the_longest_that_any_engine_would_make(
    fields: dict[str, Any], of_chat: int | None, of_completion: int | None
) -> None:
    assert most_of(chat(**fields)) == of_chat
    assert most_of(completion(**fields)) == of_completion


@pytest.mark.parametrize(
    ("fields", "answers"),
    [
        ({}, 1),
        ({"n": 3}, 3),
        ({"n": -3}, 1),
        ({"n": 2, "best_of": 20}, 20),
        ({"prompt": ["a", "b", "c"], "n": 2}, 6),
        ({"prompt": [[1, 2], [3]], "best_of": 4}, 8),
        ({"prompt": [1, 2, 3]}, 1),
        ({"n": int("9" * 400)}, MOST_ANSWERS),
    ],
)
def test_all_answers_count(fields: dict[str, Any], answers: int) -> None:
    assert answers_of(completion(**fields)) == answers


def test_the_operator_s_bound_is_not_put_beside_the_client_s() -> None:
    ours = {"max_completion_tokens": b"8000", "temperature": b"0"}
    assert defaults_for(chat(max_tokens=5), ours) == {"temperature": b"0"}
    assert defaults_for(chat(), ours) == ours


@pytest.mark.parametrize(
    "said",
    [
        b'{"model":"m","messages":[{"role":"user","content":"max_tokens"}]}',
        b' {"model":"m","messages":[{"role":"user","content":"a\\nb"}]}',
        b'{"model":"m","messages":[{"role":"user","content":"x"}],"max_tokens":null}',
        b'{"model":"m","messages":[{"role":"user","content":"x"}],"max\\u005ftokens":null}',
        b'{"model":"m","messages":[{"role":"user","content":"x"}],"max_tokens":900}',
    ],
)
def test_a_bound_is_the_only_one_in_the_body(said: bytes) -> None:
    body, payload = bounded(CHAT.parse(said), said, 7, {})
    pairs: list[tuple[str, Any]] = json.loads(payload, object_pairs_hook=lambda found: found)
    assert [value for name, value in pairs if name == "max_tokens"] == [7]
    assert dict(pairs)["messages"] == dict(json.loads(said, object_pairs_hook=lambda found: found))["messages"]
    assert body.max_tokens == 7
    assert body == CHAT.parse(payload)


def test_a_bound_goes_under_the_names_that_are_used() -> None:
    said = b'{"model":"m","messages":[{"role":"user","content":"x"}]}'
    body, payload = bounded(CHAT.parse(said), said, 7, {"max_completion_tokens": b"9"})
    assert (body.max_tokens, body.max_completion_tokens) == (None, 7)
    assert json.loads(payload)["max_completion_tokens"] == 7
    both = b'{"model":"m","messages":[],"max_tokens":8,"max_completion_tokens":9}'
    _, payload = bounded(CHAT.decoder.decode(both), both, 7, {})
    assert json.loads(payload) == {"model": "m", "messages": [], "max_tokens": 7, "max_completion_tokens": 7}
    old = b'{"model":"m","prompt":"x"}'
    _, payload = bounded(COMPLETIONS.parse(old), old, 7, {"max_completion_tokens": b"9"})
    assert json.loads(payload)["max_tokens"] == 7
