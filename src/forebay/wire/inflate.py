"""Undo a Content-Encoding that nobody asked for, with a bound on what comes out."""

from __future__ import annotations

import zlib
from typing import Final

CODINGS: Final = frozenset({b"gzip", b"x-gzip", b"deflate"})
STEP: Final = 65_536


class InflateFailed(Exception):
    """The bytes are not what the coding says, or they unfold beyond the bound."""


class Inflater:
    """gzip or zlib bytes in, plain bytes out, at most `limit` of them in all."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._total = 0
        self._inner = zlib.decompressobj(wbits=47)  # 32 + 15: tells gzip from zlib by itself

    def feed(self, data: bytes) -> bytes:
        """Raises InflateFailed."""
        parts: list[bytes] = []
        try:
            while data:
                part = self._inner.decompress(data, STEP)
                self._total += len(part)
                if self._total > self._limit:
                    raise InflateFailed(f"it unfolds to more than {self._limit:,} bytes")
                parts.append(part)
                data = self._inner.unconsumed_tail
        except zlib.error as e:
            raise InflateFailed(str(e)) from None
        return b"".join(parts)

    @property
    def whole(self) -> bool:
        return self._inner.eof
