"""What workloads come from: something that can be streamed any number of times, and always gives the same."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from forebay.sim.workload import Ask


@dataclass(slots=True)
class Tally:
    """What one pass over a workload left out or changed."""

    skipped: int = 0
    """Rows that were no request (`bad=skip`)."""
    dropped: int = 0
    """Requests (and conversations' next turns) longer than the context."""
    clipped: int = 0
    """Requests cut to the context."""

    def notes(self) -> list[str]:
        """One sentence for each count that is not 0."""
        said = (
            (self.skipped, "rows skipped that were no request"),
            (self.dropped, "requests dropped that were longer than the context"),
            (self.clipped, "requests cut to the context"),
        )
        return [f"{n:,} {what}" for n, what in said if n]


class Size(NamedTuple):
    """About how large a source is, for progress bars: inf where it has no end, NaN where only reading it would tell."""

    requests: float
    duration: float
    """The last arrival, in seconds."""
    rate: float
    """Requests a second."""


class Source(Protocol):
    """Sources are immutable and picklable, so that parallel runs can each stream their own."""

    @property
    def size(self) -> Size: ...

    def stream(self, tally: Tally) -> Iterator[Ask]:
        """In order of arrival. Raises WorkloadError."""
        ...


@dataclass(frozen=True)
class Workload:
    """A named source: iterate over it as often as needed."""

    name: str
    source: Source

    def asks(self, tally: Tally | None = None) -> Iterator[Ask]:
        """In order of arrival, made as they are taken. Raises WorkloadError."""
        return self.source.stream(Tally() if tally is None else tally)

    def __iter__(self) -> Iterator[Ask]:
        return self.asks()

    @property
    def requests(self) -> int | None:
        """About how many there are; None where that is not known without reading all."""
        n = self.source.size.requests
        return round(n) if math.isfinite(n) else None

    @property
    def duration(self) -> float | None:
        """About when the last arrives, in seconds; None where that is not known without reading all."""
        seconds = self.source.size.duration
        return seconds if math.isfinite(seconds) else None


@dataclass(frozen=True)
class Listed:
    """Asks that are at hand, in order of arrival. Raises ValueError where they are not."""

    given: tuple[Ask, ...] = field(repr=False)

    def __post_init__(self) -> None:
        if any(b.arrival < a.arrival for a, b in zip(self.given, self.given[1:], strict=False)):
            raise ValueError("asks must be in order of arrival")

    @property
    def size(self) -> Size:
        n, end = len(self.given), self.given[-1].arrival if self.given else 0.0
        return Size(n, end, n / end if end else math.inf)

    def stream(self, tally: Tally) -> Iterator[Ask]:
        return iter(self.given)
