"""Fit a verifier to labelled pairs, and measure it on pairs that it was not fitted to.

Logistic regression with a ridge, by Newton's method (Hastie, Tibshirani and Friedman, The Elements of Statistical
Learning, 4.4). Pairs that the guard rejects or finds identical are never asked of the verifier, so it is not fitted to
them, but they count where rungs are measured.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from forebay.cache.semantic.bound import IDENTICAL
from forebay.cache.semantic.deciding import Verdict
from forebay.cache.semantic.pairs import Pair
from forebay.cache.semantic.verifier import FORMAT, RUNGS, Fitted, Passed

__all__ = ["FitError", "Measured", "Read", "fit", "measure", "prepare", "train"]

FOLDS: Final = 5
STEPS: Final = 30
RIDGE: Final = 1e-3
"""On weights of features that are scaled to a deviation of 1; the loss is a mean."""
MORE: Final = frozenset({"cosine", "equal", "covered", "covered_less", "grams", "sequence", "lengths"})
LESS: Final = frozenset(
    {"left_asked", "left_known", "left_both", "unknown_left", "exchanged", "light", "question", "modality", "tense"}
    | {"person", "negation", "antonyms", "rivals", "entities", "numbers", "scopes", "order", "conflict"}
    | {"two_languages", "negated", "bare_light", "bare_framed"}
)
"""Of the features by these names, those that may only raise the score, and those that may only lower it. Pairs that
were written to be told apart differ in one word; left free, weights learn from them that what shares more characters
means the same less often, which is not so in traffic."""
FEWEST: Final = 40
"""Pairs of either label below which nothing is fitted."""

Array = npt.NDArray[np.float64]
Compare = Callable[[str, str], Verdict]
Encode = Callable[[list[str]], npt.NDArray[np.float32]]


class FitError(Exception):
    """The pairs do not do: why, and what is needed."""


@dataclass(frozen=True, slots=True)
class Read:
    """Pairs, as the verifier sees them."""

    pairs: Sequence[Pair]
    x: Array
    """Pairs × (cosine, the guard's features)."""
    conflicts: tuple[str, ...]
    identical: npt.NDArray[np.bool_]
    same: npt.NDArray[np.bool_]

    @property
    def open(self) -> npt.NDArray[np.bool_]:
        """Left to the verifier."""
        return np.array([not c for c in self.conflicts], dtype=bool) & ~self.identical


@dataclass(frozen=True, slots=True)
class Measured:
    """Of one language, at one rung."""

    language: str
    threshold: float
    same: float
    traps: float


def prepare(pairs: Sequence[Pair], encode: Encode, compare: Compare) -> Read:
    """`encode`: texts to rows of length 1."""
    texts = list(dict.fromkeys(text for p in pairs for text in (p.a, p.b)))
    number = {text: i for i, text in enumerate(texts)}
    vectors = np.concatenate([encode(texts[i : i + 64]) for i in range(0, len(texts), 64)])
    rows, conflicts, identical = [], [], []
    for p in pairs:
        verdict = compare(p.a, p.b)
        cosine = float(vectors[number[p.a]] @ vectors[number[p.b]])
        rows.append((cosine, *verdict.features))
        conflicts.append(verdict.conflict)
        identical.append(verdict.identical and not verdict.conflict)
    same = np.array([p.same for p in pairs], dtype=bool)
    return Read(pairs, np.array(rows), tuple(conflicts), np.array(identical, dtype=bool), same)


def fit(read: Read, embedder: str, features: Sequence[str]) -> Fitted:
    """`features`: the guard's names. The rungs' shares are of held-out groups. Raises FitError."""
    chosen = read.open
    signs = np.array([(name in MORE) - (name in LESS) for name in ("cosine", *features)])
    for label, name in ((True, "same"), (False, "other")):
        count = int((read.same[chosen] == label).sum())
        if count < FEWEST:
            raise FitError(f"{count} pairs of the {name} meaning are left by the guard; {FEWEST} are needed")
    fold = np.array([zlib.crc32(p.group.encode()) % FOLDS for p in read.pairs])
    scores = np.zeros(len(read.pairs))
    for i in range(FOLDS):
        inside, outside = chosen & (fold != i), fold == i
        if outside.any() and inside.any():
            part = train(read.x[inside], read.same[inside], _weights(read, inside), signs)
            scores[outside] = _scores(part, read.x[outside])
    trained = train(read.x[chosen], read.same[chosen], _weights(read, chosen), signs)
    passed: dict[str, list[Passed]] = {}
    for m in measure(read, scores, RUNGS):
        passed.setdefault(m.language, []).append(Passed(m.threshold, round(m.same, 5), round(m.traps, 5)))
    return Fitted(
        FORMAT,
        embedder,
        ["cosine", *features],
        _rounded(trained[:-1]),
        float(trained[-1]),
        passed,
        int(chosen.sum()),
    )


def measure(read: Read, scores: Array, thresholds: Sequence[float]) -> list[Measured]:
    """What passes the guard and then each threshold."""
    final = np.where(read.identical, IDENTICAL, np.where(read.open, scores, -1.0))
    languages = np.array([p.language for p in read.pairs])
    found = []
    for language in sorted(set(languages)):
        for threshold in thresholds:
            of = languages == language
            same, traps = of & read.same, of & ~read.same
            # One more of each than was seen, half of it passed (Jeffreys): no share is 0 for want of pairs.
            served = final >= threshold
            found.append(
                Measured(
                    str(language),
                    threshold,
                    float((served[same].sum()) / max(1, same.sum())),
                    float((served[traps].sum() + 0.5) / (traps.sum() + 1)),
                )
            )
    return found


def _weights(read: Read, chosen: npt.NDArray[np.bool_]) -> Array:
    """Both labels count the same in each language, and a group no more than its square root of pairs."""
    groups: dict[tuple[str, bool], int] = {}
    keys = [(p.group, p.same) for p, c in zip(read.pairs, chosen, strict=True) if c]
    for key in keys:
        groups[key] = groups.get(key, 0) + 1
    weight = np.array([groups[key] ** -0.5 for key in keys])
    kinds = [(p.language, p.same) for p, c in zip(read.pairs, chosen, strict=True) if c]
    for kind in set(kinds):
        of = np.array([k == kind for k in kinds])
        weight[of] /= weight[of].sum()
    total: Array = weight / weight.sum()
    return total


def train(
    x: Array, same: npt.NDArray[np.bool_], weight: Array, signs: npt.NDArray[np.int_], ridge: float = RIDGE
) -> Array:
    """Weights of the features as they are; the bias last. `signs`: 1 and -1 for weights that may not be of the other
    sign: those that would be are left out, and the rest is fitted again."""
    mean, scale = x.mean(axis=0), x.std(axis=0)
    used = scale >= 1e-6
    z = (x - mean) / np.where(used, scale, 1.0)
    w = np.zeros(x.shape[1] + 1)
    while used.any():
        w[:-1] = 0.0
        w[np.append(used, True)] = _newton(z[:, used], same, weight, ridge)
        astray = used & (w[:-1] * signs < 0)
        if not astray.any():
            break
        used = used & ~astray
    own = np.where(used, w[:-1] / np.where(scale < 1e-6, 1.0, scale), 0.0)
    return np.append(own, w[-1] - float(own @ mean))


def _newton(z: Array, same: npt.NDArray[np.bool_], weight: Array, strength: float) -> Array:
    z = np.column_stack([z, np.ones(len(z))])
    ridge = np.append(np.full(z.shape[1] - 1, strength), 0.0)
    w = np.zeros(z.shape[1])
    for _ in range(STEPS):
        p = _logistic(z @ w)
        slope = z.T @ (weight * (p - same)) + ridge * w
        bend = (z * (weight * np.maximum(p * (1 - p), 1e-9))[:, None]).T @ z + np.diag(ridge + 1e-9)
        step = np.linalg.solve(bend, slope)
        w = w - step / max(1.0, float(np.abs(step).max()))
        if np.abs(step).max() < 1e-8:
            break
    return w


def _scores(trained: Array, x: Array) -> Array:
    return _logistic(x @ trained[:-1] + trained[-1])


def _logistic(logits: Array) -> Array:
    p: Array = 1 / (1 + np.exp(-np.clip(logits, -30, 30)))
    return p


def _rounded(values: Array) -> list[float]:
    return [float(f"{v:.6g}") for v in values]
