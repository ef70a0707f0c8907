"""What two answers say, clause by clause, as numbers for the judge.

Each answer is cut into clauses; the guard reads each, the embedder makes a vector of each, and a clause's counterpart
is the nearest of the other answer. An answer may well leave out what another adds: so most features ask what the
shorter one says that the longer one does not, or what *both* say, differently.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from forebay.cache.semantic.guard import Reading, compare, read
from forebay.cache.semantic.guard.forms import words
from forebay.cache.semantic.guard.lexicon import LEXICON
from forebay.cache.semantic.guard.reading import Token

__all__ = ["FEATURES", "SIGNS", "Encode", "Said", "Vector", "features", "links", "said"]

Vector = npt.NDArray[np.float32]
Encode = Callable[[Sequence[str]], "Sequence[Vector | None]"]
"""Texts to rows of length 1; None where one cannot be compared."""

SIGNED: Final = (
    ("cosine", -1),
    ("cosine_low", -1),
    ("aligned_least", -1),
    ("covered_back", -1),
    ("numbers_apart", 1),
    ("numbers_clash", 1),
    ("numbers_shared", -1),
    ("numbers_equal", -1),
    ("ids_apart", 1),
    ("ids_shared", -1),
    ("quoted_apart", 1),
    ("names_apart", 1),
    ("opposites", 1),
    ("polarity", 1),
    ("rivals", 1),
    ("code_apart", 1),
    ("commands_apart", 1),
    ("roles", 1),
    ("conflict_sure", 1),
    ("negated_sure", 1),
    ("lengths", 0),
    ("short", 0),
    ("clauses", 0),
    ("drawn", 1),
    ("own_words", 1),
    ("drawn_short", 0),
    ("drawn_own", 0),
    ("drawn_numbers", -1),
    ("own_numbers", -1),
    ("numbers_sure", 1),
    ("names_sure", 1),
)
"""Name, and whether more of it speaks for two answers that differ (1), that say the same (-1), or either (0). How much
alike the two *questions* are is none of them: of what a cache would serve they always are."""
FEATURES: Final = tuple(name for name, _ in SIGNED)
SIGNS: Final = tuple(sign for _, sign in SIGNED)

OBJECTIONS: Final = frozenset(("antonym", "entity", "number", "date", "negation", "order", "unit"))
"""Of the guard, that count between two clauses."""
MOST_CLAUSES: Final = 24
SHORT: Final = 120
"""Characters."""

_CODE: Final = re.compile(r"```\w*\n(.*?)```|`([^`\n]+)`", re.DOTALL)
_LINK: Final = re.compile(
    r"(?:https?://|www\.)[^\s<>()\"'，。]+|[\w.+-]+@[\w-]+(?:\.[\w-]+)+|\b[\w-]+(?:\.[a-z0-9-]+)*\.[a-z]{2,}\b"
)
_QUOTED: Final = re.compile(r"“([^”\n]{1,40})”|\"([^\"\n]{1,40})\"|「([^」\n]{1,40})」|\*\*([^*\n]{1,40})\*\*")
_ITEM: Final = re.compile(r"^\s*(?:[-*+•]|\d{1,2}[.)、]|#+|>|\|)\s*", re.MULTILINE)
_ENDS: Final = re.compile(r"(?<=[。！？；!?;])\s*|(?<=[.:])\s+|\n+|：(?=.{12})")
_WORD: Final = re.compile(r"[A-Za-z_][\w.-]*|--?[\w-]+")
_MONTH: Final = "s:2592000"
"""30 days."""
_NO_NUMBER: Final = re.compile(r"[一二三四五六](?=氧化)")
_STEPS: Final = re.compile(
    r"\b(?:two|three|four|five|six|\d)\s(?:\w+\s)?steps\b|[两二三四五六]步(?!验证)", re.IGNORECASE
)
_GRAMS: Final = re.compile(r"(?<=\d)\s?g\b")
_DIGITS: Final = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?!\.\s|[)、])")
_CAPITAL: Final = re.compile(r"\b[A-ZÀ-Þ][\w-]{2,}")
_PLAIN_CAPITAL: Final = frozenset(
    words("the that this it's you your for and with yes not its here use run all are can our has was more than most")
)
_PLAIN_CODE: Final = frozenset(("sudo", "bash", "sql", "python", "the", "with", "as"))
_COMMANDED: Final = frozenset(("git", "docker", "kubectl", "systemctl", "apt", "pip", "npm", "brew", "conda", "helm"))
"""Programs whose second word is the command."""
_HAN: Final = re.compile(r"[\u4e00-\u9fff]")
_YES: Final = re.compile(
    r"^\W*(?:yes|sure|certainly|of course|absolutely|definitely|you can|you may|可以|能|支持|有的|有[。，,]|是的|会|含|"
    r"包括|属于|给的|当然|没问题)",
    re.IGNORECASE,
)
_NO: Final = re.compile(
    r"^\W*(?:no\b|unfortunately|sorry|i'?m sorry|i'?m afraid|not\b|you can(?:no|')t|you must not|you should ?n|不|没有|"
    r"无法|抱歉|很抱歉|目前不|暂时不|暂不|最好不|禁止|严禁)",
    re.IGNORECASE,
)
_NEGATED: Final = re.compile(
    r"\b(?:not|no|never|cannot|none|neither|nor|without|un(?:able|safe|fortunately)|forbidden|prohibited|excluded|toxic)"
    r"\b|n't\b|不(?!同|过|仅|但|会太|管|久|错|断|少)|没有?|无法|无需|禁止|严禁|别(?!的)|勿|未",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Said:
    """One answer."""

    text: str
    clauses: tuple[str, ...]
    readings: tuple[Reading, ...]

    @cached_property
    def tokens(self) -> tuple[Token, ...]:
        return tuple(token for reading in self.readings for token in reading.tokens)

    @cached_property
    def senses(self) -> frozenset[str]:
        return frozenset(sense for token in self.tokens for sense in token.senses)

    @cached_property
    def words(self) -> dict[str, Token]:
        """What says something, once each."""
        return {t.key: t for t in self.tokens if t.weight >= 0.6 and t.sort in ("word", "name", "acronym", "char")}

    @cached_property
    def numbers(self) -> frozenset[str]:
        found = {t.key for t in self.tokens if t.sort == "number" and t.key not in ("1", "times:1", "ord:1")}
        return frozenset(found | {_MONTH} if "months:1" in found else found)

    @cached_property
    def names(self) -> frozenset[str]:
        return frozenset(t.key for t in self.tokens if t.sort in ("name", "acronym"))

    @cached_property
    def grams(self) -> frozenset[str]:
        return frozenset(gram for reading in self.readings for gram in reading.grams)

    @cached_property
    def named(self) -> frozenset[str]:
        """Words with a capital, also at the beginning, and names in no lexicon."""
        return self.names | frozenset(word.casefold() for word in _CAPITAL.findall(self.text)) - _PLAIN_CAPITAL

    def clause(self, at: int) -> Said:
        return Said(self.clauses[at], self.clauses[at : at + 1], self.readings[at : at + 1])

    @cached_property
    def values(self) -> frozenset[str]:
        """Of the numbers, without their units, rounded to three digits; times in each unit that fits; and digits as
        they stand."""
        found = {d.replace(",", "") for d in _DIGITS.findall(_CODE.sub(" ", self.text))}
        for key in self.numbers:
            dimension, _, value = key.rpartition(":")
            found.add(value)
            if dimension == "s" and value.isdigit():
                found.update(str(int(value) // unit) for unit in (60, 3_600, 86_400) if int(value) % unit == 0)
        return frozenset(_rounded(value) for value in found) - {"1", "0"}

    @cached_property
    def code(self) -> tuple[frozenset[str], ...]:
        """The words of each piece of code, or of each of its lines."""
        spans = [
            line for block, inline in _CODE.findall(self.text) for line in ((block or inline).splitlines()) if line
        ]
        found = (frozenset(word.casefold() for word in _WORD.findall(span)) - _PLAIN_CODE for span in spans)
        return tuple(piece for piece in found if piece)

    @cached_property
    def commands(self) -> frozenset[str]:
        """The first word of each piece of code, and its flags; of one that begins with capitals (SQL), all such."""
        found = set[str]()
        for block, inline in _CODE.findall(self.text):
            for line in (block or inline).splitlines():
                spoken = [w for w in _WORD.findall(line) if w.casefold() not in _PLAIN_CODE]
                shouted = bool(spoken) and len(spoken[0]) > 2 and spoken[0].isupper()
                found.update(w.casefold() for w in spoken[: 2 if spoken and spoken[0] in _COMMANDED else 1])
                found.update(w.casefold() for w in spoken[1:] if w.startswith("-") or (shouted and w.isupper()))
        return frozenset(found)

    @cached_property
    def roles(self) -> frozenset[tuple[str, str]]:
        return frozenset((t.role, t.key) for t in self.tokens if t.role and t.weight >= 0.6)

    @cached_property
    def ids(self) -> frozenset[str]:
        """Links, and what the guard takes for names of things; code apart."""
        found = set(links(_CODE.sub(" ", self.text)))
        found.update(t.key for t in self.tokens if t.sort == "id" and len(t.key) > 1)
        return frozenset(found)

    @cached_property
    def quoted(self) -> frozenset[str]:
        return frozenset(
            " ".join("".join(groups).casefold().strip(" .:：").split()) for groups in _QUOTED.findall(self.text)
        ) - {""}

    @cached_property
    def polarity(self) -> int:
        """Of how it begins: 1 yes, -1 no, 0 neither."""
        head = self.clauses[0] if self.clauses else ""
        if _NO.search(head):
            return -1
        return 1 if _YES.search(head) else 0


def _rounded(value: str) -> str:
    try:
        return f"{float(value):.3g}"
    except ValueError:
        return value


def links(text: str) -> frozenset[str]:
    return frozenset(_LINK.findall(text.casefold()))


def said(text: str) -> Said:
    prose = _CODE.sub(" ", text)
    if not re.search(r"\w", prose):
        prose = text
    bare = _ITEM.sub("", prose.replace("**", "\0")).replace("\0", "")
    bare = _STEPS.sub("", bare)
    bare = _GRAMS.sub(" grams", _NO_NUMBER.sub("", bare))
    clauses = [c for part in _ENDS.split(bare) if (c := part.strip(" \t-*|`")) and re.search(r"\w", c)]
    clauses = clauses[: MOST_CLAUSES - 4] + clauses[-4:] if len(clauses) > MOST_CLAUSES else clauses
    return Said(text, tuple(clauses), tuple(map(read, clauses)))


def features(
    fresh: str, known: str, encode: Encode | None, asked: str = "", known_question: str = ""
) -> tuple[float, ...] | None:
    """In the order of FEATURES; None where a text has no vector. `encode` None: by the words alone. `asked`,
    `known_question`: what the two answer, "" where it is not known."""
    one, other = said(fresh), said(known)
    if not one.clauses or not other.clauses:
        return None
    questions = [asked, known_question] if asked and known_question and asked != known_question else []
    cosine = drawn = own = 0.0
    if encode is None:
        grid = np.array([[_alike(a, b) for b in _each(other)] for a in _each(one)], dtype=np.float32)
    else:
        rows = encode([fresh, known, *questions, *one.clauses, *other.clauses])
        found = [row for row in rows if row is not None]
        if len(found) < len(rows):
            return None
        vectors = np.stack(found)
        start = 2 + len(questions)
        grid = vectors[start : start + len(one.clauses)] @ vectors[start + len(one.clauses) :].T
        cosine = float(vectors[0] @ vectors[1])
        if questions:
            apart, answers_apart = vectors[2] - vectors[3], vectors[0] - vectors[1]
            lengths = float(np.linalg.norm(apart) * np.linalg.norm(answers_apart))
            drawn = float(apart @ answers_apart) / max(1e-6, lengths)
    if questions:
        own = _own_words(said(asked), said(known_question), one, other)
    if len(fresh) > len(known):
        one, other, grid = other, one, grid.T  # `one` is the shorter
    best = grid.max(axis=1)
    longest = max(len(one.text), len(other.text))
    long = longest > SHORT
    numbers = max(_shared(one.numbers, other.numbers), _shared(one.values, other.values, 0.0))
    other_numbers = _apart(one.numbers, other.numbers) and _apart(one.values, other.values)
    equal = float(bool(one.values) and one.values == other.values)
    return (
        cosine,
        min(cosine, 0.6),
        float(best.min()),
        _covered(other, one),
        float(other_numbers),
        float(_clash(one.numbers, other.numbers)) * (1.0 - equal),
        numbers,
        equal,
        float(_apart(one.ids, other.ids)),
        _shared(one.ids, other.ids),
        float(_apart(one.quoted, other.quoted)),
        float(_names_apart(one, other)),
        _nearby(one, other, grid),
        float(one.polarity * other.polarity < 0),
        min(3.0, _rivals(one, other)),
        _code_apart(one, other),
        float(bool(one.commands) and bool(other.commands)) * (1 - _shared(one.commands, other.commands)),
        _turned(one, other),
        *_sure(one, other, grid),
        len(one.text) / longest,
        float(not long),
        min(1.0, len(one.clauses) / 8),
        drawn,
        own,
        drawn * (not long),
        drawn * own,
        max(0.0, drawn) * equal,
        own * equal,
        float(other_numbers and _clash(one.numbers, other.numbers) > 0 and not long),
        float(_names_apart(one, other) and not long),
    )


def _each(one: Said) -> Iterator[Said]:
    return (one.clause(i) for i in range(len(one.clauses)))


def _alike(one: Said, other: Said) -> float:
    """Of two clauses, by their words, in place of the cosine."""
    return (_covered(one, other) + _covered(other, one)) / 2 if one.words and other.words else 0.0


def _covered(one: Said, other: Said) -> float:
    """Of what `one` says, the share by weight that the other says, too. Rare words, those in no lexicon, count more."""
    total = shared = 0.0
    for token in one.words.values():
        weight = token.weight * (1.0 if token.known else 1.5)
        total += weight
        if not token.senses.isdisjoint(other.senses):
            shared += weight
        elif _HAN.search(token.key) and all(g in other.grams for g in map(str.__add__, token.key, token.key[1:])):
            shared += weight * (1.0 if len(token.key) > 1 else 0.5)
    return shared / total if total else 1.0


def _shared(one: frozenset[str], other: frozenset[str], where_none: float = 0.5) -> float:
    """Of the fewer."""
    least = min(len(one), len(other))
    return len(one & other) / least if least else where_none


def _apart(one: frozenset[str], other: frozenset[str]) -> bool:
    return bool(one) and bool(other) and one.isdisjoint(other)


def _clash(one: frozenset[str], other: frozenset[str]) -> int:
    """Dimensions of which both name values, and none in common."""

    def by_dimension(keys: frozenset[str]) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for key in keys:
            found.setdefault(key.partition(":")[0] if ":" in key else "", set()).add(key)
        return found

    mine, theirs = by_dimension(one), by_dimension(other)
    return min(3, sum(mine[d].isdisjoint(theirs[d]) for d in mine.keys() & theirs.keys()))


def _opposites(one: Said, other: Said) -> float:
    """Words of the one whose opposite the other says, and that are each said by one alone."""
    count = 0
    for token in one.tokens:
        if token.senses.isdisjoint(other.senses):
            poles = [found for sense in token.senses if (found := LEXICON.opposite.get(sense)) is not None]
            count += any(not (pole & other.senses) <= one.senses for pole in poles)
    return float(count)


def _rivals(one: Said, other: Said) -> float:
    """Kinds (places, brands, colours, …) of which each names another one, and none both."""
    mine = [t for t in one.tokens if t.kinds and t.senses.isdisjoint(other.senses)]
    theirs = [t for t in other.tokens if t.kinds and t.senses.isdisjoint(one.senses)]
    return float(len({k for t in mine for k in t.kinds} & {k for t in theirs for k in t.kinds}))


def _nearby(one: Said, other: Said, grid: npt.NDArray[np.float32]) -> float:
    """Of the clauses that are each other's nearest, the share that hold opposites."""
    pairs = list(_mutual(grid, 0.5))
    found = 0
    for i, j in pairs:
        mine, theirs = one.clause(i), other.clause(j)
        found += min(_covered(mine, theirs), _covered(theirs, mine)) >= 0.4 and _opposites(mine, theirs) > 0
    return found / max(1, len(pairs))


