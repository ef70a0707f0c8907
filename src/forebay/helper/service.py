"""What the helper answers: look-ups, answers to be kept, purges, feedback, questions of people.

`find` is called by the thread of look-ups, the rest by that of chores (`lanes`), `others` by one of its own. What they
share has locks of its own. A look-up never raises for what a store, an embedder or an index does: that is a miss.

Each answer that is kept has one record in the store; the index only holds its question. So an answer that is purged
from the store is gone, whatever the index says.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from forebay.cache import answers
from forebay.cache.answers import Answer
from forebay.cache.messages import Drop, Feedback, Find, Found, Kind, Look, Purge, Store, Unanswered
from forebay.cache.semantic.deciding import Choice
from forebay.cache.semantic.embedder import EmbedderUnavailable
from forebay.cache.semantic.index import IndexUnavailable
from forebay.cache.semantic.judge import Judged, Opinion
from forebay.cache.stores.store import Record, StoreError, fits
from forebay.cache.stores.store import Store as Answers
from forebay.clock import Clock
from forebay.config.cache import Cache, IndexKind
from forebay.helper.asking import ModelJudge
from forebay.helper.counts import Counts
from forebay.helper.meaning import Meaning
from forebay.helper.showing import shown_entries, shown_stats

log = logging.getLogger("forebay.cache")

MOST_ALIKE: Final = 10_000
"""Entries that one purge by similarity takes away; said, where there are more."""
MOST_NAMED: Final = 1_000
"""Entries that a Drop names beside a purge that says by itself what goes."""
EXPIRE: Final = 5.0
"""Seconds between looks for what is over."""
TIDY: Final = 30.0
"""Seconds between looks for what is in the index and not in the store."""


class CannotDo(Exception):
    """The message is for people: why, and what to do."""


@dataclass(slots=True)
class Service:
    """`publish` tells everyone connected; it may be called from any thread. `meaning` is None where questions are not
    compared, for the reason `state`."""

    rules: Cache
    store: Answers
    publish: Callable[[Drop], None]
    clock: Clock
    counts: Counts = field(default_factory=Counts)
    meaning: Meaning | None = None
    state: str = "off"
    asks: ModelJudge | None = None
    """Where a model is to tell what the answers themselves do not."""
    queues: Callable[[], dict[str, int]] = dict
    _expire_at: float = 0.0
    _tidy_at: float = 0.0

    # --- look-ups ----------------------------------------------------------------------------------------------------

    def find(self, finds: Sequence[Find], deadlines: Sequence[float]) -> list[Found]:
        """`deadlines`: on the clock; past its own, a look-up is a miss that says so."""
        found: list[Found | None] = []
        behind: list[int] = []
        for i, find in enumerate(finds):
            began = self.clock.now()
            answer = self._exact(find)
            if answer is None and find.scope and find.question and self.meaning is not None:
                behind.append(i)
            found.append(answer or Found(find.n, Kind.MISS))
            found[i].seconds = self.clock.now() - began  # type: ignore[union-attr]
        if behind and (meaning := self.meaning) is not None:
            began = self.clock.now()
            verdicts = meaning.find([finds[i] for i in behind], [deadlines[i] for i in behind])
            for i, verdict in zip(behind, verdicts, strict=True):
                found[i] = self._semantic(finds[i], verdict.choice)
            share = (self.clock.now() - began) / len(behind)
            for i in behind:
                found[i].seconds += share  # type: ignore[union-attr]
        done = [one for one in found if one is not None]
        for find, one in zip(finds, done, strict=True):
            self.counts.found(find.partition, one)
        return done

    def nothing(self, find: Find) -> Found | None:
        """A miss, where that is certain without asking anyone: for the event loop. A question that may be compared is
        none."""
        if (find.scope and find.question and self.meaning is not None) or not self.store.absent(find.exact):
            return None
        found = Found(find.n, Kind.MISS, seconds=1e-5)
        self.counts.found(find.partition, found)
        return found

    def _exact(self, find: Find) -> Found | None:
        record = self.store.exact(find.exact)
        if record is None or record.partition != find.partition:
            return None
        if find.writer and not _open_to(record, find.writer):
            return Found(find.n, Kind.MISS, entry=record.entry, similarity=1.0, why="unverified")
        self._used(record.entry)
        fresh = self.clock.wall() < record.created + record.ttl
        return Found(find.n, Kind.EXACT if fresh else Kind.STALE, record.answer, record.entry, 1.0, 1.0)

    def _semantic(self, find: Find, choice: Choice) -> Found:
        if choice.entry:
            record = self.store.get(choice.entry)
            if (
                record is not None
                and record.scope == find.scope
                and record.partition == find.partition
                and self.clock.wall() < record.created + record.ttl
                and (not find.writer or _open_to(record, find.writer))
            ):
                self._used(record.entry)
                return Found(
                    find.n,
                    Kind.SEMANTIC,
                    record.answer,
                    record.entry,
                    choice.similarity,
                    choice.score,
                    choice.ticket,
                    choice.why,
                )
            self.give_up(Unanswered(choice.ticket))
            return Found(find.n, Kind.MISS, b"", choice.entry, choice.similarity, choice.score, why="over")
        why = "" if choice.why == "near" else choice.why
        return Found(find.n, Kind.MISS, b"", choice.near, choice.similarity, choice.score, choice.ticket, why)

    def _used(self, entry: str) -> None:
        self.store.touch((entry,))
        if self.meaning is not None:
            self.meaning.index.touch((entry,))

    # --- answers -----------------------------------------------------------------------------------------------------

    def ahead(self, messages: Sequence[Store]) -> None:
        """Embed the questions of several answers together, `keep` finds the vectors."""
        meaning = self.meaning
        if meaning is None or len(messages) < 2:
            return
        questions = [meaning.question(one.question) for one in messages if one.scope and one.question]
        try:
            meaning.ahead([question.text for question in questions if not question.why])
        except EmbedderUnavailable as e:
            log.debug("questions are embedded one by one: %s", e)

    def keep(self, message: Store) -> None:
        began = self.clock.now()
        answer = answers.decode(message.answer)
        if answer is None:
            log.warning("an answer that this version does not read was not kept: are two versions running?")
            self.give_up(Unanswered(message.ticket))
            self.counts.kept(message.partition, False, self.clock.now() - began)
            return
        if answer.writer and not answer.verified and self._agrees(message.exact, answer):
            answer = msgspec.structs.replace(answer, verified=True)
            message.answer = answers.encode(answer)
        scope, text = self._compared(message, answer)
        reading = self.meaning.readings.pack(text) if self.meaning is not None and scope else b""
        put = self.store.put(_record(message, answer, scope), reading)
        if (meaning := self.meaning) is not None:
            meaning.remove(put.gone)
            if put.kept and scope:
                meaning.add(answer.id, scope, text)
        self.counts.kept(message.partition, put.kept, self.clock.now() - began)
        if message.ticket:
            self._compare(message.ticket, answer)

    def _compared(self, message: Store, answer: Answer) -> tuple[bytes, str]:
        """The scope, b"" where the question is not compared with others; and the question as it is."""
        if not message.scope or not message.question or answer.calls:
            return b"", ""
        if self.meaning is None:
            return message.scope, message.question
        question = self.meaning.question(message.question)
        return (b"", "") if question.why else (message.scope, question.text)

    def _agrees(self, exact: bytes, fresh: Answer) -> bool:
        """Whether the answer to the same request that another writer has, or that was verified, says the same."""
        record = self.store.exact(exact)
        known = answers.decode(record.answer) if record is not None else None
        if known is None or not (known.verified or known.writer != fresh.writer):
            return False
        try:
            return self._judged(answers.text_of(fresh), answers.text_of(known)).opinion is Opinion.SAME
        except EmbedderUnavailable:
            return False

    def _verify(self, entry: str) -> None:
        """An engine told another writer the same: from now on everyone may be given it."""
        record = self.store.get(entry)
        answer = answers.decode(record.answer) if record is not None else None
        if record is not None and answer is not None and not answer.verified:
            encoded = answers.encode(msgspec.structs.replace(answer, verified=True))
            known = self.store.known([entry]).get(entry)
            self.store.put(msgspec.structs.replace(record, answer=encoded), known.reading if known is not None else b"")

    def give_up(self, message: Unanswered) -> None:
        if message.ticket and (meaning := self.meaning) is not None:
            with meaning.deciding:
                meaning.decider.give_up(message.ticket)

    def _compare(self, ticket: int, fresh: Answer) -> None:
        """The engine's answer with that of the neighbour which would have been given, or nearly."""
        meaning = self.meaning
        if meaning is None:
            return
        began = self.clock.now()
        with meaning.deciding:
            pending = meaning.decider.pending(ticket)
        known = self.store.get(pending.near) if pending is not None else None
        kept = answers.decode(known.answer) if known is not None else None
        if pending is None or kept is None or (pending.unverified and kept.writer == fresh.writer):
            self.give_up(Unanswered(ticket))
            return
        texts = answers.text_of(fresh), answers.text_of(kept)
        meaning.let_pass()
        try:
            judged = self._judged(*texts, pending.question, pending.known)
        except EmbedderUnavailable:
            self.give_up(Unanswered(ticket))
            return
        asks = self.asks if judged.opinion is Opinion.UNSURE else None
        if asks is None or not asks.ask(ticket, pending.question, *texts):
            self.learn(ticket, judged)
        else:
            self.counts.asked(pending.partition)
        self.counts.kept_busy(pending.partition, self.clock.now() - began)

    def learn(self, ticket: int, judged: Judged | None) -> None:
        """What came of a comparison; None: the model that was asked gave no word, and it stays unsure. To leave those
        pairs out would leave out the doubtful ones."""
        meaning = self.meaning
        if meaning is None:
            return
        judged = judged or Judged(Opinion.UNSURE, "model")
        with meaning.deciding:
            pending = meaning.decider.pending(ticket)
            gone = meaning.decider.learn(ticket, judged.same)
        if gone:
            self._forget([gone])
        if pending is not None and pending.unverified and judged.opinion is Opinion.SAME:
            self._verify(pending.near)
        if pending is not None:
            self.counts.compared(pending.partition, judged.same)

    def _judged(self, fresh: str, known: str, asked: str = "", known_question: str = "") -> Judged:
        """Raises EmbedderUnavailable."""
        if self.meaning is None:
            raise EmbedderUnavailable("questions are not compared")
        return self.meaning.judge(fresh, known, asked, known_question)

    def _forget(self, entries: Sequence[str]) -> int:
        """Everywhere. Raises StoreGone."""
        count = self.store.discard(entries)
        if self.meaning is not None:
            self.meaning.remove(entries)
        self.publish(Drop(None, tuple(entries)))
        return count

    # --- what people and callers say ---------------------------------------------------------------------------------

    def purge(self, purge: Purge) -> int:
        """How many went. Raises CannotDo."""
        try:
            if purge.like:
                return self._purge_alike(purge)
            gone = self.store.remove(purge)
        except StoreError as e:
            self.publish(Drop(purge))  # workers forget all the same
            raise CannotDo(f"nothing was purged from the store: {e}") from e
        if self.meaning is not None:
            self.meaning.remove(gone)
        if _everything(purge) and self.meaning is not None:
            try:
                self.meaning.index.clear()
            except IndexUnavailable as e:
                log.warning("the index still has questions; none is believed without its answer: %s", e)
        self.publish(Drop(purge, gone if len(gone) <= MOST_NAMED else ()))
        return len(gone)

    def _purge_alike(self, purge: Purge) -> int:
        alike = self._alike(purge.like, purge.at_least, MOST_ALIKE)
        rest = msgspec.structs.replace(purge, like="")
        records = [record for entry in alike if (record := self.store.get(entry)) is not None]
        return self._forget([record.entry for record in records if fits(record, rest)])

    def _alike(self, question: str, at_least: float, most: int) -> dict[str, float]:
        """Entries and their cosine. Raises CannotDo."""
        meaning = self.meaning
        if meaning is None:
            raise CannotDo(f"questions are not compared here: cache.semantic is {self.state}")
        found = meaning.question(question)
        if found.why in ("empty", "language", "script"):
            raise CannotDo(f"this question cannot be compared with others: {found.why}")
        try:
            (vector,) = meaning.vectors([found.text])
            if vector is None:
                raise CannotDo("this question has no vector that can be compared")
            return {near.entry: near.cosine for near in meaning.index.like(vector, at_least, most)}
        except (EmbedderUnavailable, IndexUnavailable) as e:
            raise CannotDo(str(e)) from e

    def feedback(self, said: Feedback) -> bool:
        """Whether there is such an entry in that partition. Raises CannotDo where it should go and did not."""
        record = self.store.get(said.entry)
        if record is None or record.partition != said.partition:
            return False
        self.counts.heard(said.partition, said.good)
        if (meaning := self.meaning) is not None:
            asked = meaning.question(said.question)
            known = meaning.question(record.question)
            with meaning.deciding:
                meaning.decider.feedback(asked.text, known.text, known.language, said.partition, said.good)
        if not said.good:
            try:
                self._forget([said.entry])
            except StoreError as e:
                self.publish(Drop(None, (said.entry,)))
                raise CannotDo(f"the entry is still in the store: {e}") from e
        return True

    def look(self, look: Look) -> bytes:
        """JSON. Raises CannotDo."""
        match look.what:
            case "stats":
                return shown_stats(self, look)
            case "entries":
                alike = self._alike(look.like, 0.0, max(look.most, 1) * 8) if look.like else None
                try:
                    return shown_entries(self, look, alike)
                except StoreError as e:
                    raise CannotDo(str(e)) from e
            case other:
                raise CannotDo(f"there is nothing to see by the name {other!r}: stats, entries")

    # --- in between --------------------------------------------------------------------------------------------------

    def chore(self) -> float:
        """A little of what is to be put in order; seconds until there is more."""
        now = self.clock.now()
        if now >= self._expire_at:
            self._expire_at = now + EXPIRE
            try:
                gone = self.store.expire()
            except StoreError as e:
                log.debug("nothing was looked through for what is over: %s", e)
                gone = ()
            if self.meaning is not None:
                self.meaning.remove(gone)
            if len(gone) > 0:
                self._expire_at = now  # there may be more of it
        if self.meaning is not None:
            if now >= self._tidy_at:
                self._tidy_at = now + TIDY
                self.meaning.tidy()
            if self.meaning.rebuild():
                return 0.0
        return max(0.0, min(self._expire_at, now + 1.0) - self.clock.now())

    def others(self, wait: float) -> None:
        """What other hosts that share the store removed, for up to `wait` seconds. Raises StoreError."""
        for drop in self.store.dropped(wait):
            if (meaning := self.meaning) is not None:
                meaning.remove(drop.entries)
                if drop.purge is not None and _everything(drop.purge) and meaning.rules.index is IndexKind.FAISS:
                    meaning.index.clear()  # this host's own
                    meaning.refill()
            self.publish(drop)


def _everything(purge: Purge) -> bool:
    return not any((purge.entry, purge.tag, purge.source, purge.partition, purge.model, purge.version, purge.like))


def _open_to(record: Record, writer: bytes) -> bool:
    answer = answers.decode(record.answer)
    return answer is not None and answer.open_to(writer)


def _record(message: Store, answer: Answer, scope: bytes) -> Record:
    return Record(
        answer.id,
        message.exact,
        scope,
        message.question,
        message.partition,
        answer.model,
        answer.version,
        answer.tags,
        answer.sources,
        answer.created,
        answer.ttl,
        answer.stale,
        message.answer,
    )
