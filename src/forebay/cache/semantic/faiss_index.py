"""The index in the helper's own memory: scans of one-bit vectors by faiss, then cosines of the best of them.

faiss counts the bits in which a question differs from all of its scope in 0.2 ms per 100,000 of 512 bits, on one core
that counts eight words at once (AVX-512), and the 128 with the fewest are compared by cosine. The eight nearest are
among those in more than 99.9 % of cases (benchmarks/cache). Nothing has to be rebuilt when questions come and go. A
graph (HNSW) is only quicker from some 100,000 on, takes a hundred times as long to fill, and cannot forget.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import faiss

from forebay.cache.semantic.arena import Arena, Changes
from forebay.cache.semantic.index import SCOPE_BYTES, BadVector, Near, Space, Vectors, checked
from forebay.cache.semantic.vectors_file import Row, Unreadable, VectorsFile

__all__ = ["FaissIndex", "Opened"]

_FILE = "vectors.sqlite"
_ASIDE = _FILE + ".aside"
_BATCH = 256
"""Rows that are copied, or compared with all, while the lock is held: a search waits for them, under a millisecond."""
_ENTRY = 64


class Opened(NamedTuple):
    """What was in the folder."""

    kept: int
    damaged: int
    """Rows that were not believed."""
    aside: Path | None
    """The whole file, where it was not believed, and why."""
    why: str


class FaissIndex:
    """`Index`, of at most `most` entries, in memory and in the folder's vectors.sqlite.

    Opening reads what was saved (a million entries: seconds). A file that is damaged or of another space is set aside
    as vectors.sqlite.aside, and the index begins empty. Raises OSError where the folder cannot be written or another
    process has the file."""

    def __init__(self, folder: Path, space: Space, most: int) -> None:
        if most < 1 or space.dimensions < 1:
            raise ValueError("an index has at least one entry and one dimension")
        faiss.omp_set_num_threads(1)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._path = folder / _FILE
        self._space = space
        self._most = most
        self._lock = threading.Lock()
        """Held for the arena, for milliseconds."""
        self._file_lock = threading.Lock()
        """Held for the file, for as long as it takes; taken before the other."""
        self._closed = False
        aside, why, damaged = None, "", 0
        try:
            self._file = VectorsFile(self._path, space, 2 * space.dimensions)
            self._arena, damaged = _read(self._file, space, most)
        except Unreadable as e:
            self._file, aside, why = self._other_file(), self._path.with_name(_ASIDE), str(e)
            self._arena = Arena(space.dimensions, most)
        self.opened = Opened(len(self._arena), damaged, aside, why)

    def __repr__(self) -> str:
        return f"<FaissIndex {self._space.embedder} {self._arena!r}>"

    def __len__(self) -> int:
        return len(self._arena)

    @property
    def space(self) -> Space:
        return self._space

    def add(self, scope: bytes, entry: str, vector: Vectors) -> None:
        if len(scope) != SCOPE_BYTES:
            raise ValueError(f"a scope has {SCOPE_BYTES} bytes, not {len(scope)}")
        if not 0 < len(entry) <= _ENTRY or not entry.isascii():
            raise ValueError(f"an entry is named by 1 to {_ENTRY} ASCII characters")
        one = checked(vector, self._space.dimensions)
        if len(one) != 1:
            raise BadVector(f"one vector is added at a time, not {len(one)}")
        with self._lock:
            self._arena.add(scope, entry, one[0])

    def search(self, scope: bytes, vectors: Vectors, k: int) -> list[list[Near]]:
        asked = checked(vectors, self._space.dimensions)
        with self._lock:
            return self._arena.search(scope, asked, k)

    def like(self, vector: Vectors, at_least: float, most: int) -> list[Near]:
        asked = checked(vector, self._space.dimensions)[0]
        found: list[Near] = []
        start = 0
        while True:
            with self._lock:
                if start >= self._arena.end:
                    return found
                here = self._arena.like(asked, start, start + _BATCH, at_least, most)
            found = sorted(found + here, key=lambda near: -near.cosine)[:most]
            start += _BATCH

    def touch(self, entries: Iterable[str]) -> None:
        with self._lock:
            for entry in entries:
                self._arena.touch(entry)

    def remove(self, entries: Iterable[str]) -> int:
        count = 0
        for entry in entries:
            with self._lock:
                count += self._arena.remove(entry)
        return count

    def missing(self, entries: Sequence[str]) -> list[str]:
        with self._lock:
            return [entry for entry in entries if entry not in self._arena]

    def clear(self) -> int:
        with self._lock:
            old = self._arena
            self._arena = Arena(self._space.dimensions, self._most)
            self._arena.changes.gone = old.changes.gone.union(range(old.end))
        return len(old)

    def memory_bytes(self) -> int:
        with self._lock:
            return self._arena.size()

    def save(self) -> None:
        """A file that was damaged since is set aside, and all is written to another."""
        with self._file_lock:
            if self._closed:
                return
            try:
                self._write()
            except Unreadable:
                self._file.close()
                self._file = self._other_file()
                with self._lock:
                    self._arena.all_changed()
                self._write()

    def close(self) -> None:
        """The file is let go even where it could not be saved, which raises OSError."""
        try:
            self.save()
        finally:
            with self._file_lock:
                if not self._closed:
                    self._closed = True
                    self._file.close()

    def _write(self) -> None:
        with self._lock:
            arena = self._arena
            changes, arena.changes = arena.changes, Changes()
        try:
            for slots in _parts(changes.gone):
                self._file.write((), (), slots)
            for slots in _parts(changes.fresh):
                with self._lock:
                    rows = arena.rows(slots)
                self._file.write(rows, (), ())
            for slots in _parts(changes.touched):
                with self._lock:
                    used = arena.uses(slots)
                self._file.write((), used, ())
        except BaseException:
            with self._lock:
                if arena is self._arena:
                    arena.changes_back(changes)
                else:  # cleared meanwhile
                    self._arena.changes.gone |= changes.gone
            raise

    def _other_file(self) -> VectorsFile:
        """In place of one that cannot be read."""
        self._path.replace(self._path.with_name(_ASIDE))
        for log in ("-wal", "-shm", "-journal"):
            self._path.with_name(_FILE + log).unlink(missing_ok=True)
        return VectorsFile(self._path, self._space, 2 * self._space.dimensions)


def _parts(slots: set[int]) -> Iterable[list[int]]:
    ordered = sorted(slots)
    return (ordered[i : i + _BATCH] for i in range(0, len(ordered), _BATCH))


def _read(file: VectorsFile, space: Space, most: int) -> tuple[Arena, int]:
    """What the file holds, the `most` used last of it, and how many rows were damaged. Closes the file if it raises."""
    arena = Arena(space.dimensions, most)
    damaged: set[int] = set()
    beyond: list[Row] = []
    gone: list[int] = []
    try:
        newest = file.newest(most)
        for batch in file.rows():
            damaged |= {row for row in batch if isinstance(row, int)}
            rows = [row for row in batch if isinstance(row, Row)]
            gone += [row.slot for row in rows if row.used < newest or row.slot >= most]
            kept = [row for row in rows if row.used >= newest]
            beyond += [row for row in kept if row.slot >= most]
            arena.load([row for row in kept if row.slot < most])
    except BaseException:
        file.close()
        raise
    arena.loaded()
    for row in beyond:
        arena.put(row)
    arena.changes.gone |= damaged.union(gone)
    return arena, len(damaged)
