"""A question, taken apart: what it is about (tokens, in order) and how it is framed (negation, question word, …)."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from operator import add
from typing import Final, NamedTuple

from forebay.cache.semantic.guard import numerals
from forebay.cache.semantic.guard.forms import stem, words
from forebay.cache.semantic.guard.lexicon import LEXICON, Entry

__all__ = ["Reading", "Token", "read"]

_PIECES: Final = re.compile(
    r"""(?P<link>https?://[^\s<>"'，。]+|www\.[^\s<>"'，。]+|[\w.+-]+@[\w-]+\.[a-z]{2,}[\w.]*)"""
    r"""|(?P<code>c\+\+|[cfj]\#|\.net\b|[a-z]+(?:_[a-z0-9]+)+|--[a-z][a-z0-9-]+)"""
    r"""|(?P<clock>(?<![\d:])\d{1,2}:\d{2}(?::\d{2})?(?:\s?[ap]\.?m\b\.?)?)"""
    r"""|(?P<date>(?<!\d)(?:19|20)\d{2}[-/.]\d{1,2}[-/.]\d{1,2}(?!\d)|(?<![\d/])\d{1,4}/\d{1,4}(?:/\d{2,4})?(?![\d/]))"""
    r"""|(?P<number>(?<![a-z0-9_.])\d+(?:[.,]\d+)*(?![a-z\d_]))"""
    r"""|(?P<mixed>(?=[a-z-]*\d)(?:[a-z0-9]|(?<=[a-z0-9])[-.,](?=[a-z0-9]))+(?:%|°c|°f)?)"""
    r"""|(?P<word>[a-z\u00df-\u024f]+(?:'[a-z]+)?)"""
    r"""|(?P<han>[\u3400-\u9fff〇]+)"""
    r"""|(?P<other>[^\W\d_a-z\u3400-\u9fff]+)"""
    r"""|(?P<sign>[$€£¥%°℃℉+\-*/=<>^&\#@~≥≤×÷]+)"""
    r"""|(?P<stop>[,;:.?!、()\[\]{}"…]+)""",
    re.VERBOSE,
)
_REWRITTEN: Final = (("双11", "双十一"), ("双12", "双十二"), ("24/7", "24 hours"))
_EITHER: Final = re.compile(r"([\u3400-\u9fff])[不没]\1")
"""送不送 asks whether."""
_LETTERS: Final = re.compile(r"[^\W_]+")
_COUNTED: Final = re.compile(r"\d+-[a-z]{3,}")
_HAN: Final = re.compile(r"[\u3400-\u9fff]+")
_NONE: Final[frozenset[str]] = frozenset()
_QUOTES: Final = str.maketrans(
    {"’": "'", "‘": "'", "`": "'", "“": '"', "”": '"', "「": '"', "」": '"', "。": ".", "《": '"', "》": '"'}
)
_CONTRACTED: Final = {
    "can't": ("can", "not"), "cannot": ("can", "not"), "won't": ("will", "not"), "shan't": ("will", "not"),
    "ain't": ("is", "not"), "let's": ("let", "us"), "cant": ("can", "not"), "dont": ("do", "not"),
    "doesnt": ("does", "not"), "isnt": ("is", "not"), "wont": ("will", "not"), "didnt": ("did", "not"),
    "whats": ("what", "is"), "hows": ("how", "is"), "im": ("i", "am"), "ive": ("i", "have"),
}  # fmt: skip
_ENDINGS: Final = {"'m": "am", "'re": "are", "'ve": "have", "'ll": "will", "'d": "would"}
_HAS_IS: Final = frozenset(words("what how where who when why that it there here he she this which"))
_CURRENCIES: Final = {"$": "$", "€": "€", "£": "£", "¥": "¥", "￥": "¥"}
_MEASURE: Final = frozenset("个張张台件条本家份只支辆部款颗粒瓶杯盒包袋位名笔种项则套双间座根句篇首道层样")
_DAY_PARTS: Final = {"下午": 12, "晚上": 12, "傍晚": 12, "夜里": 12, "今晚": 12}
_OF_ONE: Final = frozenset(words("which that this the another no each every any some"))
_BEFORE_ONE: Final = frozenset(words("in within for after than about least most takes"))
_TIMES: Final = frozenset(words("second minute hour day week month year"))


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
    """In a script that is neither Latin nor Chinese."""
    grams: frozenset[str]
    """Pairs of neighbouring characters, blanks and marks left out."""
    pieces: tuple[str, ...]
    """Everything but punctuation, in order."""
    clauses: bool
    """Several: what stands before what says less."""


