"""How long prompts and answers are: a sample that formulas take moments of, and a simulation draws from."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Final

import numpy as np
from numpy.typing import NDArray

from forebay.errors import shown
from forebay.sim.workloads import Workload, WorkloadError
from forebay.sim.workloads.distributions import Cdf, Constant, Distribution, Lognormal, Uniform, whole
from forebay.sim.workloads.lengths import Split
from forebay.sim.workloads.values import counts

Floats = NDArray[np.float64]

SAMPLE: Final = 16_384
"""Pairs drawn of distributions: the mean of one whose deviation is its mean is then right to 0.8 %."""
SHARE: Final = 0.8
"""Of a whole request's tokens that are the prompt's, where a distribution is of both together."""
_Z95: Final = 1.6448536269514722
"""The standard normal distribution's 95th percentile."""
STEEPEST: Final = math.exp(_Z95**2 / 2)
"""The most that the P95 of a lognormal distribution can be of its mean (at σ = 1.645): 3.87."""
FORMS: Final = (
    "N, mean=N,p95=N, uniform:LOW:HIGH, uniform(LOW;HIGH), lognormal(MEDIAN;SIGMA[;MOST]), exp(MEAN), "
    "geometric(MEAN) or cdf(FILE)"
)


class LengthError(ValueError):
    """Lengths that cannot be used: what was given, and what is allowed."""


@dataclass(frozen=True, eq=False)
class Lengths:
    """Requests' lengths in tokens, pairs that belong together. Raises LengthError where there are none."""

    prompts: Floats
    outputs: Floats
    text: str
    """What they were made from, for people."""

    def __post_init__(self) -> None:
        if not len(self.prompts):
            raise LengthError(f"lengths: {self.text} has no requests")

    @cached_property
    def prompt(self) -> float:
        """Mean tokens of a prompt."""
        return float(self.prompts.mean())

    @cached_property
    def output(self) -> float:
        """Mean tokens of an answer."""
        return float(self.outputs.mean())

    @cached_property
    def longest(self) -> int:
        """Tokens of the longest request, prompt and answer."""
        return int((self.prompts + self.outputs).max())

    @cached_property
    def decode_context(self) -> float:
        """Mean tokens in the cache of a sequence that decodes, over all decode steps of all requests: of (P, O) they
        are P + 1 … P + O - 1."""
        steps = self.outputs - 1
        total = float(steps.sum())
        if total <= 0:
            return self.prompt
        return float((steps * (self.prompts + self.outputs / 2)).sum()) / total

    @cached_property
    def weighted_prompt(self) -> float:
        """Mean length of the prompt that a prompt token belongs to: E[P²] / E[P]."""
        return float((self.prompts**2).mean()) / self.prompt

    def quantile(self, of: str, share: float) -> float:
        return float(np.quantile(self.prompts if of == "prompt" else self.outputs, share, method="inverted_cdf"))

    def at_most(self, tokens: int) -> Lengths:
        """Without requests longer than `tokens`, which an engine refuses. Raises LengthError where none is left."""
        fits = self.prompts + self.outputs <= tokens
        if fits.all():
            return self
        return Lengths(self.prompts[fits], self.outputs[fits], f"{self.text}, at most {tokens:,} tokens")

    def __repr__(self) -> str:
        return f"<Lengths {self.text}: {self.prompt:.0f} + {self.output:.0f} tokens, {len(self.prompts):,} pairs>"


def by_mean_and_p95(mean: float, p95: float) -> Distribution:
    """The lognormal distribution of that mean and 95th percentile: σ = z - √(z² - 2 ln(p95 / mean)) with z = 1.645,
    the median mean · exp(-σ² / 2). Raises ValueError where there is none."""
    if p95 == mean:
        return Constant(mean)
    if not mean < p95 <= mean * STEEPEST:
        raise ValueError(
            f"p95 {p95:g} does not go with mean {mean:g}: it is between the mean and {STEEPEST:.2f} times the mean "
            f"({mean * STEEPEST:,.0f}); give lognormal(MEDIAN;SIGMA), a cdf(FILE) or a trace for a longer tail"
        )
    sigma = _Z95 - math.sqrt(max(0.0, _Z95**2 - 2 * math.log(p95 / mean)))
    return Lognormal(mean * math.exp(-(sigma**2) / 2), sigma)


