"""What is wrong with a workload, said so that it can be put right."""

from __future__ import annotations


class WorkloadError(Exception):
    """A workload that cannot be read or made. `file` is its path or its specification, empty where there is none;
    `line` counts from 1, 0 where it is about the whole."""

    def __init__(self, message: str, *, file: str = "", line: int = 0) -> None:
        super().__init__(message, file, line)
        self.message = message
        self.file = file
        self.line = line

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.line else self.file
        return f"{where}: {self.message}" if where else self.message


class BadRow(Exception):
    """A row that is no request; the reader that asked for it adds the file and the line."""
