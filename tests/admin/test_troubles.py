"""What is wrong with the books, and since when."""

from __future__ import annotations

import asyncio
from pathlib import Path

from forebay.admin.ingest import Ingest
from forebay.admin.keys import Keys
from forebay.admin.troubles import JournalTrouble, Seen, Troubles, database_trouble, intake_trouble
from forebay.admin.view import GatewayState
from forebay.clock import ManualClock, SystemClock
from forebay.config.models import Config
from forebay.ledger.alerts import TroubleKind
from forebay.ledger.database import Database
from forebay.state.messages import FamilySnapshot, Snapshot, journal_folder
from journals import committed, on_a_loop, opened, reservation
from waiting import eventually


def test_trouble_lasts_while_it_is_seen_at_every_look() -> None:
    clock = ManualClock(wall=1_000.0)
    seen: list[Seen] = []
    troubles = Troubles([lambda: seen], clock)
    assert troubles() == []
    seen = [Seen(TroubleKind.INGEST_LAG, "worker-0", "one reason")]
    assert [t.since for t in troubles()] == [1_000.0]
    clock.advance(30)
    seen.append(Seen(TroubleKind.DATABASE_DOWN, "this host", "gone"))
    seen[0] = Seen(TroubleKind.INGEST_LAG, "worker-0", "another reason")
    assert [(t.why, t.since) for t in troubles()] == [("another reason", 1_000.0), ("gone", 1_030.0)]
    lag, seen = seen[0], []
    assert troubles() == []
    clock.advance(30)
    seen = [lag]
    assert [t.since for t in troubles()] == [1_060.0]


async def _reserve(folder: Path) -> None:
    journal = opened(folder)
    await committed(journal, journal.reserve(reservation(journal)))
    await journal.close()


def test_a_journal_that_cannot_be_read_is_told_with_its_name(state_dir: Path) -> None:
    Database("", state_dir).migrate()
    folder = journal_folder(state_dir, 0)
    on_a_loop(_reserve)(folder)
    next(folder.glob("*.journal")).write_bytes(b"no journal at all")

    async def main() -> None:
        clock = SystemClock()
        state = GatewayState(Config(state_dir=state_dir), "boot", 1)
        keys = Keys("", state_dir, state.workers, clock)
        look = intake_trouble(state, keys)
        keys.status = ""
        assert list(look()) == [], "the ledger is not enabled"
        state.ledger = Ingest("", state_dir, "USD", 1, clock, lambda: "")
        async with asyncio.TaskGroup() as group:
            task = group.create_task(state.ledger.run())
            (seen,) = await asyncio.to_thread(eventually, lambda: [s for s in look() if s.where == "worker-0"])
            task.cancel()
        assert seen.kind is TroubleKind.INGEST_LAG
        assert seen.why
        keys.status, keys.pending = "connection refused", False
        assert list(look()) == [], "the database itself is told of"
        assert list(database_trouble(keys)()) == [Seen(TroubleKind.DATABASE_DOWN, "this host", "connection refused")]
        await state.ledger.close()

    asyncio.run(main())


def test_what_workers_say_of_their_journals(state_dir: Path) -> None:
    state = GatewayState(Config(state_dir=state_dir), "boot", 1)
    look = JournalTrouble(state.workers)
    (link,) = state.workers.links

    def says(unbooked: float, boot: str = "b1", **states: float) -> list[Seen]:
        values = tuple(((name,), value) for name, value in states.items())
        families = (
            FamilySnapshot("forebay_ledger_journal_state", "", "gauge", ("state",), values=values),
            FamilySnapshot("forebay_ledger_unbooked", "", "counter", (), values=(((), unbooked),)),
        )
        link.snapshot = Snapshot(boot, 1, 0, draining=False, keys_version=1, families=families)
        link.up = True
        return look()

    assert says(0, ok=1, full=0, failing=0) == []
    full = Seen(TroubleKind.JOURNAL_FULL, "worker 0", "it has the size that it may have")
    assert says(0, ok=0, full=1, failing=0) == [full]
    assert [s.kind for s in says(0, ok=0, full=0, failing=1)] == [TroubleKind.JOURNAL_FAILING]
    assert says(3, ok=1) == [Seen(TroubleKind.JOURNAL_FULL, "worker 0", "3 attempts were not booked")]
    assert says(3, ok=1) == []
    assert says(1, "b2", ok=1) == [Seen(TroubleKind.JOURNAL_FULL, "worker 0", "1 attempts were not booked")]
    link.up = False
    assert look() == []
