"""The admin process as the supervisor starts it, and a worker's side of the control socket."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from forebay.config.models import Address, Config
from forebay.state.channel import CHANNEL_ENV, pack, unpack
from forebay.state.messages import (
    AdmissionState,
    Done,
    EngineState,
    FamilySnapshot,
    Follow,
    GetAdmission,
    GetBudgets,
    GetSnapshot,
    Message,
    NoAdmission,
    Ready,
    SetEngines,
    SetKeys,
    Snapshot,
    Start,
    admin_socket,
    run_dir,
    worker_socket,
)

HEALTHY = EngineState("one", "http://127.0.0.1:9", healthy=True, models=("m",), in_flight=3, state="healthy")


def _read(sock: socket.socket) -> Message | None:
    def exactly(n: int) -> bytes:
        data = b""
        while len(data) < n:
            got = sock.recv(n - len(data))
            if not got:
                raise EOFError
            data += got
        return data

    try:
        return unpack(exactly(int.from_bytes(exactly(4), "big")))
    except (EOFError, OSError):
        return None


class FakeWorker:
    """Speaks the control protocol over a real socket; what it reports is set by the test."""

    def __init__(self, state_dir: Path, index: int = 0, boot: str = "boot-1") -> None:
        self.snapshot = Snapshot(
            boot=boot, pid=os.getpid(), index=index, draining=False, keys_version=0, engines=(HEALTHY,)
        )
        self.admission: AdmissionState | NoAdmission = NoAdmission()
        self.lists: list[SetKeys] = []
        self.answering = threading.Event()
        self.answering.set()
        self.changed = threading.Condition()
        path = worker_socket(state_dir, index)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        path.unlink(missing_ok=True)
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(str(path))
        self._socket.listen()
        self._connections: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def set(self, **fields: Any) -> None:
        self.snapshot = msgspec.structs.replace(self.snapshot, **fields)

    def count(self, requests: float, buckets: tuple[int, ...] = (0, 0), in_flight: float = 0) -> None:
        ok = ("ok",)
        self.set(
            families=(
                FamilySnapshot("forebay_requests_total", "Requests.", "counter", ("outcome",), (), ((ok, requests),)),
                FamilySnapshot("forebay_in_flight", "In flight.", "gauge", (), (), (((), in_flight),)),
                FamilySnapshot(
                    "forebay_ttft_seconds", "TTFT.", "histogram", ("outcome",), (0.5,), (), ((ok, buckets, 1.5),)
                ),
            )
        )

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self._connections.append(connection)
            thread = threading.Thread(target=self._serve, args=(connection,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while (message := _read(connection)) is not None:
                self.answering.wait()
                match message:
                    case GetSnapshot():
                        connection.sendall(pack(self.snapshot))
                    case GetAdmission():
                        connection.sendall(pack(self.admission))
                    case SetKeys():
                        with self.changed:
                            self.lists.append(message)
                            self.set(keys_version=message.version)
                            self.changed.notify_all()
                        connection.sendall(pack(Done()))
                    case SetEngines():
                        connection.sendall(pack(Done()))
                    case Follow() | GetBudgets():
                        pass  # one that says nothing of its books: the folder is looked at all the same
                    case other:
                        raise AssertionError(other)

    def keys(self, wanted: Callable[[SetKeys], bool] = lambda keys: True, within: float = 60.0) -> SetKeys:
        """The first pushed list that is as wanted."""
        with self.changed:
            assert self.changed.wait_for(lambda: any(wanted(k) for k in self.lists), within), self.lists
            return next(k for k in self.lists if wanted(k))

    def kill(self) -> None:
        """As a crash: the socket's file stays behind."""
        self.answering.set()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive()
        for connection in self._connections:
            connection.close()


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout: float = 20.0) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


class Answer:
    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers = response.headers
        self.body = response.read()

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> Any:
        return self.json["error"]

    def __repr__(self) -> str:
        return f"<Answer {self.status} {self.body[:300]!r}>"


