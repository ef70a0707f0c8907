"""The answers that a worker keeps in memory, bounded in bytes.

Which of them stay is moka's to say (TinyLFU: what was asked for often stays before what came last, so that a burst of
questions that nobody asks again empties nothing). A purge holds from the moment it is said; the memory it frees is
found a slice at a time, so that the event loop is not blocked by hundreds of thousands of answers. To forget all of
them, or to give them another bound, is no different: what there was is set aside, and goes slice by slice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Final, NamedTuple

from moka_py import Moka

from forebay.cache.answers import Answer, in_form
from forebay.cache.messages import Purge

_SLICE: Final = 512
"""Answers looked at in one go: to free one takes 4 µs."""
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


class _Aside(NamedTuple):
    """What there was under another bound, or before all was forgotten."""

    known: dict[bytes, Answer]
    entries: dict[str, bytes]
    policy: Moka[bytes, Answer]
    stays: bool
    """It is given again, as far as there is room."""


class Answers:
    """By exact key. Mutable state: the answers and moka's books on them, the keys by entry, purges under way, what is
    set aside, and how many were evicted."""

    __slots__ = ("_aside", "_entries", "_known", "_policy", "_size", "_sweeps", "evicted", "most_bytes")

    def __init__(self, most_bytes: int) -> None:
        self.evicted = 0
        """For want of room."""
        self._aside: list[_Aside] = []
        self._size = 0
        """Of the answer that moka is given just now, where that is known."""
        self._begin(most_bytes)

    def _begin(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self._known: dict[bytes, Answer] = {}
        self._entries: dict[str, bytes] = {}
        self._sweeps: list[_Sweep] = []
        gone = partial(self._gone, self._known, self._entries)
        self._policy: Moka[bytes, Answer] = Moka(most_bytes, eviction_listener=gone, weigher=self._weight)

    def get(self, exact: bytes, now: float) -> Answer | None:
        """`now`: Unix time. What is past its time, but may be given while a fresh one is fetched, is given, too:
        `answer.fresh(now)` tells."""
        answer = self._policy.get(exact)
        if answer is None and self._aside:
            answer = self._brought(exact, now)
        if answer is None:
            return None
        if not answer.usable(now) or (self._sweeps and any(sweep.takes(answer) for sweep in self._sweeps)):
            self.drop_key(exact)
            return None
        return answer

    def in_form(self, exact: bytes, answer: Answer, now: float, *, streamed: bool) -> Answer | None:
        """The answer that `get` gave, in that form, which is kept beside it. None: it cannot be given in it."""
        if answer.streamed == streamed:
            return answer
        other = self._policy.get(exact + _OTHER)
        if other is None or other.created != answer.created:
            other = in_form(answer, streamed=streamed)
            if other is not None and self._known.get(exact) is answer:
                self._set(exact + _OTHER, other, now)
        return other

    def put(self, exact: bytes, answer: Answer, now: float, size: int = 0) -> None:
        """In place of what there is. `size`: its `size_of`, where that is known: then `settle` is left to the caller,
        until when there may be more than the bound."""
        if exact in self._known:
            self.drop_key(exact)
        if answer.usable(now):
            self._entries[answer.id] = exact
            self._set(exact, answer, now, size)
        if self._sweeps:
            self._sweep(_STEP)
        if self._aside:
            self._clear_away(_STEP, now)

    def _set(self, key: bytes, answer: Answer, now: float, size: int = 0) -> None:
        self._known[key] = answer
        self._size = size
        self._policy.set(key, answer, ttl=answer.created + answer.ttl + answer.stale - now)
        self._size = 0
        if not size:
            self.settle()

    def settle(self) -> None:
        """The bound holds from now on, and not with one of the next calls."""
        self._policy.run_pending_tasks()

    def _weight(self, key: bytes, answer: Answer) -> int:
        """Moka asks while it takes it."""
        return self._size or size_of(answer)

    def _gone(
        self, known: dict[bytes, Answer], entries: dict[str, bytes], key: bytes, answer: Answer, cause: str
    ) -> None:
        """Moka lets go of it."""
        if known.get(key) is answer:
            del known[key]
            if entries.get(answer.id) == key:
                del entries[answer.id]
        if cause == "size":
            self.evicted += 1

    def drop_key(self, exact: bytes) -> bool:
        found = sum(old.stays and old.known.pop(exact, None) is not None for old in self._aside) > 0
        self._policy.remove(exact + _OTHER)
        return self._policy.remove(exact) is not None or found

    def drop_entries(self, entries: Iterable[str]) -> int:
        """By `Answer.id`; returns how many there were."""
        kept = [self._entries, *(old.entries for old in self._aside if old.stays)]
        return sum(self.drop_key(known[entry]) for entry in entries for known in kept if entry in known)

    def drop(self, purge: Purge, now: float) -> None:
        """No answer made until now that `fits` is given any more."""
        if purge == Purge(purge.n):
            self.clear()
            return
        if purge.like:  # only the index knows these; it names their entries
            return
        self._bring_all(now)
        self._sweeps.append(_Sweep(purge, now, iter(list(self._known))))
        while len(self._sweeps) > _MOST_SWEEPS:
            self._go_on(self._sweeps.pop(0), len(self._known))
        self._sweep(_SLICE)

    def sweep(self, now: float) -> bool:
        """Go on with purges, and with what is set aside, for a few milliseconds; whether more is to be done."""
        self._sweep(_SLICE)
        self._clear_away(_SLICE, now)
        return bool(self._sweeps or self._aside)

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
        """`sweep` frees what there was."""
        self._aside = [old._replace(stays=False) for old in self._aside]
        self._set_aside(self.most_bytes, stays=False)

    def configure(self, most_bytes: int, now: float) -> None:
        """Another bound: the answers stay as far as there is room; `sweep` brings them over."""
        if most_bytes != self.most_bytes:
            self._bring_all(now)
            while self._sweeps:
                self._sweep(len(self._known) + 1)
            self._set_aside(most_bytes, stays=True)

    def _set_aside(self, most_bytes: int, *, stays: bool) -> None:
        if self._known:
            self._aside.append(_Aside(self._known, self._entries, self._policy, stays))
        while len(self._aside) > _MOST_SWEEPS:
            del self._aside[0]
        self._begin(most_bytes)

    def _brought(self, exact: bytes, now: float) -> Answer | None:
        """From what is set aside and stays."""
        for old in self._aside:
            if old.stays and exact in old.known:
                self._bring(exact, old.known.pop(exact, None), now)
        return self._policy.get(exact)

    def _bring_all(self, now: float) -> None:
        """At once: it is to be looked through."""
        for old in self._aside:
            if old.stays:
                for key in list(old.known):
                    self._bring(key, old.known.pop(key, None), now)

    def _bring(self, key: bytes, answer: Answer | None, now: float) -> None:
        """None: moka let go of it, past its time, while another was taken from it."""
        if answer is not None and len(key) == _EXACT and key not in self._known and answer.usable(now):
            self._entries[answer.id] = key
            self._set(key, answer, now)

    def _clear_away(self, most: int, now: float) -> None:
        while self._aside and most > 0:
            old = self._aside[0]
            for key in list(islice(old.known, most)):
                most -= 1
                answer = old.known.pop(key, None)
                if old.stays:
                    self._bring(key, answer, now)
                elif answer is not None:
                    old.entries.pop(answer.id, None)
                old.policy.remove(key)
            if not old.known:
                del self._aside[0]

    @property
    def bytes(self) -> int:
        self._policy.run_pending_tasks()
        return self._policy.weighted_size()

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"<Answers {len(self)}, {self.bytes:,} of {self.most_bytes:,} bytes>"


_EXACT: Final = 16


def size_of(answer: Answer) -> int:
    """Bytes it takes in memory, about."""
    size: int = answer.size
    return size


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
