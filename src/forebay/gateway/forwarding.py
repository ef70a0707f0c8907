"""Which headers pass the gateway, both ways."""

from __future__ import annotations

import secrets
from typing import Final

from forebay.cache import key
from forebay.gateway.cached import TOLD as CACHE_TOLD
from forebay.gateway.explaining import ASKED, TOLD
from forebay.gateway.labels import TAGS
from forebay.wire.head import HOP_BY_HOP, Header, connection_names
from forebay.wire.message import Request

_NOT_UPSTREAM: Final = HOP_BY_HOP | {
    # The caller's credentials, and what describes the caller's own connection.
    b"authorization",
    b"api-key",
    b"x-api-key",
    b"cookie",
    b"origin",
    b"referer",
    b"forwarded",
    b"x-forwarded-for",
    b"x-forwarded-host",
    b"x-forwarded-port",
    b"x-forwarded-proto",
    b"x-real-ip",
    # Said anew for the engine.
    b"host",
    b"content-length",
    b"content-type",
    b"accept-encoding",
    b"expect",
    b"x-request-id",
    # The class, and what the gateway says of itself, are its own business.
    b"x-priority",
    b"x-user-tier",
    TAGS,
    ASKED,
    key.WISH,
    key.KNOWLEDGE,
    key.TAGS,
    key.SOURCES,
}
LIMITS: Final = tuple(
    b"x-ratelimit-%b-%b" % (a, b) for a in (b"limit", b"remaining", b"reset") for b in (b"requests", b"tokens")
)
"""What is left to a caller. An engine's own are of the account that the operator has with its maker."""
SAID: Final = (b"x-forebay-max-tokens", b"x-forebay-limit", b"x-forebay-over-limit", b"x-forebay-degraded")
_NOT_DOWNSTREAM: Final = (
    HOP_BY_HOP
    | TOLD
    | {*LIMITS, *SAID, *CACHE_TOLD, b"x-forebay-reset"}
    | {
        b"content-length",
        b"content-encoding",
        b"date",
        b"server",
        b"x-request-id",
        b"vary",
        b"set-cookie",
        b"alt-svc",
        b"clear-site-data",
        b"refresh",
        b"www-authenticate",
        b"location",
        b"proxy-status",
        b"x-forebay-reason",
        b"access-control-allow-private-network",
        b"strict-transport-security",
        b"access-control-allow-origin",
        b"access-control-allow-credentials",
        b"access-control-allow-headers",
        b"access-control-allow-methods",
        b"access-control-expose-headers",
        b"access-control-max-age",
    }
)
_PLAIN_CONNECTION: Final = frozenset({b"keep-alive", b"close", b"Keep-Alive", b"Close"})
_ID_CHARS: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._:-")
MAX_ID: Final = 128
_ID_BYTES: Final = 12


def upstream_block(request: Request) -> bytes:
    """The caller's header lines as an engine gets them; its id and the length are said anew by each request."""
    return b"".join([b"%b: %b\r\n" % h for h in passed(request)]) + b"content-type: application/json\r\n"


def passed(request: Request) -> list[Header]:
    """The caller's own lines that an engine gets."""
    drop = _NOT_UPSTREAM
    for name, value in request.headers:
        if name == b"connection" and value not in _PLAIN_CONNECTION:
            drop = drop | connection_names(value)
    return [h for h in request.headers if h[0] not in drop]


def downstream_block(headers: list[Header]) -> bytes:
    """An engine's header lines as the client gets them, framing left out."""
    drop = _NOT_DOWNSTREAM
    for name, value in headers:
        if name == b"connection" and value not in _PLAIN_CONNECTION:
            drop = drop | connection_names(value)
    return b"".join([b"%b: %b\r\n" % h for h in headers if h[0] not in drop])


class RequestIds:
    """Ids for requests that bring none: 96 random bits, since who knows an id may cancel under the same key."""

    def __init__(self) -> None:
        self._random = b""
        self._at = 0

    def new(self) -> bytes:
        at = self._at
        if at >= len(self._random):
            self._random, at = secrets.token_bytes(_ID_BYTES * 256).hex().encode(), 0
        self._at = end = at + 2 * _ID_BYTES
        return b"req-" + self._random[at:end]


def given_id(request: Request) -> bytes | None:
    """The caller's own X-Request-Id where it is 1 to 128 letters, digits or `._:-`."""
    given = request.fields.get(b"x-request-id")
    return given if given is not None and 0 < len(given) <= MAX_ID and _ID_CHARS.issuperset(given) else None
