"""Labelled pairs of questions, to fit a verifier to and to measure with.

Two forms are read. A table, tab-separated or CSV, whose first line names its columns: `a` and `b` (or s1 and s2,
sentence1 and sentence2, question1 and question2), `label` (1: the same answer is right for both), and, where there are,
`kind` and `language`; the same as JSON, one object a line, where the label may be `same_answer`. And families (.txt):
`==` begins a family of questions that are alike, `=` a meaning, the lines under it ask the same.
"""

from __future__ import annotations

import csv
import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

__all__ = ["Pair", "PairsError", "read"]

MOST_BYTES: Final = 256 << 20
_A: Final = ("a", "s1", "sentence1", "question1")
_B: Final = ("b", "s2", "sentence2", "question2")
_LABEL: Final = ("label", "same_answer", "same", "is_duplicate")
_KIND: Final = ("kind", "category", "family")


class PairsError(Exception):
    """The file cannot be used: where, and what is expected."""


class Pair(NamedTuple):
    kind: str
    a: str
    b: str
    same: bool
    language: str
    group: str
    """Pairs of one group are never both fitted to and measured with."""


def read(path: Path, language_of: Callable[[str], str]) -> list[Pair]:
    """`language_of`: of a text, where the file does not say. Raises PairsError."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise PairsError(f"{path} has more than {MOST_BYTES >> 20} MB")
        text = path.read_text("utf-8-sig")
    except OSError as e:
        raise PairsError(f"{path}: {e.strerror or e}") from None
    except UnicodeDecodeError:
        raise PairsError(f"{path} is not UTF-8 text") from None
    if path.suffix == ".txt":
        found = list(_families(text, path, language_of))
    elif path.suffix in (".jsonl", ".json"):
        found = list(_rows(_objects(text, path), path, language_of))
    else:
        delimiter = "\t" if "\t" in text.partition("\n")[0] else ","
        if delimiter == ",":
            table = csv.DictReader(text.splitlines())
        else:
            table = csv.DictReader(text.splitlines(), delimiter="\t", quoting=csv.QUOTE_NONE)
        found = list(_rows(enumerate(table, 2), path, language_of))
    if not found:
        raise PairsError(f"{path} has no pairs")
    return found


def _objects(text: str, path: Path) -> Iterator[tuple[int, dict[str, object]]]:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as e:
            raise PairsError(f"{path}:{number} is not JSON: {e}") from None
        if not isinstance(row, dict):
            raise PairsError(f"{path}:{number} is not a JSON object")
        yield number, row


def _rows(
    rows: Iterable[tuple[int, dict[str, object]]], path: Path, language_of: Callable[[str], str]
) -> Iterator[Pair]:
    for number, row in rows:

        def field(names: tuple[str, ...], row: dict[str, object] = row) -> object:
            return next((row[name] for name in names if row.get(name) is not None), None)

        a, b, label = field(_A), field(_B), field(_LABEL)
        if not isinstance(a, str) or not isinstance(b, str) or label is None:
            raise PairsError(f"{path}:{number} needs the columns a, b and label (1: the same answer is right for both)")
        word = str(label).strip().lower()
        if word not in ("0", "1", "true", "false", "0.0", "1.0"):
            raise PairsError(f"{path}:{number}: the label must be 0 or 1, not {str(label)[:20]!r}")
        kind, language = field(_KIND), row.get("language")
        yield Pair(
            str(kind or ""),
            a.strip(),
            b.strip(),
            word in ("1", "true", "1.0"),
            str(language) if language else language_of(a + b),
            min(a.strip(), b.strip()),
        )


def _families(text: str, path: Path, language_of: Callable[[str], str]) -> Iterator[Pair]:
    family, meanings = "", list[list[str]]()
    for number, raw in enumerate([*text.splitlines(), "=="], 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        if line.startswith("=="):
            yield from _pairs_of(family, meanings, language_of)
            family, meanings = line[2:].strip(), []
        elif line.startswith("="):
            meanings.append([])
        elif not meanings:
            raise PairsError(f"{path}:{number}: a question before the first line that begins with =")
        else:
            meanings[-1].append(line)


def _pairs_of(family: str, meanings: list[list[str]], language_of: Callable[[str], str]) -> Iterator[Pair]:
    for meaning in meanings:
        for a, b in itertools.combinations(meaning, 2):
            yield Pair(family, a, b, True, language_of(a + b), family)
    for one, other in itertools.combinations(meanings, 2):
        for a, b in itertools.product(one, other):
            yield Pair(family, a, b, False, language_of(a + b), family)
