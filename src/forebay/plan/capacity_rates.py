"""What one engine carries, by formulas on its step times: a fixed point for how many sequences decode, limits of
throughput, and the wait of those that arrive.

A step takes T(n, s) seconds with `n` sequences that decode and `s` prompt tokens. At `rate` requests a second, Little's
law gives n = rate · E[O - 1] · T: each request decodes O - 1 tokens, one a step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from forebay.hardware.steptime import Chunk, StepTime
from forebay.plan.capacity_lengths import Floats, Lengths

POINTS: Final = 17
"""Prompt tokens at which a step is timed; straight lines between them."""
BINS: Final = 256
"""Of a distribution of waiting tokens."""
ROUNDS: Final = 200
CLOSE: Final = 3e-5
LEVELS: Final = 6
"""Lengths of steps, by which what comes during them is told apart."""
TRIES: Final = 40
FULL: Final = 0.98
"""Of a step's budget: nearer to it, prompts wait for ever longer."""


@dataclass(frozen=True, kw_only=True)
class Lane:
    """One scheduler with its own batch: an engine, or one of the batches that go round in a pipeline."""

    steps: StepTime = field(repr=False)
    kv_tokens: float
    """Tokens of KV cache that it can hold."""
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    block_size: int = 16
    async_scheduling: bool = True


@dataclass(frozen=True)
class Limit:
    """A throughput that cannot be passed, and why."""

    name: str
    """kv, max_num_seqs, prefill or decode."""
    rate: float
    """Requests a second."""
    decoding: float
    """Sequences that decode at it."""
    step: float
    """Seconds of a step at it."""
    prefill: float
    """Prompt tokens of a step at it."""


@dataclass(frozen=True)
class Settled:
    """A steady state."""

    decoding: float
    """Sequences."""
    step: float
    """Seconds of a mean step."""
    room: float
    """Prompt tokens that a step may have."""
    waiting: Floats = field(repr=False)
    """Distribution on `Engine.grid` of the tokens that wait when a step is put together."""
    seconds: Floats = field(repr=False)
    """A step's, at each point of the grid."""
    variance: float
    """Of a step's seconds."""


