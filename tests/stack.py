"""The whole thing as processes: emulated engines, a `forebay serve` in front of them, and raw clients."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from engine_process import EngineProcess
from waiting import eventually

MODEL = "forebay-sim"
KEY = "test-key-of-the-first-caller"
OTHER_KEY = "test-key-of-another-caller"
KEYS = {
    "keys": [
        {"name": "first", "key": KEY},
        {"name": "other", "key": OTHER_KEY},
        {"name": "narrow", "key": "test-key-with-no-model-of-ours", "models": ["something-else"]},
    ]
}


def call(
    port: int, method: str, path: str, body: object = None, *, timeout: float = 60.0, **headers: str
) -> tuple[int, dict[str, str], bytes]:
    """One request on a connection of its own: status, headers (lower-case), body."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    data = json.dumps(body).encode() if body is not None else None
    if data is not None:
        headers.setdefault("Content-Type", "application/json")
    with contextlib.closing(connection):
        connection.request(method, path, data, headers)
        response = connection.getresponse()
        return response.status, {k.lower(): v for k, v in response.getheaders()}, response.read()


class Lines:
    """A pipe read by a thread, kept as text, so that a child never blocks on it."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._parts: list[str] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        for line in self._stream:
            self._parts.append(line.decode("utf-8", "replace"))

    @property
    def text(self) -> str:
        return "".join(self._parts)

    def close(self) -> None:
        self._thread.join(10)
        self._stream.close()


class Engine(EngineProcess):
    """An engine behind a gateway: running, obeying fault headers, slow to give connections up."""

    def __init__(self, *arguments: str) -> None:
        super().__init__(["--keep-alive", "3600", "--allow-fault-header", *arguments])
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        return self.process.pid

    def faults(self, *faults: Any) -> None:
        answer = self.ask("PUT", "/control/faults", list(faults))
        assert answer.status == 200, answer

    def close(self) -> None:
        assert self.stop() == 0


def config_of(state_dir: Path, *engines: Engine, **more: Any) -> dict[str, Any]:
    """A configuration for tests: any free port, two callers, health checks that are frequent and
    patient (a machine may stand still for seconds)."""
    return {
        "listeners": [{"address": "127.0.0.1:0"}],
        "admin": "127.0.0.1:0",
        "state_dir": str(state_dir),
        "engines": [
            {"name": f"engine-{i}", "url": e.url, "health_interval": 0.2, "health_timeout": 20.0}
            for i, e in enumerate(engines)
        ],
        "callers": KEYS,
        **more,
    }


class Forebay:
    """`forebay serve` with a file (or, with `config` None, without one). JSON is YAML, so the file is JSON."""

    def __init__(
        self,
        folder: Path,
        config: dict[str, Any] | None,
        *arguments: str,
        wait: bool = True,
        env: dict[str, str] | None = None,
        stderr: Any = subprocess.PIPE,
        **popen: Any,
    ) -> None:
        self.folder = folder
        self.file = folder / "forebay.yaml"
        self.state_dir = folder / "state"
        command = [sys.executable, "-m", "forebay", "serve", *arguments]
        if config is not None:
            self.write(config)
            command += ["--config", str(self.file)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stderr=stderr, env={**os.environ, **(env or {})}, **popen
        )
        self.log = Lines(self.process.stderr) if self.process.stderr is not None else None
        self.port = self.admin_port = 0
        if wait:
            try:
                self.wait_said()
                self.wait_ready()
            except BaseException:
                self.close()
                raise

    def write(self, config: dict[str, Any]) -> None:
        self.file.write_text(json.dumps(config, indent=2))

    @property
    def text(self) -> str:
        return self.log.text if self.log is not None else ""

    def wait_said(self) -> None:
        """Until it has said where it serves."""

        def said() -> re.Match[str] | None:
            assert self.process.poll() is None, self.text
            return re.search(r"serves (?:https?://[^ :]+:(\d+)|unix:\S+).*metrics on http://[^ :]+:(\d+)\)", self.text)

        found = eventually(said)
        self.port, self.admin_port = int(found[1] or 0), int(found[2])

    def wait_ready(self, within: float = 60.0) -> None:
        deadline = time.monotonic() + within
        while why := self.not_ready():
            assert time.monotonic() < deadline, f"{why}\n{self.text}"
            time.sleep(0.02)

    def not_ready(self) -> str:
        """What keeps it from being ready; empty where nothing does."""
        try:
            status, _, body = call(self.admin_port, "GET", "/ready")
        except OSError as e:
            return repr(e)
        return "" if status == 200 else body.decode()

    @property
    def pid(self) -> int:
        return self.process.pid

    def child(self, word: str) -> psutil.Process:
        """The child whose command line has `word`: gateway.worker, admin.main, sim.main."""

        def look() -> psutil.Process | None:
            for child in psutil.Process(self.pid).children():
                with contextlib.suppress(psutil.NoSuchProcess):
                    if any(word in part for part in child.cmdline()):
                        return child
            return None

        return eventually(look)

    @property
    def worker(self) -> psutil.Process:
        return self.child("gateway.worker")

    @property
    def admin(self) -> psutil.Process:
        return self.child("admin.main")

    def call(self, method: str, path: str, body: object = None, key: str = KEY, **headers: str) -> Any:
        return call(self.port, method, path, body, **({"Authorization": f"Bearer {key}"} | headers))

    def metrics(self) -> dict[str, float]:
        """Every sample by its text up to the value."""
        text = call(self.admin_port, "GET", "/metrics")[2].decode()
        rows = (line.rpartition(" ") for line in text.splitlines() if line and not line.startswith("#"))
        return {name: float(value) for name, _, value in rows}

    def metric(self, prefix: str) -> float:
        """The sum of the samples whose name and labels start with `prefix`."""
        return sum(value for name, value in self.metrics().items() if name.startswith(prefix))

    def kill(self, number: int) -> None:
        self.process.send_signal(number)

    def hup(self, config: dict[str, Any] | None = None, said: str = "configuration reloaded") -> str:
        """Write a new file, tell the supervisor, and wait until its log says how that went; returns what it said."""
        if config is not None:
            self.write(config)
        before = len(self.text)
        self.kill(signal.SIGHUP)
        return eventually(lambda: self.text[before:] if said in self.text[before:] else "")

    def stop(self, number: int = signal.SIGTERM, within: float = 60.0) -> int:
        self.kill(number)
        return self.process.wait(within)

    def close(self) -> None:
        family = []
        with contextlib.suppress(psutil.NoSuchProcess):
            family = psutil.Process(self.pid).children(recursive=True)
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(10)
        for child in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.wait(60)
        if self.log is not None:
            self.log.close()


def chat(tokens: int = 20, *, stream: bool = True, **more: Any) -> dict[str, Any]:
    """A body whose answer has exactly `tokens` tokens."""
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Tell me about the river."}],
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": stream,
        **more,
    }


def raw_request(
    body: dict[str, Any],
    *,
    key: str = KEY,
    request_id: str = "",
    path: str = "/v1/chat/completions",
    **headers: str,
) -> bytes:
    """The bytes of a POST."""
    data = json.dumps(body).encode()
    lines = {
        "Host": "gateway",
        "Authorization": f"Bearer {key}",
        "Content-Type": "application/json",
        "Content-Length": str(len(data)),
        **({"X-Request-Id": request_id} if request_id else {}),
        **{k.replace("_", "-"): v for k, v in headers.items()},
    }
    head = "".join(f"{k}: {v}\r\n" for k, v in lines.items())
    return f"POST {path} HTTP/1.1\r\n{head}\r\n".encode() + data


def connect(port: int, timeout: float = 60.0) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port), timeout=timeout)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def reset(sock: socket.socket) -> None:
    """Close with a TCP reset."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def half_close(sock: socket.socket) -> None:
    sock.shutdown(socket.SHUT_WR)


def read_all(sock: socket.socket) -> bytes:
    """Until the peer closes or resets."""
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while got := sock.recv(65_536):
            data += got
    return data


def self_signed(where: Path, name: str = "localhost") -> Path:
    """A PEM file with a key and its certificate."""
    pem = where / f"{name}.pem"
    key, cert = where / "key.tmp", where / "cert.tmp"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-days", "2", "-subj", f"/CN={name}", "-keyout", str(key), "-out", str(cert)),
        ],
        check=True,
        capture_output=True,
    )
    pem.write_text(key.read_text() + cert.read_text())
    return pem


def fds(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """Short, for a Unix socket's path has 107 bytes."""
    path = Path(tempfile.mkdtemp(prefix="fb-"))
    try:
        yield path
    finally:
        shutil.rmtree(path)


@contextlib.contextmanager
def stack(*engine_arguments: str, **config: Any) -> Iterator[tuple[Forebay, Engine]]:
    """One engine and a gateway in front of it."""
    with folder() as where, contextlib.closing(Engine(*engine_arguments)) as engine:
        forebay = Forebay(where, config_of(where / "state", engine, **config))
        with contextlib.closing(forebay):
            yield forebay, engine
