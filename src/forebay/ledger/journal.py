"""A worker's journal: what it reserves and settles, on this host's disk within a few milliseconds.

Records are taken on the event loop, which costs a few microseconds, and handed to a thread in groups (`journal_disk`);
one write and one fsync make a group durable. While one is under way the next gathers. A record has a number, 1 and on;
`committed` is the highest that is on disk, with all before it. Records stay in their order.

When the disk fails, what is not known to be on it is kept in memory, within a bound, and written again into a new
segment when the disk takes it: a failed fsync says nothing of what it wrote, and a second one would lie.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from pathlib import Path
from typing import Final, NoReturn

import msgspec
from mypy_extensions import mypyc_attr

from forebay.errors import Outcome
from forebay.ledger.entries import Account, Adjusted, Began, Hit, How, Priced, Progress, Reserved, Settled
from forebay.ledger.journal_disk import Disk, DiskWriter, Done, Opening, Work, take
from forebay.ledger.journal_format import GROUP_BYTES, JournalBusy, JournalError, JournalFull, split
from forebay.ledger.journal_read import Found, Open, find, last_number
from forebay.ledger.journal_said import Said
from forebay.ledger.journal_tuning import State, Tuning
from forebay.ledger.tokens import NO_TOKENS, Tokens

__all__ = ["Journal", "JournalBusy", "JournalError", "JournalFull", "Open", "State", "Tuning"]

_log = logging.getLogger(__name__)
_encode: Final = msgspec.msgpack.Encoder().encode

SEQ_LEAP: Final = 1 << 20
"""What `seq` skips at each start: more than were ever reserved without being on disk, so that none is used again after
the machine lost them (`Tuning.memory_bytes` holds fewer)."""
Who = tuple[str, str, str, str, str, str]
"""Key, its name, organisation, department, project, user."""
_ENDS: Final = 4_096
"""Groups that `ingested` can tell apart, the newest: 20 seconds of them, or more."""
RETRY_MOST: Final = 5.0
"""Seconds between two tries while the disk fails, doubling up to this."""
LAST_WRITES: Final = 5.0
"""Seconds that the last records have to get on disk."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Journal:
    """For one event loop. `open` blocks; nothing else does.

    Counters, since the start: `records` (committed), `bytes` (of them), `fsyncs`, `failures`, `refused` (reservations),
    `stray` (settlements of what is not open). Gauges: `waiting_bytes`, `on_disk` (bytes of all segments),
    `fsync_seconds` (of the last group), `open_reservations`.
    """

    def __init__(
        self,
        folder: Path,
        lock: int,
        found: Found | None,
        *,
        currency: str,
        boot: str,
        limit_bytes: int,
        loop: asyncio.AbstractEventLoop,
        on_committed: Callable[[int], object],
        tuning: Tuning,
        disk: Disk,
        wall: Callable[[], float],
    ) -> None:
        """Use `open`."""
        self.folder = folder
        self.owner = found.owner if found else secrets.token_hex(8)
        self.boot = boot
        self.committed = 0
        self.position = 0
        """Of `committed`, as readers count it (`journal_format`)."""
        self.why = ""
        """What the disk says, while it fails."""
        self.records = self.bytes = self.fsyncs = self.failures = self.refused = self.stray = 0
        self.on_disk = 0
        self.fsync_seconds = 0.0

        self._lock = lock
        self._currency = currency
        self._loop = loop
        self._on_committed = on_committed
        self._tuning = tuning
        self._wall = wall
        self._limit = limit_bytes - limit_bytes // 10
        self._segment_bytes = min(tuning.segment_bytes, limit_bytes // 16)
        self._memory = tuning.memory_bytes

        self._seq = found.next_seq + SEQ_LEAP if found else 1
        self._segment = last_number(folder)
        self._safe = (found.segment, found.end) if found else (0, 0)
        self._count = 0
        self._parts: list[bytes] = []
        self._waiting = 0  # bytes, of what waits and what is under way
        self._room = 0  # bytes that reservations may still take
        self._written = self._opened = 0  # bytes of this segment behind its opening, and of the opening
        self._restated: list[bytes] | None = None
        """What the next group's segment says again; None: it goes into the segment at hand."""
        self._open: dict[int, tuple[bytes, int, int]] = {}
        self._delivered: dict[int, int] = {}
        self._accounts = Said()
        self._prices = Said()
        self._flying: Work | None = None
        self._flew = float("-inf")  # when it, or the last, was handed over
        self._timer: asyncio.TimerHandle | None = None
        self._hurried = 0
        """The number of the last record that somebody waits for."""
        self._looks: asyncio.TimerHandle | None = None
        self._backoff = tuning.retry
        self._ends: deque[tuple[int, int]] = deque(maxlen=_ENDS)  # (position, number of the last record) of groups
        self._ingested = 0
        self._closing: asyncio.Future[None] | None = None
        self._ended = False
        self.orphans = tuple(self._adopt(one) for one in found.open) if found else ()
        """What an earlier life of this worker reserved and did not settle. `recover` settles it."""
        self._restate(self._accounts.said.values(), self._prices.said.values())
        self._writer = DiskWriter(folder, disk, tuning.look, self._tell_done, self._tell_failed)

    @classmethod
    def open(
        cls,
        folder: Path,
        *,
        currency: str,
        boot: str,
        limit_bytes: int,
        loop: asyncio.AbstractEventLoop,
        on_committed: Callable[[int], object],
        tuning: Tuning = Tuning(),  # noqa: B008 frozen
        disk: Disk | None = None,
        wall: Callable[[], float] = time.time,
    ) -> Journal:
        """Find out what is in `folder`, which is made where it is not there, and begin a new segment. Blocks for a
        fraction of a second. `on_committed` is called on the loop with `committed`, after each group, look and failure.

        Raises JournalBusy: another process has it open; JournalCorrupt; JournalError: it cannot be read, or is in
        another currency."""
        lock = take(folder)
        try:
            found = find(folder)
            if found is not None and found.currency != currency:
                raise JournalError(
                    f"{folder} is in {found.currency} and ledger.currency is {currency}. Set it back, or take another "
                    "state_dir and database for books in another currency"
                )
            journal = cls(
                folder,
                lock,
                found,
                currency=currency,
                boot=boot,
                limit_bytes=limit_bytes,
                loop=loop,
                on_committed=on_committed,
                tuning=tuning,
                disk=disk or Disk(),
                wall=wall,
            )
        except BaseException:
            os.close(lock)
            raise
        journal._writer.start()
        journal._make_room()
        journal._arm(0)
        return journal

    # --- what the gateway says ---------------------------------------------------------------------------------------

    def next_seq(self) -> int:
        """The number of a new attempt."""
        seq = self._seq
        self._seq = seq + 1
        return seq

    def account_no(self, key: str, key_name: str, organisation: str, department: str, project: str, user: str) -> int:
        """`Account.n`, for records that are appended before the loop runs anything else."""
        return self.account_of((key, key_name, organisation, department, project, user))

    def account_of(self, who: Who) -> int:
        """The same."""
        n = self._accounts.numbers.get(who)
        if n is None:
            n = self._define_account(who)
            self._append(self._accounts.said[n])
        return n

    def price_no(self, id_: Hashable, snapshot: Callable[[], bytes]) -> int:
        """`Priced.n` of the price named `id_`, likewise. `snapshot` is called where it was not said yet."""
        n = self._prices.numbers.get(id_)
        if n is None:
            n = self._define_price(id_, snapshot())
            self._append(self._prices.said[n])
        return n

    def price_known(self, id_: Hashable) -> int:
        """The same, of a price that was said; 0: it was not."""
        n = self._prices.numbers.get(id_)
        return 0 if n is None else n

    def reserve(self, reserved: Reserved) -> int:
        """Its number: it is on disk once `committed` has come to it. Raises JournalFull."""
        if self._room <= 0:
            self._refuse()
        encoded = _encode(reserved)
        self._open[reserved.seq] = (encoded, reserved.account, reserved.price)
        return self._append(encoded)

    def settle(self, settled: Settled) -> int:
        """Its number; `committed` where nothing is open under its `seq`: it was settled before, or never booked. Always
        taken."""
        if self._open.pop(settled.seq, None) is None:
            self.stray += 1
            return self.committed
        if self._delivered:
            self._delivered.pop(settled.seq, None)
        return self._append(_encode(settled))

    def hurry(self, number: int) -> None:
        """Somebody waits for this record, and for those before it."""
        if number > self._hurried:
            was, self._hurried = self._hurried, number
            waits = self._count - len(self._parts)
            if was <= waits < number and self._flying is None and not self.why:
                self._gather()

    def progress(self, progress: Progress) -> int:
        """Its number; `committed` where there is no room for it, since it can be done without."""
        live = [one for one in progress.live if one[0] in self._open]
        self._delivered.update(live)
        if self._room <= 0 or not live:
            return self.committed
        return self._append(_encode(progress))

    def hit(self, hit: Hit) -> int:
        """As `reserve`."""
        if self._room <= 0:
            self._refuse()
        return self._append(_encode(hit))

    def adjust(self, adjusted: Adjusted) -> int:
        """As `reserve`."""
        if self._room <= 0:
            self._refuse()
        return self._append(_encode(adjusted))

    def recover(self, price: Callable[[Open], tuple[How, int | None]]) -> int:
        """Settle the orphans as estimated, by what was delivered; `price` says how that is known and what it costs.
        What had not delivered anything costs nothing. Returns how many there were."""
        for one in self.orphans:
            tokens = Tokens(input=one.reserved.prompt, output=one.delivered) if one.delivered else NO_TOKENS
            how, cost = price(one) if one.delivered else (How.ESTIMATED, 0)
            self.settle(
                Settled(
                    seq=one.reserved.seq,
                    at=one.at,
                    tokens=tokens,
                    how=how,
                    cost=cost,
                    price=one.reserved.price if one.delivered and how is not How.UNPRICED else 0,
                    outcome=Outcome.INTERNAL,
                    note="gateway_died",
                )
            )
        count, self.orphans = len(self.orphans), ()
        return count

    def ingested(self, position: int) -> int:
        """The number up to which all is behind whoever ingests, who has come to `position` (of a reader)."""
        while self._ends and self._ends[0][0] <= position:
            self._ingested = self._ends.popleft()[1]
        return self._ingested

    # --- what may be asked -------------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        if self._room <= 0:
            return State.FULL
        slow = self._flying is not None and self._loop.time() - self._flew > self._tuning.slow
        return State.FAILING if self.why or slow else State.OK

    @property
    def waiting_bytes(self) -> int:
        """Encoded records that are not on disk yet."""
        return self._waiting

    @property
    def open_reservations(self) -> int:
        return len(self._open)

    async def close(self, seconds: float | None = None) -> int:
        """Put what waits on disk and end the thread. Returns how many records could not be written in `seconds` (None:
        `LAST_WRITES`)."""
        if not self._ended:
            self._closing = self._loop.create_future()
            if self._parts:
                self._hand_over()
            if self._flying is not None or self._parts:
                await asyncio.wait((self._closing,), timeout=LAST_WRITES if seconds is None else seconds)
            self._ended = True
            for timer in (self._timer, self._looks):
                if timer is not None:
                    timer.cancel()
            self._writer.put(None)
            if self._flying is None:  # else it hangs in the disk: the process's end gives the lock back
                self._writer.join()
                os.close(self._lock)
            if lost := self._count - self.committed:
                _log.error(
                    "journal %s: %d records could not be written: %s", self.folder, lost, self.why or "no answer"
                )
        return self._count - self.committed

    def __repr__(self) -> str:
        return f"<Journal {self.folder} {self.state} {self.committed:,} of {self._count:,} records on disk>"

    # --- groups ------------------------------------------------------------------------------------------------------

    def _append(self, encoded: bytes) -> int:
        self._parts.append(encoded)
        size = len(encoded)
        self._waiting += size
        self._room -= size
        self._count += 1
        if self._timer is None and self._flying is None:
            self._gather()
        return self._count

    def _gather(self) -> None:
        """Have what waits handed over, soon where somebody waits for it."""
        tuning = self._tuning
        wait = tuning.gather if self._hurried > self._count - len(self._parts) else tuning.linger
        self._arm(max(wait, self._flew + tuning.pace - self._loop.time()))

    def _arm(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, self._hand_over)

    def _hand_over(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._flying is not None or self._ended:
            return
        opening = self._begin() if self._restated is not None else None
        parts = self._take()
        if not self._parts and self._written >= max(self._segment_bytes, self._opened):
            self._turn_over()
        self._flying = Work(opening, parts, self._count - len(self._parts))
        self._flew = self._loop.time()
        self._writer.put(self._flying)

    def _take(self) -> list[bytes]:
        """What goes into the next group."""
        parts, self._parts = self._parts, []
        size = self._waiting
        if size > GROUP_BYTES:
            size = cut = 0
            while cut < len(parts) and size < GROUP_BYTES:
                size += len(parts[cut])
                cut += 1
            self._parts = parts[cut:]
            parts = parts[:cut]
        self._written += size
        return parts

    def _begin(self) -> Opening:
        self._segment += 1
        parts = self._restated or []
        follows, counts = self._safe
        wall = self._wall()
        began = Began(self.owner, self.boot, self._segment, self._seq, self._currency, wall, follows, counts)
        self._written, self._opened = 0, sum(map(len, parts))
        self._restated = None
        return Opening(self._segment, [_encode(began), *parts])

    def _turn_over(self) -> None:
        """The next group begins a new segment. What was just taken goes into the old one: nothing waits that refers to
        its accounts and prices, but for what is open."""
        self._accounts.turn_over({account for _, account, _ in self._open.values()})
        self._prices.turn_over({price for _, _, price in self._open.values()})
        self._restate(self._accounts.said.values(), self._prices.said.values())

    def _restate(self, accounts: Iterable[bytes], prices: Iterable[bytes]) -> None:
        parts = [*accounts, *prices, *(encoded for encoded, _, _ in self._open.values())]
        if self._delivered:
            parts.append(_encode(Progress(self._wall(), tuple(self._delivered.items()))))
        self._restated = parts

    def _tell_done(self, done: Done) -> None:
        self._tell(self._done, done)

    def _tell_failed(self, work: Work, why: str) -> None:
        self._tell(self._failed, work, why)

    def _tell(self, call: Callable[..., object], *args: object) -> None:
        try:
            self._loop.call_soon_threadsafe(call, *args)
        except RuntimeError:  # the loop is closed: nobody is there to be told
            self._writer.put(None)

    def _done(self, done: Done) -> None:
        self._flying = None
        parts = done.work.parts
        size = sum(map(len, parts))
        self._waiting -= size
        self.bytes += size
        self.records += len(parts)
        self.on_disk, self.position = done.on_disk, done.position
        self._safe = split(done.position)
        self._accounts.before = self._prices.before = {}
        if done.synced:
            self.fsyncs += done.synced
            self.fsync_seconds = done.seconds
            if self.why:
                _log.warning("journal %s: the disk takes it again", self.folder)
                self.why, self._backoff = "", self._tuning.retry
        self._make_room()
        if self._closing is not None:
            if self._parts:
                self._hand_over()
            elif not self._closing.done():
                self._closing.set_result(None)
        elif self._parts:
            self._gather()
        if parts:
            self._ends.append((done.position, done.work.last))
        self.committed = done.work.last
        self._on_committed(self.committed)

    def _failed(self, work: Work, why: str) -> None:
        self._flying = None
        self.failures += 1
        self._parts = [*work.parts, *self._parts]
        if self.why != why:
            _log.error(
                "journal %s: %s; what is booked stays in memory (%d bytes) until the disk takes it",
                self.folder,
                why,
                self._waiting,
            )
            self.why = why
        self._restate(self._accounts.all(), self._prices.all())
        self._make_room()
        self._arm(self._backoff)
        self._backoff = min(2 * self._backoff, RETRY_MOST)
        self._on_committed(self.committed)

    # --- room, accounts, prices --------------------------------------------------------------------------------------

    def _make_room(self) -> None:
        self._room = min(self._limit - self.on_disk, self._memory) - self._waiting
        if self._room <= 0 and self._looks is None:
            self._looks = self._loop.call_later(self._tuning.look, self._look)

    def _look(self) -> None:
        """Nothing else finds out that there is room again where nothing is written."""
        self._looks = None
        if self._flying is None and self._timer is None:
            self._hand_over()

    def _refuse(self) -> NoReturn:
        self.refused += 1
        if self.why or self._waiting >= self._memory:
            raise JournalFull(f"the journal's disk fails ({self.why or 'no answer'}), and {self._waiting} bytes wait")
        raise JournalFull(f"{self.on_disk} bytes of the journal are not in the database yet")

    def _define_account(self, who: Who) -> int:
        return self._accounts.define(who, lambda n: _encode(Account(n, *who)))

    def _define_price(self, id_: Hashable, snapshot: bytes) -> int:
        return self._prices.define(id_, lambda n: _encode(Priced(n, snapshot)))

    def _adopt(self, one: Open) -> Open:
        """An orphan in this life's numbers."""
        a, price = one.account, one.price
        who = (a.key, a.key_name, a.organisation, a.department, a.project, a.user)
        account_n, price_n = self._accounts.numbers.get(who), self._prices.numbers.get(price) if price else 0
        if account_n is None:
            account_n = self._define_account(who)
        if price_n is None:
            price_n = self._define_price(price, price)
        reserved = msgspec.structs.replace(one.reserved, account=account_n, price=price_n)
        self._open[reserved.seq] = (_encode(reserved), account_n, price_n)
        if one.delivered:
            self._delivered[reserved.seq] = one.delivered
        return msgspec.structs.replace(one, reserved=reserved)
