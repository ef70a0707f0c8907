"""One scope's questions: which slots they have, and which of them may be nearest to another one."""

from __future__ import annotations

import faiss
import numpy as np
import numpy.typing as npt

from forebay.cache.semantic.index import Vectors

__all__ = ["NARROW", "Halves", "Scoped"]

Halves = npt.NDArray[np.float16]
"""Slots × dimensions."""
Slots = npt.NDArray[np.int32]

NARROW = 256
"""Most questions of a scope that are all compared by cosine."""
_CANDIDATES = 128
"""Least that a scan of bits hands on, and 16 for each neighbour wanted;"""
_BITS = 512
"""of vectors of so many dimensions: fewer tell less, and as many more are handed on."""
_MANY = 200_000
"""Questions above which it hands on twice as many."""
_CENTRED = 16_384
"""Questions after which the mean is not taken again."""
_BATCH = 4_096


class Scoped:
    """Few questions are a list of slots. More than NARROW have their vectors a second time as one bit a dimension: on
    which side of the scope's mean it is. The mean is taken again each time there are four times as many."""

    __slots__ = ("_bits", "_centre", "_centred", "_slots", "count", "key")

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.count = 0
        self._slots: list[int] | Slots = []
        self._bits: npt.NDArray[np.uint8] | None = None
        self._centre: Vectors = np.empty(0, np.float32)
        self._centred = 0
        """Questions that the mean was taken of."""

    def __repr__(self) -> str:
        return f"<Scoped {self.key.hex()} {self.count:,}{' wide' if self._bits is not None else ''}>"

    def seat(self, slot: int) -> int:
        """Its place among them. The vector need not be there yet; `widen` is due afterwards."""
        place = self.count
        if isinstance(self._slots, list):
            self._slots.append(slot)
        else:
            if place == len(self._slots):
                self._resize(2 * place)
            self._slots[place] = slot
        self.count += 1
        return place

    def widen(self, vectors: Halves) -> None:
        """Sees to the bits of the one seated last, or of all: `vectors` holds theirs by slot."""
        if self._bits is None:
            if self.count <= NARROW:
                return
            slots = np.array(self._slots, np.int32)
            self._slots = slots
            self._bits = np.empty((self.count, -(-vectors.shape[1] // 8)), np.uint8)
            self._centre_on(vectors)
        elif self.count >= 4 * self._centred and self._centred < _CENTRED:
            self._centre_on(vectors)
        else:
            self._sign(vectors, self.count - 1, self.count)

    def leave(self, place: int) -> int:
        """The slot that took its place, or −1."""
        self.count -= 1
        last = self.count
        moved = int(self._slots[last]) if place != last else -1
        if isinstance(self._slots, list):
            self._slots[place] = self._slots[last]
            self._slots.pop()
            return moved
        assert self._bits is not None
        self._slots[place] = self._slots[last]
        self._bits[place] = self._bits[last]
        if last <= NARROW // 2:
            self._slots = self._slots[:last].tolist()
            self._bits, self._centred = None, 0
        elif last <= len(self._slots) // 4:
            self._resize(len(self._slots) // 2)
        return moved

    def candidates(self, asked: Vectors, k: int) -> list[Slots]:
        """For each row, the slots whose vectors are to be compared with it."""
        if self._bits is None:
            return [np.array(self._slots, np.int32)] * len(asked)
        assert isinstance(self._slots, np.ndarray)
        most = max(_CANDIDATES, 16 * k) * -(-_BITS // asked.shape[1]) * (2 if self.count > _MANY else 1)
        most = min(self.count, most)
        _, places = faiss.knn_hamming(np.packbits(asked > self._centre, axis=1), self._bits[: self.count], most)
        return [self._slots[row] for row in places]

    def _resize(self, room: int) -> None:
        assert self._bits is not None and isinstance(self._slots, np.ndarray)
        kept = min(room, self.count)
        slots, bits = np.empty(room, np.int32), np.empty((room, self._bits.shape[1]), np.uint8)
        slots[:kept], bits[:kept] = self._slots[:kept], self._bits[:kept]
        self._slots, self._bits = slots, bits

    def _centre_on(self, vectors: Halves) -> None:
        assert isinstance(self._slots, np.ndarray)
        sample = self._slots[: self.count]
        if len(sample) > _CENTRED:
            sample = sample[:: len(sample) // _CENTRED]
        total = np.zeros(vectors.shape[1], np.float64)
        for i in range(0, len(sample), _BATCH):
            total += vectors[sample[i : i + _BATCH]].astype(np.float32).sum(0)
        self._centre = (total / len(sample)).astype(np.float32)
        self._centred = self.count
        for i in range(0, self.count, _BATCH):
            self._sign(vectors, i, min(i + _BATCH, self.count))

    def _sign(self, vectors: Halves, start: int, end: int) -> None:
        assert self._bits is not None and isinstance(self._slots, np.ndarray)
        self._bits[start:end] = np.packbits(vectors[self._slots[start:end]] > self._centre, axis=1)
