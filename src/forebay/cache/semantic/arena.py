"""Vectors in memory by slot, their entries and scopes, which of them go first, and what is not written yet."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from forebay.cache.semantic.index import Near, Vectors
from forebay.cache.semantic.scoped import Halves, Scoped
from forebay.cache.semantic.vectors_file import Row

__all__ = ["Arena", "Changes"]

_OLDEST = 1_024
"""Slots that are found at once as those to go next."""
_SIGN_AND_REST = np.int32(-0x7000_2000)
_BIAS = np.float32(2.0**112)


@dataclass(slots=True)
class Changes:
    """Slots that differ from what is in the file; no slot is in two of the sets."""

    fresh: set[int] = field(default_factory=set)
    """To be written."""
    touched: set[int] = field(default_factory=set)
    """Used since."""
    gone: set[int] = field(default_factory=set)
    """Emptied."""

    def __bool__(self) -> bool:
        return bool(self.fresh or self.touched or self.gone)


class Arena:
    """Calls come from one thread at a time. It takes the address space for `most` vectors at once, and memory as they
    come: 2 bytes a dimension, a bit a dimension in large scopes, and about 300 bytes."""

    def __init__(self, dimensions: int, most: int) -> None:
        self.most = most
        self.changes = Changes()
        self._vectors = np.empty((most, dimensions), np.float16)
        self._used = np.zeros(most, np.int64)
        """When a slot's entry was used last, by `_clock`; 0: the slot is empty."""
        self._places = np.zeros(most, np.int32)
        """Of a slot in its scope."""
        self._entries: list[str] = []
        """By slot, as far as slots have been taken once."""
        self._homes: list[Scoped | None] = []
        self._slots: dict[str, int] = {}
        self._scopes: dict[bytes, Scoped] = {}
        self._free: list[int] = []
        self._clock = 0
        self._oldest: list[tuple[int, int]] = []
        """Last use and slot of those that go next, the first of them last."""

    def __repr__(self) -> str:
        return f"<Arena {len(self):,} of {self.most:,} in {len(self._scopes):,} scopes>"

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, entry: object) -> bool:
        return entry in self._slots

    @property
    def end(self) -> int:
        """Above all slots that have been taken."""
        return len(self._entries)

    def size(self) -> int:
        """Bytes, about."""
        dimensions = self._vectors.shape[1]
        return self.end * (2 * dimensions + dimensions // 8 + 220) + 250 * len(self._scopes)

    def add(self, scope: bytes, entry: str, vector: Vectors) -> None:
        """`vector` is of length 1."""
        if (old := self._slots.get(entry)) is not None:
            self._release(old)
        self._clock += 1
        self._put(scope, entry, vector, self._clock)

    def put(self, row: Row) -> None:
        """As it was written in a slot that is not there any more."""
        if row.entry not in self._slots:
            self._clock = max(self._clock, row.used)
            self._put(row.scope, row.entry, np.frombuffer(row.vector, np.float16), row.used)

    def _put(self, scope: bytes, entry: str, vector: Vectors | Halves, used: int) -> None:
        slot = self._take()
        self._vectors[slot] = vector
        self._seat(slot, entry, scope, used).widen(self._vectors)
        self.changes.gone.discard(slot)
        self.changes.fresh.add(slot)

    def touch(self, entry: str) -> None:
        slot = self._slots.get(entry)
        if slot is not None:
            self._clock += 1
            self._used[slot] = self._clock
            if slot not in self.changes.fresh:
                self.changes.touched.add(slot)

    def remove(self, entry: str) -> bool:
        slot = self._slots.get(entry)
        if slot is None:
            return False
        self._release(slot)
        return True

    def search(self, scope: bytes, asked: Vectors, k: int) -> list[list[Near]]:
        home = self._scopes.get(scope)
        if home is None or k < 1:
            return [[] for _ in asked]
        return [self._nearest(row, slots, k, -2.0) for row, slots in zip(asked, home.candidates(asked, k), strict=True)]

    def like(self, asked: Vectors, start: int, end: int, at_least: float, most: int) -> list[Near]:
        """Among the slots from `start` to before `end`."""
        slots = (start + np.flatnonzero(self._used[start:end])).astype(np.int32)
        return self._nearest(asked, slots, most, at_least)

    def rows(self, slots: Iterable[int]) -> list[Row]:
        """Of those that are taken."""
        found = []
        for slot in slots:
            if (home := self._homes[slot]) is not None:
                used, vector = int(self._used[slot]), self._vectors[slot].tobytes()
                found.append(Row(slot, self._entries[slot], home.key, used, vector))
        return found

    def uses(self, slots: Iterable[int]) -> list[tuple[int, int]]:
        """Last use and slot, of those that are taken."""
        return [(int(self._used[slot]), slot) for slot in slots if self._used[slot]]

    def load(self, rows: Sequence[Row]) -> None:
        """Rows as they were written, into their slots, which are below `most` and rise over all calls; `loaded` is due
        after the last."""
        if not rows:
            return
        vectors = np.frombuffer(b"".join(row.vector for row in rows), np.float16)
        self._vectors[[row.slot for row in rows]] = vectors.reshape(len(rows), -1)
        for slot, entry, scope, used, _ in rows:
            self._clock = max(self._clock, used)
            if (old := self._slots.get(entry)) is not None:  # written twice, before a crash
                if self._used[old] >= used:
                    self.changes.gone.add(slot)
                    continue
                self._release(old)
            while self.end < slot:
                self._free.append(self.end)
                self._entries.append("")
                self._homes.append(None)
            self._seat(slot, entry, scope, used)

    def loaded(self) -> None:
        for scope in self._scopes.values():
            scope.widen(self._vectors)

    def all_changed(self) -> None:
        """Nothing of it is in the file."""
        self.changes = Changes(fresh=set(self._slots.values()))

    def changes_back(self, changes: Changes) -> None:
        """They could not be written."""
        now = self.changes
        now.fresh |= {slot for slot in changes.fresh if self._used[slot]}
        now.gone |= {slot for slot in changes.gone | changes.fresh if slot >= self.end or not self._used[slot]}
        now.touched |= {slot for slot in changes.touched if self._used[slot]} - now.fresh

    def _nearest(self, asked: Vectors, slots: np.ndarray, k: int, at_least: float) -> list[Near]:
        vectors = _singles(self._vectors[slots])
        cosines = np.minimum(vectors @ asked, 1.0)
        order = np.argsort(-cosines, kind="stable")[:k]
        order = order[cosines[order] >= at_least]
        found = zip(slots[order].tolist(), cosines[order].tolist(), vectors[order], strict=True)
        return [Near(self._entries[slot], cosine, vector) for slot, cosine, vector in found]

    def _seat(self, slot: int, entry: str, scope: bytes, used: int) -> Scoped:
        home = self._scopes.get(scope)
        if home is None:
            home = self._scopes[scope] = Scoped(scope)
        if slot == self.end:
            self._entries.append(entry)
            self._homes.append(home)
        else:
            self._entries[slot] = entry
            self._homes[slot] = home
        self._slots[entry] = slot
        self._used[slot] = used
        self._places[slot] = home.seat(slot)
        return home

    def _take(self) -> int:
        """An empty slot."""
        if self._free:
            return self._free.pop()
        if self.end < self.most:
            return self.end
        self._release(self._next_to_go())
        return self._free.pop()

    def _next_to_go(self) -> int:
        """All slots are taken."""
        while True:
            while self._oldest:
                used, slot = self._oldest.pop()
                if self._used[slot] == used:
                    return slot
            few = min(_OLDEST, self.most)
            first = np.argpartition(self._used, few - 1)[:few]
            self._oldest = sorted(((int(self._used[slot]), int(slot)) for slot in first), reverse=True)

    def _release(self, slot: int) -> None:
        home = self._homes[slot]
        assert home is not None
        place = int(self._places[slot])
        moved = home.leave(place)
        if moved >= 0:
            self._places[moved] = place
        if not home.count:
            del self._scopes[home.key]
        del self._slots[self._entries[slot]]
        self._entries[slot] = ""
        self._homes[slot] = None
        self._used[slot] = 0
        self._free.append(slot)
        changes = self.changes
        changes.fresh.discard(slot)
        changes.touched.discard(slot)
        changes.gone.add(slot)


def _singles(halves: Halves) -> Vectors:
    """Finite ones, in single precision: as numpy's own conversion, which takes twice as long. Sign, exponent and
    fraction are put where a single has them; the exponents' biases (IEEE 754: 15 and 127) differ by 112."""
    bits = halves.view(np.int16).astype(np.int32)
    bits <<= 13
    bits &= _SIGN_AND_REST
    found = bits.view(np.float32)
    found *= _BIAS
    return found
