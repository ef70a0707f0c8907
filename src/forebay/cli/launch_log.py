"""The log of a started engine: what it prints goes into a file that is moved aside at a size, and its last lines are at
hand for messages."""

from __future__ import annotations

import hashlib
import os
import re
from collections import deque
from collections.abc import Iterable
from pathlib import Path

TAIL = 20
"""Lines kept for messages."""
LINE = 400
"""Characters of a line shown."""
PARTIAL = 65_536
"""Bytes of a line held back until its end comes."""

_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def file_name(engine: str) -> str:
    """The name of its files: the engine's, or something like it that no other engine has."""
    plain = re.sub(r"[^A-Za-z0-9._-]", "-", engine)
    return plain if plain == engine else f"{plain}-{hashlib.sha256(engine.encode()).hexdigest()[:8]}"


class EngineLog:
    """Mutable state: the open file and its size, the line that has not ended, the last lines. Two files at most: `path`
    and, before it, `path` with .1; each of `limit` bytes and a line. Raises OSError where the file cannot be made."""

    def __init__(self, path: Path, limit: int, secrets: Iterable[str]) -> None:
        self.path = path
        self._limit = limit
        self._secrets = [s.encode() for s in secrets]
        self._partial = b""
        self.tail: deque[str] = deque(maxlen=TAIL)
        self.lost = 0
        """Bytes that could not be written: the disk is full, say."""
        self._fd = self._open()
        self._size = os.fstat(self._fd).st_size

    def _open(self) -> int:
        return os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    @property
    def last(self) -> str:
        """The last line that says something, the one that has not ended included."""
        return _shown(self._hidden(self._partial)) or (self.tail[-1] if self.tail else "")

    def feed(self, data: bytes) -> None:
        """What the engine printed."""
        whole, newline, rest = (self._partial + data).rpartition(b"\n")
        if len(rest) > PARTIAL:
            whole, newline, rest = whole + newline + rest, b"", b""
        self._partial = rest
        if whole or newline:
            self._take(self._hidden(whole + newline))

    def note(self, text: str) -> None:
        """A line of the launcher's own."""
        self.end_line()
        self._write(f"--- {text}\n".encode())

    def end_line(self) -> None:
        if self._partial:
            self.feed(b"\n")

    def _take(self, text: bytes) -> None:
        for line in text.split(b"\n")[-TAIL - 1 :]:
            if shown := _shown(line):
                self.tail.append(shown)
        self._write(text)

    def _hidden(self, data: bytes) -> bytes:
        for secret in self._secrets:
            data = data.replace(secret, b"(hidden)")
        return data

    def _write(self, data: bytes) -> None:
        try:
            if self._size and self._size + len(data) > self._limit:
                self._rotate()
            written = os.write(self._fd, data)
        except OSError:
            written = 0
        self._size += written
        self.lost += len(data) - written

    def _rotate(self) -> None:
        self.path.replace(self.path.with_name(self.path.name + ".1"))
        fresh = self._open()
        os.close(self._fd)
        self._fd, self._size = fresh, 0

    def close(self) -> None:
        self.end_line()
        os.close(self._fd)


def _shown(line: bytes) -> str:
    """A line for people: the last state of a progress bar, no colours, no control characters."""
    text = line.rstrip(b"\r").rpartition(b"\r")[2].decode("utf-8", "replace")
    text = "".join(ch if ch.isprintable() else " " for ch in _COLOUR.sub("", text)).strip()
    return text if len(text) <= LINE else text[: LINE - 1] + "…"
