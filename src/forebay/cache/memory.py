"""The answers that a worker keeps in memory, bounded in bytes.

Which of them stay is moka's to say (TinyLFU: what was asked for often stays before what came last, so that a burst of
questions that nobody asks again empties nothing). A purge holds from the moment it is said; the memory it frees is
found a slice at a time, so that the event loop is not blocked by hundreds of thousands of answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from moka_py import Moka

from forebay.cache.answers import Answer, turned
from forebay.cache.messages import Purge

_SLICE: Final = 4_096
"""Answers looked at in one go."""
_STEP: Final = 64
"""The same, by each that is put."""
_MOST_SWEEPS: Final = 8
"""Purges that are under way at once; one more, and the oldest is brought to its end."""
_OTHER: Final = b"/"
"""Behind the key of the same answer in the form it did not come in."""


class _Sweep:
    __slots__ = ("at", "left", "purge")

    def __init__(self, purge: Purge, at: float, left: Iterator[bytes]) -> None:
        self.purge = purge
        self.at = at
        self.left = left

    def takes(self, answer: Answer) -> bool:
        return answer.created <= self.at and fits(answer, self.purge)


class Answers:
    """By exact key. Mutable state: the answers and moka's books on them, the keys by entry, purges under way, and how
    many were evicted."""

    __slots__ = ("_entries", "_known", "_policy", "_sweeps", "evicted", "most_bytes")

    def __init__(self, most_bytes: int) -> None:
        self.evicted = 0
        """For want of room."""
        self._begin(most_bytes)

    def _begin(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self._known: dict[bytes, Answer] = {}
        self._entries: dict[str, bytes] = {}
        self._sweeps: list[_Sweep] = []
        self._policy: Moka[bytes, Answer] = Moka(most_bytes, eviction_listener=self._gone, weigher=_weight)

    def get(self, exact: bytes, now: float) -> Answer | None:
        """`now`: Unix time. What is past its time, but may be given while a fresh one is fetched, is given, too:
        `answer.fresh(now)` tells."""
        answer = self._policy.get(exact)
        if answer is None:
            return None
        if not answer.usable(now) or (self._sweeps and any(sweep.takes(answer) for sweep in self._sweeps)):
            self.drop_key(exact)
            return None
        return answer

    def in_form(self, exact: bytes, answer: Answer, now: float, *, streamed: bool) -> Answer:
        """The answer that `get` gave, in that form, which is kept beside it."""
        if answer.streamed == streamed:
            return answer
        other = self._policy.get(exact + _OTHER)
        if other is None or other.created != answer.created:
            other = turned(answer, streamed=streamed)
            if self._known.get(exact) is answer:
                self._set(exact + _OTHER, other, now)
        return other

    def put(self, exact: bytes, answer: Answer, now: float) -> None:
        """In place of what there is."""
        self.drop_key(exact)
        if answer.usable(now):
            self._entries[answer.id] = exact
            self._set(exact, answer, now)
        if self._sweeps:
            self._sweep(_STEP)

    def _set(self, key: bytes, answer: Answer, now: float) -> None:
        self._known[key] = answer
        self._policy.set(key, answer, ttl=answer.created + answer.ttl + answer.stale - now)
        self._policy.run_pending_tasks()  # the bound holds now, not with one of the next calls

    def _gone(self, key: bytes, answer: Answer, cause: str) -> None:
        """Moka lets go of it."""
        if self._known.get(key) is answer:
            del self._known[key]
            if self._entries.get(answer.id) == key:
                del self._entries[answer.id]
        if cause == "size":
            self.evicted += 1

    def drop_key(self, exact: bytes) -> bool:
        self._policy.remove(exact + _OTHER)
        return self._policy.remove(exact) is not None

    def drop_entries(self, entries: Iterable[str]) -> int:
        """By `Answer.id`; returns how many there were."""
        keys = [self._entries[entry] for entry in entries if entry in self._entries]
        return sum(map(self.drop_key, keys))

    def drop(self, purge: Purge, now: float) -> None:
        """No answer made until now that `fits` is given any more."""
        if purge == Purge(purge.n):
            self.clear()
            return
        if purge.like:  # only the index knows these; it names their entries
            return
        self._sweeps.append(_Sweep(purge, now, iter(list(self._known))))
        while len(self._sweeps) > _MOST_SWEEPS:
            self._go_on(self._sweeps.pop(0), len(self._known))
        self._sweep(_SLICE)

    def sweep(self) -> bool:
        """Go on with purges for a few milliseconds; whether more is to be done."""
        self._sweep(_SLICE)
        return bool(self._sweeps)

    def _sweep(self, most: int) -> None:
        while self._sweeps and most > 0:
            looked = self._go_on(self._sweeps[0], most)
            if looked < most:
                del self._sweeps[0]
            most -= looked

    def _go_on(self, sweep: _Sweep, most: int) -> int:
        """How many keys it looked at; less than `most` where it has come to its end."""
        looked = 0
        while looked < most:
            key = next(sweep.left, None)
            if key is None:
                break
            looked += 1
            answer = self._known.get(key)
            if answer is not None and sweep.takes(answer):
                self._policy.remove(key)
        return looked

    def clear(self) -> None:
        self._begin(self.most_bytes)

    def configure(self, most_bytes: int, now: float) -> None:
        """Another bound: the answers stay as far as there is room."""
        if most_bytes == self.most_bytes:
            return
        known = self._known
        self._begin(most_bytes)
        for key, answer in known.items():
            if len(key) == _EXACT and answer.usable(now):
                self._entries[answer.id] = key
                self._set(key, answer, now)

    @property
    def bytes(self) -> int:
        self._policy.run_pending_tasks()
        return self._policy.weighted_size()

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"<Answers {len(self)}, {self.bytes:,} of {self.most_bytes:,} bytes>"


_EXACT: Final = 16


def _weight(key: bytes, answer: Answer) -> int:
    return answer.size


def fits(answer: Answer, purge: Purge) -> bool:
    """Whether it is one of those that are to be forgotten. `purge.like` is not looked at."""
    return (
        (not purge.entry or answer.id == purge.entry)
        and (not purge.tag or purge.tag in answer.tags)
        and (not purge.source or purge.source in answer.sources)
        and (not purge.model or answer.model == purge.model)
        and (not purge.version or answer.version == purge.version)
        and (not purge.partition or within(answer.partition, purge.partition))
    )


def within(partition: str, wanted: str) -> bool:
    """Whether it is that one, or begins with it up to a slash."""
    return partition == wanted or partition.startswith(wanted.rstrip("/") + "/")
