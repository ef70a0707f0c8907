"""A price for a part of a request."""

from __future__ import annotations

from decimal import Decimal

from msgspec.structs import replace

from forebay.ledger.pricelists import Scale
from forebay.ledger.pricing import Price, named


def leg_price(price: Price, prompt: int, *, request: bool) -> Price:
    """`price` for one leg of a request of so many prompt tokens: its tier is the whole request's, of whose tokens a leg
    has only some, and only the leg with `request` costs what each request does."""
    known: dict[str, Decimal] = {}
    for scale in price.scales:
        if not scale.above or prompt > scale.above:
            known |= scale.prices
    if not request:
        known.pop("request", None)
    if len(price.scales) == 1 and known == price.scales[0].prices:
        return price
    return named(replace(price, id="", scales=(Scale(known),)))
