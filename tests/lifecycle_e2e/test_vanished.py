"""Peers that are gone without a word: no FIN, no RST. A network namespace behind a link that is then cut."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from stack import Engine, Forebay, chat, config_of, folder, raw_request
from waiting import eventually

pytestmark = pytest.mark.system

SPACE, OURS, THEIRS = "forebay-test", "fbtest0", "fbtest1"
ADDRESS, PEER = "10.231.77.1", "10.231.77.2"
CLIENT = """
import socket, sys, time
host, port = sys.argv[1], int(sys.argv[2])
sock = socket.create_connection((host, port), timeout=30)
sock.sendall(sys.stdin.buffer.read())
if "first" in sys.argv:
    sock.recv(65536)
print("sent", flush=True)
while sock.recv(65536):
    pass
"""


def ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr} (this test needs root and network namespaces)"


@pytest.fixture
def cut_off() -> Iterator[None]:
    """A namespace of that name, reachable at PEER; set THEIRS down to lose it."""
    ip("netns", "add", SPACE)
    try:
        ip("link", "add", OURS, "type", "veth", "peer", "name", THEIRS, "netns", SPACE)
        ip("addr", "add", f"{ADDRESS}/30", "dev", OURS)
        ip("link", "set", OURS, "up")
        ip("-n", SPACE, "addr", "add", f"{PEER}/30", "dev", THEIRS)
        ip("-n", SPACE, "link", "set", THEIRS, "up")
        yield
    finally:
        subprocess.run(["ip", "link", "del", OURS], capture_output=True)
        ip("netns", "del", SPACE)


@pytest.mark.parametrize(
    ("stream", "within"),
    [
        pytest.param(True, 6.0, id="unacknowledged bytes: timeouts.write"),
        pytest.param(False, 45.0, id="silence: TCP keep-alive"),
    ],
)
def test_a_vanished_client_ends_the_engines_work(cut_off: None, stream: bool, within: float) -> None:
    with folder() as where, contextlib.closing(Engine("--decode-rate", "50", "--max-model-len", "200000")) as engine:
        config = config_of(where / "state", engine, timeouts={"write": 2.0})
        config["listeners"] = [{"address": f"{ADDRESS}:0"}]
        with contextlib.closing(Forebay(where, config)) as forebay:
            with subprocess.Popen(
                ["ip", "netns", "exec", SPACE, sys.executable, "-c", CLIENT, ADDRESS, str(forebay.port)]
                + (["first"] if stream else []),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            ) as client:
                assert client.stdin is not None and client.stdout is not None
                client.stdin.write(raw_request(chat(100_000, stream=stream), request_id="vanishes"))
                client.stdin.close()
                assert client.stdout.readline() == b"sent\n"
                eventually(lambda: engine.record("vanishes"))
                ip("-n", SPACE, "link", "set", THEIRS, "down")
                began = time.monotonic()
                client.kill()  # its FIN goes nowhere
                eventually(lambda: (engine.record("vanishes") or {}).get("how") == "aborted", within, 0.1)
                assert time.monotonic() - began > 1.0, "it was told after all"
            eventually(lambda: forebay.metric("forebay_client_connections") == 0)
            assert forebay.metric("forebay_requests_live") == 0
            assert forebay.metric("forebay_requests_total") == 1
