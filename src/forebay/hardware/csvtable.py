"""Reading a CSV of measurements so that whatever is wrong with it is named by file and line."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from math import isfinite
from pathlib import Path
from typing import Final

from .files import opened

MAX_ROWS = 5_000_000
MAX_FIELD = 1_000
MAX_US: Final = 1e9
"""Microseconds of one kernel: a quarter of an hour."""
MAX_NUMBER: Final = 1e12
"""Of any other column."""


class BadProfile(ValueError):
    """A profile that cannot be used. The message names the file, the line and what is allowed."""


def _number(text: str, column: str, where: str, *, signed: bool) -> float:
    try:
        value = float(text)
    except ValueError:
        raise BadProfile(f"{where}: {column} is {text[:40]!r} where a number is needed") from None
    if not isfinite(value):
        raise BadProfile(f"{where}: {column} is {text[:40]!r} where a finite number is needed")
    if value < 0 and not signed:
        raise BadProfile(f"{where}: {column} is {text[:40]} where 0 or more is needed")
    most = MAX_US if column.endswith("_us") else MAX_NUMBER
    if abs(value) > most:
        raise BadProfile(f"{where}: {column} is {text[:40]} where at most {most:,.0f} is believable")
    return value


def read_rows(
    path: Path, text: Sequence[str], numbers: Sequence[str], *, signed: Sequence[str] = ()
) -> Iterator[tuple[str, tuple[str, ...], tuple[float, ...]]]:
    """Each row as (`file: line N`, the `text` columns, the `numbers` columns). Other columns are left out. Numbers are
    finite and not negative, but for those in `signed`. Raises `BadProfile`."""
    try:
        with io.TextIOWrapper(opened(path), newline="", encoding="utf-8") as f:
            yield from _rows(path, f, text, numbers, frozenset(signed))
    except OSError as e:
        raise BadProfile(f"{path}: cannot be read: {e.strerror or e}") from e
    except UnicodeDecodeError as e:
        raise BadProfile(f"{path}: is not UTF-8 text: {e.reason} at byte {e.start}") from e


def _rows(
    path: Path, f: Iterator[str], text: Sequence[str], numbers: Sequence[str], signed: frozenset[str]
) -> Iterator[tuple[str, tuple[str, ...], tuple[float, ...]]]:
    reader = csv.reader(f, strict=True)
    try:
        header = next(reader, None)
        if header is None:
            raise BadProfile(f"{path}: is empty; its first line must name the columns {', '.join((*text, *numbers))}")
        missing = [c for c in (*text, *numbers) if c not in header]
        if missing:
            raise BadProfile(f"{path}: line 1: column {missing[0]} is missing; found {', '.join(header)[:200]}")
        words = [header.index(c) for c in text]
        values = [(header.index(c), c) for c in numbers]
        some = False
        for row in reader:
            where = f"{path}: line {reader.line_num}"
            if not row:
                continue
            if len(row) != len(header):
                raise BadProfile(f"{where}: has {len(row)} fields where the header has {len(header)}")
            if reader.line_num > MAX_ROWS or any(len(field) > MAX_FIELD for field in row):
                raise BadProfile(
                    f"{where}: is too much for a profile: {MAX_ROWS:,} lines, {MAX_FIELD:,} characters a field"
                )
            some = True
            yield (
                where,
                tuple(row[i] for i in words),
                tuple(_number(row[i], c, where, signed=c in signed) for i, c in values),
            )
        if not some:
            raise BadProfile(f"{path}: holds no rows")
    except csv.Error as e:
        raise BadProfile(f"{path}: line {reader.line_num}: {e}") from e


def read_curves(path: Path, key: str, x: str, y: str) -> dict[str, list[tuple[float, float]]]:
    """Curves y(x) by name. Within one curve x must rise from line to line. Raises `BadProfile`."""
    curves: dict[str, list[tuple[float, float]]] = {}
    for where, (name,), (at, value) in read_rows(path, (key,), (x, y)):
        curve = curves.setdefault(name, [])
        if curve and at <= curve[-1][0]:
            raise BadProfile(f"{where}: {x} {at:g} of {name} does not come after {curve[-1][0]:g}")
        curve.append((at, value))
    return curves


def read_points(path: Path, axes: Sequence[str], y: str) -> dict[tuple[float, ...], float]:
    """A value by its coordinates, whose order must rise from line to line. Raises `BadProfile`."""
    points: dict[tuple[float, ...], float] = {}
    before: tuple[float, ...] | None = None
    for where, _, row in read_rows(path, (), (*axes, y)):
        at = row[:-1]
        if before is not None and at <= before:
            shown = ", ".join(f"{a} {v:g}" for a, v in zip(axes, at, strict=True))
            raise BadProfile(
                f"{where}: {shown} does not come after the line before; lines are sorted by {', '.join(axes)}"
            )
        points[at] = row[-1]
        before = at
    return points
