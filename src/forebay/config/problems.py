"""What is wrong with a configuration, said so that it can be put right: file, line, key, found, allowed."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum


class Severity(StrEnum):
    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake. `line` counts from 1, 0 where there is none; `key` is dotted, empty for the whole file."""

    file: str
    line: int
    key: str
    message: str
    found: str = ""
    allowed: str = ""
    severity: Severity = Severity.ERROR

    def as_dict(self) -> dict[str, str | int]:
        return asdict(self)

    def __str__(self) -> str:
        where = ": ".join(part for part in (f"{self.file}:{self.line}" if self.line else self.file, self.key) if part)
        warning = "warning: " if self.severity is Severity.WARNING else ""
        detail = "; ".join(
            f"{label} {value}" for label, value in (("found", self.found), ("allowed", self.allowed)) if value
        )
        return f"{where}: {warning}{self.message}" + (f" ({detail})" if detail else "")


class ConfigError(Exception):
    """A configuration that cannot be used, with every problem in it, in the order of their lines."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = sorted(problems, key=lambda p: p.line)
        super().__init__("\n".join(map(str, self.problems)))
