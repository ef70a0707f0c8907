"""When an engine gets no more requests for a while, by what its requests showed."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from forebay.config.section import Seconds, Section, clash


class Health(Section):
    failures: Annotated[int, Field(ge=1, le=1_000)] = 5
    """Requests in a row that failed at an engine before its breaker opens."""
    error_share: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Or failed requests as a share of those that ended within error_window: more than this opens it."""
    error_least: Annotated[int, Field(ge=1, le=100_000)] = 20
    """Requests that must have ended within error_window before error_share counts."""
    error_window: Seconds = 10.0
    """Seconds; the present window and the one before it count."""
    open: Seconds = 1.0
    """Seconds an open breaker waits before it lets probes through; twice as long after each failed one."""
    open_most: Seconds = 60.0
    """Most seconds it waits."""
    probes: Annotated[int, Field(ge=1, le=100)] = 2
    """Requests it lets through to find out, and that must end well to close it."""
    slow_start: Annotated[float, Field(ge=0, le=3_600)] = 10.0
    """Seconds in which an engine that is back, or joined later, grows from a tenth of its share of traffic to all of
    it; 0: at once."""
    rest_most: Seconds = 5.0
    """Most seconds an engine that says it is overloaded is spared, whatever its Retry-After asks for, while others can
    take requests."""
    stall_gaps: Annotated[float, Field(ge=2, le=10_000)] = 20.0
    """An engine whose running answers get nothing for this many of its usual gaps between tokens has stalled; so has
    one that answers nobody for this many times its usual time to first token."""
    stall_least: Seconds = 5.0
    """But not before so many seconds of silence."""

    @model_validator(mode="after")
    def _ordered(self) -> Health:
        if self.open > self.open_most:
            raise clash(f"open must not be more than open_most ({self.open_most:g})")
        return self
