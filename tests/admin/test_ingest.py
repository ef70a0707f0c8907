"""The admin process books what the workers' journals hold."""

from __future__ import annotations

import json
import signal
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update

from admin_process import Admin, FakeWorker
from forebay.config.models import Config
from forebay.ledger.database import Database, database_file
from forebay.ledger.journal_format import segments
from forebay.ledger.reports import Query, Row, report
from forebay.ledger.schema import engine_spans
from journals import committed, on_a_loop, opened, reservation, settlement
from waiting import eventually


async def write(folder: Path, count: int, boot: str = "boot-1") -> None:
    """So many attempts, settled, in a journal that is then closed."""
    journal = opened(folder, boot)
    number = 0
    for _ in range(count):
        reserved = reservation(journal)
        journal.reserve(reserved)
        number = journal.settle(settlement(reserved.seq))
    await committed(journal, number)
    await journal.close()


def booked(folder: Path) -> Row:
    database = Database("", folder)
    with database.read() as connection:
        (row,) = report(connection, Query(1_600_000_000, 1_800_000_000))
    database.close()
    return row


@pytest.fixture
def books(state_dir: Path) -> Path:
    return state_dir / "journal" / "worker-0"


def settled(admin: Admin) -> float | None:
    return admin.metric("forebay_ledger_settled_total")


def test_books_what_the_journal_holds(admin: Admin, worker: FakeWorker, books: Path) -> None:
    on_a_loop(write)(books, 50)
    admin.start()
    eventually(lambda: settled(admin) == 50)
    row = booked(admin.state_dir)
    assert (row.attempts, row.cost, row.exact) == (50, 50_000, 50)
    assert admin.metric("forebay_ledger_up") == 1
    assert admin.metric("forebay_ledger_alarm") == 0
    assert admin.metric('forebay_ledger_lag_bytes{worker="0"}') == 0
    assert admin.metric('forebay_ledger_lag_seconds{worker="0"}') == 0
    assert admin.get("/health").json["ledger"] == {"up": True, "bytes_behind": 0}
    on_a_loop(write)(books, 25, "boot-2")
    assert admin.kill(signal.SIGTERM) == 0  # what is there when it leaves is booked
    assert booked(admin.state_dir).attempts == 75
    assert len(segments(books)) == 1  # what is booked whole is removed


def test_what_hangs_is_left_behind_all_at_once(admin: Admin, worker: FakeWorker, books: Path) -> None:
    """Each in turn would take longer than the supervisor waits."""
    on_a_loop(write)(books, 5)
    admin.start()
    eventually(lambda: settled(admin) == 5)
    other = sqlite3.connect(database_file(admin.state_dir), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    on_a_loop(write)(books, 5, "boot-2")
    assert admin.kill(signal.SIGTERM) == 0
    assert "what hangs is left behind" in admin.log.read_text()
    other.close()
    admin.start()
    eventually(lambda: settled(admin) == 10)


def test_goes_on_where_it_was_killed_and_a_damaged_journal_stops_no_other(
    admin: Admin, worker: FakeWorker, books: Path
) -> None:
    other = books.parent / "worker-1"
    on_a_loop(write)(books, 20)
    admin.start()
    eventually(lambda: settled(admin) == 20)
    admin.kill()
    on_a_loop(write)(books, 10, "boot-2")
    on_a_loop(write)(other, 5)
    file = next(other.glob("*.journal"))
    file.write_bytes(b"no journal at all")
    admin.start()
    eventually(lambda: settled(admin) == 30)  # sums of both lives
    assert booked(admin.state_dir).attempts == 30
    assert admin.metric("forebay_ledger_alarm") == 1
    assert "worker-1: " in admin.get("/health").json["ledger"]["why"]


def test_hours_of_engines_are_reconciled_with_their_price(admin: Admin, worker: FakeWorker, books: Path) -> None:
    engine = {"name": "gpu-1", "url": "http://127.0.0.1:9", "price": {"gpu_hour": 3.6}}
    admin.config = Config.model_validate(admin.config.model_dump() | {"engines": [engine]})
    on_a_loop(write)(books, 1)
    admin.start()
    eventually(lambda: admin.metric("forebay_ledger_up") == 1)
    database = Database("", admin.state_dir)

    def span() -> Any:
        with database.read() as connection:
            return connection.execute(select(engine_spans)).one_or_none()

    seen = eventually(span)
    assert (seen.engine, seen.until, json.loads(seen.price)["gpu_hour"]) == ("gpu-1", None, 3.6)
    assert admin.kill(signal.SIGTERM) == 0
    began = (seen.since // 3_600 - 3) * 3_600
    with database.write() as connection:
        connection.execute(update(engine_spans).values(since=began, seen=began))
    admin.start()
    eventually(lambda: (admin.metric("forebay_ledger_engine_hours_total") or 0) >= 2)
    with database.read() as connection:
        (row,) = report(connection, Query(began, began + 7_200, by=("project", "engine")))
    assert (row.group, row.total) == (("_idle", "gpu-1"), 7_200_000_000)
    database.close()


def test_a_database_that_cannot_be_written_holds_nothing_up(admin: Admin, worker: FakeWorker, books: Path) -> None:
    admin.start()
    eventually(lambda: admin.metric("forebay_ledger_up") == 1)
    eventually(lambda: admin.get("/ready").status == 200)
    other = sqlite3.connect(database_file(admin.state_dir), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")  # another writer that hangs
    on_a_loop(write)(books, 5)
    eventually(lambda: admin.metric("forebay_ledger_alarm") == 1)
    said = admin.get("/health").json["ledger"]
    assert "database is locked" in said["why"] and said["bytes_behind"] > 0
    assert admin.get("/ready").status == 200
    other.execute("ROLLBACK")
    other.close()
    eventually(lambda: settled(admin) == 5)
    eventually(lambda: admin.metric("forebay_ledger_alarm") == 0)
