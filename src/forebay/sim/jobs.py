"""What an engine model works on, what it tells about it, and what it counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from forebay.sim.kv import Key, Lease


class State(Enum):
    NEW = "new"
    WAITING = "waiting"  # also after a preemption
    FETCHING = "fetching"  # its KV is on the way from a prefill engine
    PREFILL = "prefill"
    DECODE = "decode"
    ENDING = "ending"  # its last token is in a step that is scheduled
    HELD = "held"  # prefilled here, its KV to be fetched by a decode engine
    DONE = "done"
    CANCELLED = "cancelled"


class Job:
    """One sequence. What the model writes is for others to read."""

    __slots__ = (
        "arrival",
        "base",
        "cached_tokens",
        "computed",
        "fin",
        "first_at",
        "generated",
        "hold",
        "keeps",
        "lease",
        "number",
        "output_tokens",
        "preempted",
        "prefix",
        "priority",
        "prompt_tokens",
        "remote",
        "resumed_from",
        "scheduled_at",
        "since",
        "state",
        "swapped",
        "tag",
    )

    def __init__(
        self,
        prompt_tokens: int,
        output_tokens: int,
        *,
        arrival: float = 0.0,
        priority: int = 0,
        prefix: tuple[tuple[Key, int], ...] = (),
        keeps: Key | None = None,
        remote: bool = False,
        hold: bool = False,
        tag: Any = None,
    ) -> None:
        """`remote`: its prompt's KV comes from a prefill engine. `hold`: at its end its KV is held for a decode engine,
        as a prefill engine does for every job. Raises ValueError for counts no engine could serve."""
        if prompt_tokens < 1 or output_tokens < 1:
            raise ValueError(f"a job has at least one prompt and one output token: {prompt_tokens}, {output_tokens}")
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.arrival = arrival
        self.priority = priority
        self.prefix = prefix
        self.keeps = keeps
        self.remote = remote
        self.hold = hold
        self.tag = tag
        self.state = State.NEW
        self.number = -1
        self.computed = 0
        """Prompt (and after a preemption, output) tokens whose KV is in memory or scheduled."""
        self.generated = 0
        """Output tokens, those in scheduled steps included; of a decoding job see `EngineModel.delivered`."""
        self.cached_tokens = 0
        """Prompt tokens found in the prefix cache when it first ran."""
        self.preempted = 0
        """How often."""
        self.scheduled_at = -1.0
        self.first_at = -1.0
        self.resumed_from = -1.0
        """When it was preempted; -1 once it goes on."""
        self.swapped = 0
        """Blocks in CPU memory."""
        self.lease: Lease | None = None
        self.base = 0
        self.fin = 0
        self.since = 0

    def __repr__(self) -> str:
        return f"<Job {self.number} {self.state.value} {self.prompt_tokens}+{self.generated}/{self.output_tokens}>"


class Listener(Protocol):
    """Told what happens while an engine advances, in order of time."""

    def on_scheduled(self, job: Job, at: float) -> None:
        """It leaves the queue for the first time."""
        ...

    def on_first_token(self, job: Job, at: float) -> None: ...
    def on_tokens(self, n: int, steps: int, first: float, last: float, jobs: Sequence[Job] | None, at: float) -> None:
        """`n` jobs got a token in each of `steps` steps that end at `at`; the steps' seconds go evenly from `first` to
        `last`. `jobs` only where the engine tracks them. A job's first token is not among these."""
        ...

    def on_preempt(self, job: Job, at: float) -> None: ...
    def on_finish(self, job: Job, at: float) -> None: ...


class Refused(Exception):
    """The engine does not take a job."""


class QueueFull(Refused):
    """A queue limit is reached: the server answers 503. The message names the limit."""


class TooLong(Refused):
    """Longer than the model's context or the whole KV cache: the server answers 400."""


@dataclass(slots=True)
class EngineStats:
    """Counted since the engine began."""

    steps: int = 0
    busy_seconds: float = 0.0
    prefill_tokens: int = 0
    """Computed, recomputation after preemptions included."""
    decode_tokens: int = 0
    preemptions: int = 0
    swapped_out: int = 0
    """Blocks."""
    swapped_in: int = 0
    prefix_queries: int = 0
    """Prompt tokens looked up, when a job first runs."""
    prefix_hits: int = 0
    finished: int = 0
    cancelled: int = 0
    refused: int = 0
    leases_expired: int = 0
