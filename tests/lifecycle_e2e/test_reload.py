"""SIGHUP: what is new is in force, what is wrong is named and changes nothing, no stream notices."""

from __future__ import annotations

import contextlib
import copy
import json
import re
import signal
import socket
import ssl
import threading
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from stack import MODEL, Engine, Forebay, chat, config_of, connect, folder, raw_request, self_signed, stack
from waiting import eventually, read_until


class House:
    def __init__(self, forebay: Forebay, engine: Engine) -> None:
        self.forebay, self.engine = forebay, engine
        self.config: dict[str, Any] = json.loads(forebay.file.read_text())

    def changed(self, **sections: Any) -> dict[str, Any]:
        return {**copy.deepcopy(self.config), **sections}


@pytest.fixture(scope="module")
def shared() -> Iterator[House]:
    with stack("--decode-rate", "100") as (forebay, engine):
        yield House(forebay, engine)


@pytest.fixture
def house(shared: House) -> House:
    """With the configuration that it began with."""
    shared.forebay.hup(shared.config)
    return shared


@pytest.fixture
def mortal() -> Iterator[House]:
    """One that a test may stop."""
    with stack("--decode-rate", "100") as (forebay, engine):
        yield House(forebay, engine)


def test_no_stream_is_dropped_by_reloads_under_load(house: House) -> None:
    forebay = house.forebay
    worker = forebay.worker.pid
    ended: list[bytes] = []

    def stream() -> None:
        with connect(forebay.port) as sock:
            sock.sendall(raw_request(chat(150)))
            ended.append(read_until(sock, b"data: [DONE]\n\n"))

    threads = [threading.Thread(target=stream) for _ in range(60)]
    for t in threads:
        t.start()
    eventually(lambda: forebay.metric("forebay_requests_live") == 60)
    for i in range(5):
        forebay.hup(house.changed(limits={"body_bytes": 100_000 + i, "connections": 1_000_000}))
    for t in threads:
        t.join(60)
    assert len(ended) == 60
    assert all(b"data: [DONE]\n\n" in d and d.count(b'"content":"') == 151 for d in ended)
    assert forebay.worker.pid == worker
    assert forebay.text.count("instead of 1000000, for want of descriptors") <= 1  # said once


def test_the_log_level_is_in_force_in_every_process(mortal: House) -> None:
    forebay = mortal.forebay
    eventually(lambda: "the books are open" in forebay.text)  # the last word of the start
    forebay.hup(mortal.changed(logging={"level": "error"}))
    before = len(forebay.text)
    assert forebay.stop() == 0
    assert forebay.text[before:] == ""


def test_the_log_format_is_in_force_in_every_process(mortal: House) -> None:
    forebay = mortal.forebay
    forebay.hup(mortal.changed(logging={"format": "pretty"}))
    before = len(forebay.text)
    assert forebay.stop() == 0
    assert "info    drained" in forebay.text[before:]
    assert "{" not in forebay.text[before:]


def test_new_engines_keys_limits_and_aliases_are_in_force(house: House) -> None:
    forebay = house.forebay
    with contextlib.closing(Engine("--model", "another")) as second:
        config = house.changed(
            limits={"body_bytes": 2_000},
            models={MODEL: {"aliases": ["nick"]}},
            callers={"keys": [{"name": "new", "key": "a-key-made-by-the-reload"}]},
        )
        config["engines"].append({**config["engines"][0], "name": "second", "url": second.url})
        forebay.hup(config)
        ask, key = chat(3, stream=False), "a-key-made-by-the-reload"
        eventually(lambda: forebay.call("POST", "/v1/chat/completions", {**ask, "model": "another"}, key=key)[0] == 200)
        assert forebay.call("POST", "/v1/chat/completions", {**ask, "model": "nick"}, key=key)[0] == 200
        assert forebay.call("POST", "/v1/chat/completions", {**ask, "user": "u" * 2_000}, key=key)[0] == 413
        assert forebay.call("GET", "/v1/models")[0] == 401, "the old key is gone"


def test_a_stream_of_a_removed_engine_goes_on_to_its_end(house: House) -> None:
    with contextlib.closing(Engine("--model", "another")) as second, connect(house.forebay.port) as sock:
        sock.sendall(raw_request(chat(150)))
        data = read_until(sock, b'"content":"')
        config = house.changed()
        config["engines"] = [{**config["engines"][0], "name": "second", "url": second.url}]
        house.forebay.hup(config)
        eventually(lambda: house.forebay.call("POST", "/v1/chat/completions", chat(1, stream=False))[0] == 404)
        assert b"data: [DONE]" in read_until(sock, b"data: [DONE]", data)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('limits:\n  body_bytes: "lots"\nengines: []\n', (":2", "limits.body_bytes")),
        ("limits:\n  body_byte: 5000\n", (":2", "body_byte")),
        ("limits: [\n", ("forebay.yaml",)),
        ("callers: {keys: [{name: a, key: '${NO_SUCH_VARIABLE}'}]}\n", (":1", "NO_SUCH_VARIABLE")),
        ("limits: {}\n", ("names no engine",)),
        (None, ("forebay.yaml",)),
    ],
    ids=["wrong value", "unknown key", "not YAML", "missing variable", "no engine", "no file"],
)
def test_a_bad_file_is_named_and_the_running_one_stays(house: House, text: str | None, words: tuple[str, ...]) -> None:
    forebay = house.forebay
    if text is None:
        forebay.file.unlink()
    else:
        forebay.file.write_text(text)
    said = forebay.hup(said="stays in force")
    for word in words:
        assert word in said
    assert str(forebay.file) in said
    assert forebay.call("POST", "/v1/chat/completions", chat(3, stream=False))[0] == 200
    forebay.hup(house.changed(limits={"body_bytes": 2_000}))
    assert forebay.call("POST", "/v1/chat/completions", {**chat(3), "user": "u" * 2_000})[0] == 413


