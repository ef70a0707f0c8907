"""`forebay bench` against the gateway: keys, classes, and what it booked beside what the price file makes of it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from stack import KEY, MODEL, OTHER_KEY, Engine, Forebay, config_of, folder


def test_what_the_gateway_booked_is_what_the_tokens_cost() -> None:
    with folder() as where:
        prices, keys = where / "prices.yaml", where / "keys"
        prices.write_text(json.dumps({"prices": [{"model": MODEL, "input": 3, "output": 15}]}))
        keys.write_text(f"acme {KEY}\nglobex {OTHER_KEY}\n")
        engine = Engine()
        forebay = Forebay(where, config_of(where / "state", engine, ledger={"prices": str(prices)}))
        try:
            command = [
                sys.executable, "-m", "forebay", "bench", f"http://127.0.0.1:{forebay.port}", "--rate", "40",
                "--requests", "30", "--max-tokens", "7", "--keys", str(keys), "--classes", "normal=1,low=1",
                "--prices", str(prices), "--gateway-cost", "--format", "json",
            ]  # fmt: skip
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
            assert (done.returncode, done.stderr) == (0, "")
            found = json.loads(done.stdout)
        finally:
            forebay.close()
            engine.close()
    assert (found["completed"], found["failed"]) == (30, 0)
    assert set(found["tenants"]) == {"acme", "globex"}
    assert set(found["classes"]) == {"normal", "low"}
    tokens, booked = found["cost"]["by"]
    assert booked["note"] == ""
    assert booked["total"] == tokens["total"] == pytest.approx((found["prompt_tokens"] * 3 + 30 * 7 * 15) / 1e6)
    assert booked["per_valid_request"] == pytest.approx(booked["total"] / 30, rel=1e-5)
