"""Money as whole nano-units: 1 = 10⁻⁹ of the ledger's currency.

Prices are decimals per million tokens, so a price of 1 is 1,000 nano-units a token, exactly. A settlement line is
summed exactly and rounded once, half to even.
"""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Decimal, localcontext
from typing import Final

NANO: Final = 1_000_000_000
"""Nano-units in one unit of currency."""
MOST: Final = 1 << 62
"""More nano-units than any account holds (4.6 billion units): what a 64-bit column takes, with room to add."""


def rounded(numerator: int, denominator: int) -> int:
    """`numerator / denominator`, half to even; `denominator` > 0."""
    whole = numerator // denominator
    twice = 2 * (numerator - whole * denominator)
    if twice > denominator or (twice == denominator and whole & 1):
        return whole + 1
    return whole


def nano(amount: Decimal) -> int:
    """An amount in units of currency as nano-units, half to even."""
    with localcontext() as context:
        context.prec = 60
        return int((amount * NANO).to_integral_value(ROUND_HALF_EVEN))


def units(nanos: int) -> Decimal:
    """Nano-units as units of currency, exactly."""
    return Decimal(nanos).scaleb(-9)


def shown_money(nanos: int, currency: str) -> str:
    """For people: at least two digits behind the point, and as many as are needed to lose nothing."""
    whole, rest = divmod(abs(nanos), NANO)
    digits = f"{rest:09d}".rstrip("0").ljust(2, "0")
    return f"{'-' if nanos < 0 else ''}{whole:,}.{digits} {currency}"
