"""Reading a journal: by whoever ingests it while a worker writes on, and by the worker itself when it starts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from forebay.ledger.entries import Account, Adjusted, Began, Hit, Priced, Progress, Record, Reserved, Settled
from forebay.ledger.journal_format import (
    GIVEN_UP,
    HEAD_BYTES,
    JournalCorrupt,
    JournalError,
    position,
    records_at,
    segment_file,
    segments,
    sound_after,
    split,
)

_decode: Final = msgspec.msgpack.Decoder(list[Record]).decode
_SAYS: Final = frozenset({Account, Priced, Began})
"""What later records refer to."""


class Batch(msgspec.Struct, frozen=True):
    """The records of one group, in the order in which they were written; those behind where reading began."""

    position: int
    """The end of the group: where to read on."""
    first: int
    """The position of the first record; those of the others follow it, but that of the last is `position`."""
    began: Began
    """Of its segment."""
    records: list[Record]
    accounts: dict[int, Account]
    """Said so far in the segment, by `n`; the reader adds to it as it goes on. `prices` likewise."""
    prices: dict[int, Priced]


class Reader:
    """Goes through the records of a journal from a position. It may be asked again when more was written.

    A segment repeats what its records refer to, and every reservation that is still open: the same record comes twice.
    (owner, seq) tells. The iterators may be left at any point, and a new one goes on there. Not for several threads.
    """

    def __init__(self, folder: Path, since: int = 0, *, sync: bool = True) -> None:
        """`sync`: what is given is on disk: what is new is fsynced before. False is for looking only: of what the
        machine may still forget, nothing must be kept elsewhere."""
        self.folder = folder
        self.position = since
        self._sync = sync
        self._segment = 0
        self._group = 0
        """Where the group begins that `position` is in."""
        self._began: Began | None = None
        self._accounts: dict[int, Account] = {}
        self._prices: dict[int, Priced] = {}

    def batches(self) -> Iterator[Batch]:
        """What there is now, up to the last whole group. Raises JournalCorrupt; JournalError: it cannot be read."""
        try:
            while (segment := self._current()) is not None:
                yield from self._rest_of(segment)
                if not self._next(segment):
                    return
        except OSError as e:
            raise JournalError(f"{self.folder} cannot be read: {e.strerror}") from e

    def records(self) -> Iterator[tuple[int, Record]]:
        """Likewise, record by record, each with its position: whoever has that record may read on from there."""
        for batch in self.batches():
            last = len(batch.records) - 1
            for i, record in enumerate(batch.records):
                self.position = batch.position if i == last else batch.first + i
                yield self.position, record

    def _current(self) -> int | None:
        """The segment that `position` is in, or the oldest. None: there are none."""
        there = segments(self.folder)
        if not there:
            return None
        segment, offset = split(self.position)
        if segment in there:
            return segment
        later = [n for n in there if n > segment]
        if not later:
            raise JournalCorrupt(
                f"{self.folder}: read up to segment {segment}, but the newest is {there[-1]}. Was an older copy of the "
                "folder put back? Move the folder away to begin with an empty journal"
            )
        if segment:
            began = opening(self.folder, later[0])
            if began.follows > segment or (began.follows == segment and began.counts > offset):
                _missing(self.folder, max(began.follows, segment))
        self.position = position(later[0], 0)
        return later[0]

    def _next(self, segment: int) -> bool:
        """Step to the segment behind `segment`, whose sound groups have all been read. False: there is none."""
        later = [n for n in segments(self.folder) if n > segment]
        if not later:
            return False
        began = opening(self.folder, later[0])
        if began.follows > segment:
            _missing(self.folder, began.follows)
        if began.follows == segment and split(self.position)[1] < began.counts:
            with _opened(self.folder, segment) as fd:
                offset = split(self.position)[1]
                if records_at(fd, segment, offset, os.fstat(fd).st_size) is None:
                    raise _corrupt(self.folder, segment, offset, f"{began.counts} bytes of it were safely on disk")
            return True  # more was written to it, after we looked and before the next one began
        self.position = position(later[0], 0)
        return True

    def _rest_of(self, segment: int) -> Iterator[Batch]:
        with _opened(self.folder, segment) as fd:
            size = os.fstat(fd).st_size
            if self._sync and size > split(self.position)[1]:
                self._on_disk(fd, segment)
            if segment != self._segment or self._began is None:
                self._segment, self._group, self._began = segment, 0, None  # what is referred to is said from its start
                self._accounts, self._prices = {}, {}
            while (data := _group(fd, self.folder, segment, self._group, size)) is not None:
                start, end = self._group, self._group + HEAD_BYTES + len(data)
                records = self._take(segment, start, data)
                since = split(self.position)[1]
                if since < end:
                    read = max(0, since - start)
                    self.position = position(segment, end)
                    assert self._began is not None  # the first record of the segment, or _take raised
                    first = position(segment, start + read + 1)
                    yield Batch(self.position, first, self._began, records[read:], self._accounts, self._prices)
                self._group = end
            if self._began is None:
                raise _corrupt(self.folder, segment, 0, "it does not begin as a segment does")

    def _on_disk(self, fd: int, segment: int) -> None:
        if segment != self._segment:  # its name may not be, and the number would be used again
            folder = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        os.fdatasync(fd)

    def _take(self, segment: int, offset: int, data: bytes) -> list[Record]:
        try:
            records = _decode(data)
        except msgspec.DecodeError as e:
            raise JournalError(
                f"{segment_file(self.folder, segment)} at byte {offset} has records of a kind that this Forebay does "
                f"not know ({e}): was it written by a newer one? Run that one until all is ingested"
            ) from e
        for record in [record for record in records if type(record) in _SAYS]:
            if isinstance(record, Account):
                self._accounts[record.n] = record
            elif isinstance(record, Priced):
                self._prices[record.n] = record
            elif isinstance(record, Began):
                self._began = record
        if self._began is None:
            raise _corrupt(self.folder, segment, offset, "it does not begin as a segment does")
        return records


class Open(msgspec.Struct, frozen=True):
    """A reservation without a settlement."""

    reserved: Reserved
    account: Account
    price: bytes
    """Of `Priced`; empty: none was known."""
    delivered: int
    """Completion tokens, by the last `Progress`."""
    at: float
    """The last that is known of it: of its progress, or its reservation."""


class Found(msgspec.Struct, frozen=True):
    """What a journal's newest segment says."""

    owner: str
    currency: str
    segment: int
    end: int
    """Behind its last sound group."""
    next_seq: int
    """Above every `seq` in it."""
    open: tuple[Open, ...]


