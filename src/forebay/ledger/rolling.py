"""What is to be added to the rollups."""

from __future__ import annotations

from operator import add
from typing import Any

from forebay.ledger.schema import GRAINS, HOUR, SUMS


class Sums:
    """Made of `entries` and `adjustments`, in a run of them."""

    def __init__(self) -> None:
        self._by: dict[tuple[int, int, str, str], list[int]] = {}

    def row(self, at: float, dimension: int, how: str, outcome: str) -> list[int]:
        key = (int(at) // HOUR * HOUR, dimension, how, outcome)
        found = self._by.get(key)
        if found is None:
            found = self._by[key] = [0] * len(SUMS)
        return found

    def hours(self) -> set[int]:
        """Hours that are added to: when they begin."""
        return {key[0] for key in self._by}

    def rows(self) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = []
        finer = self._by
        for grain in reversed(GRAINS):
            if grain != HOUR:
                coarser: dict[tuple[int, int, str, str], list[int]] = {}
                for (slot, dimension, how, outcome), sums in finer.items():
                    key = (slot // grain * grain, dimension, how, outcome)
                    before = coarser.get(key)
                    coarser[key] = sums if before is None else list(map(add, before, sums))
                finer = coarser
            rows += [(grain, *key, *sums) for key, sums in sorted(finer.items())]  # sorted: neighbours on a page
        return rows
