"""How long one step of an engine takes: the interface that every source of step times has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class Chunk(NamedTuple):
    """A piece of one prompt in a step."""

    tokens: int
    """Prompt tokens computed in this step."""
    context: int
    """Tokens of the sequence that are in the KV cache before it."""
    last: bool = True
    """Whether it ends the prompt, so that the step samples a token for it."""


class StepTime(Protocol):
    """Seconds that a step takes on the device and the host, from its start to the start of the next of equal work.

    Outside of what was measured a source extrapolates and says so once in `warnings`, or raises `OutOfProfile` where it
    was made strict.
    """

    @property
    def warnings(self) -> Sequence[str]:
        """What was extrapolated, and how far; one line each, bounded."""
        ...

    def decode(self, n: int, context: int, longest: int) -> float:
        """A step in which `n` sequences decode one token each. `context`: their KV tokens in sum; `longest`: the most of
        one of them."""
        ...

    def mixed(self, chunks: Sequence[Chunk], n: int, context: int, longest: int) -> float:
        """The same with at least one chunk of prefill beside the `n` (possibly 0) sequences that decode."""
        ...


class OutOfProfile(Exception):
    """A batch lies outside of what a strict profile covers. The message says by how much, and on which axis."""
