"""What an error event in a stream with status 200 means as a status."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

OVERLOADED: Final = 429
FAILED: Final = 502
_TYPES: Final = MappingProxyType(
    {"overloaded": OVERLOADED, "generation": FAILED, "incomplete_generation": FAILED, "validation": 422}
)
_MESSAGES: Final = (
    ("Model is overloaded", OVERLOADED),
    ("Request failed during generation", FAILED),
    ("Incomplete generation", FAILED),
)


def status_of(found: Mapping[str, Any]) -> int:
    """The status that an error event asks for; 502 where it names none.

    vLLM and SGLang have it in `error.code`, older SGLang in `code` beside `error`. TGI says `http_status_code` 422
    whatever happened, and only its words tell what did; its own route says `error_type` (router/src/infer/mod.rs,
    `InferError::into_openai_event` and `error_type`, at db931fc).
    """
    error = found.get("error")
    if isinstance(error, dict) and "http_status_code" in error:
        message = error.get("message")
        if isinstance(message, str):
            for words, status in _MESSAGES:
                if message.startswith(words):
                    return status
        return _status(error["http_status_code"]) or FAILED
    kind = found.get("error_type")
    if isinstance(error, str) and isinstance(kind, str):
        return _TYPES.get(kind, FAILED)
    codes = (
        (error.get("code"), found.get("code"), error.get("status")) if isinstance(error, dict) else (found.get("code"),)
    )
    return next((status for code in codes if (status := _status(code))), FAILED)


def _status(code: object) -> int:
    """0 for what is none."""
    if isinstance(code, str) and code.isascii() and code.isdigit() and len(code) == 3:
        code = int(code)
    return code if isinstance(code, int) and 400 <= code <= 599 else 0
