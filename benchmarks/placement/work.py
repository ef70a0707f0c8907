"""How evenly the engines worked, window by window.

A request is two pieces of work on its engine, both in engine-seconds, so that they add up to the share of its time and
memory that it gave:

- prefill: the seconds in which the empty engine would compute the tokens that were not cached, at the depth at which
  they stand in the prompt; taken as going on evenly from when it was scheduled until its first token;
- decode: its KV blocks, growing from prompt to prompt + answer between first token and end, × seconds, ÷ the blocks of
  the engine. Blocks that two requests share count for each: attention reads them for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from forebay.hardware.steptime import Chunk, StepTime
from forebay.sim.results import Requests
from forebay.sim.settings import EngineSettings

Floats = npt.NDArray[np.float64]


class Prefill:
    """Seconds that the empty engine needs for the first n tokens of a prompt: sums at whole steps, a line between."""

    def __init__(self, steps: StepTime, settings: EngineSettings, longest: int) -> None:
        size = settings.max_num_batched_tokens
        at, seconds = [0.0], [0.0]
        while at[-1] < longest:
            seconds.append(seconds[-1] + steps.mixed([Chunk(size, int(at[-1]))], 0, 0, 0))
            at.append(at[-1] + size)
        self._at, self._seconds = np.array(at), np.array(seconds)

    def seconds(self, tokens: Floats) -> Floats:
        return np.interp(tokens, self._at, self._seconds)


class Work:
    """Of each engine in each window: columns engines, rows windows."""

    def __init__(
        self, requests: Requests, engines: int, prefill: Prefill, settings: EngineSettings, edges: Sequence[float]
    ) -> None:
        self._edges = np.array(edges)
        self._engines = engines
        first, end = np.array(requests.first), np.array(requests.end)
        scheduled, engine = np.array(requests.scheduled), np.array(requests.engine)
        prompt, output = np.array(requests.prompt, float), np.array(requests.output, float)
        cached = np.array(requests.cached, float)
        ran = ~np.isnan(scheduled) & ~np.isnan(first) & ~np.isnan(end)
        first, end, scheduled, engine = first[ran], end[ran], scheduled[ran], engine[ran]
        prompt, output, cached = prompt[ran], output[ran], cached[ran]
        self.tokens = self._even(engine, scheduled, first, prompt - cached)
        self.prefill = self._even(engine, scheduled, first, prefill.seconds(prompt) - prefill.seconds(cached))
        size = settings.block_size
        self.decode = self._growing(engine, first, end, prompt / size, output / size) / settings.num_blocks
        self.all = self.prefill + self.decode

    def _even(self, engine: Any, begin: Floats, end: Floats, amount: Floats) -> Floats:
        span = np.maximum(end - begin, 1e-9)
        out = np.zeros((len(self._edges) - 1, self._engines))
        for w in range(len(out)):
            inside = np.clip(np.minimum(end, self._edges[w + 1]) - np.maximum(begin, self._edges[w]), 0, None)
            out[w] = np.bincount(engine, amount * inside / span, self._engines)
        return out

    def _growing(self, engine: Any, begin: Floats, end: Floats, low: Floats, more: Floats) -> Floats:
        """The integral of low + more × (t − begin) / (end − begin)."""
        span = np.maximum(end - begin, 1e-9)
        out = np.zeros((len(self._edges) - 1, self._engines))
        for w in range(len(out)):
            a, b = np.maximum(begin, self._edges[w]), np.minimum(end, self._edges[w + 1])
            inside = np.clip(b - a, 0, None)
            middle = ((a + b) / 2 - begin) / span
            out[w] = np.bincount(engine, inside * (low + more * np.clip(middle, 0, 1)), self._engines)
        return out


def balance(work: Floats, present: npt.NDArray[np.bool_]) -> dict[str, Any]:
    """max/mean over the engines that were present all through a window: of each window, and of all windows' sums of
    the engines that were always there."""
    ratios = []
    for row, here in zip(work, present, strict=True):
        mean = row[here].mean() if here.any() else 0.0
        if mean > 0:
            ratios.append(float(row[here].max() / mean))
    always = present.all(axis=0)
    whole = work[:, always].sum(axis=0)
    if not ratios:
        return {"windows": 0, "mean": None, "p95": None, "max": None, "whole": None}
    return {
        "windows": len(ratios),
        "mean": round(float(np.mean(ratios)), 4),
        "p95": round(float(np.percentile(ratios, 95)), 4),
        "max": round(max(ratios), 4),
        "whole": round(float(whole.max() / whole.mean()), 4) if len(whole) else None,
    }
