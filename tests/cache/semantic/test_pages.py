"""Memory that is taken page by page."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from forebay.cache.semantic.pages import as_needed


def resident(address: int) -> int:
    """kB of the mapping that holds it."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if found := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(found[1], 16) <= address < int(found[2], 16)
        elif inside and line.startswith("Rss:"):
            return int(line.split()[1])
    raise AssertionError("no such mapping")


def test_a_row_that_is_written_takes_its_own_pages_alone() -> None:
    rows = as_needed((8_192, 1_024), np.float32)
    assert (rows.shape, rows.dtype, rows.flags.writeable) == ((8_192, 1_024), np.float32, True)
    assert not rows[::512].any()
    rows[4_096] = 1.0
    assert resident(rows.ctypes.data + 4_096 * 4_096) <= 256  # a large page is 2,048
    assert rows.sum() == 1_024
