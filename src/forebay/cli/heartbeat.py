"""Whether a child that is asked at each beat still answers. Pure; beats, not seconds, are counted: where the whole host
stood still, the supervisor did, too."""

from __future__ import annotations

from typing import Final

__all__ = ["BEAT", "FIRST", "MISSED", "Heart"]

BEAT: Final = 2.0
"""Seconds between beats."""
MISSED: Final = 5
"""Beats without an answer after which it is taken to hang."""
FIRST: Final = 30
"""The same before its first answer: it loads its libraries."""


class Heart:
    """Mutable state: how often it was asked, and the last that it answered."""

    def __init__(self) -> None:
        self._asked = self._answered = 0
        self._hangs = ""

    def beat(self) -> int:
        """The number to be asked with."""
        self._asked += 1
        return self._asked

    def heard(self, n: int, hangs: str = "") -> None:
        self._answered = max(self._answered, min(n, self._asked))
        self._hangs = hangs

    def hangs(self, beat: float) -> str:
        """Why it is to be killed; "": it lives."""
        if self._hangs:
            return self._hangs
        missed = self._asked - self._answered
        if missed >= (MISSED if self._answered else FIRST):
            return f"no answer for {missed * beat:g} s"
        return ""

    def __repr__(self) -> str:
        return f"<Heart {self._answered} of {self._asked}>"
