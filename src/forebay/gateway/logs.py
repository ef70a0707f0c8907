"""Logs: one line a record, JSON or for people, written by a thread so that a full pipe cannot stall a stream.

Request lines are built on the event loop, gathered for `FLUSH` seconds and handed over in one piece. What the writer
cannot take is dropped and counted, never waited for.
"""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import sys
import threading
import time
import traceback
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final

import msgspec

from forebay.config.models import Logging

FLUSH: Final = 0.1
BACKLOG: Final = 256
"""Pieces waiting for the writer."""
MAX_PIECE: Final = 1 << 20

_encode = msgspec.json.Encoder().encode
_LEVELS: Final = MappingProxyType(
    {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
)


class LogWriter:
    """The thread and its bounded queue. `start` before use, `close` flushes."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._queue: queue.Queue[bytes | None] = queue.Queue(BACKLOG)
        self._worker = threading.Thread(target=self._run, name="log-writer", daemon=True)
        self.dropped = 0

    def start(self) -> None:
        self._worker.start()

    def write(self, piece: bytes) -> None:
        try:
            self._queue.put_nowait(piece)
        except queue.Full:
            self.dropped += piece.count(b"\n")

    def _run(self) -> None:
        while (piece := self._queue.get()) is not None:
            view = memoryview(piece)
            while view:
                try:
                    written = os.write(self._fd, view)  # not within the slice, where mypyc would do it twice
                    view = view[written:]
                except BlockingIOError:
                    time.sleep(0.05)  # somebody made our standard error non-blocking
                except OSError:
                    self.dropped += bytes(view).count(b"\n")
                    break

    def close(self, seconds: float = 2.0) -> None:
        try:
            self._queue.put(None, timeout=seconds)
        except queue.Full:
            return
        self._worker.join(seconds)


class RequestLog:
    """Request lines of the data plane. Only for the event loop's thread."""

    def __init__(self, writer: LogWriter, config: Logging) -> None:
        self._writer = writer
        self._lines: list[bytes] = []
        self._handle: asyncio.TimerHandle | None = None
        self.configure(config)

    def configure(self, config: Logging) -> None:
        self.enabled = config.requests and _LEVELS[config.level] <= logging.INFO
        self._pretty = pretty(config)

    def add(self, line: bytes) -> None:
        """`line` is a JSON object."""
        self._lines.append(_pretty_request(msgspec.json.decode(line)) if self._pretty else line)
        if self._handle is None:
            self._handle = asyncio.get_running_loop().call_later(FLUSH, self.flush)
        elif len(self._lines) >= 2048:
            self._handle.cancel()
            self.flush()

    def flush(self) -> None:
        self._handle = None
        if self._lines:
            lines, self._lines = self._lines, []
            lines.append(b"")
            self._writer.write(b"\n".join(lines))


class Stamp:
    """The time of day as ISO 8601 with milliseconds, UTC. Mutable state: the last one, written out."""

    def __init__(self) -> None:
        self._second = 0
        self._milli = 0
        self._text = b""
        self._whole = b""

    def at(self, wall: float) -> bytes:
        second = int(wall)
        milli = 1000 + int((wall - second) * 1000)
        if second != self._second:
            self._second = second
            self._text = datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S").encode()
        elif milli == self._milli:
            return self._whole
        self._milli = milli
        self._whole = b"%b.%bZ" % (self._text, (b"%d" % milli)[1:])
        return self._whole


class _Handler(logging.Handler):
    def __init__(self, writer: LogWriter, process: str) -> None:
        super().__init__()
        self._writer = writer
        self._process = process
        self.pretty = False

    def emit(self, record: logging.LogRecord) -> None:
        when = datetime.fromtimestamp(record.created, UTC)
        text = record.getMessage()
        trace = "".join(traceback.format_exception(*record.exc_info)) if record.exc_info else ""
        if self.pretty:
            line = f"{when:%H:%M:%S} {record.levelname.lower():7} {text}" + (f"\n{trace.rstrip()}" if trace else "")
            piece = line.encode("utf-8", "replace")
        else:
            fields = {
                "ts": when.strftime("%Y-%m-%dT%H:%M:%S.") + f"{int(record.msecs):03d}Z",
                "level": record.levelname.lower(),
                "logger": record.name,
                "process": self._process,
                "msg": text,
            }
            if trace:
                fields["trace"] = trace
            piece = _encode(fields)
        self._writer.write(piece[:MAX_PIECE] + b"\n")


def pretty(config: Logging) -> bool:
    return config.format == "pretty" or (config.format == "auto" and sys.stderr.isatty())


def start(config: Logging, process: str, fd: int = 2) -> LogWriter:
    """Send everything that `logging` gets to standard error, as configured."""
    writer = LogWriter(fd)
    writer.start()
    root = logging.getLogger()
    for handler in tuple(root.handlers):
        root.removeHandler(handler)
    root.addHandler(_Handler(writer, process))
    configure(config)
    logging.getLogger("asyncio").setLevel(logging.WARNING)
    return writer


def configure(config: Logging) -> None:
    """Level and format of what `logging` gets; again at every reload."""
    root = logging.getLogger()
    root.setLevel(_LEVELS[config.level])
    for handler in root.handlers:
        if isinstance(handler, _Handler):
            handler.pretty = pretty(config)


def _pretty_request(r: dict[str, Any]) -> bytes:
    when = str(r["ts"])[11:19]
    parts = [
        when,
        "request",
        str(r.get("status", "-")),
        str(r.get("outcome")),
        str(r.get("method")),
        str(r.get("path")),
    ]
    parts += [
        f"{k}={r[k]}" for k in ("model", "engine", "class", "key", "ttft_ms", "ms", "tokens_in", "tokens_out") if k in r
    ]
    return " ".join([*parts, f"id={r['id']}"]).encode("utf-8", "replace")
