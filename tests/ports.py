"""Ports for servers that must be told one."""

from __future__ import annotations

import contextlib
import random
import socket
from pathlib import Path

LOW = 10_000


def free_port() -> int:
    """One that nobody listens on, below those that the kernel hands out: no other test gets it before it is used."""
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        with socket.socket() as s, contextlib.suppress(OSError):
            s.bind(("127.0.0.1", random.SystemRandom().randrange(LOW, first) if first > 2 * LOW else 0))
            return int(s.getsockname()[1])
