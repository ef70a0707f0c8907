"""What the semantic cache would serve of labelled pairs: each time one question is known and the other is asked.

By the same `Decider` as in the helper, fresh, so that what is measured is the default configuration before it has
learned anything; beside it what a plain threshold on the cosine serves.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from forebay.cache.semantic.deciding import Candidate, Decider, Vector, Verifier
from forebay.cache.semantic.guard import compare
from forebay.cache.semantic.judge import reckoned
from forebay.cache.semantic.pairs import Pair
from forebay.config.cache import Semantic

__all__ = ["THRESHOLDS", "Decided", "Share", "cosine_at", "curve", "decide_all", "shares"]

THRESHOLDS: Final = (0.8, 0.85, 0.88, 0.9, 0.92, 0.94, 0.96, 0.98, 0.99)

Encode = Callable[[Sequence[str]], Vector]


class _Never(random.Random):
    """Draws nothing for comparison."""

    def random(self) -> float:
        return 1.0


@dataclass(frozen=True, slots=True)
class Decided:
    pair: Pair
    cosine: float
    score: float
    """0 where the guard objects."""
    hit: bool
    why: str


class Share(msgspec.Struct):
    """Of one kind of pairs, or of all."""

    kind: str
    same: int
    served: int
    """Of `same`."""
    traps: int
    wrong: int
    """Traps that were served."""

    @property
    def same_share(self) -> float:
        return self.served / self.same if self.same else 0.0

    @property
    def wrong_share(self) -> float:
        return self.wrong / self.traps if self.traps else 0.0


def decide_all(
    pairs: Sequence[Pair], rules: Semantic, embedder: str, verifier: Verifier, encode: Encode
) -> list[Decided]:
    """`encode`: texts to rows of length 1."""
    decider = Decider(rules, embedder, verifier, compare, reckoned(embedder))
    texts = list(dict.fromkeys(text for p in pairs for text in (p.a, p.b)))
    vectors: dict[str, Vector] = {}
    for i in range(0, len(texts), 64):
        vectors.update(zip(texts[i : i + 64], encode(texts[i : i + 64]), strict=True))
    never, found = _Never(), []
    for i, pair in enumerate(pairs):
        known, asked = vectors[pair.a], vectors[pair.b]
        near = [Candidate(str(i), pair.a, float(known @ asked), known)]
        choice = decider.decide(pair.b, pair.language, near, "pairs", never, asked)
        decider.give_up(choice.ticket)
        found.append(Decided(pair, near[0].cosine, choice.score, bool(choice.entry), choice.why))
    return found


def cosine_at(decided: Sequence[Decided], threshold: float) -> list[Decided]:
    """The same pairs, by the cosine alone."""
    return [Decided(d.pair, d.cosine, d.cosine, d.cosine >= threshold, "") for d in decided]


def curve(decided: Sequence[Decided], of: str) -> list[tuple[float, float, float]]:
    """`of`: cosine or score. From strict to lax: a threshold, the share of traps from it on, that of paraphrases."""
    same, traps = sum(d.pair.same for d in decided), sum(not d.pair.same for d in decided)
    served = wrong = 0
    points = []
    for d in sorted(decided, key=lambda d: -float(getattr(d, of))):
        value = float(getattr(d, of))
        if value <= 0:
            break
        served += d.pair.same
        wrong += not d.pair.same
        points.append((value, wrong / max(1, traps), served / max(1, same)))
    return points


def shares(decided: Sequence[Decided], by_kind: bool = True) -> list[Share]:
    """By kind, in the order that they come in, then of all."""
    found: dict[str, Share] = {}
    total = Share("all", 0, 0, 0, 0)
    for d in decided:
        own = found.setdefault(d.pair.kind, Share(d.pair.kind, 0, 0, 0, 0))
        for share in (own, total):
            if d.pair.same:
                share.same += 1
                share.served += d.hit
            else:
                share.traps += 1
                share.wrong += d.hit
    return [*found.values(), total] if by_kind else [total]
