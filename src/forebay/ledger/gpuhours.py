"""A self-hosted engine's cost, shared out to its requests.

The engine costs H an hour. A part k of it (`kv_share`) is for its KV cache of K tokens, the rest for computing. What
one request takes of an hour is known when it ends, so it is charged at once, at the price of capacity:

    KV       k·H/3600 / K          a token held for a second
    prefill  (1 - k)·H/3600 / P    a prompt token that was computed; P: tokens/s that the engine prefills
    decode   (1 - k)·H/3600 / D    a token of the answer; D = seats / step: tokens/s that it decodes when full

Prompt tokens found in its cache are not computed and cost nothing but the memory they are held in. Of an engine that is
full all is charged; of one that is not, a part is idle. P and D are what the configuration says, so an hour can come
out dearer than H: `reconcile` then scales it down. After it, allocated + idle is the bill, to the nano-unit.

Rates are rounded down, at twelve significant digits, so that rounding allocates no more than there is.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from decimal import ROUND_DOWN, Context, Decimal
from fractions import Fraction
from typing import Final, Generic, TypeVar

from forebay.config.engine import Engine, GpuPrice
from forebay.ledger.money import NANO, rounded
from forebay.ledger.pricelists import Scale
from forebay.ledger.pricing import MILLION, Price, PriceBook, named, shown_rate

HOUR: Final = 3_600
_EXACT: Final = Context(prec=60)
_DOWN: Final = Context(prec=12, rounding=ROUND_DOWN)
_KV_SHARE: Final = Decimal("0.5")

Key = TypeVar("Key", bound=Hashable)


def hour_price(price: GpuPrice) -> Decimal:
    """Of all its GPUs, in the price's currency; exactly."""
    return _EXACT.multiply(Decimal(str(price.gpu_hour)), Decimal(price.gpus))


def hosted(engine: Engine, book: PriceBook, at: float) -> Price | None:
    """What its requests are charged at `at`. None: it has no price, or there is no rate into the ledger's currency."""
    price = engine.price
    if price is None:
        return None
    currency = price.currency or book.currency
    rate = book.rate(currency, book.currency, at)
    if rate is None:
        return None
    kv_share = Decimal(str(price.kv_share)) if price.kv_share is not None else _KV_SHARE
    if engine.kv_tokens is None:
        kv_share = Decimal(0)
    second = Fraction(hour_price(price)) / HOUR
    computing = second * (1 - Fraction(kv_share))
    prefill = computing / Fraction(str(engine.prefill_tokens_per_s))
    decode = computing * Fraction(str(engine.decode_step)) / (engine.concurrency or engine.max_num_seqs)
    prices = {"input": _per_million(prefill), "cached": Decimal(0), "output": _per_million(decode)}
    if engine.kv_tokens is not None and kv_share:
        prices["kv"] = _per_million(second * Fraction(kv_share) / engine.kv_tokens)
    return named(
        Price(
            id="",
            model=engine.name,
            provider="self-hosted",
            into=book.currency,
            scales=(Scale(prices),),
            currency=currency,
            exchange=shown_rate(rate[0]),
            exchange_since=rate[1],
            pace=(1 / engine.prefill_tokens_per_s, engine.decode_step),
            source=f"{price.gpus} GPU × {price.gpu_hour:g} {currency} an hour",
        )
    )


def _per_million(one: Fraction) -> Decimal:
    million = one * MILLION
    return _DOWN.divide(Decimal(million.numerator), Decimal(million.denominator))


def bill(price: GpuPrice, book: PriceBook, since: float, until: float) -> int | None:
    """Nano-units for its being there from `since` to `until` (seconds since the epoch), used or not, at the exchange
    rate of `since`. None: as `hosted`."""
    rate = book.rate(price.currency or book.currency, book.currency, since)
    if rate is None:
        return None
    exact = Fraction(hour_price(price)) * NANO * rate[0] * Fraction(until - since) / HOUR
    return rounded(exact.numerator, exact.denominator)


def hours(since: float, until: float) -> Iterator[tuple[float, float]]:
    """What lies between, cut at whole hours since the epoch: a clock change makes none longer or shorter."""
    while since < until:
        end = min((since // HOUR + 1) * HOUR, until)
        yield since, end
        since = end


@dataclass(frozen=True, slots=True)
class Reconciled(Generic[Key]):
    """Nano-units."""

    adjustments: dict[Key, int]
    """What to add to each one's cost, where it is not 0."""
    idle: int


def reconcile(bill: int, allocated: Mapping[Key, int], *, spread_idle: bool = False) -> Reconciled[Key]:
    """Makes allocated + adjustments + idle the bill. Where more was allocated than the bill, everybody's part of it is
    scaled down; with `spread_idle` also up. Odd nano-units go to the largest remainders. Negative costs (corrections of
    others) are left as they are."""
    shares = {key: cost for key, cost in allocated.items() if cost > 0}
    fixed = sum(cost for cost in allocated.values() if cost < 0)
    total = sum(shares.values())
    idle = bill - fixed - total
    if not total or (idle >= 0 and not spread_idle):
        return Reconciled({}, idle)
    target = max(bill - fixed, 0)
    parts = {key: divmod(cost * target, total) for key, cost in shares.items()}
    missing = target - sum(whole for whole, _ in parts.values())
    by_remainder = sorted(parts, key=lambda key: -parts[key][1])
    more = set(by_remainder[:missing])
    new = {key: whole + (key in more) for key, (whole, _) in parts.items()}
    adjustments = {key: new[key] - cost for key, cost in shares.items() if new[key] != cost}
    return Reconciled(adjustments, bill - fixed - target)
