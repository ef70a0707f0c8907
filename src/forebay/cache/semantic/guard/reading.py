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
_RATED: Final = frozenset({"如何", "怎样", "咋样", "怎么样"})
"""At the end they ask how something is, not how it is done."""
_TURNING: Final = frozenset(words("被 遭 受 给 对 向"))
"""They say who does it to whom."""
_BA: Final = frozenset({"把", "将把"})
_BEING: Final = frozenset({"是", "有"})
_WHAT: Final = frozenset({"什么", "啥", "什么样的"})
_AHEAD: Final = frozenset(words("不 没 没有 别 不让 不给 不能 不可以 不会 不要 无法 不得 不许 不肯 未"))
"""They negate what comes after them; other negations what is before."""
_TERMS: Final = frozenset({"negation", "person"})
_ACTS: Final = frozenset({"用", "看", "说", "给", "让"})
_DONE: Final = frozenset({"求", "亲"})
"""After 怎么 they are what is done."""
_FILLED: Final = frozenset({"什么的"})
"""At the beginning something is to be put in its place: 什么的阳光, and so 一什么小船."""
_QUOTING: Final = re.compile("(?:怎么|如何|怎样|咋)(?:用.{2,4})?(?:说|写|读|念|拼|翻译|造句|组词|讲)")
_PLAIN: Final = frozenset(words("的 是 呢 啊 了 呀 请 请问 在 里 中 一下 想知道 我想知道 告诉我 什么的 这个 那个"))
_LOOSE: Final = frozenset(
    words(
        "的 了 吗 呢 啊 吧 呀 嘛 着 是 有 在 我 你 您 请 求 个 些 就 都 和 与 跟 或 及 给 到 从 去 来 要 想 得 地 会 "
        "也 还 这 那 点 时"
    )
)
"""Little words beside anything. Others beside a sign that is in no known word may be a part of that: 潘飞, 凭祥."""
_GRAINS: Final = {
    word: grain
    for grain, some in {
        "year": "哪年,哪一年,何年,what year,which year,in what year,in which year",
        "month": "几月,几月份",
        "day": "哪天,哪一天,几号,何日,what day,which day,on what day,on which day,what date,which date,on what date,"
        "on which date",
        "hour": "几点,几点钟,what time,at what time",
    }.items()
    for word in some.split(",")
}
_DEMANDS: Final = re.compile(
    r"(?P<demand_short>[一几两]句话|(?:简短|简要|简单|简洁)地?的?(?:回答|答|说|解释|介绍|描述|概括|总结)"
    r"|\bbriefly\b|\bin short\b|\bin (?:a|one|two|\d+) (?:words?|sentences?|lines?|paragraphs?)\b)"
    r"|(?P<demand_long>详细地?的?(?:回答|说|解释|介绍|描述|讲)|\bin (?:great |more )?detail\b)"
    r"|(?P<demand_steps>一步一步|分步骤?|逐步|\bstep[- ]by[- ]step\b)"
    r"|(?P<demand_list>(?:列成|做成|用|以).{0,2}(?:列表|表格|清单)|分点|\bbullet points?\b|\bas an? (?:table|list)\b)"
    r"|(?P<demand_plain>通俗|大白话|小学生|\bin (?:plain|simple|layman's) (?:english|words|terms)\b|\beli5\b"
    r"|\blike i'?m (?:five|5)\b)"
)
"""How the answer shall be written."""
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
    denied: set[str] = set()
    acts: set[str] = set()
    denying = -1
    role = ""
    used = False
    pronouns = _Pronouns()
    weak: list[str] = []
    wish: list[str] = []
    marks: list[str] = []
    little: list[str] = []
    asked: list[str] = []
    grains: set[str] = set()
    has = equals = False
    for at, piece in enumerate(pieces):
        sort, key, entry = piece.sort, piece.key, piece.entry
        if denying >= 0 and (first := _last_said(tokens, denying)) is not None:
            denied.update(first.senses)
            denying = -1
        pronouns.see(piece, tokens)
        if entry is not None and entry.sort in ("function", "question", "whether"):
            has, equals = has or "有" in piece.text, equals or "是" in piece.text
        if sort == "word" and (tense := _TENSES.get(piece.text)) is not None:
            tenses.add(tense)
        if piece.text.startswith("how did "):
            tenses.add("past")
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
                if piece.text == "好":
                    weak.append(_good(pieces, at))
                elif piece.text in _ACTS and _asks_how(pieces, at):
                    acts.add(piece.text)
                tokens.append(Token(key, senses, kinds, "light", role, True, 0.35 if name == "noun" else 0.15))
            elif what in ("question", "negation"):
                if what == "negation":
                    negations += 1
                    if piece.text in _AHEAD:
                        denying = len(tokens)
                    elif (last := _last_said(tokens, 0)) is not None:
                        denied.update(last.senses)
                elif name in _RELATIVE and questions and " " not in key:
                    continue
                elif piece.text in _RATED and pronouns.said and _ends(pieces, at):
                    questions.add("rate")
                else:
                    questions.add(name)
                if piece.text in _WHAT and at and pieces[at - 1].text in ("一", "1"):
                    questions.discard(name)
                    questions.add("fill")
                if (grain := _GRAINS.get(piece.text)) is not None:
                    grains.add(grain)
                if piece.text in _WHAT:
                    asked.append(_goes_with(pieces, at))
                if key not in senses:
                    tokens.append(Token(key, senses, kinds, "stand-in", "", True, 0.0))
                linked = linked or name == "far"
            elif what == "scope":
                if name == "first":
                    tokens.append(Token("ord:1", frozenset({"ord:1"}), _NONE, "number", role, True, 1.0))
                elif piece.text == "都" and _asks_later(pieces, at):
                    little.append(key)
                elif piece.text not in _COMPARING or (at + 1 < len(pieces) and pieces[at + 1].sort == "value"):
                    scopes.append(name)
            elif what == "role" and name == "to" and _last(pieces, at):
                arrived = LEXICON.chinese["收到"]  # 什么时候到
                tokens.append(Token("收到", arrived.senses, arrived.kinds, "word", "", True, 1.0))
            elif what == "role":
                role = name
                if piece.text in _TURNING or _part(pieces, at):
                    weak.append(key)
                elif piece.text in _BA:
                    wish.append(key)
                else:
                    little.append(key)
                linked = linked or name == "and"
            elif what == "whether":
                questions.add("whether")
                if name:
                    modals.add(name)
            elif what == "function" and piece.text in _FILLED and not tokens:
                questions.add("fill")
            elif what == "function":
                if name == "weak" or _part(pieces, at):
                    weak.append(key)
                elif _asks_how(pieces, at) and (piece.text in _DONE or (piece.text == "来" and _ends(pieces, at))):
                    tokens.append(Token(key, frozenset((key,)), _NONE, "word", role, True, 1.0))  # 怎么来的
                elif name == "wish":
                    wish.append(key)
                elif name == "marks":
                    marks.append(key)
                elif piece.text in _BEING:
                    (little if _asks_beside(pieces, at) else weak).append(key)
                else:
                    little.append(key)
            elif piece.text == "过" and _asks_how(pieces, at):
                tokens.append(Token(key, frozenset((key,)), _NONE, "word", role, True, 1.0))  # 怎么过
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
    if denying >= 0 and (found := _last_said(tokens, denying) or _last_said(tokens, 0)) is not None:
        denied.update(found.senses)  # 视频没了
    scopes += {match.lastgroup or "" for match in _DEMANDS.finditer(text[:LONGEST])}
    quoting = "define" in questions or _QUOTING.search(text) is not None
    if quoting:  # such words are then what is asked about: 西吧是什么意思
        weak += [word for word in little if not word.isascii() and word not in _PLAIN]
        weak += [piece.text for piece in pieces if piece.entry is not None and piece.entry.sort in _TERMS]
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
        Framing(
            *pronouns.end(tokens),
            tuple(sorted(weak)),
            tuple(sorted(wish)),
            tuple(sorted(marks)),
            has,
            equals,
            tuple(sorted(asked)),
            frozenset(denied),
            frozenset(acts),
            frozenset(grains),
            " best " in text or " easiest " in text,
            quoting,
        ),
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


