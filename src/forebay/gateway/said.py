"""What a stream has said, kept for the model's tokenizer to count where the engine does not."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import msgspec

MOST: Final = 262_144
"""Bytes that are kept of one stream; a longer one is not counted."""
_WORDS: Final = re.compile(
    rb'"(?:content|text|reasoning_content|reasoning|arguments|refusal)"\s*:\s*"((?:[^"\\]|\\.)*)"'
)
_text: Final = msgspec.json.Decoder(str)


class Said:
    """Mutable state: the words so far, as JSON writes them."""

    __slots__ = ("_parts", "_size")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def add(self, events: bytes) -> None:
        """Whole events."""
        found: list[bytes] = _WORDS.findall(events)
        for words in found:
            self._size += len(words)
            if self._size > MOST:
                self._parts.clear()
                return
            self._parts.append(words)

    def heard(self, write: Callable[[bytes], None]) -> Callable[[bytes], None]:
        """A writer that keeps what it hands on."""

        def keeps(data: bytes) -> None:
            self.add(data)
            write(data)

        return keeps

    def text(self) -> str:
        """ "" where it was too long, or is none."""
        if self._size > MOST:
            return ""
        try:
            return _text.decode(b'"%b"' % b"".join(self._parts))
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return ""

    def __repr__(self) -> str:
        return f"<Said {self._size:,} bytes>"
