"""What a request's costs are allocated by: the names of `ledger.labels`, from its `metadata` or from X-Forebay-Tags."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from forebay.wire.message import Request

TAGS: Final = b"x-forebay-tags"
LONGEST: Final = 128
"""Characters of a value; the rest is cut."""
_LARGEST: Final = 16_384
"""Bytes of a `metadata` that is looked into. OpenAI allows 16 pairs of 64 and 512 characters."""

Labels = tuple[tuple[str, str], ...]
"""(name, value), sorted by name."""

_metadata: Final = msgspec.json.Decoder(dict[str, Any])


def tags_of(request: Request, names: tuple[str, ...]) -> Labels:
    """Those that the header says: `team=search, feature=rag`. What has no name of ours is passed over."""
    value = request.fields.get(TAGS)
    if value is None or not names:
        return ()
    found: dict[str, str] = {}
    for pair in value.decode("utf-8", "replace").split(","):
        name, _, text = pair.partition("=")
        if (name := name.strip()) in names:
            found[name] = cleaned(text.strip())
    return _sorted(found)


def labels_of(names: tuple[str, ...], metadata: msgspec.Raw, tags: Labels) -> Labels:
    """The header's word counts before the body's, so that a proxy can set it."""
    size = len(memoryview(metadata))
    if not names or not size or size > _LARGEST:
        return tags
    try:
        given = _metadata.decode(metadata)
    except (msgspec.MsgspecError, RecursionError):
        return tags  # the engine's to refuse
    found = {name: cleaned(_text(given[name])) for name in names if name in given}
    found.update(tags)
    return _sorted(found)


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    return msgspec.json.encode(value).decode() if isinstance(value, bool | int | float) else ""


def cleaned(text: str) -> str:
    """Without what is no character to print, a lone surrogate among them, and cut."""
    text = text[:LONGEST]
    return text if text.isprintable() else "".join(ch for ch in text if ch.isprintable())


def _sorted(found: dict[str, str]) -> Labels:
    return tuple(sorted((name, value) for name, value in found.items() if value))
