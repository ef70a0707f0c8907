"""The books of one worker: the reservation of each attempt, and its one settlement.

Every attempt is reserved before it is sent. The first byte of its answer waits until the reservation is safe (on disk,
or in the database), `ledger.first_byte_wait` at most; engines take longer to prefill, so mostly it waits for nothing.
What an attempt came to is `accounting`'s to say; here it is priced and written down.

Mutable state: answers that wait, in the order of their reservations, which is the order in which those become safe.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Iterator
from time import monotonic, time
from typing import TYPE_CHECKING, Final

from forebay import errors
from forebay.config.engine import Role
from forebay.config.ledger import Durability, Ledger, WhenFull
from forebay.counters import Counter, counters
from forebay.errors import Outcome
from forebay.gateway.accounting import NOTHING, Count
from forebay.gateway.bounds import answers_of, asked_tier, end_user_of, most_of
from forebay.gateway.labels import labels_of
from forebay.gateway.leg_books import PREFILLED, Leg, kv_of_both, parts_of
from forebay.gateway.telemetry import counter_snapshot, gauge
from forebay.ledger.enginepricing import ORDINARY, Dearest, EnginePrices
from forebay.ledger.entries import Hit, How, Progress, Reserved, Settled
from forebay.ledger.gates import known_as
from forebay.ledger.journal import Journal, JournalFull, Open, State
from forebay.ledger.legprices import leg_price
from forebay.ledger.pricing import Price, PriceBook, price_from
from forebay.ledger.tokens import NO_TOKENS, Tokens
from forebay.state.messages import Committed, FamilySnapshot, Follow

log = logging.getLogger("forebay.worker")

if TYPE_CHECKING:
    from forebay.gateway.attempts import Attempts
    from forebay.gateway.handles import Entry, Handle

FOLLOW: Final = 1.0
"""Seconds after which whoever ingests is answered, if nothing more came."""
PROGRESS: Final = 1.0
"""Seconds between two records of what streams under way have delivered: an orphan's estimate lacks at most so much."""
NO_TIER: Final = "service_tier"
"""The note of an attempt whose answer came in a tier that has no known price."""
NOTED: Final = 0.01
"""Seconds until it is noted that streams have begun."""
_MOST_TOKENS: Final = 1 << 40
# Reading a member off an Enum class is slow, and so is its value.
_OK: Final = Outcome.OK
_OK_WORD: Final = Outcome.OK.value
_EXACT: Final = How.EXACT
_ESTIMATED: Final = How.ESTIMATED
_UNPRICED: Final = How.UNPRICED


class Booked:
    """A settlement, for the log and the limits."""

    __slots__ = ("cost", "how")

    def __init__(self, how: How, cost: int | None) -> None:
        self.how = how
        self.cost = cost


class _Waiting:
    __slots__ = ("deadline", "position", "x")

    def __init__(self, position: int, deadline: float, x: Attempts) -> None:
        self.position = position
        self.deadline = deadline
        self.x = x


