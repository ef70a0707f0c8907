"""What words mean to the guard: read once from `words/*.txt`, and never changed.

A line is one meaning, its words split by commas (English, phrases of several words allowed) or spaces (Chinese); a line
`@…` says of what sort the lines after it are:

- `@same`: words for one meaning. A word may be on several lines: it has several meanings.
- `@kind NAME`: one meaning a line, and no two of the kind are the same thing (towns, colours, days of the week).
- `@opposite`: words of one pole, a |, words of the other. What means the same as such a word is at its pole, too.
- `@question TYPE =WORD`: what a question asks for; it stands for WORD, too ("how" for "way").
- `@scope NAME`, `@modal NAME`, `@tense NAME`, `@person NAME`: what frames a question. `@scope` words
  change the answer where they are on one side only.
- `@negation`; `@whether` (a question's form in Chinese: 能不能).
- `@role NAME`: prepositions and the like that say what the next word is to the verb.
- `@light`: words that say little ("want", "step"); `@light noun`: that stand for what it is about, though ("account").
- `@function`: words that say nothing; `@function weak`: that may; `@function wish`, `@function marks`: that may, but
  for questions how, and for questions that ask by a question word (`framing`).
- `@split`: a word, =, and the words that stand for it (解绑 = 解除 绑定).
- `@word`: a word of its own that must not be cut in two (Chinese), or is known (for typing errors).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.resources import files
from types import MappingProxyType
from typing import Final, NamedTuple

from forebay.cache.semantic.guard.forms import stem

__all__ = ["LEXICON", "Entry", "Lexicon"]


class Entry(NamedTuple):
    """What one word or phrase is."""

    sort: str
    """same, split, question, scope, modal, tense, person, negation, whether, role, light, function."""
    name: str
    """Of a frame; of a word, its key."""
    senses: frozenset[str]
    kinds: frozenset[str]
    parts: tuple[str, ...] = ()
    """Of a word that is split."""


class Lexicon(NamedTuple):
    english: Mapping[str, Entry]
    """By stem."""
    phrases: Mapping[str, Mapping[str, tuple[tuple[tuple[str, ...], Entry], ...]]]
    """By the first stem and the second: phrases (all stems), the longest first."""
    chinese: Mapping[str, Entry]
    longest: int
    """Characters of the longest Chinese word."""
    opposite: Mapping[str, frozenset[str]]
    """By a sense, those at the other pole."""


class _Draft:
    def __init__(self) -> None:
        self.sort = ""
        self.name = ""
        self.senses: set[str] = set()
        self.kinds: set[str] = set()
        self.parts: tuple[str, ...] = ()


def _lines(name: str) -> Iterator[tuple[str, str, str]]:
    """Sort, name, line."""
    sort = name_of = ""
    text = (files(__package__) / "words" / name).read_text("utf-8")
    for line in text.splitlines():
        line = line.split("#")[0].strip()
        if not line:
            continue
        if line.startswith("@"):
            sort, _, name_of = line[1:].partition(" ")
            continue
        yield sort, name_of.strip(), line


def _read(name: str, chinese: bool, opposites: dict[str, set[str]]) -> dict[str, Entry]:
    drafts: dict[str, _Draft] = {}
    poles: list[tuple[list[str], list[str]]] = []

    def words(text: str) -> list[str]:
        if chinese:
            return text.split()
        return [" ".join(stem(part) for part in word.split()) for word in text.split(",") if word.strip()]

    for sort, name_of, line in _lines(name):
        if sort == "opposite":
            one, _, other = line.partition("|")
            poles.append((words(one), words(other)))
            continue
        if sort == "split":
            whole, _, parts = line.partition("=")
            draft = drafts.setdefault(words(whole)[0], _Draft())
            draft.sort, draft.parts = sort, tuple(words(parts))
            continue
        every = words(line)
        for word in every:
            draft = drafts.setdefault(word, _Draft())
            if sort in ("same", "kind"):
                draft.senses.add(every[0])
                draft.sort = draft.sort or "same"
                if sort == "kind":
                    draft.kinds.add(name_of)
            elif sort == "word":
                draft.sort = draft.sort or "same"
            else:
                draft.sort = sort
                draft.name, _, stands_for = name_of.partition(" =")
                if stands_for:
                    draft.senses.update(words(stands_for))
    for ones, others in poles:
        for word in (*ones, *others):
            draft = drafts.setdefault(word, _Draft())
            draft.sort = draft.sort or "same"
            draft.senses = draft.senses or {word}
        for left in ones:
            for right in others:
                for sense in drafts[left].senses & drafts[right].senses:
                    raise ValueError(f"words/{name}: {left!r} and {right!r} are opposite, and the same ({sense!r})")
                _oppose(opposites, drafts[left].senses if len(drafts[left].senses) == 1 else {left}, right, drafts)
    return {
        word: Entry(
            draft.sort, draft.name or word, frozenset(draft.senses or {word}), frozenset(draft.kinds), draft.parts
        )
        for word, draft in drafts.items()
    }


def _oppose(opposites: dict[str, set[str]], left: set[str], right: str, drafts: dict[str, _Draft]) -> None:
    """A word of several meanings is opposed by itself alone: which of them is meant, the line does not say."""
    other = drafts[right].senses if len(drafts[right].senses) == 1 else {right}
    for word in (*left, *other):
        if word in drafts and len(drafts[word].senses) > 1:
            drafts[word].senses.add(word)
    for one in left:
        opposites.setdefault(one, set()).update(other)
    for one in other:
        opposites.setdefault(one, set()).update(left)


def _load() -> Lexicon:
    opposites: dict[str, set[str]] = {}
    english: dict[str, Entry] = {}
    phrases: dict[str, dict[str, list[tuple[tuple[str, ...], Entry]]]] = {}
    chinese = _read("zh.txt", True, opposites)
    latin = _read("en.txt", False, opposites)
    for word, entry in chinese.items():
        if word.isascii() and entry.sort == "same":  # app, wifi: in both
            known = latin.get(key := stem(word))
            latin[key] = entry if known is None else known._replace(senses=known.senses | entry.senses)
    for word, entry in latin.items():
        parts = tuple(word.split())
        if len(parts) == 1:
            english[word] = entry
        else:
            phrases.setdefault(parts[0], {}).setdefault(parts[1], []).append((parts, entry))
    sorted_phrases = {
        first: MappingProxyType(
            {second: tuple(sorted(some, key=lambda p: -len(p[0]))) for second, some in more.items()}
        )
        for first, more in phrases.items()
    }
    return Lexicon(
        MappingProxyType(english),
        MappingProxyType(sorted_phrases),
        MappingProxyType(chinese),
        max(map(len, chinese)),
        MappingProxyType({one: frozenset(others) for one, others in opposites.items()}),
    )


LEXICON: Final = _load()