_PARTICLES: Final = frozenset(words("on off up down out back in away over"))
_AFTER_PARTICLE: Final = frozenset(words("in on at with from for when if and or after before by please to"))
_COMPARING: Final = frozenset(words("under below above over beneath"))
_SYMMETRIC: Final = frozenset({"differenc", "distanc", "区别", "距离"})
_TENSES: Final = {"was": "past", "were": "past", "did": "past", "will": "future", "shall": "future"}
_RELATIVE: Final = frozenset({"when", "where", "which", "who"})
_CALENDAR: Final = {
    "s:3600": ("hourly", "每小时"),
    "s:86400": ("daily", "每天"),
    "s:604800": ("weekly", "每周"),
    "months:1": ("monthly", "每月"),
    "months:12": ("yearly", "每年"),
}


@dataclass(slots=True)
class _Piece:
    sort: str
    text: str
    key: str = ""
    name: bool = False
    """Capitalised."""
    acronym: bool = False
    entry: Entry | None = None


def read(text: str) -> Reading:
    shown = unicodedata.normalize("NFKC", text).translate(_QUOTES).strip()
    for written, meant in _REWRITTEN:
        shown = shown.replace(written, meant)
    shown = _EITHER.sub(r"是否\1", shown)
    low = shown.lower()
    if len(low) != len(shown):
        shown = low
    pieces = _cut(low, shown)
    return _frame(low, _numbers(_phrases(_joined(pieces))))


def _cut(low: str, shown: str) -> list[_Piece]:
    """Words, Chinese words, numbers and signs, in order."""
    found: list[_Piece] = []
    begins = True
    spelled = capitals = 0
    for match in _PIECES.finditer(low):
        sort = match.lastgroup or ""
        piece = match.group()
        if sort == "word":
            first = shown[match.start()]
            upper = first != piece[0]
            acronym = upper and len(piece) > 1 and shown[match.start() : match.end()].isupper()
            spelled += 1
            capitals += upper
            _words(found, piece, acronym or (upper and not begins and piece != "i" and not piece.startswith("i'")))
            found[-1].acronym = acronym
        elif sort == "han":
            _segment(found, piece)
        elif sort == "mixed" and _COUNTED.fullmatch(piece):
            number, _, unit = piece.partition("-")
            found += (_Piece("number", number), _Piece("word", unit, stem(unit)))
        else:
            found.append(_Piece(sort, piece))
        begins = sort == "stop" and piece[-1] in '.?!:"'
    if spelled > 2 and capitals > 0.6 * spelled:  # a title, or shouting: capitals say nothing
        for one in found:
            one.name = False
    return found


def _words(found: list[_Piece], word: str, name: bool) -> None:
    if (parts := _CONTRACTED.get(word)) is not None:
        found.extend(_Piece("word", part, stem(part)) for part in parts)
        return
    bare, mark, ending = word.partition("'")
    if not mark:
        found.append(_Piece("word", word, stem(word), name))
        return
    if ending == "t" and bare.endswith("n"):
        bare, more = bare[:-1], "not"
    elif ending == "s":
        more = "is" if bare in _HAS_IS else ""
    else:
        more = _ENDINGS.get(mark + ending, "")
    found.append(_Piece("word", bare, stem(bare), name))
    if more:
        found.append(_Piece("word", more, stem(more)))


