"""The timed steps of a calibration: prompts alone, batches that decode, and prompts that come in while others decode.

Everything is seen from the client. A prompt alone: its time to first token is the host's cost and the steps of its
prefill. A batch that decodes: the median gap between two tokens while all of it decodes is one step. A prompt that
comes in: the others' gap that ends with its first token is the step that carried its prefill (several, where the token
budget cuts it).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from time import monotonic
from typing import Final

from forebay.hardware.fitted import EngineFacts
from forebay.hardware.steptime import Chunk
from forebay.plan.calibrate_client import Session, Shape, Stream
from forebay.plan.calibrate_fit import Sample, Step

PROMPTS: Final = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768)
BATCHES: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
SHORT: Final = 16
"""Prompt tokens of a batch whose context should not matter."""
LONG: Final = 1024
"""Likewise where it should, at most."""
MIDDLE: Final = 256
TOKENS: Final = 24
"""Answer tokens of a batch that decodes."""
RIPE: Final = 4
"""Tokens that each of a batch has before a prompt comes in."""
MAX_ROUNDS: Final = 25
TRIES: Final = 2
"""Failures after which a point is given up."""
FULL: Final = 1.5
"""Times the usual gap, from which on a step is taken to be one with prefill."""


class PointFailed(Exception):
    """A point could not be measured: why."""


@dataclass(frozen=True, slots=True)
class Point:
    """What to measure: `n` that decode with prompts of `context` tokens, or a prompt of `prompt` tokens, or both."""

    axis: str
    n: int = 0
    context: int = 0
    prompt: int = 0

    @property
    def name(self) -> str:
        if self.axis == "prefill":
            return f"{self.prompt:,} tokens"
        if self.axis == "decode":
            return f"{self.n:,} × {self.context:,} tokens"
        return f"{self.prompt:,} tokens beside {self.n:,}"


@dataclass
class Words:
    """How many words make a prompt of so many tokens: tokens = fixed + a_word · words."""

    fixed: float = 0.0
    a_word: float = 1.0

    def of(self, tokens: int) -> int:
        return max(1, round((tokens - self.fixed) / self.a_word))


@dataclass
class Sweep:
    """State: the samples so far, what a token and a step cost lately, and what was left out and why."""

    session: Session
    engine: EngineFacts
    words: Words
    ends: float
    """When to be done, on the monotonic clock."""
    on_progress: Callable[[str], None] = lambda _: None
    samples: list[Sample] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    rounds: int = 0
    _a_token: float = 0.0
    _a_step: float = 0.0

    async def run(self, points: Sequence[Point]) -> None:
        """Measure each point in turn, again and again until the time is over."""
        failed: dict[Point, int] = {}
        while not self.rounds or (self.rounds < MAX_ROUNDS and monotonic() < self.ends):
            for point in points:
                if failed.get(point, 0) >= TRIES:
                    continue
                late = monotonic() + self._cost(point) > self.ends
                if late:
                    if not self.rounds:
                        self.left_out[f"{point.axis} {point.name}"] = "no time left"
                    continue
                self.on_progress(f"{point.axis}: {point.name}")
                try:
                    await self.measure(point)
                except PointFailed as e:
                    failed[point] = failed.get(point, 0) + 1
                    self.left_out[f"{point.axis} {point.name}"] = str(e)
            self.rounds += 1
        measured = {f"{s.axis} {s.point}" for s in self.samples}
        self.left_out = {name: why for name, why in self.left_out.items() if name not in measured}

    async def measure(self, point: Point) -> None:
        """Raises PointFailed."""
        if point.axis == "prefill":
            await self._prefill(point)
        elif point.axis == "decode":
            await self._decode(point)
        else:
            await self._mixed(point)

    def _cost(self, point: Point) -> float:
        """Seconds, guessed from what came before."""
        tokens = point.prompt + point.n * point.context
        steps = (TOKENS + 2 * point.n) if point.n else 1
        return tokens * self._a_token + steps * self._a_step

    async def _prefill(self, point: Point) -> None:
        (stream,) = await self.session.batch([Shape(self.words.of(point.prompt), 1)])
        _check([stream])
        size = stream.prompt_tokens
        self._a_token = max(self._a_token, stream.ttft / max(size, 64))
        steps = self.chunked(size, 0, 0)
        self.samples.append(Sample("prefill", point.name, steps, stream.ttft, prompt_tokens=size))

    async def _decode(self, point: Point) -> None:
        shape = Shape(self.words.of(point.context), TOKENS + 2 * point.n)
        streams = await self.session.batch([shape] * point.n)
        _check(streams)
        begins = max(s.times[0] for s in streams)
        ends = min(s.times[-1] for s in streams)
        if ends <= begins:
            raise PointFailed(f"of {point.n} sequences not all decoded at once")
        seconds = statistics.median(_gap(s, begins, ends) for s in streams)
        middle = (begins + ends) / 2
        context = sum(s.prompt_tokens + _tokens_at(s, middle) for s in streams)
        self._a_step = max(seconds, self._a_step * 0.9)
        self.samples.append(Sample("decode", point.name, (Step((), point.n, context),), seconds))

    async def _mixed(self, point: Point) -> None:
        steps = len(self.chunked(point.prompt, point.n, 0))
        beside, came = await self._come_in(point, RIPE + steps + 28)
        first = came.times[0]
        steps = len(self.chunked(came.prompt_tokens, point.n, 0))
        gaps = []
        context = 0
        for s in beside:
            j = _carried(s.times, first)
            context += s.prompt_tokens + j
            if j >= steps:
                gaps.append(s.times[j] - s.times[j - steps])
        if not gaps:
            raise PointFailed("no gap could be told from the others")
        gap = statistics.median(gaps)
        made = self.chunked(came.prompt_tokens, point.n, context)
        waited = came.ttft - gap
        self.samples.append(Sample("mixed", point.name, made, gap, waited=waited, arrived=came.prompt_tokens))

    async def _come_in(self, point: Point, tokens: int) -> tuple[list[Stream], Stream]:
        """Let a prompt come in while others, of so many answer tokens, decode."""
        session = self.session
        session.start()
        beside = [session.send(Shape(self.words.of(point.context), tokens)) for _ in range(point.n)]
        await session.until(lambda s: len(s.times) >= RIPE)
        came = session.send(Shape(self.words.of(point.prompt), 2))
        await session.finish()
        _check([*beside, came])
        if any(not s.whole or s.times[-1] <= came.times[0] for s in beside):
            raise PointFailed("the others had ended, or their tokens did not come one by one")
        return beside, came

    async def steps_of(self, prompt: int) -> tuple[int, int]:
        """Prompt tokens, and in how many steps they were prefilled beside one sequence that decodes: its long gaps up
        to the prompt's first token. Raises PointFailed."""
        (other,), came = await self._come_in(Point("mixed", 1, SHORT, prompt), RIPE + 64)
        j = _carried(other.times, came.times[0])
        gaps = [b - a for a, b in pairwise(other.times)]
        steps, longest = 1, gaps[j - 1]
        while steps < j and gaps[j - 1 - steps] > max(FULL * statistics.median(gaps), longest / 2):
            longest = max(longest, gaps[j - 1 - steps])
            steps += 1
        self._a_token = max(self._a_token, (other.times[j] - other.times[j - steps]) / came.prompt_tokens)
        return came.prompt_tokens, steps

    def chunked(self, tokens: int, n: int, context: int) -> tuple[Step, ...]:
        """The steps of a prompt's prefill beside `n` that decode, as the token budget cuts it."""
        budget = self.engine.max_num_batched_tokens
        most = max(1, budget - n) if budget else tokens
        steps, done = [], 0
        while done < tokens:
            size = min(most, tokens - done)
            steps.append(Step((Chunk(size, done, done + size == tokens),), n, context))
            done += size
        return tuple(steps)


