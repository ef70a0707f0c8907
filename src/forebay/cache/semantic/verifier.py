"""How sure one may be that two questions mean the same: a logistic regression on what embedder and guard say.

A verifier is a JSON file, written by `forebay cache fit`: the features by name, their weights, and how often pairs it
was not fitted to passed each rung of the bound. One is shipped for the default embedder; for others the cosine alone is
rated. On the pairs that are shipped with Forebay's benchmarks, small neural networks and the vectors' own differences
did worse on held-out families than these few dozen weights.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

__all__ = ["FORMAT", "RUNGS", "TRAPS", "Fitted", "Passed", "VerifierError", "Verifying", "load", "save", "shipped"]

FORMAT: Final = 1
RUNGS: Final = (0.995, 0.99, 0.98, 0.96, 0.94, 0.92, 0.9, 0.87, 0.84, 0.8, 0.77, 0.74, 0.7, 0.6, 0.5)
TRAPS: Final = 0.5
"""Neighbours that are alike but mean something else, per neighbour that means the same, as assumed before labels of
one's own have come."""

Vector = npt.NDArray[np.float32]


class VerifierError(Exception):
    """Not a verifier, or of other features or another embedder than are used here."""


class Passed(msgspec.Struct):
    """Shares of the pairs of one language that pass a rung: of the same meaning, and of another."""

    threshold: float
    same: float
    traps: float


class Fitted(msgspec.Struct):
    """The file."""

    format: int
    embedder: str
    features: list[str]
    """`cosine`, then the guard's."""
    weights: list[float]
    bias: float
    passed: dict[str, list[Passed]]
    """By language, rungs from strict to lax; measured on pairs that were held out."""
    pairs: int = 0
    """It was fitted to."""
    agree: dict[str, float] = {}
    """By language: the cosine from which the encoder agrees that questions of the same words mean the same. Not fitted:
    own pairs are told apart by a word and alike in all else, so that their cosines say less than traffic's."""


class Logistic:
    """A `Fitted`, ready to use."""

    def __init__(self, fitted: Fitted) -> None:
        self.fitted = fitted
        self.id = hashlib.blake2b(msgspec.json.encode(fitted), digest_size=6).hexdigest()
        self.thresholds = RUNGS
        self._weights = tuple(fitted.weights)
        self._bias = fitted.bias
        self._bare = fitted.features.index("bare") if "bare" in fitted.features else -1

    def agreed(self, language: str) -> float:
        """The cosine below which questions of the same words are not taken for the same; 0: none is known."""
        return self.fitted.agree.get(language, 0.0)

    def shipped(self, language: str, delta: float) -> float:
        """The laxest rung at which at most `delta` would be wrong with TRAPS traps a paraphrase; the strictest where
        none is known for the language."""
        best = RUNGS[0]
        for rung in self.fitted.passed.get(language, ()):
            wrong = TRAPS * rung.traps
            if wrong > delta * (wrong + rung.same):
                break
            best = rung.threshold
        return best

    def score(
        self, language: str, cosine: float, features: Sequence[float], a: Vector | None, b: Vector | None
    ) -> float:
        """Between 0 and 1; no more than the laxest rung where the words are the same, and the encoder hears another
        question all the same: words of one meaning lower the cosine, little ones and another order hardly do."""
        logit = self._bias
        for weight, value in zip(self._weights, (cosine, *features), strict=True):
            logit += weight * value
        sure = 1 / (1 + math.exp(-min(max(logit, -30.0), 30.0)))
        if self._bare > 0 and features[self._bare - 1] and cosine < self.agreed(language):
            return min(sure, RUNGS[-1])
        return sure


class CosineOnly:
    """For an embedder that no verifier was fitted to: the score is the cosine, and only near-identical questions are
    served until labels have come."""

    def __init__(self, embedder: str) -> None:
        self.id = f"cosine:{embedder}"
        self.thresholds = (0.99, 0.98, 0.97, 0.96, 0.95, 0.94, 0.92, 0.9, 0.88, 0.85)

    def shipped(self, language: str, delta: float) -> float:
        return 2.0

    def agreed(self, language: str) -> float:
        return 0.0

    def score(
        self, language: str, cosine: float, features: Sequence[float], a: Vector | None, b: Vector | None
    ) -> float:
        return min(max(cosine, 0.0), 1.0)


Verifying = Logistic | CosineOnly


def save(fitted: Fitted, path: Path) -> None:
    """Whole or not at all. Raises OSError."""
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_bytes(msgspec.json.format(msgspec.json.encode(fitted), indent=1) + b"\n")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def parse(data: bytes, source: str, embedder: str, features: Sequence[str]) -> Logistic:
    """`features`: the guard's names. Raises VerifierError."""
    try:
        fitted = msgspec.json.decode(data, type=Fitted)
    except msgspec.DecodeError as e:
        raise VerifierError(f"{source} is not a verifier: {e}; write one with `forebay cache fit`") from None
    if fitted.format != FORMAT:
        raise VerifierError(f"{source} has format {fitted.format}, this Forebay reads {FORMAT}: fit it again")
    if fitted.embedder != embedder:
        raise VerifierError(f"{source} was fitted to {fitted.embedder}, cache.semantic.embedder is {embedder}")
    if fitted.features != ["cosine", *features]:
        raise VerifierError(f"{source} was fitted to other features than this Forebay's guard gives: fit it again")
    if len(fitted.weights) != len(fitted.features) or not all(map(math.isfinite, (fitted.bias, *fitted.weights))):
        raise VerifierError(f"{source} is damaged: it must have a finite weight for each of its features")
    return Logistic(fitted)


def load(path: Path, embedder: str, features: Sequence[str]) -> Logistic:
    """Raises VerifierError, also where the file cannot be read."""
    try:
        data = path.read_bytes()
    except OSError as e:
        raise VerifierError(f"cache.semantic.verifier: {path}: {e.strerror or e}") from None
    return parse(data, str(path), embedder, features)


def shipped(embedder: str, features: Sequence[str]) -> Verifying:
    """The verifier that comes with Forebay for this embedder. `embedder`: as configured."""
    file = resources.files("forebay.cache.semantic") / "verifiers" / f"{embedder}.json"
    if not embedder.isalnum() or not file.is_file():
        return CosineOnly(embedder)
    return parse(file.read_bytes(), f"the verifier shipped for {embedder}", embedder, features)