class Admin:
    """The real process. `boot` is the supervisor's identity; `sock` its listening socket, kept over restarts."""

    def __init__(self, config: Config, boot: str = "supervisor-1", sock: socket.socket | None = None) -> None:
        self.config = config
        self.state_dir = config.state_dir
        self.boot = boot
        self.sock = sock or socket.create_server(("127.0.0.1", 0))
        self.log = config.state_dir / "admin.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *, wait: bool = True) -> Admin:
        ours, theirs = socket.socketpair()
        with theirs, self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-W", "error", "-m", "forebay.admin.main"],
                pass_fds=(theirs.fileno(), self.sock.fileno()),
                env=os.environ | {CHANNEL_ENV: str(theirs.fileno())},
                stderr=log,
                stdout=log,
            )
        self.channel = ours
        ours.settimeout(30)
        text = msgspec.json.encode(self.config.model_dump(mode="json", by_alias=True)).decode()
        ours.sendall(pack(Start(config=text, index=0, boot=self.boot, fds=(self.sock.fileno(),))))
        if wait:
            assert _read(ours) == Ready(self.process.pid), self.log.read_text()
        return self

    @property
    def url(self) -> tuple[str, int]:
        host, port = self.sock.getsockname()[:2]
        return host, port

    def get(self, path: str, *, method: str = "GET", host: str | None = None, **headers: str) -> Answer:
        if self.sock.family == socket.AF_UNIX:
            connection: http.client.HTTPConnection = UnixConnection(Path(self.sock.getsockname()))
        else:
            connection = http.client.HTTPConnection(*self.url, timeout=60)
        if host is not None:
            headers["Host"] = host
        with contextlib.closing(connection):
            connection.request(method, path, headers=headers)
            return Answer(connection.getresponse())

    def api(self, method: str, path: str, body: object = None) -> Answer:
        """The key API on admin.sock; `body` is sent as JSON, or as it is when it is bytes."""
        with contextlib.closing(UnixConnection(admin_socket(self.state_dir))) as connection:
            data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
            connection.request(method, path, body=data)
            return Answer(connection.getresponse())

    def metric(self, sample: str) -> float | None:
        """The value of one sample line, labels included."""
        for line in self.get("/metrics").body.decode().splitlines():
            if line.startswith(sample + " "):
                return float(line.rpartition(" ")[2])
        return None

    def send(self, message: Message) -> None:
        self.channel.sendall(pack(message))

    def kill(self, number: int = signal.SIGKILL) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        code = self.process.wait(60)
        self.channel.close()
        return code

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(60)
        if self.process is not None:
            self.channel.close()
        self.sock.close()


@pytest.fixture
def state_dir() -> Iterator[Path]:
    """Short, for a Unix socket's path has 107 bytes."""
    folder = Path(tempfile.mkdtemp(prefix="fb-"))
    run_dir(folder).mkdir(mode=0o700)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def config(state_dir: Path) -> Config:
    return Config(state_dir=state_dir, admin=Address(host="127.0.0.1", port=8081))


@pytest.fixture
def admin(config: Config) -> Iterator[Admin]:
    """Not started yet."""
    admin = Admin(config)
    yield admin
    admin.close()


@pytest.fixture(scope="module")
def running() -> Iterator[Admin]:
    """One that runs, with a worker and a database, for tests that change nothing."""
    folder = Path(tempfile.mkdtemp(prefix="fb-"))
    admin = Admin(Config(state_dir=folder, admin=Address(host="127.0.0.1", port=8081)))
    worker = FakeWorker(folder)
    try:
        admin.start()
        worker.keys()
        yield admin
    finally:
        admin.close()
        worker.kill()
        shutil.rmtree(folder)


@pytest.fixture
def worker(state_dir: Path) -> Iterator[FakeWorker]:
    worker = FakeWorker(state_dir)
    yield worker
    worker.kill()
