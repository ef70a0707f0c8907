"""What the decider has learned: by language, in all partitions and in each, and how it is kept over restarts."""

from __future__ import annotations

from typing import Final

import msgspec

from forebay.cache.semantic.bound import ALPHA, Pool, interval

__all__ = ["VERSION", "Learned", "Pending", "Standing", "State", "StateError", "Tally", "share_wrong"]

VERSION: Final = 2


class Pending(msgspec.Struct, gc=False):
    """What a ticket stands for."""

    near: str
    question: str
    known: str
    language: str
    partition: str
    score: float
    weight: float
    """Of its label for the bound; 0: it was not drawn at random."""
    would_hit: bool
    unverified: bool = False
    """It would be a hit, had an engine told another writer the same."""


class Tally(msgspec.Struct, gc=False):
    """Of one stratum of what is served: hits, and the labels drawn from them at random."""

    hits: int = 0
    labels: int = 0
    """Of these hits."""
    wrong: float = 0.0


class Learned(msgspec.Struct):
    """Of one language, in one partition or in all."""

    pool: Pool
    same: Tally
    scored: Tally
    lookups: int = 0
    good: int = 0
    """Feedback."""
    bad: int = 0


class Standing(msgspec.Struct):
    """What is served of a language, and how much of it is wrong."""

    language: str
    state: str
    """shipped, certified, near-identical, closed; fixed in that mode."""
    threshold: float
    """Of the score; of the cosine in mode fixed."""
    lookups: int
    hits: int
    identical: int
    """Of these, questions that differed in nothing but form."""
    labels: int
    """Hits drawn at random and compared with the engine's answer."""
    wrong: float
    """Of these, as judged."""
    estimate: float
    """Wrong hits among hits, as judged."""
    low: float
    high: float
    """95 %, at all times at once; `high` allows for what the judge overlooks."""
    good: int
    bad: int
    """Callers' feedback."""


class State(msgspec.Struct):
    version: int
    namespace: str
    """Embedder, verifier, mode, δ and what the judge misses: labels of others say nothing."""
    pools: dict[str, Learned]
    partitions: list[tuple[str, str, Learned]]
    refuted: list[tuple[str, list[str]]]
    """By partition."""


class StateError(Exception):
    """A saved state that cannot be read: corrupt, or of another version."""


def share_wrong(learned: Learned, miss: float) -> tuple[float, float, float]:
    """Wrong hits among hits: as judged, and the interval of 95 % that holds at all times; its upper end allows for what
    the judge overlooks. Hits that differ in form alone and the others are two strata."""
    strata = [t for t in (learned.same, learned.scored) if t.hits]
    hits = sum(t.hits for t in strata)
    low = high = estimate = 0.0
    for t in strata:
        share = t.hits / hits
        below, above = interval(t.labels, t.wrong, ALPHA / len(strata))
        low += share * below
        high += share * above
        estimate += share * (t.wrong / t.labels if t.labels else 0.0)
    return estimate, low, min(1.0, (high if hits else 1.0) / (1 - miss))
