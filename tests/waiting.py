"""What tests wait for: a condition, bytes of a socket."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(look: Callable[[], T], within: float = 20.0, every: float = 0.01) -> T:
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
