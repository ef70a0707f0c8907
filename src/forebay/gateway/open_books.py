"""The books of a worker at its start, with the journal that it finds.

Not compiled, so that tests can put another journal in here."""

from __future__ import annotations

import asyncio
import logging
import secrets

from forebay.config.models import Config
from forebay.gateway.booking import Booking
from forebay.ledger.journal import Journal
from forebay.ledger.journal_format import JournalCorrupt
from forebay.ledger.journal_read import last_number
from forebay.ledger.pricing import PriceBook
from forebay.state.messages import journal_folder

log = logging.getLogger("forebay.worker")


def open_books(config: Config, prices: PriceBook, index: int, loop: asyncio.AbstractEventLoop) -> Booking:
    """With what an earlier life of this worker left open settled. Blocks for a moment. Raises JournalError.

    A segment that is damaged is set aside, for somebody to look at: a gateway that does not start serves nobody."""
    section, folder = config.ledger, journal_folder(config.state_dir, index)

    def journal() -> Journal:
        return Journal.open(
            folder,
            currency=section.currency,
            boot=secrets.token_hex(8),
            limit_bytes=section.journal_bytes,
            loop=loop,
            on_committed=lambda position: booking.committed(position),
        )

    lived, opened = folder.exists() and last_number(folder) > 0, None
    while opened is None:  # at most once a segment
        try:
            opened = journal()
        except JournalCorrupt as e:
            if (aside := e.give_up()) is None:
                raise
            log.error("%s. It is set aside as %s", e, aside)
    booking = Booking(section, opened, prices, loop)
    booking.lived = lived
    orphans = booking.recover()
    if orphans:
        log.warning("%d attempts were under way when this worker last ended; they are settled as estimated", orphans)
    return booking
