"""Opening a file that somebody named: a regular one, and no larger than anything of its kind is."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO, Final

MAX_BYTES: Final = 256 << 20
"""Of a table of measurements or a compiled profile; the largest known has 9 MB."""


def opened(path: Path, most: int = MAX_BYTES) -> BinaryIO:
    """The file, open for reading. Raises OSError, also for a pipe or a device (which may have no end, or nobody at the
    other one) and for a file of more than `most` bytes."""
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(file)
        if stat.S_ISDIR(found.st_mode):
            raise OSError(errno.EISDIR, "is a folder, a file is needed", str(path))
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "is a pipe or a device, a file is needed", str(path))
        if found.st_size > most:
            raise OSError(errno.EFBIG, f"has {found.st_size:,} bytes, more than {most:,}", str(path))
        return os.fdopen(file, "rb")
    except OSError:
        os.close(file)
        raise


def read(path: Path, most: int = MAX_BYTES) -> bytes:
    """All of it. Raises OSError as `opened` does."""
    with opened(path, most) as file:
        return file.read(most)
