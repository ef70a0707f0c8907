"""From journals of workers that are killed, or whose disk fails, into the book: every attempt once."""

from __future__ import annotations

import random
import shutil
import time
from pathlib import Path

from forebay.ledger.database import Database
from forebay.ledger.entries import How
from forebay.ledger.intake import Intake
from forebay.ledger.journal import Tuning
from forebay.ledger.journal_format import segments
from forebay.ledger.journal_read import forget
from journal_books import Ingester
from journals import POINTS, Faulty, Live, committed, on_a_loop, opened, reservation, settlement


@on_a_loop
async def test_workers_that_are_killed(live: Live, tmp_path: Path) -> None:
    folder = tmp_path / "worker-0"
    first = opened(folder, "boot-0")
    await committed(first, first.reserve(reservation(first)))
    await first.close()
    ingester = Ingester(folder, Database("", tmp_path))
    rng = random.Random(6)
    for life in range(1, 15):
        call, when, n = rng.choice(POINTS)
        live(folder, f"boot-{life}", call, when, n, seed=life)
        ingester.sweep(first.owner, rng.choice((1, 3, 1000)))
        forget(folder, ingester.position)
    last = opened(folder, "last")
    last.recover(lambda one: (How.ESTIMATED, one.delivered))
    await last.close()
    ingester.sweep(first.owner, 1000)
    forget(folder, ingester.position)
    booked = ingester.booked()
    assert len(booked) > 100
    assert set(booked) == ingester.reserved == set(ingester.settled)
    assert booked == {seq: (settled.how.value, settled.cost) for seq, settled in ingester.settled.items()}
    assert len(segments(folder)) == 1
    ingester.database.close()


@on_a_loop
async def test_a_disk_that_fails(tmp_path: Path) -> None:
    folder = tmp_path / "worker-0"
    tuning = Tuning(gather=0, linger=0, pace=0, retry=0.001, segment_bytes=4096)
    journal = opened(folder, disk=Faulty(set(range(6, 1000, 7))), tuning=tuning)
    ingester = Ingester(folder, Database("", tmp_path))
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
            forget(folder, ingester.position)
    assert await journal.close() == 0
    assert journal.failures > 5
    ingester.sweep(journal.owner, 1000)
    assert ingester.booked() == costs
    ingester.database.close()


@on_a_loop
async def test_a_copied_state_directory_is_found_out(tmp_path: Path) -> None:
    """Two hosts write journals of one owner into one database: the second one's entries would be lost in silence."""
    mine, copied = tmp_path / "a" / "journal", tmp_path / "b" / "journal"
    first = opened(mine / "worker-0", "image")
    await committed(first, first.reserve(reservation(first)))
    await first.close()
    shutil.copytree(mine, copied)
    database = Database("", tmp_path)
    database.migrate()
    intakes = []
    for folder, boot in ((mine, "here"), (copied, "there")):
        journal = opened(folder / "worker-0", boot)
        n = journal.reserve(reservation(journal))
        await committed(journal, n)
        await journal.close()
        intakes.append(Intake(database, folder, "USD", wall=time.time, alive=lambda _: True))
    here, there = (intake.sweep().journals[0] for intake in intakes)
    database.close()
    assert here.why == ""
    assert "the state directory was copied" in there.why
