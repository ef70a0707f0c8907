"""How a modelled engine is set up: vLLM's names and defaults where it has them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """Raises ValueError, with the field's name, for what no engine could be."""

    num_blocks: int
    """KV blocks of the whole engine (vLLM: num_gpu_blocks)."""
    block_size: int = 16
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    max_model_len: int = 131_072
    long_prefill_token_threshold: int = 0
    """The most tokens a step of one prompt, where it does not run alone; 0: no such limit."""
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    """Off: the part of a prompt that is not cached is computed in one step, and waits for one whose budget has room."""
    reserve_full_isl: bool = True
    """A waiting request needs room for its whole prompt that is not cached, not only for its first chunk."""
    watermark: float = 0.0
    """Share of the blocks that stays free when waiting requests are admitted."""
    policy: Literal["fcfs", "priority"] = "fcfs"
    async_scheduling: bool = True
    """A step is scheduled when the one before it starts, not when it ends (vLLM's default since 0.14)."""
    max_num_queued_reqs: int | None = None
    """Waiting and running requests together."""
    max_num_queued_tokens: int | None = None
    """Prompt tokens of requests that are not prefilled yet."""
    batching: Literal["continuous", "static", "dynamic"] = "continuous"
    """static and dynamic: a batch is formed while none runs, keeps its size until its last member ends, and reserves
    each member's KV for prompt and answer; as servers did before Orca (Yu et al., OSDI 2022)."""
    batch_wait: float | None = None
    """Seconds that the oldest waiting request waits for a batch to fill up; static 10, dynamic 0.1."""
    preemption: Literal["recompute", "swap"] = "recompute"
    swap_blocks: int = 0
    """Blocks of CPU memory; what does not fit is recomputed."""
    swap_seconds_per_block: float = 0.0
    """Of the transfer of one block in either direction, during which no step runs."""
    speculative_tokens: int = 0
    """Draft tokens a step (k)."""
    acceptance: float = 0.0
    """Chance that a draft token is accepted, given that those before it were."""
    draft_seconds: float = 0.0
    """Of drafting the tokens of a step."""
    role: Literal["both", "prefill", "decode"] = "both"
    transfer_seconds_per_token: float = 0.0
    """KV of one prompt token from a prefill to a decode engine; the wire, not the engines, is busy."""
    transfer_latency: float = 0.0
    lease_seconds: float = 30.0
    """How long a prefill engine holds blocks for a decode engine that does not fetch them (vLLM: 30 s)."""

    def __post_init__(self) -> None:
        for name in ("num_blocks", "block_size", "max_num_seqs", "max_num_batched_tokens", "max_model_len"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must not be less than max_num_seqs "
                f"({self.max_num_seqs}): each running sequence takes a token of the step's budget"
            )
        if not self.enable_chunked_prefill and self.max_num_batched_tokens < self.max_model_len:
            raise ValueError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must not be less than max_model_len "
                f"({self.max_model_len}) where enable_chunked_prefill is false: a prompt goes into one step"
            )
        for name in ("max_num_queued_reqs", "max_num_queued_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, or left out for no limit, not {value}")
        for name in ("long_prefill_token_threshold", "swap_blocks", "speculative_tokens"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0, not {getattr(self, name)}")
        for name in (
            "draft_seconds",
            "swap_seconds_per_block",
            "transfer_seconds_per_token",
            "transfer_latency",
            "lease_seconds",
        ):
            value = getattr(self, name)
            if not (value >= 0 and math.isfinite(value)):
                raise ValueError(f"{name} must be a number of seconds, at least 0, not {value}")
        if not 0 <= self.watermark < 1:
            raise ValueError(f"watermark must be at least 0 and less than 1, not {self.watermark}")
        if not 0 <= self.acceptance <= 1:
            raise ValueError(f"acceptance must be between 0 and 1, not {self.acceptance}")
        if self.batch_wait is not None and not (self.batch_wait >= 0 and math.isfinite(self.batch_wait)):
            raise ValueError(f"batch_wait must be a number of seconds, at least 0, not {self.batch_wait}")
        if self.speculative_tokens and self.max_num_batched_tokens < self.max_num_seqs * (1 + self.speculative_tokens):
            raise ValueError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must be at least max_num_seqs × "
                f"(1 + speculative_tokens) = {self.max_num_seqs * (1 + self.speculative_tokens)}"
            )

    @property
    def kv_tokens(self) -> int:
        return self.num_blocks * self.block_size

    @property
    def wait_for_batch(self) -> float:
        if self.batch_wait is not None:
            return self.batch_wait
        return 10.0 if self.batching == "static" else 0.1
