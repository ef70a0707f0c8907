"""Amounts as people write them: 500k, 1.5M, 2G."""

from __future__ import annotations

import re
from decimal import Decimal
from types import MappingProxyType
from typing import Any, Final

TIMES: Final = MappingProxyType({"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "b": 10**9})
"""A thousand, a million, a billion (b or g), in small or capital letters: never powers of two."""
WRITTEN: Final = r"(\d[\d_]*(?:\.\d[\d_]*)?)\s*([kKmMgGbB])"
_WRITTEN: Final = re.compile(WRITTEN)


def written(value: Any) -> Any:
    """A text such as 2M as its number, exactly; anything else as it is, for whoever checks it to say what is wrong."""
    found = _WRITTEN.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None:
        return value
    number = Decimal(found[1].replace("_", "")) * TIMES[found[2].lower()]
    return int(number) if number == int(number) else float(number)
