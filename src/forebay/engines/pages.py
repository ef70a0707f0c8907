"""JSON pages of engines, read with suspicion: any of them may be cut, of another shape, or of another engine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

MAX_NAMES = 1_000
"""Names believed of one list."""
MAX_NAME = 256


def decoded(page: bytes | str) -> object:
    """The JSON value; None where it is none."""
    try:
        return msgspec.json.decode(page)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


def fields(value: object) -> Mapping[str, object]:
    """The object; an empty one where it is something else."""
    return value if isinstance(value, dict) else {}


def items(value: object) -> tuple[object, ...]:
    """The list; an empty one where it is something else."""
    return tuple(value) if isinstance(value, list) else ()


def whole(value: object) -> int | None:
    """A positive whole number, also as text (as labels have it)."""
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value[:20])
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 53 else None


def tokens(value: object) -> int | None:
    """A count of tokens, 0 included."""
    return 0 if value == 0 and isinstance(value, int | float) else whole(value)


def number(value: object) -> float | None:
    if isinstance(value, int) and not isinstance(value, bool) and -(1 << 53) < value < 1 << 53:
        value = float(value)
    return value if isinstance(value, float) else None


def text(value: object) -> str | None:
    """A short printable string."""
    return value if isinstance(value, str) and 0 < len(value) <= MAX_NAME and value.isprintable() else None


def names(values: Iterable[object]) -> tuple[str, ...]:
    """The printable ones, each once, in their order."""
    found: dict[str, None] = {}
    for value in values:
        name = text(value)
        if name is not None and len(found) < MAX_NAMES:
            found[name] = None
    return tuple(found)


def model_cards(page: bytes) -> tuple[Mapping[str, object], ...]:
    """The entries of a model list in OpenAI's shape."""
    return tuple(fields(card) for card in items(fields(decoded(page)).get("data"))[:MAX_NAMES])
