"""Whatever happens in whichever order, and whoever ingests: each attempt counts once, at its true cost in the end."""

from __future__ import annotations

import itertools
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from forebay.ledger.book import Book
from forebay.ledger.database import Database
from forebay.ledger.entries import Account, Began, Hit, How, Priced, Progress, Record, Reserved, Settled
from forebay.ledger.intake import Intake, estimate
from forebay.ledger.pricelists import Scale
from forebay.ledger.pricing import Price
from forebay.ledger.reports import Query, report
from forebay.ledger.tokens import Tokens
from forebay.ledger.verify import verify
from journals import committed, on_a_loop, opened, reservation, settlement
from postgres_server import Postgres

pytestmark = pytest.mark.books

NOON = 1_800_000_000.0
NANO_EACH = Price("p", "m", "", "USD", (Scale({"input": Decimal(0), "output": Decimal("0.001")}),))
"""A nano-unit for a token of output."""
INGEST = """
import sys
from pathlib import Path
from forebay.ledger import intake
from forebay.ledger.database import Database
intake.RUN = 7
database = Database(sys.argv[1], Path(sys.argv[2]))
books = intake.Intake(database, Path(sys.argv[2]) / "journal", "USD", wall=lambda: 1.8e9)
print("ready", flush=True)
sys.stdin.readline()
while books.sweep().more:
    pass
print(books.stand().totals.settled)
"""


async def write(folder: Path, count: int) -> None:
    """So many attempts; of every three the last is not settled."""
    journal = opened(folder)
    number = 0
    for i in range(count):
        reserved = reservation(journal)
        number = journal.reserve(reserved)
        if i % 3 != 2:
            number = journal.settle(settlement(reserved.seq))
        if i % 20 == 0:
            await committed(journal, number)  # a group of its own
    await committed(journal, number)
    await journal.close()


def test_processes_that_ingest_the_same_journals_at_once(postgres: Postgres, tmp_path: Path) -> None:
    database = Database(postgres.new(), tmp_path)
    database.migrate()
    url = database.url.render_as_string(hide_password=False)
    for n in range(2):
        on_a_loop(write)(tmp_path / "journal" / f"worker-{n}", 90)
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", INGEST, url, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    done = [racer.communicate("go\n", timeout=60)[0] for racer in racers]
    assert [racer.returncode for racer in racers] == [0, 0]
    assert sum(map(int, done)) == 120
    found = verify(database, tmp_path / "journal")
    assert (found.entries, found.cost, found.open, found.differences) == (120, 120_000, 60, 0)
    database.close()


def test_a_host_that_is_gone_is_settled_by_another_and_comes_back(postgres: Postgres, tmp_path: Path) -> None:
    """Each host has its own state directory; both have the database."""
    now = [NOON]
    url = postgres.new()
    hosts = []
    for name in ("gone", "lives"):
        database = Database(url, tmp_path / name)
        database.migrate()
        on_a_loop(write)(tmp_path / name / "journal" / "worker-0", 6)
        hosts.append((database, Intake(database, tmp_path / name / "journal", "USD", wall=lambda: now[0])))
    (database, gone), (_, lives) = hosts
    gone.sweep()
    for _ in range(25):
        lives.sweep()
        now[0] += 31
    assert lives.stand().totals.orphans == 2  # the other's, not its own
    assert verify(database, tmp_path / "gone" / "journal").open == 2

    async def come_back() -> None:
        journal = opened(tmp_path / "gone" / "journal" / "worker-0", "boot-2")
        assert journal.recover(lambda one: (How.ESTIMATED, 40)) == 2
        await committed(journal, 1)
        await journal.close()

    on_a_loop(come_back)()
    gone.sweep()
    assert (gone.stand().totals.late, gone.stand().totals.again) == (0, 2)  # both say: nothing was delivered
    found = verify(database, tmp_path / "gone" / "journal")
    assert (found.entries, found.open, found.differences) == (10, 2, 0)
    for database, _ in hosts:
        database.close()


