"""A gateway's worker as the supervisor starts it, and a helper process of its cache of which a test says every word."""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from e2e.client import KEY, Client
from e2e.engine import RawEngine
from forebay.cache.messages import Answered, Find, Found, Kind, Said, cache_socket
from forebay.config.models import Config
from forebay.state.channel import CHANNEL_ENV, pack
from forebay.state.messages import Start
from waiting import eventually

OTHER = "e2e-other-0123456789abcdef"
"""A key of another organisation."""

T = TypeVar("T")
PRESSING, SPENT = "scripted-pressing-0123456789", "scripted-spent-0123456789"
"""Keys: of class vip, and with a budget that sets max_tokens to 1,000."""
_decode = msgspec.msgpack.Decoder(Said).decode


class ScriptedHelper:
    """`finds`: what it answers to a Find; None: nothing. What it hears beside those is in `heard`."""

    def __init__(self, state_dir: Path) -> None:
        self._path = cache_socket(state_dir)
        self.heard: queue.Queue[Said] = queue.Queue()
        self.finds: Callable[[Find], Found | None] = lambda find: Found(find.n, Kind.MISS)
        self.asked: list[Find] = []
        self.changed = threading.Condition()
        self._sock: socket.socket | None = None
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self._path))
        self._listener.listen()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            self._sock, _ = self._listener.accept()
            while True:
                message = _decode(self._exactly(int.from_bytes(self._exactly(4), "big")))
                if not isinstance(message, Find):
                    self.heard.put(message)
                    continue
                with self.changed:
                    self.asked.append(message)
                    self.changed.notify_all()
                if (found := self.finds(message)) is not None:
                    self.say(found)

    def _exactly(self, count: int) -> bytes:
        assert self._sock is not None
        found = b""
        while len(found) < count:
            piece = self._sock.recv(count - len(found))
            if not piece:
                raise ConnectionResetError
            found += piece
        return found

    def say(self, message: Answered) -> None:
        assert self._sock is not None
        data = msgspec.msgpack.encode(message)
        self._sock.sendall(len(data).to_bytes(4, "big") + data)

    def hears(self, kind: type[T]) -> T:
        """The next that is no Find."""
        message = self.heard.get(timeout=60)
        assert isinstance(message, kind), message
        return message

    def wait_asked(self, count: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.asked) >= count, 60), self.asked

    def close(self) -> None:
        for sock in (self._sock, self._listener):
            if sock is not None:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
                sock.close()
        self._thread.join(10)


class Worker:
    """On a port of its own, without a supervisor's other processes."""

    def __init__(self, state_dir: Path, engine: RawEngine, **cache: Any) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.where: tuple[str, int] = self._listener.getsockname()
        config = {
            "state_dir": str(state_dir),
            "listeners": [{"address": f"127.0.0.1:{self.where[1]}"}],
            "engines": [{"name": "raw", "url": f"http://127.0.0.1:{engine.port}", "models": ["raw"]}],
            "callers": {
                "keys": [
                    {"name": "e2e", "key": KEY, "organisation": "acme"},
                    {"name": "other", "key": OTHER, "organisation": "beta"},
                    {"name": "pressing", "key": PRESSING, "organisation": "acme", "class": "vip"},
                    {"name": "spent", "key": SPENT, "organisation": "acme", "project": "spent"},
                ]
            },
            "quotas": [
                {
                    "name": "little",
                    "project": "spent",
                    "each": "project",
                    "tokens_per_day": 4_000,
                    "answer_tokens": 1_000,
                }
            ],
            "cache": {"enabled": True, "ignored_headers": ["x-test"], **cache},
        }
        text = Config.model_validate(config).model_dump_json(by_alias=True)
        state_dir.joinpath("run").mkdir(mode=0o700, parents=True)
        self.helper = ScriptedHelper(state_dir)
        ours, theirs = socket.socketpair()
        self._channel = ours
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "forebay.gateway.worker"],
                env={**os.environ, CHANNEL_ENV: str(theirs.fileno())},
                pass_fds=(theirs.fileno(), self._listener.fileno()),
                stderr=subprocess.PIPE,
            )
        ours.sendall(pack(Start(text, 0, "boot", fds=(self._listener.fileno(),))))

    def client(self) -> Client:
        return Client(self.where)

    def close(self) -> str:
        """Its log."""
        self._channel.close()
        log = self.process.communicate(timeout=30)[1].decode()
        self._listener.close()
        self.helper.close()
        assert self.process.returncode == 0, log
        return log


@contextlib.contextmanager
def worker(state_dir: Path, engine: RawEngine, **cache: Any) -> Iterator[Worker]:
    started = Worker(state_dir, engine, **cache)
    try:
        eventually(lambda: started.helper._sock is not None)
        yield started
    finally:
        log = started.close()
        print(log)  # pytest shows it where the test failed
        assert "Traceback" not in log
