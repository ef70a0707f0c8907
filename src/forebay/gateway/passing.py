"""The usage object within a long answer that is passed on as it comes."""

from __future__ import annotations

import re
from typing import Final

from forebay.api import openai, reading

LONGEST: Final = 4_096
"""Bytes of a usage object."""
_KEY: Final = re.compile(rb'"usage"\s{0,8}:\s{0,8}\{')
"""A key and no text: quotes within a text are escaped, and no object follows a text that is just that word."""
_CARRIED: Final = 32
"""Bytes that a key may take."""


class UsageHunt:
    """Finds the last one, wherever it stands: vLLM has it before log probabilities and token ids of the prompt.

    Mutable state: the beginning of the last object, and the last bytes that came.
    """

    __slots__ = ("_found", "_last")

    def __init__(self) -> None:
        self._found = b""
        self._last = b""

    def feed(self, data: bytes) -> None:
        seen = self._last + data
        at = -1
        for match in _KEY.finditer(seen):
            at = match.end() - 1
        if at >= 0 and not (match.end() <= len(self._last)):
            self._found = seen[at : at + LONGEST]
        elif self._found and len(self._found) < LONGEST:
            self._found = (self._found + data)[:LONGEST]
        self._last = seen[-_CARRIED:]

    def usage(self) -> openai.Usage | None:
        found = self._found
        end = found.find(b"}")
        while end >= 0:
            if found.count(b"{", 0, end) == found.count(b"}", 0, end + 1):
                answer = reading.answer(b'{"usage":' + found[: end + 1] + b"}")
                return answer.usage if answer is not None else None
            end = found.find(b"}", end + 1)
        return None

    def __repr__(self) -> str:
        return f"<UsageHunt {self._found[:40]!r}>"
