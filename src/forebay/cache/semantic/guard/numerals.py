"""Numbers, quantities and points in time, whichever way they are written: one key for one value.

Keys: `3` (a number; decimals as written, since 3.1 and 3.10 are two versions), `ord:2`, `time:900` (minutes of the
day), `day:5`, `month:5`, and `DIMENSION:VALUE` of a quantity, in the dimension's smallest unit (`s:5400`, `%:5`).
"""

from __future__ import annotations

import re
from typing import Final

from forebay.cache.semantic.guard.forms import stem, words

__all__ = ["HAN_DIGITS", "MONTHS", "UNITS", "english", "han", "number_key", "ordinal", "quantity", "suffixed"]

_SMALL: Final = {
    word: value
    for value, word in enumerate(
        words(
            "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
            "seventeen eighteen nineteen"
        )
    )
} | {
    word: value * 10
    for value, word in enumerate(words("twenty thirty forty fifty sixty seventy eighty ninety"), start=2)
}
_LARGE: Final = {"hundred": 100, "thousand": 1_000, "million": 1_000_000, "billion": 1_000_000_000}
_ORDINALS: Final = {
    word: value
    for value, word in enumerate(
        words("first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth"), start=1
    )
}
MONTHS: Final = {
    name[:length]: number
    for number, name in enumerate(
        words("january february march april may june july august september october november december"), start=1
    )
    for length in (3, len(name))
} | {"sept": 9}

_DIMENSIONS: Final[dict[str, dict[str, float]]] = {
    "s": {
        "s sec secs second seconds 秒 秒钟": 1,
        "min mins minute minutes 分钟": 60,
        "h hr hrs hour hours 小时 钟头 个小时 个钟头": 3_600,
        "day days 天": 86_400,
        "week weeks 周 星期 个星期 礼拜 个礼拜": 604_800,
        "fortnight": 1_209_600,
    },
    "months": {"month months mo 个月": 1, "quarter quarters 季度 个季度": 3, "year years yr yrs 年 周年": 12},
    "age": {"岁 周岁": 1},
    "mm": {
        "mm millimetre millimeter 毫米": 1,
        "cm centimetre centimeter 厘米 公分": 10,
        "m metre meter 米": 1_000,
        "km kilometre kilometer 公里 千米": 1_000_000,
        "inch inches 英寸": 25.4,
        "ft feet foot 英尺": 304.8,
        "yd yard": 914.4,
        "mile miles mi 英里": 1_609_344,
        "里": 500_000,
    },
    "g": {
        "mg milligram 毫克": 0.001,
        "g gram 克": 1,
        "kg kilo kilogram 公斤 千克": 1_000,
        "斤": 500,
        "ton tonne 吨": 1_000_000,
        "oz ounce 盎司": 28.3495,
        "lb lbs 磅": 453.592,
    },
    "ml": {"ml millilitre milliliter 毫升": 1, "l litre liter 升": 1_000, "gal gallon 加仑": 3_785.41},
    "m²": {"sqm m2 m² ㎡ 平米 平方米 平方 平": 1, "sqft": 0.092903, "亩": 666.667},
    "B": {
        "kb kilobyte": 1_000,
        "mb megabyte 兆": 1_000_000,
        "gb gig gigabyte g": 1_000_000_000,
        "tb terabyte": 1_000_000_000_000,
    },
    "bit/s": {"kbps": 1_000, "mbps": 1_000_000, "gbps": 1_000_000_000},
    "°C": {"℃ °c celsius 摄氏度": 1},
    "°F": {"℉ °f fahrenheit 华氏度": 1},
    "°": {"° degree degrees 度": 1},
    "%": {"% percent pct 百分点": 1},
    "W": {"w watt 瓦": 1, "kw kilowatt 千瓦": 1_000, "mw megawatt": 1_000_000},
    "V": {"v volt 伏": 1},
    "mAh": {"mah 毫安": 1},
    "cal": {"cal calorie kcal 卡 大卡 千卡": 1},
    "USD": {"$ usd dollar dollars buck bucks 美元 美金 刀": 1},
    "cent": {"cent cents": 1},
    "EUR": {"€ eur euro euros 欧元 欧": 1},
    "GBP": {"£ gbp 英镑": 1},
    "pound": {"pound pounds": 1},
    "JPY": {"jpy yen 日元": 1},
    "HKD": {"hkd 港币 港元": 1},
    "CNY": {"¥ cny rmb yuan 元 块 块钱 元钱 圆 人民币": 1, "角 毛": 0.1},
    "fold": {"折": 1},
    "page": {"页": 1},
    "times": {"次 回 遍": 1, "倍": 1, "times": 1},
}
UNITS: Final = {
    word if ord(word[0]) > 0x2E80 else stem(word): (dimension, float(factor))
    for dimension, units in _DIMENSIONS.items()
    for names, factor in units.items()
    for word in names.split()
}
HAN_DIGITS: Final = {
    "零": 0, "〇": 0, "一": 1, "二": 2, "两": 2, "俩": 2, "三": 3, "四": 4, "五": 5, "六": 6, "七": 7, "八": 8, "九": 9,
    "壹": 1, "贰": 2, "叁": 3,
}  # fmt: skip
_HAN_TENS: Final = {"十": 10, "百": 100, "千": 1_000, "仟": 1_000, "佰": 100, "拾": 10}
_HAN_LARGE: Final = {"万": 10_000, "亿": 100_000_000, "萬": 10_000, "億": 100_000_000}
_HAN_SIGNS: Final = frozenset((*HAN_DIGITS, *_HAN_TENS, *_HAN_LARGE, "点", "半"))
_SUFFIXED: Final = re.compile(r"(\d[\d,]*(?:\.\d+)?)([a-z%°²]+\d?)")
_MULTIPLES: Final = {"k": 1e3, "bn": 1e9, "b": 1e9, "w": 1e4}


