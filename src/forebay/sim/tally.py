"""What an emulated server counts, whatever names its metrics page gives it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from forebay.counters import Histogram


def edges(text: str) -> tuple[float, ...]:
    return tuple(map(float, text.split()))


LIMITS: Final = ("max_num_queued_reqs", "max_num_queued_tokens")
REASONS: Final = ("stop", "length", "abort", "error", "repetition")


@dataclass(frozen=True, slots=True)
class Edges:
    """Upper bounds of the histograms' buckets: seconds, or tokens."""

    ttft: Sequence[float]
    itl: Sequence[float]
    latency: Sequence[float]
    tokens: Sequence[float]
    queue: Sequence[float] | None = None
    """None: those of `latency`; so below."""
    prefill: Sequence[float] | None = None
    tpot: Sequence[float] | None = None


class Tally:
    """Bumped by the server, read at scrape time. Gauges come from the model itself."""

    def __init__(self, edges: Edges, created: float) -> None:
        """`created`: Unix seconds."""
        self.created = created
        self.requests = 0
        """Generating requests that were looked at, refused ones included."""
        self.aborted = 0
        self.failed: dict[str, int] = {}
        """By a reason of the face's own; a handful."""
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.success = dict.fromkeys(REASONS, 0)
        self.rejections = dict.fromkeys(LIMITS, 0)
        self.cached_tokens = 0
        """Of prompts prefilled."""
        self.transferred_tokens = 0
        self.longest = 0
        """Most tokens of one sequence, prompt and answer."""
        latency, tokens = edges.latency, edges.tokens
        self.ttft = Histogram(edges.ttft)
        self.itl = Histogram(edges.itl)
        self.tpot = Histogram(edges.tpot or edges.itl)
        self.e2e = Histogram(latency)
        self.queue_time = Histogram(edges.queue or latency)
        self.prefill_time = Histogram(edges.prefill or latency)
        self.decode_time = Histogram(latency)
        self.inference_time = Histogram(latency)
        self.request_prompt = Histogram(tokens)
        self.request_generation = Histogram(tokens)
        self.params_max_tokens = Histogram(tokens)
        self.params_n = Histogram((1.0, 2.0, 5.0, 10.0, 20.0))
        self.request_computed = Histogram(tokens)
        self.request_preemptions = Histogram((1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0))

    def fail(self, reason: str) -> None:
        self.failed[reason] = self.failed.get(reason, 0) + 1

    def __repr__(self) -> str:
        return f"<Tally {self.requests} requests, {self.generation_tokens} tokens>"
