"""A client that sends exactly the bytes it is told, and says exactly what came back."""

from __future__ import annotations

import contextlib
import itertools
import json
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

KEY = "e2e-key-0123456789abcdef"
CHAT = "/v1/chat/completions"
WAIT = 60.0
_ids = itertools.count(1)


def new_id(stem: str = "t") -> str:
    return f"{stem}-{next(_ids)}"


@dataclass
class Answer:
    status: int
    headers: list[tuple[str, str]]
    body: bytes = b""
    whole: bool = False
    """Its end was seen: all of Content-Length, the final chunk, or the close of an answer that ends so."""
    chunks: list[bytes] = field(default_factory=list)

    def get(self, name: str) -> str | None:
        found = [v for n, v in self.headers if n == name]
        assert len(found) < 2, f"{name} came {len(found)} times: {found}"
        return found[0] if found else None

    @property
    def json(self) -> Any:
        assert self.get("content-type") == "application/json", self.headers
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        found = self.json
        assert set(found) == {"error"}
        assert set(found["error"]) == {"message", "type", "param", "code"}, found
        return found["error"]  # type: ignore[no-any-return]

    @property
    def message(self) -> str:
        return self.error["message"]  # type: ignore[no-any-return]


class Client:
    """One connection."""

    def __init__(
        self,
        where: tuple[str, int] | Path,
        tls: ssl.SSLContext | None = None,
        wait: float = WAIT,
    ) -> None:
        if isinstance(where, Path):
            sock = socket.socket(socket.AF_UNIX)
            sock.connect(str(where))
        else:
            sock = socket.create_connection(where, wait)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.settimeout(wait)
        self.sock = tls.wrap_socket(sock, server_hostname="localhost") if tls is not None else sock
        self.buffer = b""
        self.eof = False

    def send(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.sock.sendall(piece)

    def try_send(self, data: bytes) -> bool:
        """False where the server closed before it had taken all."""
        try:
            self.sock.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    def _more(self) -> bool:
        if self.eof:
            return False
        got = self.sock.recv(1 << 18)
        if not got:
            self.eof = True
            return False
        self.buffer += got
        return True

    def _line(self) -> bytes | None:
        while b"\r\n" not in self.buffer:
            if not self._more():
                return None
        line, _, self.buffer = self.buffer.partition(b"\r\n")
        return line

    def head(self) -> Answer:
        line = self._line()
        assert line is not None, f"closed without an answer: {self.buffer!r}"
        version, status, _reason = line.split(b" ", 2)
        assert version == b"HTTP/1.1", line
        headers = []
        while True:
            line = self._line()
            assert line is not None, "closed within a head"
            if not line:
                break
            name, colon, value = line.partition(b":")
            assert colon and name == name.strip(), line
            headers.append((name.decode("latin-1").lower(), value.strip().decode("latin-1")))
        return Answer(int(status), headers)

    def read(self, *, head_only: bool = False) -> Answer:
        """The next final answer."""
        answer = self.head()
        while answer.status < 200:
            answer = self.head()
        if head_only or answer.status in (204, 304):
            answer.whole = True
            return answer
        self.body(answer)
        return answer

    def body(self, answer: Answer) -> None:
        length = answer.get("content-length")
        coding = answer.get("transfer-encoding")
        if coding is not None:
            assert coding == "chunked" and length is None, answer
            for chunk in self.chunks():
                answer.chunks.append(chunk)
            answer.body = b"".join(answer.chunks)
            answer.whole = self.last_chunk
        elif length is not None:
            while len(self.buffer) < int(length) and self._more():
                pass
            answer.body, self.buffer = self.buffer[: int(length)], self.buffer[int(length) :]
            answer.whole = len(answer.body) == int(length)
        else:
            while self._more():
                pass
            answer.body, self.buffer = self.buffer, b""
            answer.whole = True

    def chunks(self) -> Iterator[bytes]:
        """Pieces of a chunked body; `last_chunk` says whether it ended as it should."""
        self.last_chunk = False
        with contextlib.suppress(ConnectionResetError):
            while (line := self._line()) is not None:
                size = int(line, 16)
                while len(self.buffer) < size + 2:
                    if not self._more():
                        return
                data, end = self.buffer[:size], self.buffer[size : size + 2]
                self.buffer = self.buffer[size + 2 :]
                assert end == b"\r\n"
                if not size:
                    self.last_chunk = True
                    return
                yield data

    def rest(self) -> bytes:
        """What comes until the server closes."""
        with contextlib.suppress(ConnectionResetError):
            while self._more():
                pass
        rest, self.buffer = self.buffer, b""
        return rest

    def closed(self) -> None:
        """The server closes without a byte more."""
        assert self.rest() == b""

    def close(self) -> None:
        self.sock.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def chat(model: str = "raw", **fields: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": "Hello"}], **fields}


def request(
    body: Any = None,
    path: str = CHAT,
    method: str = "POST",
    *,
    key: str | None = KEY,
    version: str = "1.1",
    headers: dict[str, str] | None = None,
    **named: str,
) -> bytes:
    """A well-formed request; `body` is sent as JSON, or as it is when it is bytes. `x_test` is the header x-test."""
    lines = [f"{method} {path} HTTP/{version}", "Host: gateway.example"]
    if key is not None:
        lines.append(f"Authorization: Bearer {key}")
    if body is not None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        lines += ["Content-Type: application/json", f"Content-Length: {len(data)}"]
    else:
        data = b""
    lines += [f"{n.replace('_', '-')}: {v}" for n, v in {**(headers or {}), **named}.items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + data


def events(body: bytes) -> list[bytes]:
    """The data of each event of a stream with LF line ends."""
    assert body.endswith(b"\n\n"), body[-100:]
    return [e.removeprefix(b"data: ") for e in body[:-2].split(b"\n\n")]
