"""A worker's journal through hundreds of deaths, booked into SQLite and PostgreSQL: nothing lost, nothing doubled.

Run by `make campaign-journal` (N=500 deaths, SEED=1). Each life of a worker ends by SIGKILL before, within or after a
chosen call of write, fsync, rename or create, while it books; after every third the power goes off too: what was not
fsynced is gone or garbage. Between lives both databases book a part of what there is, and segments that both have are
removed. In the end every attempt that a worker was told to be on disk is an entry of both, with its cost, once; what is
estimated was under way, or not yet on disk, at some death.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console
from rich.table import Table

from forebay.ledger.database import Database
from forebay.ledger.entries import How
from forebay.ledger.journal_format import segments
from forebay.ledger.journal_read import forget
from journal_books import Ingester
from journals import POINTS, Lives, committed, cost_of, opened, power_off, reservation
from postgres_server import Postgres

CALLS = sorted({(call, when) for call, when, _ in POINTS})


async def _first(folder: Path) -> str:
    """So that the journal has a name before anybody dies."""
    journal = opened(folder, "first")
    await committed(journal, journal.reserve(reservation(journal)))
    assert await journal.close() == 0
    return journal.owner


async def _last(folder: Path) -> None:
    journal = opened(folder, "last")
    journal.recover(lambda one: (How.ESTIMATED, one.delivered))
    assert await journal.close() == 0


def run(folder: Path, books: dict[str, Ingester], owner: str, deaths: int, seed: int) -> list[str]:
    """Returns what is wrong."""
    rng = random.Random(seed)
    reserved: set[int] = set()
    settled: set[int] = set()
    unsure: set[int] = set()
    done: Counter[tuple[str, str, str]] = Counter()
    with Lives() as live:
        for life in range(deaths):
            call, when = CALLS[life % len(CALLS)]
            told = live(folder, f"boot-{life}", call, when, rng.randrange(3 if call[-1] == "e" else 25), life)
            power = life % 3 == 2
            if power:
                power_off(folder, told, rng)
            done[call, when, "power" if power else "kill"] += 1
            safe = told["committed"]
            reserved |= {seq for seq, number in told["reserved"].items() if number <= safe}
            settled |= {seq for seq, number in told["settled"].items() if number <= safe}
            unsure |= told["reserved"].keys() - {seq for seq, number in told["settled"].items() if number <= safe}
            for book in books.values():
                book.sweep(owner, rng.choice((0, 1, 5, 1000)))
            forget(folder, min(book.position for book in books.values()))
    asyncio.run(_last(folder))
    wrong: list[str] = []
    deaths_at = Table(title=f"{deaths:,} deaths")
    for name in ("call", "when", "killed", "and the power off"):
        deaths_at.add_column(name)
    for call, when in CALLS:
        deaths_at.add_row(call, when, str(done[call, when, "kill"]), str(done[call, when, "power"]))
    table = Table(title="What the books have of it")
    for name in ("books", "told safe", "entries", "exact", "estimated", "lost", "estimated wrongly", "wrong cost"):
        table.add_column(name, justify="right")
    for name, book in books.items():
        book.sweep(owner, sys.maxsize)
        entries = book.booked()
        exact = {seq for seq, (how, _) in entries.items() if how == "exact"}
        estimated = entries.keys() - exact
        lost = (reserved - entries.keys()) | (settled - exact)
        wrongly = estimated - unsure - {1}
        cost = {seq for seq in exact if entries[seq][1] != cost_of(seq)}
        counts = (len(reserved), len(entries), len(exact), len(estimated), len(lost), len(wrongly), len(cost))
        table.add_row(name, *(f"{n:,}" for n in counts))
        if lost or wrongly or cost:
            wrong.append(f"{name}: lost {sorted(lost)}, estimated wrongly {sorted(wrongly)}, wrong cost {sorted(cost)}")
        summed, rolled = book.sums()
        if summed != rolled:
            wrong.append(f"{name}: entries come to {summed}, the sums to {rolled}")
    if len({frozenset(book.booked().items()) for book in books.values()}) > 1:
        wrong.append("the books differ")
    console = Console(width=150)
    console.print(deaths_at)
    console.print(table)
    forget(folder, min(book.position for book in books.values()))
    if len(segments(folder)) != 1:
        wrong.append(f"segments {segments(folder)} are left")
    return wrong


def main() -> int:
    deaths, seed = int(os.environ.get("N") or 500), int(os.environ.get("SEED") or 1)
    began = time.monotonic()
    with ExitStack() as stack:
        here = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="campaign-journal-")))
        server = Postgres(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="forebay-pg-"))))
        stack.callback(server.close)
        folder = here / "worker-0"
        databases = {"SQLite": Database("", here), "PostgreSQL": Database(server.new(), here)}
        for database in databases.values():
            stack.callback(database.close)
        books = {name: Ingester(folder, database) for name, database in databases.items()}
        wrong = run(folder, books, asyncio.run(_first(folder)), deaths, seed)
    for line in wrong:
        print(f"wrong: {line}")
    print(f"{'FAILED' if wrong else 'nothing lost, nothing doubled'}, SEED={seed}, {time.monotonic() - began:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
