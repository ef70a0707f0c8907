"""Which price an engine's requests have."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from forebay.config.engine import Engine, EngineKind
from forebay.ledger.gpuhours import hosted
from forebay.ledger.pricing import Price, PriceBook
from forebay.ledger.tariff import Costly, Tariff


def provider_of(engine: Engine, book: PriceBook) -> str:
    """Whose price list counts for it; "" for nobody's."""
    if engine.provider is not None:
        return engine.provider
    found = book.provider_of(engine.url)
    return found or ("anthropic" if engine.kind is EngineKind.ANTHROPIC else "")


ORDINARY: Final = frozenset({"", "auto", "default", "standard", "on_demand"})
"""Names by which makers call the tier that their list prices are of, or leave its choice to themselves."""


class EnginePrices:
    """One engine's prices. Mutable state: where it has its own, the last and the minute it is good for."""

    __slots__ = ("_begins", "_book", "_ends", "_engine", "_has_own", "_hosted", "_provider", "has_tiers")

    def __init__(self, engine: Engine, book: PriceBook) -> None:
        self._engine = engine
        self._book = book
        self._provider = provider_of(engine, book)
        self._hosted: Price | None = None
        self._begins = self._ends = 0.0
        self._has_own = engine.price is not None
        self.has_tiers = not self._has_own and bool(self._provider) and engine.kind is not EngineKind.ANTHROPIC
        """Whether it is a maker's, so that a tier that is asked for is likely to answer. Anthropic is not asked for
        any."""

    def at(self, model: str, at: float) -> Price | None:
        """`model` by the engine's own name; `at` in seconds since the epoch. None: unpriced."""
        if not self._has_own:
            return self._book.lookup(model, self._provider, at)
        return self._own(at)

    def in_tier(self, model: str, at: float, tier: str) -> Price | None:
        """Likewise, where the maker's service has another tier than the ordinary one."""
        if not self._has_own:
            return self._book.lookup(model, self._provider, at, tier)
        return self._own(at)

    def _own(self, at: float) -> Price | None:
        if not self._begins <= at < self._ends:
            self._begins = at // 60 * 60  # exchange rates change at whole minutes
            self._ends = self._begins + 60
            found = hosted(self._engine, self._book, at)
            if found is None or self._hosted is None or found.id != self._hosted.id:
                self._hosted = found
        return self._hosted


class Dearest(Costly):
    """Several engines' prices, where it is not known yet which of them it will be: the highest. `before`: those of
    engines that may compute the prompt for one of the others."""

    __slots__ = ("_before", "_only", "_tariffs")

    def __init__(self, prices: Iterable[Price], before: Iterable[Price] = ()) -> None:
        self._tariffs = _tariffs(prices)
        self._before = _tariffs(before)
        self._only = self._tariffs[0] if len(self._tariffs) == 1 and not self._before else None

    def most(self, prompt: int, completion: int, /) -> int:
        """As `Price.most`."""
        only = self._only
        if only is not None:
            return only.most(prompt, completion)
        first = most = 0
        for tariff in self._before:
            first = max(first, tariff.most(prompt, 0))
        for tariff in self._tariffs:
            most = max(most, tariff.most(prompt, completion))
        return first + most


def _tariffs(prices: Iterable[Price]) -> tuple[Tariff, ...]:
    return tuple([price.tariff for price in {price.id: price for price in prices}.values()])
