"""What came of a load. Durations in seconds; tokens as the server's `usage` counts them, else content events."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from forebay.plan.distribution import Distribution
from forebay.plan.load.sample import Sample

MAX_KINDS: Final = 50
"""Kinds of error told apart; the rest are counted as `other`."""
MAX_GROUPS: Final = 50
"""Classes, and tenants, told apart; the rest are one more, OTHERS."""
OTHERS: Final = "(others)"
SLICES: Final = 240
"""Of a run's time; when it lasts longer than they do, two become one."""


@dataclass
class Group:
    """The requests of a class, or of a tenant."""

    sent: int = 0
    completed: int = 0
    good: int = 0
    failed: int = 0
    output_tokens: int = 0
    ttft: Distribution = field(default_factory=Distribution)
    tpot: Distribution = field(default_factory=Distribution)
    e2e: Distribution = field(default_factory=Distribution)


class Slice:
    """Requests by the time of their arrival; tokens and requests in flight by the time that it was."""

    __slots__ = ("arrived", "completed", "failed", "good", "in_flight", "tokens", "ttft")

    def __init__(self) -> None:
        self.arrived = self.completed = self.good = self.failed = self.tokens = self.in_flight = 0
        self.ttft = Distribution()

    def merge(self, other: Slice) -> None:
        for name in ("arrived", "completed", "good", "failed", "tokens"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.in_flight = max(self.in_flight, other.in_flight)
        self.ttft.merge(other.ttft)


class Timeline:
    """The run in equal slices, of `width` seconds each."""

    def __init__(self) -> None:
        self.width = 0.25
        self.slices: list[Slice] = []

    def at(self, seconds: float) -> Slice:
        i = int(seconds / self.width)
        while i >= SLICES:
            self._halve()
            i = int(seconds / self.width)
        slices = self.slices
        while len(slices) <= i:
            slices.append(Slice())
        return slices[i]

    def _halve(self) -> None:
        if len(self.slices) % 2:
            self.slices.append(Slice())
        for a, b in zip(self.slices[::2], self.slices[1::2], strict=True):
            a.merge(b)
        self.slices = self.slices[::2]
        self.width *= 2


@dataclass
class Result:
    """One run. Latencies count from the time at which a request was to leave."""

    seconds: float = 0.0
    """From the first arrival's reference to the last answer."""
    sent: int = 0
    completed: int = 0
    good: int = 0
    """Completed within the SLO; all completed ones where there is none."""
    errors: dict[str, int] = field(default_factory=dict)
    ttft: Sample = field(default_factory=Sample)
    """To the first event with content, reasoning or a tool call; of completed requests and of those cut later."""
    itl: Sample = field(default_factory=Sample)
    """Between content events. Events that arrive together count as one gap and zeros."""
    tpot: Sample = field(default_factory=Sample)
    """Of each completed request with two tokens or more: from the first to the last, by the gaps between."""
    e2e: Sample = field(default_factory=Sample)
    """To the end of the stream, of completed requests."""
    lag: Distribution = field(default_factory=Distribution)
    """How late requests left after their arrival time: large values mean that this process is the bottleneck."""
    loop_lag: Distribution = field(default_factory=Distribution)
    """How late this process came to what was due, at points of time evenly spaced: what it reads is as late."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Of them, out of the server's prefix cache, as far as it says."""
    asked_prompt_tokens: int = 0
    """What the prompts of the completed requests whose usage is known were meant to have."""
    output_tokens: int = 0
    retry_after: Distribution = field(default_factory=Distribution)
    """Of all refusals that had one."""
    retried: int = 0
    """Further tries, each when Retry-After said."""
    rescued: int = 0
    """Requests that completed at a further try."""
    denied: int = 0
    """Refusals with `x-should-retry: false`."""
    cost: int = 0
    """Nano-units of currency, of the completed requests, where there is a price."""
    unpriced: int = 0
    """Completed requests that the price does not cover."""
    peak_in_flight: int = 0
    cpu: float = 0.0
    """CPU seconds of this process: as many as `seconds` mean that it is the bottleneck."""
    interrupted: bool = False
    given_up: str = ""
    """Why it was ended before its time, where it was."""
    classes: dict[str, Group] = field(default_factory=dict)
    tenants: dict[str, Group] = field(default_factory=dict)
    timeline: Timeline = field(default_factory=Timeline)

    @property
    def failed(self) -> int:
        return sum(self.errors.values())

    def fail(self, error: str) -> None:
        kind = error if error in self.errors or len(self.errors) < MAX_KINDS else "other"
        self.errors[kind] = self.errors.get(kind, 0) + 1


def group(groups: dict[str, Group], name: str) -> Group:
    """The group of that name, or that of the others."""
    found = groups.get(name)
    if found is None:
        if len(groups) >= MAX_GROUPS:
            name = OTHERS
            if name in groups:
                return groups[name]
        found = groups[name] = Group()
    return found
