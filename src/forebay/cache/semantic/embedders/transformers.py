"""A folder's model through the package sentence-transformers (and PyTorch), on the CPU."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from hashlib import blake2b
from math import inf
from pathlib import Path
from typing import Final

import numpy as np
from sentence_transformers import SentenceTransformer

from forebay.cache.semantic.embedder import EmbedderMissing
from forebay.cache.semantic.embedders.probes import languages
from forebay.cache.semantic.index import Vectors

UNREADABLE: Final = 0.34
"""Share of unknown tokens from which a text is not read."""
WEIGHTS: Final = (".safetensors", ".bin", ".json", ".txt", ".model")


class SentenceTransformers:
    """Nothing is fetched: the folder must hold all of it. Raises EmbedderMissing."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise EmbedderMissing(f"cache.semantic.embedder: {folder} is no folder")
        try:
            self._model = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
        except Exception as e:  # its errors have no common base
            raise EmbedderMissing(f"cache.semantic.embedder: {folder} cannot be loaded: {e}") from e
        self._lock = threading.Lock()
        digest = blake2b(digest_size=8)
        for file in sorted(found for found in folder.rglob("*") if found.suffix in WEIGHTS):
            digest.update(file.read_bytes())
        self.id: Final = f"sentence-transformers:{folder.name}@{digest.hexdigest()}"
        self.dimensions = self.encode(("warm",)).shape[1]
        self._unknown = getattr(self._model.tokenizer, "unk_token_id", None)
        self._languages = languages(self.encode, self.dimensions)

    def knows(self, language: str) -> bool:
        return language in self._languages

    def reads(self, text: str) -> bool:
        ids = self._ids(text)
        return ids.count(self._unknown) <= UNREADABLE * len(ids)

    def tokens(self, text: str) -> int:
        return len(self._ids(text)) + 2

    def _ids(self, text: str) -> list[int | None]:
        with self._lock:
            return list(self._model.tokenizer(text, add_special_tokens=False)["input_ids"])

    def encode(self, texts: Sequence[str], seconds: float = inf) -> Vectors:
        if not texts:
            return np.empty((0, self.dimensions), np.float32)
        with self._lock:
            found = self._model.encode(list(texts), normalize_embeddings=True, show_progress_bar=False)
        return np.asarray(found, dtype=np.float32)

    def close(self) -> None:
        pass

    def __repr__(self) -> str:
        return f"<SentenceTransformers {self.id}>"
