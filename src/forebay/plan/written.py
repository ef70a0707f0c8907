"""Writing results: a file is there whole or as it was before, and what went wrong is said with its name."""

from __future__ import annotations

import os
import secrets
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO


@contextmanager
def replacing(path: Path, *, errors: str = "strict", newline: str | None = None) -> Iterator[TextIO]:
    """A UTF-8 text file that takes the place of the one at `path` when the block ends well. A device or a pipe, and a
    file in a folder that cannot be written to, is written to as it is. Raises OSError that names `path`."""
    target = path.resolve()
    whole = not (target.exists() and not target.is_file()) and os.access(target.parent, os.W_OK)
    draft = target.parent / f".forebay-{os.getpid()}-{secrets.token_hex(4)}" if whole else target
    try:
        with draft.open("w", encoding="utf-8", errors=errors, newline=newline) as file:
            yield file
        if whole:
            with suppress(FileNotFoundError):
                shutil.copymode(target, draft)
            draft.replace(target)
    except OSError as e:
        raise type(e)(e.errno, e.strerror or str(e), str(path)) from None
    finally:
        if whole:
            draft.unlink(missing_ok=True)


def to_stdout(text: str) -> None:
    """All of it, or OSError that names standard output. Its characters that UTF-8 has no bytes for are escaped."""
    stream = sys.stdout
    if stream is None:
        raise OSError(9, "is closed", "standard output")
    try:
        stream.flush()
        stream.buffer.write(text.encode("utf-8", "backslashreplace"))
        stream.flush()
    except OSError as e:
        silence(stream)
        raise type(e)(e.errno, e.strerror or str(e), "standard output") from None


def silence(stream: TextIO) -> None:
    """What is still buffered for a stream that takes no more goes nowhere: the interpreter would fail over it again
    when it leaves."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
