"""What tests wait for: a condition, bytes of a socket."""

from __future__ import annotations

import contextlib
import socket
import sqlite3
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


def eventually(look: Callable[[], T], within: float = 60.0, every: float = 0.01) -> T:
    """What `look` returns once it is true; fails with its last word where that never happens."""
    deadline = time.monotonic() + within
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < deadline, f"never: {found!r}"
        time.sleep(every)


def read_until(sock: socket.socket, mark: bytes, data: bytes = b"") -> bytes:
    """`data` and what came up to and with `mark`, or to the end of the stream."""
    while mark not in data and (more := sock.recv(65_536)):
        data += more
    return data


def unread(port: int) -> int:
    """Bytes that have come over connections to `port` and were not read."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return max((int(r[4].partition(":")[2], 16) for r in rows if r[2].endswith(f":{port:04X}")), default=0)


def until_nobody_reads_from(port: int, within: float = 100.0, looks: int = 10) -> None:
    """Bytes have come from `port`, are not read, and no more come: the receive window is full, whatever its size
    (a kernel may let a socket hold 40 kB or several MB)."""
    last, same = 0, 0

    def still() -> bool:
        nonlocal last, same
        now = unread(port)
        same = same + 1 if now and now == last else 0
        last = now
        return same >= looks

    eventually(still, within, 0.1)  # a look at every connection of the machine takes milliseconds


def in_books(state_dir: str, query: str, parameters: Sequence[str]) -> list[dict[str, Any]]:
    """Rows of the books in SQLite; [] also while the admin process has not made its tables yet."""
    with (
        contextlib.suppress(sqlite3.OperationalError),
        contextlib.closing(sqlite3.connect(f"file:{state_dir}/forebay.db?mode=ro", uri=True)) as database,
    ):
        database.row_factory = sqlite3.Row
        return [dict(row) for row in database.execute(query, parameters)]
    return []
