"""What was used of quotas is still used after a restart."""

from __future__ import annotations

import contextlib
import json

import pytest

from stack import Engine, Forebay, chat, config_of, folder

CHAT = "/v1/chat/completions"
QUOTA = {"name": "day", "each": "key", "tokens_per_day": 1_000_000, "concurrent": 1}


def left_and_used(gateway: Forebay) -> tuple[int, int]:
    """Tokens left while a request ran, and what it then used."""
    status, headers, body = gateway.call("POST", CHAT, chat(20, stream=False))
    assert status == 200, body
    return int(headers["x-ratelimit-remaining-tokens"]), json.loads(body)["usage"]["total_tokens"]


def test_use_survives_a_restart() -> None:
    with folder() as where, contextlib.closing(Engine()) as engine:
        config = config_of(where / "state", engine, quotas=[QUOTA])
        snapshot = where / "state" / "limits-0.snapshot"
        with contextlib.closing(Forebay(where, config)) as first:
            left, used = left_and_used(first)
        assert snapshot.stat().st_mode & 0o777 == 0o600
        with contextlib.closing(Forebay(where, config)) as second:
            assert not snapshot.exists()  # taken up
            left_now, _ = left_and_used(second)
            # The same request holds the same, but for what estimates have learned meanwhile.
            assert left - left_now == pytest.approx(used, abs=used / 2)
