"""Which engine gets a request. Pure: the candidates come in, one of them goes out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Placement(Protocol):
    """The interface every placement fills."""

    def choose(self, model: str, candidates: Sequence[str], now: float) -> str | None:
        """One of `candidates` (engine names, healthy, able to serve `model`, not yet tried for this request), or None
        where none should be used. `now` is monotonic seconds."""
        ...


class RoundRobin:
    """Each model's engines in turn. Mutable state: a turn count a model, at most `bound` of them."""

    def __init__(self, bound: int = 4096) -> None:
        self._bound = bound
        self._turns: dict[str, int] = {}

    def choose(self, model: str, candidates: Sequence[str], now: float) -> str | None:
        if len(candidates) < 2:
            return candidates[0] if candidates else None
        turns = self._turns
        turn = turns.get(model, 0)
        if turn == 0 and len(turns) >= self._bound:
            turns.clear()
        turns[model] = turn + 1
        return candidates[turn % len(candidates)]

    def __repr__(self) -> str:
        return f"<RoundRobin {self._turns}>"
