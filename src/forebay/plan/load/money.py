"""What a run cost: by a price a token, by the hours of the GPUs behind it, or by what the gateway booked.

A valid request is one that completed within the SLO; without an SLO, one that completed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from time import monotonic, time
from typing import Any, Final

import msgspec

from forebay.config.problems import ConfigError
from forebay.errors import shown
from forebay.ledger.money import units
from forebay.ledger.pricefile import load_prices
from forebay.ledger.pricelists import Scale
from forebay.ledger.pricing import Price, PriceBook
from forebay.ledger.tokens import Tokens
from forebay.plan.load.result import Result
from forebay.plan.load.run import Cost
from forebay.plan.target import LoadError, Target, page

CURRENCY: Final = "USD"
BOOKED_WITHIN: Final = 15.0
"""Seconds that the gateway has to book the run's last request."""
LOOK_AGAIN: Final = 1.1
"""Seconds; the gateway keeps its answer for one."""
MOST_KEYS: Final = 50
"""Keys whose usage is asked for."""


def price_of(path: str, model: str, provider: str = "") -> Price:
    """A model's price in a price file, now. Raises LoadError that says what is missing."""
    try:
        file = load_prices(Path(path), CURRENCY)
    except ConfigError as e:
        raise LoadError(str(e)) from None
    found = PriceBook(CURRENCY, file.vendors(), (), tuple(file.exchange)).lookup(model, provider, time())
    if found is None:
        of = f" of {shown(provider)}" if provider else ""
        raise LoadError(
            f"{shown(path)} has no price for the model '{shown(model)}'{of} that is in force now: add one, or give "
            "--price INPUT/OUTPUT"
        )
    return found


def price_from(text: str, model: str) -> Price:
    """Out of `INPUT/OUTPUT` or `INPUT/OUTPUT/CACHED`, US dollars a million tokens. Raises LoadError."""
    try:
        amounts = [Decimal(part) for part in text.split("/")]
    except InvalidOperation:
        amounts = []
    if not 2 <= len(amounts) <= 3 or not all(amount.is_finite() and 0 <= amount <= 1_000_000 for amount in amounts):
        raise LoadError(
            f"--price is '{shown(text)}'; wanted is INPUT/OUTPUT or INPUT/OUTPUT/CACHED, US dollars a million"
        )
    kinds = dict(zip(("input", "output", "cached"), amounts, strict=False))
    return Price("given", model, "", CURRENCY, (Scale(kinds),))


def by_tokens(price: Price) -> Cost:
    def cost(prompt: int, cached: int, output: int) -> int | None:
        cached = min(cached, prompt)
        return price.cost(Tokens(input=prompt - cached, cached=cached, output=output))

    return cost


def statement(
    result: Result, price: Price | None, gpu_hour: float | None, booked: Booked | None
) -> dict[str, Any] | None:
    """Amounts in `currency`; None where nothing says what anything costs."""
    found = []
    if price is not None:
        note = f"{result.unpriced:,} requests have tokens without a price" if result.unpriced else ""
        found.append(_by("tokens", units(result.cost), result, note))
    if gpu_hour is not None:
        spent = Decimal(repr(gpu_hour)) * Decimal(repr(result.seconds)) / 3600
        found.append(_by("GPU hours", spent, result, f"{gpu_hour:g} an hour for {result.seconds:.1f} s"))
    if booked is not None:
        found.append(_by("the gateway's ledger", booked.amount, result, booked.note))
    if not found:
        return None
    currency = price.into if price is not None else booked.currency if booked is not None else CURRENCY
    return {"currency": currency, "valid_requests": result.good, "by": found}


def _by(name: str, amount: Decimal, result: Result, note: str) -> dict[str, Any]:
    total, output = float(amount), result.output_tokens
    return {
        "name": name,
        "total": _amount(total),
        "per_valid_request": _amount(total / result.good) if result.good else None,
        "per_million_output_tokens": _amount(total / output * 1e6) if output else None,
        "note": note,
    }


def _amount(x: float) -> float:
    return float(f"{x:.6g}")


# --- what the gateway booked -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Booked:
    amount: Decimal
    currency: str
    note: str = ""


class _Period(msgspec.Struct):
    since: str = ""
    requests: int = 0
    succeeded: int = 0
    cost: str | None = None
    unpriced: int = 0


class _Periods(msgspec.Struct):
    month: _Period


class _Usage(msgspec.Struct):
    object: str
    periods: _Periods
    currency: str = CURRENCY


class Books:
    """A gateway's own sums of some keys, before a run and after it."""

    def __init__(self, target: Target, keys: Collection[str]) -> None:
        """Raises LoadError for more than MOST_KEYS keys, or none."""
        self._target = target
        self._keys = tuple(dict.fromkeys(keys))
        if not self._keys:
            raise LoadError("--gateway-cost asks the gateway by key; set FOREBAY_API_KEY or give --keys")
        if len(self._keys) > MOST_KEYS:
            raise LoadError(f"--gateway-cost asks for at most {MOST_KEYS} keys, not {len(self._keys):,}")
        self._before: list[_Usage] = []

    async def open(self) -> None:
        """Raises LoadError where the server has no such books."""
        self._before = await self._read()

    async def close(self, completed: int) -> Booked:
        """Waits until as many requests are booked. Raises LoadError."""
        end = monotonic() + BOOKED_WITHIN
        while True:
            now = await self._read()
            pairs = list(zip(self._before, now, strict=True))
            new = sum(b.periods.month.succeeded - a.periods.month.succeeded for a, b in pairs)
            if new >= completed or monotonic() > end:
                break
            await asyncio.sleep(LOOK_AGAIN)
        if any(a.periods.month.since != b.periods.month.since for a, b in pairs):
            raise LoadError("the gateway's month turned during the run, so that its sums cannot be compared")
        amount = sum((_cost(b) - _cost(a) for a, b in pairs), Decimal(0))
        notes = []
        if new < completed:
            notes.append(f"{completed - new:,} of {completed:,} requests were not booked within {BOOKED_WITHIN:g} s")
        elif new > completed:
            notes.append(f"these keys completed {new - completed:,} other requests meanwhile")
        if unpriced := sum(b.periods.month.unpriced - a.periods.month.unpriced for a, b in pairs):
            notes.append(f"{unpriced:,} requests have no price there")
        return Booked(amount, now[0].currency, "; ".join(notes))

    async def _read(self) -> list[_Usage]:
        return [await self._one(key) for key in self._keys]

    async def _one(self, key: str) -> _Usage:
        status, body = await page(self._target, "/v1/usage", key)
        try:
            found = msgspec.json.decode(body, type=_Usage) if status == 200 else None
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            found = None
        if found is None or found.object != "usage":
            raise LoadError(
                f"{self._target.origin} answered {status} to GET {self._target.prefix}/v1/usage, and no usage: "
                "--gateway-cost needs Forebay with its ledger"
            )
        return found


def _cost(usage: _Usage) -> Decimal:
    return Decimal(usage.periods.month.cost or 0)
