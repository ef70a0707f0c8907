"""Where the vectors of known questions are, and which are nearest to another one.

One protocol, and behind it faiss in the helper process, RediSearch, or pgvector. An index is a hint: what it names is
looked up in the store before it is served, and what is lost of it is made again from the store's questions. So nothing
here has to be durable, but nothing may be believed that another embedder made.

Vectors are rows of float32, of length 1 (`checked` sees to it). Cosines are of the vectors as they are kept, which may
be in half precision: within 0.001 of the exact ones.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

__all__ = ["SCOPE_BYTES", "BadVector", "Index", "IndexUnavailable", "Near", "Space", "Vectors", "checked"]

SCOPE_BYTES = 16

Vectors = npt.NDArray[np.float32]
"""n × dimensions, or one of them."""


class IndexUnavailable(Exception):
    """The server that keeps the vectors does not answer, or not in time. A look-up is then a miss."""


class BadVector(Exception):
    """Not a vector that can be compared: NaN, infinite, zero, or of another size."""


@dataclass(frozen=True, slots=True)
class Space:
    """What must be equal for two vectors to be compared. An index holds vectors of one space and of no other."""

    embedder: str
    """Its `id`, which changes with the model's weights."""
    dimensions: int
    policy: str = "1"
    """Version of what is embedded of a question, and how it is cleaned before."""

    @property
    def name(self) -> str:
        """16 hexadecimal digits, for the names of tables, keys and files."""
        text = f"{self.embedder}\n{self.dimensions}\n{self.policy}"
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


class Near(NamedTuple):
    entry: str
    cosine: float
    vector: Vectors
    """Of that entry."""


class Index(Protocol):
    """Calls may come from several threads, take milliseconds, and raise IndexUnavailable where a server is asked."""

    @property
    def space(self) -> Space: ...

    def add(self, scope: bytes, entry: str, vector: Vectors) -> None:
        """Put a question there, in place of what `entry` was. `scope` has 16 bytes. Beyond the most entries, the one
        that was not added or touched for longest goes. Raises BadVector."""
        ...

    def search(self, scope: bytes, vectors: Vectors, k: int) -> list[list[Near]]:
        """For each row of `vectors` (n × d) the k nearest entries of that scope, the nearest first; fewer where it has
        fewer. Raises BadVector."""
        ...

    def like(self, vector: Vectors, at_least: float, most: int) -> list[Near]:
        """Of all scopes, the `most` entries with a cosine of at least `at_least`, the nearest first: for people who
        inspect or purge. May take long."""
        ...

    def touch(self, entries: Iterable[str]) -> None:
        """They were used now. Unknown ones are passed over."""
        ...

    def remove(self, entries: Iterable[str]) -> int:
        """How many of them there were."""
        ...

    def missing(self, entries: Sequence[str]) -> list[str]:
        """Those of `entries` that are not here: after a restart, the store's questions to be embedded again."""
        ...

    def clear(self) -> int:
        """Remove all; how many there were."""
        ...

    def __len__(self) -> int: ...

    def memory_bytes(self) -> int:
        """What it takes of memory (in this process) or of the server, about."""
        ...

    def save(self) -> None:
        """Write what changed since the last time, where it is kept in files. Raises OSError."""
        ...

    def close(self) -> None:
        """Save, and let go of files and connections. Twice is once."""
        ...


def checked(vectors: Vectors, dimensions: int) -> Vectors:
    """A copy as n × `dimensions` rows of length 1, in float32. Raises BadVector, which names the row."""
    found = np.array(vectors, dtype=np.float32, ndmin=2, copy=True, order="C")
    if found.ndim != 2 or found.shape[1] != dimensions:
        raise BadVector(f"vectors have {found.shape[-1]} dimensions, the index {dimensions}")
    lengths = np.sqrt(np.einsum("ij,ij->i", found, found, dtype=np.float64))
    bad = np.flatnonzero(~(np.isfinite(lengths) & (lengths > 1e-6)))
    if bad.size:
        row = int(bad[0])
        raise BadVector(f"vector {row} has length {lengths[row]:g}, which cannot be compared with others")
    found /= lengths[:, None]
    return found
