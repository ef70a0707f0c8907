"""From this host's journals into the book: what the admin process does on a thread of its own.

`sweep` reads a bounded run of each journal behind the position that is booked, books it, and removes the segments that
are booked whole. Now and then it says that this host lives, and settles what nobody else will (`Book.expire`); never
before its own journals are read to their ends, nor until the database has been there for as long as others may be
silent: they could not say that they live while it was gone. Hours of engines are reconciled then, too
(`ledger.enginehours`). A journal that cannot be read stops no other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, repeat
from pathlib import Path
from typing import Final

import msgspec

from forebay.ledger.book import Book, Copied, Ingested, WrongCurrency
from forebay.ledger.database import Database, DatabaseError
from forebay.ledger.enginehours import EngineHours, Engines
from forebay.ledger.entries import Began, Record
from forebay.ledger.journal_format import JournalError, segment_file, segments, split
from forebay.ledger.journal_read import Batch, Reader, forget, opening
from forebay.ledger.pricing import price_from
from forebay.ledger.tokens import Tokens

RUN: Final = 8_192
"""Records of a journal that are booked in one transaction, about: a group is not divided."""
BEAT: Final = 30.0
"""Seconds between two times that this host says that it lives."""
SILENT: Final = 600.0
"""Seconds without that after which a host is taken for dead."""
GRACE: Final = 60.0
"""Seconds that a worker's next life has to settle what its last one left."""


@dataclass(slots=True)
class Followed:
    """One journal. `behind`: bytes on disk that are not booked; `since`: seconds since 1970 when there were none."""

    folder: Path
    owner: str = ""
    position: int = 0
    why: str = ""
    """Why it cannot be read or booked; "" where it can."""
    behind: int = 0
    since: float = 0.0
    reader: Reader | None = None


@dataclass(slots=True)
class Totals:
    """Since the start."""

    records: int = 0
    settled: int = 0
    again: int = 0
    late: int = 0
    strays: int = 0
    unpriced: int = 0
    orphans: int = 0
    segments: int = 0
    """Removed."""
    hours: int = 0
    """Of engines, reconciled."""

    def add(self, done: Ingested) -> None:
        self.records += done.records
        self.settled += done.settled
        self.again += done.again
        self.late += done.late
        self.strays += done.strays
        self.unpriced += done.unpriced


@dataclass(slots=True)
class Swept:
    """What stands after a sweep: copies, so that another thread may read them."""

    more: bool
    """There was more than one run: sweep again at once."""
    journals: tuple[Followed, ...] = field(default_factory=tuple)
    totals: Totals = field(default_factory=Totals)


def journal_folders(root: Path) -> list[Path]:
    """Of all workers there ever were, by number. Raises OSError."""
    if not root.is_dir():
        return []
    found = [(int(n), p) for p in root.iterdir() if (n := p.name.removeprefix("worker-")).isdecimal() and p.is_dir()]
    return [path for _, path in sorted(found)]


def owner_of(folder: Path) -> str:
    """ "" where there is nothing to read yet. Raises JournalError."""
    for batch in Reader(folder).batches():
        return batch.began.owner
    return ""


def bytes_behind(folder: Path, position: int) -> int:
    """What its segments hold behind a position. Raises OSError."""
    current, offset = split(position)
    total = 0
    for n in segments(folder):
        if n >= current:
            try:
                size = segment_file(folder, n).stat().st_size
            except FileNotFoundError:
                continue
            total += max(0, size - offset) if n == current else size
    return total


