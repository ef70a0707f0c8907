"""What an engine's own refusal says, and what a failed call to one means to a client."""

from __future__ import annotations

from typing import Final

from forebay import errors
from forebay.api import reading
from forebay.errors import Refusal
from forebay.wire.head import Header
from forebay.wire.upstream import Failure

TIMEOUTS: Final = frozenset({Failure.CONNECT_TIMEOUT, Failure.FIRST_BYTE_TIMEOUT, Failure.IDLE_TIMEOUT})


def refusal_of(failure: Failure, detail: str) -> Refusal:
    if failure is Failure.FULL:
        return errors.overloaded("engine_connections", "All connections to the engine are in use.", 1.0)
    if failure in TIMEOUTS:
        return errors.engine_timeout(detail)
    return errors.engine_failed(detail or failure.value)


def retry_after(headers: list[Header]) -> float | None:
    """An engine's own Retry-After in seconds; None where it has none that can be read."""
    for name, value in headers:
        if name == b"retry-after" and value.isdigit() and len(value) < 6:
            return float(value)
    return None


def said(body: bytes) -> str:
    """The message of an engine's error body, for the refusal's text."""
    found = reading.chunk(body)
    if found is None:
        return ""
    message = found.error.get("message") if isinstance(found.error, dict) else found.error
    return f": {errors.shown(message, 200)}" if isinstance(message, str) else ""