class Life(RuleBasedStateMachine):
    """One journal of several boots and segments, ingested by two books in turns; beside it a plain model."""

    database: Database
    numbers = itertools.count()

    def __init__(self) -> None:
        super().__init__()
        self.owner = f"{next(self.numbers):016x}"
        self.books = [Book(self.database, "USD") for _ in range(2)]
        self.journal: list[Record] = []
        self.seq = 0
        self.segment = 0
        self.open: dict[int, int] = {}  # delivered, by seq
        self.cost: dict[int, int | None] = {}  # of what is settled
        self.unread: dict[int, int | None] = {}  # settled in the journal, not booked
        self.booked: set[int] = set()
        self.survived: dict[int, int] = {}
        self.reserved_booked: dict[int, int] = {}
        self.read = 0
        self.begin()

    @rule()
    def begin(self) -> None:
        """A new segment says again what is open."""
        self.segment += 1
        self.journal += [
            Began(self.owner, "boot", self.segment, self.seq + 1, "USD", NOON),
            Account(self.segment, self.owner, "k", "o", "d", "p", "u"),
            Priced(1, NANO_EACH.as_json()),
        ]
        self.journal += [self.reservation(seq) for seq in self.open]

    def reservation(self, seq: int) -> Reserved:
        day = 86_400 * (seq % 3)
        return Reserved(seq, seq, NOON + day, "x", self.segment, "r", "m", "s", "e", "", "low", "", (), 10, 50, 9, 1)

    @rule(count=st.integers(1, 5))
    def reserve(self, count: int) -> None:
        for _ in range(count):
            self.seq += 1
            self.open[self.seq] = 0
            self.journal.append(self.reservation(self.seq))

    @precondition(lambda self: self.open)
    @rule(data=st.data(), cost=st.one_of(st.none(), st.integers(0, 1_000)))
    def settle(self, data: Any, cost: int | None) -> None:
        """Also how a cancelled one ends: at what was delivered."""
        seq = data.draw(st.sampled_from(sorted(self.open)))
        del self.open[seq]
        self.unread[seq] = cost
        self.journal.append(self.settlement(seq, cost))

    def settlement(self, seq: int, cost: int | None, how: How = How.EXACT) -> Settled:
        how = How.UNPRICED if cost is None else how
        return Settled(seq, NOON + 86_400 * (seq % 3) + 5, Tokens(10, output=3), how, cost, 0, "ok")

    @precondition(lambda self: self.cost or self.unread)
    @rule(data=st.data())
    def settle_again(self, data: Any) -> None:
        seq = data.draw(st.sampled_from(sorted({**self.cost, **self.unread}.keys() - self.survived.keys() or {0})))
        if seq:
            self.journal.append(self.settlement(seq, 77_777))

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def deliver(self, data: Any) -> None:
        seq = data.draw(st.sampled_from(sorted(self.open)))
        self.open[seq] += 2
        self.journal.append(Progress(NOON, ((seq, self.open[seq]),)))

    @rule(avoided=st.integers(0, 50))
    def hit(self, avoided: int) -> None:
        self.seq += 1
        self.unread[self.seq] = 0
        self.journal.append(Hit(self.reservation(self.seq), self.settlement(self.seq, 0, How.CACHE)))

    @rule(book=st.integers(0, 1), back=st.integers(0, 10), share=st.floats(0, 1))
    def ingest(self, book: int, back: int, share: float) -> None:
        """From some way before where the book stands, and not always to the end."""
        until = self.read + round((len(self.journal) - self.read) * share)
        records = list(enumerate(self.journal, 1))[max(0, self.read - back) : until]
        self.books[book].ingest(self.owner, records, NOON)
        for record in self.journal[self.read : until]:
            match record:
                case Reserved():
                    self.reserved_booked.setdefault(record.seq, 0)
                case Progress():
                    self.reserved_booked.update(record.live)
                case Settled() | Hit():
                    seq = record.seq if isinstance(record, Settled) else record.settled.seq
                    if seq in self.unread:
                        self.cost[seq] = self.unread.pop(seq)
        self.read = max(self.read, until)
        self.every_attempt_counts_once()

    @rule(book=st.integers(0, 1))
    def expire(self, book: int) -> None:
        """Somebody takes the host for dead, with what is booked of it."""
        orphans = {seq for seq in self.reserved_booked if seq not in self.cost and seq not in self.survived}
        count = self.books[book].expire(NOON + 700, silent=600, grace=1e9, estimate=estimate)
        assert count == len(orphans)
        self.survived.update((seq, self.reserved_booked[seq]) for seq in orphans)
        self.books[book].beat([self.owner], NOON)
        self.every_attempt_counts_once()

    def every_attempt_counts_once(self) -> None:
        with self.database.read() as connection:
            rows = report(connection, Query(0, 2 * NOON, where={"key": (self.owner,)}))
        expected = {**self.survived, **{s: c for s, c in self.cost.items() if c is not None or s not in self.survived}}
        attempts = len(self.survived.keys() | self.cost.keys())
        found = (sum(r.attempts for r in rows), sum(r.total for r in rows))
        assert found == (attempts, sum(c or 0 for c in expected.values()))

    def teardown(self) -> None:
        """Nothing open, for the next one's `expire`; and all in order."""
        self.ingest(0, 0, 1.0)
        self.expire(0)
        assert verify(self.database, Path("/nonexistent")).differences == 0


def test_any_order_of_events_leaves_the_same_books(database: Database) -> None:
    database.migrate()
    machine = type("Life", (Life,), {"database": database})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=8, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
