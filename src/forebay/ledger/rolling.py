"""What is to be added to the rollups."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from operator import add
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection

from forebay.ledger.schema import (
    COARSE,
    COUNTS,
    GRAINS,
    HOUR,
    HOWS,
    QUARTER,
    SUMS,
    account_rollups,
    rollups,
    service_rollups,
    use_rollups,
)
from forebay.ledger.sql import add_rows

FULL: Final = ("ok", "hit")
"""Outcomes of attempts that were answered in full."""
_ATTEMPTS: Final = SUMS.index("attempts")
_NO_MORE: Final = (0,) * (len(COUNTS) - len(SUMS))
_SUCCEEDED: Final = COUNTS.index("succeeded")
_HOW: Final = MappingProxyType({how: COUNTS.index(how) for how in HOWS})

Key = tuple[Any, ...]
"""(slot, of what, …)"""


class Place(NamedTuple):
    """What a dimension counts to besides: rows of `accounts`, `uses` and `services`."""

    account: int
    use: int
    service: int


class Sums:
    """Made of `entries` and `adjustments`, in a run of them."""

    def __init__(self) -> None:
        self._by: dict[tuple[int, int, str, str], list[int]] = {}

    def row(self, at: float, dimension: int, how: str, outcome: str) -> list[int]:
        key = (int(at) // QUARTER * QUARTER, dimension, how, outcome)
        found = self._by.get(key)
        if found is None:
            found = self._by[key] = [0] * len(SUMS)
        return found

    def hours(self) -> set[int]:
        """Hours that are added to: when they begin."""
        return {key[0] // HOUR * HOUR for key in self._by}

    def dimensions(self) -> set[int]:
        return {key[1] for key in self._by}

    def write(self, connection: Connection, places: Mapping[int, Place]) -> None:
        """`places`: of its `dimensions`."""
        add_rows(connection, rollups, _rows(self._by, GRAINS), SUMS)
        accounts: dict[Key, list[int]] = {}
        uses: dict[Key, list[int]] = {}
        services: dict[Key, list[int]] = {}
        for (slot, dimension, how, outcome), sums in self._by.items():
            place, counts = places[dimension], [*sums, *_NO_MORE]
            if outcome in FULL:
                counts[_SUCCEEDED] = sums[_ATTEMPTS]
            if how in _HOW:  # of an adjustment, it may not be
                counts[_HOW[how]] = sums[_ATTEMPTS]
            _add(accounts, (slot, place.account), counts)
            _add(uses, (slot, place.use), counts)
            _add(services, (slot, place.service, how, outcome), sums)
        add_rows(connection, account_rollups, _rows(accounts, COARSE), COUNTS)
        add_rows(connection, use_rollups, _rows(uses, COARSE), COUNTS)
        add_rows(connection, service_rollups, _rows(services, COARSE), SUMS)


def _rows(finest: Mapping[Any, list[int]], grains: tuple[int, ...]) -> list[tuple[Any, ...]]:
    return [row for sums, grain in _by_grain(finest, grains) for row in _sorted(grain, sums)]


def _sorted(grain: int, sums: Mapping[Any, list[int]]) -> Iterator[tuple[Any, ...]]:
    """Neighbours on a page, one after the other."""
    return ((grain, *key, *counts) for key, counts in sorted(sums.items()))


def _by_grain(
    finest: Mapping[Any, list[int]], grains: tuple[int, ...]
) -> Iterator[tuple[Mapping[Any, list[int]], int]]:
    sums = finest
    for grain in reversed(grains):
        if grain != QUARTER:
            coarser: dict[Key, list[int]] = {}
            for key, counts in sums.items():
                _add(coarser, (key[0] // grain * grain, *key[1:]), counts)
            sums = coarser
        yield sums, grain


def _add(sums: dict[Key, list[int]], key: Key, counts: list[int]) -> None:
    before = sums.get(key)
    sums[key] = counts if before is None else list(map(add, before, counts))
