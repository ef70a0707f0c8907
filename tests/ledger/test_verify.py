from __future__ import annotations

import json
import sqlite3
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.config import Config
from msgspec.structs import replace
from sqlalchemy import func, select, text

from forebay.cli.main import run
from forebay.ledger.database import SCRIPTS, Database, database_file
from forebay.ledger.entries import Adjusted
from forebay.ledger.intake import Intake
from forebay.ledger.pricelists import Scale
from forebay.ledger.pricing import Price
from forebay.ledger.schema import account_rollups, rollups, service_rollups, services, use_rollups, uses
from forebay.ledger.verify import verify
from journals import committed, on_a_loop, opened, reservation, settlement

PRICE = Price("p", "gpt-4", "", "USD", (Scale({"input": Decimal(10), "output": Decimal(30)}),))
COST = 100 * 10_000 + 20 * 30_000


async def write(folder: Path, count: int) -> None:
    journal = opened(folder)
    number = journal.price_no("gpt-4", PRICE.as_json)
    for _ in range(count):
        reserved = reservation(journal)
        journal.reserve(reserved)
        journal.settle(replace(settlement(reserved.seq, COST), price=number))
    journal.adjust(Adjusted(journal.next_seq(), 1_700_000_200.0, 1, -5, "invoice"))
    last = journal.reserve(reservation(journal))
    await committed(journal, last)
    await journal.close()


@pytest.fixture
def books(database: Database, tmp_path: Path) -> Database:
    database.migrate()
    on_a_loop(write)(tmp_path / "journal" / "worker-0", 30)
    Intake(database, tmp_path / "journal", "USD", wall=lambda: 1_700_000_300.0).sweep()
    return database


def spoil(database: Database, change: str) -> None:
    """As somebody does who knows how to get at the tables."""
    with database.write() as connection:
        for table in ("entries", "adjustments"):
            if database.sqlite:
                connection.execute(text(f"DROP TRIGGER {table}_no_update"))
            else:
                connection.execute(text(f"ALTER TABLE {table} DISABLE TRIGGER ALL"))
        connection.execute(text(change))


def test_books_that_are_right(books: Database, tmp_path: Path) -> None:
    found = verify(books, tmp_path / "journal")
    assert [c.differences for c in found.checks if c.count] == []
    assert (found.entries, found.cost, found.adjusted, found.open) == (30, 30 * COST, -5, 1)
    assert found.tokens.total == 30 * 120
    not_looked_at = [check.name for check in found.checks if not check.looked_at]
    assert not_looked_at == ["hours of engines: allocated and idle against their bills"]  # tests of these have some


def test_sums_are_made_for_books_from_before_there_were_these(books: Database, tmp_path: Path) -> None:
    def sums() -> list[tuple[Any, ...]]:
        with books.read() as connection:
            tables = (account_rollups, use_rollups, uses, service_rollups, services)
            found = [connection.execute(select(table)).all() for table in tables]
        return [tuple(row) for rows in found for row in rows]

    kept = sums()
    config = Config()
    config.set_main_option("script_location", str(SCRIPTS))
    config.set_main_option("path_separator", "os")
    with books.write() as connection:
        config.attributes["connection"] = connection
        command.downgrade(config, "0005")
        four_hours = select(func.sum(rollups.c.attempts)).where(rollups.c.grain == 14_400)
        assert connection.execute(four_hours).scalar() == 30
    books.migrate()
    assert sums() == kept
    found = verify(books, tmp_path / "journal")
    assert [c.differences for c in found.checks if c.count] == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("UPDATE entries SET cost = cost + 7 WHERE seq = 3", "the sum lacks cost +7"),
        ("UPDATE entries SET cost = cost + 7 WHERE seq = 3", f"1/3: costs {COST + 7}, but {COST} by p"),
        ("UPDATE entries SET cost = cost + 7 WHERE seq = 3", f"3 costs {COST} in the journal, {COST + 7} booked"),
        ("UPDATE entries SET seq = 900 WHERE seq = 3", "attempt 3 is settled in the journal, and not in the database"),
        ("UPDATE rollups SET kv = 1 WHERE grain = 86400", "24 h from 2023-11-14 00:00 UTC, dimension 1, exact ok"),
        ("UPDATE rollups SET requests = 0 WHERE grain = 3600", "the sum lacks requests +30"),
        (
            "UPDATE account_rollups SET succeeded = 0 WHERE grain = 900",
            "15 min from 2023-11-14 22:15 UTC, account 1: the",
        ),
        ("UPDATE use_rollups SET exact = 31 WHERE grain = 3600", "1 h from 2023-11-14 22:00 UTC, use 1: the sum lacks"),
        (
            "UPDATE service_rollups SET output = 0 WHERE grain = 900",
            "15 min from 2023-11-14 22:15 UTC, service 1, exact ok: the sum lacks output +600",
        ),
        (
            "UPDATE service_rollups SET adjusted = 0 WHERE grain = 3600",
            "service 1, exact ok: the sum lacks adjusted -5",
        ),
        ("DELETE FROM service_rollups WHERE grain = 86400", "24 h from 2023-11-14 00:00 UTC, service 1, exact ok"),
        ("UPDATE dimensions SET tier = 'other'", "dimension 1 counts to another use than it says"),
        ("UPDATE dimensions SET service_id = NULL", "dimension 1 counts to another service than it says"),
        ("UPDATE adjustments SET adjusts = 77", "adjusts 77, which is not there"),
        ("UPDATE reservations SET seq = 4", "1/4 is open, and settled"),
        ("UPDATE prices SET price = '{}'", "cannot be read"),
        ("UPDATE journals SET next_seq = 20", "was not read of yet"),
    ],
)
def test_every_kind_of_difference_is_named(books: Database, tmp_path: Path, change: str, said: str) -> None:
    spoil(books, change)
    found = verify(books, tmp_path / "journal")
    assert found.differences
    assert any(said in difference for check in found.checks for difference in check.differences)


def test_the_command_says_what_was_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    database = Database("", tmp_path)
    database.migrate()
    on_a_loop(write)(tmp_path / "journal" / "worker-0", 2)
    command = ["ledger", "status", "--state-dir", str(tmp_path)]
    assert run(command) == 0
    assert "not booked" in capsys.readouterr().out
    Intake(database, tmp_path / "journal", "USD", wall=lambda: 1_700_000_300.0).sweep()
    assert run([*command, "--json"]) == 0
    (journal,) = json.loads(capsys.readouterr().out)
    assert (journal["behind"], journal["records"], journal["open"], journal["why"]) == (0, 0, 1, "")
    command[1] = "verify"
    assert run(command) == 0
    said = capsys.readouterr().out
    assert "2 entries (2 exact): 0.0032 USD" in said
    assert "together 0.003199995 USD, 240 tokens" in said
    assert "ok      sums by dimension and 1 h against the entries: 1 looked at" in said
    spoil(database, "UPDATE entries SET cost = cost + 7 WHERE seq = 1")
    database.close()
    assert run([*command, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["differences"] == 6


def test_the_command_reads_while_another_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Database("", tmp_path).migrate()
    other = sqlite3.connect(database_file(tmp_path), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    assert run(["ledger", "verify", "--state-dir", str(tmp_path)]) == 0
    capsys.readouterr()
    assert run(["ledger", "verify", "--state-dir", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["adjusted"] == "0.00"  # not 0E-9
    other.close()


def test_the_command_without_a_database(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["ledger", "verify", "--state-dir", str(tmp_path)]) == 69
    assert "there is no database" in capsys.readouterr().err
