"""Whoever brings journals into a database."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import func, select

from forebay.ledger.book import Book
from forebay.ledger.database import Database
from forebay.ledger.entries import Reserved, Settled
from forebay.ledger.journal_read import Reader
from forebay.ledger.schema import entries, reservations, rollups


class Ingester:
    """Books what a journal holds, beginning anew at each sweep."""

    def __init__(self, folder: Path, database: Database) -> None:
        self.folder = folder
        self.database = database
        database.migrate()
        self.book = Book(self.database, "USD")
        self.reserved: set[int] = set()
        self.settled: dict[int, Settled] = {}
        """The first of each `seq`."""
        self.position = 0

    def sweep(self, owner: str, most: int) -> None:
        """`most` groups."""
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
            self.position = done.position
            if n + 1 == most:
                break

    def booked(self) -> dict[int, tuple[str, int]]:
        """(how, cost) by `seq`, when nothing is under way."""
        with self.database.read() as connection:
            found = connection.execute(select(entries.c.seq, entries.c.how, entries.c.cost)).all()
            assert connection.execute(select(reservations.c.seq)).all() == []
        return {row.seq: (row.how, row.cost) for row in found}

    def sums(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """(attempts, cost) of the entries, and of the rollups of the longest grain."""
        with self.database.read() as connection:
            single = connection.execute(select(func.count(), func.sum(entries.c.cost))).one()
            longest = select(func.max(rollups.c.grain)).scalar_subquery()
            rolled = select(func.sum(rollups.c.attempts), func.sum(rollups.c.cost)).where(rollups.c.grain == longest)
            summed = connection.execute(rolled).one()
        return (int(single[0]), int(single[1])), (int(summed[0]), int(summed[1]))