class Booking:
    def __init__(self, section: Ledger, journal: Journal, prices: PriceBook, loop: asyncio.AbstractEventLoop) -> None:
        self.journal = journal
        self.prices = prices
        self.safe = 0
        """Reservations up to this position are safe."""
        self.ingested = 0
        self.lived = False
        """There was a worker before, whose journal goes on."""
        self.late = counters(
            "forebay_ledger_first_bytes", "First bytes of answers, by how their reservation stood.", "reservation"
        )
        self.unbooked = counters("forebay_ledger_unbooked", "Attempts that the journal had no room for.")
        self.money = counters(
            "forebay_cost_nano", "Cost of settled attempts, in nano-units of the ledger's currency.", "model"
        )
        self._safe, self._waited, self._degraded = (self.late.series(name) for name in ("safe", "waited", "degraded"))
        self._unbooked = self.unbooked.series()
        self._paid_for = ""
        self._paid = Counter()
        """The series of `money` that was counted in last."""
        self._loop = loop
        self._waiting: deque[_Waiting] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._more: asyncio.Future[None] | None = None
        """Whoever ingests waits for more to be on disk."""
        self._progress_at = 0.0
        self._begun: list[Attempts] = []
        """Streams that began since the last note."""
        self._noting: asyncio.TimerHandle | None = None
        self.configure(section, prices)

    def configure(self, section: Ledger, prices: PriceBook) -> None:
        self.section = section
        self.prices = prices
        self.labels = section.labels
        self._wait = section.first_byte_wait
        self._in_database = section.durability is Durability.DATABASE
        self._refuses = section.when_full is WhenFull.REFUSE

    def check_room(self) -> None:
        """Raises Refusal where nothing may go unbooked, and the journal has no room."""
        if self._refuses and self.journal.state is State.FULL:
            raise errors.books_full()

    def recover(self) -> int:
        """Settle what an earlier life of this worker left open. Returns how many there were."""
        return self.journal.recover(self._price_orphan)

    def _price_orphan(self, orphan: Open) -> tuple[How, int | None]:
        reserved = orphan.reserved
        price = price_from(orphan.price) if orphan.price else None
        tokens = Tokens(input=reserved.prompt, output=orphan.delivered)
        cost = price.cost(tokens) if price is not None else None
        return (How.UNPRICED, None) if cost is None else (How.ESTIMATED, cost)

    # --- an attempt --------------------------------------------------------------------------------------------------

    def reserve(self, x: Attempts, handle: Handle) -> None:
        journal, now = self.journal, time()
        x.seq = seq = journal.next_seq()
        if not x.first_seq:
            x.first_seq = seq
        x.booked_at = monotonic()
        x.price = price = self.price_of(handle, x.entry.target, now)
        x.prices, x.reserved_at = handle.prices, now
        body = x.body
        reserved = self._reserved(
            x,
            seq,
            now,
            handle.name,
            x.prompt(),
            min((most_of(body) or 0) * answers_of(body), _MOST_TOKENS),
            x.held.full_cost if x.held is not None else 0,
            self._price_no(price),
        )
        try:
            x.position = journal.reserve(reserved)
        except JournalFull:
            x.seq = x.position = 0
            self._unbooked.value += 1

    def prefills(self, x: Attempts, handle: Handle) -> Leg:
        """Reserve the other leg of its attempt: this engine computes the prompt."""
        journal, now = self.journal, time()
        leg = Leg(journal.next_seq(), self.price_of(handle, x.entry.target, now), monotonic())
        price = leg.price
        number = self._price_no(price)
        reserved = self._reserved(x, leg.seq, now, handle.name, x.prompt(), 0, 0, number)
        try:
            x.position = journal.reserve(reserved)
        except JournalFull:
            leg.seq = 0
            self._unbooked.value += 1
        return leg

    def hit(self, x: Attempts, tokens: Tokens, avoided: int) -> None:
        """An answer that was known, whose making had taken these tokens and would have cost so much. Its reservation
        says these tokens; it used none."""
        journal, now = self.journal, time()
        seq = journal.next_seq()
        x.first_seq = x.first_seq or seq
        reserved = self._reserved(x, seq, now, "", tokens.prompt, tokens.completion, 0, 0)
        first = x.first_content_at
        settled = Settled(
            seq,
            now,
            NO_TOKENS,
            How.CACHE,
            0,
            0,
            x.outcome.value,
            first - x.received_at if first else 0.0,
            monotonic() - x.received_at,
            0,
            avoided,
        )
        try:
            journal.hit(Hit(reserved, settled))
        except JournalFull:
            self._unbooked.value += 1

    def _reserved(
        self, x: Attempts, seq: int, now: float, engine: str, prompt: int, most: int, held: int, price: int
    ) -> Reserved:
        front, body = x.front, x.body
        caller = front.caller
        assert caller is not None
        return Reserved(
            seq,
            x.first_seq,
            now,
            x.request_id.decode("latin-1"),
            self.journal.account_of(caller.account),
            front.route.name,
            x.entry.name,
            x.entry.target,
            engine,
            "",
            front.class_._value_,
            known_as(end_user_of(body)),
            labels_of(self.labels, body.metadata, front.tags) if self.labels else (),
            prompt,
            most,
            held,
            price,
        )

    def price_of(self, handle: Handle, model: str, at: float) -> Price | None:
        prices = handle.prices
        if prices is None:
            prices = handle.prices = EnginePrices(handle.config, self.prices)
        return prices.at(model, at)

    def dearest(self, entry: Entry, at: float, tier: str = "") -> Dearest | None:
        """What its engines take at most; `tier`: the one that is asked for. None: one of them has no price."""
        if tier and tier not in ORDINARY:
            return self._dearest_in(entry, at, tier)
        until, found = entry.priced
        if at < until < at + 60:
            return found
        prices = [self.price_of(handle, entry.target, at) for handle in entry.engines]
        known = [price for price in prices if price is not None]
        first = [h for h in entry.engines if h.config.role is Role.PREFILL] if entry.apart else []
        before = [price for h in first if (price := self.price_of(h, entry.target, at)) is not None]
        found = Dearest(known, before) if known and len(known) == len(prices) else None
        entry.priced = (at // 60 * 60 + 60, found)
        return found

    def _dearest_in(self, entry: Entry, at: float, tier: str) -> Dearest | None:
        """A maker may answer in the ordinary tier all the same."""
        prices = [self.price_of(handle, entry.target, at) for handle in entry.engines]
        makers = [handle.prices for handle in entry.engines if handle.prices is not None and handle.prices.has_tiers]
        prices += [maker.in_tier(entry.target, at, tier) for maker in makers]
        known = [price for price in prices if price is not None]
        return Dearest(known) if known and len(known) == len(prices) else None

    def _price_no(self, price: Price | None) -> int:
        """As the journal says it; 0 for none."""
        if price is None:
            return 0
        journal = self.journal
        return journal.price_known(price.id) or journal.price_no(price.id, price.as_json)

    def _money_of(self, model: str) -> Counter:
        """Most requests are for the same model again."""
        if model != self._paid_for:
            self._paid_for, self._paid = model, self.money.series(model)
        return self._paid

    def first_byte(self, x: Attempts) -> None:
        """An answer is about to begin: it is held back where its reservation is not safe yet. A stream's is noted soon,
        for the worker may die before the next record of progress."""
        if x.stream and x.seq:
            self._begun.append(x)
            if self._noting is None:
                self._noting = self._loop.call_later(NOTED, self._note_begun)
        if x.position <= self.safe:
            self._safe.value += 1
            return
        x.reply.hold()
        now = monotonic()
        self._waiting.append(_Waiting(x.position, now + self._wait, x))
        self.journal.hurry(x.position)
        if self._timer is None:
            self._timer = self._loop.call_later(self._wait, self._overdue)

    def settle(self, x: Attempts, outcome: Outcome, count: Count) -> Booked:
        """What the attempt cost, in both its legs where it has two; written down where it was reserved."""
        price = x.price
        tier = _tier_of(x)
        if tier and x.prices is not None:
            price = x.prices.in_tier(x.entry.target, x.reserved_at, tier)
            if price is None:
                count = Count(count.tokens, count.exact, count.note or NO_TIER)
        seq, x.seq = x.seq, 0
        legs = x.legs
        leg = legs.booked if legs is not None else None
        if leg is None or legs is None:
            kv = _kv_token_seconds(count, x) if price is not None and price.tariff.uses_kv else 0
            return self._settle(x, seq, price, _OK_WORD if outcome is _OK else outcome.value, count, kv)
        legs.booked = None
        tokens = count.tokens
        how = PREFILLED if outcome is _OK else outcome.value
        if tokens is NO_TOKENS or not leg.used:
            self._settle(x, leg.seq, leg.price, how if leg.used else Outcome.ENGINE_ERROR.value, NOTHING, 0)
            kv = _kv_token_seconds(count, x) if price is not None and price.tariff.uses_kv else 0
            return self._settle(x, seq, price, outcome.value, count, kv)
        first, second = parts_of(count, leg)
        of_first, of_second = kv_of_both(tokens, leg, monotonic())
        before = leg_price(leg.price, tokens.prompt, request=False) if leg.price is not None else None
        price = leg_price(price, tokens.prompt, request=True) if price is not None else None
        one = self._settle(x, leg.seq, before, how, first, of_first)
        two = self._settle(x, seq, price, outcome.value, second, of_second)
        if one.cost is None or two.cost is None:
            return Booked(_UNPRICED, None)
        return Booked(two.how, one.cost + two.cost)

    def _settle(self, x: Attempts, seq: int, price: Price | None, outcome: str, count: Count, kv: int) -> Booked:
        """One leg; `kv` counts where its price is for that, too."""
        now = time()
        how = _EXACT
        cost: int | None = 0
        if count.tokens is NO_TOKENS:
            kv = 0
        else:
            cost = None
            if price is None:
                kv = 0
            else:
                tariff = price.tariff
                if not tariff.uses_kv:
                    kv = 0
                cost = tariff.cost(count.counts, kv)
            how = _UNPRICED if cost is None else _EXACT if count.exact else _ESTIMATED
        if cost:
            self._money_of(x.entry.name).value += cost
        if seq:
            first = x.first_content_at
            self.journal.settle(
                Settled(
                    seq,
                    now,
                    count.tokens,
                    how,
                    cost,
                    self._price_no(price),
                    outcome,
                    first - x.received_at if first else 0.0,
                    monotonic() - x.received_at,
                    kv,
                    0,
                    count.note,
                )
            )
        return Booked(how, cost)

    # --- what becomes safe -------------------------------------------------------------------------------------------

    def committed(self, position: int) -> None:
        """The journal is on disk up to here."""
        if not self._in_database:
            self._now_safe(position)
        if self._more is not None:
            self._more.set_result(None)
            self._more = None

    def in_database(self, position: int) -> None:
        """The admin process has committed it up to here."""
        self.ingested = position
        if self._in_database:
            self._now_safe(position)

    async def all_on_disk(self) -> None:
        """Returns when nothing waits for the disk, or after a second: for the start, when nothing new comes."""
        deadline = self._loop.time() + FOLLOW
        while (self.journal.waiting_bytes or not self.journal.position) and self._loop.time() < deadline:
            await self._written(deadline - self._loop.time())

    async def _written(self, within: float) -> None:
        if self._more is None:
            self._more = self._loop.create_future()
        await asyncio.wait((self._more,), timeout=within)

    async def follow(self, so_far: Follow) -> Committed:
        """For whoever ingests: returns when there is more on disk, or after a second."""
        journal, position = self.journal, 0
        if so_far.owner == journal.owner:  # what it says of another journal is not of this one's records
            position = so_far.position
            self.in_database(journal.ingested(position))
        if journal.position <= position:
            await self._written(FOLLOW)
        return Committed(journal.owner, journal.position)

    def _now_safe(self, position: int) -> None:
        self.safe = position
        waiting = self._waiting
        while waiting and waiting[0].position <= position:
            self._waited.value += 1
            waiting.popleft().x.let_go()

    def _overdue(self) -> None:
        self._timer = None
        waiting, now = self._waiting, monotonic()
        while waiting and waiting[0].deadline <= now:
            self._degraded.value += 1
            waiting.popleft().x.let_go()
        if waiting:
            self._timer = self._loop.call_later(max(0.0, waiting[0].deadline - now), self._overdue)

    def _note_begun(self) -> None:
        self._noting = None
        begun, self._begun = self._begun, []
        rows = tuple((x.seq, max(1, x.delivered())) for x in begun if x.seq)
        if rows:
            self.journal.progress(Progress(time(), rows))

    # --- streams under way -------------------------------------------------------------------------------------------

    def progress(self, live: Iterable[Attempts], now: float) -> None:
        """For the ticker: what has been delivered so far; `now` in monotonic seconds."""
        if now < self._progress_at:
            return
        self._progress_at = now + PROGRESS
        rows = tuple((x.seq, max(1, x.delivered())) for x in live if x.seq and x.first_content_at)
        if rows:
            self.journal.progress(Progress(time(), rows))

    def snapshot(self) -> Iterator[FamilySnapshot]:
        """Its metrics."""
        for family in (self.late, self.unbooked, self.money):
            yield counter_snapshot(family)
        journal = self.journal
        rows: tuple[tuple[str, str, float], ...] = (
            (
                "forebay_ledger_journal_bytes",
                "The journal on disk: what is not ingested, and a little.",
                journal.on_disk,
            ),
            ("forebay_ledger_journal_waiting_bytes", "Records that are not on disk yet.", journal.waiting_bytes),
            ("forebay_ledger_open_reservations", "Attempts that are not settled.", journal.open_reservations),
            ("forebay_ledger_journal_fsync_seconds", "Of the last group of records.", journal.fsync_seconds),
        )
        for name, text, value in rows:
            yield gauge(name, text, (), [((), float(value))])
        states = [((state.value,), float(journal.state is state)) for state in State]
        yield gauge("forebay_ledger_journal_state", "1 for the state that a journal is in.", ("state",), states)
        for name, text, count in (
            ("forebay_ledger_journal_records", "Records of the journal that are on disk.", journal.records),
            ("forebay_ledger_journal_fsyncs", "Groups of records.", journal.fsyncs),
            ("forebay_ledger_journal_failures", "Groups that the disk did not take, tries included.", journal.failures),
        ):
            yield FamilySnapshot(name, text, "counter", (), values=(((), float(count)),))

    async def close(self) -> None:
        """After the last request: everything written down is on disk, as far as that is to be had."""
        for timer in (self._timer, self._noting):
            if timer is not None:
                timer.cancel()
        for waiting in self._waiting:
            waiting.x.let_go()
        self._waiting.clear()
        await self.journal.close()

    def __repr__(self) -> str:
        return f"<Booking {len(self._waiting)} waiting, safe up to {self.safe:,}, {self.journal!r}>"


def _tier_of(x: Attempts) -> str:
    """The tier that a maker answered in, other than the ordinary one: as it says, else as it was asked."""
    tier = x.service_tier
    if not tier and x.prices is not None and x.prices.has_tiers:
        tier = asked_tier(x.body)
    return "" if not tier or tier in ORDINARY else tier


def _kv_token_seconds(count: Count, x: Attempts) -> int:
    """Of one attempt: its prompt is held all the time, its answer grows evenly."""
    seconds = monotonic() - x.booked_at
    return round(seconds * (count.prompt + count.completion / 2))
