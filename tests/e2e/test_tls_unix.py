"""TLS on both sides, and Unix sockets."""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.client import KEY, Client, chat, new_id, request
from e2e.conftest import Engines
from e2e.engine import ANSWER, DONE, ROLE, RawEngine, Talk, chunk, delta, event, stream_head, streams
from e2e.gateway import Gateway
from waiting import eventually

TLS_PORT = 2
LAST = event(delta({"content": "Hi"}, "stop"))


def secure(gateway: Gateway, trust: ssl.SSLContext) -> Client:
    return Client(("127.0.0.1", gateway.ports[TLS_PORT]), trust)


def test_requests_over_tls(gateway: Gateway, trust: ssl.SSLContext, engines: Engines) -> None:
    with secure(gateway, trust) as client:
        for _ in range(3):
            client.send(request(chat()))
            assert client.read().body == ANSWER
        test = new_id("tls")
        engines.raw.scripts[test] = streams(ROLE, LAST, DONE)
        client.send(request(chat(stream=True), x_test=test))
        answer = client.read()
        assert (answer.body, answer.whole) == (ROLE + LAST + DONE, True)
        client.send(request(chat("none"), Connection="close"))
        assert client.read().status == 404
        client.closed()


def test_large_bodies_over_tls(gateway: Gateway, trust: ssl.SSLContext, engines: Engines) -> None:
    test = new_id("tls")
    body = chat(pad="é" * 1_000_000)
    with secure(gateway, trust) as client:
        client.send(request(body, x_test=test))
        assert client.read().status == 200
    assert engines.raw.one(test).json == body


@pytest.mark.parametrize("data", [request(chat()), b"\0" * 100, b"\x16\x03\x01\xff\xff" + b"a" * 100], ids=range(3))
def test_no_tls_on_the_tls_port(gateway: Gateway, trust: ssl.SSLContext, engines: Engines, data: bytes) -> None:
    before = engines.raw.total()
    with gateway.client(TLS_PORT) as client:
        client.try_send(data)
        assert b"HTTP" not in client.rest()
    assert engines.raw.total() == before
    with secure(gateway, trust) as client:
        client.send(request(chat()))
        assert client.read().status == 200


def test_old_tls_is_refused(gateway: Gateway, trust: ssl.SSLContext) -> None:
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname = False
    old.verify_mode = ssl.CERT_NONE
    old.set_ciphers("ALL:@SECLEVEL=0")
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises((ssl.SSLError, ConnectionError)):
        secure(gateway, old)


def test_leaving_over_tls(gateway: Gateway, trust: ssl.SSLContext, engines: Engines) -> None:
    """A client's leaving reaches the engine through TLS too."""
    for how in ("close", "abrupt"):
        test = new_id("tls")
        gone: list[float] = []

        def script(talk: Talk, gone: list[float] = gone) -> None:
            talk.send(stream_head(), chunk(ROLE + event(delta({"content": "Hi"}))))
            talk.wait_gone()
            gone.append(time.monotonic())

        engines.raw.scripts[test] = script
        client = secure(gateway, trust)
        client.send(request(chat(stream=True), x_test=test))
        assert client.head().status == 200
        if how == "close":
            with contextlib.suppress(OSError):
                client.sock.settimeout(0.2)
                client.sock.unwrap()  # type: ignore[attr-defined]
        client.close()
        eventually(lambda gone=gone: gone)  # type: ignore[misc]


def test_half_a_handshake(gateway: Gateway, trust: ssl.SSLContext) -> None:
    """Many who never finish it do not keep others out."""
    with contextlib.ExitStack() as stack:
        for _ in range(50):
            sock = stack.enter_context(socket.create_connection(("127.0.0.1", gateway.ports[TLS_PORT])))
            sock.sendall(b"\x16\x03\x01")
        with secure(gateway, trust) as client:
            client.send(request(chat()))
            assert client.read().status == 200


