"""From journals of workers that are killed, or whose disk fails, into the book: every attempt once."""

from __future__ import annotations

import random
from pathlib import Path

from sqlalchemy import select

from forebay.ledger.book import Book
from forebay.ledger.database import Database
from forebay.ledger.entries import How, Reserved, Settled
from forebay.ledger.journal import Tuning
from forebay.ledger.journal_format import segments
from forebay.ledger.journal_read import Reader, forget
from forebay.ledger.schema import entries, reservations
from journals import POINTS, Faulty, Live, committed, on_a_loop, opened, reservation, settlement


class Ingester:
    """Books what a journal holds, and is itself begun anew now and then; removes what is booked."""

    def __init__(self, folder: Path, state_dir: Path) -> None:
        self.folder = folder
        self.database = Database("", state_dir)
        self.database.migrate()
        self.book = Book(self.database, "USD")
        self.reserved: set[int] = set()
        self.settled: dict[int, Settled] = {}

    def sweep(self, owner: str, most: int) -> None:
        reader = Reader(self.folder, self.book.position(owner))
        for n, batch in enumerate(reader.batches()):
            assert batch.began.owner == owner
            for record in batch.records:
                if isinstance(record, Reserved):
                    self.reserved.add(record.seq)
                elif isinstance(record, Settled):
                    self.settled.setdefault(record.seq, record)
            done = self.book.ingest(owner, ((batch.position, record) for record in batch.records), 1.0)
            assert done.strays == 0
            forget(self.folder, done.position)
            if n + 1 == most:
                break

    def booked(self) -> dict[int, tuple[str, int]]:
        with self.database.read() as connection:
            found = connection.execute(select(entries.c.seq, entries.c.how, entries.c.cost)).all()
            assert connection.execute(select(reservations.c.seq)).all() == []
        return {row.seq: (row.how, row.cost) for row in found}


@on_a_loop
async def test_workers_that_are_killed(live: Live, tmp_path: Path) -> None:
    folder = tmp_path / "worker-0"
    first = opened(folder, "boot-0")
    await committed(first, first.reserve(reservation(first)))
    await first.close()
    ingester = Ingester(folder, tmp_path)
    rng = random.Random(6)
    for life in range(1, 15):
        call, when, n = rng.choice(POINTS)
        live(folder, f"boot-{life}", call, when, n, seed=life)
        ingester.sweep(first.owner, rng.choice((1, 3, 1000)))
    last = opened(folder, "last")
    last.recover(lambda one: (How.ESTIMATED, one.delivered))
    await last.close()
    ingester.sweep(first.owner, 1000)
    booked = ingester.booked()
    assert len(booked) > 100
    assert set(booked) == ingester.reserved == set(ingester.settled)
    assert booked == {seq: (settled.how.value, settled.cost) for seq, settled in ingester.settled.items()}
    assert len(segments(folder)) == 1
    ingester.database.close()


@on_a_loop
async def test_a_disk_that_fails(tmp_path: Path) -> None:
    folder = tmp_path / "worker-0"
    tuning = Tuning(gather=0, pace=0, retry=0.001, segment_bytes=4096)
    journal = opened(folder, disk=Faulty(set(range(6, 1000, 7))), tuning=tuning)
    ingester = Ingester(folder, tmp_path)
    costs: dict[int, tuple[str, int]] = {}
    for i in range(60):
        one, two = reservation(journal), reservation(journal, key=f"key-{i // 5}")
        for each in (one, two):
            journal.reserve(each)
            last = journal.settle(settlement(each.seq, cost=i))
            costs[each.seq] = ("exact", i)
        if i % 3:
            await committed(journal, last)
            ingester.sweep(journal.owner, 1 + i % 4)
    assert await journal.close() == 0
    assert journal.failures > 5
    ingester.sweep(journal.owner, 1000)
    assert ingester.booked() == costs
    ingester.database.close()
