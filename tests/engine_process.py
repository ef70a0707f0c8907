"""The emulated engine as tests use it: a process, asked over real sockets."""

from __future__ import annotations

import http.client
import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Chunk = dict[str, Any]


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    def events(self) -> list[bytes]:
        """The data of each event; the stream must end with a blank line."""
        assert self.body.endswith(b"\n\n")
        return [part.removeprefix(b"data: ") for part in self.body[:-2].split(b"\n\n")]

    def chunks(self) -> list[Chunk]:
        events = self.events()
        assert events[-1] == b"[DONE]"
        return [json.loads(e) for e in events[:-1]]


@dataclass
class EngineProcess:
    options: list[str] = field(default_factory=list)
    port: int = 0

    def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "forebay.sim.main", "--port", "0", *self.options], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.search(r":(\d+)\n", line)
        assert found, line
        self.port = int(found[1])

    def stop(self) -> int:
        self.process.terminate()
        code = self.process.wait(60)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code

    def ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None, timeout: float = 60
    ) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        raw = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
        kind = {"content-type": "application/json"} if raw is not None else {}
        try:
            connection.request(method, path, raw, {**kind, **(headers or {})})
            response = connection.getresponse()
            return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        finally:
            connection.close()

    def chat(self, text: str = "hi", *, fault: str | None = None, timeout: float = 60, **more: Any) -> Answer:
        headers = {} if fault is None else {"x-forebay-fault": fault}
        messages = [{"role": "user", "content": text}]
        return self.ask("POST", "/v1/chat/completions", {"messages": messages, **more}, headers, timeout)

    def books(self) -> Any:
        """Its counters, and `records`: one of each request."""
        return self.ask("GET", "/control/requests").json()

    def record(self, request_id: str) -> Any:
        """The newest of this id, or None."""
        return next((r for r in reversed(self.books()["records"]) if r["id"] == request_id), None)

    def metric(self, name: str) -> float:
        text = self.ask("GET", "/metrics").body.decode()
        return sum(
            float(line.rpartition(" ")[2]) for line in text.splitlines() if re.match(re.escape(name) + r"[{ ]", line)
        )

    def open_chat(
        self, *, fault: str | None = None, request_id: str = "", receive_buffer: int = 0, **more: Any
    ) -> socket.socket:
        """A chat request sent on a socket of its own, nothing read."""
        body = json.dumps({"messages": [{"role": "user", "content": "hi"}], **more}).encode()
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        head += f"Content-Length: {len(body)}\r\n"
        head += f"X-Forebay-Fault: {fault}\r\n" if fault else ""
        head += f"X-Request-Id: {request_id}\r\n" if request_id else ""
        sock = socket.socket()
        sock.settimeout(60)
        if receive_buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.connect(("127.0.0.1", self.port))
        sock.sendall(head.encode() + b"\r\n" + body)
        return sock

    def until(self, wanted: Callable[[Any], bool], seconds: float = 60) -> Any:
        """The books once they are as wanted."""
        deadline = time.monotonic() + seconds
        while not wanted(books := self.books()):
            assert time.monotonic() < deadline, books
        return books
