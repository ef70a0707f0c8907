"""What a workload is made of."""

from __future__ import annotations

from typing import NamedTuple


class Ask(NamedTuple):
    """One request of a workload."""

    arrival: float
    """Seconds after the workload's begin."""
    prompt_tokens: int
    output_tokens: int
    """Tokens that the engine will generate, at least 1."""
    prefix: tuple[tuple[int | str, int], ...] = ()
    """The prompt's identity as (key, tokens) pieces in order: equal keys mean equal content up to and including that
    piece, so a key stands for everything before it too. What the pieces do not cover is this request's own. A piece may
    be a stream that grows: under the same key, the shorter is a prefix of the longer (a conversation's turns)."""
    tenant: str = ""
    cls: str = "normal"
    """The priority class: vip, normal or low."""
    priority: int = 0
    """What the engine is told; lower goes first."""
    keeps: int | str | None = None
    """The key under which prompt and answer together can be found again as a prefix (the conversation's stream); None
    where nothing follows."""