def _mutual(grid: npt.NDArray[np.float32], least: float) -> Iterator[tuple[int, int]]:
    """Clauses that are each other's nearest, from this cosine on."""
    for i, j in enumerate(grid.argmax(axis=1)):
        if grid[i, j] >= least and grid[:, j].argmax() == i:
            yield i, int(j)


def _own_words(asked: Said, known_question: Said, fresh: Said, known: Said) -> float:
    """Whether each answer has its own question's words that the other question lacks, and the other answer does not;
    the more the questions have in common besides, the more it says."""

    def mentions(one: Said, other: Said, mine: Said, theirs: Said) -> float:
        alone = [t for t in one.tokens if t.weight >= 0.6 and t.senses.isdisjoint(other.senses)]
        own = sum(not t.senses.isdisjoint(mine.senses) and t.senses.isdisjoint(theirs.senses) for t in alone)
        return own / len(alone) if alone else 0.0

    both = min(mentions(asked, known_question, fresh, known), mentions(known_question, asked, known, fresh))
    return both * min(_covered(asked, known_question), _covered(known_question, asked))


def _jaccard(one: frozenset[str], other: frozenset[str]) -> float:
    return len(one & other) / max(1, len(one | other))


def _code_apart(one: Said, other: Said) -> float:
    """How much the two most similar pieces of code differ; 0 where one answer has none."""
    if not one.code or not other.code:
        return 0.0
    return 1 - max(_jaccard(a, b) for a in one.code for b in other.code)


