"""What the gateway needs of a kind of engine: one small interface, one adapter a kind.

An adapter is data and pure functions; the connections and the clock belong to whoever calls it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from forebay.errors import Outcome


@dataclass(frozen=True, slots=True)
class EngineReport:
    """What an engine's own metrics say. None stands for "not said", never for 0."""

    running: int | None = None
    """Requests in the running batch."""
    waiting: int | None = None
    kv_usage: float | None = None
    """Share of KV blocks in use, 0 to 1."""
    kv_capacity_tokens: int | None = None
    block_size: int | None = None
    """Tokens a KV block."""
    preemptions: int | None = None
    """Ever since the engine started."""


class Adapter(Protocol):
    """One kind of engine."""

    @property
    def kind(self) -> str: ...

    @property
    def health_path(self) -> bytes:
        """Asked with GET; 200 is healthy."""
        ...

    @property
    def models_path(self) -> bytes:
        """Asked with GET for what it serves, in OpenAI's list shape."""
        ...

    @property
    def metrics_path(self) -> bytes | None:
        """None where the engine has no metrics."""
        ...

    def report(self, metrics: str) -> EngineReport:
        """A metrics page (Prometheus text) read. Unknown names are left out, nothing is guessed."""
        ...

    def refused(self, status: int) -> Outcome | None:
        """What an error status of this engine means: OVERLOADED for back-pressure, ENGINE_ERROR for a failure that
        another engine may not have, None for an answer that is the client's to read."""
        ...
