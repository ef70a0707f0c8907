"""The section `admission`: promises, waits and thresholds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from forebay.config.section import Seconds, Section, clash

Share = Annotated[float, Field(gt=0, le=1)]
Factor = Annotated[float, Field(gt=0, le=10)]
Multiple = Annotated[float, Field(ge=0, le=1_000)]
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
    starved_share: Share = 0.1
    """Of normal's turns, at most, go to such ones while others wait."""

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


class Scale(Section):
    """How the soft caps of engines (`engines[].concurrency`) move, and how many engines are desired."""

    every: Seconds = 60.0
    """Seconds between two checks of an engine's cap."""
    up: Factor = 0.2
    """What a cap's factor rises by while many wait."""
    down: Factor = 0.1
    """What it falls by while few do, or the engine preempts."""
    least: Share = 0.5
    """Least factor: of an engine that goes on preempting."""
    most: Annotated[float, Field(ge=1, le=100)] = 2.0
    """Greatest factor. The cap never gets over max_num_seqs."""
    up_over: Multiple = 5.0
    """Times the cap that must wait for the factor to rise."""
    down_under: Multiple = 1.0
    """Times the cap under which it falls, though not under 1."""
    target: Share = 0.8
    """Share of an engine's capacity that is to be in use: what replicas are desired by."""
    settle: Annotated[float, Field(ge=0, le=86_400)] = 300.0
    """Seconds for which fewer replicas must do before fewer are desired."""
    least_replicas: Annotated[int, Field(ge=0, le=10_000)] = 1
    """Fewest that are desired of a model."""
    most_replicas: Annotated[int, Field(ge=1, le=10_000)] = 256
    """Most that are desired."""

    @model_validator(mode="after")
    def _in_order(self) -> Scale:
        if self.down_under > self.up_over:
            raise clash("down_under must not be more than up_over")
        if self.least_replicas > self.most_replicas:
            raise clash("least_replicas must not be more than most_replicas")
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
    scale: Scale = Scale()
    """Soft caps, and replicas for autoscalers."""
    report_interval: Seconds = 0.25
    """Seconds between two looks at an engine's metrics."""
    record: Path | None = None
    """A file that every decision, and what it rests on, is recorded into, for `forebay replay`; none: nothing is. One
    that is there already is kept beside it, with `.1` to its name."""
    record_bytes: Annotated[int, Field(ge=1 << 16, le=1 << 40)] = 256 << 20
    """Size of the file at which the recording ends."""

    @model_validator(mode="after")
    def _within_reach(self) -> Admission:
        if 0 < self.ttft_multiple <= 1:
            raise clash(
                f"ttft_multiple must be 0 or over 1, not {self.ttft_multiple:g}: no engine is faster than it is alone"
            )
        return self