def find(folder: Path) -> Found | None:
    """The state of a journal that nobody writes to, from its newest segment; None: it has none. What was found is on
    disk. Raises JournalCorrupt, JournalError."""
    try:
        there = segments(folder)
    except OSError as e:
        raise JournalError(f"{folder} cannot be read: {e.strerror}") from e
    if not there:
        return None
    reader = Reader(folder, position(there[-1], 0))
    reserved: dict[int, Reserved] = {}
    progress: dict[int, tuple[float, int]] = {}
    highest = 0
    batch = None
    for batch in reader.batches():
        highest = max(highest, batch.began.next_seq - 1)
        for record in batch.records:
            if isinstance(record, Reserved):
                reserved[record.seq] = record
                highest = max(highest, record.seq)
            elif isinstance(record, Settled):
                reserved.pop(record.seq, None)
                progress.pop(record.seq, None)
                highest = max(highest, record.seq)
            elif isinstance(record, Progress):
                progress.update((seq, (record.at, tokens)) for seq, tokens in record.live)
            elif isinstance(record, Hit):
                highest = max(highest, record.reserved.seq)
            elif isinstance(record, Adjusted):
                highest = max(highest, record.seq)
    assert batch is not None  # a segment has a first group, or the reader raised
    segment, end = split(reader.position)
    still = []
    for seq, record in reserved.items():
        if record.account not in batch.accounts or (record.price and record.price not in batch.prices):
            raise _corrupt(
                folder, segment, end, f"reservation {seq} refers to an account or price that it does not say"
            )
        price = batch.prices[record.price].price if record.price else b""
        at, delivered = progress.get(seq, (record.at, 0))
        still.append(Open(record, batch.accounts[record.account], price, delivered, max(at, record.at)))
    return Found(batch.began.owner, batch.began.currency, segment, end, highest + 1, tuple(still))


def last_number(folder: Path) -> int:
    """Of the segments that are or were in `folder`; 0: there were none. Raises JournalError."""
    try:
        return max((*segments(folder), *segments(folder, GIVEN_UP)), default=0)
    except OSError as e:
        raise JournalError(f"{folder} cannot be read: {e.strerror}") from e


def forget(folder: Path, ingested: int) -> int:
    """Remove the segments before that of the position `ingested`, which must be safe elsewhere. Returns how many.
    Raises OSError."""
    removed = 0
    for n in segments(folder):
        if n < split(ingested)[0]:
            segment_file(folder, n).unlink(missing_ok=True)
            removed += 1
    return removed


def _group(fd: int, folder: Path, segment: int, offset: int, size: int) -> bytes | None:
    """The records at `offset`. None: the sound part of the file ends here, be it that a write is under way or was cut.
    Only one group at a time is not on disk yet: a sound one behind a broken one means that it broke later."""
    if offset >= size:
        return None
    found = records_at(fd, segment, offset, size)
    if found is None and (later := sound_after(fd, segment, offset, size)) is not None:
        found = records_at(fd, segment, offset, size)  # it may have been under way when we looked first
        if found is None:
            raise _corrupt(folder, segment, offset, f"a sound group follows at byte {later}")
    return found


def opening(folder: Path, segment: int) -> Began:
    """What a segment begins with. Raises JournalCorrupt."""
    with _opened(folder, segment) as fd:
        data = records_at(fd, segment, 0, os.fstat(fd).st_size)
    if data is not None:
        first = _decode(data)[0]
        if isinstance(first, Began):
            return first
    raise _corrupt(folder, segment, 0, "it does not begin as a segment does")


@contextmanager
def _opened(folder: Path, segment: int) -> Iterator[int]:
    fd = os.open(segment_file(folder, segment), os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def _missing(folder: Path, segment: int) -> None:
    if segment not in segments(folder, GIVEN_UP):
        file = segment_file(folder, segment)
        raise JournalCorrupt(
            f"{file} is missing and was not read to its end. Put it back, or make an empty file "
            f"{file.with_suffix(GIVEN_UP).name} beside it to go on without what was booked in it"
        )


def _corrupt(folder: Path, segment: int, offset: int, how: str) -> JournalCorrupt:
    file = segment_file(folder, segment)
    return JournalCorrupt(
        f"{file} is damaged at byte {offset}: {how}. Restore it from a backup, or rename it to "
        f"{file.with_suffix(GIVEN_UP).name} to go on without what was booked in it",
        file,
    )
