"""What kind of thing a text varies in: a time, an id, a number, words; and the shape of it, which quotes nothing."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

WORDS: Final = "words"
TEXT: Final = "text"
KINDS: Final = ("time", "date", "epoch", "uuid", "id", "address", "number", "words", "text", "order", "keys")
"""All there are. `words`: a name, say; `text`: more than that; `order`: of tools; `keys`: of their objects."""

_MONTH: Final = r"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|sept|oct|nov|dec)[a-z]*\.?"
_DAY: Final = r"(?:mon|tue|wed|thu|fri|sat|sun)[a-z]*,?|(?:星期|周|礼拜)[一二三四五六日天]"
_DATE: Final = (
    r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{4}|\d{4}\s*年\s*\d{1,2}\s*月(?:\s*\d{1,2}\s*[日号])?"
    rf"|{_MONTH}\s+\d{{1,2}}(?:st|nd|rd|th)?,?(?:\s+\d{{4}})?|\d{{1,2}}(?:st|nd|rd|th)?\s+{_MONTH},?(?:\s+\d{{4}})?"
)
_CLOCK: Final = (
    r"\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d{1,9})?)?(?:\s?[ap]\.?m\b\.?)?(?:\s?(?:z\b|utc|gmt|[+-]\d{2}:?\d{2}))?"
    r"|\d{1,2}\s*[点时]\s*\d{1,2}\s*分(?:\s*\d{1,2}\s*秒)?"
)
_PATTERNS: Final = re.compile(
    r"(?P<uuid>\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b)"
    rf"|(?P<time>(?:(?:{_DAY})[\s,，]*)?(?:{_DATE})(?:[\st,，]|\s*at\s+|\s*(?:{_DAY})\s*)*(?:{_CLOCK})|{_CLOCK})"
    rf"|(?P<date>(?:(?:{_DAY})[\s,，]*)?(?:{_DATE})|\b(?:mon|tues|wednes|thurs|fri|satur|sun)day\b"
    r"|(?:星期|礼拜)[一二三四五六日天])"
    r"|(?P<address>[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}|\b\d{1,3}(?:\.\d{1,3}){3}\b|https?://[^\s\"'<>]{1,2048})"
    r"|(?P<epoch>(?<![\w.])1\d{9}(?:\d{3})?(?:\.\d{1,9})?(?![\w]))"
    r"|(?P<id>(?<![A-Za-z0-9])(?=[A-Za-z0-9_-]{0,63}\d)[A-Za-z0-9]{1,24}(?:[_-][A-Za-z0-9]{4,64})+(?![A-Za-z0-9])"
    r"|(?<![A-Za-z0-9])(?=[A-Za-z0-9]{0,63}\d)(?=[A-Za-z0-9]{0,63}[A-Za-z])[A-Za-z0-9]{8,128}(?![A-Za-z0-9])"
    r"|(?<!\d)\d{14,40}(?!\d))"
    r"|(?P<number>\d{1,40}(?:[.,]\d{1,20}){0,8}%?)",
    re.IGNORECASE,
)
_AROUND: Final = 80
_WORD: Final = re.compile(r"[^\s\"'<>()\[\]{}|,;:=，。；：、！？「」《》]+")
_SHOWN: Final = 32
_BETWEEN: Final = re.compile(r"(?<=0-00)X(?=00:)")
_FEW: Final = 60
"""Characters that are still `words`."""


class Found(NamedTuple):
    start: int
    end: int
    kind: str


def machine_made(text: str, at: int) -> Found | None:
    """The time, id, number or address that stands at `at`, or ends there."""
    begin = max(0, at - _AROUND)
    for found in _PATTERNS.finditer(text, begin, min(len(text), at + _AROUND)):
        if found.start() > at:
            return None
        if found.end() >= at and (found.end() > at or not _more(text, at)):
            assert found.lastgroup is not None
            return Found(found.start(), found.end(), found.lastgroup)
    return None


def _more(text: str, at: int) -> bool:
    """Whether something else than what ends at `at` begins there."""
    return at < len(text) and text[at].isdigit()


def word(text: str, at: int) -> tuple[int, int]:
    """(start, end) of the word about `at`, up to blanks, quotes, brackets and signs; in Chinese, of the sentence."""
    begin = max(0, at - _AROUND)
    for found in _WORD.finditer(text, begin, min(len(text), at + _AROUND)):
        if found.start() > at:
            break
        if found.end() >= at:
            return found.start(), found.end()
    return at, at


def kind_of(text: str) -> str:
    """Of a varying piece by itself."""
    found = _PATTERNS.search(text)
    if found is not None and found.lastgroup is not None and found.end() - found.start() >= len(text.strip()) * 0.6:
        return found.lastgroup
    return WORDS if len(text) <= _FEW else TEXT


def shape(text: str) -> str:
    """Digits as 0, letters as x or X: 0000-00-00T00:00, XXX-0000; of a longer piece the beginning. It says where to
    look, and nothing of what was written."""
    shown = _BETWEEN.sub("T", "".join(map(_sign, text[:_SHOWN])))
    return shown if len(text) <= _SHOWN else shown + "…"


def _sign(ch: str) -> str:
    if ch.isdigit():
        return "0"
    if ch.isalpha():
        return "X" if ch.isupper() else "x"
    return " " if ch.isspace() or not ch.isprintable() else ch


def unnumbered(text: str) -> str:
    """The text with its digits all 0: two prompts that differ in a time are one then."""
    return _DIGITS.sub("0", text)


_DIGITS: Final = re.compile(r"\d+")
