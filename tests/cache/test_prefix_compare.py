"""How far texts are the same, and what kind of thing they vary in."""

from __future__ import annotations

import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.cache.prefix.compare import compare, shared
from forebay.cache.prefix.kinds import KINDS, kind_of, machine_made, shape

RULES = " ".join(f"Rule {i} of {i * 7 % 41}: be kind, and quote the handbook's page {i * 13}." for i in range(40))
RULES_ZH = "。".join(
    f"第{i}条：回答客户关于发票和退货的问题，语气要有礼貌，参考手册第{i * 7 % 41}页" for i in range(40)
)


@given(st.text("ab", max_size=40), st.text("ab", max_size=40), st.integers(0, 3), st.integers(0, 3))
def test_shared_counts_what_is_alike(a: str, b: str, i: int, j: int) -> None:
    i, j = min(i, len(a)), min(j, len(b))
    n = 0
    while i + n < len(a) and j + n < len(b) and a[i + n] == b[j + n]:
        n += 1
    assert shared(a, i, b, j) == n


@given(st.integers(0, 300_000), st.integers(0, 5))
def test_shared_finds_a_difference_far_behind(at: int, more: int) -> None:
    text = "x" * at
    assert shared(text + "a" + "y" * more, 0, text + "b" + "y" * more, 0) == at


@pytest.mark.parametrize(
    ("one", "other", "kind"),
    [
        ("2026-11-30T17:05:33.120Z", "2026-11-30T17:05:34.001Z", "time"),
        ("Monday, November 30, 2026 at 5:05 PM", "Tuesday, December 1, 2026 at 9:41 AM", "time"),
        ("2026年11月30日 17:05", "2026年12月1日 09:41", "time"),
        ("17:05:33", "17:05:34", "time"),
        ("2026-11-30", "2026-12-01", "date"),
        ("30 Nov 2026", "1 Dec 2026", "date"),
        ("星期一", "星期三", "date"),
        ("1796058333", "1796058399", "epoch"),
        ("1796058333123", "1796058399456", "epoch"),
        ("6f1c3c52-9a0e-4a8f-8d51-5a3b8a4f2a11", "0b9d7a44-11fe-4c1b-b3a0-77f0d2c94e05", "uuid"),
        ("req_8f3a2c91d4", "req_0b77e1a9c2", "id"),
        ("9f86d081884c7d659a2feaa0c55ad015", "60303ae22b998861bce3b28f33eec1be", "id"),
        ("ann@example.org", "bob.b@example.com", "address"),
        ("10.0.0.17", "192.168.1.9", "address"),
        ("42", "1,017", "number"),
        ("Alice Smith", "Bo", "words"),
        ("张伟", "欧阳娜娜", "words"),
    ],
)
@pytest.mark.parametrize("rules", [RULES, RULES_ZH])
def test_what_varies_is_found_and_named(one: str, other: str, kind: str, rules: str) -> None:
    begin = "Known to us: <"
    found = compare(f"{begin}{one}> {rules}", f"{begin}{other}> {rules}")
    assert found.whole
    assert {v.kind for v in found.varying} == {kind}
    assert len(begin) <= found.varying[0].at < len(begin) + len(other)
    assert sum(v.after for v in found.varying) >= len(rules)
    assert found.first < len(begin) + len(other)


def test_several_variations_are_each_found() -> None:
    def prompt(name: str, time: str, request: str) -> str:
        return f"You talk to {name}. Now it is {time}, request {request}. {RULES}"

    one = prompt("Ann", "2026-11-30 17:05", "6f1c3c52-9a0e-4a8f-8d51-5a3b8a4f2a11")
    other = prompt("Bartholomew Q", "2026-11-30 17:09", "0b9d7a44-11fe-4c1b-b3a0-77f0d2c94e05")
    found = compare(one, other)
    assert [v.kind for v in found.varying] == ["words", "time", "uuid"]
    assert found.whole and found.varying[-1].after > len(RULES)


def test_a_document_before_the_rules_is_one_variation_and_not_sixteen_small_ones() -> None:
    def words(seed: int) -> str:
        return " ".join(f"w{(i * seed) % 97} and number {(i * seed * 31) % 1_009}" for i in range(150))

    found = compare(f"Context:\n{words(7)}\n\n{RULES}", f"Context:\n{words(11)}\n\n{RULES}")
    assert found.whole and found.varying[-1].after >= len(RULES)


@pytest.mark.parametrize(
    ("a", "b"),
    [("", ""), ("", "x"), ("x", ""), ("-" * 500, "=" * 500), (RULES, "Nothing of that, at all: " + "z" * 99)],
)
def test_texts_with_nothing_in_common(a: str, b: str) -> None:
    found = compare(a, b)
    assert found.common <= min(len(a), len(b)) * 0.1
    assert found.whole is (a == b)


@given(st.text(max_size=300), st.text(max_size=300), st.text(max_size=100))
def test_any_two_texts_are_compared_within_bounds(a: str, b: str, tail: str) -> None:
    found = compare(a + tail, b + tail)
    assert 0 <= found.first <= found.common <= min(len(a), len(b)) + len(tail)
    assert found.end <= len(b + tail)
    assert all(v.kind in KINDS and 0 <= v.at <= len(b + tail) for v in found.varying)
    assert compare(a, a) == (len(a), len(a), (), True, len(a))


@given(st.text())
def test_a_shape_quotes_no_letter_and_no_digit(text: str) -> None:
    found = shape(text)
    assert len(found) <= 33
    letters = {ch for ch in found if ch.isalpha()}
    assert letters <= {"x", "X", "T"}
    assert not re.search(r"[1-9]", found)
    assert not any(ch.isdigit() and ch != "0" for ch in found)


def test_a_shape_shows_what_a_time_looks_like() -> None:
    assert shape("2026-11-30T17:05:33Z") == "0000-00-00T00:00:00X"
    assert shape("Alice 李") == "Xxxxx x"


def test_patterns_do_not_take_long_of_hostile_texts() -> None:
    for text in (
        "1" * 5_000,
        "a1" * 2_500,
        "a-" * 2_500,
        "1:" * 2_500,
        "@" * 5_000,
        string.printable * 50,
        "月日" * 2_000,
    ):
        kind_of(text)
        for at in range(0, len(text), 997):
            machine_made(text, at)
