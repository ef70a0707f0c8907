"""A helper process over a state directory that was filled before, on a core of its own; one client on its socket."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from benchmarks.common import ROOT, BenchError, Tree, tail
from forebay.cache.messages import Answered, Find, Found, Said, cache_socket
from forebay.config.models import Config
from forebay.state.channel import CHANNEL_ENV, pack
from forebay.state.messages import Start

BUDGET = 5.0
"""Seconds of a look-up: what it takes is measured, not cut."""


def config(state: Path, entries: int) -> Config:
    return Config.model_validate(
        {
            "state_dir": str(state),
            "engines": [{"name": "none", "url": "http://127.0.0.1:1"}],
            "cache": {
                "enabled": True,
                "disk_bytes": 1 << 40,
                "semantic": {"enabled": True, "entries": entries, "budget": BUDGET},
            },
        }
    )


class Host:
    def __init__(self, pid: int, connection: socket.socket) -> None:
        self.pid = pid
        self._socket = connection
        self._n = 0

    def cpu(self) -> float:
        """Seconds of CPU that it has taken."""
        return Tree(self.pid).cpu()[self.pid]

    def say(self, message: Said) -> None:
        body = msgspec.msgpack.encode(message)
        self._socket.sendall(len(body).to_bytes(4, "big") + body)

    def find(self, scope: bytes, question: str, partition: str) -> tuple[Found, float]:
        """The answer to a look-up by meaning, and the seconds until it was here."""
        self._n += 1
        asked = Find(self._n, os.urandom(16), scope, question, partition, BUDGET)
        began = time.perf_counter()
        self.say(asked)
        while True:
            found = msgspec.msgpack.decode(self._exactly(int.from_bytes(self._exactly(4), "big")), type=Answered)
            if isinstance(found, Found) and found.n == self._n:
                return found, time.perf_counter() - began

    def _exactly(self, count: int) -> bytes:
        found = b""
        while len(found) < count:
            if not (piece := self._socket.recv(count - len(found))):
                raise BenchError("the helper process hung up")
            found += piece
        return found


@contextlib.contextmanager
def helper(config: Config, core: int, log: Path, known: tuple[bytes, str, str], within: float) -> Iterator[Host]:
    """Started as the supervisor starts it. Raises BenchError where it does not see in so many seconds that there is
    something like `known`: a scope, a question and a partition."""
    config.state_dir.joinpath("run").mkdir(mode=0o700, exist_ok=True)
    ours, theirs = socket.socketpair()
    with contextlib.ExitStack() as stack:
        stack.enter_context(ours)
        with log.open("wb") as out, theirs:
            process = subprocess.Popen(
                ["taskset", "-c", str(core), sys.executable, "-m", "forebay.helper.main"],
                env={**os.environ, CHANNEL_ENV: str(theirs.fileno())},
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                cwd=ROOT,
            )
        stack.callback(_ended, process)
        ours.sendall(pack(Start(config.model_dump_json(by_alias=True), 0, "bench")))
        connection = stack.enter_context(socket.socket(socket.AF_UNIX))
        connection.settimeout(30)
        host = Host(process.pid, connection)
        end = time.monotonic() + within
        connected = False
        while True:
            if process.poll() is not None or time.monotonic() > end:
                raise BenchError(f"the helper process did not get ready within {within:g} s:\n{tail(log)}")
            with contextlib.suppress(OSError):
                if not connected:
                    connection.connect(str(cache_socket(config.state_dir)))
                    connected = True
            if connected and host.find(*known)[0].similarity > 0:
                break
            time.sleep(0.05)
        _rests(host, end)
        yield host


def _rests(host: Host, end: float) -> None:
    """Wait until it has compared its index with its store."""
    before = host.cpu()
    while time.monotonic() < end:
        time.sleep(1)
        now = host.cpu()
        if now - before < 0.05:
            return
        before = now
    raise BenchError("the helper process is still busy with itself")


def _ended(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
