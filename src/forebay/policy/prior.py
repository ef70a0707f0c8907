"""What an engine's steps are taken to cost before the first request is seen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from forebay.hardware.steptime import Chunk, StepTime

KV: Final = 1024
"""Tokens of context that a decoding sequence is taken to have, where nobody says."""


@dataclass(frozen=True, slots=True)
class PrefillPrior:
    """What is known of an engine's steps before the first request. Seconds, and tokens."""

    base_s: float
    """Of a step with prefill, beside its tokens and what decodes in it."""
    per_token_s: float
    """Of one more prompt token in a step."""
    per_token_context_s: float
    """Of one pair of query and key: a prompt token and one in the KV cache before it."""
    decode_step_s: float
    """Of a step in which next to nothing decodes."""
    per_sequence_s: float
    """Of one more sequence that decodes in it."""
    budget_tokens: int = 2048
    """The most tokens of a step, prefill and decode (vLLM: max_num_batched_tokens)."""
    free_tokens: float = 0.0
    """Prompt tokens that a step takes along in its base: it reads all weights anyway."""
    kv_share: float = 0.0
    """Share of `per_sequence_s` that is due to 1,024 tokens of context; 0 to 1."""

    def __post_init__(self) -> None:
        if min(self.base_s, self.per_token_s, self.decode_step_s) <= 0 or self.budget_tokens < 1:
            raise ValueError(f"base_s, per_token_s, decode_step_s and budget_tokens must be more than 0: {self}")
        if min(self.per_token_context_s, self.per_sequence_s, self.free_tokens) < 0 or not 0 <= self.kv_share <= 1:
            raise ValueError(
                f"per_token_context_s, per_sequence_s and free_tokens must be at least 0, kv_share up to 1: {self}"
            )

    @classmethod
    def of(cls, steps: StepTime, budget_tokens: int) -> PrefillPrior:
        """Secants of `steps`: prefill from half to all of `budget_tokens`, attention and decodes at contexts of 1,024
        tokens and up to 64 sequences."""
        budget = max(2, budget_tokens)
        half = budget // 2
        each = KV
        many = min(64, budget)
        base = steps.mixed([Chunk(1, 0)], 0, 0, 0)
        full = steps.mixed([Chunk(budget, 0)], 0, 0, 0)
        behind = steps.mixed([Chunk(half, each)], 0, 0, 0)
        part = steps.mixed([Chunk(half, 0)], 0, 0, 0)
        pair = max(0.0, (behind - part) / (half * each))
        own = pair * budget * budget / 2
        token = max((full - part - 0.75 * own) / (budget - half), (full - base) / budget / 10, 1e-9)
        free = max(0.0, budget - (full - own - base) / token)
        one = steps.decode(1, each, each)
        bare = steps.decode(many, many, 1)
        sequence = share = 0.0
        if many > 1:
            both = steps.decode(many, many * each, each)
            sequence = max(0.0, (both - one) / (many - 1))
            if sequence:
                share = min(1.0, max(0.0, (both - bare) / many / sequence))
        return cls(base, token, pair, one, sequence, budget, min(free, budget / 2), share)
