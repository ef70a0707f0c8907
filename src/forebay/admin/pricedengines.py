"""Which engines with a GPU-hour price there are: of the configuration, of its watched file, and added live."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from forebay.admin.engines import Engines as Live
from forebay.admin.view import GatewayState
from forebay.config.engine import Discover, Engine, GpuPrice
from forebay.config.problems import ConfigError
from forebay.ledger.pricing import PriceBook
from forebay.state.live import entry_of

if TYPE_CHECKING:  # SQLAlchemy: imported on the thread
    from forebay.ledger.enginehours import Engines


class PricedEngines:
    """Called on the ledger's thread: it only reads what is replaced as a whole. Mutable state: `prices`, set at each
    reload, and the entries added live as they were last read."""

    def __init__(self, state: GatewayState, live: Live, prices: str) -> None:
        self._state = state
        self._live = live
        self._read: tuple[int, tuple[Engine, ...]] = (-1, ())
        self.prices = PriceBook.from_json(prices)

    def __call__(self) -> Engines:
        from forebay.ledger.enginehours import Engines

        found: dict[str, GpuPrice] = {}
        seen: list[str] | None = None
        for engine in (*self._state.config.engines, *self._added()):
            if engine.price is None:
                continue
            if engine.discover is Discover.NO:
                found[engine.name] = engine.price
                continue
            if seen is None:
                seen = [view.name for view in self._state.engines()]
            found.update((name, engine.price) for name in seen if name.startswith(f"{engine.name}@"))
        return Engines(found, self.prices)

    def _added(self) -> tuple[Engine, ...]:
        live = self._live.live
        if self._read[0] != live.version:
            self._read = (live.version, tuple(one for fields in live.engines.values() for one in _entry(fields)))
        return self._read[1]

    def __repr__(self) -> str:
        return f"<PricedEngines {len(self._state.config.engines)} configured>"


def _entry(fields: dict[str, Any]) -> tuple[Engine, ...]:
    try:
        return (entry_of(fields, os.environ),)
    except ConfigError:
        return ()  # `Engines` has said so, and the workers do not have it
