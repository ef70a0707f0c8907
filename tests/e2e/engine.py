"""An engine of which a test says every byte."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

TEST_HEADER = "x-test"
"""Names the script of a request; the gateway passes it on like any header it does not know."""


@dataclass
class Received:
    """One request as it came over the wire."""

    line: bytes
    headers: list[tuple[str, str]]
    body: bytes

    def all(self, name: str) -> list[str]:
        return [v for n, v in self.headers if n == name]

    def get(self, name: str) -> str | None:
        found = self.all(name)
        assert len(found) < 2, f"{name} came {len(found)} times: {found}"
        return found[0] if found else None

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Talk:
    """The engine's side of one request."""

    def __init__(self, sock: socket.socket, request: Received) -> None:
        self.sock = sock
        self.request = request
        self.keep = True

    def send(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.sock.sendall(piece)

    def close(self) -> None:
        self.keep = False
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()

    def reset(self) -> None:
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.keep = False
        self.sock.close()

    def wait_gone(self) -> None:
        """Until the gateway closes."""
        self.keep = False
        with contextlib.suppress(OSError):
            while self.sock.recv(65536):
                pass


Script = Callable[[Talk], None]


class RawEngine:
    """Healthy, and otherwise whatever the scripts say. `seen` holds requests by their x-test header."""

    def __init__(
        self,
        models: Iterable[str] = ("raw",),
        port: int = 0,
        tls: ssl.SSLContext | None = None,
        host: str = "127.0.0.1",
    ) -> None:
        self._tls = tls
        self.models = list(models)
        self.scripts: dict[str, Script] = {}
        self.seen: dict[str, list[Received]] = {}
        self.healthy = True
        self.changed = threading.Condition()
        self._sock = socket.create_server((host, port), backlog=256)
        self.port: int = self._sock.getsockname()[1]
        self._open: set[socket.socket] = set()
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def total(self) -> int:
        with self.changed:
            return sum(map(len, self.seen.values()))

    def requests(self, test: str) -> list[Received]:
        with self.changed:
            return list(self.seen.get(test, ()))

    def one(self, test: str) -> Received:
        found = self.requests(test)
        assert len(found) == 1, found
        return found[0]

    def wait_for(self, test: str, count: int = 1, within: float = 60.0) -> list[Received]:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.seen.get(test, ())) >= count, within), self.seen.get(test)
            return list(self.seen[test])

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._sock.accept()
            except OSError:
                return
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._open.add(sock)
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        buffer = b""
        try:
            if self._tls is not None:
                sock = self._tls.wrap_socket(sock, server_side=True)
            while True:
                while b"\r\n\r\n" not in buffer:
                    got = sock.recv(65536)
                    if not got:
                        return
                    buffer += got
                head, _, buffer = buffer.partition(b"\r\n\r\n")
                line, *rest = head.split(b"\r\n")
                headers = [
                    (n.decode("latin-1").lower(), v.strip().decode("latin-1"))
                    for n, _, v in (h.partition(b":") for h in rest)
                ]
                length = int(dict(headers).get("content-length", "0"))
                parts = [buffer[:length]]
                have = len(parts[0])
                buffer = buffer[length:]
                while have < length:
                    got = sock.recv(1 << 20)
                    if not got:
                        return
                    have += len(got)
                    parts.append(got)
                body = b"".join(parts)
                buffer = body[length:] + buffer if have > length else buffer
                talk = Talk(sock, Received(line, headers, body[:length]))
                self._answer(talk)
                if not talk.keep:
                    return
        except OSError:
            return
        finally:
            self._open.discard(sock)
            sock.close()

    def _answer(self, talk: Talk) -> None:
        method, path, _ = talk.request.line.split(b" ", 2)
        if method == b"GET":
            if not self.healthy:
                talk.send(whole(503, b"{}"))
            elif path.endswith(b"/v1/models"):
                talk.send(whole(200, json.dumps({"data": [{"id": m} for m in self.models]}).encode()))
            else:
                talk.send(whole(200, b""))
            return
        test = talk.request.get(TEST_HEADER) or "-"
        with self.changed:
            self.seen.setdefault(test, []).append(talk.request)
            self.changed.notify_all()
        self.scripts.get(test, reply_ok)(talk)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)  # wakes the accepting thread
        self._sock.close()
        self._thread.join(10)
        for sock in tuple(self._open):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)


def head(status: int = 200, *lines: str, kind: str | None = "application/json") -> bytes:
    out = [f"HTTP/1.1 {status} Whatever"]
    if kind is not None:
        out.append(f"content-type: {kind}")
    return "\r\n".join([*out, *lines, "", ""]).encode("latin-1")


def whole(status: int, body: bytes, *lines: str, kind: str | None = "application/json") -> bytes:
    return head(status, f"content-length: {len(body)}", *lines, kind=kind) + body


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


SSE = "text/event-stream; charset=utf-8"


def stream_head(*lines: str) -> bytes:
    return head(200, "transfer-encoding: chunked", *lines, kind=SSE)


def event(value: Any, end: str = "\n") -> bytes:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return f"data: {text}{end}{end}".encode()


def delta(fields: dict[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "raw",
        "choices": [{"index": 0, "delta": fields, "logprobs": None, "finish_reason": finish}],
        **more,
    }


USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
USAGE_CHUNK = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "raw", "choices": [], "usage": USAGE}
ROLE = event(delta({"role": "assistant", "content": ""}))
DONE = event("[DONE]")
ANSWER = json.dumps(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "model": "raw",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}],
        "usage": USAGE,
    }
).encode()


def reply_ok(talk: Talk) -> None:
    if talk.request.json.get("stream"):
        talk.send(stream_head(), *(chunk(e) for e in (ROLE, event(delta({"content": "Hi"}, "stop")), DONE)), chunk(b""))
    else:
        talk.send(whole(200, ANSWER))


def says(*pieces: bytes, close: bool = False, hang: bool = False) -> Script:
    def script(talk: Talk) -> None:
        talk.send(*pieces)
        if hang:
            talk.wait_gone()
        elif close:
            talk.close()

    return script


def streams(*pieces: bytes, end: bool = True) -> Script:
    """A chunked stream of `pieces`, a chunk each; without `end` it is cut."""

    def script(talk: Talk) -> None:
        talk.send(stream_head(), *map(chunk, pieces))
        if end:
            talk.send(b"0\r\n\r\n")
        else:
            talk.close()

    return script


def paced(*pieces: bytes) -> Script:
    """A whole stream, each chunk far enough from the next to be a read of its own at the other end."""

    def script(talk: Talk) -> None:
        talk.send(stream_head())
        for piece in pieces:
            talk.send(chunk(piece))
            time.sleep(0.002)
        talk.send(b"0\r\n\r\n")

    return script
