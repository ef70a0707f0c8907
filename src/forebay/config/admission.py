"""The section `admission`: promises, waits and thresholds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from forebay.config.section import Seconds, Section, clash

Share = Annotated[float, Field(gt=0, le=1)]
Count = Annotated[int, Field(ge=1, le=1_000_000)]


class Promises(Section):
    """Seconds from a request's arrival to its first token, by class."""

    vip: Seconds = 1.5
    """To vip."""
    normal: Seconds = 1.5
    """To normal."""
    low: Seconds = 30.0
    """To low, which waits for idle capacity."""


class Waits(Section):
    """Seconds that a request may wait for its admission, by class; never longer than its promise."""

    vip: Seconds = 3.0
    """Of vip."""
    normal: Seconds = 3.0
    """Of normal."""
    low: Seconds = 30.0
    """Of low."""


class Ceilings(Section):
    """Share of an engine's KV cache that the predicted peak may reach with a request of a class."""

    vip: Share = 0.97
    """With one of vip."""
    normal: Share = 0.92
    """With one of normal."""
    low: Share = 0.75
    """With one of low."""

    @model_validator(mode="after")
    def _in_order(self) -> Ceilings:
        if not self.low <= self.normal <= self.vip:
            raise clash("a better class has a ceiling at least as high: low ≤ normal ≤ vip")
        return self


class Queue(Section):
    requests: Count = 2_000
    """Requests that may wait, of all classes."""
    tokens: Annotated[int, Field(ge=1, le=1 << 40)] = 8_000_000
    """Prompt tokens of all that wait."""
    normal_share: Share = 0.8
    """How full the queue may be for one more of normal."""
    low_share: Share = 0.5
    """The same for low, which also gives way to the others."""
    low_starvation: Seconds = 20.0
    """Seconds after which one of low counts as normal. Less than its wait and its promise, or it never does."""

    @model_validator(mode="after")
    def _in_order(self) -> Queue:
        if self.low_share > self.normal_share:
            raise clash("low_share must not be more than normal_share")
        return self


class Shed(Section):
    at: Share = 0.85
    """Predicted KV use from which on normal, low and anonymous requests are refused at once."""
    resume: Share = 0.80
    """Use at which that ends."""

    @model_validator(mode="after")
    def _in_order(self) -> Shed:
        if self.resume > self.at:
            raise clash("resume must not be more than at")
        return self


class Admission(Section):
    enabled: bool = False
    """Decide over every request: now, later or not at all. False: every request goes on at once."""
    ttft: Promises = Promises()
    """What is promised."""
    ttft_multiple: Annotated[float, Field(ge=0, le=1_000)] = 0.0
    """Over 0: a prompt whose own prefill exceeds the promise is held to so many times that prefill instead."""
    tpot: Seconds | None = None
    """Seconds a token that decoding is to keep: prefill is paced by it."""
    wait: Waits = Waits()
    """Longest wait for admission."""
    ceilings: Ceilings = Ceilings()
    """How full the KV cache may get."""
    queue: Queue = Queue()
    """Who may wait."""
    shed: Shed = Shed()
    """When to refuse at once."""
    report_interval: Seconds = 0.25
    """Seconds between two looks at an engine's metrics."""
    record: Path | None = None
    """A file that every decision, and what it rests on, is recorded into, for `forebay replay`; none: nothing is. One
    that is there already is kept beside it, with `.1` to its name."""
    record_bytes: Annotated[int, Field(ge=1 << 16, le=1 << 40)] = 256 << 20
    """Size of the file at which the recording ends."""
