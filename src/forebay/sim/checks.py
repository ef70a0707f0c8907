"""The engine's own refusals, and checks of a body's fields that speak as vLLM 0.32 does (pydantic's lax mode)."""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec

_MISSING: Final = object()


class Rejected(Exception):
    """An answer that is not the one asked for: its status, and what an engine's envelope says."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        kind: str = "BadRequestError",
        param: str | None = None,
        late: bool = False,
    ):
        """`late`: found when a stream has its 200 already, so that it is an event in it."""
        super().__init__(message)
        self.late = late
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param

    def body(self) -> bytes:
        """vLLM's envelope."""
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.status}
        return compact({"error": error})


def compact(value: Any) -> bytes:
    """JSON without spaces, UTF-8 as it is."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace")


def parameter(name: str, message: str, value: object = _MISSING) -> Rejected:
    tail = f"(parameter={name})" if value is _MISSING else f"(parameter={name}, value={value})"
    return Rejected(f"{message} {tail}", param=name)


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return f"<dict of {len(value)} items>"
    if isinstance(value, list):
        return f"<list of {len(value)} items>"
    text = str(value)
    return text if len(text) <= 200 else text[:200] + "..."


def _entry(kind: str, loc: str, msg: str, value: Any, **more: Any) -> dict[str, Any]:
    return {"type": kind, "loc": loc, "msg": msg, "input": _shown(value), **more}


def _invalid(errors: list[dict[str, Any]]) -> Rejected:
    noun = "error" if len(errors) == 1 else "errors"
    lines = "".join(f"\n  {e}" for e in errors)
    return Rejected(f"{len(errors)} validation {noun}:{lines}", kind="Bad Request", param=errors[0]["loc"])


class Fields:
    """One JSON object under checks. Errors are collected; `raise_errors` speaks them all at once."""

    __slots__ = ("_errors", "data")

    def __init__(self, data: dict[str, Any]) -> None:
        self.data = data
        self._errors: list[dict[str, Any]] = []

    def __contains__(self, name: str) -> bool:
        return self.data.get(name) is not None

    def error(self, kind: str, name: str, msg: str, value: Any) -> None:
        self._errors.append(_entry(kind, f"body.{name}", msg, value))

    def missing(self, name: str) -> None:
        self.error("missing", name, "Field required", self.data)

    def raise_errors(self) -> None:
        if self._errors:
            raise _invalid(self._errors)

    def integer(self, name: str, default: int | None = None) -> int | None:
        value = self.data.get(name)
        if value is None:
            return default
        if isinstance(value, int):
            return int(value)
        if isinstance(value, float):
            if value.is_integer():
                return int(value)
            msg = "Input should be a valid integer, got a number with a fractional part"
            self.error("int_from_float", name, msg, value)
        elif isinstance(value, str):
            try:
                return int(value)
            except ValueError:
                msg = "Input should be a valid integer, unable to parse string as an integer"
                self.error("int_parsing", name, msg, value)
        else:
            self.error("int_type", name, "Input should be a valid integer", value)
        return default

    def number(self, name: str) -> float | None:
        value = self.data.get(name)
        if value is None:
            return None
        if isinstance(value, (int, float)):
            return float(value)
        if isinstance(value, str):
            try:
                return float(value)
            except ValueError:
                msg = "Input should be a valid number, unable to parse string as a number"
                self.error("float_parsing", name, msg, value)
        else:
            self.error("float_type", name, "Input should be a valid number", value)
        return None

    def boolean(self, name: str, default: bool = False) -> bool:
        value = self.data.get(name)
        if value is None:
            return default
        if isinstance(value, bool):
            return value
        if value in (0, 1):
            return bool(value)
        if isinstance(value, str):
            low = value.lower()
            if low in ("true", "t", "yes", "y", "on", "1"):
                return True
            if low in ("false", "f", "no", "n", "off", "0"):
                return False
        if isinstance(value, (str, int, float)):
            msg = "Input should be a valid boolean, unable to interpret input"
            self.error("bool_parsing", name, msg, value)
        else:
            self.error("bool_type", name, "Input should be a valid boolean", value)
        return default

    def string(self, name: str) -> str | None:
        value = self.data.get(name)
        if value is None or isinstance(value, str):
            return value
        self.error("string_type", name, "Input should be a valid string", value)
        return None

    def mapping(self, name: str) -> dict[str, Any]:
        value = self.data.get(name)
        if value is None or isinstance(value, dict):
            return value or {}
        self.error(
            "model_attributes_type",
            name,
            "Input should be a valid dictionary or object to extract fields from",
            value,
        )
        return {}

    def listing(self, name: str) -> list[Any] | None:
        value = self.data.get(name)
        if value is None or isinstance(value, list):
            return value
        self.error("list_type", name, "Input should be a valid list", value)
        return None


def read_body(body: bytes, content_type: bytes | None) -> Fields:
    """The body as an object. Raises Rejected for anything else."""
    if content_type is not None and content_type.split(b";", 1)[0].strip().lower() != b"application/json":
        raise Rejected(
            "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed", kind="Bad Request"
        )
    if not body:
        raise _invalid([_entry("missing", "body", "Field required", None)])
    data: Any
    try:
        data = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        data = _slowly(body)  # the standard library's reader names the place as vLLM does, and takes NaN as it does
    if not isinstance(data, dict):
        msg = "Input should be a valid dictionary or object to extract fields from"
        raise _invalid([_entry("model_attributes_type", "body", msg, data)])
    return Fields(data)


def _slowly(body: bytes) -> Any:
    try:
        return json.loads(body)
    except json.JSONDecodeError as e:
        entry = _entry("json_invalid", f"body.{e.pos}", "JSON decode error", {}, ctx={"error": e.msg})
        raise _invalid([entry]) from None
    except (UnicodeDecodeError, RecursionError):
        raise Rejected("There was an error parsing the body", kind="Bad Request") from None
