"""What a variable holds is one value, whatever it holds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from forebay.config.document import interpolate, parse

VALUES = st.text(st.characters(exclude_characters="\0"), max_size=40) | st.sampled_from(
    ["a: b", "\nadmin: x", "- x", "[1", "{a: b}", "*x", "&x", "!!str", "# c", "${A}", "$$", "'", '"', "null", "3"]
)
SPELLINGS = ["k: ${A}", "k: '${A}'", 'k: "${A}"', "k: |-\n  ${A}", "k: >-\n  ${A}", "{k: '${A}'}", "k: ${A:-z}"]


@given(VALUES, st.sampled_from(SPELLINGS))
def test_a_value_is_never_yaml(value: str, spelling: str) -> None:
    tree, troubles = parse(spelling)
    assert not troubles
    assert not interpolate(tree, {"A": value})
    assert tree.plain() == {"k": value or ("z" if ":-" in spelling else "")}


@given(st.text(max_size=40))
def test_dollars_doubled_are_the_text(text: str) -> None:
    tree, _ = parse("k: x")
    node = tree.child("k")
    assert node is not None
    node.value = text.replace("$", "$$")
    assert not interpolate(tree, {})
    assert node.value == text
    assert node.written is None


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused_in_words(text: str) -> None:
    tree, troubles = parse(text)
    assert isinstance(tree.value, dict)
    assert all(trouble.message.isprintable() for trouble in troubles)


def test_the_table_of_spellings() -> None:
    env = {"A": "1", "EMPTY": ""}
    for written, meant in {
        "x${A}y${A}": "x1y1",
        "${A:-d}": "1",
        "${EMPTY}": "",
        "${EMPTY:-d}": "d",
        "${NONE:-d}": "d",
        "${NONE:-}": "",
        "${NONE:-a b:c/$}": "a b:c/$",
        "$A $1 a$": "$A $1 a$",
        "$${A}": "${A}",
        "$$${A}": "$1",
        "$$$$": "$$",
    }.items():
        tree, _ = parse("k: x")
        node = tree.child("k")
        assert node is not None
        node.value = written
        assert not interpolate(tree, env)
        assert node.value == meant, written
