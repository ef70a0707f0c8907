"""Which price an engine's requests have."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from forebay.config.engine import Engine, EngineKind
from forebay.ledger.gpuhours import hosted
from forebay.ledger.pricing import Price, PriceBook


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

    __slots__ = ("_begins", "_book", "_ends", "_engine", "_hosted", "_provider")

    def __init__(self, engine: Engine, book: PriceBook) -> None:
        self._engine = engine
        self._book = book
        self._provider = provider_of(engine, book)
        self._hosted: Price | None = None
        self._begins = self._ends = 0.0

    def at(self, model: str, at: float) -> Price | None:
        """`model` by the engine's own name; `at` in seconds since the epoch. None: unpriced."""
        if self._engine.price is None:
            return self._book.lookup(model, self._provider, at)
        return self._own(at)

    def in_tier(self, model: str, at: float, tier: str) -> Price | None:
        """Likewise, where the maker's service has another tier than the ordinary one."""
        if self._engine.price is None:
            return self._book.lookup(model, self._provider, at, tier)
        return self._own(at)

    @property
    def has_tiers(self) -> bool:
        """Whether it is a maker's, so that a tier that is asked for is likely to answer."""
        known = self._engine.price is None and bool(self._provider)
        return known and self._engine.kind is not EngineKind.ANTHROPIC  # which is not asked for any

    def _own(self, at: float) -> Price | None:
        if not self._begins <= at < self._ends:
            self._begins = at // 60 * 60  # exchange rates change at whole minutes
            self._ends = self._begins + 60
            found = hosted(self._engine, self._book, at)
            if found is None or self._hosted is None or found.id != self._hosted.id:
                self._hosted = found
        return self._hosted


class Dearest:
    """Several engines' prices, where it is not known yet which of them it will be: the highest. `before`: those of
    engines that may compute the prompt for one of the others."""

    def __init__(self, prices: Iterable[Price], before: Iterable[Price] = ()) -> None:
        self._prices = tuple({price.id: price for price in prices}.values())
        self._before = tuple({price.id: price for price in before}.values())
        self._only = self._prices[0] if len(self._prices) == 1 and not self._before else None

    def most(self, prompt: int, completion: int, /) -> int:
        """As `Price.most`."""
        if self._only is not None:
            return self._only.most(prompt, completion)
        first = max((price.most(prompt, 0) for price in self._before), default=0)
        return first + max(price.most(prompt, completion) for price in self._prices)
