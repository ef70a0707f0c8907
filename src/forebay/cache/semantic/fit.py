"""Fit a verifier to labelled pairs, and measure it on pairs that it was not fitted to.

The network is the mean of several small ones from different starts (their logits averaged, which is one wider network),
trained by Adam on the logistic loss with weight decay. Pairs that the guard rejects or finds identical are never asked
of the verifier, so it is not fitted to them, but they count where rungs are measured.
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
from forebay.cache.semantic.verifier import FORMAT, RUNGS, Fitted, Layer, Network, Passed

__all__ = ["FitError", "Measured", "Read", "fit", "measure", "prepare"]

FOLDS: Final = 5
STARTS: Final = 5
HIDDEN: Final = 10
STEPS: Final = 600
RATE: Final = 0.02
DECAY: Final = 0.02
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


def fit(read: Read, embedder: str, features: Sequence[str], seed: int = 0) -> Fitted:
    """`features`: the guard's names. The rungs' shares are of held-out groups. Raises FitError."""
    chosen = read.open
    for label, name in ((True, "same"), (False, "other")):
        count = int((read.same[chosen] == label).sum())
        if count < FEWEST:
            raise FitError(f"{count} pairs of the {name} meaning are left by the guard; {FEWEST} are needed")
    fold = np.array([zlib.crc32(p.group.encode()) % FOLDS for p in read.pairs])
    scores = np.zeros(len(read.pairs))
    for i in range(FOLDS):
        inside, outside = chosen & (fold != i), fold == i
        if outside.any() and inside.any():
            part = _train(read.x[inside], read.same[inside], _weights(read, inside), seed + i)
            scores[outside] = _scores(part, read.x[outside])
    mean, scale, layers = _train(read.x[chosen], read.same[chosen], _weights(read, chosen), seed + FOLDS)
    passed: dict[str, list[Passed]] = {}
    for m in measure(read, scores, RUNGS):
        passed.setdefault(m.language, []).append(Passed(m.threshold, round(m.same, 5), round(m.traps, 5)))
    return Fitted(
        FORMAT,
        embedder,
        ["cosine", *features],
        _rounded(mean),
        _rounded(scale),
        [Layer([_rounded(row) for row in w], _rounded(b)) for w, b in layers],
        passed,
        int(chosen.sum()),
    )


def scored(read: Read, network: Network) -> Array:
    return np.array([network.score("", row[0], tuple(row[1:]), None, None) for row in read.x])


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


Trained = tuple[Array, Array, list[tuple[Array, Array]]]


def _train(x: Array, same: npt.NDArray[np.bool_], weight: Array, seed: int) -> Trained:
    mean, scale = x.mean(axis=0), x.std(axis=0)
    scale = np.where(scale < 1e-6, 1.0, scale)
    z, y = (x - mean) / scale, same.astype(float)
    random = np.random.default_rng(seed)
    firsts, seconds = [], []
    for _ in range(STARTS):
        shapes = ((z.shape[1], HIDDEN), (HIDDEN,), (HIDDEN, 1), (1,))
        p = [random.normal(0, 1 / np.sqrt(s[0]), s) if len(s) == 2 else np.zeros(s) for s in shapes]
        m, v = [np.zeros(s) for s in shapes], [np.zeros(s) for s in shapes]
        for step in range(1, STEPS + 1):
            h = np.tanh(z @ p[0] + p[1])
            logit = (h @ p[2] + p[3])[:, 0]
            d = (weight * (1 / (1 + np.exp(-np.clip(logit, -30, 30))) - y))[:, None]
            back = (d @ p[2].T) * (1 - h * h)
            grads = [z.T @ back, back.sum(axis=0), h.T @ d, d.sum(axis=0)]
            for i, g in enumerate(grads):
                m[i] = 0.9 * m[i] + 0.1 * g
                v[i] = 0.999 * v[i] + 0.001 * g * g
                move = (m[i] / (1 - 0.9**step)) / (np.sqrt(v[i] / (1 - 0.999**step)) + 1e-8)
                p[i] = p[i] - RATE * (move + (DECAY * p[i] if p[i].ndim == 2 else 0))
        firsts.append((p[0], p[1]))
        seconds.append((p[2] / STARTS, p[3] / STARTS))
    wide = (np.concatenate([w for w, _ in firsts], axis=1), np.concatenate([b for _, b in firsts]))
    out = (np.concatenate([w for w, _ in seconds]), np.sum([b for _, b in seconds], axis=0))
    return mean, scale, [wide, out]


def _scores(trained: Trained, x: Array) -> Array:
    mean, scale, layers = trained
    z: Array = (x - mean) / scale
    z = np.tanh(z @ layers[0][0] + layers[0][1]) @ layers[1][0] + layers[1][1]
    logits: Array = np.clip(z[:, 0], -30, 30)
    scores: Array = 1 / (1 + np.exp(-logits))
    return scores


def _rounded(values: Array) -> list[float]:
    return [float(f"{v:.6g}") for v in values]
