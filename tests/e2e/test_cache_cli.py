"""Questions that mean the same, through all processes; and what people see of them, and take away."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.client import Answer, chat
from e2e.gateway import Gateway
from engine_process import EngineProcess
from waiting import eventually

MINE, STRANGER = "cache-cli-mine-0123456789", "cache-cli-stranger-0123456789"


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    engine = EngineProcess(["--decode-rate", "100000"])
    engine.start()
    made = Gateway(
        {
            "listeners": [{"address": "127.0.0.1:0"}],
            "engines": [{"name": "sim", "url": f"http://127.0.0.1:{engine.port}"}],
            "callers": {
                "keys": [
                    {"name": "mine", "key": MINE, "organisation": "acme"},
                    {"name": "stranger", "key": STRANGER, "organisation": "other"},
                ]
            },
            "cache": {"enabled": True, "length": True, "semantic": {"enabled": True, "sample": 1e-9, "budget": 5}},
        }
    )
    try:
        eventually(lambda: "forebay-sim" in made.models(MINE))
        eventually(lambda: json.loads(made.cli("cache", "stats", "--json"))["helper"], 60)
        yield made
    finally:
        made.stop()
        engine.stop()


def asked(gateway: Gateway, question: str, key: str = MINE, **headers: str) -> Answer:
    body: dict[str, Any] = chat("forebay-sim", max_tokens=20) | {"messages": [{"role": "user", "content": question}]}
    return gateway.ask(body, key=key, headers=headers)


def kind(gateway: Gateway, question: str, key: str = MINE, **headers: str) -> str | None:
    return asked(gateway, question, key, **headers).get("x-forebay-cache")


def stored(gateway: Gateway, count: int) -> bool:
    found = json.loads(gateway.cli("cache", "stats", "--json"))["helper"]
    return bool(found["semantic"]["questions"] == count)


@pytest.mark.books
def test_who_asks_the_same_in_other_words_is_answered_and_an_operator_can_take_that_away(gateway: Gateway) -> None:
    first = asked(gateway, "怎么开具发票")
    assert first.get("x-forebay-cache") == "miss"
    assert kind(gateway, "How do I get an invoice?") == "miss"
    eventually(lambda: stored(gateway, 2))
    assert kind(gateway, "怎么开具发票") == "exact"
    hit = asked(gateway, "发票如何开")
    assert hit.get("x-forebay-cache") == "semantic"
    assert hit.get("x-forebay-cache-entry") == first.get("x-forebay-cache-entry")
    assert hit.json["choices"] == first.json["choices"]
    assert kind(gateway, "How can I get an invoice?") == "semantic"
    for other in ("发票如何不开", "第 2 张发票怎么开", "How do I get 2 invoices?", "How do I not get an invoice?"):
        assert kind(gateway, other, **{"X-Forebay-Cache": "only"}) == "miss", other
    assert kind(gateway, "怎么开具发票", STRANGER) == "miss"
    assert kind(gateway, "what time is it", **{"X-Forebay-Cache": "only"}) == "bypass"

    shown = json.loads(gateway.cli("cache", "stats", "--json"))
    results = {(row["model"], row["result"]): row["value"] for row in shown["workers"]["requests"]}
    assert results["forebay-sim", "exact"] == 1
    assert results["forebay-sim", "semantic"] == 2
    assert shown["helper"]["partitions"]["acme/forebay-sim"]["semantic"] == 2
    table = gateway.cli("cache", "stats")
    assert "acme/forebay-sim" in table
    assert "Not looked for: time 1." in table
    entries = json.loads(gateway.cli("cache", "inspect", "--like", "发票怎么开", "-p", "acme", "--json"))["entries"]
    assert entries[0]["question"] == "怎么开具发票"
    assert entries[0]["entry"] == first.get("x-forebay-cache-entry")

    done = _purge(gateway.file, "--like", "发票怎么开", "--at-least", "0.8", "-p", "acme")
    assert done == "1 answer is forgotten.\n"
    eventually(lambda: kind(gateway, "怎么开具发票", **{"X-Forebay-Cache": "only"}) == "miss")
    assert kind(gateway, "How do I get an invoice?") == "exact"
    assert _purge(gateway.file, "--all").endswith("forgotten.\n")
    eventually(lambda: kind(gateway, "How do I get an invoice?", **{"X-Forebay-Cache": "only"}) == "miss")


def _purge(file: Path, *words: str) -> str:
    command = [sys.executable, "-m", "forebay", "cache", "purge", *words, "--config", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stderr
