"""What was looked up, found and missed, by partition: for people."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Final

import msgspec

from forebay.cache.messages import Found, Kind
from forebay.cache.stores.store import within

MOST: Final = 1_000
"""Partitions that are counted by themselves: the longest unseen goes to OTHERS."""
OTHERS: Final = "(others)"
MOST_WHY: Final = 64
"""Reasons of misses; the guard's are a few dozen."""


class Count(msgspec.Struct, gc=False):
    looked: int = 0
    exact: int = 0
    stale: int = 0
    semantic: int = 0
    misses: dict[str, int] = {}
    """By why; "": there was nothing near."""
    stored: int = 0
    refused: int = 0
    """Answers that the store did not keep."""
    compared: int = 0
    """Answers that were compared with a neighbour's."""
    wrong: int = 0
    """Of those: they did not say the same."""
    asked: int = 0
    """Of those: a model was asked (cache.semantic.judge)."""
    good: int = 0
    bad: int = 0
    """Feedback."""
    seconds: float = 0.0
    """Of the helper's work for look-ups."""
    keeping: float = 0.0
    """Of its work for storing and comparing."""

    def miss(self, why: str) -> None:
        if why not in self.misses and len(self.misses) >= MOST_WHY:
            why = "other"
        self.misses[why] = self.misses.get(why, 0) + 1

    def add(self, other: Count) -> None:
        for name in self.__struct_fields__:
            if name != "misses":
                setattr(self, name, getattr(self, name) + getattr(other, name))
        for why, count in other.misses.items():
            self.misses[why] = self.misses.get(why, 0) + count


class Counts:
    """From several threads."""

    def __init__(self) -> None:
        self._by_partition: OrderedDict[str, Count] = OrderedDict()
        self._lock = threading.Lock()

    def found(self, partition: str, answer: Found) -> None:
        with self._lock:
            count = self._of(partition)
            count.looked += 1
            count.seconds += answer.seconds
            match answer.kind:
                case Kind.EXACT:
                    count.exact += 1
                case Kind.STALE:
                    count.stale += 1
                case Kind.SEMANTIC:
                    count.semantic += 1
                case _:
                    count.miss(answer.why)

    def kept(self, partition: str, kept: bool, seconds: float) -> None:
        with self._lock:
            count = self._of(partition)
            count.stored += kept
            count.refused += not kept
            count.keeping += seconds

    def kept_busy(self, partition: str, seconds: float) -> None:
        with self._lock:
            self._of(partition).keeping += seconds

    def compared(self, partition: str, same: bool) -> None:
        with self._lock:
            count = self._of(partition)
            count.compared += 1
            count.wrong += not same

    def asked(self, partition: str) -> None:
        with self._lock:
            self._of(partition).asked += 1

    def heard(self, partition: str, good: bool) -> None:
        with self._lock:
            count = self._of(partition)
            count.good += good
            count.bad += not good

    def _of(self, partition: str) -> Count:
        count = self._by_partition.get(partition)
        if count is None:
            count = self._by_partition[partition] = Count()
            if len(self._by_partition) > MOST:
                oldest, old = next((name, one) for name, one in self._by_partition.items() if name != OTHERS)
                del self._by_partition[oldest]
                self._by_partition.setdefault(OTHERS, Count()).add(old)
        else:
            self._by_partition.move_to_end(partition)
        return count

    def shown(self, partition: str, most: int) -> dict[str, Count]:
        """Of that partition and those below it, the most used first, `most` of them."""
        with self._lock:
            chosen = {name: one for name, one in self._by_partition.items() if within(name, partition)}
            ordered = sorted(chosen, key=lambda name: -chosen[name].looked)[:most]
            return {name: msgspec.convert(msgspec.to_builtins(chosen[name]), Count) for name in ordered}

    def total(self, partition: str = "") -> Count:
        whole = Count()
        with self._lock:
            for name, one in self._by_partition.items():
                if within(name, partition):
                    whole.add(one)
        return whole

    def dump(self) -> bytes:
        with self._lock:
            return msgspec.json.encode(self._by_partition)

    def load(self, data: bytes) -> None:
        """Take up what `dump` gave. Raises ValueError where it is something else."""
        try:
            found = msgspec.json.decode(data, type=dict[str, Count])
        except msgspec.DecodeError as e:
            raise ValueError(str(e)) from None
        with self._lock:
            self._by_partition = OrderedDict(list(found.items())[-MOST:])
