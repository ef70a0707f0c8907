"""Numbers, quantities and points in time have one key, whichever way they are written."""

from __future__ import annotations

import pytest

from forebay.cache.semantic.guard import read
from forebay.cache.semantic.guard.lexicon import LEXICON


def keys(text: str) -> list[str]:
    return [token.key for token in read(text).tokens if token.sort in ("number", "id")]


@pytest.mark.parametrize(
    ("key", "texts"),
    [
        ("3", ["3 apples", "three apples", "三个苹果"]),
        ("12", ["12 people", "twelve people", "十二位"]),
        ("25000", ["25,000 people", "25k people", "twenty five thousand people", "两万五", "2.5万"]),
        ("1003", ["one thousand and three books", "一千零三本"]),
        ("ord:2", ["the 2nd floor", "the second floor", "第二层", "第2层"]),
        ("s:1800", ["30 minutes", "half an hour", "30分钟", "半小时", "半个小时"]),
        ("s:5400", ["1 hour 30 minutes", "90 min", "1.5h", "一个半小时"]),
        ("months:12", ["12 months", "a 1-year plan", "十二个月"]),
        ("g:1000", ["1 kg", "1000 grams", "两斤", "一公斤"]),
        ("USD:5", ["$5", "5 dollars", "5 USD", "5美元"]),
        ("CNY:100", ["100元", "一百块钱", "¥100"]),
        ("%:5", ["5%", "5 percent", "百分之五"]),
        ("time:900", ["at 3 pm", "at 15:00", "at 3:00pm", "下午三点", "15点"]),
        ("month:5", ["in May", "in may 5th"[:6], "五月", "5月份"]),
        ("3.10", ["python 3.10"]),
        ("1.2.3", ["version 1.2.3"]),
        ("a1b2c3", ["A1B2C3"]),
    ],
)
def test_a_value_has_one_key(key: str, texts: list[str]) -> None:
    assert {text: keys(text)[:1] for text in texts} == {text: [key] for text in texts}


def test_a_date_is_its_parts() -> None:
    assert keys("on 2026-05-01") == keys("2026年5月1日") == ["2026", "month:5", "day:1"]


@pytest.mark.parametrize("text", ["wait a second", "which one is it", "一般多久", "一下", "万一丢了", "可能第一时间"])
def test_number_words_that_count_nothing_are_no_numbers(text: str) -> None:
    assert keys(text) == []


def test_no_word_is_opposed_to_one_that_means_the_same() -> None:
    for sense, poles in LEXICON.opposite.items():
        assert sense not in poles
