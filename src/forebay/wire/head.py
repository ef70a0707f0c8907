"""Message heads: status lines, header blocks, and which headers never travel further.

A *block* is rendered header lines, each ending in CRLF, without the empty line that ends a head.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Final

Header = tuple[bytes, bytes]

STATUS_LINES: Final[Mapping[int, bytes]] = {
    s.value: b"HTTP/1.1 %d %s\r\n" % (s.value, s.phrase.encode("latin-1")) for s in HTTPStatus
}

HOP_BY_HOP: Final = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"http2-settings",
    }
)
"""RFC 9110 §7.6.1, with the older names that clients still send."""


def status_line(status: int) -> bytes:
    return STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status


def block(headers: Iterable[Header]) -> bytes:
    return b"".join([b"%b: %b\r\n" % h for h in headers])


def connection_names(value: bytes) -> frozenset[bytes]:
    """The header names listed in a Connection header: they are hop-by-hop too (RFC 9110 §7.6.1)."""
    return frozenset(part.strip().lower() for part in value.split(b",") if part.strip())


def media_type(content_type: bytes) -> bytes:
    """`application/json` out of `Application/JSON; charset=utf-8`."""
    return content_type.split(b";", 1)[0].strip().lower()
