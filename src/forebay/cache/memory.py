"""The answers that a worker keeps in memory, bounded in bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from forebay.cache.answers import Answer, turned
from forebay.cache.messages import Purge


class Answers:
    """By exact key. Mutable state: the answers, how many bytes these are, and the counts below."""

    __slots__ = ("_kept", "bytes", "evicted", "most_bytes")

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.bytes = 0
        self.evicted = 0
        self._kept: OrderedDict[bytes, Answer] = OrderedDict()

    def get(self, exact: bytes, now: float) -> Answer | None:
        """`now`: Unix time. What is past its time, but may be given while a fresh one is fetched, is given, too:
        `answer.fresh(now)` tells."""
        answer = self._kept.get(exact)
        if answer is None:
            return None
        if not answer.usable(now):
            self.drop_key(exact)
            return None
        self._kept.move_to_end(exact)
        return answer

    def in_form(self, exact: bytes, answer: Answer, *, streamed: bool) -> Answer:
        """The answer that `get` gave, in that form, which is kept in its place."""
        if answer.streamed == streamed:
            return answer
        other = turned(answer, streamed=streamed)
        if self._kept.get(exact) is answer:
            self.put(exact, other)
        return other

    def put(self, exact: bytes, answer: Answer) -> None:
        self.drop_key(exact)
        self._kept[exact] = answer
        self.bytes += answer.size
        while self.bytes > self.most_bytes:
            _, old = self._kept.popitem(last=False)
            self.bytes -= old.size
            self.evicted += 1

    def drop_key(self, exact: bytes) -> bool:
        old = self._kept.pop(exact, None)
        if old is not None:
            self.bytes -= old.size
        return old is not None

    def drop_entries(self, entries: Iterable[str]) -> int:
        """By `Answer.id`."""
        wanted = frozenset(entries)
        return self._drop([key for key, answer in self._kept.items() if answer.id in wanted])

    def drop(self, purge: Purge) -> int:
        """All that fits `fits`."""
        return self._drop([key for key, answer in self._kept.items() if fits(answer, purge)])

    def clear(self) -> None:
        self._kept.clear()
        self.bytes = 0

    def _drop(self, keys: list[bytes]) -> int:
        for key in keys:
            self.drop_key(key)
        return len(keys)

    def configure(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes

    def __len__(self) -> int:
        return len(self._kept)

    def __repr__(self) -> str:
        return f"<Answers {len(self)}, {self.bytes:,} of {self.most_bytes:,} bytes>"


def fits(answer: Answer, purge: Purge) -> bool:
    """Whether it is one of those that are to be forgotten. `purge.like` is not looked at: only the index knows."""
    return (
        (not purge.entry or answer.id == purge.entry)
        and (not purge.tag or purge.tag in answer.tags)
        and (not purge.source or purge.source in answer.sources)
        and (not purge.model or answer.model == purge.model)
        and (not purge.version or answer.version == purge.version)
        and (
            not purge.partition
            or answer.partition == purge.partition
            or answer.partition.startswith(purge.partition.rstrip("/") + "/")
        )
    )
