"""Adjustments of many entries at once, that no journal says: hours of engines, invoices.

They are numbered in journals of their own, which have no records: `SOURCES`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from sqlalchemy import Connection, insert, select, update

from forebay.ledger.names import Names
from forebay.ledger.rolling import Sums
from forebay.ledger.schema import SUMS, adjustments, journals
from forebay.ledger.sql import insert_rows
from forebay.ledger.texts import clean
from forebay.ledger.tokens import KINDS

HOURS: Final = "gpu-hours"
INVOICES: Final = "invoices"
SOURCES: Final = (HOURS, INVOICES)
_ADJUSTED, _CORRECTIONS = map(SUMS.index, ("adjusted", "corrections"))
_NO_COUNTS: Final = (0,) * len(KINDS)


class Correction(NamedTuple):
    """`cost`: nano-units to be added. `at`: when it counts, the time of what it corrects."""

    dimension: int
    at: float
    cost: int
    since: float
    until: float


def source_id(connection: Connection, source: str) -> int | None:
    """Of its row of `journals`; None: nothing was corrected by it yet."""
    return connection.execute(select(journals.c.id).where(journals.c.owner == source)).scalar()


def correct(
    connection: Connection,
    names: Names,
    source: str,
    currency: str,
    reason: str,
    corrections: Iterable[Correction],
    now: float,
) -> int:
    """Book them, in a transaction of `Book.writing`, which has `names`; returns how many."""
    wanted = [one for one in corrections if one.cost]
    if not wanted:
        return 0
    row = connection.execute(select(journals.c.id, journals.c.next_seq).where(journals.c.owner == source)).one_or_none()
    if row is None:
        new = insert(journals).values(
            owner=source, boot="", booted=now, segment=0, position=0, next_seq=1, currency=currency, seen=now
        )
        row = connection.execute(new.returning(journals.c.id, journals.c.next_seq)).one()
    sums = Sums()
    rows = []
    for seq, one in enumerate(wanted, row.next_seq):
        added = sums.row(one.at, one.dimension, "", "")
        added[_ADJUSTED] += one.cost
        added[_CORRECTIONS] += 1
        what = (clean(reason), one.since, one.until)
        rows.append((row.id, seq, now, one.at, 0, one.dimension, "", "", *_NO_COUNTS, one.cost, 0, *what))
    insert_rows(connection, adjustments, rows)
    sums.write(connection, names.places(connection, sums.dimensions()))
    following = {"next_seq": row.next_seq + len(rows), "seen": now}
    connection.execute(update(journals).where(journals.c.id == row.id).values(**following))
    return len(rows)
