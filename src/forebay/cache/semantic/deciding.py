"""Whether one of the nearest known questions may be answered for the one that was asked, and what is learned from it.

The guard says what must not be confused, the verifier how sure it is that two questions mean the same, the bound how
sure it has to be. A ticket is a question whose engine's answer shall be compared with the neighbour's: a uniform sample
of the hits (they go to the engine as misses), the near misses, popular entries from time to time. Whoever holds one
hands it back by `learn` or `give_up`. Not thread-safe: its one caller is the helper's own loop.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import Any, Final, NamedTuple, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from forebay.cache.semantic.bound import CLEAN, IDENTICAL, Pool
from forebay.cache.semantic.guard import FEATURES, read
from forebay.cache.semantic.judge import miss_in
from forebay.cache.semantic.learned import VERSION, Learned, Pending, Standing, State, StateError, Tally, share_wrong
from forebay.config.cache import Mode, Semantic

__all__ = ["Candidate", "Choice", "Decider", "Pending", "Standing", "StateError", "Verdict", "Verifier"]

MOST_PARTITIONS: Final = 1_000
MOST_TICKETS: Final = 4_096
MOST_REFUTED: Final = 10_000
"""Pairs in all partitions. Beyond, the oldest of the partition that has most of them goes: none empties another's."""
MOST_POPULAR: Final = 10_000
MOST_COMPARED: Final = 5
"""Neighbours that the guard looks at: under 0.1 ms each."""
MOST_READ: Final = 4_096
"""Questions that are kept as the guard reads them, 7 KB each: what is asked often is often a neighbour."""
ALIKE: Final = 0.9999
"""Score of what differs in nothing but form, and in words of one meaning or forms of one word, or by the encoder's word
in more than the guard sees; and the highest of the verifier."""
_OTHER: Final = slice(FEATURES.index("synonyms"), FEATURES.index("derived") + 1)
"""Words that are not the same, but aligned."""
REVERIFY: Final = frozenset({4, 16, 64, 256, 1_024, 4_096})
"""Hits of one entry at which it is compared again."""
EAGER: Final = 8.0
"""Times the configured share is sampled of what is served on trust, without enough labels of one's own."""
FIRST_EAGER: Final = 16.0
"""The same of a language's first FIRST labels: what is trusted wrongly shows after some hundred hits."""
FIRST: Final = 100


class Verdict(Protocol):
    """The guard's, of two questions."""

    @property
    def conflict(self) -> str: ...
    @property
    def identical(self) -> bool: ...
    @property
    def features(self) -> tuple[float, ...]: ...


class Verifier(Protocol):
    """How sure it is that two questions mean the same."""

    @property
    def id(self) -> str: ...
    @property
    def thresholds(self) -> tuple[float, ...]: ...

    """Rungs, from strict to lax, all below 1."""

    def shipped(self, language: str, delta: float) -> float: ...

    """The threshold that its calibration asks for."""

    def agreed(self, language: str) -> float: ...

    """The cosine that questions must have which differ in form alone."""

    def score(
        self, language: str, cosine: float, features: Sequence[float], a: Vector | None, b: Vector | None
    ) -> float: ...


Vector = npt.NDArray[np.float32]


class Candidate(NamedTuple):
    """A known question near the one asked."""

    entry: str
    question: str
    cosine: float
    vector: Vector | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    entry: str = ""
    """Whose answer is given; "": a miss."""
    near: str = ""
    """Of a miss: the neighbour that came nearest."""
    similarity: float = 0.0
    """Cosine of the one or the other."""
    score: float = 0.0
    why: str = ""
    """Of a miss: the guard's word, near (no neighbour), threshold, refuted, closed, unverified. Of a hit with a ticket:
    sampled, reverified."""
    ticket: int = 0
    """The engine's answer shall be compared with that of the one or the other."""


