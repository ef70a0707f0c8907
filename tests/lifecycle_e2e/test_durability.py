"""First bytes wait for the database's commit, where that is what makes reservations safe."""

from __future__ import annotations

import json
import time

import pytest

from postgres_server import Postgres
from stack import Forebay, chat, stack
from waiting import eventually

pytestmark = pytest.mark.books

CHAT = "/v1/chat/completions"


def first_bytes(gateway: Forebay) -> dict[str, float]:
    found = {"safe": 0.0, "waited": 0.0, "degraded": 0.0}
    for name in found:
        found[name] = gateway.metric(f'forebay_ledger_first_bytes_total{{reservation="{name}"')
    return found


def request(gateway: Forebay) -> float:
    """Seconds that it took."""
    start = time.monotonic()
    assert gateway.call("POST", CHAT, chat(2))[0] == 200
    return time.monotonic() - start


def test_first_bytes_wait_for_the_database_and_go_without_it(postgres: Postgres) -> None:
    ledger = {"durability": "database", "first_byte_wait": 10.0}
    with stack(database=postgres.new(), ledger=ledger) as (gateway, _):
        eventually(lambda: gateway.metric("forebay_ledger_up") == 1)
        for _ in range(5):
            request(gateway)
        healthy = first_bytes(gateway)
        assert healthy["degraded"] == 0
        assert healthy["waited"] > 0

        gateway.hup(json.loads(gateway.file.read_text()) | {"ledger": {"durability": "database"}})  # 50 ms again
        frozen = postgres.freeze()
        try:
            for _ in range(5):
                assert request(gateway) >= 0.048
            assert first_bytes(gateway) == healthy | {"degraded": 5}
        finally:
            postgres.thaw(frozen)
        eventually(lambda: gateway.metric("forebay_ledger_settled_total") == 10)
        eventually(lambda: request(gateway) and first_bytes(gateway)["waited"] > healthy["waited"])
