"""A usage report as CSV: for spreadsheets and programs.

Spreadsheets take a cell that begins with = + - @ or a control character for a formula, whoever wrote it; such a text
gets an apostrophe before it, which they do not show. Numbers stay as they are. The JSON has every text as it is.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from typing import Final, Protocol

from forebay.ledger.tokens import KINDS
from forebay.ledger.usage import COUNTS, MONEY, Line, Report, money


class Writes(Protocol):
    def write(self, text: str, /) -> object: ...


_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")  # full-width ones too


def cell(text: str) -> str:
    """A text that nothing takes for a formula, nor fails over: a lone surrogate becomes "?"."""
    text = text.encode("utf-8", "replace").decode("utf-8").replace("\0", "�")
    return f"'{text}" if text.lstrip(" ").startswith(_FORMULA) else text


def write_csv(report: Report, file: Writes) -> None:
    """A line of names, then one a row; without their sum, so that a program can take it. `file` is opened with
    newline=""; its lines end as RFC 4180 has it, or a lone carriage return in a name would not be quoted."""
    table = csv.writer(file, lineterminator="\r\n")
    table.writerow([cell(name.replace("label:", "label_")) for name in report.by] + list(columns(report)))
    for line in report.lines:
        table.writerow([cell(value) for value in line.of] + list(_values(line, report.currency)))


def columns(report: Report) -> Iterable[str]:
    """The names of what is counted."""
    return (*COUNTS, *(f"{kind}_tokens" if kind != "images" else kind for kind in KINDS), "tokens",
            *MONEY, "total", "currency")  # fmt: skip


def _values(line: Line, currency: str) -> Iterator[str]:
    for field in COUNTS:
        yield str(getattr(line, field))
    for kind in KINDS:
        yield str(getattr(line.tokens, kind))
    yield str(line.tokens.total)
    for said in money(line).values():
        yield said if said is not None else ""
    yield currency