class Decider:
    """`compare`: the guard's, of two questions as `read` made them. `judge_miss`: at most this share of wrong
    answers does the judge take for right, in the languages that it was measured in."""

    def __init__(
        self,
        rules: Semantic,
        embedder: str,
        verifier: Verifier,
        compare: Callable[[Any, Any], Verdict],
        judge_miss: float,
        read: Callable[[str], Any] = read,
    ) -> None:
        self._rules = rules
        self._verifier = verifier
        self._compare = compare
        self._read = lru_cache(MOST_READ)(read)
        self._judge_miss = judge_miss
        self.namespace = f"{embedder}|{verifier.id}|{rules.mode}|{rules.delta:g}|{judge_miss:g}"
        self._pools: dict[str, Learned] = {}
        self._partitions: OrderedDict[tuple[str, str], Learned] = OrderedDict()
        self._tickets: OrderedDict[int, Pending] = OrderedDict()
        self._number = 0
        self._refuted: dict[str, OrderedDict[bytes, None]] = {}
        self._popular: OrderedDict[str, int] = OrderedDict()

    # --- a look-up -------------------------------------------------------------------------------------------------

    def decide(
        self,
        asked: str,
        language: str,
        near: Sequence[Candidate],
        partition: str,
        rng: Random,
        vector: Vector | None = None,
        private: Callable[[str], bool] | None = None,
    ) -> Choice:
        """`near`: nearest first, whose answers can still be given. `vector`: of `asked`. `private`: whether an entry is
        another writer's and not verified."""
        pool, own = self._of(language, partition)
        pool.lookups += 1
        own.lookups += 1
        if not near:
            return Choice(why="near")
        (best, score, why), theirs = self._best(asked, language, near, vector, private)
        if theirs is not None and not (score >= 0 and self._passes(score, language, pool, own)[0]):
            one, high = theirs
            if self._passes(high, language, pool, own)[0] and not self._is_refuted(partition, asked, one.question):
                ticket = self._ticket(one, asked, language, partition, high, 0.0, would_hit=False, unverified=True)
                return Choice(near=one.entry, similarity=one.cosine, score=high, why="unverified", ticket=ticket)
            why = why or "unverified"
        if score < 0:
            return Choice(near=best.entry, similarity=best.cosine, why=why)
        if self._is_refuted(partition, asked, best.question):
            return Choice(near=best.entry, similarity=best.cosine, score=score, why="refuted")
        passes, closed = self._passes(score, language, pool, own)
        share = self._sampled(score, language, pool)
        if passes:
            for learned in (pool, own):
                (learned.same if score >= IDENTICAL else learned.scored).hits += 1
            why, ticket = "", 0
            if rng.random() < share:
                why, weight = "sampled", 1.0
            elif self._due(best.entry):
                why, weight = "reverified", 0.0
            if why:
                ticket = self._ticket(best, asked, language, partition, score, weight, would_hit=True)
            return Choice(best.entry, "", best.cosine, score, why, ticket)
        ticket = 0
        if score >= self._verifier.thresholds[-1] and self._rules.mode is Mode.BOUNDED:
            served = (
                max(self._shared(language, pool), own.pool.certified()) >= 0
            )  # then hits are labelled by share, misses always
            weight = share if served and score < IDENTICAL else 1.0
            ticket = self._ticket(best, asked, language, partition, score, weight, would_hit=False)
        why = "closed" if closed else "threshold"
        return Choice(near=best.entry, similarity=best.cosine, score=score, why=why, ticket=ticket)

    def _best(
        self,
        asked: str,
        language: str,
        near: Sequence[Candidate],
        vector: Vector | None,
        private: Callable[[str], bool] | None,
    ) -> tuple[tuple[Candidate, float, str], tuple[Candidate, float] | None]:
        """The neighbour with the highest score, -1 where the guard lets none pass, with its word on the nearest; and
        the best of those that scored higher and are private."""
        best, highest, why = near[0], -1.0, ""
        theirs: tuple[Candidate, float] | None = None
        if self._rules.mode is Mode.FIXED:
            for one in near:
                if private is None or not private(one.entry):
                    return (one, one.cosine, ""), theirs
                theirs = theirs or (one, one.cosine)
            return (best, highest, why), theirs
        reading, agreed = self._read(asked), self._verifier.agreed(language)
        for one in near[:MOST_COMPARED]:
            verdict = self._compare(reading, self._read(one.question))
            if verdict.conflict:
                why = why or verdict.conflict
                continue
            if verdict.identical:
                score = IDENTICAL if one.cosine >= agreed and not any(verdict.features[_OTHER]) else ALIKE
            else:
                score = min(ALIKE, self._verifier.score(language, one.cosine, verdict.features, vector, one.vector))
            if score <= highest:
                continue
            if private is not None and private(one.entry):
                theirs = theirs if theirs is not None and theirs[1] >= score else (one, score)
                continue
            best, highest = one, score
            if score >= self._verifier.thresholds[0]:
                break
        return (best, highest, why), theirs

    def _sampled(self, score: float, language: str, pool: Learned) -> float:
        """The share of such hits that is compared."""
        identical = score >= IDENTICAL
        trusted = pool.pool.same.labels < CLEAN if identical else pool.pool.starting(self._target(language))
        if not trusted or self._rules.mode is not Mode.BOUNDED:
            return self._rules.sample
        times = EAGER if (pool.same if identical else pool.scored).labels >= FIRST else FIRST_EAGER
        return min(1.0, times * self._rules.sample)

    def _target(self, language: str) -> float:
        """The most of the judged that may be wrong."""
        return self._rules.delta * (1 - self._missed(language))

    def _missed(self, language: str) -> float:
        return miss_in(language, self._judge_miss)

    def _passes(self, score: float, language: str, pool: Learned, own: Learned) -> tuple[bool, bool]:
        """Whether it is served; whether only its partition's own record forbids it."""
        if self._rules.mode is Mode.FIXED:
            return score >= self._rules.threshold, False
        if score >= IDENTICAL:
            closed = pool.pool.same_closed or own.pool.same_closed
            return not closed, closed
        rungs = pool.pool.rungs
        alone = own.pool.certified()
        if alone >= 0 and score >= rungs[alone].threshold:
            return True, False
        shared = self._shared(language, pool)
        fits = shared >= 0 and score >= rungs[shared].threshold
        return fits and not own.pool.refuted, fits and own.pool.refuted

    def _shared(self, language: str, pool: Learned) -> int:
        return pool.pool.serving(self._target(language), self._rules.start == "shipped")

    def _due(self, entry: str) -> bool:
        count = self._popular.pop(entry, 0) + 1
        self._popular[entry] = count
        if len(self._popular) > MOST_POPULAR:
            self._popular.popitem(last=False)
        return count in REVERIFY

    def _ticket(
        self,
        best: Candidate,
        asked: str,
        language: str,
        partition: str,
        score: float,
        weight: float,
        *,
        would_hit: bool,
        unverified: bool = False,
    ) -> int:
        self._number += 1
        self._tickets[self._number] = Pending(
            best.entry, asked, best.question, language, partition, score, weight, would_hit, unverified
        )
        if len(self._tickets) > MOST_TICKETS:
            self._tickets.popitem(last=False)
        return self._number

    # --- what comes of it ------------------------------------------------------------------------------------------

    def pending(self, ticket: int) -> Pending | None:
        """What to compare; None where it is not known (any more)."""
        return self._tickets.get(ticket)

    def give_up(self, ticket: int) -> None:
        """No answer came, or none that can be compared."""
        self._tickets.pop(ticket, None)

    def learn(self, ticket: int, same: bool) -> str:
        """Whether the engine's answer says what the neighbour's does. The entry that must go, since its own question
        is answered otherwise today; else ""."""
        pending = self._tickets.pop(ticket, None)
        if pending is None:
            return ""
        wrong = 0.0 if same else 1.0
        pool, own = self._of(pending.language, pending.partition)
        target = self._target(pending.language)
        serving = max(self._shared(pending.language, pool), own.pool.certified())
        on_trust = serving >= 0 and pool.pool.certified() < 0
        for learned in (pool, own):
            if pending.weight <= 0:
                continue
            identical = pending.score >= IDENTICAL
            tally = learned.same if identical else learned.scored
            if pending.would_hit:
                tally.labels += 1
                tally.wrong += wrong
            if identical:
                learned.pool.learn_same(wrong, pending.weight, target)
            elif learned.pool.learn(
                pending.score, wrong, pending.weight, target, serving, hasty=on_trust and learned is own
            ):
                learned.scored = Tally(hits=tally.hits)
        if not same and not (pending.unverified and pending.score >= IDENTICAL):
            self._refute(pending.partition, pending.question, pending.known)
            if pending.score >= IDENTICAL:
                return pending.near
        return ""

    def feedback(self, asked: str, known: str, language: str, partition: str, good: bool) -> None:
        """A caller's word on a hit. It is no random sample: it closes, and never opens."""
        for learned in self._of(language, partition):
            if good:
                learned.good += 1
            else:
                learned.bad += 1
        if not good and asked:
            self._refute(partition, asked, known)

    def _is_refuted(self, partition: str, asked: str, known: str) -> bool:
        return self._digest(asked, known) in self._refuted.get(partition, ())

    def _refute(self, partition: str, asked: str, known: str) -> None:
        self._refuted.setdefault(partition, OrderedDict())[self._digest(asked, known)] = None
        if sum(map(len, self._refuted.values())) > MOST_REFUTED:
            most = max(self._refuted, key=lambda name: len(self._refuted[name]))
            self._refuted[most].popitem(last=False)
            if not self._refuted[most]:
                del self._refuted[most]

    @staticmethod
    def _digest(a: str, b: str) -> bytes:
        text = "\0".join(sorted((a, b)))
        return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()

    def _of(self, language: str, partition: str) -> tuple[Learned, Learned]:
        pool = self._pools.get(language)
        if pool is None:
            pool = self._pools[language] = self._fresh(language)
        key = (partition, language)
        own = self._partitions.get(key)
        if own is None:
            own = self._partitions[key] = self._fresh(language)
            if len(self._partitions) > MOST_PARTITIONS:
                self._partitions.popitem(last=False)
        else:
            self._partitions.move_to_end(key)
        return pool, own

    def _fresh(self, language: str) -> Learned:
        shipped = self._verifier.shipped(language, self._rules.delta)
        return Learned(Pool.of(self._verifier.thresholds, shipped), Tally(), Tally())

    # --- state -----------------------------------------------------------------------------------------------------

    def dump(self) -> bytes:
        """JSON, for `load`. Tickets are not kept."""
        partitions = [(p, language, learned) for (p, language), learned in self._partitions.items()]
        refuted = [(name, [digest.hex() for digest in digests]) for name, digests in self._refuted.items()]
        return msgspec.json.encode(State(VERSION, self.namespace, self._pools, partitions, refuted))

    def load(self, data: bytes) -> bool:
        """Take up what `dump` gave. False, and nothing is taken: it is of another embedder, verifier or δ.

        Raises StateError where it cannot be read.
        """
        try:
            state = msgspec.json.decode(data, type=State)
            refuted = {name: OrderedDict.fromkeys(map(bytes.fromhex, texts)) for name, texts in state.refuted}
        except (msgspec.DecodeError, ValueError) as e:
            raise StateError(f"not a state of what the semantic cache has learned: {e}") from None
        if state.version != VERSION or state.namespace != self.namespace:
            return False
        self._pools = state.pools
        self._partitions = OrderedDict(((p, lang), learned) for p, lang, learned in state.partitions[-MOST_PARTITIONS:])
        self._refuted = refuted
        return True

    def stats(self, partition: str | None = None) -> list[Standing]:
        """By language. `partition`: of it alone; None: of all together."""
        if partition is None:
            found = list(self._pools.items())
        else:
            found = [(language, own) for (name, language), own in self._partitions.items() if name == partition]
        return [self._standing(language, learned) for language, learned in sorted(found)]

    def partitions(self) -> list[str]:
        """The longest unused first; at most MOST_PARTITIONS by language."""
        return list(dict.fromkeys(name for name, _ in self._partitions))

    def _standing(self, language: str, learned: Learned) -> Standing:
        pool = self._pools.get(language, learned)
        own = learned.pool.certified()
        rung = own if learned.pool.refuted else max(own, self._shared(language, pool))
        if self._rules.mode is Mode.FIXED:
            state, threshold = "fixed", self._rules.threshold
        elif rung < 0:
            state = "closed" if learned.pool.same_closed else "near-identical"
            threshold = IDENTICAL
        else:
            certified = max(own, -1 if learned.pool.refuted else pool.pool.certified()) >= 0
            state, threshold = ("certified" if certified else "shipped"), learned.pool.rungs[rung].threshold
        estimate, low, high = share_wrong(learned, self._missed(language))
        return Standing(
            language=language,
            state=state,
            threshold=threshold,
            lookups=learned.lookups,
            hits=learned.same.hits + learned.scored.hits,
            identical=learned.same.hits,
            labels=learned.same.labels + learned.scored.labels,
            wrong=learned.same.wrong + learned.scored.wrong,
            estimate=estimate,
            low=low,
            high=high,
            good=learned.good,
            bad=learned.bad,
        )