def number_key(value: float) -> str:
    return str(int(value)) if abs(value) < 1e15 and value == int(value) else format(value, ".10g")


def ordinal(word: str) -> int:
    """0: it is none."""
    if (value := _ORDINALS.get(word)) is not None:
        return value
    for ending in ("st", "nd", "rd", "th"):
        if word.endswith(ending) and word[:-2].isdigit() and len(word) < 8:
            return int(word[:-2])
    return 0


def english(words: list[str], start: int) -> tuple[float, int]:
    """Value of the number words from `start`, and how many they are (0: none)."""
    total = 0.0
    group = 0.0
    at = start
    seen = False
    small = False
    while at < len(words):
        word = words[at]
        if (value := _SMALL.get(word)) is not None:
            if small and not (group % 100 >= 20 and value < 10 and group % 10 == 0):
                break
            group += float(value)
            small = True
        elif (scale := _LARGE.get(word)) is not None and (seen or word != "second"):
            if not seen:
                break
            if scale == 100:
                group *= 100.0
            else:
                total += (group or 1.0) * scale
                group = 0.0
            small = False
        elif word == "and" and seen and not small and at + 1 < len(words) and words[at + 1] in _SMALL:
            at += 1
            continue
        else:
            break
        seen = True
        at += 1
    return total + group, at - start


def multiple(word: str) -> float:
    """Of hundred, thousand, … after digits; 0: it is none."""
    return float(_LARGE.get(word, 0))


def han(text: str, start: int) -> tuple[float, int]:
    """Value of the Chinese numeral at `start`, and its characters (0: none): 一二三 123, 两万五 25000."""
    end = start
    while end < len(text) and text[end] in _HAN_SIGNS:
        end += 1
    while end > start and text[end - 1] in ("点", "半"):
        end -= 1
    piece = text[start:end]
    if not piece or piece[0] in _HAN_LARGE or piece[0] == "点":
        return 0.0, 0
    whole, point, decimals = piece.partition("点")
    if whole.startswith("半"):
        return 0.0, 0
    if len(whole) > 1 and all(sign in HAN_DIGITS for sign in whole):
        value = float("".join(str(HAN_DIGITS[sign]) for sign in whole))
    else:
        value = _positional(whole)
    if point:
        if not decimals or not all(sign in HAN_DIGITS for sign in decimals):
            return value, len(whole)
        value += float("0." + "".join(str(HAN_DIGITS[sign]) for sign in decimals))
    return value, len(piece)


def _positional(piece: str) -> float:
    total = section = digit = 0.0
    last = 1.0
    for sign in piece:
        if sign in HAN_DIGITS:
            digit = float(HAN_DIGITS[sign])
            if sign in "零〇":
                last = 1.0
        elif sign in _HAN_TENS:
            section += (digit or 1.0) * _HAN_TENS[sign]
            last = _HAN_TENS[sign] / 10
            digit = 0.0
        elif sign in _HAN_LARGE:
            total = (total + section + digit) * _HAN_LARGE[sign]
            section = digit = 0.0
            last = _HAN_LARGE[sign] / 10.0
    return total + section + digit * (last if len(piece) > 1 and digit and piece[-1] in HAN_DIGITS else 1.0)


def quantity(value: float, unit: str) -> str:
    """Key of so many of a unit that `UNITS` knows."""
    dimension, factor = UNITS[unit]
    return f"{dimension}:{number_key(round(value * factor, 6))}"


def together(one: str, other: str) -> str:
    """Key of a quantity written in two units (1 hour 30 minutes); "": these are two."""
    dimension, _, value = one.partition(":")
    second, _, more = other.partition(":")
    if dimension != second or dimension not in ("s", "months", "mm", "g") or float(more) >= float(value):
        return ""
    return f"{dimension}:{number_key(float(value) + float(more))}"


def suffixed(word: str) -> str:
    """Key of a number with letters on it (2.5k, 10gb, 3pm, 1st); "": it is another thing (an id, a model's name)."""
    if position := ordinal(word):
        return f"ord:{position}"
    match = _SUFFIXED.fullmatch(word)
    if match is None:
        return ""
    value, letters = float(match[1].replace(",", "")), match[2]
    if letters in ("am", "pm") and value <= 12:
        return f"time:{int(value % 12 + (12 if letters == 'pm' else 0)) * 60}"
    if (scale := _MULTIPLES.get(letters)) is not None:
        return number_key(value * scale)
    if letters in UNITS:
        return quantity(value, letters)
    return ""
