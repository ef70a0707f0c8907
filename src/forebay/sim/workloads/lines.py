"""A file's lines, one at a time and of bounded length, and what cannot be the text of a workload."""

from __future__ import annotations

import codecs
import os
from collections.abc import Iterator
from typing import IO, Final

from forebay.sim.workloads.errors import WorkloadError

MAX_LINE: Final = 16 << 20
"""Bytes of one line: a prompt of about four million tokens in a batch file."""
_BLOCK: Final = 1 << 18
_MARKS: Final = (
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
    (b"\x1f\x8b", "compressed with gzip"),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd"),
    (b"PK\x03\x04", "a zip archive"),
    (b"PAR1", "a Parquet file"),
)


def lines(path: str, limit: int = MAX_LINE) -> Iterator[tuple[int, bytes]]:
    """(number from 1, UTF-8 bytes without the line's end) of each line that is not blank.

    A byte order mark, CRLF, blank lines and a last line without its end are accepted. Raises WorkloadError, with the
    line where there is one, for a file that cannot be read or is empty, for what is not UTF-8 text, and for a line of
    more than `limit` bytes, of which no more than that is read.
    """
    n = 0
    some = False
    with _opened(path, _BLOCK) as file:
        while raw := _read(path, file, limit + 2):
            n += 1
            line = (_begin(path, raw) if n == 1 else raw).strip(b" \t\r\n")
            if len(raw) > limit and not (raw.endswith(b"\n") and len(line) <= limit):
                raise WorkloadError(f"the line is longer than {limit:,} bytes", file=path, line=n)
            if b"\0" in line:
                raise WorkloadError("a NUL byte: the file is binary, not text", file=path, line=n)
            if not line.isascii():
                try:
                    line.decode()
                except UnicodeDecodeError as e:
                    problem = f"byte {e.start + 1} (0x{line[e.start]:02x}) is not UTF-8"
                    raise WorkloadError(problem, file=path, line=n) from None
            if line:
                some = True
                yield n, line
    if not some:
        raise WorkloadError("the file is empty", file=path)


def _opened(path: str, buffering: int) -> IO[bytes]:
    try:
        return open(path, "rb", buffering=buffering)  # noqa: PTH123 - buffering; closed by the caller
    except OSError as e:
        raise WorkloadError(f"cannot be read: {e.strerror or e}", file=path) from e
    except ValueError as e:  # a NUL in the name
        raise WorkloadError(f"cannot be read: {e}", file=path) from e


def _read(path: str, file: IO[bytes], most: int) -> bytes:
    try:
        return file.readline(most)
    except OSError as e:
        raise WorkloadError(f"cannot be read: {e.strerror or e}", file=path) from e


def _begin(path: str, line: bytes) -> bytes:
    for mark, what in _MARKS:
        if line.startswith(mark):
            raise WorkloadError(f"the file is {what}; a workload is UTF-8 text", file=path)
    return line.removeprefix(codecs.BOM_UTF8)


def count_lines(path: str) -> int:
    """Ends of lines, and one more for a last line without: read in blocks, at the disk's speed."""
    n = 0
    last = b"\n"
    with _opened(path, 0) as file:
        while block := file.read(1 << 20):
            n += block.count(b"\n")
            last = block[-1:]
    return n if last == b"\n" else n + 1


def last_line(path: str, limit: int = 1 << 20) -> bytes | None:
    """The last line that is not blank, where it lies whole within the last `limit` bytes."""
    with _opened(path, _BLOCK) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - limit))
        tail = file.read(limit)
    whole = tail if size <= limit else tail.partition(b"\n")[2]
    return next((line.strip() for line in reversed(whole.split(b"\n")) if line.strip()), None)
