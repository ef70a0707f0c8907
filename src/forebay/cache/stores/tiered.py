"""The file of this host in front of a store that hosts share.

The file answers in microseconds, and alone where the shared one is gone. What other hosts drop is dropped from the
file, too, and up to where that was done is written beside it: after a restart it goes on from there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec

from forebay.cache.messages import Drop, Purge
from forebay.cache.stores.disk import Disk
from forebay.cache.stores.store import Known, Position, Put, Record, SharedStore, Stats, StoreGone

__all__ = ["Tiered", "position_in"]

_log = logging.getLogger("forebay.cache")


def position_in(file: Path) -> Position | None:
    """None: there is none, or it cannot be read."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=Position)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as e:
        _log.warning("%s cannot be read (%s): the answers on disk are forgotten", file, e)
        return None


class Tiered:
    """`file`: where the position is written."""

    def __init__(self, near: Disk, shared: SharedStore, file: Path, wall: Callable[[], float]) -> None:
        self.near = near
        self.shared = shared
        self._file = file
        self._wall = wall
        shared.position = self._written = position_in(file)

    @property
    def name(self) -> str:
        return f"{self.near.name}, {self.shared.name}"

    @property
    def state(self) -> str:
        wrong = [f"{one.name}: {one.state}" for one in (self.near, self.shared) if one.state != "ok"]
        return "; ".join(wrong) or "ok"

    def exact(self, key: bytes) -> Record | None:
        """A stale one of the file only where there is no fresher one."""
        ours = self.near.exact(key)
        if ours is not None and self._wall() < ours.created + ours.ttl:
            return ours
        theirs = self.shared.exact(key)
        if theirs is None:
            return ours
        if ours is None or theirs.created > ours.created:
            self.near.put(theirs)
        return theirs

    def absent(self, key: bytes) -> bool:
        return False  # another host may just have put it into the shared one

    def get(self, entry: str) -> Record | None:
        return self.near.get(entry) or self.shared.get(entry)

    def known(self, entries: Sequence[str]) -> dict[str, Known]:
        found = self.near.known(entries)
        rest = [entry for entry in entries if entry not in found]
        return {**found, **self.shared.known(rest)} if rest else found

    def put(self, record: Record, reading: bytes = b"") -> Put:
        theirs, ours = self.shared.put(record), self.near.put(record, reading)
        # What made room in the file is in the shared one still.
        return Put(theirs.kept or ours.kept, theirs.gone if theirs.kept else ours.gone)

    def together(self) -> AbstractContextManager[None]:
        return self.near.together()

    def remove(self, purge: Purge) -> tuple[str, ...]:
        ours = self.near.remove(purge)
        return tuple(dict.fromkeys((*ours, *self.shared.remove(purge))))

    def discard(self, entries: Sequence[str]) -> int:
        """Of those that are in one of the two only, those in the one that has more of them are counted."""
        ours = self.near.discard(entries)
        return max(ours, self.shared.discard(entries))

    def questions(self) -> Iterator[Sequence[Known]]:
        """Those that are in both come twice."""
        yield from self.near.questions()
        yield from self.shared.questions()

    def touch(self, entries: Sequence[str]) -> None:
        self.near.touch(entries)
        self.shared.touch(entries)

    def expire(self) -> tuple[str, ...]:
        gone = dict.fromkeys((*self.near.expire(), *self.shared.expire()))
        still = self.shared.known(list(gone)) if gone else {}
        return tuple(entry for entry in gone if entry not in still)

    def dropped(self, wait: float) -> Sequence[Drop]:
        before = self.shared.position
        drops = self.shared.dropped(wait)
        try:
            for drop in drops:
                if drop.purge is not None:
                    self.near.remove(drop.purge)
                if drop.entries:
                    self.near.discard(drop.entries)
        except StoreGone:
            self.shared.position = before  # to be told again
            raise
        self._write_position()
        return drops

    def _write_position(self) -> None:
        now = self.shared.position
        if now == self._written:
            return
        new = self._file.with_name(self._file.name + ".new")
        try:
            new.write_bytes(msgspec.json.encode(now))
            new.replace(self._file)
        except OSError as e:
            _log.warning("%s cannot be written (%s): some answers will be dropped again", self._file, e.strerror)
        else:
            self._written = now

    def stats(self) -> Stats:
        ours, theirs = self.near.stats(), self.shared.stats()
        return Stats(
            self.name,
            "; ".join(f"{one.name}: {one.state}" for one in (ours, theirs) if one.state != "ok") or "ok",
            ours.entries if theirs.entries is None else theirs.entries,
            ours.bytes,
            ours.most_bytes,
            ours.hits + theirs.hits,
            theirs.misses,
            theirs.puts,
            theirs.refused,
            ours.evicted + theirs.evicted,
            ours.damaged + theirs.damaged,
            ours.other_format + theirs.other_format,
            ours.failed + theirs.failed,
            ours.rested + theirs.rested,
        )

    def close(self) -> None:
        self.near.close()
        self.shared.close()

    def __repr__(self) -> str:
        return f"<Tiered {self.near} {self.shared}>"