def _segment(found: list[_Piece], run: str) -> None:
    """Longest known word first; numerals where no word covers them; else a character."""
    chinese, longest = LEXICON.chinese, LEXICON.longest
    at = 0
    while at < len(run):
        value, digits = numerals.han(run, at)
        for length in range(min(longest, len(run) - at), 0, -1):
            word = run[at : at + length]
            if length <= digits and length < 2:
                continue
            if (entry := chinese.get(word)) is not None or (word in numerals.UNITS and length > 1):
                if length == 2 and word[0] == "不" and found and found[-1].text + word[1] in chinese:
                    found[-1] = _Piece("han", whole := found[-1].text + word[1], whole, entry=chinese[whole])  # 打不开
                if entry is not None and entry.parts:
                    found.extend(_Piece("han", part, part, entry=chinese.get(part)) for part in entry.parts)
                else:
                    found.append(_Piece("han", word, word, entry=entry))
                at += length
                break
        else:
            if digits:
                found.append(_Piece("number", numerals.number_key(value), run[at : at + digits]))
                at += digits
            else:
                found.append(_Piece("han", run[at], run[at]))
                at += 1


def _phrases(pieces: list[_Piece]) -> list[_Piece]:
    """English phrases of the lexicon, the longest first, each as one piece."""
    english = LEXICON.english
    found: list[_Piece] = []
    at = 0
    count = len(pieces)
    while at < count:
        piece = pieces[at]
        if piece.sort == "mixed":
            piece.entry = _single(piece.text)
        if piece.sort == "word" and (phrases := english.get(piece.key)) is not None:
            for parts, entry in phrases:
                size = len(parts)
                if size == 1 or (
                    at + size <= count
                    and all(pieces[at + i].key == parts[i] and pieces[at + i].sort == "word" for i in range(1, size))
                ):
                    if entry.parts:
                        found.extend(_Piece("word", part, part, entry=_single(part)) for part in entry.parts)
                        at += size
                        break
                    piece.entry = entry
                    if size > 1:
                        piece = _Piece("word", " ".join(one.text for one in pieces[at : at + size]), " ".join(parts))
                        piece.entry = entry
                        at += size - 1
                    found.append(piece)
                    at += 1
                    break
            else:
                found.append(piece)
                at += 1
            continue
        found.append(piece)
        at += 1
    return found


def _joined(pieces: list[_Piece]) -> list[_Piece]:
    """Verbs with their particles: "switch the lights on" as "switch on the lights"."""
    for at, piece in enumerate(pieces):
        if piece.sort != "word" or piece.text not in _PARTICLES or at < 2:
            continue
        after = pieces[at + 1] if at + 1 < len(pieces) else None
        if after is not None and after.sort != "stop" and after.text not in _AFTER_PARTICLE:
            continue
        for back in range(at - 2, max(-1, at - 6), -1):
            verb = pieces[back]
            if verb.sort == "stop" or verb.text in _PARTICLES:
                break
            phrases = LEXICON.english.get(verb.key, ())
            if any(parts == (verb.key, piece.key) for parts, _ in phrases):
                return [*pieces[: back + 1], piece, *pieces[back + 1 : at], *pieces[at + 1 :]]
    return pieces


def _single(word: str) -> Entry | None:
    phrases = LEXICON.english.get(word, ())
    return phrases[-1][1] if phrases and len(phrases[-1][0]) == 1 else None


