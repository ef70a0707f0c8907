"""The section `disaggregation`: when prefill and decode go to two engines."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from forebay.config.section import Seconds, Section


class Disaggregation(Section):
    """Used for models that an engine of role prefill serves."""

    least_tokens: Annotated[int, Field(ge=1, le=1 << 40)] = 256
    """Prompt tokens, without cached ones, under which a second engine is not worth its handover."""
    weight: Annotated[float, Field(ge=0, le=1_000)] = 8.0
    """Seconds of a request's TTFT that a second is worth by which its prefill would delay one sequence that decodes on
    its engine: more keeps decoding even, less lets prompts wait less. 0: split only where that is faster."""
    longest: Seconds = 30.0
    """Seconds that a prefill engine may take: one that is expected to take longer gets no prompt, and one that does is
    given up and the request retried whole. At most timeouts.first_byte."""
    transfer_latency: Annotated[float, Field(ge=0, le=60)] = 0.01
    """Seconds of a handover of KV, however small."""
    transfer_seconds_per_token: Annotated[float, Field(gt=0, le=0.01)] = 1e-5
    """Seconds a token of one, to begin with (KV of 256 KB a token at 25 GB/s): what it really takes is learned."""
