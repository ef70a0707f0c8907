"""A JSON value that fits a JSON schema's simple parts, the same for the same seed."""

from __future__ import annotations

from typing import Any, Final

from forebay.sim import words

MAX_DEPTH: Final = 8
MAX_ITEMS: Final = 16


def value_for(schema: Any, seed: int, root: Any = None, depth: int = 0) -> Any:
    """Understands type, properties, required, items, minItems, enum, const, default, minimum, maximum, minLength,
    maxLength, anyOf, oneOf, allOf and local $ref. What it does not understand it leaves out of account. Deeper than
    `MAX_DEPTH`, objects and arrays are empty."""
    root = schema if root is None else root
    if not isinstance(schema, dict):
        return words.sentences(seed, 2)[1].strip()
    if "$ref" in schema:
        target = _resolve(schema["$ref"], root)
        return value_for(target, seed, root, depth + 1) if depth < MAX_DEPTH else None
    if "const" in schema:
        return schema["const"]
    for name in ("enum", "examples"):
        if isinstance(schema.get(name), list) and schema[name]:
            return schema[name][seed % len(schema[name])]
    for name in ("anyOf", "oneOf", "allOf"):
        if isinstance(schema.get(name), list) and schema[name]:
            return value_for(schema[name][0], seed, root, depth + 1) if depth < MAX_DEPTH else None
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = kind[0] if kind else None
    if kind == "object" or (kind is None and "properties" in schema):
        return _object(schema, seed, root, depth)
    if kind == "array":
        low = schema.get("minItems", 2)
        length = max(0, min(low, MAX_ITEMS)) if isinstance(low, int) and depth < MAX_DEPTH else 0
        return [value_for(schema.get("items"), words.seed_of(seed, i), root, depth + 1) for i in range(length)]
    if kind in ("integer", "number"):
        return _number(schema, kind, seed)
    if kind == "boolean":
        return seed % 2 == 0
    if kind == "null":
        return None
    return _string(schema, seed)


def _object(schema: dict[str, Any], seed: int, root: Any, depth: int) -> dict[str, Any]:
    properties = schema.get("properties")
    if not isinstance(properties, dict) or depth >= MAX_DEPTH:
        return {}
    return {name: value_for(part, words.seed_of(seed, name), root, depth + 1) for name, part in properties.items()}


def _number(schema: dict[str, Any], kind: str, seed: int) -> float | int:
    low, high = schema.get("minimum"), schema.get("maximum")
    low = low if isinstance(low, (int, float)) else (high - 10 if isinstance(high, (int, float)) else 0)
    high = high if isinstance(high, (int, float)) and high >= low else low + 40
    if kind == "integer":
        return words.draw_between(seed, int(-(-low // 1)), max(int(-(-low // 1)), int(high // 1)))
    return round(min(high, max(low, low + words.unit(seed) * (high - low))), 3)


def _string(schema: dict[str, Any], seed: int) -> str:
    low, high = schema.get("minLength"), schema.get("maxLength")
    text = "".join(words.sentences(seed, 3)[1:]).strip()
    if isinstance(low, int) and len(text) < low:
        text = (text + " ") * (min(low, 10_000) // (len(text) + 1) + 1)
        text = text[: min(low, 10_000)].rstrip().ljust(min(low, 10_000), ".")
    return text[: max(0, high)] if isinstance(high, int) else text


def _resolve(ref: Any, root: Any) -> Any:
    if not isinstance(ref, str) or not ref.startswith("#/"):
        return None
    for part in ref[2:].split("/"):
        if not isinstance(root, dict):
            return None
        root = root.get(part.replace("~1", "/").replace("~0", "~"))
    return root
