"""Rows before they are written: attempts under way, and numbers that fit their columns."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec.structs import astuple

from forebay.ledger.tokens import MOST_TOKENS, Tokens

MOST_COST: Final = 1 << 53
"""Nano-units of one line: nine million units. Sums of such lines fit their columns."""
_FAR: Final = 32_503_680_000.0  # the year 3000


class Attempt(msgspec.Struct, gc=False):
    """An attempt under way: as `reservations`."""

    request: int
    reserved: float
    request_id: str
    dimension: int
    end_user: str | None
    labels: str | None
    prompt: int
    most: int
    held: int
    price: int | None
    boot: str
    progress: int = 0
    stored: bool = False


def stored(row: Any) -> Attempt:
    return Attempt(
        row.request,
        row.reserved,
        row.request_id,
        row.dimension_id,
        row.end_user,
        row.labels,
        row.prompt,
        row.most,
        row.held,
        row.price_id,
        row.boot,
        row.progress,
        True,
    )


def moment(at: float) -> float:
    """One bad time must not hold up a journal: what is no time becomes 1970, or the year 3000."""
    return at if 0.0 <= at <= _FAR else _FAR if at > _FAR else 0.0


def seconds_of(value: float) -> float:
    return value if 0.0 <= value <= _FAR else 0.0


def money(nanos: int) -> int:
    return nanos if -MOST_COST <= nanos <= MOST_COST else MOST_COST if nanos > 0 else -MOST_COST


def counts_of(tokens: Tokens) -> tuple[int, ...]:
    """In the order of KINDS, each one a number of tokens that can be."""
    counts: tuple[int, ...] = astuple(tokens)
    if min(counts) < 0 or max(counts) > MOST_TOKENS:
        counts = tuple(min(max(n, 0), MOST_TOKENS) for n in counts)
    return counts


def kv_of(kv: int) -> int:
    """Token-seconds."""
    return min(max(kv, 0), MOST_COST)
