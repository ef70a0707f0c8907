"""The face of a store of answers, and what is the same in all of them.

The helper process asks it, from several threads. A look-up is bounded by the store's `wait` and never raises: what
cannot be read, is damaged, or was written in another format, is not there, and is counted. What must not fail unseen
(`remove`, `discard`, `questions`, `expire`, `dropped`) raises StoreGone.

An answer that was purged does not come back: `put` refuses what was begun before a purge that it fits (`Purged`).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Final, NamedTuple, Protocol

import msgspec
from xxhash import xxh3_64_intdigest

from forebay.cache.messages import Drop, Purge

__all__ = [
    "FORMAT",
    "BadRecord",
    "Known",
    "OtherFormat",
    "Position",
    "Purged",
    "Put",
    "Record",
    "SharedStore",
    "Stats",
    "Store",
    "StoreError",
    "StoreGone",
    "Tally",
    "checked",
    "fits",
    "pack",
    "unpack",
    "within",
]

FORMAT: Final = 1
"""Of a packed record. What has another one was written by another version of Forebay, and is not there."""
_MAGIC: Final = b"fa"
_HEAD: Final = len(_MAGIC) + 1 + 8
PAGE: Final = 500
"""Entries that one page of `questions`, or one call of `expire`, holds at most."""


class StoreError(Exception):
    """A store cannot be used as it is configured. The message says why, and what to do."""


class StoreGone(StoreError):
    """It does not answer, or not in time: worth another try."""


class BadRecord(Exception):
    """Bytes that are no record, or not the one that was written."""


class OtherFormat(BadRecord):
    """Of another version of Forebay."""


class Record(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """An answer and what it is found by."""

    entry: str
    """16 hexadecimal digits: the answer's id."""
    exact: bytes
    """16 bytes, of `cache.key`. A store keeps one answer for it, the last one put."""
    scope: bytes
    """16 bytes; b"": its question is not compared with others."""
    question: str
    partition: str
    model: str
    version: str
    tags: tuple[str, ...]
    sources: tuple[str, ...]
    created: float
    """Unix seconds when it was begun: what is purged later is not kept."""
    ttl: float
    """Seconds after `created` in which it is fresh."""
    stale: float
    """Seconds after that in which it may still be given."""
    answer: bytes
    """`cache.answers.Answer`, encoded; opaque here."""

    @property
    def until(self) -> float:
        """Unix seconds after which it is not there any more."""
        return self.created + self.ttl + self.stale


class Known(NamedTuple):
    """A question that has an answer."""

    entry: str
    scope: bytes
    question: str
    partition: str
    reading: bytes = b""
    """As it was given to `put`, where the store keeps such."""


class Put(NamedTuple):
    kept: bool
    """False: it was purged meanwhile, is over, is larger than the store, or the store is gone."""
    gone: tuple[str, ...]
    """Entries that are no more: the one it takes the place of, and those that made room."""


class Stats(msgspec.Struct):
    """For people, and for metrics. Counts are since the start of the process."""

    name: str
    """disk, redis, postgres."""
    state: str
    """ok, or what is wrong with it."""
    entries: int | None
    """None: not known in bounded time."""
    bytes: int | None
    """What it takes of the disk or of the server."""
    most_bytes: int | None
    """None: the server's own bound."""
    hits: int = 0
    misses: int = 0
    puts: int = 0
    refused: int = 0
    """Answers that were not kept."""
    evicted: int = 0
    """To make room."""
    damaged: int = 0
    """Records that were not what had been written. Removed, where that could be."""
    other_format: int = 0
    """Records of another version of Forebay."""
    failed: int = 0
    """Calls that the store did not answer, or not in time."""
    rested: int = 0
    """Calls that were not tried, since it had just failed."""


class Position(msgspec.Struct, frozen=True):
    """The last drop of a shared store that is known."""

    n: int = 0
    word: str = ""
    """Random: a drop of this number that has another one is not the same."""


