"""Every refusal the gateway can speak, in OpenAI's error envelope, each with its status and headers.

A `Refusal` is both an exception and a finished answer: `body()` and `headers` are what goes on the wire. The
constructors below are the whole vocabulary. Doctrine: contention is 429 with a `Retry-After` that is this request's
own; quota is 429 with `insufficient_quota` and `x-should-retry: false`; no engine at all is 503; a client's mistake is
4xx and names the field.
"""

from __future__ import annotations

import json
import math
from enum import StrEnum
from types import MappingProxyType
from typing import Final

MAX_RETRY_AFTER = 60
"""Seconds. The OpenAI SDKs ignore a longer Retry-After, so a longer wait is said with `x-should-retry: false`."""


class Outcome(StrEnum):
    """How a request ended: the low-cardinality label of metrics, logs and ledger. The error carries the detail."""

    OK = "ok"
    HIT = "hit"
    BAD_REQUEST = "bad_request"
    UNAUTHORIZED = "unauthorized"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not_found"
    RATE_LIMITED = "rate_limited"
    OVERLOADED = "overloaded"
    QUOTA = "quota"
    NO_ENGINE = "no_engine"
    EXPIRED = "expired"
    CLIENT_GONE = "client_gone"
    CANCELLED = "cancelled"
    ENGINE_REFUSED = "engine_refused"  # the engine answered with a 4xx of its own
    ENGINE_ERROR = "engine_error"
    ENGINE_TIMEOUT = "engine_timeout"
    ENGINE_CUT = "engine_cut"  # the answer stopped after its first byte
    DRAINED = "drained"  # the gateway's own shutdown deadline ended it
    INTERNAL = "internal"


_TYPES: Final = MappingProxyType(
    {
        400: "invalid_request_error",
        401: "authentication_error",
        403: "permission_error",
        404: "invalid_request_error",
        429: "rate_limit_error",
        499: "cancelled",
    }
)

Header = tuple[bytes, bytes]