def _numbers(pieces: list[_Piece]) -> list[_Piece]:
    """Numbers with their units, dates and times as one piece each, whose key is the value."""
    found: list[_Piece] = []
    texts = [piece.text for piece in pieces]
    at = 0
    count = len(pieces)
    while at < count:
        piece = pieces[at]
        sort = piece.sort
        key = ""
        used = 1
        value: float | None = None
        written = ""
        if sort == "number":
            written = piece.text.replace(",", "")
            try:
                value = float(written)
            except ValueError:
                key = written  # a version: 1.2.3
            else:
                if "." not in written:
                    written = numerals.number_key(value) if len(written) < 6 or piece.key else written
        elif sort == "mixed" and piece.entry is not None:
            piece.key = piece.text
        elif sort == "mixed":
            key = numerals.suffixed(piece.text)
            if not key:
                piece.sort, piece.key = "id", piece.text.replace("-", "")
        elif sort == "clock":
            key = _clock(piece.text)
        elif sort == "date":
            found.extend(_date(piece.text))
            at += 1
            continue
        elif (
            sort == "sign"
            and piece.text in _CURRENCIES
            and at + 1 < count
            and pieces[at + 1].sort in ("number", "mixed")
        ):
            amount = (
                numerals.suffixed(texts[at + 1]) if pieces[at + 1].sort == "mixed" else texts[at + 1].replace(",", "")
            )
            try:
                key = numerals.quantity(float(amount), _CURRENCIES[piece.text])
                used = 2
            except ValueError:
                key = ""
        elif sort == "word" and not (piece.entry and " " in piece.key):
            if position := numerals.ordinal(piece.text):
                if piece.text != "second" or not (at and pieces[at - 1].text in ("a", "an", "per", "each", "every")):
                    key = f"ord:{position}"
            elif (month := numerals.MONTHS.get(piece.text)) is not None and (
                (len(piece.text) > 3 and piece.text != "march") or piece.name or _beside_number(pieces, at)
            ):
                key = f"month:{month}"
            elif piece.text == "half":
                key, used = _half(texts, at)
            elif (
                piece.text in ("a", "an")
                and texts[at + 1 : at + 2]
                and texts[at + 1] in _TIMES
                and at
                and texts[at - 1] in _BEFORE_ONE
            ):
                key, used = numerals.quantity(1, stem(texts[at + 1])), 2
            else:
                value, used = numerals.english(texts, at)
                if not used:
                    value, used = None, 1
                elif (
                    value == 1
                    and used == 1
                    and ((at and texts[at - 1] in _OF_ONE) or at + 1 == count or pieces[at + 1].sort == "stop")
                ):
                    value = None
                    piece.entry = Entry("function", "one", frozenset(), frozenset())
                else:
                    written = numerals.number_key(value)
        elif sort == "han":
            key, used = _han(pieces, texts, at)
        if value is not None:
            key, used = _measured(pieces, texts, at, used, value, written)
        if key:
            if found and found[-1].sort == "value" and (sum_of := numerals.together(found[-1].key, key)):
                key = sum_of  # 1 hour 30 minutes
                found.pop()
            found.append(_Piece("value", "".join(texts[at : at + used]), key))
            at += used
            continue
        found.append(piece)
        at += 1
    return found


def _beside_number(pieces: list[_Piece], at: int) -> bool:
    return any(0 <= near < len(pieces) and pieces[near].sort in ("number", "mixed") for near in (at - 1, at + 1))


def _clock(text: str) -> str:
    hour, minute = int(text.split(":")[0]), int(text.split(":")[1][:2])
    if "pm" in text.replace(".", "") and hour < 12:
        hour += 12
    elif "am" in text.replace(".", "") and hour == 12:
        hour = 0
    return f"time:{hour * 60 + minute}"


def _date(text: str) -> list[_Piece]:
    parts = re.split(r"[-/.]", text)
    if len(parts) == 3 and len(parts[0]) == 4:
        keys = [numerals.number_key(float(parts[0])), f"month:{int(parts[1])}", f"day:{int(parts[2])}"]
    elif len(parts) == 2 and parts[1] in ("2", "3", "4", "5", "8", "10") and int(parts[0]) < int(parts[1]):
        keys = [numerals.number_key(int(parts[0]) / int(parts[1]))]
    else:
        keys = ["/".join(part.lstrip("0") or "0" for part in parts)]
    return [_Piece("value", text, key) for key in keys]


def _half(texts: list[str], at: int) -> tuple[str, int]:
    """half an hour, half a year, half hour."""
    after = at + 2 if texts[at + 1 : at + 2] in (["a"], ["an"]) else at + 1
    if after < len(texts) and (unit := stem(texts[after])) in numerals.UNITS:
        return numerals.quantity(0.5, unit), after + 1 - at
    return "0.5", 1


