"""A text cut into words, Chinese words, phrases of the lexicon, numbers and signs, in order."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from typing import Final

from forebay.cache.semantic.guard import numerals
from forebay.cache.semantic.guard.forms import stem, words
from forebay.cache.semantic.guard.lexicon import LEXICON, Entry

__all__ = ["Piece", "cut", "normal"]

_PIECES: Final = re.compile(
    r"""(?P<link>https?://[^\s<>"'，。]+|www\.[^\s<>"'，。]+|(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,64}\.[a-z]{2,}[\w.]*)"""
    r"""|(?P<code>c\+\+|[cfj]\#|\.net\b|[a-z]+(?:_[a-z0-9]+)+|--[a-z][a-z0-9-]+)"""
    r"""|(?P<clock>(?<![\d:])\d{1,2}:\d{2}(?::\d{2})?(?:\s?[ap]\.?m\b\.?)?)"""
    r"""|(?P<date>(?<!\d)(?:19|20)\d{2}[-/.]\d{1,2}[-/.]\d{1,2}(?!\d)|(?<![\d/])\d{1,4}/\d{1,4}(?:/\d{2,4})?(?![\d/]))"""
    r"""|(?P<number>(?<![a-z0-9_.])\d++(?:[.,]\d++)*+(?![a-z\d_]))"""
    r"""|(?P<mixed>(?=[a-z-]{0,32}\d)(?:[a-z0-9]|(?<=[a-z0-9])[-.,](?=[a-z0-9]))+(?:%|°c|°f)?)"""
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
_PARTICLES: Final = frozenset(words("on off up down out back in away over"))
_AFTER_PARTICLE: Final = frozenset(words("in on at with from for when if and or after before by please to"))


@dataclass(slots=True)
class Piece:
    sort: str
    text: str
    key: str = ""
    name: bool = False
    """Capitalised."""
    acronym: bool = False
    entry: Entry | None = None


def normal(text: str) -> str:
    """Compatibility forms, quotation marks and the like in one way; letters keep their case."""
    shown = unicodedata.normalize("NFKC", text).translate(_QUOTES).strip()
    for written, meant in _REWRITTEN:
        shown = shown.replace(written, meant)
    shown = _EITHER.sub(r"是否\1", shown)
    return shown if len(shown.lower()) == len(shown) else shown.lower()


def cut(shown: str) -> list[Piece]:
    """`shown`: by `normal`."""
    return _phrases(_joined(_cut(shown.lower(), shown)))


def _cut(low: str, shown: str) -> list[Piece]:
    """Words, Chinese words, numbers and signs, in order."""
    found: list[Piece] = []
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
        elif piece == "-" and _hyphen(low, match.start()):
            pass  # 12-month, two-factor
        else:
            found.append(Piece(sort, piece))
        begins = sort == "stop" and piece[-1] in '.?!:"'
    if spelled > 2 and capitals > 0.6 * spelled:  # a title, or shouting: capitals say nothing
        for one in found:
            one.name = False
    return found


def _hyphen(low: str, at: int) -> bool:
    return at > 0 and low[at - 1].isalnum() and low[at + 1 : at + 2].isalpha()


def _words(found: list[Piece], word: str, name: bool) -> None:
    if (parts := _CONTRACTED.get(word)) is not None:
        found.extend(Piece("word", part, stem(part)) for part in parts)
        return
    bare, mark, ending = word.partition("'")
    if not mark:
        found.append(Piece("word", word, stem(word), name))
        return
    if ending == "t" and bare.endswith("n"):
        bare, more = bare[:-1], "not"
    elif ending == "s":
        more = "is" if bare in _HAS_IS else ""
    else:
        more = _ENDINGS.get(mark + ending, "")
    found.append(Piece("word", bare, stem(bare), name))
    if more:
        found.append(Piece("word", more, stem(more)))


def _segment(found: list[Piece], run: str) -> None:
    """Longest known word first; numerals where no word covers them; else a character."""
    chinese, longest = LEXICON.chinese, LEXICON.longest
    at = 0
    while at < len(run):
        value, digits = numerals.han(run, at)
        for length in range(min(longest, len(run) - at), 0, -1):
            word = run[at : at + length]
            if length < digits or length == digits == 1:
                continue
            if (entry := chinese.get(word)) is not None or (word in numerals.UNITS and length > 1):
                if length == 2 and word[0] == "不" and found and found[-1].text + word[1] in chinese:
                    found[-1] = Piece("han", whole := found[-1].text + word[1], whole, entry=chinese[whole])  # 打不开
                if entry is not None and entry.parts:
                    found.extend(Piece("han", part, part, entry=chinese.get(part)) for part in entry.parts)
                else:
                    found.append(Piece("han", word, word, entry=entry))
                at += length
                break
        else:
            if digits:
                found.append(Piece("number", numerals.number_key(value), run[at : at + digits]))
                at += digits
            else:
                found.append(Piece("han", run[at], run[at]))
                at += 1


def _phrases(pieces: list[Piece]) -> list[Piece]:
    """English phrases of the lexicon, the longest first, each as one piece."""
    english, phrases = LEXICON.english, LEXICON.phrases
    keys = [piece.key if piece.sort == "word" else "" for piece in pieces]
    keys.append("")
    found: list[Piece] = []
    at = 0
    count = len(pieces)
    while at < count:
        piece = pieces[at]
        size = 1
        if piece.sort == "word":
            key = keys[at]
            piece.entry = english.get(key)
            if (more := phrases.get(key)) is not None:
                for parts, entry in more.get(keys[at + 1], ()):
                    size = len(parts)
                    if size == 2 or tuple(keys[at : at + size]) == parts:
                        piece = Piece("word", " ".join([one.text for one in pieces[at : at + size]]), " ".join(parts))
                        piece.entry = entry
                        break
                else:
                    size = 1
        elif piece.sort == "mixed":
            piece.entry = english.get(piece.text)
        if piece.entry is not None and piece.entry.parts:
            found.extend(Piece("word", part, part, entry=english.get(part)) for part in piece.entry.parts)
        else:
            found.append(piece)
        at += size
    return found


def _joined(pieces: list[Piece]) -> list[Piece]:
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
            if any(len(parts) == 2 for parts, _ in LEXICON.phrases.get(verb.key, {}).get(piece.key, ())):
                return [*pieces[: back + 1], piece, *pieces[back + 1 : at], *pieces[at + 1 :]]
    return pieces