class Refusal(Exception):
    """An answer that is not the one asked for. Frozen after construction by convention; cheap to raise."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        outcome: Outcome,
        param: str | None = None,
        headers: tuple[Header, ...] = (),
        close: bool = False,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.param = param
        self.outcome = outcome
        self.headers: tuple[Header, ...] = ((b"x-forebay-reason", field_value(code)), *headers)
        self.close = close
        self.key_id = ""
        """The key it is about, where that is known: for the log."""

    def envelope(self) -> dict[str, object]:
        kind = _TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "api_error")
        if self.code == "insufficient_quota":
            kind = "insufficient_quota"
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def body(self) -> bytes:
        """UTF-8 JSON. A lone surrogate, which UTF-8 cannot carry, is written as "?"."""
        return json.dumps(self.envelope(), ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")

    def sse(self) -> bytes:
        """The same envelope as an event inside a stream that has begun; no `[DONE]` follows it."""
        return b"data: " + self.body() + b"\n\n"

    def __repr__(self) -> str:
        return f"<Refusal {self.status} {self.code}: {self.message}>"


def shown(text: object, limit: int = 80) -> str:
    """What somebody typed, made safe for a message: printable, and cut."""
    s = "".join(ch if ch.isprintable() else "�" for ch in str(text)[: limit + 1])
    return s if len(s) <= limit else s[:limit] + "…"


def field_value(text: str) -> bytes:
    """Text as the value of a header (RFC 9110 §5.5): visible ASCII and spaces, "?" for all else, so never CR or LF."""
    if text.isascii() and text.isprintable():
        return text.strip().encode()
    return "".join(ch if " " <= ch <= "~" else "?" for ch in text).strip().encode("ascii")


def retry_headers(seconds: float) -> tuple[Header, ...]:
    """`Retry-After` in whole seconds, rounded up, at least 1; over the bound or NaN, the advice not to retry."""
    if not seconds <= MAX_RETRY_AFTER:
        return ((b"retry-after", b"%d" % MAX_RETRY_AFTER), (b"x-should-retry", b"false"))
    return ((b"retry-after", b"%d" % math.ceil(max(1.0, seconds))),)


NO_RETRY: tuple[Header, ...] = ((b"x-should-retry", b"false"),)


# --- the client's mistakes ------------------------------------------------------------------------------------------


def bad_request(message: str, *, param: str | None = None, code: str = "invalid_request") -> Refusal:
    return Refusal(400, code, message, outcome=Outcome.BAD_REQUEST, param=param)


def bad_json(detail: str) -> Refusal:
    return bad_request(f"The body is not valid JSON: {detail}.", code="invalid_json")


def bad_http(detail: str, status: int = 400) -> Refusal:
    """A message that is not HTTP as the RFCs have it: the connection cannot be trusted any further."""
    return Refusal(status, "bad_http", f"Malformed HTTP: {detail}.", outcome=Outcome.BAD_REQUEST, close=True)


def missing_field(field: str, fix: str) -> Refusal:
    return bad_request(f"Missing required field '{field}': {fix}.", param=field, code="missing_field")


def wrong_type(field: str, wanted: str, got: str) -> Refusal:
    return bad_request(f"'{field}' must be {wanted}, not {got}.", param=field, code="wrong_type")


def body_too_large(limit: int) -> Refusal:
    return Refusal(
        413,
        "body_too_large",
        f"The body is over the limit of {limit:,} bytes (limits.body_bytes).",
        outcome=Outcome.BAD_REQUEST,
        close=True,
    )


def headers_too_large(limit: int) -> Refusal:
    return Refusal(
        431,
        "headers_too_large",
        f"The request head is over the limit of {limit:,} bytes (limits.header_bytes).",
        outcome=Outcome.BAD_REQUEST,
        close=True,
    )


def too_many_headers(limit: int) -> Refusal:
    return Refusal(
        431,
        "headers_too_large",
        f"The request has more than {limit:,} header lines (limits.header_count).",
        outcome=Outcome.BAD_REQUEST,
        close=True,
    )


def too_slow(what: str, seconds: float) -> Refusal:
    return Refusal(
        408,
        "request_timeout",
        f"The {what} did not arrive within {seconds:g} s.",
        outcome=Outcome.BAD_REQUEST,
        close=True,
    )


def unsupported_media_type(got: str) -> Refusal:
    return Refusal(
        415,
        "unsupported_media_type",
        f"Content-Type must be application/json, not '{shown(got)}'.",
        outcome=Outcome.BAD_REQUEST,
    )


def no_route(method: str, path: str) -> Refusal:
    return Refusal(404, "unknown_route", f"There is no {shown(method)} {shown(path)} here.", outcome=Outcome.NOT_FOUND)


def wrong_method(method: str, path: str, allowed: str) -> Refusal:
    return Refusal(
        405,
        "method_not_allowed",
        f"{shown(method)} is not allowed on {shown(path)}; use {allowed}.",
        outcome=Outcome.NOT_FOUND,
        headers=((b"allow", field_value(allowed)),),
    )


def unknown_model(model: str, known: list[str]) -> Refusal:
    some = ", ".join(known[:20]) + (f" and {len(known) - 20} more" if len(known) > 20 else "")
    return Refusal(
        404,
        "model_not_found",
        f"The model '{shown(model)}' does not exist here or your key may not use it. Known models: {some or 'none'}.",
        outcome=Outcome.NOT_FOUND,
        param="model",
    )


def unknown_request(request_id: str) -> Refusal:
    return Refusal(
        404,
        "request_not_found",
        f"No running or waiting request '{shown(request_id)}' of this key.",
        outcome=Outcome.NOT_FOUND,
        param="id",
    )


# --- who is calling --------------------------------------------------------------------------------------------------


def _unauthorized(code: str, message: str) -> Refusal:
    return Refusal(
        401,
        code,
        message,
        outcome=Outcome.UNAUTHORIZED,
        headers=((b"www-authenticate", b"Bearer"), *NO_RETRY),
    )


def no_key() -> Refusal:
    return _unauthorized("missing_api_key", "No API key given. Send it as 'Authorization: Bearer <key>'.")


def bad_scheme() -> Refusal:
    return _unauthorized("invalid_api_key", "The Authorization header must be 'Bearer <key>'.")


def wrong_key() -> Refusal:
    return _unauthorized("invalid_api_key", "The API key is not known here.")


def revoked_key() -> Refusal:
    return _unauthorized("revoked_api_key", "The API key was revoked. Ask for a new one.")


def expired_key(when: str) -> Refusal:
    return _unauthorized("expired_api_key", f"The API key expired on {when}. Ask for a new one.")


def rotated_key(when: str) -> Refusal:
    return _unauthorized(
        "rotated_api_key", f"The API key got a new text, and this one ended on {when}. Use the new one."
    )


def suspended_key() -> Refusal:
    return _suspended("api_key_suspended", "The API key is suspended. Ask whoever manages the keys here.")


def suspended_account(level: str, name: str) -> Refusal:
    """`level` is the one that is suspended: organisation, department, project or user."""
    return _suspended(
        "account_suspended",
        f"The {level} '{name}', which the API key belongs to, is suspended. Ask whoever manages the keys here.",
    )


def _suspended(code: str, message: str) -> Refusal:
    return Refusal(403, code, message, outcome=Outcome.FORBIDDEN, headers=NO_RETRY)


def too_many_failed_keys(retry_after: float) -> Refusal:
    return Refusal(
        429,
        "too_many_failed_keys",
        "Too many requests with unknown API keys from this address.",
        outcome=Outcome.RATE_LIMITED,
        headers=retry_headers(retry_after),
    )


def keys_unknown(retry_after: float = 1.0) -> Refusal:
    """No key list has arrived yet, so a key can be neither accepted nor refused."""
    return Refusal(
        503,
        "keys_not_loaded",
        "The gateway cannot check keys yet.",
        outcome=Outcome.NO_ENGINE,
        headers=retry_headers(retry_after),
    )


# --- contention, quota, engines -------------------------------------------------------------------------------------


def overloaded(code: str, message: str, retry_after: float) -> Refusal:
    """Contention of any kind; `code` is the reason."""
    return Refusal(429, code, message, outcome=Outcome.OVERLOADED, headers=retry_headers(retry_after))


def too_slow_a_reader() -> Refusal:
    """Within a stream that others share: they are not kept waiting."""
    return overloaded("slow_reader", "The answer was read too slowly to be kept for this client.", 1.0)


def unknown_entry(entry: str) -> Refusal:
    return Refusal(
        404,
        "entry_not_found",
        f"No answer '{shown(entry)}' that this key was given is known here; where another gateway gave it, say its "
        "'model'.",
        outcome=Outcome.NOT_FOUND,
        param="entry",
    )


def feedback_unavailable() -> Refusal:
    return Refusal(
        503,
        "feedback_unavailable",
        "The cache does not answer now; the answer may be given again.",
        outcome=Outcome.INTERNAL,
        headers=retry_headers(1),
    )


def not_cached(why: str) -> Refusal:
    return Refusal(
        504,
        "not_cached",
        f"No answer to this request is known here ({why}), and none but a known one was asked for.",
        outcome=Outcome.NOT_FOUND,
        headers=NO_RETRY,
    )


def waited_too_long(seconds: float, retry_after: float) -> Refusal:
    return Refusal(
        429,
        "deadline",
        f"No engine became free within {seconds:g} s.",
        outcome=Outcome.EXPIRED,
        headers=retry_headers(retry_after),
    )


def rate_limited(limit: str, retry_after: float, detail: str = "", headers: tuple[Header, ...] = ()) -> Refusal:
    """`detail`: who has used how much of it, without the full stop."""
    return Refusal(
        429,
        "rate_limit_exceeded",
        f"Rate limit '{shown(limit)}' reached{_because(detail)}.",
        outcome=Outcome.RATE_LIMITED,
        headers=((b"x-forebay-limit", field_value(limit)), *headers, *retry_headers(retry_after)),
    )


def over_rate(limit: str, detail: str, headers: tuple[Header, ...] = ()) -> Refusal:
    """One request that is larger than all that a rate allows: it would never pass."""
    return Refusal(
        429,
        "rate_limit_exceeded",
        f"The request is too large for the rate limit '{shown(limit)}'{_because(detail)}. Send a shorter prompt.",
        outcome=Outcome.RATE_LIMITED,
        headers=((b"x-forebay-limit", field_value(limit)), *headers, *NO_RETRY),
    )


def quota_exhausted(limit: str, resets: str, detail: str = "", headers: tuple[Header, ...] = ()) -> Refusal:
    """`resets`: when there will be room, as people read it."""
    return Refusal(
        429,
        "insufficient_quota",
        f"The quota '{shown(limit)}' is used up{_because(detail)}; it resets at {shown(resets)}.",
        outcome=Outcome.QUOTA,
        headers=(
            (b"x-forebay-limit", field_value(limit)),
            (b"x-forebay-reset", field_value(resets)),
            *headers,
            *NO_RETRY,
        ),
    )


def unpriced(model: str, limit: str) -> Refusal:
    """A model without a price under a quota of money: what it may cost cannot be known, so waiting does not help."""
    return Refusal(
        403,
        "model_unpriced",
        f"The model '{shown(model)}' has no price here, and the quota '{shown(limit)}' is in money. "
        "Ask for another model, or ask the operator to price it.",
        outcome=Outcome.QUOTA,
        param="model",
        headers=((b"x-forebay-limit", field_value(limit)), *NO_RETRY),
    )


def _because(detail: str) -> str:
    return f" ({detail})" if detail else ""


def no_engine(model: str, why: str, retry_after: float = 5.0) -> Refusal:
    return Refusal(
        503,
        "no_engine",
        f"No engine can take '{shown(model)}' now: {why}.",
        outcome=Outcome.NO_ENGINE,
        headers=retry_headers(retry_after),
    )


def draining(retry_after: float = 1.0) -> Refusal:
    return Refusal(
        503,
        "draining",
        "This gateway is shutting down and takes no new work.",
        outcome=Outcome.NO_ENGINE,
        headers=retry_headers(retry_after),
        close=True,
    )


def engine_failed(why: str) -> Refusal:
    return Refusal(502, "engine_error", f"The engine failed: {why}.", outcome=Outcome.ENGINE_ERROR)


def engine_timeout(why: str) -> Refusal:
    return Refusal(504, "engine_timeout", f"The engine is too slow: {why}.", outcome=Outcome.ENGINE_TIMEOUT)


def engine_cut(message: str) -> Refusal:
    """After the first byte: spoken as an event in the stream. `message`: what the refusal would have said before it."""
    return Refusal(502, "engine_cut", message, outcome=Outcome.ENGINE_CUT)


def usage_unavailable(why: str) -> Refusal:
    """GET /v1/usage is answered by the admin process and its database."""
    return Refusal(
        503,
        "usage_unavailable",
        f"Usage cannot be looked up now: {why}.",
        outcome=Outcome.INTERNAL,
        headers=retry_headers(1),
    )


def drained() -> Refusal:
    return Refusal(
        503,
        "drained",
        "The gateway's shutdown deadline ended this answer.",
        outcome=Outcome.DRAINED,
        close=True,
    )


def cancelled() -> Refusal:
    return Refusal(
        499,
        "request_cancelled",
        "The request was cancelled by its caller.",
        outcome=Outcome.CANCELLED,
        headers=NO_RETRY,
    )


def internal(request_id: str) -> Refusal:
    return Refusal(
        500,
        "internal_error",
        f"The gateway failed; its log has the details under request id {shown(request_id)}.",
        outcome=Outcome.INTERNAL,
    )


def books_full() -> Refusal:
    return Refusal(
        503,
        "ledger_full",
        "The ledger's journal is full, and nothing is served unbooked here (ledger.when_full). "
        "Its database has to take what waits.",
        outcome=Outcome.NO_ENGINE,
        headers=retry_headers(5.0),
    )
