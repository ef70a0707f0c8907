"""Packed readings are what the guard reads, and nothing else is believed."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.cache.semantic.guard import read
from forebay.cache.semantic.readings import Readings

INTENTS = Path(__file__).parents[2] / "data" / "intents.tsv"
READINGS = Readings()


@given(st.one_of(st.text(max_size=80), st.text("abc 不的吗我你第12.,？怎么 howisntare", max_size=80)))
def test_a_reading_comes_back_as_it_was(text: str) -> None:
    assert READINGS.unpack(text, READINGS.pack(text)) == read(text)


def test_questions_of_people_come_back_as_they_were() -> None:
    texts = [line.split("\t")[1] for line in INTENTS.read_text().splitlines()[1:]]
    assert len(texts) > 500
    for text in texts:
        assert READINGS.unpack(text, READINGS.pack(text)) == read(text)


def test_one_of_another_text_or_guard_or_a_damaged_one_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "How do I cancel an invoice?"
    packed = READINGS.pack(text)
    assert READINGS.unpack("How do I pay an invoice?", packed) is None
    for damaged in (b"", packed[:7], packed[:-1], packed[:40] + bytes([packed[40] ^ 1]) + packed[41:]):
        assert READINGS.unpack(text, damaged) is None
    monkeypatch.setattr("forebay.cache.semantic.readings._guard", lambda: b"another one")
    assert Readings().unpack(text, packed) is None


def test_what_is_given_is_not_read_again_and_what_is_not_is() -> None:
    seen: list[str] = []

    def counted(text: str):  # type: ignore[no-untyped-def]
        seen.append(text)
        return read(text)

    readings = Readings(counted)
    known, other = "怎么开具发票", "发票如何开"
    readings.give({known: READINGS.pack(known), other: b"damaged"})
    assert readings.read(known) == read(known)
    assert readings.read(other) == read(other)
    assert seen == [other]
    readings.give({})
    assert readings.read(known) == read(known)
    assert seen == [other, known]
