"""Step times out of three numbers, for an engine that is to have round speeds and no hardware."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from forebay.hardware.steptime import Chunk


@dataclass(frozen=True, slots=True)
class RateStepTime:
    """A `StepTime`. A prompt token costs 1 / `prefill_rate`; a step in which n sequences decode costs
    (1 + `batch_slowdown` · (n - 1)) / `decode_rate`; a mixed step costs both. Contexts cost nothing.

    Raises ValueError for rates that are not positive.
    """

    prefill_rate: float = 8000.0
    """Tokens a second."""
    decode_rate: float = 50.0
    """Tokens a second of each sequence, alone."""
    batch_slowdown: float = 0.0
    """Fraction of the time that each other decoding sequence adds."""

    def __post_init__(self) -> None:
        for name in ("prefill_rate", "decode_rate"):
            value = getattr(self, name)
            if not (value > 0 and math.isfinite(value)):
                raise ValueError(f"{name} must be greater than 0, not {value}")
        if not (self.batch_slowdown >= 0 and math.isfinite(self.batch_slowdown)):
            raise ValueError(f"batch_slowdown must be at least 0, not {self.batch_slowdown}")

    @property
    def warnings(self) -> Sequence[str]:
        return ()

    def decode(self, n: int, context: int, longest: int) -> float:
        return (1.0 + self.batch_slowdown * (n - 1)) / self.decode_rate

    def mixed(self, chunks: Sequence[Chunk], n: int, context: int, longest: int) -> float:
        seconds = sum(chunk.tokens for chunk in chunks) / self.prefill_rate
        return seconds + self.decode(n, context, longest) if n else seconds
