"""A request's prompt as engines see it: tools, then messages in their order, each a text."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec
from xxhash import xxh3_64_hexdigest

__all__ = ["Segment", "canonical_tools", "segments"]

MOST_SEGMENTS: Final = 256
_HEAD: Final = frozenset({"system", "developer"})
_LARGE: Final = 256
"""Characters of a part that is no text (a picture's data) from which on a digest of it stands for it."""
_any: Final = msgspec.json.Decoder(Any)
_encode: Final = msgspec.json.Encoder().encode
_sorted: Final = msgspec.json.Encoder(order="sorted").encode


class Segment(NamedTuple):
    role: str
    where: str
    """For people: tools, messages[0] (system), prompt."""
    text: str

    @property
    def head(self) -> bool:
        """Whether it is the operator's word and not the asker's: the same in all requests, if all is well."""
        return self.role == "tools" or self.role in _HEAD


def segments(messages: bytes, tools: bytes) -> tuple[Segment, ...]:
    """`messages`: those of a chat, or a completion's prompt; `tools`: b"" where there are none. JSON of the right form;
    () for what is none, and for token ids. At most `MOST_SEGMENTS`."""
    try:
        found = _any.decode(messages)
        listed = _any.decode(tools) if tools else None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ()
    out: list[Segment] = []
    if listed:
        # Templates write tools out again: blanks do not count, the order of keys does.
        out.append(Segment("tools", "tools", _encode(listed).decode()))
    if isinstance(found, str):
        return (*out, Segment("prompt", "prompt", found))
    if not isinstance(found, list):
        return ()
    for i, message in enumerate(found[:MOST_SEGMENTS]):
        if isinstance(message, str):  # one of several prompts
            return (Segment("prompt", "prompt", message),)
        if not isinstance(message, dict):
            return ()
        role = message.get("role")
        role = role if role in ("system", "developer", "user", "assistant", "tool", "function") else "other"
        out.append(Segment(role, f"messages[{i}] ({role})", _text(message)))
    return tuple(out)


def _text(message: dict[str, Any]) -> str:
    content = message.get("content")
    texts = [content] if isinstance(content, str) else []
    if isinstance(content, list):
        texts = [_part(part) for part in content]
    if message.get("tool_calls"):
        texts.append(_encode(message["tool_calls"]).decode())
    return "\n".join(texts)


def _part(part: object) -> str:
    text = part.get("text") if isinstance(part, dict) else part
    if isinstance(text, str):
        return text
    written = _encode(part)
    return written.decode() if len(written) <= _LARGE else f"<{xxh3_64_hexdigest(written)}>"


def canonical_tools(tools: bytes) -> bytes:
    """Sorted by name, and every object's keys sorted; as it was, where it is no array of objects."""
    try:
        found = _any.decode(tools)
        if not isinstance(found, list) or not all(isinstance(tool, dict) for tool in found):
            return tools
        written = [_sorted(tool) for tool in found]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return tools
    named = sorted(zip(map(_name, found), written, strict=True))
    return b"[" + b",".join([one for _, one in named]) + b"]"


def _name(tool: dict[str, Any]) -> str:
    function = tool.get("function")
    name = function.get("name") if isinstance(function, dict) else tool.get("name")
    return name if isinstance(name, str) else ""
