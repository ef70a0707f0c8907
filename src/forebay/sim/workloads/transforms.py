"""Workloads made of workloads: faster, denser, repeated, merged, cut. All stream."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush, merge
from operator import itemgetter
from typing import Final

from forebay.sim.workload import Ask
from forebay.sim.workloads.bounds import MAX_UNFIT, none_fits
from forebay.sim.workloads.dice import dice
from forebay.sim.workloads.source import Size, Source, Tally

MAX_COPIES: Final = 10_000
SPEEDS: Final = (1e-6, 1e6)
"""The slowest and the fastest."""


def renamed(ask: Ask, suffix: str) -> Ask:
    """The same request with other content: no prefix in common with it, and as before with others so renamed."""
    if not ask.prefix and ask.keeps is None:
        return ask
    prefix = tuple((_renamed(key, suffix), tokens) for key, tokens in ask.prefix)
    return ask._replace(prefix=prefix, keeps=None if ask.keeps is None else _renamed(ask.keeps, suffix))


def _renamed(key: int | str, suffix: str) -> str:
    """A number and a text that looks like it stay different."""
    return f"{key}~{suffix}" if type(key) is int else f"{key}~~{suffix}"


@dataclass(frozen=True, slots=True)
class Sped:
    """Time runs `factor` times as fast: arrivals move together. Raises ValueError for a factor outside of SPEEDS."""

    source: Source
    factor: float

    def __post_init__(self) -> None:
        if not SPEEDS[0] <= self.factor <= SPEEDS[1]:
            raise ValueError(f"speed must be from {SPEEDS[0]:g} to {SPEEDS[1]:,.0f}, not {self.factor:g}")

    @property
    def size(self) -> Size:
        n, seconds, rate = self.source.size
        return Size(n, seconds / self.factor, rate * self.factor)

    def stream(self, tally: Tally) -> Iterator[Ask]:
        factor = self.factor
        for ask in self.source.stream(tally):
            yield Ask(ask[0] / factor, *ask[1:])


@dataclass(frozen=True, slots=True)
class Scaled:
    """`factor` times as many requests in the same time.

    Under 1, each stays with this probability. Over 1, there are copies: each copy of the whole is moved by a time of
    its own, from 0 to `spread` seconds, so that it keeps its bursts and its conversations' order; the last copy is
    thinned to the fraction. Copies are others' requests: their prefixes get names of their own unless `rename` is off.
    Holds the requests of `spread` seconds. Raises ValueError for a factor outside 0 to MAX_COPIES, a negative spread.
    """

    source: Source
    factor: float
    spread: float = 60.0
    rename: bool = True
    seed: str = "0"

    def __post_init__(self) -> None:
        if not 0 < self.factor <= MAX_COPIES:
            raise ValueError(f"scale must be greater than 0 and at most {MAX_COPIES:,}, not {self.factor:g}")
        if not 0 <= self.spread < math.inf:
            raise ValueError(f"spread must be at least 0 seconds, not {self.spread:g}")

    @property
    def size(self) -> Size:
        n, seconds, rate = self.source.size
        return Size(n * self.factor, seconds, rate * self.factor)

    def stream(self, tally: Tally) -> Iterator[Ask]:
        whole, fraction = int(self.factor), self.factor % 1
        copies = whole + (fraction > 0)
        rng = dice(self.seed, "scale")
        shifts = [0.0, *(rng.uniform(0, self.spread) for _ in range(copies - 1))]
        held: list[tuple[float, int, Ask]] = []
        n = 0
        for ask in self.source.stream(tally):
            for i in range(copies):
                if i == whole and rng.random() >= fraction:
                    continue
                copy = renamed(ask, str(i)) if i and self.rename else ask
                at = ask.arrival + shifts[i]
                heappush(held, (at, n, copy if i == 0 else copy._replace(arrival=at)))
                n += 1
            while held and held[0][0] <= ask.arrival:
                yield heappop(held)[2]
        while held:
            yield heappop(held)[2]


@dataclass(frozen=True, slots=True)
class Repeated:
    """The source `times` times: the next pass begins a mean gap after the last arrival. Each pass is of
    others' requests: prefixes get names of their own unless `rename` is off. Raises ValueError for times outside 1 to
    MAX_COPIES."""

    source: Source
    times: int
    rename: bool = True

    def __post_init__(self) -> None:
        if not 1 <= self.times <= MAX_COPIES:
            raise ValueError(f"repeat must be from 1 to {MAX_COPIES:,}, not {self.times}")

    @property
    def size(self) -> Size:
        n, seconds, rate = self.source.size
        return Size(n * self.times, seconds * self.times, rate)

    def stream(self, tally: Tally) -> Iterator[Ask]:
        begin = first = last = 0.0
        for i in range(self.times):
            n = 0
            for ask in self.source.stream(tally):
                n += 1
                last = begin + ask.arrival
                first = last if n == 1 else first
                if i:
                    ask = ask._replace(arrival=last)
                    if self.rename:
                        ask = renamed(ask, str(i))
                yield ask
            begin = last + ((last - first) / (n - 1) if n > 1 else 0.0)


@dataclass(frozen=True, slots=True)
class Skipped:
    """What comes from `seconds` on, with that moment as the begin. Raises ValueError for negative seconds."""

    source: Source
    seconds: float

    def __post_init__(self) -> None:
        if not 0 <= self.seconds < math.inf:
            raise ValueError(f"skip must be at least 0 seconds, not {self.seconds:g}")

    @property
    def size(self) -> Size:
        n, seconds, rate = self.source.size
        if not self.seconds:
            return self.source.size
        return Size(max(0.0, n - rate * self.seconds), max(0.0, seconds - self.seconds), rate)

    def stream(self, tally: Tally) -> Iterator[Ask]:
        skip = self.seconds
        for ask in self.source.stream(tally):
            if ask[0] >= skip:
                yield Ask(ask[0] - skip, *ask[1:])


@dataclass(frozen=True, slots=True)
class Limited:
    """The first `most` requests that come before `seconds`. Raises ValueError for limits that are not positive."""

    source: Source
    most: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        if self.most is not None and self.most < 1:
            raise ValueError(f"requests must be at least 1, not {self.most}")
        if self.seconds is not None and not 0 < self.seconds < math.inf:
            raise ValueError(f"duration must be greater than 0 seconds, not {self.seconds:g}")

    @property
    def size(self) -> Size:
        n, seconds, rate = self.source.size
        if self.most is not None:
            seconds = _least(seconds, self.most / rate)
            n = _least(n, self.most)
        if self.seconds is not None:
            n = _least(n, self.seconds * rate)
            seconds = _least(seconds, self.seconds)
        return Size(n, seconds, rate)

    def stream(self, tally: Tally) -> Iterator[Ask]:
        end = math.inf if self.seconds is None else self.seconds
        left = math.inf if self.most is None else self.most
        for ask in self.source.stream(tally):
            if ask[0] >= end:
                return
            yield ask
            left -= 1
            if left <= 0:
                return


def _least(a: float, b: float) -> float:
    """Of what is known."""
    return b if math.isnan(a) or b < a else a


@dataclass(frozen=True, slots=True)
class Merged:
    """All at once, in order of arrival. The sources' prefixes have nothing in common unless `rename` is off. Raises
    ValueError for no source."""

    sources: Sequence[Source]
    rename: bool = True

    def __post_init__(self) -> None:
        if not self.sources:
            raise ValueError("there is nothing to merge")

    @property
    def size(self) -> Size:
        sizes = [source.size for source in self.sources]
        ends = [size.duration for size in sizes]
        return Size(
            sum(size.requests for size in sizes),
            math.nan if any(map(math.isnan, ends)) else max(ends),
            sum(size.rate for size in sizes),
        )

    def stream(self, tally: Tally) -> Iterator[Ask]:
        streams = (self._one(i, source.stream(tally)) for i, source in enumerate(self.sources))
        return merge(*streams, key=itemgetter(0))

    def _one(self, i: int, asks: Iterator[Ask]) -> Iterator[Ask]:
        return (renamed(ask, f"w{i}") for ask in asks) if i and self.rename else asks


@dataclass(frozen=True, slots=True)
class Fitted:
    """No request is longer than `context` tokens, prompt and answer together: longer ones are dropped, or with `clip`
    cut, the answer first (to no less than 1 token), then the prompt's end. Both are counted. Raises ValueError for a
    context under 2, and in the stream WorkloadError where MAX_UNFIT requests in a row are dropped."""

    source: Source
    context: int
    clip: bool = False

    def __post_init__(self) -> None:
        if self.context < 2:
            raise ValueError(f"context must be at least 2 tokens, not {self.context}")

    @property
    def size(self) -> Size:
        return self.source.size

    def stream(self, tally: Tally) -> Iterator[Ask]:
        context = self.context
        unfit = 0
        for ask in self.source.stream(tally):
            if ask.prompt_tokens + ask.output_tokens <= context:
                unfit = 0
                yield ask
            elif self.clip:
                tally.clipped += 1
                yield _clipped(ask, context)
            else:
                tally.dropped += 1
                unfit += 1
                if unfit >= MAX_UNFIT:
                    raise none_fits(context)


def _clipped(ask: Ask, context: int) -> Ask:
    prompt = min(ask.prompt_tokens, context - 1)
    pieces: list[tuple[int | str, int]] = []
    left = prompt
    for key, tokens in ask.prefix:
        if left <= 0:
            break
        pieces.append((key, min(tokens, left)))
        left -= tokens
    output = min(ask.output_tokens, context - prompt)
    return ask._replace(prompt_tokens=prompt, output_tokens=output, prefix=tuple(pieces))