class Intake:
    """For one thread. `root` has the journals' folders; `alive` says whether a worker of this number is one of ours,
    `engines` which engines with a price there are just now."""

    def __init__(
        self,
        database: Database,
        root: Path,
        currency: str,
        *,
        wall: Callable[[], float],
        alive: Callable[[int], bool] = lambda n: True,
        engines: Callable[[], Engines] | None = None,
    ) -> None:
        self._database = database
        self._root = root
        self._book = Book(database, currency)
        self._wall = wall
        self._alive = alive
        self._engines = engines
        self._hours = EngineHours(self._book)
        self._followed: dict[Path, Followed] = {}
        self._totals = Totals()
        self._up_since: float | None = None
        self._beat = 0.0

    def sweep(self) -> Swept:
        """Raises DatabaseError: then nothing is lost, and the next sweep begins where the book stands. Raises OSError
        where the journals' folder cannot be read."""
        try:
            self._database.still_there()
            more = self._sweep()
            now = self._wall()
            if self._up_since is None:
                self._up_since = now
            if now - self._beat >= BEAT:
                more = self._look_after(now) or more
        except DatabaseError:
            self._rewind()
            raise
        return self.stand(more)

    def stand(self, more: bool = False) -> Swept:
        copies = tuple(
            Followed(f.folder, f.owner, f.position, f.why, f.behind, f.since) for f in self._followed.values()
        )
        totals = Totals(*(getattr(self._totals, name) for name in Totals.__slots__))
        return Swept(more, copies, totals)

    def reopen(self, database: Database) -> None:
        """The one before is closed."""
        self._database = database
        self._book = Book(database, self._book.currency)
        self._hours = EngineHours(self._book)
        self._rewind()

    def _rewind(self) -> None:
        """Read on where the book stands, whatever was read since."""
        self._up_since = None
        for followed in self._followed.values():
            followed.reader = None

    def _sweep(self) -> bool:
        more = False
        there = journal_folders(self._root)
        for gone in self._followed.keys() - set(there):
            del self._followed[gone]
        for folder in there:
            followed = self._followed.setdefault(folder, Followed(folder, since=self._wall()))
            try:
                more = self._follow(followed) or more
            except (JournalError, WrongCurrency, Copied, OSError) as e:
                followed.reader = None
                followed.why = str(e)
                self._measure(followed)
            else:
                followed.why = ""
        return more

    def _follow(self, followed: Followed) -> bool:
        """Book one run. True: there may be more."""
        if followed.reader is None:
            followed.owner = owner_of(followed.folder)
            if not followed.owner:
                if bytes_behind(followed.folder, 0):
                    raise JournalError(f"{followed.folder} has a segment that does not begin as one does")
                return False
            followed.position = self._book.position(followed.owner)
            if (segment := split(followed.position)[0]) in segments(followed.folder):
                self._book.check(followed.owner, opening(followed.folder, segment))
            followed.reader = Reader(followed.folder, followed.position)
        run = _Bounded(followed.reader, followed.owner)
        if run.any():
            done = self._book.ingest(followed.owner, run, self._wall(), run.began)
            followed.position = done.position
            self._totals.add(done)
        self._totals.segments += forget(followed.folder, followed.position)
        if run.ended:
            followed.behind, followed.since = 0, self._wall()
        else:
            self._measure(followed)
        return not run.ended

    def _measure(self, followed: Followed) -> None:
        try:
            followed.behind = bytes_behind(followed.folder, followed.position)
        except OSError as e:
            followed.why = followed.why or str(e)

    def _look_after(self, now: float) -> bool:
        """Say that this host lives; settle orphans; reconcile hours. True: there may be more of these."""
        ours = [f for f in self._followed.values() if f.owner]
        living = [f.owner for f in ours if self._alive(int(f.folder.name.removeprefix("worker-")))]
        if living:
            self._book.beat(living, now)
        assert self._up_since is not None
        settled, more = 0, False
        all_read = not any(f.behind or f.why for f in ours)
        if ours and all_read and self._engines is not None:
            hours, more = self._hours.look(ours[0].owner, self._engines(), now)
            self._totals.hours += hours
        if now - self._up_since >= GRACE and all_read:
            # Until the database has been there that long, others had no chance to say that they live.
            silent = SILENT if now - self._up_since >= SILENT else float("inf")
            settled = self._book.expire(now, silent=silent, grace=GRACE, estimate=estimate, most=RUN)
            self._totals.orphans += settled
        more = more or settled == RUN
        if not more:
            self._beat = now
        return more

    def __repr__(self) -> str:
        return f"<Intake {len(self._followed)} journals, {self._totals.settled:,} settled>"


def estimate(price: str, tokens: Tokens) -> int | None:
    """What tokens cost by a price's snapshot; None: it has none for them, or cannot be read."""
    try:
        return price_from(price.encode()).cost(tokens)
    except msgspec.MsgspecError:
        return None


class _Bounded:
    """(position, record)s of whole groups, RUN records or a little more."""

    def __init__(self, reader: Reader, owner: str) -> None:
        self._batches = reader.batches()
        self._owner = owner
        self._folder = reader.folder
        self._first: Batch | None = None
        self._count = 0
        self.began: Began | None = None
        """Of the segment that they begin in."""
        self.ended = False

    def any(self) -> bool:
        """Whether there is a group at all."""
        self._first = self._next()
        return self._first is not None

    def _next(self) -> Batch | None:
        batch = next(self._batches, None)
        if batch is None:
            self.ended = True
            return None
        if batch.began.owner != self._owner:
            raise JournalError(f"{self._folder} has segments of two journals: {self._owner} and {batch.began.owner}")
        if self.began is None:
            self.began = batch.began
        self._count += len(batch.records)
        return batch

    def __iter__(self) -> Iterator[tuple[int, Record]]:
        return chain.from_iterable(self._groups())

    def _groups(self) -> Iterator[Iterable[tuple[int, Record]]]:
        batch = self._first
        while batch is not None:
            yield zip(repeat(batch.position), batch.records, strict=False)
            batch = None if self._count >= RUN else self._next()
