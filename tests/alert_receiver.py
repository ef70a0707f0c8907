"""A receiver of webhooks on a real socket, which answers as it is told, keeps what it got, and verifies it."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SECRET = "a-secret-of-the-receivers"


@dataclass(frozen=True)
class Got:
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]


@dataclass
class Say:
    """An answer. `hang`: it comes when the server is closed."""

    status: int = 200
    body: bytes = b"ok"
    headers: tuple[tuple[str, str], ...] = ()
    hang: bool = False


class HookServer:
    """`answers`: for the next requests, one each; then `always`."""

    def __init__(self, port: int = 0) -> None:
        self.got: list[Got] = []
        self.answers: list[Say] = []
        self.always = Say()
        self.changed = threading.Condition()
        self._closing = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                with outer.changed:
                    outer.got.append(Got(self.path, {k.lower(): v for k, v in self.headers.items()}, body))
                    say = outer.answers.pop(0) if outer.answers else outer.always
                    outer.changed.notify_all()
                if say.hang:
                    outer._closing.wait(30)
                    self.close_connection = True
                    return
                self.send_response(say.status)
                for name, value in say.headers:
                    self.send_header(name, value)
                self.send_header("content-length", str(len(say.body)))
                self.end_headers()
                self.wfile.write(say.body)

            def log_message(self, *_: Any) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hooks/T0123456789"

    def wait(self, count: int, within: float = 60.0) -> list[Got]:
        """What came, once that is so many."""
        return self.wait_for(lambda got: len(got) >= count, within)

    def wait_for(self, wanted: Callable[[list[Got]], bool], within: float = 60.0) -> list[Got]:
        with self.changed:
            assert self.changed.wait_for(lambda: wanted(self.got), within), [g.body for g in self.got]
            return list(self.got)

    def close(self) -> None:
        self._closing.set()
        self._server.shutdown()
        self._thread.join(10)
        self._server.server_close()


@contextmanager
def hook_server(port: int = 0) -> Iterator[HookServer]:
    server = HookServer(port)
    try:
        yield server
    finally:
        server.close()


def verified(got: Got, now: float, secret: str = SECRET, tolerance: float = 300.0) -> Any:
    """What a receiver that knows the secret makes of it, as the specification of Standard Webhooks says: the payload,
    where the signature is right and the timestamp is fresh."""
    stamp = int(got.headers["webhook-timestamp"])
    assert abs(now - stamp) <= tolerance, "too old, or of the future"
    key = base64.b64decode(secret.removeprefix("whsec_")) if secret.startswith("whsec_") else secret.encode()
    signed = f"{got.id}.{stamp}.".encode() + got.body
    right = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    versions = [part.split(",", 1) for part in got.headers["webhook-signature"].split()]
    assert any(version == "v1" and hmac.compare_digest(said, right) for version, said in versions), "forged"
    return json.loads(got.body)
