"""What a journal says once a segment and then names by a number: accounts, prices."""

from __future__ import annotations

from collections.abc import Callable, Hashable


class Said:
    def __init__(self) -> None:
        self.numbers: dict[Hashable, int] = {}
        self.said: dict[int, bytes] = {}
        """The record that says it, encoded, by number: of the segment at hand."""
        self.before: dict[int, bytes] = {}
        """Of the segment before, while records that refer to it are not on disk."""
        self._last = 0

    def define(self, key: Hashable, encoded: Callable[[int], bytes]) -> int:
        """The number of one that has none. Numbers are not used twice."""
        self._last += 1
        self.said[self._last] = encoded(self._last)
        self.numbers[key] = self._last
        return self._last

    def turn_over(self, used: set[int]) -> None:
        """A new segment begins, and says only what it refers to."""
        self.before = {**self.before, **self.said}
        self.said = {n: said for n, said in self.said.items() if n in used}
        self.numbers = {key: n for key, n in self.numbers.items() if n in used}

    def all(self) -> list[bytes]:
        return [*{**self.before, **self.said}.values()]
