"""How hosts that share a store learn what others dropped.

Drops (purges, discarded entries) are numbered in the store. Who puts an answer says which drop is the last it knows of;
where it is behind, it reads the others first and looks whether its answer is among what was purged: no purged answer
comes back from another host. A host that missed some (it was away for more than a thousand) forgets everything; where
the server itself lost some (an older state of it is back), everything in it is forgotten. Clocks of hosts must agree,
to the second or so.
"""

from __future__ import annotations

import secrets
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Final, NamedTuple

import msgspec

from forebay.cache.messages import Drop, Purge
from forebay.cache.stores.store import Position, Purged, Put, Record, StoreGone, Tally, checked

__all__ = ["KEPT_DROPS", "News", "Sharing", "read_news"]

KEPT_DROPS: Final = 1_000
"""Who missed more than these forgets everything."""
_TRIES: Final = 3
"""Of a put, where each time drops came meanwhile."""


class News(NamedTuple):
    last: Position
    drops: Sequence[tuple[str, float, Drop]]
    """By whom, at (Unix seconds), what."""
    whole: bool
    """There was nothing else since the position that was asked for."""
    lost: bool
    """The server lost what it knew then."""


def read_news(known: Position, last: Position, word_then: str, drops: Iterable[tuple[str, float, bytes]]) -> News:
    """What came after `known`. `word_then`: of the drop with that number, "" where the server has none. `drops`: by
    whom, at, and a Drop in MessagePack."""
    follows = word_then == known.word
    lost = not follows and last.n < known.n + KEPT_DROPS
    try:
        read = [(by, at, msgspec.msgpack.decode(drop, type=Drop)) for by, at, drop in drops]
    except msgspec.MsgspecError:  # of another version of Forebay
        return News(last, (), whole=False, lost=lost)
    return News(last, read, whole=follows and len(read) == last.n - known.n, lost=lost)


class Sharing(ABC):
    """A store whose server keeps drops."""

    def __init__(self, wall: Callable[[], float], position: Position | None) -> None:
        self.position = position
        self._wall = wall
        self._me = secrets.token_hex(8)
        self._tally = Tally()
        self._purged = Purged()
        self._known = Position()
        """What `_purged` was told of."""
        self._knowing = threading.Lock()

    @abstractmethod
    def _put(self, record: Record, known: Position) -> tuple[str, ...] | None:
        """The entries whose place it takes; None where there are other drops than `known`. Raises StoreGone."""

    @abstractmethod
    def _tell(self, word: str, by: str, at: float, drop: bytes) -> None:
        """Number it and keep it. Raises StoreGone."""

    @abstractmethod
    def _news(self, known: Position) -> News:
        """Raises StoreGone."""

    @abstractmethod
    def _await_drop(self, known: Position, wait: float) -> None:
        """Until there is one after `known`; `wait` seconds, or less. Raises StoreGone."""

    @abstractmethod
    def _remove(self, purge: Purge) -> tuple[str, ...]:
        """Raises StoreGone."""

    @abstractmethod
    def _discard(self, entries: Sequence[str]) -> int:
        """Raises StoreGone."""

    @property
    @abstractmethod
    def _resting(self) -> bool: ...

    def together(self) -> AbstractContextManager[None]:
        return nullcontext()

    def absent(self, key: bytes) -> bool:
        return False  # another host may just have put it there

    def put(self, record: Record, reading: bytes = b"") -> Put:
        if record.until <= self._wall():
            return self._refused()
        resting = self._resting
        try:
            for _ in range(_TRIES):
                with self._knowing:
                    known = self._known
                if self._purged.forbids(record):
                    return self._refused()
                gone = self._put(record, known)
                if gone is not None:
                    self._tally.puts += 1
                    return Put(True, gone)
                self._catch_up(known)
        except StoreGone:
            self._failed(resting)
        return self._refused()

    def _refused(self) -> Put:
        self._tally.refused += 1
        return Put(False, ())

    def _failed(self, resting: bool) -> None:
        if resting:
            self._tally.rested += 1
        else:
            self._tally.failed += 1

    def _catch_up(self, known: Position) -> None:
        """Read what was dropped since `known`, for `_purged`."""
        news = self._news(known)
        if not news.whole:
            self._purged.add(Purge(0), self._wall())
        for _, at, drop in news.drops:
            self._purged.discarded(drop.entries, at)
            if drop.purge is not None:
                self._purged.add(drop.purge, at)
        with self._knowing:
            if self._known == known:
                self._known = news.last

    def remove(self, purge: Purge) -> tuple[str, ...]:
        now = self._wall()
        self._purged.add(checked(purge), now)
        self._say(Drop(purge), now)
        return self._remove(purge)

    def discard(self, entries: Sequence[str]) -> int:
        if not entries:
            return 0
        self._purged.discarded(entries, self._wall())
        self._say(Drop(entries=tuple(entries)), self._wall())
        return self._discard(entries)

    def _say(self, drop: Drop, at: float) -> None:
        self._tell(secrets.token_hex(8), self._me, at, msgspec.msgpack.encode(drop))

    def dropped(self, wait: float) -> Sequence[Drop]:
        """Waits a second or so at most."""
        before = self.position
        if before is None:
            self.position = self._news(Position()).last
            return [Drop(Purge(0))]
        self._await_drop(before, wait)
        news = self._news(before)
        if news.lost:  # and what was purged since is back, perhaps
            self.remove(Purge(0))
        self.position = news.last
        if not news.whole:
            return [Drop(Purge(0))]
        return [drop for by, _, drop in news.drops if by != self._me]
