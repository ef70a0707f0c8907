"""The book: what journals say, booked into the database exactly once.

Theory of operation. `ingest` reads a run of one journal's records and does in one transaction: settle (a reservation's
row goes, an entry's comes), add up (rollups), and remember the position up to which that is done. A record at or before
that position changes nothing, and neither does an attempt that is booked already. So whoever reads a segment twice, or
beside another process, adds nothing. Those who book take turns: SQLite has one writer, PostgreSQL an advisory lock.
An attempt that is reserved and settled in one run never has a reservation's row.

What its own process never settled is settled by `expire`, by what was delivered. If the true settlement comes after
all, the difference is booked as an adjustment; the entry stays as it is. Calls block, and raise DatabaseError.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, Final

from sqlalchemy import Connection, insert, or_, select, text, update

from forebay.ledger.database import Database
from forebay.ledger.entries import Began, Record
from forebay.ledger.names import Names
from forebay.ledger.run import Estimate, Ingested, JournalState, Run, WrongCurrency
from forebay.ledger.schema import journal_names, journals, reservations
from forebay.ledger.texts import clean

__all__ = ["Book", "Estimate", "Ingested", "WrongCurrency"]

_LOCK: Final = 0x666F726562617A  # the advisory lock of those who book
_TURN: Final = text(
    "SELECT set_config('idle_in_transaction_session_timeout', '30s', true),"
    " set_config('synchronous_commit', CASE s WHEN 'off' THEN 'on' ELSE s END, true), pg_advisory_xact_lock(:n)"
    " FROM current_setting('synchronous_commit') AS s"
)
"""One that hangs must not hold up the others for ever. What was committed lets segments of journals be removed, so it
must be on the server's disk, whatever the server's default."""
MOST_JOURNALS: Final = 1_024
"""Whose names are kept in memory."""


class _Undo(Exception):
    """Ends a transaction that is only tried."""


class Copied(Exception):
    """Two hosts write journals of one owner: what the second one has would be taken for booked."""


class Book:
    """The book of one database, in one currency. For one thread."""

    def __init__(self, database: Database, currency: str) -> None:
        self._database = database
        self.currency = currency
        self._names = Names()
        self._journals: dict[str, JournalState] = {}

    def position(self, owner: str) -> int:
        """Up to which record this journal is booked; 0: nothing is."""
        with self._database.read() as connection:
            found = connection.execute(select(journals.c.position).where(journals.c.owner == owner)).scalar()
        return int(found or 0)

    def check(self, owner: str, began: Began) -> None:
        """That a segment is the one that is booked. Raises Copied."""
        with self._database.read() as connection:
            query = select(journals.c.segment, journals.c.boot).where(journals.c.owner == owner)
            found = connection.execute(query).one_or_none()
        if found is not None:
            _compare(owner, began, found.segment, found.boot)

    def ingest(
        self, owner: str, records: Iterable[tuple[int, Record]], now: float, began: Began | None = None
    ) -> Ingested:
        """Book (position, record)s in the order of the journal: whole groups of it, whose records share a position; the
        caller bounds their number. `began`: of the segment that they begin in. Raises WrongCurrency, Copied, and what
        `records` raises; nothing is booked then."""
        with self._writing() as connection:
            journal = self._journal(connection, owner, now)
            if began is not None:
                _compare(owner, began, journal.segment, journal.boot)
            run = Run(connection, self._names, journal, self.currency, now)
            run.read(records)
            run.book()
        if len(self._journals) >= MOST_JOURNALS:
            self._journals.clear()
        self._journals[owner] = journal
        return run.done

    def beat(self, owners: Sequence[str], now: float) -> None:
        """The hosts of these journals live."""
        with self._writing() as connection:
            connection.execute(update(journals).where(journals.c.owner.in_(owners)).values(seen=now))

    def expire(self, now: float, *, silent: float, grace: float, estimate: Estimate, most: int = 5_000) -> int:
        """Settle as estimated what nobody else will; returns how many, `most` at most: there may be more then.

        That is what a journal reserved in an earlier boot, `grace` seconds after the next one was read of, and what is
        open in a journal whose host has said nothing for `silent` seconds.
        """
        gone = or_(
            journals.c.seen < now - silent,
            (reservations.c.boot != journals.c.boot) & (journals.c.booted < now - grace),
        )
        query = select(reservations, journals.c.owner).join(journals).where(gone).limit(most)
        with self._writing() as connection:
            found = connection.execute(query).all()
            by_owner: dict[str, list[Any]] = {}
            for row in found:
                by_owner.setdefault(row.owner, []).append(row)
            for owner, rows in by_owner.items():
                run = Run(connection, self._names, self._journal(connection, owner, now), self.currency, now)
                run.survive(rows, estimate)
                run.book()
        return len(found)

    @contextmanager
    def writing(self) -> Iterator[tuple[Connection, Names]]:
        """A transaction of one whose turn it is to book."""
        with self._writing() as connection:
            yield connection, self._names

    @contextmanager
    def trial(self) -> Iterator[tuple[Connection, Names]]:
        """As `writing`, but nothing stays of it."""
        with suppress(_Undo), self._writing() as connection:
            yield connection, self._names
            raise _Undo

    def reading(self) -> AbstractContextManager[Connection]:
        return self._database.read()

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        try:
            with self._database.write() as connection:
                if not self._database.sqlite:
                    connection.execute(_TURN, {"n": _LOCK})
                yield connection
        except BaseException:
            self._names.forget()  # of rows that were not made after all
            self._journals.clear()
            raise

    def _journal(self, connection: Connection, owner: str, now: float) -> JournalState:
        row = connection.execute(select(journals).where(journals.c.owner == owner)).one_or_none()
        if row is None:
            first = {"boot": "", "booted": now, "segment": 0, "position": 0, "next_seq": 1, "seen": now}
            new = insert(journals).values(owner=owner, currency=self.currency, **first).returning(journals)
            row = connection.execute(new).one()
        known = self._journals.get(owner)
        if known is not None and known.position == row.position:
            return known
        found = JournalState(row.id, row.boot, row.booted, row.segment, row.position, row.next_seq)
        names = select(journal_names).where(journal_names.c.journal_id == row.id)
        for name in connection.execute(names):
            (found.accounts if name.kind == "a" else found.prices)[name.n] = name.ref
        return found

    def __repr__(self) -> str:
        return f"<Book {self._database} in {self.currency}>"


def _compare(owner: str, began: Began, segment: int, boot: str) -> None:
    """A segment is of one boot: the same number in another one is another host's."""
    if began.segment == segment and clean(began.boot) != boot:
        raise Copied(
            f"another host writes a journal of the same name ({owner}): the state directory was copied. Stop one of "
            "the two, remove the folder journal/ from the copy, and start it again"
        )