def _part(pieces: list[Piece], at: int) -> bool:
    """It may be a part of a word that is not known."""
    text = pieces[at].text
    if len(text) > 1 or text.isascii() or text in _LOOSE:
        return False
    for place in (at - 1, at + 1):
        if 0 <= place < len(pieces):
            near = pieces[place]
            if near.sort == "han" and near.entry is None and len(near.text) == 1:
                return True
    return False


def _asks_beside(pieces: list[Piece], at: int) -> bool:
    """A question word comes next, or, for 是, stands before it."""
    near = (at + 1, at - 1) if pieces[at].text == "是" else (at + 1,)
    for place in near:
        if 0 <= place < len(pieces) and (entry := pieces[place].entry) is not None and entry.sort == "question":
            return True
    return False


def _asks_how(pieces: list[Piece], at: int) -> bool:
    """怎么 and the like stand before it."""
    entry = pieces[at - 1].entry if at else None
    return entry is not None and entry.sort == "question" and entry.name == "how"


def _asks_later(pieces: list[Piece], at: int) -> bool:
    """都有哪些: it says nothing."""
    return any(piece.entry is not None and piece.entry.sort == "question" for piece in pieces[at + 1 :])


def _last_said(tokens: list[Token], start: int) -> Token | None:
    """The last token from `start` on that says something."""
    for token in reversed(tokens[start:]):
        if token.weight > 0.3:
            return token
    return None


def _good(pieces: list[Piece], at: int) -> str:
    """好, with what it goes with: 好买吗 is not 买…好吗."""
    for piece in pieces[at + 1 :]:
        if piece.text == "的":
            continue
        said = piece.sort != "stop" and (piece.entry is None or piece.entry.sort == "same")
        return f"好 {piece.key or piece.text}" if said else "好"
    return "好"


def _goes_with(pieces: list[Piece], at: int) -> str:
    """What 什么 stands before: 什么歌, 什么是."""
    if any(0 <= place < len(pieces) and pieces[place].text == "是" for place in (at - 1, at + 1)):
        return "="
    for piece in pieces[at + 1 :]:
        if piece.sort == "stop":
            break
        if piece.entry is None or piece.entry.sort in ("same", "light"):
            return piece.key or piece.text
    return ""


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