def points_for(engine: EngineFacts, max_prompt: int, max_batch: int) -> list[Point]:
    """What a round measures, the most telling first. `max_prompt` and `max_batch`: the largest prompt in tokens and the
    most sequences at once to send."""
    room = max(SHORT, min(max_prompt, longest(engine) or max_prompt))
    most = max(1, min(max_batch, engine.max_num_seqs or max_batch))
    lengths = [p for p in PROMPTS if p < room] + [room]
    batches = [n for n in BATCHES if n < most] + [most]
    kv = engine.kv_tokens
    some = dict.fromkeys((1, (most + 1) // 2, most))
    decode = [Point("decode", n, SHORT) for n in batches]
    decode += [
        Point("decode", n, context) for context in dict.fromkeys((min(LONG, room), min(MIDDLE, room))) for n in some
    ]
    decode = [p for p in decode if not kv or p.n * (p.context + TOKENS + 2 * p.n) < 0.9 * kv]
    prefill = [Point("prefill", prompt=p) for p in lengths]
    beside = [n for n in dict.fromkeys((most - 1, (most + 1) // 2)) if 0 < n < most]
    sizes = dict.fromkeys(p for p in (64, 256, min(1024, room), room) if p <= room)
    mixed = [Point("mixed", n, SHORT, p) for p in sizes for n in beside]
    out: list[Point] = []
    for group in (prefill, decode, mixed):
        out += [group[i] for i in dict.fromkeys((0, len(group) - 1, len(group) // 2)) if group]
    return list(dict.fromkeys([*out, *prefill, *decode, *mixed]))


def _gap(stream: Stream, begins: float, ends: float) -> float:
    """Seconds between two tokens of it in that time: the median, or the mean where some came together (their single
    gaps then say how late the host was, not how long a step is). Raises PointFailed where it has too few."""
    times = [t for t in stream.times if begins <= t <= ends]
    if len(times) < 3:
        raise PointFailed("too few tokens came while all decoded")
    mean = (times[-1] - times[0]) / (len(times) - 1)
    if not stream.whole:
        return mean * len(stream.times) / stream.output_tokens
    gaps = [b - a for a, b in pairwise(times)]
    together = sum(gap < 0.2 * mean for gap in gaps)
    return mean if together > 0.05 * len(gaps) else statistics.median(gaps)


def longest(engine: EngineFacts) -> int | None:
    """The longest prompt to send, in tokens: a prompt is made of words, so its length is known within a few percent."""
    return None if engine.max_model_len is None else max(1, int(0.92 * engine.max_model_len) - 80)


def _carried(times: Sequence[float], at: float) -> int:
    """Which of another's tokens came of the step that ended a prompt whose first token came at `at`: the nearest, or
    the one before where that had the long gap and is hardly further (a first token takes the host longer than others).
    """
    gaps = [b - a for a, b in pairwise(times)]
    usual = statistics.median(gaps)
    nearest = min(range(len(times)), key=lambda i: abs(times[i] - at))
    before = nearest - 1
    if before > 0 and abs(times[before] - at) < usual and gaps[before] < FULL * usual < gaps[before - 1]:
        return before
    return nearest


def _tokens_at(stream: Stream, at: float) -> int:
    """Tokens that it had by then, spread evenly over its events."""
    events = sum(t <= at for t in stream.times)
    return round(events * stream.output_tokens / len(stream.times))


def _check(streams: Sequence[Stream]) -> None:
    """Raises PointFailed for an answer that failed or does not say how long it is."""
    for s in streams:
        if s.error is not None:
            raise PointFailed(f"the engine's answer: {s.error}")
        if not s.prompt_tokens:
            raise PointFailed("the engine does not report usage in its streams")
