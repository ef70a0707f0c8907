"""How long prompts and answers are, drawn together."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random
from typing import Final, Protocol

from forebay.sim.workload import Ask
from forebay.sim.workloads.dice import dice
from forebay.sim.workloads.distributions import Cdf, Distribution, whole
from forebay.sim.workloads.errors import WorkloadError

SAMPLE: Final = 100_000
"""Requests of a trace that are kept to draw from."""


class Lengths(Protocol):
    def sampler(self, rng: Random) -> Callable[[], tuple[int, int]]:
        """Draws (prompt, output) tokens, each at least 1."""
        ...


@dataclass(frozen=True, slots=True)
class Independent:
    """Each from its own distribution."""

    prompt: Distribution
    output: Distribution

    def sampler(self, rng: Random) -> Callable[[], tuple[int, int]]:
        prompt, output = whole(self.prompt, rng), whole(self.output, rng)
        return lambda: (prompt(), output())


@dataclass(frozen=True, slots=True)
class Split:
    """Prompt and output together from one distribution, of which the prompt is always the same share. Raises ValueError
    for a share outside 0 to 1."""

    total: Cdf
    share: float

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise ValueError(f"the prompt's share of a request is between 0 and 1, not {self.share:g}")

    def sampler(self, rng: Random) -> Callable[[], tuple[int, int]]:
        total, share = whole(self.total, rng, 2), self.share

        def one() -> tuple[int, int]:
            n = total()
            prompt = min(n - 1, max(1, round(n * share)))
            return prompt, n - prompt

        return one


class Drawn:
    """Pairs as they stand in another workload, drawn with replacement: from an even sample of at most SAMPLE of its
    requests, made in one pass, always the same one. Raises WorkloadError where it has none."""

    __slots__ = ("_outputs", "_prompts")

    def __init__(self, asks: Iterable[Ask], name: str = "") -> None:
        self._prompts, self._outputs = array("q"), array("q")
        rng = dice("", "sample")
        for n, ask in enumerate(asks):
            if n < SAMPLE:
                self._prompts.append(ask.prompt_tokens)
                self._outputs.append(ask.output_tokens)
            elif (i := rng.randrange(n + 1)) < SAMPLE:
                self._prompts[i], self._outputs[i] = ask.prompt_tokens, ask.output_tokens
        if not self._prompts:
            raise WorkloadError("there is no request to draw lengths from", file=name)

    def sampler(self, rng: Random) -> Callable[[], tuple[int, int]]:
        prompts, outputs, n, draw = self._prompts, self._outputs, len(self._prompts), rng.random

        def one() -> tuple[int, int]:
            i = int(draw() * n)
            return prompts[i], outputs[i]

        return one

    def __repr__(self) -> str:
        return f"<Drawn from {len(self._prompts):,} requests>"
