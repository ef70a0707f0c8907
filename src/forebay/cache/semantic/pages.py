"""Memory that is taken page by page.

numpy asks for pages of 2 MB where an array is larger than that. The first touch of one clears it whole, and may first
make room for it by moving others: a tenth of a millisecond to several, in the middle of a look-up.
"""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["as_needed"]


def as_needed(shape: tuple[int, int], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Zeros, which take address space now, and memory in pages of 4 KB where they are first written to."""
    count = shape[0] * shape[1]
    memory = mmap.mmap(-1, max(1, count * np.dtype(dtype).itemsize), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, dtype, count).reshape(shape)
