"""Which keys a store may have: a bit for each, so that what nobody has asked before costs no query."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

__all__ = ["Presence"]

_LEAST: Final = 20
"""Bits of the table at first, as a power of two: 128 KB;"""
_MOST: Final = 29
"""and at most: 64 MB."""
_SPARSE: Final = 32
"""Bits for each key: one key in so many that is not there is taken to be, and asked for."""


class Presence:
    """Never says that a key which was added is absent. Keys are digests of 16 bytes, and are not taken out:
    whoever removes many begins anew. One thread adds; any may ask."""

    __slots__ = ("_bits", "_mask", "count")

    def __init__(self, keys: int = 0) -> None:
        """Room for so many."""
        power = min(_MOST, max(_LEAST, (keys * _SPARSE).bit_length()))
        self._bits = bytearray(1 << (power - 3))
        self._mask = (1 << power) - 1
        self.count = 0
        """Of those added."""

    @property
    def full(self) -> bool:
        """A larger one would say absent more often."""
        return self.count * _SPARSE > self._mask and self._mask + 1 < 1 << _MOST

    def add(self, key: bytes) -> None:
        at = self._at(key)
        self._bits[at >> 3] |= 1 << (at & 7)
        self.count += 1

    def update(self, keys: Iterable[bytes]) -> None:
        for key in keys:
            self.add(key)

    def _at(self, key: bytes) -> int:
        number = int.from_bytes(key, "big")
        return (number ^ number >> 64) & self._mask

    def absent(self, key: bytes) -> bool:
        at = self._at(key)
        return not self._bits[at >> 3] & 1 << (at & 7)

    def __repr__(self) -> str:
        return f"<Presence of {self.count:,} in {len(self._bits):,} bytes>"
