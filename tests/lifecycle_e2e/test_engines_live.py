"""Engines that come and go while the gateway runs: `forebay engines`, and the watched file."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stack import MODEL, Engine, Forebay, call, chat, config_of, connect, folder, raw_request
from waiting import eventually, read_until


class House:
    """A gateway whose engines are all of `engines_file`, and two engines."""

    def __init__(self, where: Path, one: Engine, two: Engine) -> None:
        self.one, self.two = one, two
        self.file = where / "engines.json"
        self.entries(one=one)
        config = config_of(where / "state", engines_file="engines.json", health={"slow_start": 0})
        self.config = config
        self.forebay = Forebay(where, config, env={"ENGINE_SECRET": "engine-secret-0123456789"})

    def entries(self, **engines: Engine) -> None:
        """Written beside the file and moved into place."""
        rows = [{"name": n, "url": e.url, "health_interval": 0.2} for n, e in engines.items()]
        new = self.file.with_suffix(".new")
        new.write_text(json.dumps(rows))
        new.replace(self.file)

    def rows(self) -> dict[str, dict[str, Any]]:
        found = json.loads(call(self.forebay.admin_port, "GET", "/admin/engines")[2])["engines"]
        return {row["name"]: row for row in found}

    def states(self) -> dict[str, str]:
        return {name: row["state"] for name, row in self.rows().items()}

    def cli(self, *arguments: str, code: int = 0) -> str:
        command = [sys.executable, "-m", "forebay", "engines", *arguments, "--config", str(self.forebay.file)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=os.environ)
        assert done.returncode == code, done
        return done.stdout + done.stderr


@pytest.fixture(scope="module")
def house() -> Iterator[House]:
    with (
        folder() as where,
        contextlib.closing(Engine("--decode-rate", "100")) as one,
        contextlib.closing(Engine("--decode-rate", "100")) as two,
    ):
        made = House(where, one, two)
        with contextlib.closing(made.forebay):
            yield made


def test_added_drained_resumed_removed(house: House) -> None:
    forebay = house.forebay
    eventually(lambda: house.states() == {"one": "healthy"})
    said = house.cli("add", "two", house.two.url, "--models", MODEL, "--set", "health_interval=0.2")
    assert said == "Engine two is added.\n"
    eventually(lambda: house.states() == {"one": "healthy", "two": "healthy"})
    assert {name: row["source"] for name, row in house.rows().items()} == {"one": "list", "two": "live"}

    with connect(forebay.port) as sock:
        house.cli("drain", "one")
        sock.sendall(raw_request(chat(8_000), request_id="on-two"))
        read_until(sock, b'"content":"')
        assert house.two.record("on-two") is not None  # one gets nothing new
        assert house.cli("drain", "two") == ("Engine two drains; `forebay engines list` shows what still runs there.\n")
        assert house.states() == {"one": "draining", "two": "draining"}
        assert house.rows()["two"]["in_flight"] == 1
        status, headers, body = forebay.call("POST", "/v1/chat/completions", chat())
        assert (status, headers["x-forebay-reason"]) == (503, "no_engine")
        assert json.loads(body)["error"]["message"] == f"No engine can take '{MODEL}' now: its engines drain."
        assert house.cli("remove", "two") == "Engine two is removed.\n"
        assert house.states() == {"one": "draining", "two": "leaving"}
        more = b""
        while more.count(b'"content":"') < 100:  # what runs there goes on
            more += sock.recv(65_536)
    eventually(lambda: house.states() == {"one": "draining"})
    house.cli("resume", "one")
    eventually(lambda: forebay.call("POST", "/v1/chat/completions", chat(stream=False))[0] == 200)


def test_what_was_done_live_outlives_worker_and_admin_process(house: House) -> None:
    forebay = house.forebay
    house.cli("add", "two", house.two.url, "--set", "health_interval=0.2", "--api-key", "${ENGINE_SECRET}")
    house.cli("drain", "one")
    kept = (forebay.state_dir / "engines.json").read_text()
    assert "${ENGINE_SECRET}" in kept and "engine-secret" not in kept
    for process in (forebay.admin, forebay.worker):
        process.kill()
        process.wait(10)

    def back() -> bool:
        with contextlib.suppress(OSError, ValueError, KeyError):
            return house.states() == {"one": "draining", "two": "healthy"}
        return False

    eventually(back)
    assert forebay.call("POST", "/v1/chat/completions", chat(stream=False))[0] == 200
    house.cli("resume", "one")
    house.cli("remove", "two")
    eventually(lambda: house.states() == {"one": "healthy"})


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("add", "x", "ftp://nowhere"), 2, "url: an engine's url starts with http:// or https:// and names a host."),
        (("add", "x y", "http://h:1"), 2, "name: not a name that can be used"),
        (("add", "x", "http://h:1", "--set", "colour=red"), 2, "colour: unknown key"),
        (("add", "x", "ftp://h", "--kind", "v", "--set", "cost=-1"), 2, "; kind: not one of the choices"),
        (("add", "x", "http://h:1", "--kind", "tgi", "--set", "role=decode"), 2, "engines: role decode is for engines"),
        (("add", "x", "http://h:1", "--api-key", "plain-secret"), 2, "api_key: write ${VAR}"),
        (("add", "x", "http://h:1", "--api-key", "${NOT_SET}"), 2, "the environment variable NOT_SET is not set"),
        (("add", "one", "http://h:1"), 1, "engines_file has an engine called one; change it there"),
        (("remove", "one"), 1, "one is in engines_file; take it out there, or drain it"),
        (("remove", "nobody"), 1, "There is no engine 'nobody'"),
        (("drain", "nobody"), 1, "There is no engine 'nobody'"),
        (("resume", "nobody"), 1, "There is no engine 'nobody'"),
    ],
)
def test_refused_with_field_and_fix(house: House, arguments: tuple[str, ...], code: int, said: str) -> None:
    assert said in house.cli(*arguments, code=code)


def test_the_public_port_changes_nothing(house: House) -> None:
    entry = {"name": "evil", "url": house.two.url}
    assert call(house.forebay.admin_port, "POST", "/admin/engines", entry)[0] == 405
    assert call(house.forebay.admin_port, "POST", "/engines", entry)[0] == 404


def test_the_watched_file(house: House) -> None:
    eventually(lambda: house.states() == {"one": "healthy"})
    house.entries(one=house.one, two=house.two)
    eventually(lambda: house.states() == {"one": "healthy", "two": "healthy"})
    before = len(house.forebay.text)
    house.file.write_text("- name: one\n  url: http://127.0.0.1:1\n- name: one\n  uri: x\n")
    said = eventually(lambda: "had stay" in (text := house.forebay.text[before:]) and text)
    assert "engines.json:3: engines[1].name: another engine has this name" in said
    assert "engines[1].uri: unknown key" in said
    assert house.states() == {"one": "healthy", "two": "healthy"}
    house.file.unlink()
    eventually(lambda: "No such file" in house.forebay.text[before:])
    eventually(lambda: house.forebay.text[before:].count("had stay") >= 2)
    assert house.forebay.text[before:].count("had stay") == 2  # each trouble once
    assert house.states() == {"one": "healthy", "two": "healthy"}
    house.entries(one=house.one)
    eventually(lambda: house.states() == {"one": "healthy"})
    assert house.forebay.call("POST", "/v1/chat/completions", chat(stream=False))[0] == 200