# --- engines behind TLS -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def behind_tls(certificate: tuple[Path, Path]) -> Iterator[tuple[Gateway, RawEngine]]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    engine = RawEngine(["raw"], tls=context)
    plain = RawEngine(["raw"])

    def entry(name: str, host: str, port: int, **tls: object) -> dict[str, object]:
        url = f"https://{host}:{port}"
        return {"name": name, "url": url, "models": [name], "health_interval": 0.3, "unhealthy_after": 1, "tls": tls}

    ca = str(certificate[0])
    made = Gateway(
        {
            "listeners": [{"address": "127.0.0.1:0"}],
            "engines": [
                entry("trusted", "localhost", engine.port, ca=ca),
                entry("by-address", "127.0.0.1", engine.port, ca=ca),
                entry("unchecked", "localhost", engine.port, verify=False),
                entry("unknown-authority", "localhost", engine.port),
                entry("other-name", "localhost", engine.port, ca=ca, server_name="other.example"),
                entry("no-tls", "localhost", plain.port, ca=ca),
            ],
            "callers": {"keys": [{"name": "e2e", "key": KEY}]},
        }
    )
    try:
        made.wait_until_ready("trusted")
        yield made, engine
    finally:
        made.stop()
        engine.close()
        plain.close()


@pytest.mark.parametrize("model", ["trusted", "by-address", "unchecked"])
@pytest.mark.parametrize("stream", [False, True])
def test_engine_over_tls(behind_tls: tuple[Gateway, RawEngine], model: str, stream: bool) -> None:
    gateway, engine = behind_tls
    eventually(lambda: gateway.ask(chat(model)).status == 200)
    test = new_id("tls")
    if stream:
        engine.scripts[test] = streams(ROLE, LAST, DONE)
    for _ in range(3):
        answer = gateway.ask(chat(model, stream=stream), x_test=test)
        assert (answer.status, answer.body) == (200, ROLE + LAST + DONE if stream else ANSWER)


@pytest.mark.parametrize("model", ["unknown-authority", "other-name", "no-tls"])
def test_engine_that_cannot_be_trusted(behind_tls: tuple[Gateway, RawEngine], model: str) -> None:
    """Its health check fails, so nothing is ever sent to it."""
    gateway, engine = behind_tls
    test = new_id("tls")
    answer = gateway.ask(chat(model), x_test=test)
    assert (answer.status, answer.error["code"]) == (503, "no_engine")
    assert not engine.requests(test)


def test_unverified_engines_are_named_in_the_log(behind_tls: tuple[Gateway, RawEngine]) -> None:
    text = behind_tls[0].log.read_text()
    assert "engine unchecked: its certificate is not verified (tls.verify is false)" in text
    assert "engine trusted: its certificate" not in text


# --- Unix sockets -----------------------------------------------------------------------------------------------------


@pytest.fixture
def path(gateway: Gateway) -> Path:
    return Path(gateway.config["listeners"][3]["address"].removeprefix("unix:"))


def test_requests_over_a_unix_socket(gateway: Gateway, engines: Engines, path: Path) -> None:
    with Client(path) as client:
        for stream in (False, True):
            client.send(request(chat(stream=stream)))
            answer = client.read()
            assert (answer.status, answer.whole) == (200, True)
        client.send(request(chat(), key=None))
        assert client.read().status == 401


def test_a_unix_peer_is_no_trusted_proxy(gateway: Gateway, path: Path) -> None:
    """The word `unix` is not among the trusted proxies: whatever it says, its failures are its own."""
    statuses = []
    with Client(path) as client:
        for i in range(7):
            headers = {"X-Forwarded-For": f"203.0.113.{200 + i}"}
            client.send(request(chat(), key=new_id("guess-0123456789abcdef"), headers=headers))
            statuses.append(client.read().status)
    assert statuses[-2:] == [429, 429]


def test_leaving_over_a_unix_socket(gateway: Gateway, engines: Engines, path: Path) -> None:
    test = new_id("unix")
    gone: list[bool] = []

    def script(talk: Talk) -> None:
        talk.wait_gone()
        gone.append(True)

    engines.raw.scripts[test] = script
    with Client(path) as client:
        client.send(request(chat(), x_test=test))
        engines.raw.wait_for(test)
    eventually(lambda: gone)


def test_files_of_the_gateway_are_private(gateway: Gateway, path: Path) -> None:
    state = Path(gateway.config["state_dir"])
    assert state.stat().st_mode & 0o777 == 0o700
    for file in state.rglob("*"):
        if file.is_file():
            assert not file.stat().st_mode & 0o077, file
