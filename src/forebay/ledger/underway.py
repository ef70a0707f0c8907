"""An attempt that is reserved, and not settled yet, as far as a run of records has come."""

from __future__ import annotations

from typing import Any

import msgspec

from forebay.ledger.entries import Reserved
from forebay.ledger.names import Where


class Attempt(msgspec.Struct, gc=False):
    """An attempt under way."""

    call: Reserved
    where: Where
    price: int | None
    boot: str
    progress: int = 0
    stored: bool = False
    """It is in `reservations`."""


def stored(row: Any) -> Attempt:
    """Of a row of `reservations`. What its dimension tells is not said again."""
    call = Reserved(
        row.seq,
        row.request,
        row.reserved,
        row.request_id,
        *(0, "", "", "", "", "", "", "", ()),
        row.prompt,
        row.most,
        row.held,
    )
    where = Where(row.dimension_id, row.end_user, row.labels)
    return Attempt(call, where, row.price_id, row.boot, row.progress, True)