def _turned(one: Said, other: Said) -> float:
    """Whether the two go the opposite way: something comes from where it goes to in the other, and the reverse."""

    def turned(role: str, back: str) -> bool:
        return any(
            r == role and (back, key) in other.roles and (r, key) not in other.roles and (back, key) not in one.roles
            for r, key in one.roles
        )

    return float(turned("from", "to") and turned("to", "from"))


def _names_apart(one: Said, other: Said) -> bool:
    """Both name somebody or something, and neither says a name of the other's."""
    if not one.names or not other.names:
        return False
    mine, theirs = one.text.casefold(), other.text.casefold()
    return not any(name in theirs for name in one.named) and not any(name in mine for name in other.named)


def _sure(one: Said, other: Said, grid: npt.NDArray[np.float32]) -> tuple[float, float]:
    """Of clauses that are each other's nearest and say the same words: whether the guard objects to one; whether one
    is negated on one side alone."""
    objects = negated = False
    for i, j in _mutual(grid, 0.7):
        mine, theirs = one.clause(i), other.clause(j)
        if min(_covered(mine, theirs), _covered(theirs, mine)) >= 0.66:
            objects = objects or compare(mine.readings[0], theirs.readings[0]).conflict in OBJECTIONS
            turned = bool(_NEGATED.search(mine.text)) != bool(_NEGATED.search(theirs.text))
            negated = negated or (turned and not _opposites(mine, theirs))
    return float(objects), float(negated)
