"""What admission was told and decided, written to a file by a thread, for `forebay replay`.

Calls become lines on the event loop, are gathered for `FLUSH` seconds and handed over in one piece. Whatever goes wrong
(a full disk, one that is too slow, the bound on the file's size) ends the recording, with a word in the log, and
nothing else: a recording with a hole could not be played again.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import queue
import secrets
import threading
import zlib
from collections.abc import Callable
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from time import monotonic, time
from typing import Final

import msgspec

from forebay import __version__
from forebay.policy.recording import Call, Recording, Stop
from forebay.policy.rules import Rules

log = logging.getLogger("forebay.recorder")

FLUSH: Final = 0.1
PIECE: Final = 1 << 18
"""Bytes that are handed over at once."""
BACKLOG: Final = 64
"""Pieces waiting for the disk."""
_RESERVE: Final = 256
"""Bytes kept for the last line."""
_BEGIN: Final = b'{"call":"begin"'


class Recorder:
    """A `policy.recording.Sink`. Only for the event loop's thread, but for the one that writes.

    Mutable state: the lines not handed over yet, and what was written so far; `open`, until the recording ends.
    """

    def __init__(self, path: Path, most: int, loop: asyncio.AbstractEventLoop) -> None:
        """`most`: bytes of the file. Raises OSError where it cannot be begun."""
        self.path = path
        self.open = True
        self._most = most
        self._loop = loop
        self._fd = _begin(path)
        self._encode = msgspec.json.Encoder().encode
        self._lines: list[bytes] = []
        self._held = 0
        self._bytes = 0
        self._calls = 0
        self._timer: asyncio.TimerHandle | None = None
        self._queue: queue.Queue[bytes | str] = queue.Queue(BACKLOG)
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)
        self._thread.start()

    def write(self, call: Call) -> None:
        if not self.open:
            return
        try:
            line = self._encode(call)
        except (TypeError, ValueError, OverflowError) as e:
            self._stop(f"{type(call).__name__} cannot be written: {e}")
            return
        size = len(line) + 1
        if self._bytes + size > self._most - _RESERVE:
            self._stop(f"the file has {self._bytes:,} bytes, of at most {self._most:,}")
            return
        self._bytes += size
        self._calls += 1
        self._held += size
        self._lines.append(line)
        if self._held >= PIECE:
            self._flush()
        elif self._timer is None:
            self._timer = self._loop.call_later(FLUSH, self._flush)

    def close(self, seconds: float = 2.0) -> None:
        """Writes what is left, waiting so long for the disk."""
        if self.open:
            self._stop("the gateway stopped", quiet=True)
        self._thread.join(seconds)

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._lines:
            return
        lines, self._lines, self._held = self._lines, [], 0
        lines.append(b"")
        try:
            self._queue.put_nowait(b"\n".join(lines))
        except queue.Full:
            self._end("the disk is too slow")

    def _stop(self, why: str, *, quiet: bool = False) -> None:
        """The last line follows those that are held."""
        self._flush()
        if not self.open:
            return
        with contextlib.suppress(queue.Full):  # then the thread sees that it is over, and ends without the line
            self._queue.put_nowait(why)
        self._end("" if quiet else why)  # only now: a thread that sees it with nothing left to write is gone

    def _end(self, why: str) -> None:
        self.open = False
        if why:
            log.warning("admission is no longer recorded into %s: %s", self.path, why)

    def _run(self) -> None:
        crc = 0
        try:
            while True:
                try:
                    piece = self._queue.get(timeout=None if self.open else 0)
                except queue.Empty:
                    return
                if isinstance(piece, str):
                    self._put(msgspec.json.encode(Stop(piece, self._calls, crc)) + b"\n")
                    return
                self._put(piece)
                crc = zlib.crc32(piece, crc)
        except OSError as e:
            if self.open:
                self._end(f"{e.strerror or e}")
        finally:
            os.close(self._fd)

    def _put(self, piece: bytes) -> None:
        view = memoryview(piece)
        while view:
            view = view[os.write(self._fd, view) :]

    def __repr__(self) -> str:
        return f"<Recorder {self.path} {self._calls:,} calls, {self._bytes:,} bytes{'' if self.open else ', ended'}>"


def _begin(path: Path) -> int:
    """A descriptor of the new, empty file; a recording that is there already gets ".1" to its name. Raises OSError."""
    if path.exists():
        head = b"?"
        if path.is_file():  # opening a pipe would wait for its other end
            with path.open("rb") as file:
                head = file.read(len(_BEGIN))
        if head not in (b"", _BEGIN):
            raise FileExistsError(errno.EEXIST, "what is there is no recording, and is left alone", str(path))
        path.replace(path.with_name(f"{path.name}.1"))
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)


def recorded(
    path: Path | None, most: int, rules: Rules, loop: asyncio.AbstractEventLoop
) -> tuple[Recording, Recorder] | tuple[None, None]:
    """An admission that is recorded from its begin on; none where nobody wants it, or the file cannot be had, which the
    log says."""
    if path is None:
        return None, None
    try:
        recorder = Recorder(path, most, loop)
    except OSError as e:
        log.warning("admission is not recorded: %s: %s", path, e.strerror or e)
        return None, None
    wall = datetime.fromtimestamp(time(), UTC).isoformat(timespec="milliseconds")
    policy = Recording(rules, {}, recorder, _pseudonyms(), at=monotonic(), time=wall, version=__version__)
    log.info("admission is recorded into %s", path)
    return policy, recorder


def _pseudonyms() -> Callable[[str], str]:
    """The same for the same name within one recording, and nothing that leads back to it."""
    salt = secrets.token_bytes(16)

    def hide(name: str) -> str:
        return blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8, key=salt).hexdigest() if name else ""

    return hide
