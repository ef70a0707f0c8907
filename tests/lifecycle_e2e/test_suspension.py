"""Keys rotated, suspended and revoked while their requests run, and what a worker knows of it without a database."""

from __future__ import annotations

import contextlib
import json
import socket
from typing import Any

from admin_process import UnixConnection
from forebay.ledger.database import database_file
from forebay.state.messages import admin_socket
from stack import KEY, MODEL, Engine, Forebay, chat, config_of, connect, folder, raw_request
from waiting import eventually


def api(forebay: Forebay, path: str, body: object = None) -> Any:
    """One change by the admin API that every worker has confirmed."""
    with contextlib.closing(UnixConnection(admin_socket(forebay.state_dir))) as connection:
        connection.request("POST", path, None if body is None else json.dumps(body))
        response = connection.getresponse()
        answer = json.loads(response.read())
    assert response.status < 300, answer
    assert answer["workers"] == "informed"
    return answer


def create(forebay: Forebay, name: str) -> tuple[str, str]:
    """A key's text and id."""
    made = api(forebay, "/keys", {"name": name, "organisation": "acme"})
    return made["key"], made["record"]["id"]


def status(forebay: Forebay, key: str) -> tuple[int, str]:
    found, _, body = forebay.call("GET", "/v1/models", key=key)
    return found, json.loads(body).get("error", {}).get("code", "")


def settled(forebay: Forebay) -> float:
    """Chats that ended with their cost known exactly."""
    samples = (x for x in forebay.metrics().items() if x[0].startswith("forebay_settled_total{"))
    return sum(value for name, value in samples if f'model="{MODEL}"' in name and 'how="exact"' in name)


def chats(forebay: Forebay) -> int:
    """The status of one chat with the configuration's key `first`."""
    found: int = forebay.call("POST", "/v1/chat/completions", chat(2, stream=False))[0]
    return found


def begun(forebay: Forebay, key: str) -> tuple[socket.socket, bytes]:
    """A stream of which the first content has come, and far from its end."""
    client = connect(forebay.port)
    client.sendall(raw_request(chat(400, stream_options={"include_usage": True}), key=key))
    data = b""
    while b'"content":"' not in data:
        data += client.recv(65_536)
    return client, data


def test_what_runs_goes_on_and_what_is_new_is_refused() -> None:
    with folder() as where, contextlib.closing(Engine()) as engine:
        config = config_of(where / "state", engine)
        with contextlib.closing(Forebay(where, config)) as forebay:
            (one, one_id), (two, two_id) = create(forebay, "one"), create(forebay, "two")
            streams = [begun(forebay, key) for key in (one, two)]
            api(forebay, f"/keys/{one_id}/suspend")
            api(forebay, f"/keys/{two_id}/revoke")
            assert status(forebay, one) == (403, "api_key_suspended")
            assert status(forebay, two) == (401, "revoked_api_key")
            assert forebay.metric("forebay_requests_live") == 2
            for client, data in streams:
                while b"[DONE]" not in data:
                    got = client.recv(65_536)
                    assert got, data[-500:]
                    data += got
                assert b'"completion_tokens":400' in data.replace(b" ", b"")
                client.close()
            eventually(lambda: settled(forebay) == 2)
            api(forebay, f"/keys/{one_id}/resume")
            assert status(forebay, one) == (200, "")

            rotated = api(forebay, f"/keys/{one_id}/rotate", {"overlap": "1h"})["key"]
            assert [status(forebay, key) for key in (one, rotated)] == [(200, "")] * 2
            newest = api(forebay, f"/keys/{one_id}/rotate", {"overlap": "0"})["key"]
            old = (401, "rotated_api_key")
            assert [status(forebay, key) for key in (one, rotated, newest)] == [old, old, (200, "")]

            api(forebay, "/accounts", {"organisation": "default"})
            api(forebay, "/accounts/suspend", {"organisation": "default"})
            assert status(forebay, KEY) == (403, "account_suspended")  # a key of the configuration
            api(forebay, "/accounts/resume", {"organisation": "default"})
            assert status(forebay, KEY) == (200, "")
            api(forebay, "/limits", {"name": "few", "key": "first", "requests_per_minute": 1})
            assert [chats(forebay) for _ in range(2)] == [200, 429]
            api(forebay, "/accounts/suspend", {"organisation": "acme"})
            assert status(forebay, newest) == (403, "account_suspended")
            assert forebay.stop() == 0
        database_file(where / "state").write_bytes(b"no database" * 1_000)
        with contextlib.closing(Forebay(where, config, wait=False)) as forebay:
            forebay.wait_said()
            assert status(forebay, newest) == (403, "account_suspended")
            assert status(forebay, one) == (401, "rotated_api_key")
            assert status(forebay, KEY) == (200, "")
            eventually(lambda: chats(forebay) == 429)  # the engine is known, and the limit too
