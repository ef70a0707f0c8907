"""How a journal looks on disk: segments in a folder, groups of records in a segment.

A segment is `NUMBER.journal`. It begins to exist (by a rename) once its opening is on disk, so every segment that can
be seen has a whole first group, whose first record is `Began`. A group is what one fsync made durable:

    4 bytes magic | 4 bytes length of the records | 4 bytes CRC-32 | the records, as one MessagePack array

in little-endian order. The CRC covers segment, offset and length besides the records, so a group is sound only where it
was written. A position is one whole number: `segment << 32 | offset`, the end of a group; 0 is before everything.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

MAGIC: Final = b"FBJ1"
_HEAD: Final = struct.Struct("<4sII")
_WHERE: Final = struct.Struct("<QQI")
HEAD_BYTES: Final = _HEAD.size
GROUP_BYTES: Final = 1 << 20
"""Records of a group, about: what is beyond goes into the next one."""
SUFFIX: Final = ".journal"
GIVEN_UP: Final = ".damaged"
"""The suffix of a segment that somebody decided to go on without."""


class JournalError(Exception):
    """A journal cannot be opened or read. The message says why, and what to do."""


class JournalBusy(JournalError):
    """Another process writes to it."""


class JournalCorrupt(JournalError):
    """What was safely on disk is not there any more as it was written. `file`: the segment; None: it is missing."""

    def __init__(self, message: str, file: Path | None = None) -> None:
        super().__init__(message)
        self.file = file

    def give_up(self) -> Path | None:
        """Go on without the damaged segment: it is renamed, and those before it can still be read. Returns its new
        name; None: there is none to rename. Raises OSError."""
        return self.file.replace(self.file.with_suffix(GIVEN_UP)) if self.file is not None else None


class JournalFull(Exception):
    """No room for a reservation. The message says of what."""


def position(segment: int, offset: int) -> int:
    return segment << 32 | offset


def split(position: int) -> tuple[int, int]:
    """(segment, offset)."""
    return position >> 32, position & 0xFFFF_FFFF


def segment_file(folder: Path, segment: int) -> Path:
    return folder / f"{segment:010d}{SUFFIX}"


def segments(folder: Path, suffix: str = SUFFIX) -> list[int]:
    """The numbers of the segments, in order. Raises OSError."""
    with os.scandir(folder) as entries:
        found = (_number(entry.name, suffix) for entry in entries)
        return sorted(n for n in found if n is not None)


def bytes_on_disk(folder: Path) -> int:
    """Of all segments. Raises OSError."""
    total = 0
    with os.scandir(folder) as entries:
        for entry in entries:
            if _number(entry.name, SUFFIX) is not None:
                try:
                    total += entry.stat().st_size
                except FileNotFoundError:
                    continue  # removed by whoever ingests, while we looked
    return total


def _number(name: str, suffix: str) -> int | None:
    stem = name.removesuffix(suffix)
    return int(stem) if stem != name and stem.isdecimal() else None


def group(segment: int, offset: int, parts: Sequence[bytes]) -> bytes:
    """Encoded records as the group that stands at `offset`."""
    records = b"".join((b"\xdd", len(parts).to_bytes(4, "big"), *parts))
    return _HEAD.pack(MAGIC, len(records), _check(segment, offset, records)) + records


def groups(segment: int, offset: int, parts: Sequence[bytes]) -> bytes:
    """Many records, as groups of about GROUP_BYTES one behind the other."""
    made = bytearray()
    start = size = 0
    for i, part in enumerate(parts):
        size += len(part)
        if size >= GROUP_BYTES or i == len(parts) - 1:
            made += group(segment, offset + len(made), parts[start : i + 1])
            start, size = i + 1, 0
    return bytes(made)


def records_at(fd: int, segment: int, offset: int, size: int) -> bytes | None:
    """The records (a MessagePack array) of the group at `offset` of a file of `size` bytes; None: no sound group is
    there. Raises OSError."""
    if offset + HEAD_BYTES > size:
        return None
    head = os.pread(fd, HEAD_BYTES, offset)
    if len(head) < HEAD_BYTES:
        return None
    magic, length, check = _HEAD.unpack(head)
    if magic != MAGIC or offset + HEAD_BYTES + length > size:
        return None
    records = os.pread(fd, length, offset + HEAD_BYTES)
    if len(records) != length or _check(segment, offset, records) != check:
        return None
    return records


def sound_after(fd: int, segment: int, offset: int, size: int) -> int | None:
    """Where the next sound group begins behind `offset`; None: there is none. Raises OSError."""
    window = 4 << 20
    while offset + 1 < size:
        data = os.pread(fd, window, offset + 1)
        at = data.find(MAGIC)
        while at >= 0:
            if records_at(fd, segment, offset + 1 + at, size) is not None:
                return offset + 1 + at
            at = data.find(MAGIC, at + 1)
        if len(data) < window:
            return None
        offset += window - len(MAGIC) + 1
    return None


def _check(segment: int, offset: int, records: bytes) -> int:
    return zlib.crc32(records, zlib.crc32(_WHERE.pack(segment, offset, len(records))))
