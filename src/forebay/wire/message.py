"""One request as it came, and where it came from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from forebay.errors import Refusal


@dataclass(frozen=True, slots=True)
class Peer:
    """The other end of a connection. `address` is "unix" for a Unix socket; `listener` is the index of its listener."""

    address: str
    port: int = 0
    tls: bool = False
    listener: int = 0


class Request:
    """A request whose head is whole; `body` is b"" until the body is whole too.

    `headers` holds lower-cased names in order; `fields` the last value of each name. `context` belongs to the handler:
    what `on_head` found out and `on_request` needs.
    """

    __slots__ = (
        "body",
        "context",
        "fields",
        "headers",
        "http10",
        "keep_alive",
        "method",
        "path",
        "peer",
        "query",
        "refusal",
    )

    def __init__(
        self,
        method: bytes,
        path: bytes,
        query: bytes,
        headers: list[tuple[bytes, bytes]],
        fields: dict[bytes, bytes],
        peer: Peer,
        http10: bool,
    ) -> None:
        self.method = method
        self.path = path
        self.query = query
        self.headers = headers
        self.fields = fields
        self.peer = peer
        self.http10 = http10
        self.keep_alive = True
        self.body = b""
        self.context: Any = None
        self.refusal: Refusal | None = None

    def again(self, body: bytes) -> Request:
        """The same head with another body. Its Content-Length is the old one's; its `context` is carried over."""
        request = Request(self.method, self.path, self.query, self.headers, self.fields, self.peer, self.http10)
        request.body = body
        request.context = self.context
        return request

    def header(self, name: bytes) -> bytes | None:
        return self.fields.get(name)

    def __repr__(self) -> str:
        return f"<Request {self.method.decode()} {self.path.decode()} {len(self.body)} B>"