class Store(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def state(self) -> str:
        """ok, or what is wrong with it; asks nobody."""
        ...

    def exact(self, key: bytes) -> Record | None:
        """The answer to an equal request; fresh or stale."""
        ...

    def absent(self, key: bytes) -> bool:
        """Whether `exact` would certainly find nothing; asks nobody, and takes a microsecond."""
        ...

    def get(self, entry: str) -> Record | None:
        """Fresh or stale."""
        ...

    def known(self, entries: Sequence[str]) -> dict[str, Known]:
        """The questions of those of them that are there."""
        ...

    def put(self, record: Record, reading: bytes = b"") -> Put:
        """Keep an answer, in place of the one with the same `exact`. `reading`: of its question, packed
        (`semantic.readings`); only a store that is a file keeps it, and what is lost of it is made again."""
        ...

    def together(self) -> AbstractContextManager[None]:
        """What is put within may be written at its end, and be lost with it. Raises StoreGone where that is known."""
        ...

    def remove(self, purge: Purge) -> tuple[str, ...]:
        """What fits all that the purge gives; nothing given: everything. Returns the entries that were there. May take
        seconds. Other hosts that share the store are told (`dropped`). Raises ValueError for one with `like`, which
        only an index can tell: `discard` what it finds."""
        ...

    def discard(self, entries: Sequence[str]) -> int:
        """How many of them there were. Other hosts that share the store are told."""
        ...

    def questions(self) -> Iterator[Sequence[Known]]:
        """Those with a scope, page by page, each a call of its own; what changes meanwhile may be among them or not."""
        ...

    def touch(self, entries: Sequence[str]) -> None:
        """They were used now: what is longest unused makes room first. Costs microseconds; written later."""
        ...

    def expire(self) -> tuple[str, ...]:
        """Remove what is over: at most some hundred entries, so that it takes milliseconds; these. A store whose server
        does that by itself returns nothing. To be called every few seconds."""
        ...

    def dropped(self, wait: float) -> Sequence[Drop]:
        """What other hosts removed since the last call; waits up to `wait` seconds for the first. Where some of it was
        missed, a drop of everything. For one thread of its own."""
        ...

    def stats(self) -> Stats: ...

    def close(self) -> None:
        """Twice is once."""
        ...


class SharedStore(Store, Protocol):
    """That several hosts have."""

    position: Position | None
    """What `dropped` has told up to now. None: nothing is known of what others dropped before, so that its next call
    says everything."""


def fits(record: Record, purge: Purge) -> bool:
    """Whether all that the purge gives is so of the record. Raises ValueError for one with `like`."""
    checked(purge)
    return (
        purge.entry in ("", record.entry)
        and purge.model in ("", record.model)
        and purge.version in ("", record.version)
        and (not purge.tag or purge.tag in record.tags)
        and (not purge.source or purge.source in record.sources)
        and within(record.partition, purge.partition)
    )


def checked(purge: Purge) -> Purge:
    """Raises ValueError for one with `like`: without it, it would fit more than was meant."""
    if purge.like:
        raise ValueError("a store does not know what is alike; find the entries in an index, and discard them")
    return purge


def within(partition: str, prefix: str) -> bool:
    """Whether it is that partition or below it: "acme/web" is within "acme", "acmeister" is not."""
    return not prefix or partition == prefix or partition.startswith(prefix.rstrip("/") + "/")


def pack(record: Record) -> bytes:
    """Magic, format, checksum, MessagePack."""
    body = msgspec.msgpack.encode(record)
    return b"%b%c%b%b" % (_MAGIC, FORMAT, xxh3_64_intdigest(body).to_bytes(8, "big"), body)


def unpack(data: bytes) -> Record:
    """Raises BadRecord, OtherFormat."""
    if data[:2] != _MAGIC or len(data) < _HEAD:
        raise BadRecord("not a record")
    if data[2] != FORMAT:
        raise OtherFormat(f"a record of format {data[2]}; this version reads format {FORMAT}")
    body = memoryview(data)[_HEAD:]
    if xxh3_64_intdigest(body) != int.from_bytes(data[3:_HEAD], "big"):
        raise BadRecord("its checksum is wrong")
    try:
        return msgspec.msgpack.decode(body, type=Record)
    except msgspec.MsgspecError as e:
        raise BadRecord(str(e)) from e


class Purged:
    """The latest purges and discarded entries, so that an answer which was under way meanwhile is not kept. From
    several threads."""

    MOST: Final = 256
    """Purges. What was begun before one that is forgotten here is forbidden: it might have fitted."""
    MOST_ENTRIES: Final = 4_096
    """An entry is under way for milliseconds."""

    def __init__(self) -> None:
        self._purges: deque[tuple[float, Purge]] = deque()
        self._forgotten = float("-inf")
        self._entries: dict[str, float] = {}
        self._lock = threading.Lock()

    def add(self, purge: Purge, at: float) -> None:
        """`at`: Unix seconds."""
        with self._lock:
            self._purges.append((at, purge))
            if len(self._purges) > self.MOST:
                self._forgotten = max(self._forgotten, self._purges.popleft()[0])

    def discarded(self, entries: Iterable[str], at: float) -> None:
        """`at`: Unix seconds. The same request has the same entry when it is answered anew."""
        with self._lock:
            for entry in entries:
                self._entries.pop(entry, None)
                self._entries[entry] = at
            while len(self._entries) > self.MOST_ENTRIES:
                del self._entries[next(iter(self._entries))]

    def forbids(self, record: Record) -> bool:
        with self._lock:
            if record.created <= max(self._forgotten, self._entries.get(record.entry, self._forgotten)):
                return True
            return any(record.created <= at and fits(record, purge) for at, purge in self._purges)

    def __repr__(self) -> str:
        return f"<Purged {len(self._purges)}, {len(self._entries)} entries>"


class Tally:
    """The counts of Stats."""

    __slots__ = ("damaged", "evicted", "failed", "hits", "misses", "other_format", "puts", "refused", "rested")

    def __init__(self) -> None:
        self.hits = self.misses = self.puts = self.refused = self.evicted = 0
        self.damaged = self.other_format = self.failed = self.rested = 0

    def stats(self, name: str, state: str, entries: int | None, taken: int | None, most_bytes: int | None) -> Stats:
        counts = {count: getattr(self, count) for count in self.__slots__}
        return Stats(name, state, entries, taken, most_bytes, **counts)
