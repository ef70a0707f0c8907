"""What was used, as the caller, the operator and the books say it: through workers, journals and the database."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import openai

from forebay.ledger.usage import exact
from stack import KEY, MODEL, OTHER_KEY, Forebay, chat, config_of, folder
from stack import Engine as EngineBehind
from waiting import eventually

QUOTAS = [{"name": "each", "each": "key", "requests_per_minute": 60, "tokens_per_day": 100_000}]
PRICES = {"prices": [{"model": MODEL, "input": 3, "output": 15}]}


def printed(forebay: Forebay, *arguments: str) -> Any:
    """The JSON that a command says of this gateway's books."""
    command = [sys.executable, "-m", "forebay", *arguments, "--config", str(forebay.file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_key_the_operator_and_the_books_say_the_same() -> None:
    with folder() as where:
        (where / "prices.yaml").write_text(json.dumps(PRICES))
        engine = EngineBehind()
        config = config_of(where / "state", engine, quotas=QUOTAS, ledger={"prices": str(where / "prices.yaml")})
        forebay = Forebay(where, config)
        try:
            for stream in (True, False, True):
                assert forebay.call("POST", "/v1/chat/completions", chat(5, stream=stream))[0] == 200
            client = openai.OpenAI(base_url=f"http://127.0.0.1:{forebay.port}/v1", api_key=KEY, max_retries=5)

            def own() -> Any:
                found: Any = client.get("/usage", cast_to=object)
                return found if found["periods"]["today"]["requests"] == 3 else None

            found = eventually(own, every=0.3)
            assert (found["object"], found["key"], found["currency"]) == ("usage", "config:first", "USD")
            today = found["periods"]["today"]
            tokens = today["tokens"]
            assert (today["succeeded"], tokens["output"]) == (3, 15)
            limits = {limit["measure"]: limit for limit in found["limits"]}
            assert limits["tokens_per_day"]["used"] == tokens["total"]
            assert limits["requests_per_minute"]["limit"] == 60

            status, headers, body = forebay.call("GET", "/v1/usage", key=OTHER_KEY)
            assert (status, headers["cache-control"]) == (200, "private, no-store")
            assert {limit["used"] for limit in json.loads(body)["limits"]} == {0}
            assert json.loads(body)["periods"]["today"]["requests"] == 0
            assert forebay.call("POST", "/v1/usage", {})[0] == 405
            assert forebay.call("GET", "/v1/usage", key="unknown")[0] == 401

            running = printed(forebay, "usage", "--by", "key", "--day", "--format", "json")
            assert [row["of"]["key_name"] for row in running["rows"]] == ["first"]
            assert running["total"]["cost"] == today["cost"]
            nanos = tokens["input"] * 3_000 + tokens["output"] * 15_000
            assert running["total"]["cost"] == exact(nanos)
        finally:
            forebay.close()
            engine.close()
        stopped = printed(forebay, "usage", "--by", "key", "--day", "--format", "json")
        assert (stopped["rows"], stopped["notes"]) == (running["rows"], [])
        verified = printed(forebay, "ledger", "verify", "--json")
        assert float(verified["total"]) == float(stopped["total"]["total"])
        assert verified["entries"] == 3
