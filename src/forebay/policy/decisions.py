"""What admission answers."""

from __future__ import annotations

from math import inf
from typing import NamedTuple


class Admit(NamedTuple):
    engine: str
    bound: float
    """Seconds from now within which its first token comes, as the predictor promises."""


class Wait(NamedTuple):
    position: int
    expected: float
    """Seconds until its first token."""


class Refuse(NamedTuple):
    reason: str
    retry_after: float
    """Seconds."""
    waited: bool = False
    """It had been told to wait."""
    expected: float = inf
    """Seconds until its first token, as predicted when it came; infinite: not predicted."""


Decision = Admit | Wait | Refuse


class Quote(NamedTuple):
    """What would be promised now; nothing is decided."""

    engine: str
    ttft: float
    """Bound, seconds."""
    now: bool
    """Whether it would go at once."""
