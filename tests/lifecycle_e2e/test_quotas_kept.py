"""What was used of quotas is still used after a restart or a kill, and on other hosts."""

from __future__ import annotations

import contextlib
import json
import socket

import pytest

from forebay.ledger.entries import Progress, Record, Settled
from forebay.ledger.journal_format import position, segments
from forebay.ledger.journal_read import Reader
from forebay.state.messages import journal_folder
from postgres_server import Postgres
from stack import OTHER_KEY, Engine, Forebay, chat, config_of, folder, raw_request, stack
from waiting import eventually, read_until

pytestmark = pytest.mark.books

CHAT = "/v1/chat/completions"
QUOTA = {"name": "day", "each": "key", "tokens_per_day": 1_000_000, "concurrent": 1}


GUESSED = {"name": "guessed", "each": "key", "key": "other", "tokens_per_day": 400, "hold": "predicted"}


def left_and_used(gateway: Forebay) -> tuple[int, int]:
    """Tokens left while a request ran, and what it then used."""
    status, headers, body = gateway.call("POST", CHAT, chat(20, stream=False))
    assert status == 200, body
    return int(headers["x-ratelimit-remaining-tokens"]), json.loads(body)["usage"]["total_tokens"]


def test_use_survives_a_restart() -> None:
    with folder() as where, contextlib.closing(Engine()) as engine:
        config = config_of(where / "state", engine, quotas=[QUOTA, GUESSED])
        snapshot = where / "state" / "limits-0.snapshot"
        with contextlib.closing(Forebay(where, config)) as first:
            left, used = left_and_used(first)
            status, headers, _ = first.call("POST", CHAT, chat(300, stream=False), key=OTHER_KEY)
            # Not what max_tokens would hold, which is 300 and the prompt.
            assert (status, 400 > int(headers["x-ratelimit-remaining-tokens"]) > 130) == (200, True)
        assert snapshot.stat().st_mode & 0o777 == 0o600
        with contextlib.closing(Forebay(where, config)) as second:
            assert not snapshot.exists()  # taken up
            left_now, _ = left_and_used(second)
            # The same request holds the same, but for what estimates have learned meanwhile.
            assert left - left_now == pytest.approx(used, abs=used / 2)


BUDGET = {"name": "budget", "each": "organisation", "tokens_per_month": 300}


def spend(gateway: Forebay, tokens: int) -> tuple[int, dict[str, str]]:
    """The answer's status and its headers; its prompt is charged too."""
    status, headers, _ = gateway.call("POST", CHAT, chat(tokens, stream=False))
    return status, headers


def written(gateway: Forebay, kind: type[Record]) -> None:
    """Until the worker's journal has a record of this kind on disk."""
    folder = journal_folder(gateway.state_dir, 0)

    def look() -> bool:
        reader = Reader(folder, position(segments(folder)[-1], 0))
        return any(isinstance(record, kind) for batch in reader.batches() for record in batch.records)

    eventually(look)


def kill_worker(gateway: Forebay) -> None:
    old = gateway.worker
    old.kill()
    old.wait(10)


def test_a_worker_that_was_killed_has_still_spent_what_it_spent() -> None:
    with stack(quotas=[BUDGET]) as (gateway, _):
        admin = gateway.admin
        admin.suspend()  # nothing that is spent gets into the database
        try:
            assert spend(gateway, 200)[0] == 200
            written(gateway, Settled)  # what was not even written is settled as an orphan
            kill_worker(gateway)
        finally:
            admin.resume()
        status, headers = spend(gateway, 200)  # waits in the backlog, as connections do
        assert (status, headers.get("x-forebay-limit")) == (200, "budget"), gateway.text
        assert int(headers["x-forebay-max-tokens"]) < 100
        status, headers = spend(gateway, 20)
        assert (status, headers["x-forebay-limit"]) == (429, "budget")
        assert "not known yet" not in gateway.text


def test_what_a_killed_worker_was_streaming_is_spent() -> None:
    with stack("--decode-rate", "20", quotas=[BUDGET]) as (gateway, _):
        admin = gateway.admin
        admin.suspend()
        try:
            with socket.create_connection(("127.0.0.1", gateway.port), timeout=20) as stream:
                stream.sendall(raw_request(chat(250)))
                read_until(stream, b'"content":"')
                written(gateway, Progress)
                kill_worker(gateway)
        finally:
            admin.resume()
        status, headers, body = gateway.call("POST", CHAT, chat(1, stream=False))
        assert status == 200
        prompt = json.loads(body)["usage"]["prompt_tokens"]
        # The first one's prompt and a few words; this one's prompt, held as estimated, and its word.
        assert 150 < int(headers["x-ratelimit-remaining-tokens"]) < 300 - 1.5 * prompt


def test_hosts_on_one_database_share_a_budget(postgres: Postgres) -> None:
    quota = BUDGET | {"tokens_per_month": 1_000}
    url = postgres.new()
    with stack(quotas=[quota], database=url) as (one, _), stack(quotas=[quota], database=url) as (two, _):

        def left(gateway: Forebay, tokens: int = 1) -> int:
            return int(spend(gateway, tokens)[1]["x-ratelimit-remaining-tokens"])

        assert left(one, 500) < 500
        eventually(lambda: left(two) < 500, every=0.2)
        eventually(lambda: spend(two, 400)[0] == 429, every=0.2)
        eventually(lambda: spend(one, 400)[0] == 429, every=0.2)
