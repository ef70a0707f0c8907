"""pydantic's errors in the words of `forebay.yaml`: key as written, what was found, what is allowed."""

from __future__ import annotations

from difflib import get_close_matches
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from forebay.config.document import Node, Path, Trouble, describe
from forebay.config.schema import allowed, at
from forebay.errors import shown

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

SECRETS = frozenset({"key", "api_key", "key_password", "database", "env", "secret"})


def explain(error: ErrorDetails, tree: Node) -> Trouble:
    kind = error["type"]
    loc: Path = error["loc"]
    if kind == "extra_forbidden":
        return _unknown_key(loc, tree)
    if kind == "missing":
        parent = tree.nearest(loc)
        return Trouble(parent.line, loc, "missing", allowed=_allowed(loc))
    if loc and loc[-1] == "[key]":
        node = tree.nearest(loc[:-1])
        return Trouble(node.line, loc[:-1], "not a name that can be used", found(node, key=True), allowed(_NAME))
    node = tree.nearest(loc)
    if kind in ("value_error", "clash"):
        return Trouble(node.line, loc, _reason(error), "" if isinstance(node.value, dict) else found(node))
    if kind in ("enum", "literal_error"):
        return Trouble(node.line, loc, "not one of the choices" + _nearest(node, loc), found(node), _allowed(loc))
    return Trouble(node.line, loc, _KINDS.get(kind, error["msg"]), found(node), _allowed(loc))


_NAME: Final = MappingProxyType({"type": "string", "minLength": 1, "maxLength": 128, "pattern": "name"})

_RANGE = "out of range"
_KINDS: Final = MappingProxyType(
    {
        "greater_than": _RANGE,
        "greater_than_equal": _RANGE,
        "less_than": _RANGE,
        "less_than_equal": _RANGE,
        "finite_number": _RANGE,
        "int_type": "not a whole number",
        "int_parsing": "not a whole number",
        "int_from_float": "not a whole number",
        "int_parsing_size": _RANGE,
        "float_type": "not a number",
        "float_parsing": "not a number",
        "bool_type": "neither true nor false",
        "bool_parsing": "neither true nor false",
        "string_type": "not text; put it in quotes if it is meant as text",
        "string_too_short": "too short",
        "string_too_long": "too long",
        "string_pattern_mismatch": "not a name that can be used",
        "path_type": "not a path",
        "tuple_type": "not a list",
        "dict_type": "not a mapping",
        "model_type": "not a mapping",
    }
)


def _reason(error: ErrorDetails) -> str:
    cause: Any = error.get("ctx", {}).get("error")
    return str(cause) if cause is not None else error["msg"]


def _allowed(path: Path) -> str:
    schema = at(path)
    words = allowed(schema)
    return " ".join(str(schema.get("description", words)).split()).rstrip(".") if words == "text" else words


def _unknown_key(loc: Path, tree: Node) -> Trouble:
    node = tree.nearest(loc)
    known = list(at(loc[:-1]).get("properties", ()))
    near = get_close_matches(str(loc[-1]), known, n=3)
    return Trouble(node.line, loc, "unknown key" + _suggest(near), allowed=", ".join(known))


def _nearest(node: Node, path: Path) -> str:
    if not isinstance(node.value, str):
        return ""
    choices = [str(choice) for choice in at(path).get("enum", ())]
    return _suggest(get_close_matches(node.value.lower(), choices, n=1))


def _suggest(near: list[str]) -> str:
    return f"; did you mean {' or '.join(near)}?" if near else ""


def found(node: Node, *, key: bool = False) -> str:
    """What stands at the node, as written: neither a secret nor what a variable held is shown."""
    if key:
        return describe(node.path[-1])
    if isinstance(node.value, str | int | float) and not isinstance(node.value, bool) and _secret(node.path):
        return "a value that is not shown"
    if node.written is not None:
        return describe(node.written)
    if isinstance(node.value, str) and "://" in node.value:
        return f"'{shown(_without_credentials(node.value))}'"
    return describe(node.value)


def _without_credentials(url: str) -> str:
    scheme, _, rest = url.partition("://")
    place, _, query = rest.partition("?")
    user, at_sign, host = place.rpartition("@")
    return f"{scheme}://{'…' if user else ''}{at_sign}{host}" + ("?…" if query else "")


def _secret(path: Path) -> bool:
    if path[:2] == ("alerts", "receivers") and path[-1] == "url":  # whoever knows it can post there
        return True
    return path[:1] != ("quotas",) and (not SECRETS.isdisjoint(path) or path[:2] == ("callers", "keys"))
