"""Look-ups by meaning: embedder, index and decider together, and how they stay in step with the store.

The index may lack questions that the store has (a crash, another embedder, another host's answers) and have some that
it lost. The former are embedded again, a few at a time (`rebuild`); the latter are taken out when they are met.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from random import Random
from typing import Final, TypeVar

import numpy as np

from forebay.cache import answers
from forebay.cache import language as languages
from forebay.cache.messages import Find
from forebay.cache.semantic import judge
from forebay.cache.semantic.deciding import MOST_COMPARED, Candidate, Choice, Decider
from forebay.cache.semantic.embedder import Embedder, EmbedderUnavailable, cleaned
from forebay.cache.semantic.index import BadVector, Index, IndexUnavailable, Near, Vectors, checked
from forebay.cache.semantic.readings import Readings
from forebay.cache.stores.store import Known, Store
from forebay.clock import Clock
from forebay.config.cache import Mode, Semantic

log = logging.getLogger("forebay.cache")

T = TypeVar("T")
NEIGHBOURS: Final = 8
REMEMBERED: Final = 4_096
"""Vectors of questions asked lately: an answer is stored soon after its question was looked for. 2 KB each."""
SLICE: Final = 16
"""Questions that are embedded at a time to fill an index again."""
FEW: Final = 4
"""Texts that are embedded in one piece while nobody waits for them, where it is done here: look-ups may pass before the
next. A server is asked for MANY."""
MANY: Final = 64
SIGNS: Final = 16
"""Characters a token has at most, about: what is longer than `longest` times this is long without being counted."""
MOST_SUSPECTS: Final = 1_024
LATER: Final = 30.0
"""Seconds until a rebuild that failed is tried again."""


@dataclass(frozen=True, slots=True)
class Question:
    """As it is compared. `why`: it is not, for this reason."""

    text: str
    language: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    choice: Choice
    language: str = ""


class Meaning:
    """Mutable state: vectors of late questions, the entries that seem to be gone, where a rebuild stands; a lock around
    the decider, which is for one thread at a time."""

    def __init__(
        self,
        rules: Semantic,
        embedder: Embedder,
        index: Index,
        decider: Decider,
        store: Store,
        clock: Clock,
        rng: Random,
        every: float = inf,
        readings: Readings | None = None,
    ) -> None:
        """`every`: seconds between looks for questions that others put into the store. `readings`: what the decider
        reads questions with."""
        self.rules = rules
        self.embedder = embedder
        self.index = index
        self.decider = decider
        self.deciding = threading.Lock()
        self.judge = judge.shipped(rules.embedder, self._clauses)
        self._store = store
        self._clock = clock
        self._rng = rng
        self._every = every
        self.readings = readings or Readings()
        self.let_pass: Callable[[], None] = lambda: None
        """Called before each piece of what takes long."""
        self._few = MANY if rules.embedder.startswith(("http:", "https:")) else FEW
        self._wanted = MOST_COMPARED if rules.mode is Mode.BOUNDED else NEIGHBOURS
        """Known neighbours that the decider looks at."""
        self._vectors: OrderedDict[str, Vectors] = OrderedDict()
        self._remembering = threading.Lock()
        self._suspects: set[str] = set()
        self._filling: Iterator[Sequence[Known]] | None = None
        self._waiting: list[Known] = []
        self._anew = True
        self._fill_at = -inf
        self.filled = 0
        """Questions that were embedded again."""
        self.embedding = 0.002
        """Seconds that a question takes, of late."""

    # --- questions ---------------------------------------------------------------------------------------------------

    def question(self, asked: str) -> Question:
        text = cleaned(asked)
        if not any(sign.isalnum() for sign in text):
            return Question(text, "", "empty")
        if len(text) > self.rules.longest * SIGNS:
            return Question(text, "", "long")
        language = languages.of(text)
        if not self.embedder.knows(language) or (self.rules.languages and language not in self.rules.languages):
            return Question(text, language, "language")
        if self.embedder.tokens(text) > self.rules.longest:
            return Question(text, language, "long")
        if not self.embedder.reads(text):
            return Question(text, language, "script")
        return Question(text, language)

    def vectors(self, texts: Sequence[str], seconds: float = inf) -> list[Vectors | None]:
        """None where a vector cannot be compared (NaN, zero). Raises EmbedderUnavailable."""
        with self._remembering:
            found = {text: self._vectors.get(text) for text in texts}
        missing = [text for text, vector in found.items() if vector is None]
        if missing:
            began = self._clock.now()
            rows = self.embedder.encode(missing, seconds)
            spent = (self._clock.now() - began) / len(missing)
            self.embedding += 0.1 * (spent - self.embedding)
            with self._remembering:
                for text, row in zip(missing, rows, strict=True):
                    try:
                        vector = checked(row, self.embedder.dimensions)[0]
                    except BadVector as e:
                        log.warning("the embedder gave a vector that cannot be used: %s", e)
                        continue
                    found[text] = self._vectors[text] = vector
                while len(self._vectors) > REMEMBERED:
                    self._vectors.popitem(last=False)
        return [found[text] for text in texts]

    def ahead(self, texts: Sequence[str]) -> None:
        """Embed what `vectors` is asked for soon. Raises EmbedderUnavailable."""
        for some in self._pieces(texts):
            self.vectors(some)

    def _pieces(self, what: Sequence[T]) -> Iterator[Sequence[T]]:
        for start in range(0, len(what), self._few):
            self.let_pass()
            yield what[start : start + self._few]

    def _clauses(self, texts: Sequence[str]) -> list[Vectors | None]:
        """As `vectors`, of texts that are not asked for again."""
        found: list[Vectors | None] = []
        for some in self._pieces(texts):
            for row in self.embedder.encode([cleaned(text) for text in some]):
                try:
                    found.append(checked(row, self.embedder.dimensions)[0])
                except BadVector:
                    found.append(None)
        return found

    # --- look-ups ----------------------------------------------------------------------------------------------------

    def find(self, finds: Sequence[Find], deadlines: Sequence[float]) -> list[Verdict]:
        """`deadlines`: on the clock, when each is worth nothing any more."""
        verdicts = [Verdict(Choice(why="budget"))] * len(finds)
        questions = [self.question(find.question) for find in finds]
        lived: list[int] = []
        now = self._clock.now()
        for i, question in enumerate(questions):
            if question.why:
                verdicts[i] = Verdict(Choice(why=question.why), question.language)
            elif now + self.embedding * (len(lived) + 1) <= deadlines[i]:
                lived.append(i)
        if not lived:
            return verdicts
        try:
            seconds = min(deadlines[i] for i in lived) - now
            vectors = self.vectors([questions[i].text for i in lived], seconds)
        except EmbedderUnavailable as e:
            log.debug("no vectors: %s", e)
            for i in lived:
                verdicts[i] = Verdict(Choice(why="embedder"), questions[i].language)
            return verdicts
        by_scope: dict[bytes, list[tuple[int, Vectors]]] = {}
        for i, vector in zip(lived, vectors, strict=True):
            if vector is None:
                verdicts[i] = Verdict(Choice(why="vector"), questions[i].language)
            else:
                by_scope.setdefault(finds[i].scope, []).append((i, vector))
        for scope, rows in by_scope.items():
            try:
                near = self.index.search(scope, np.stack([vector for _, vector in rows]), NEIGHBOURS)
            except IndexUnavailable as e:
                log.debug("no neighbours: %s", e)
                for i, _ in rows:
                    verdicts[i] = Verdict(Choice(why="index"), questions[i].language)
                continue
            for (i, vector), neighbours in zip(rows, near, strict=True):
                choice = self._choose(questions[i], finds[i], vector, neighbours)
                verdicts[i] = Verdict(choice, questions[i].language)
        return verdicts

    def _choose(self, question: Question, find: Find, vector: Vectors, near: Sequence[Near]) -> Choice:
        candidates: list[Candidate] = []
        readings: dict[str, bytes] = {}
        for some in (near[: self._wanted], near[self._wanted :]):
            if not some or len(candidates) >= self._wanted:
                break
            known = self._store.known([one.entry for one in some])
            for one in some:
                kept = known.get(one.entry)
                if kept is None:
                    if len(self._suspects) < MOST_SUSPECTS:
                        self._suspects.add(one.entry)
                elif kept.partition == find.partition and kept.scope == find.scope:  # whatever the index says
                    text = cleaned(kept.question)
                    candidates.append(Candidate(one.entry, text, one.cosine, one.vector))
                    readings[text] = kept.reading
        private = (lambda entry: not self._open(entry, find.writer)) if find.writer else None
        with self.deciding:
            self.readings.give(readings)
            return self.decider.decide(
                question.text, question.language, candidates, find.partition, self._rng, vector, private
            )

    def _open(self, entry: str, writer: bytes) -> bool:
        record = self._store.get(entry)
        answer = answers.decode(record.answer) if record is not None else None
        return answer is not None and answer.open_to(writer)

    # --- what is kept ------------------------------------------------------------------------------------------------

    def add(self, entry: str, scope: bytes, text: str) -> bool:
        """False where it has no vector now: `rebuild` comes back to it."""
        try:
            (vector,) = self.vectors([text])
            if vector is None:
                return False
            self.index.add(scope, entry, vector)
        except (EmbedderUnavailable, IndexUnavailable) as e:
            log.debug("a question is not in the index yet: %s", e)
            self.refill(LATER)
            return False
        return True

    def remove(self, entries: Sequence[str]) -> None:
        """They are no more. Where the index cannot be reached, they are met later, and taken out then."""
        if entries:
            try:
                self.index.remove(entries)
            except IndexUnavailable as e:
                log.debug("entries stay in the index for now: %s", e)

    def refill(self, seconds: float = 0.0) -> None:
        """See in so many seconds, in `rebuild`, whether the store has questions that are not in the index."""
        self._anew = True  # the thread of chores begins again: another one may say so
        self._fill_at = self._clock.now() + seconds

    def rebuild(self) -> bool:
        """Put a few questions of the store into the index that are not there, while it has room: what was used lately
        does not go for what nobody knows the use of. True: there is more to do now."""
        if self._clock.now() < self._fill_at:
            return False
        if self._anew:
            self._anew = False
            self._filling, self._waiting = None, []
        try:
            if not self._waiting:
                self._filling = self._filling if self._filling is not None else self._store.questions()
                page = next(self._filling, None)
                if page is None or len(self.index) >= self.rules.entries:
                    if self.filled:
                        log.info("%d questions were put into the index again", self.filled)
                    self.filled = 0
                    self.refill(self._every)
                    return False
                absent = set(self.index.missing([known.entry for known in page]))
                room = self.rules.entries - len(self.index)
                self._waiting = [known for known in page if known.entry in absent][:room]
                return True
            next_ones, self._waiting = self._waiting[:SLICE], self._waiting[SLICE:]
            fit = [(known, text.text) for known in next_ones if not (text := self.question(known.question)).why]
            for some in self._pieces(fit):
                for (known, _), vector in zip(some, self.vectors([text for _, text in some]), strict=True):
                    if vector is not None:
                        self.index.add(known.scope, known.entry, vector)
                        self.filled += 1
        except Exception as e:
            log.warning("the index is not filled yet; again in %g s: %s", LATER, e)
            self.refill(LATER)
            return False
        return True

    def tidy(self) -> None:
        """Take out of the index what the store, where it answers, does not know."""
        suspects, self._suspects = self._suspects, set()
        if suspects and self._store.state == "ok":
            known = self._store.known(sorted(suspects))
            self.remove([entry for entry in suspects if entry not in known])

    def close(self) -> None:
        self.index.close()
        self.embedder.close()

    def __repr__(self) -> str:
        return f"<Meaning {self.embedder.id}, {len(self.index)} questions>"
