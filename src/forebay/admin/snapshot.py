"""`keys.snapshot`: the list that workers start from. Written by whoever holds the database's lock."""

from __future__ import annotations

from pathlib import Path

import msgspec

from forebay.admin.sums import write_private
from forebay.state.messages import SetKeys, keys_snapshot


def write_snapshot(state_dir: Path, keys: SetKeys) -> None:
    """Blocks until it is on the disk. Raises OSError."""
    write_private(keys_snapshot(state_dir), msgspec.json.encode(keys), durable=True)