def _han(pieces: list[_Piece], texts: list[str], at: int) -> tuple[str, int]:
    """Key of 第三, 百分之五, 半小时, 半年; "": it is none."""
    text = texts[at]
    following = pieces[at + 1] if at + 1 < len(pieces) else None
    if text == "第" and following is not None and following.sort == "number":
        used = 3 if at + 2 < len(pieces) and texts[at + 2] in _MEASURE else 2
        return f"ord:{following.text}", used
    if text == "百分之" and following is not None and following.sort == "number":
        return f"%:{numerals.number_key(float(following.text))}", 2
    if text == "半":
        for used in (2, 3):
            unit = "".join(texts[at + 1 : at + used])
            if unit in numerals.UNITS:
                return numerals.quantity(0.5, unit), used
    return "", 1


def _measured(
    pieces: list[_Piece], texts: list[str], at: int, used: int, value: float, written: str
) -> tuple[str, int]:
    """Key of the number at `at`, of `used` pieces, with what follows it."""
    after = at + used
    following = pieces[after] if after < len(pieces) else None
    if following is None:
        return written, used
    if (scale := numerals.multiple(following.text)) and pieces[at].sort == "number":
        value, used, after = value * scale, used + 1, after + 1
        written = numerals.number_key(value)
    elif following.text in ("万", "亿", "千") and pieces[at].sort == "number":
        value *= {"万": 1e4, "亿": 1e8, "千": 1e3}[following.text]
        used, after = used + 1, after + 1
        written = numerals.number_key(value)
    unit = texts[after] if after < len(texts) else ""
    before = texts[at - 1] if at else ""
    if unit in ("am", "pm") and value <= 12:
        return f"time:{int(value % 12 + (12 if unit == 'pm' else 0)) * 60}", used + 1
    if unit in ("点", "点钟", "时") and value <= 24:
        hour = int(value) + (12 if before in _DAY_PARTS and value < 12 else 0)
        if after + 1 < len(texts) and texts[after + 1] == "半":
            return f"time:{hour * 60 + 30}", used + 2
        return f"time:{hour * 60}", used + 1
    if unit in ("月", "月份") and 1 <= value <= 12:
        return f"month:{int(value)}", used + 1
    if unit in ("日", "号") and 1 <= value <= 31 and not (unit == "号" and before == "第"):
        return f"day:{int(value)}", used + 1
    if unit == "年" and value >= 1_000:
        return written, used + 1
    two = unit + (texts[after + 1] if after + 1 < len(texts) else "")
    half = 0.5 if texts[after + 1 : after + 2] == ["半"] else 0.0
    if unit == "个" and half and after + 2 < len(texts) and "个" + texts[after + 2] in numerals.UNITS:
        return numerals.quantity(value + 0.5, "个" + texts[after + 2]), used + 3
    if two in numerals.UNITS and two != unit:
        return numerals.quantity(value, two), used + 2
    if unit in ("square",) and after + 1 < len(texts):
        return written, used
    known = unit if unit in numerals.UNITS else stem(unit)
    if known in numerals.UNITS and not (unit in ("times",) and value == 1):
        return numerals.quantity(value + half, known), used + 1 + bool(half)
    if unit in _MEASURE:
        return written, used + 1
    if 1 <= value <= 31 and value == int(value) and at and pieces[at - 1].sort == "word" and before in numerals.MONTHS:
        return f"day:{int(value)}", used
    return written, used


def _frame(text: str, pieces: list[_Piece]) -> Reading:
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
    for at, piece in enumerate(pieces):
        sort, key, entry = piece.sort, piece.key, piece.entry
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
            elif what == "role":
                role = name
                linked = linked or name == "and"
            elif what == "whether":
                questions.add("whether")
                if name:
                    modals.add(name)
            elif what != "function":
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
    letters = "".join(_LETTERS.findall(text))
    return Reading(
        text,
        tuple(tokens),
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
        any(piece.sort == "stop" for piece in pieces[:-1]),
    )


def _sort(piece: _Piece) -> str:
    return "acronym" if piece.name and piece.acronym else "name" if piece.name else "word"


def _beside_value(pieces: list[_Piece], at: int) -> bool:
    return any(0 <= near < len(pieces) and pieces[near].sort == "value" for near in (at - 1, at + 1))
