"""The gateway as its users run it: `forebay serve --config …`, a tree of real processes."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from e2e.client import KEY, Answer, Client, request
from waiting import eventually


class Gateway:
    def __init__(self, config: dict[str, Any]) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="fb-e2e-"))  # short: a Unix socket's path has 107 bytes
        self.config = {
            "admin": "127.0.0.1:0",
            "state_dir": str(self.folder / "state"),
            "logging": {"format": "json"},
            **config,
        }
        self.file = self.folder / "forebay.yaml"
        self.file.write_text(json.dumps(self.config))
        self.log = self.folder / "log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "forebay", "serve", "--config", str(self.file)], stderr=log, stdout=log
            )
        try:
            line = eventually(self._ready_line)
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise
        ports = [int(p) for p in re.findall(r"https?://127\.0\.0\.1:(\d+)", line)]
        self.admin_port = ports.pop()
        self.ports = ports
        self.where = ("127.0.0.1", ports[0])

    def _ready_line(self) -> str:
        if self.process.poll() is not None:
            raise AssertionError(self.log.read_text())
        return next((x for x in self.log.read_text().splitlines() if "health and metrics on" in x), "")

    def client(self, port: int = 0) -> Client:
        return Client(("127.0.0.1", self.ports[port]))

    def ask(self, body: Any = None, path: str = "/v1/chat/completions", method: str = "POST", **named: Any) -> Answer:
        """One request on a connection of its own."""
        with self.client() as client:
            client.send(request(body, path, method, **named))
            return client.read(head_only=method == "HEAD")

    def raw(self, data: bytes) -> Answer:
        with self.client() as client:
            client.send(data)
            return client.read()

    def models(self, key: str = KEY) -> list[str]:
        return [m["id"] for m in self.ask(path="/v1/models", method="GET", key=key).json["data"]]

    def wait_until_ready(self, *models: str) -> None:
        """Until keys of the database are known and each of `models` is served."""
        eventually(lambda: self.admin("/ready")[0] == 200)
        eventually(lambda: set(models) <= set(self.models()))

    def admin(self, path: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.admin_port, timeout=60)
        with contextlib.closing(connection):
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read()

    def metric(self, name: str, **labels: str) -> float:
        """The sum over the samples of `name` that carry `labels`."""
        total = 0.0
        for line in self.admin("/metrics")[1].decode().splitlines():
            sample, _, value = line.rpartition(" ")
            named = sample == name or sample.startswith(name + "{")
            if named and all(f'{k}="{v}"' in sample for k, v in labels.items()):
                total += float(value)
        return total

    def logged(self, request_id: str) -> dict[str, Any]:
        """The line of one request."""

        def look() -> dict[str, Any] | None:
            for line in self.log.read_text().splitlines():
                if f'"{request_id}"' in line and line.startswith("{"):
                    found = json.loads(line)
                    if found.get("id") == request_id:
                        return found  # type: ignore[no-any-return]
            return None

        found = eventually(look)
        assert found is not None
        return found

    def cli(self, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "forebay", *arguments, "--config", str(self.file)],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def worker_pid(self) -> int:
        out = subprocess.run(
            ["ps", "-o", "pid=,args=", "--ppid", str(self.process.pid)], capture_output=True, text=True, check=True
        ).stdout
        return next(int(line.split()[0]) for line in out.splitlines() if "forebay.gateway.worker" in line)

    def memory(self) -> int:
        """Bytes of the worker's resident memory at its highest."""
        status = Path(f"/proc/{self.worker_pid()}/status").read_text()
        found = re.search(r"VmHWM:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) * 1024

    def stop(self) -> None:
        """In order; what the log says must hold no failure of the gateway's own."""
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(60)
        text = self.log.read_text()
        shutil.rmtree(self.folder)
        assert code == 0, text[-3000:]
        bad = [x for x in text.splitlines() if "Traceback" in x or "failed inside" in x or '"level":"error"' in x]
        assert not bad, "\n".join(bad)[:6000]
