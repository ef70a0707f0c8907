"""What llhttp lets pass and a gateway must not: heads that another parser might read in another way."""

from __future__ import annotations

import re
from typing import Final

from forebay import errors
from forebay.errors import Refusal
from forebay.wire.bounds import LimitValues
from forebay.wire.message import Request

HOST: Final = re.compile(rb"[A-Za-z0-9._~!$&'()*+,;=%:\[\]-]*")
_ONCE: Final = (
    b"host",
    b"authorization",
    b"api-key",
    b"x-api-key",
    b"content-type",
    b"content-encoding",
    b"expect",
    b"x-priority",
    b"x-user-tier",
)
"""Fields that are acted on and are no lists: sent twice, two readers could see two values."""


def unsound(request: Request, version: str, wire_bytes: int, limits: LimitValues) -> Refusal | None:
    """What is wrong with a head that llhttp let pass; `wire_bytes` is what has come of it and what follows it."""
    fields = request.fields
    if version not in ("1.1", "1.0"):
        return errors.bad_http(f"version {version} is not spoken here, only 1.1 and 1.0", 505)
    if len(request.headers) > limits.header_count:
        return errors.too_many_headers(limits.header_count)
    if wire_bytes > limits.header_bytes:
        size = sum(len(n) + len(v) + 4 for n, v in request.headers) + len(request.path) + len(request.query)
        if size > limits.header_bytes:
            return errors.headers_too_large(limits.header_bytes)
    if not HOST.fullmatch(fields.get(b"host", b"")):
        return errors.bad_http("the Host header is not a host")
    if len(fields) != len(request.headers):
        names = [n for n, _ in request.headers]
        for name in _ONCE:
            if names.count(name) > 1:
                return errors.bad_http(f"more than one {name.decode()} header")
    codings = [value for name, value in request.headers if name == b"transfer-encoding"]
    if codings:
        if request.http10:
            return errors.bad_http("Transfer-Encoding in an HTTP/1.0 request")
        if any(value.strip().lower() != b"chunked" for value in codings):
            return errors.bad_http("the only Transfer-Encoding understood is chunked", 501)
    if b"host" not in fields and not request.http10:
        return errors.bad_http("an HTTP/1.1 request needs a Host header")
    expect = fields.get(b"expect")
    if expect is not None and expect.strip().lower() != b"100-continue":
        return errors.bad_http("the only expectation understood is 100-continue", 417)
    return None


def origin_form(target: bytes) -> bytes:
    """The path of an absolute-form target (RFC 9112 §3.2.2); anything else as it is."""
    for scheme in (b"http://", b"https://"):
        if target[: len(scheme)].lower() == scheme:
            _, slash, path = target[len(scheme) :].partition(b"/")
            return slash + path if slash else b"/"
    return target
