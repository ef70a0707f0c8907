"""A question, taken apart: what it is about (tokens, in order) and how it is framed (negation, question word, …)."""

from __future__ import annotations

import re
from operator import add
from typing import Final, NamedTuple

from forebay.cache.semantic.guard.forms import words
from forebay.cache.semantic.guard.framing import PRONOUNS, Framing
from forebay.cache.semantic.guard.lexicon import LEXICON
from forebay.cache.semantic.guard.pieces import Piece, cut, normal
from forebay.cache.semantic.guard.values import valued

__all__ = ["LONGEST", "MOST", "Reading", "Token", "read"]

LONGEST: Final = 1_000
"""Characters of a text that are looked at."""
MOST: Final = 200
"""Tokens that are; texts with more of either are the same only where they are equal."""
_LETTERS: Final = re.compile(r"[^\W_]+")
_HAN: Final = re.compile(r"[\u3400-\u9fff]+")
_NONE: Final[frozenset[str]] = frozenset()
_COMPARING: Final = frozenset(words("under below above over beneath"))
_SYMMETRIC: Final = frozenset({"differenc", "distanc", "区别", "距离"})
_TENSES: Final = {"was": "past", "were": "past", "did": "past", "will": "future", "shall": "future"} | dict.fromkeys(
    ("is", "are", "am"), "present"
)
_RELATIVE: Final = frozenset({"when", "where", "which", "who"})
_RATED: Final = frozenset({"如何", "怎样", "咋样"})
"""At the end they ask how something is, not how it is done."""
_SUFFERED: Final = frozenset({"被", "遭", "受"})
_PLAIN: Final = frozenset(words("的 是 呢 啊 了 呀 请 请问 在 里 中 一下 想知道 我想知道 告诉我 什么的 这个 那个"))
_CALENDAR: Final = {
    "s:3600": ("hourly", "每小时"),
    "s:86400": ("daily", "每天"),
    "s:604800": ("weekly", "每周"),
    "months:1": ("monthly", "每月"),
    "months:12": ("yearly", "每年"),
}


class Token(NamedTuple):
    """A word that says what the question is about."""

    key: str
    senses: frozenset[str]
    kinds: frozenset[str]
    sort: str
    """word, char (Chinese, in no known word), number, id, name (capitalised), acronym, light, stand-in (of a question
    word)."""
    role: str
    """from, to, than, by, …: of the preposition before it."""
    known: bool
    """In the lexicon."""
    weight: float
    """How much it says, 0–1."""


class Reading(NamedTuple):
    text: str
    """Normalised."""
    tokens: tuple[Token, ...]
    questions: frozenset[str]
    """how, why, when, where, who, what, which, amount, whether, …"""
    negations: int
    scopes: tuple[str, ...]
    modals: frozenset[str]
    tenses: frozenset[str]
    persons: frozenset[str]
    linked: bool
    """Holds and, or, between, the distance of two: an order that says nothing."""
    chinese: float
    """Share of Chinese characters among letters."""
    foreign: bool
    """In a script that is neither Latin nor Chinese, or mostly in words that are in no lexicon."""
    grams: frozenset[str]
    """Pairs of neighbouring characters, blanks and marks left out."""
    pieces: tuple[str, ...]
    """Everything but punctuation, in order."""
    framing: Framing
    clauses: bool
    """Several: what stands before what says less."""
    long: bool
    """It was not looked at to its end."""


def read(text: str) -> Reading:
    """Takes 10 to 100 µs for a question of up to 30 words."""
    shown = normal(text)
    return _frame(shown.lower(), valued(cut(shown[:LONGEST])))


