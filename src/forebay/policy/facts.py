"""What the decisions are told of an engine."""

from __future__ import annotations

from dataclasses import dataclass

from forebay.policy.prior import PrefillPrior


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known of an engine before the first request."""

    kv_tokens: int | None
    """None: not known, and no bound until a report says it."""
    block_size: int = 16
    max_num_seqs: int = 256
    concurrency: int | None = None
    """Answers that it is to run at once, times its factor (`scale`) and at most `max_num_seqs`; None: those."""
    prefill: PrefillPrior
    cost: float = 1.0
    """What it costs, relative to others."""
    zone: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What an engine says of itself. None: it does not say."""

    kv_used: float | None = None
    """Share of its KV blocks in use, 0 to 1."""
    kv_tokens: int | None = None
    preemptions: int | None = None
    swapped: int | None = None
    """Blocks, ever since it started."""
    adapters: tuple[str, ...] | None = None
    """LoRA adapters that it has loaded."""
    share: float = 1.0
    """Of itself that it is to be given, over 0 to 1: less while it starts slowly."""
