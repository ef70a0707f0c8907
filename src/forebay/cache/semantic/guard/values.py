"""Numbers among a text's pieces, with their units: one piece each, whose key is the value."""

from __future__ import annotations

import re
from typing import Final

from forebay.cache.semantic.guard import numerals
from forebay.cache.semantic.guard.forms import stem, words
from forebay.cache.semantic.guard.lexicon import Entry
from forebay.cache.semantic.guard.pieces import Piece

__all__ = ["valued"]

_CURRENCIES: Final = {"$": "$", "€": "€", "£": "£", "¥": "¥", "￥": "¥"}
_MEASURE: Final = frozenset("个張张台件条本家份只支辆部款颗粒瓶杯盒包袋位名笔种项则套双间座根句篇首道层样")
_DAY_PARTS: Final = {"下午": 12, "晚上": 12, "傍晚": 12, "夜里": 12, "今晚": 12}
_OF_ONE: Final = frozenset(words("which that this the another no each every any some"))
_BEFORE_ONE: Final = frozenset(words("in within for after than about least most takes"))
_BEFORE_MONTH: Final = frozenset(words("in of by until since last next this during"))
_TIMES: Final = frozenset(words("second minute hour day week month year"))


def valued(pieces: list[Piece]) -> list[Piece]:
    """Numbers with their units, dates and times as one piece each, whose key is the value."""
    found: list[Piece] = []
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
                (len(piece.text) > 3 and piece.text != "march")
                or piece.name
                or _beside_number(pieces, at)
                or (at and texts[at - 1] in _BEFORE_MONTH)
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
            found.append(Piece("value", "".join(texts[at : at + used]), key))
            at += used
            continue
        found.append(piece)
        at += 1
    return found


def _beside_number(pieces: list[Piece], at: int) -> bool:
    return any(0 <= near < len(pieces) and pieces[near].sort in ("number", "mixed") for near in (at - 1, at + 1))


def _clock(text: str) -> str:
    hour, minute = int(text.split(":")[0]), int(text.split(":")[1][:2])
    if "pm" in text.replace(".", "") and hour < 12:
        hour += 12
    elif "am" in text.replace(".", "") and hour == 12:
        hour = 0
    return f"time:{hour * 60 + minute}"


def _date(text: str) -> list[Piece]:
    parts = re.split(r"[-/.]", text)
    if len(parts) == 3 and len(parts[0]) == 4:
        keys = [numerals.number_key(float(parts[0])), f"month:{int(parts[1])}", f"day:{int(parts[2])}"]
    elif len(parts) == 2 and parts[1] in ("2", "3", "4", "5", "8", "10") and int(parts[0]) < int(parts[1]):
        keys = [numerals.number_key(int(parts[0]) / int(parts[1]))]
    else:
        keys = ["/".join(part.lstrip("0") or "0" for part in parts)]
    return [Piece("value", text, key) for key in keys]


def _half(texts: list[str], at: int) -> tuple[str, int]:
    """half an hour, half a year, half hour."""
    after = at + 2 if texts[at + 1 : at + 2] in (["a"], ["an"]) else at + 1
    if after < len(texts) and (unit := stem(texts[after].removeprefix("an ").removeprefix("a "))) in numerals.UNITS:
        return numerals.quantity(0.5, unit), after + 1 - at
    return "0.5", 1


def _han(pieces: list[Piece], texts: list[str], at: int) -> tuple[str, int]:
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
                return numerals.quantity(1.5 if at and texts[at - 1] == "一个" else 0.5, unit), used
    return "", 1


def _measured(pieces: list[Piece], texts: list[str], at: int, used: int, value: float, written: str) -> tuple[str, int]:
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
