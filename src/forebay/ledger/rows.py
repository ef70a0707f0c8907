"""Rows before they are written: texts and numbers that fit their columns."""

from __future__ import annotations

from typing import Final

from msgspec.structs import astuple, replace

from forebay.ledger.entries import Reserved, Settled
from forebay.ledger.texts import clean
from forebay.ledger.tokens import MOST_TOKENS, Tokens

MOST_COST: Final = 1 << 53
"""Nano-units of one line: nine million units. Sums of such lines fit their columns."""
_FAR: Final = 32_503_680_000.0  # the year 3000


def sound_call(call: Reserved) -> Reserved:
    """With what fits its columns: one bad record must not hold up a journal."""
    if (
        0.0 <= call.at <= _FAR
        and "\0" not in call.id
        and 0 <= call.prompt <= MOST_TOKENS
        and 0 <= call.most <= MOST_TOKENS
        and -MOST_COST <= call.held <= MOST_COST
    ):
        return call
    return replace(
        call,
        at=moment(call.at),
        id=clean(call.id),
        prompt=min(max(call.prompt, 0), MOST_TOKENS),
        most=min(max(call.most, 0), MOST_TOKENS),
        held=money(call.held),
    )


def sound(settled: Settled) -> Settled:
    """Likewise, but for its tokens (`counts_of`)."""
    cost = settled.cost
    if (
        0.0 <= settled.at <= _FAR
        and 0.0 <= settled.ttft <= _FAR
        and 0.0 <= settled.seconds <= _FAR
        and 0 <= settled.kv <= MOST_COST
        and -MOST_COST <= settled.avoided <= MOST_COST
        and (cost is None or -MOST_COST <= cost <= MOST_COST)
        and "\0" not in settled.outcome
        and "\0" not in settled.note
    ):
        return settled
    return replace(
        settled,
        at=moment(settled.at),
        ttft=seconds_of(settled.ttft),
        seconds=seconds_of(settled.seconds),
        kv=kv_of(settled.kv),
        avoided=money(settled.avoided),
        cost=None if cost is None else money(cost),
        outcome=clean(settled.outcome),
        note=clean(settled.note),
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
    for n in counts:
        if not 0 <= n <= MOST_TOKENS:
            return tuple([min(max(n, 0), MOST_TOKENS) for n in counts])
    return counts


def kv_of(kv: int) -> int:
    """Token-seconds."""
    return min(max(kv, 0), MOST_COST)
