"""How far the journals are in the database, as somebody sees it who only reads."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy import func, select

from forebay.ledger.corrections import SOURCES
from forebay.ledger.database import Database
from forebay.ledger.intake import bytes_behind, journal_folders, owner_of
from forebay.ledger.journal_format import JournalError, bytes_on_disk
from forebay.ledger.journal_read import Reader
from forebay.ledger.schema import journals, reservations


@dataclass(slots=True)
class JournalStand:
    owner: str
    folder: str = ""
    """Its name in this host's state directory; "" where it is another host's."""
    bytes: int = 0
    """Of its segments."""
    behind: int = 0
    """Of these, not in the database."""
    records: int = 0
    """That makes so many records."""
    open: int = 0
    """Attempts under way, as far as they are in the database."""
    seen: str = ""
    """When its host last booked, or said that it lives; UTC."""
    why: str = ""
    """Why it cannot be read."""


def stand(database: Database, root: Path) -> list[JournalStand]:
    """The journals in folders of `root`, then those of other hosts. Raises DatabaseError, and OSError."""
    with database.read() as connection:
        query = select(journals).where(journals.c.owner.not_in(SOURCES))
        rows = {row.owner: row for row in connection.execute(query)}
        count = select(reservations.c.journal_id, func.count()).group_by(reservations.c.journal_id)
        under_way = {number: int(n) for number, n in connection.execute(count)}
    found = []
    for folder in journal_folders(root):
        one = JournalStand("", folder.name, bytes=bytes_on_disk(folder))
        found.append(one)
        try:
            one.owner = owner_of(folder)
            row = rows.get(one.owner)
            position = row.position if row is not None else 0
            one.behind = bytes_behind(folder, position)
            one.records = sum(len(batch.records) for batch in Reader(folder, position).batches())
        except JournalError as e:
            one.why = str(e)
    here = {one.owner: one for one in found}
    for owner, row in rows.items():
        if owner not in here:
            here[owner] = JournalStand(owner)
            found.append(here[owner])
        here[owner].open = under_way.get(row.id, 0)
        here[owner].seen = datetime.fromtimestamp(row.seen, UTC).isoformat(timespec="seconds")
    return found
