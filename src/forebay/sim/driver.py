"""Runs the engine model in real time, or so many times as fast: one timer, set for the model's next event.

The model's clock follows the wall's. Where this process cannot do a step's work in the step's time, the model's clock
falls behind: the engine is then slower than asked, and the loop is never held for longer than a step and `BUDGET`.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Sequence
from typing import Final

from forebay.hardware.steptime import StepTime
from forebay.sim.engine import EngineModel
from forebay.sim.jobs import Job
from forebay.sim.settings import EngineSettings

log = logging.getLogger("forebay.sim")

GRAIN: Final = 0.001
"""Seconds between two ticks at least: what falls due within it goes out together."""
BUDGET: Final = 0.05
"""Seconds that one tick works off what is overdue."""
_TELL_LAG: Final = 1.0


class Follower:
    """Who asked for one sequence. Times are monotonic seconds of the wall."""

    __slots__ = ("ended", "job")

    def __init__(self, job: Job) -> None:
        self.job = job
        self.ended = False

    def on_scheduled(self, at: float) -> None:
        """It has left the queue."""

    def on_tokens(self, n: int, at: float) -> None:
        """`n` tokens, or the rest where that is less."""
        raise NotImplementedError

    def on_broken(self) -> None:
        """One of the others raised: end the request."""
        raise NotImplementedError


class Driver:
    """Mutable state: the model, what it told and was not passed on yet, the wall's time of the model's zero, and the
    timer."""

    def __init__(
        self, settings: EngineSettings, steps: StepTime, loop: asyncio.AbstractEventLoop, *, speed: float = 1.0
    ) -> None:
        """`speed`: seconds of the model in one of the wall. Raises ValueError where that is none."""
        if not (speed > 0 and math.isfinite(speed)):
            raise ValueError(f"speed must be greater than 0, not {speed}")
        self.engine = EngineModel(settings, steps, self, max_run=1, track=True)
        self.speed = speed
        self.lag = 0.0
        """Seconds of the wall by which it has fallen behind, in all."""
        self._loop = loop
        self._zero = time.monotonic()
        self._happened: list[tuple[int, Sequence[Job], float]] = []  # (tokens each, or 0: scheduled; whose; when)
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._last_tick = -1.0

    def now(self) -> float:
        """The event loop's clock, but fresh: uvloop's own is of the start of the iteration, in milliseconds."""
        return time.monotonic()

    # --- what a request does -----------------------------------------------------------------------------------------

    def submit(self, follower: Follower) -> None:
        """Raises QueueFull or TooLong. Nothing is told before this returns."""
        job = follower.job
        now = self._catch_up()
        job.tag = follower
        self.engine.submit(job, now)
        self._arm()

    def cancel(self, follower: Follower) -> None:
        """Nothing of it follows; its slot and KV are free when the step that runs ends. What has ended stays so."""
        job = follower.job
        if job.tag is None:
            return
        job.tag = None
        if not follower.ended:
            self.engine.cancel(job, self._catch_up())
            self._arm()

    def release(self, job: Job) -> None:
        """Its KV has been fetched."""
        self.engine.release(job, self._catch_up())
        self._arm()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- jobs.Listener: told in the middle of the model's work, so only noted ----------------------------------------

    def on_scheduled(self, job: Job, at: float) -> None:
        self._happened.append((0, (job,), at))

    def on_first_token(self, job: Job, at: float) -> None:
        self._happened.append((1, (job,), at))

    def on_tokens(self, n: int, steps: int, first: float, last: float, jobs: Sequence[Job] | None, at: float) -> None:
        if jobs:
            self._happened.append((self.engine.tokens_each, jobs, at))

    def on_preempt(self, job: Job, at: float) -> None:
        """The request only waits longer."""

    def on_finish(self, job: Job, at: float) -> None:
        if job.tag is not None:
            job.tag.ended = True

    # --- time --------------------------------------------------------------------------------------------------------

    def _catch_up(self) -> float:
        """Bring the model to the present; its time."""
        engine = self.engine
        started = time.monotonic()
        now = (started - self._zero) * self.speed
        while engine.due() <= now:
            if time.monotonic() - started > BUDGET:
                self._fall_behind()
                return engine.now
            engine.advance(engine.due())
        return max(now, engine.now)

    def _fall_behind(self) -> None:
        """What is overdue now is due now."""
        zero = time.monotonic() - self.engine.now / self.speed
        before = self.lag
        self.lag += zero - self._zero
        self._zero = zero
        if before < _TELL_LAG <= self.lag:
            log.warning("this machine is too slow for the engine it emulates, which is therefore slower than asked")

    def _arm(self) -> None:
        due = self.engine.due()
        if self._happened:
            due = self._last_tick + GRAIN
        elif due == math.inf:
            return
        else:
            due = max(self._zero + due / self.speed, self._last_tick + GRAIN)
        timer = self._timer
        if timer is not None:
            if self._due <= due:
                return
            timer.cancel()
        self._due = due
        self._timer = self._loop.call_at(due, self._tick)

    def _tick(self) -> None:
        self._timer = None
        engine = self.engine
        started = self._last_tick = time.monotonic()
        now = (started - self._zero) * self.speed
        self._pass_on()
        while engine.due() <= now:
            if time.monotonic() - started > BUDGET:
                self._fall_behind()
                break
            engine.advance(engine.due())
            self._pass_on()
        self._arm()

    def _pass_on(self) -> None:
        while self._happened:
            happened, self._happened = self._happened, []
            for n, jobs, at in happened:
                wall = self._zero + at / self.speed
                for job in jobs:
                    follower: Follower | None = job.tag
                    if follower is None:
                        continue
                    try:
                        if n:
                            follower.on_tokens(n, wall)
                        else:
                            follower.on_scheduled(wall)
                    except Exception:
                        log.exception("a request failed inside the engine")
                        self.cancel(follower)
                        follower.on_broken()

    def __repr__(self) -> str:
        return f"<Driver {self.engine!r}>"
