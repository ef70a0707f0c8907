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
        """A step in which `n` sequences decode one token each. `context`: their KV tokens in sum; `longest`: the most
        of one of them."""
        ...

    def mixed(self, chunks: Sequence[Chunk], n: int, context: int, longest: int) -> float:
        """The same with at least one chunk of prefill beside the `n` (possibly 0) sequences that decode."""
        ...


class WithHost:
    """Step times and what the host adds: `each` seconds to every step, `prefill` seconds more to one with prefill in
    it, which no CUDA graph covers. A property of the machine, measured or fitted (see docs/fidelity.md)."""

    def __init__(self, steps: StepTime, each: float, prefill: float) -> None:
        self._steps = steps
        self._each = each
        self._prefill = each + prefill

    @property
    def warnings(self) -> Sequence[str]:
        return self._steps.warnings

    def decode(self, n: int, context: int, longest: int) -> float:
        return self._steps.decode(n, context, longest) + self._each

    def mixed(self, chunks: Sequence[Chunk], n: int, context: int, longest: int) -> float:
        return self._steps.mixed(chunks, n, context, longest) + self._prefill

    def __repr__(self) -> str:
        return f"<WithHost {self._each * 1e3:g} ms a step, {self._prefill * 1e3:g} ms with prefill, on {self._steps!r}>"


class OutOfProfile(Exception):
    """A batch lies outside of what a strict profile covers. The message says by how much, and on which axis."""
