"""All prices that a configuration has, as one book, and what about them is probably not meant."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import Final

from forebay.config.document import dotted
from forebay.config.engine import Engine
from forebay.config.models import Config
from forebay.config.problems import Problem, Severity
from forebay.errors import shown
from forebay.ledger.enginepricing import EnginePrices, provider_of
from forebay.ledger.pricefile import Entry, PriceFile, load_prices
from forebay.ledger.pricelists import Vendor
from forebay.ledger.pricing import PriceBook

CONFIGURATION: Final = "configuration"
"""Stands in a problem for the name of the configuration's file."""


def build_book(
    config: Config, now: float, *, engines: Sequence[Engine] | None = None
) -> tuple[PriceBook, list[Problem]]:
    """(prices, warnings). Reads the price file, and imports genai-prices; `engines`: where they are not those of the
    configuration; `now` in seconds since the epoch. Raises ConfigError for a price file that cannot be used."""
    from forebay.ledger.vendors import vendors

    ledger = config.ledger
    file = load_prices(ledger.prices, ledger.currency) if ledger.prices is not None else None
    own, exchange = (file.vendors(), tuple(file.exchange)) if file is not None else ((), ())
    book = PriceBook(ledger.currency, own, vendors(), exchange)
    return book, list(_cautions(config, config.engines if engines is None else engines, book, file, now))


def _cautions(
    config: Config, engines: Sequence[Engine], book: PriceBook, file: PriceFile | None, now: float
) -> Iterator[Problem]:
    if file is not None:
        yield from file.warnings
        for entry in file.entries:
            yield from _entry(config, engines, book, file, entry)
    if book.rate("USD", book.currency, now) is None:
        message = f"known prices are in USD, and no exchange rate into {book.currency} is given: they are not used"
        yield Problem(CONFIGURATION, 0, "ledger.currency", message, severity=Severity.WARNING)
    for index, engine in enumerate(engines):
        prices = EnginePrices(engine, book)
        if engine.price is not None:
            if prices.at("", now) is None:
                message = f"there is no exchange rate into {book.currency} in the price file: its requests are unpriced"
                key = f"engines[{index}].price.currency"
                yield Problem(CONFIGURATION, 0, key, message, str(engine.price.currency), severity=Severity.WARNING)
            continue
        provider = provider_of(engine, book)
        if provider and not _is_known(provider, book):
            near = get_close_matches(provider, [vendor.id for vendor in (*book.vendors, *book.own)], n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            message = f"no price list of that provider is known{hint}"
            key = f"engines[{index}].provider"
            yield Problem(CONFIGURATION, 0, key, message, f"'{provider}'", severity=Severity.WARNING)
        elif provider:
            for place, model in enumerate(engine.models):
                if prices.at(model, now) is None:
                    message = f"no price of {provider} is known for it: its requests are unpriced"
                    key = f"engines[{index}].models[{place}]"
                    yield Problem(CONFIGURATION, 0, key, message, f"'{model}'", severity=Severity.WARNING)


def _is_known(provider: str, book: PriceBook) -> bool:
    names = {vendor.id for vendor in (*book.vendors, *book.own)}
    return provider in names or any(v.names is not None and v.names.matches(provider.lower()) for v in book.vendors)


def _entry(
    config: Config, engines: Sequence[Engine], book: PriceBook, file: PriceFile, entry: Entry
) -> Iterator[Problem]:
    def caution(key: str, message: str, found: str) -> Problem:
        at = dotted((*entry.path, key))
        return Problem(file.name, entry.line, at, message, f"'{shown(found)}'", severity=Severity.WARNING)

    for currency in {period.currency for period in entry.periods}:
        first = _first_rate(book, currency)
        if first is None:
            message = f"no exchange rate into {book.currency} is given: what it prices stays unpriced"
            yield caution("currency", message, currency)
        elif entry.since is not None and first > entry.since:
            yield caution("since", f"before the first exchange rate of {currency}: until that, it prices nothing", "")
    providers = {provider_of(engine, book) for engine in engines}
    if entry.provider and not _is_a_vendor(entry.provider, book.vendors) and entry.provider not in providers:
        near = get_close_matches(entry.provider, [vendor.id for vendor in book.vendors] + sorted(providers), n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        yield caution("provider", f"no engine is of this provider, and it is none that is known{hint}", entry.provider)
        return
    why = _never_asked(config, engines, book, entry)
    if why:
        yield caution("model", why, entry.name)


def _is_a_vendor(provider: str, vendors: Sequence[Vendor]) -> bool:
    return any(vendor.id == provider for vendor in vendors)


def _first_rate(book: PriceBook, currency: str) -> float | None:
    """Since when it can be converted."""
    if currency == book.currency:
        return float("-inf")
    found = [
        one.since if one.since is not None else float("-inf")
        for one in book.exchange
        if {one.of, one.into} == {currency, book.currency}
    ]
    return min(found, default=None)


def _never_asked(config: Config, engines: Sequence[Engine], book: PriceBook, entry: Entry) -> str:
    """Why a name looks as if no request would be priced by it; "" where it does not."""
    name = entry.name.lower()
    mine = [e for e in engines if e.price is None and entry.provider in ("", provider_of(e, book))]
    served = sorted({model for engine in mine for model in engine.models})
    sellers = [v for v in book.vendors if entry.provider in ("", v.id)]
    listed = {listed.model for vendor in sellers for listed in vendor.models}
    if name.endswith("*"):
        if any(one.lower().startswith(name[:-1]) for one in (*served, *listed)):
            return ""
    elif name in {one.lower() for one in (*served, *listed)}:
        return ""
    else:
        for model, settings in config.models.items():
            if name in {alias.lower() for alias in settings.aliases}:
                return f"an alias: prices are by the engine's own name, {shown(model)}"
    near = get_close_matches(name.rstrip("*"), served, n=2, cutoff=0.8) or get_close_matches(
        name.rstrip("*"), listed, n=2, cutoff=0.85
    )
    if near:
        return f"no engine lists this model, nor does a known price list; did you mean {' or '.join(near)}?"
    if any(True for vendor in sellers for _ in vendor.matching(name)):
        return ""
    if mine and all(engine.models for engine in mine):
        return "no engine lists this model, nor does a known price list"
    return ""