def distribution(text: str) -> Distribution:
    """Of tokens, as FORMS has them. Raises LengthError."""
    plain = text.strip()
    try:
        if "=" in plain:
            return _of_numbers(plain)
        if match := re.fullmatch(r"uniform:([^:]+):([^:]+)", plain):
            return Uniform(_number(match[1]), _number(match[2]))
        if plain.endswith(".json"):
            return Cdf.read(plain)
        return counts(plain)
    except WorkloadError as e:
        raise LengthError(str(e)) from None
    except ValueError as e:
        raise LengthError(f"'{shown(text)}': {e}; lengths are {FORMS}") from None


def _of_numbers(text: str) -> Distribution:
    given: dict[str, float] = {}
    for part in text.split(","):
        key, equals, value = part.partition("=")
        if not equals or key.strip() not in ("mean", "p95") or key.strip() in given:
            raise ValueError("mean=N,p95=N has each of these once")
        given[key.strip()] = _number(value)
    if "mean" not in given:
        raise ValueError("the mean is missing")
    return by_mean_and_p95(given["mean"], given.get("p95", given["mean"]))


def _number(text: str) -> float:
    value = float(text.replace(",", "").replace("_", ""))
    if not (math.isfinite(value) and value >= 1):
        raise ValueError(f"{text.strip()} is no number of tokens, at least 1")
    return value


def independent(prompt: str, output: str) -> Lengths:
    """Prompt and answer each from its own distribution. Raises LengthError that names the option."""
    found = []
    for option, text in (("--prompt", prompt), ("--output", output)):
        try:
            found.append(distribution(text))
        except LengthError as e:
            raise LengthError(f"{option} {e}") from None
    draws = [whole(one, Random(seed)) for seed, one in enumerate(found, 1)]  # noqa: S311
    n = 1 if all(isinstance(one, Constant) for one in found) else SAMPLE
    return Lengths(_drawn(draws[0], n), _drawn(draws[1], n), f"prompts {prompt}, answers {output}")


def _drawn(draw: Callable[[], int], n: int) -> Floats:
    return np.fromiter((draw() for _ in range(n)), np.float64, n)


def together(path: str, share: float = SHARE) -> Lengths:
    """From a JSON file of the distribution of a whole request's tokens, of which the prompt is always `share`. Raises
    LengthError."""
    try:
        draw = Split(Cdf.read(path), share).sampler(Random(1))  # noqa: S311
    except WorkloadError as e:
        raise LengthError(str(e)) from None
    except ValueError as e:
        raise LengthError(f"{path}: {e}") from None
    pairs = np.array([draw() for _ in range(SAMPLE)], dtype=np.float64)
    return Lengths(pairs[:, 0], pairs[:, 1], f"{Path(path).name}, {share:.0%} of it prompt")


def of_workload(workload: Workload, most: int = 1_000_000) -> tuple[Lengths, Floats]:
    """The lengths and the arrival times (seconds) of a trace or a made-up workload, its first `most` requests. Raises
    LengthError, WorkloadError."""
    prompts: list[int] = []
    outputs: list[int] = []
    arrivals: list[float] = []
    for ask in workload:
        if len(prompts) >= most:
            break
        prompts.append(ask.prompt_tokens)
        outputs.append(ask.output_tokens)
        arrivals.append(ask.arrival)
    lengths = Lengths(np.array(prompts, dtype=np.float64), np.array(outputs, dtype=np.float64), workload.name)
    return lengths, np.array(arrivals, dtype=np.float64)
