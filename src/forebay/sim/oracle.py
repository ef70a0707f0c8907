"""The yardstick of admission: who could have been served by one who knows every answer's length and the engine itself.

Whenever an engine has less than a step of prefill ahead of it, those who wait are tried in class, then in order of
arrival, and each is handed over with whom every request on that engine still keeps its promise, TTFT and TPOT, and none
is preempted. What will become of them is computed from the engine's own state, step by step (`Foresight`), as if nobody
came after; since whoever comes after is tried in the same way, all that were admitted keep their promise. Arrivals to
come are not known to it, so it is a yardstick and no upper bound: who picks short answers could serve more requests.

Nothing here is shared with the policy it measures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

from forebay.hardware.steptime import Chunk, StepTime
from forebay.sim.cluster import WAIT, Engine
from forebay.sim.engine import EngineModel
from forebay.sim.foresight import Foresight, Verdict
from forebay.sim.jobs import Job
from forebay.sim.settings import EngineSettings
from forebay.sim.workload import Ask

CLASSES: Final = ("vip", "normal", "low")
LOOK_EVERY: Final = 0.02
"""Seconds between two looks at those who wait where an engine's steps are longer."""
TRIES: Final = 16
"""Most requests tried at one look on one engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """What every admitted request is to keep."""

    ttft: float = 1.5
    """Seconds from arrival to the first token."""
    multiple: float = 0.0
    """Where over 0: a prompt that the empty engine needs longer for than `ttft` has so many times that long."""
    tpot: float = inf
    """(end − first token) / (output tokens − 1), seconds."""

    def first(self, ideal: float) -> float:
        """TTFT promised to a prompt that the empty engine needs `ideal` seconds for."""
        return ideal * self.multiple if self.multiple and ideal > self.ttft else self.ttft


def ideal_prefill(steps: StepTime, settings: EngineSettings, prompt: int) -> float:
    """Seconds to the first token of a prompt of so many tokens on an engine that has nothing else to do."""
    done, seconds = 0, 0.0
    while done < prompt:
        tokens = min(settings.max_num_batched_tokens, prompt - done)
        seconds += steps.mixed([Chunk(tokens, done, done + tokens >= prompt)], 0, 0, 0)
        done += tokens
    return seconds


class Oracle:
    """A `cluster.Policy`. State: those who wait, by class; when the first token of each on an engine is due; which
    engines changed since the last look. Every engine is to be shown to `watch` before the first request."""

    report_every = inf

    def __init__(self, promise: Promise) -> None:
        self._promise = promise
        self._engines: list[EngineModel] = []
        self._waiting: dict[str, dict[int, tuple[Ask, float, float]]] = {cls: {} for cls in CLASSES}
        self._deadlines: dict[int, float] = {}
        self._look_at = inf
        self._now = 0.0
        self._ideals: dict[int, float] = {}

    def watch(self, engine: EngineModel) -> None:
        self._engines.append(engine)

    def on_arrival(self, ask: Ask, row: int, now: float) -> int:
        ideal = self._ideal(ask.prompt_tokens)
        due = now + self._promise.first(ideal)
        self._waiting[ask.cls][row] = (ask, due, due - ideal)
        self._look_at = now
        return WAIT

    def _ideal(self, prompt: int) -> float:
        found = self._ideals.get(prompt)
        if found is None:
            one = self._engines[0]
            found = self._ideals[prompt] = ideal_prefill(one.steps, one.settings, prompt)
        return found

    def due(self, now: float) -> Sequence[tuple[int, int]]:
        """At most one request for each engine, since what it does to the engine is seen once it is there."""
        out: list[tuple[int, int]] = []
        taken = False
        for cls in CLASSES:
            waiting = self._waiting[cls]
            for row in [row for row, (_, _, latest) in waiting.items() if latest < now]:
                del waiting[row]
                out.append((row, -1))
        for _, i in sorted((e.waiting, i) for i, e in enumerate(self._engines)):
            found = self._find(i, now)
            if found is not None:
                out.append((found, i))
                taken = True
        left = any(self._waiting.values())
        self._look_at = (now if taken else now + LOOK_EVERY) if left else inf
        self._now = now
        return out

    def _find(self, i: int, now: float) -> int | None:
        """Who goes to engine i now: out of those who wait, and with a deadline noted."""
        engine = self._engines[i]
        if not any(self._waiting.values()):
            return None
        sight = Foresight(engine, self._deadlines, self._promise.tpot, now)
        if sight.ahead >= engine.settings.max_num_batched_tokens:
            return None
        tries, least = TRIES, inf
        for cls in CLASSES:
            for row, (ask, due, _) in self._waiting[cls].items():
                if ask.prompt_tokens >= least:
                    continue
                verdict = sight.admits(ask, due)
                if verdict is Verdict.KEPT:
                    del self._waiting[cls][row]
                    self._deadlines[row] = due
                    return row
                if verdict is Verdict.HARM:
                    least = ask.prompt_tokens
                tries -= 1
                if not tries:
                    return None
        return None

    def next_due(self) -> float:
        if self._look_at == inf:
            return inf
        for engine in self._engines:
            if engine.now > self._now:  # it went on since the last look
                return engine.now
        return min(self._look_at, *(e.due() for e in self._engines))

    def on_first_token(self, row: int, engine: int, now: float) -> None: ...

    def on_end(self, row: int, engine: int, now: float, tokens: int) -> None:
        self._deadlines.pop(row, None)
        for waiting in self._waiting.values():
            waiting.pop(row, None)

    def on_report(self, engine: int, model: Engine, jobs: Mapping[int, Job], now: float) -> None: ...

    def __repr__(self) -> str:
        return f"<Oracle {', '.join(f'{cls} {len(rows)}' for cls, rows in self._waiting.items())}>"