def _frame(text: str, pieces: list[Piece]) -> Reading:
    tokens: list[Token] = []
    questions: set[str] = set()
    scopes: list[str] = []
    modals: set[str] = set()
    tenses: set[str] = set()
    persons: set[str] = set()
    named = {"modal": modals, "tense": tenses, "person": persons}
    negations = 0
    linked = foreign = False
    role = ""
    used = False
    pronouns = _Pronouns()
    weak: list[str] = []
    little: list[str] = []
    has = equals = False
    for at, piece in enumerate(pieces):
        sort, key, entry = piece.sort, piece.key, piece.entry
        pronouns.see(piece, tokens)
        if entry is not None and entry.sort in ("function", "question", "whether"):
            has, equals = has or "有" in piece.text, equals or "是" in piece.text
        if sort == "word" and (tense := _TENSES.get(piece.text)) is not None:
            tenses.add(tense)
        if entry is not None and not (piece.name and entry.sort != "same"):
            what, name, senses, kinds, _ = entry
            if what == "same":
                tokens.append(Token(key, senses, kinds, _sort(piece), role, True, 1.0))
                used = True
                linked = linked or not _SYMMETRIC.isdisjoint(senses)
                continue
            if used:  # the words that the preposition goes with have ended
                role, used = "", False
            if what == "light":
                tokens.append(Token(key, senses, kinds, "light", role, True, 0.35 if name == "noun" else 0.15))
            elif what in ("question", "negation"):
                if what == "negation":
                    negations += 1
                elif name in _RELATIVE and questions and " " not in key:
                    continue
                elif piece.text in _RATED and pronouns.said and _ends(pieces, at):
                    questions.add("rate")
                else:
                    questions.add(name)
                if key not in senses:
                    tokens.append(Token(key, senses, kinds, "stand-in", "", True, 0.0))
                linked = linked or name == "far"
            elif what == "scope":
                if name == "first":
                    tokens.append(Token("ord:1", frozenset({"ord:1"}), _NONE, "number", role, True, 1.0))
                elif piece.text not in _COMPARING or (at + 1 < len(pieces) and pieces[at + 1].sort == "value"):
                    scopes.append(name)
            elif what == "role" and name == "to" and _last(pieces, at):
                arrived = LEXICON.chinese["收到"]  # 什么时候到
                tokens.append(Token("收到", arrived.senses, arrived.kinds, "word", "", True, 1.0))
            elif what == "role":
                role = name
                (weak if piece.text in _SUFFERED else little).append(key)
                linked = linked or name == "and"
            elif what == "whether":
                questions.add("whether")
                if name:
                    modals.add(name)
            elif what == "function":
                (weak if name == "weak" else little).append(key)
            else:
                named[what].add(name)
            continue
        if sort == "word":
            tokens.append(Token(key, frozenset((key,)), _NONE, _sort(piece), role, False, 1.0))
        elif sort == "han":
            single = len(key) == 1
            tokens.append(
                Token(key, frozenset((key,)), _NONE, "char" if single else "word", role, False, 0.6 if single else 1.0)
            )
        elif sort == "value":
            senses = frozenset((key, *_CALENDAR[key])) if key in _CALENDAR else frozenset((key,))
            tokens.append(Token(key, senses, _NONE, "number", role, True, 1.0))
        elif sort in ("id", "link", "code"):
            key = key or piece.text
            tokens.append(Token(key, frozenset((key,)), _NONE, "id", role, False, 1.0))
        elif sort == "other":
            foreign = True
            tokens.append(Token(piece.text, frozenset((piece.text,)), _NONE, "word", role, False, 1.0))
        elif sort == "sign" and (_beside_value(pieces, at) or piece.text in ("&", "=", "<", ">")):
            tokens.append(Token(piece.text, frozenset((piece.text,)), _NONE, "id", role, True, 1.0))
        else:
            if used:
                role, used = "", False
            continue
        used = True
    if "define" in questions:  # such words are then what is asked about: 西吧是什么意思
        weak += [word for word in little if not word.isascii() and word not in _PLAIN]
    letters = "".join(_LETTERS.findall(text[:LONGEST]))
    latin = [piece for piece in pieces if piece.sort == "word"]
    foreign = foreign or sum(piece.entry is not None for piece in latin) < 0.4 * len(latin) - 1
    return Reading(
        text,
        tuple(tokens[:MOST]),
        frozenset(questions),
        negations,
        tuple(sorted(scopes)),
        frozenset(modals),
        frozenset(tenses),
        frozenset(persons),
        linked,
        sum(map(len, _HAN.findall(letters))) / len(letters) if letters else 0.0,
        foreign,
        frozenset(map(add, letters, letters[1:])),
        tuple([piece.key or piece.text for piece in pieces if piece.sort != "stop"]),
        Framing(*pronouns.end(tokens), tuple(sorted(weak)), has, equals),
        any(piece.sort == "stop" for piece in pieces[:-1]),
        len(text) > LONGEST or len(tokens) > MOST,
    )


class _Pronouns:
    """Where they stand in their clauses."""

    def __init__(self) -> None:
        self.said = False
        """The clause has a word that says something."""
        self._count = 0
        self._led = False
        """The piece before is a preposition: 把我."""
        self._open: list[tuple[str, bool]] = []
        self._order: list[str] = []
        self._subjects: set[str] = set()
        self._objects: set[str] = set()

    def see(self, piece: Piece, tokens: list[Token]) -> None:
        """`tokens`: of the pieces before."""
        if len(tokens) > self._count:
            if any(token.weight > 0.3 for token in tokens[self._count :]):
                self._subjects.update(person for person, _ in self._open)
                self._open.clear()
                self.said = True
            self._count = len(tokens)
        if piece.sort == "stop":
            self._close()
            self.said = False
        elif (person := PRONOUNS.get(piece.text)) is not None:
            self._order.append(person)
            if self._led:
                self._objects.add(person)
            else:
                self._open.append((person, self.said))
        entry = piece.entry
        self._led = entry is not None and entry.sort == "role" and entry.name != "and"

    def end(self, tokens: list[Token]) -> tuple[frozenset[str], frozenset[str], tuple[str, ...]]:
        """Subjects, objects, all in order."""
        self.see(_NOTHING, tokens)
        self._close()
        return frozenset(self._subjects), frozenset(self._objects), tuple(self._order)

    def _close(self) -> None:
        for person, said in self._open:
            (self._objects if said else self._subjects).add(person)
        self._open.clear()


_NOTHING: Final = Piece("", "")


def _ends(pieces: list[Piece], at: int) -> bool:
    """Nothing that says anything comes after it in its clause."""
    for piece in pieces[at + 1 :]:
        if piece.sort == "stop":
            return True
        if piece.entry is None or piece.entry.sort != "function":
            return False
    return True


def _last(pieces: list[Piece], at: int) -> bool:
    """到, as a verb: nothing comes after it."""
    return pieces[at].text == "到" and all(
        piece.sort == "stop" or (piece.entry is not None and piece.entry.sort in ("function", "question"))
        for piece in pieces[at + 1 :]
    )


def _sort(piece: Piece) -> str:
    return "acronym" if piece.name and piece.acronym else "name" if piece.name else "word"


def _beside_value(pieces: list[Piece], at: int) -> bool:
    return any(0 <= near < len(pieces) and pieces[near].sort == "value" for near in (at - 1, at + 1))