class Engine:
    """A lane under a kind of load: lengths of requests, of whose prompts `cache_hit` (0 to 1) is found in the prefix
    cache, as a prefix that requests share. `faster`: how many times as fast prompts are computed, and tokens decoded.
    Keeps what was timed."""

    def __init__(
        self, lane: Lane, lengths: Lengths, cache_hit: float = 0.0, faster: tuple[float, float] = (1.0, 1.0)
    ) -> None:
        self.lane = lane
        self.lengths = lengths
        self.cache_hit = cache_hit
        self._faster = faster
        self.prompts: Floats = np.maximum(1.0, lengths.prompts * (1 - cache_hit))
        """Prompt tokens that are computed."""
        self.prompt = float(self.prompts.mean())
        self.decodes = float(np.maximum(0.0, lengths.outputs - 1).mean())
        """Decode steps of a request, E[O - 1]."""
        budget = lane.max_num_batched_tokens
        self.tokens: Floats = np.unique(np.r_[0.0, 1.0, np.geomspace(min(16, budget), budget, POINTS - 2).round()])
        """Prompt tokens at which steps are timed."""
        few = np.arange(min(16, budget) + 1.0)
        self.counts: Floats = np.unique(
            np.r_[few, np.geomspace(few[-1], budget, 1 + math.ceil(12 * math.log(budget / few[-1]))).round()]
        )
        """Sequences at which they are timed."""
        self._rows: dict[int, Floats] = {}

    # --- steps -------------------------------------------------------------------------------------------------------

    def _row(self, i: int) -> Floats:
        """Seconds at each of `tokens` prompt tokens, with `counts[i]` sequences."""
        found = self._rows.get(i)
        if found is None:
            n = int(self.counts[i])
            timed = np.array([self._timed(n, int(s)) for s in self.tokens])
            prefill, decode = self._faster
            found = self._rows[i] = timed[0] / decode + (timed - timed[0]) / prefill
        return found

    def curve(self, n: float) -> Floats:
        """Seconds of a step at each of `tokens` prompt tokens, with `n` sequences: a straight line between those of
        `counts` beside it."""
        i = int(np.searchsorted(self.counts, n, side="right")) - 1
        low = float(self.counts[i])
        if n <= low or i + 1 == len(self.counts):
            return self._row(i)
        return self._row(i) + (n - low) / (float(self.counts[i + 1]) - low) * (self._row(i + 1) - self._row(i))

    def _timed(self, n: int, tokens: int) -> float:
        context = self.lengths.decode_context
        if not tokens:
            return self.lane.steps.decode(max(1, n), int(max(1, n) * context), self._longest(n))
        return self.lane.steps.mixed(tuple(self._chunks(tokens)), n, int(n * context), self._longest(n))

    def _chunks(self, tokens: int) -> Iterator[Chunk]:
        """`tokens` of prompts as this load has them: attention's cost grows with the square of a prompt, so that one
        token's is that of the prompt it is likely to be in."""
        hit = self.cache_hit
        typical = max(1, round(self.lengths.weighted_prompt * (1 - hit)))
        before = round(self.lengths.weighted_prompt * hit)
        if typical >= tokens:
            yield Chunk(tokens, before + (typical - tokens) // 2)
            return
        whole, rest = divmod(tokens, typical)
        for _ in range(whole):
            yield Chunk(typical, before)
        if rest:
            yield Chunk(rest, before + (typical - rest) // 2)

    @cached_property
    def _sorted_prompts(self) -> Floats:
        return np.sort(self.lengths.prompts)

    def _longest(self, n: int) -> int:
        """About the most tokens that one of `n` sequences holds."""
        prompts = self._sorted_prompts
        return int(prompts[int(len(prompts) * (1 - 1 / max(2, n + 1)))] + self.lengths.output / 2)

    def step(self, n: float, tokens: float) -> float:
        """Seconds of a step."""
        return float(np.interp(tokens, self.tokens, self.curve(n)))

    # --- what fits ---------------------------------------------------------------------------------------------------

    @cached_property
    def held(self) -> float:
        """KV tokens that a running sequence holds, in the mean over its time: context, half a block, and while its
        prompt is computed all of that. Shared prefixes are held once."""
        lengths = self.lengths
        own = lengths.decode_context - self.cache_hit * lengths.prompt
        return own + self.lane.block_size / 2

    @cached_property
    def held_deviation(self) -> float:
        """Standard deviation of what a running sequence holds, over sequences and their time."""
        lengths = self.lengths
        own = lengths.prompts * (1 - self.cache_hit)
        weights = np.maximum(lengths.outputs - 1, 1e-9)
        square = own**2 + own * lengths.outputs + lengths.outputs**2 / 3
        total = float(weights.sum())
        mean = float((weights * (own + lengths.outputs / 2)).sum()) / total
        return math.sqrt(max(0.0, float((weights * square).sum()) / total - mean**2))

    @cached_property
    def prefill_steps(self) -> float:
        """Steps that a prompt takes at least, in the mean."""
        return float(np.ceil(self.prompts / self.lane.max_num_batched_tokens).mean())

    @cached_property
    def idle_steps(self) -> float:
        """Steps between a sequence's end and its successor's first: asynchronous scheduling has put the next step
        together already."""
        return 1.0 if self.lane.async_scheduling else 0.0

    @cached_property
    def preempted(self) -> float:
        """Times that a request is put back and computed again where more always wait than fit. What was free behind the
        last admission (even between none and a prompt, P) is what running sequences grow into until one ends, in the
        mean by E[O - 1] tokens in sum: P(Exp(O') > U(0, P)) = O' / P · (1 - exp(-P / O'))."""
        own = (1 - self.cache_hit) * self.lengths.prompt
        if self.decodes <= 0:
            return 0.0
        return self.decodes / own * -math.expm1(-own / self.decodes)

    @property
    def slots_of_kv(self) -> float:
        """Running sequences that the KV cache has room for, of this load's mean, while more wait. A block is set aside;
        the next prompt finds less free than it needs, half of it in the mean; what was put back leaves its own free
        until another ends, half of the time."""
        own = (1 - self.cache_hit) * self.lengths.prompt
        lost = self.lane.block_size + self.cache_hit * self.lengths.prompt + (1 + self.preempted) * own / 2
        return max(0.0, self.lane.kv_tokens - lost) / self.held

    @property
    def slots(self) -> float:
        return min(float(self.lane.max_num_seqs), self.slots_of_kv)

    def limits(self) -> list[Limit]:
        """The throughput that each limit alone would allow: KV cache, max_num_seqs, and steps that are full."""
        return [
            self._by_slots("kv", self.slots_of_kv, self.preempted),
            self._by_slots("max_num_seqs", self.lane.max_num_seqs, 0.0),
            self._by_budget(),
        ]

    @cached_property
    def most(self) -> Limit:
        """What all limits together allow."""
        kv, sequences, budget = self.limits()
        slots = kv if self.slots_of_kv < self.lane.max_num_seqs else sequences
        return min(slots, budget, key=lambda limit: limit.rate)

    def _by_slots(self, name: str, slots: float, again: float) -> Limit:
        """`slots` sequences run, each place filled as soon as it is free: of the steps of a place, E[O - 1] decode.
        Prompts are computed 1 + `again` times."""
        cycle = self.decodes + (1 + again) * (self.prefill_steps + self.idle_steps)
        n = slots * self.decodes / cycle
        arrivals = slots / cycle * (1 + again)
        if arrivals * self.prompt > FULL * self._room(n):
            return self._by_budget()
        return Limit(
            name, slots / cycle / self.mean_step(n, arrivals), n, self.mean_step(n, arrivals), arrivals * self.prompt
        )

    def _by_budget(self) -> Limit:
        """Every step is full: n + s = budget, and sequences come as fast as they go, s / P = n / (O - 1)."""
        budget = self.lane.max_num_batched_tokens
        n = budget * self.decodes / (self.prompt + self.decodes)
        tokens = budget - n
        step = self.step(n, tokens)
        return Limit("prefill" if tokens > n else "decode", tokens / self.prompt / step, n, step, tokens)

    # --- at a rate ---------------------------------------------------------------------------------------------------

    def settle(self, rate: float) -> Settled | None:
        """The steady state at `rate` requests a second; None where it is more than the engine can do: n =
        decoding(rate, mean step(n)), by bisection between an n that leads to more and one that leads to less."""
        low, high = 0.0, self.lane.max_num_batched_tokens - 1.0
        n = self.decoding(rate, self.step(0, 0))
        waiting = None
        for _ in range(TRIES):
            middle = n if low < n < high else (low + high) / 2
            found = self.backlog(middle, rate, waiting)
            step = math.inf if found is None else float(found @ self.on_grid(middle))
            n = self.decoding(rate, step)
            if n > middle:
                low = middle
            else:
                high = middle
            if found is not None:
                waiting = found
                if abs(n - middle) <= 0.004 * middle + 0.01:
                    seconds = self.on_grid(middle)
                    variance = max(0.0, float(found @ seconds**2) - step**2)
                    return Settled(middle, step, self._room(middle), found, seconds, variance)
        return None

    def decoding(self, rate: float, step: float) -> float:
        """Sequences that decode, by Little's law: E[O - 1] steps of each, and the echo of its own prefill: what comes
        during that is prefilled while it decodes, and what comes meanwhile, too."""
        load = min(0.99, max(0.0, 1 - self.step(0, 0) / step))
        own = self.step(0, min(self.prompt, self.lane.max_num_batched_tokens - 1.0)) - self.step(0, 0)
        return rate * (self.decodes * step + own * load / (1 - load) if self.decodes else 0.0)

    def _room(self, n: float) -> float:
        return max(1.0, self.lane.max_num_batched_tokens - n)

    def mean_step(self, n: float, arrivals: float) -> float:
        """Seconds of a step with `n` sequences in which `arrivals` prompts come in the mean, as many in each; more than
        fit are taken as if steps could be longer."""
        room = self._room(n)
        offered = arrivals * self.prompt
        if offered >= FULL * room:
            return self.step(n, room) * offered / (FULL * room)
        now = self._stationary(room, np.zeros((1, BINS)), np.array([arrivals]), None)
        return float(now @ self.on_grid(n))

    def on_grid(self, n: float) -> Floats:
        """Seconds of a step with `n` sequences when so many tokens wait, at each point of the grid."""
        return np.interp(np.minimum(self.grid, self._room(n)), self.tokens, self.curve(n))

    # --- prompt tokens that wait when a step is put together ----------------------------------------------------------

    @cached_property
    def grid(self) -> Floats:
        """Tokens, evenly spaced from 0, that the backlog is told on."""
        budget = self.lane.max_num_batched_tokens
        return np.linspace(0.0, max(4.0 * budget, 3.0 * float(self.prompts.max())), BINS)

    @cached_property
    def _prompts(self) -> Floats:
        """Probability of a prompt's length on the grid; between two points both have a part: the mean is kept."""
        width = self.grid[1]
        at = self.prompts / width
        low = np.floor(at).astype(np.int64)
        part = at - low
        weights = np.bincount(low, 1 - part, BINS + 1) + np.bincount(low + 1, part, BINS + 1)
        return weights[:BINS] / len(self.prompts)

    @cached_property
    def _spectrum(self) -> NDArray[np.complex128]:
        return np.fft.rfft(self._prompts, 2 * BINS)

    def backlog(self, n: float, rate: float, start: Floats | None = None) -> Floats | None:
        """Distribution on the grid of the prompt tokens that wait when a step with `n` sequences is put together; None
        where there is none. What comes during a step follows its length, which follows what waited: LEVELS lengths are
        told apart, others are between two of them. `start`: where to begin."""
        room, seconds = self._room(n), self.on_grid(n)
        if rate * float(seconds[-1]) * self.prompt >= FULL * room:
            return None
        first, last = float(seconds[0]), float(seconds[-1])
        at = (seconds - first) / (last - first) * (LEVELS - 1) if last > first else np.zeros(BINS)
        shares = np.maximum(0.0, 1 - np.abs(at - np.arange(LEVELS)[:, None]))
        return self._stationary(room, shares, rate * np.linspace(first, last, LEVELS), start)

    def _stationary(self, room: float, shares: Floats, arrivals: Floats, start: Floats | None) -> Floats:
        """Of the chain W' = max(W - room, 0) + A, where A are the tokens of a Poisson number of prompts, with one of
        the means `arrivals`; `shares`: of each mean (row) at each point of the grid. By iteration (Lindley)."""
        if len(shares) == 1:
            shares = np.ones((1, BINS))
        spectra = np.exp(arrivals[:, None] * (self._spectrum - 1))
        now = _tidied(np.fft.irfft(spectra.mean(axis=0), 2 * BINS)) if start is None else start
        left = np.maximum(0.0, self.grid - room) / self.grid[1]
        low = np.floor(left).astype(np.int64)
        part = left - low
        rows = len(shares)
        to = (np.arange(rows)[:, None] * (BINS + 1) + low).ravel()  # and its neighbour, each a part
        below, above = shares * (1 - part), shares * part
        for _ in range(ROUNDS):
            over = np.bincount(to, (below * now).ravel(), rows * (BINS + 1) + 1)
            over += np.bincount(to + 1, (above * now).ravel(), rows * (BINS + 1) + 1)
            kept = over[:-1].reshape(rows, BINS + 1)
            then = _tidied(np.fft.irfft((np.fft.rfft(kept, 2 * BINS, axis=1) * spectra).sum(axis=0), 2 * BINS))
            change = float(np.abs(then - now).sum())
            now = then
            if change < CLOSE:
                break
        return now


def _tidied(found: Floats) -> Floats:
    """A distribution on the grid: what lies beyond it is at its end."""
    found = np.maximum(found, 0)
    found[BINS - 1] += found[BINS:].sum()
    whole: Floats = found[:BINS] / found[:BINS].sum()
    return whole
