"""A caller over a soft limit: another model answers, in a lower class; and a bound that engines read as they like is
set under every name."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator

import pytest

from e2e.engine import RawEngine
from stack import KEYS, Forebay, folder

CHAT = "/v1/chat/completions"
QUOTAS = [
    {"name": "soft", "each": "key", "tokens_per_day": 100, "over": "degrade"}
    | {"degrade_model": "small", "degrade_class": "low"},
    {"name": "hard", "each": "key", "tokens_per_day": 50_000},
]


@pytest.fixture(scope="module")
def both() -> Iterator[tuple[Forebay, RawEngine]]:
    with folder() as where, contextlib.closing(RawEngine(["raw", "small"])) as engine:
        config = {
            "listeners": [{"address": "127.0.0.1:0"}],
            "admin": "127.0.0.1:0",
            "state_dir": str(where / "state"),
            "engines": [{"name": "raw", "url": f"http://127.0.0.1:{engine.port}", "kind": "openai"}],
            "models": {"small": {"defaults": {"max_completion_tokens": 9_000}}},
            "callers": KEYS,
            "quotas": QUOTAS,
        }
        with contextlib.closing(Forebay(where, config)) as gateway:
            yield gateway, engine


def asked(both: tuple[Forebay, RawEngine], test: str, **fields: object) -> tuple[dict[str, str], dict[str, object]]:
    """The answer's headers, and what the engine got."""
    gateway, engine = both
    body = {"model": "raw", "messages": [{"role": "user", "content": "hi"}], **fields}
    status, headers, answer = gateway.call("POST", CHAT, body, **{"x-test": test})
    assert status == 200, answer
    return headers, json.loads(engine.one(test).body)


def test_within_the_limit_nothing_changes(both: tuple[Forebay, RawEngine]) -> None:
    headers, sent = asked(both, "within", max_tokens=5)
    assert "x-forebay-degraded" not in headers
    assert (sent["model"], sent["max_tokens"]) == ("raw", 5)


def test_beyond_it_both_are_lowered(both: tuple[Forebay, RawEngine]) -> None:
    gateway, _ = both
    headers, sent = asked(both, "beyond", max_tokens=400)
    assert sent["model"] == "small"
    assert sent["max_tokens"] == 400
    assert "max_completion_tokens" not in sent  # the operator's own would count before the client's
    degraded = 'forebay_requests_total{class="low",model="small",outcome="ok",route="chat"}'
    assert headers["x-forebay-over-limit"] == "soft"
    assert gateway.metric(degraded) == 1, [m for m in gateway.metrics() if "requests_total" in m]


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"max_tokens": 90_000}, ["max_tokens"]),
        ({"max_completion_tokens": 90_000}, ["max_completion_tokens"]),
        ({"max_completion_tokens": 0, "max_tokens": 90_000}, ["max_completion_tokens", "max_tokens"]),
        ({"max_tokens": -1}, ["max_tokens"]),
    ],
)
def test_what_is_left_bounds_every_name(
    both: tuple[Forebay, RawEngine], fields: dict[str, int], names: list[str]
) -> None:
    headers, sent = asked(both, "left " + " ".join(map(str, fields.items())), **fields)
    assert headers["x-forebay-limit"] == "hard"
    for name in names:
        assert 0 < int(str(sent[name])) == int(headers["x-forebay-max-tokens"]) < 50_000
