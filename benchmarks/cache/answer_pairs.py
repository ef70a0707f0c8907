"""Labelled pairs of answers with their questions: the judge of answers is fitted to one half, measured on the other.

`== dev|held KIND: TOPIC` begins a topic; a topic is in one half in every language, and the judge is fitted to the half
`dev` alone. `?` begins a meaning, with its questions between `|`; the lines under it are answers that say the same, a
line break in them written as \\n.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.common import BenchError
from forebay.cache import language
from forebay.cache.semantic.pairs import read

__all__ = ["AnswerPair", "answer_pairs", "earlier_pairs"]

FOLDER: Final = Path(__file__).with_name("pairs")


class AnswerPair(NamedTuple):
    kind: str
    topic: str
    held: bool
    language: str
    asked: str
    known_question: str
    fresh: str
    known: str
    same: bool


def answer_pairs() -> list[AnswerPair]:
    """Raises BenchError."""
    return [pair for code in ("en", "zh") for pair in _file(FOLDER / f"answers.{code}.txt", code)]


def earlier_pairs() -> list[AnswerPair]:
    """Those that earlier judges were measured on, without questions: for development only."""
    files = [FOLDER / "answers.tsv", FOLDER / "long_answers.jsonl"]
    return [
        AnswerPair(p.kind, min(p.a, p.b), False, p.language, "", "", p.a, p.b, p.same)
        for file in files
        for p in read(file, language.of)
    ]


def _file(path: Path, code: str) -> Iterator[AnswerPair]:
    kind = topic = ""
    held = False
    meanings: list[tuple[list[str], list[str]]] = []
    for number, line in enumerate([*path.read_text("utf-8").splitlines(), "== dev end: end"], 1):
        if line.startswith("== "):
            half, _, rest = line[3:].partition(" ")
            if half not in ("dev", "held"):
                raise BenchError(f"{path}:{number}: a topic begins with `== dev` or `== held`")
            yield from _topic(kind, topic, held, code, meanings)
            kind, _, topic = rest.partition(": ")
            held, meanings = half == "held", []
        elif line.startswith("? "):
            meanings.append(([q.strip() for q in line[2:].split("|")], []))
        elif line.strip():
            if not meanings:
                raise BenchError(f"{path}:{number}: an answer before its questions, which begin with `?`")
            meanings[-1][1].append(line.replace("\\n", "\n"))


def _topic(
    kind: str, topic: str, held: bool, code: str, meanings: list[tuple[list[str], list[str]]]
) -> Iterator[AnswerPair]:
    for questions, answers in meanings:
        for n, (a, b) in enumerate(itertools.combinations(answers, 2)):
            one, other = questions[n % 2], questions[(n + 1) % 2]
            yield AnswerPair(kind, topic, held, code, one, other, a, b, True)
    for (left, mine), (right, theirs) in itertools.combinations(meanings, 2):
        for n, (a, b) in enumerate(itertools.product(mine, theirs)):
            yield AnswerPair(kind, topic, held, code, left[n % len(left)], right[n % len(right)], a, b, False)