def test_prices_are_read_again_and_bad_ones_change_nothing() -> None:
    with folder() as where, contextlib.closing(Engine()) as engine:
        prices = where / "prices.yaml"

        def cost_of_one() -> tuple[int, int]:
            """Nano-units, and what they come to at a price of 1 for a million tokens."""
            before = spent()
            assert forebay.call("POST", "/v1/chat/completions", chat(3, stream=False))[0] == 200
            after = eventually(lambda: found if (found := spent())[0] > before[0] else None)
            return after[1] - before[1], (after[2] - before[2]) * 1_000

        def spent() -> tuple[int, int, int]:
            today = json.loads(forebay.call("GET", "/v1/usage")[2])["periods"]["today"]
            return today["requests"], int(Decimal(today["cost"] or 0) * 10**9), today["tokens"]["total"]

        def entry(price: object) -> str:
            return json.dumps({"prices": [{"model": MODEL, "input": price, "output": price}]}, indent=1)

        prices.write_text(entry("cheap"))
        config = config_of(where / "state", engine, ledger={"prices": str(prices)})
        forebay = Forebay(where, config, wait=False)
        with contextlib.closing(forebay):
            assert forebay.process.wait(20) == 78
            assert re.search(rf"{prices}:5: prices\[0\]\.input: .*found 'cheap'", forebay.text)
            assert "Traceback" not in forebay.text
        prices.write_text(entry(2))
        forebay = Forebay(where, config)
        with contextlib.closing(forebay):
            cost, at_one = cost_of_one()
            assert cost == 2 * at_one > 0
            prices.write_text(entry(-1))
            said = forebay.hup(said="stays in force")
            assert f"{prices}:5: prices[0].input: " in said
            cost, at_one = cost_of_one()
            assert cost == 2 * at_one > 0
            prices.write_text(entry(5))
            forebay.hup(config)
            cost, at_one = cost_of_one()
            assert cost == 5 * at_one > 0


def test_what_takes_a_restart_is_said_and_the_rest_is_in_force(house: House) -> None:
    config = house.changed(limits={"body_bytes": 2_000}, admin="127.0.0.1:1", state_dir="/tmp/elsewhere")
    config["listeners"] = [{"address": "127.0.0.1:2"}]
    said = house.forebay.hup(config)
    assert "admin, state_dir, listeners: a change takes a restart; the rest is in force now" in said
    assert house.forebay.call("POST", "/v1/chat/completions", {**chat(3), "user": "u" * 2_000})[0] == 413
    house.forebay.wait_ready()


def test_without_a_file_there_is_nothing_to_read_again() -> None:
    with folder() as where:
        forebay = Forebay(
            where, None, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--state-dir", str(where / "s")
        )
        with contextlib.closing(forebay):
            forebay.hup(said="there is no configuration file to read again")
            assert forebay.call("GET", "/v1/models")[0] == 200


def test_a_worker_started_after_a_reload_has_the_new_configuration(house: House) -> None:
    house.forebay.hup(house.changed(limits={"body_bytes": 2_000}))
    house.forebay.worker.send_signal(signal.SIGKILL)
    too_large = {**chat(3), "user": "u" * 2_000}
    assert eventually(lambda: house.forebay.call("POST", "/v1/chat/completions", too_large)[0]) == 413


def served_certificate(port: int) -> bytes:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection(("127.0.0.1", port), timeout=10) as raw, context.wrap_socket(raw) as tls:
        return tls.getpeercert(binary_form=True) or b""


def certificate_in(pem: Path) -> bytes:
    text = pem.read_text()
    return ssl.PEM_cert_to_DER_cert(text[text.index("-----BEGIN CERTIFICATE") :])


def test_certificates_are_renewed_by_a_reload() -> None:
    with folder() as where, contextlib.closing(Engine()) as engine:
        pem = self_signed(where)
        config = config_of(where / "state", engine)
        config["listeners"][0]["tls"] = {"cert": str(pem), "key": str(pem)}
        with contextlib.closing(Forebay(where, config)) as forebay:
            old = served_certificate(forebay.port)
            assert old == certificate_in(pem)
            self_signed(where)
            assert served_certificate(forebay.port) == old, "files are read when told, not before"
            forebay.hup()
            eventually(lambda: served_certificate(forebay.port) == certificate_in(pem) != old)
            new = served_certificate(forebay.port)
            pem.write_text("no certificate\n")
            forebay.hup(said="stays in force")
            assert served_certificate(forebay.port) == new
