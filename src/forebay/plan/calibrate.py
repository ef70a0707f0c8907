"""Calibrating against a live engine: find out what it is, time its steps within a budget, fit, and write it all down.

What an engine does not say is measured: how many sequences it runs at once (of requests that arrive together, those
whose first token comes before any has ended), its token budget (in how many steps prompts of different lengths are
prefilled), whether it schedules a step ahead, how many tokens a word is.
"""

from __future__ import annotations

import datetime
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic
from types import MappingProxyType
from typing import Final

from forebay.hardware.fitted import EngineFacts, FittedError, FittedProfile, Ranges, curve_at
from forebay.plan.calibrate_client import CHAT, PAGE_SECONDS, Session, Shape, Stream
from forebay.plan.calibrate_facts import facts
from forebay.plan.calibrate_fit import CannotFit, Fit, Sample, fit
from forebay.plan.calibrate_sweep import PointFailed, Sweep, Words, longest, points_for
from forebay.plan.target import LoadError, Target, models

NEEDED: Final = MappingProxyType({"prefill": 2, "decode": 1})
"""Points of each axis without which there is no fit."""
BUDGET_SHARE: Final = 0.15
"""Of the time, after which the token budget is searched for no further."""

Progress = Callable[[float, str], None]
"""(share of the time that is gone, what is being done)."""


class CalibrateError(Exception):
    """The engine cannot be calibrated: what was found and what to do."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How to calibrate. What is given of the engine is taken for what it says or is measured to be."""

    model: str | None = None
    seconds: float = 120.0
    max_prompt: int = 2048
    max_batch: int = 64
    timeout: float = 60.0
    """Seconds a request may take."""
    given: EngineFacts = field(default_factory=EngineFacts)


@dataclass(frozen=True, slots=True)
class Calibration:
    profile: FittedProfile
    fit: Fit
    samples: tuple[Sample, ...]
    left_out: dict[str, str]
    """Points that were not measured, and why."""
    rounds: int
    seconds: float
    words: tuple[float, float]
    """Tokens of a word of the prompts, and of a prompt without any."""


def _quiet(share: float, text: str) -> None:
    pass


async def calibrate(target: Target, settings: Settings, key: str | None, progress: Progress = _quiet) -> Calibration:
    """Raises CalibrateError, and LoadError where the server cannot be reached or is not OpenAI-like."""
    model = await _model(target, settings, key)
    session = Session(target, model, key, timeout=settings.timeout)
    await session.open()
    try:
        return await _Calibrating(session, settings, model, progress).run()
    except LoadError as e:
        raise CalibrateError(f"{target.origin} stopped answering: {e}") from None
    finally:
        await session.close()


async def _model(target: Target, settings: Settings, key: str | None) -> str:
    wanted = settings.model
    known = await models(target, key, min(PAGE_SECONDS, settings.timeout))
    if wanted is None:
        if not known:
            raise CalibrateError(f"{target.origin} lists no models; name one with --model")
        return known[0]
    if known and wanted not in known:
        raise CalibrateError(f"{target.origin} serves {', '.join(known[:20])}; not '{wanted}'")
    return wanted


class _Calibrating:
    """One calibration. State: the engine as far as it is known, and notes for whoever reads the profile."""

    def __init__(self, session: Session, settings: Settings, model: str, progress: Progress) -> None:
        self.session = session
        self.settings = settings
        self.engine = EngineFacts(model=model)
        self.notes: list[str] = []
        self._progress = progress
        self._began = monotonic()

    async def run(self) -> Calibration:
        settings = self.settings
        self._say("asking the engine what it is")
        found, notes = await facts(self.session, self.engine.model)
        self.engine = _over(found, settings.given)
        if self.engine.max_num_batched_tokens == found.max_num_batched_tokens:
            self.notes += notes
        self._say("warming up")
        words = await self._warm_up()
        await self._batch_limit(words)
        sweep = Sweep(self.session, self.engine, words, self._began + settings.seconds, self._say)
        await self._token_budget(sweep)
        sweep.engine = self.engine
        await sweep.run(points_for(self.engine, settings.max_prompt, settings.max_batch))
        self._enough(sweep)
        try:
            fitted = fit(sweep.samples)
            profile = self._profile(fitted, sweep)
        except (CannotFit, FittedError) as e:
            raise CalibrateError(f"the times measured fit no engine: {e}") from None
        taken = monotonic() - self._began
        return Calibration(
            profile, fitted, tuple(sweep.samples), sweep.left_out, sweep.rounds, taken, (words.a_word, words.fixed)
        )

    def _say(self, text: str) -> None:
        self._progress(min(1.0, (monotonic() - self._began) / self.settings.seconds), text)

    async def _warm_up(self) -> Words:
        """Find the path and the fields that the engine takes, and the length of a word."""
        (first,) = await self.session.batch([Shape(24, 4)])
        if first.error is not None and first.error.startswith(("status 404", "status 405", "status 501")):
            self.session.path = CHAT
            (first,) = await self.session.batch([Shape(24, 4)])
        if first.error is not None and first.error.startswith(("status 400", "status 422")):
            self.session.extra = {"temperature": 0}
            (first,) = await self.session.batch([Shape(24, 4)])
            self.notes.append("the engine takes no ignore_eos: answers that ended early are left out")
        small, large = await self._one(Shape(16, 4)), await self._one(Shape(144, 4))
        a_word = (large.prompt_tokens - small.prompt_tokens) / 128
        if a_word <= 0:
            raise CalibrateError("the engine's usage counts no more tokens for longer prompts")
        return Words(small.prompt_tokens - 16 * a_word, a_word)

    async def _one(self, shape: Shape) -> Stream:
        (stream,) = await self.session.batch([shape])
        if stream.error is not None:
            where = f"POST {self.session.target.prefix}{self.session.path}"
            raise CalibrateError(f"the engine refuses {where} with a stream of {self.engine.model}: {stream.error}")
        if not stream.prompt_tokens:
            raise CalibrateError("the engine does not report usage in its streams (stream_options.include_usage)")
        return stream

    async def _batch_limit(self, words: Words) -> None:
        """max_num_seqs, where the engine does not say."""
        if self.engine.max_num_seqs is not None:
            return
        self._say("how many sequences run at once?")
        n, most = 0, self.settings.max_batch
        while n < most:
            n = min(most, max(16, n * 4))
            streams = await self.session.batch([Shape(words.of(16), 24 + n)] * n)
            if any(s.error is not None for s in streams):
                kind = next(s.error for s in streams if s.error is not None)
                self.notes.append(f"max_num_seqs is unknown: of {n} requests at once some failed ({kind})")
                return
            ends = min(s.ended for s in streams)
            started = sum(s.times[0] <= ends for s in streams)
            if started < n:
                self.engine = replace(self.engine, max_num_seqs=started)
                self.notes.append(f"max_num_seqs was measured: of {n} requests at once {started} ran")
                return
        self.notes.append(f"max_num_seqs is at least {most}: no more were sent at once")

    async def _token_budget(self, sweep: Sweep) -> None:
        """max_num_batched_tokens, where the engine does not say: from the number of steps that long prompts take."""
        if self.engine.max_num_batched_tokens is not None or (self.engine.max_num_seqs or 2) < 2:
            return
        self._say("how many tokens fit into a step?")
        low, high = 2, 0  # the budget's bounds; no upper one as long as it is 0
        wanted = min(4 * self.settings.max_prompt, longest(self.engine) or 4 * self.settings.max_prompt)
        ends = monotonic() + BUDGET_SHARE * self.settings.seconds
        for _ in range(8):
            try:
                tokens, steps = await sweep.steps_of(wanted)
            except PointFailed as e:
                self.notes.append(f"max_num_batched_tokens: a prompt of about {wanted} tokens told nothing ({e})")
                break
            low = max(low, -(-tokens // steps) + 1)
            if steps > 1:
                high = min(high or tokens, (tokens - 1) // (steps - 1) + 1)
            if not high or monotonic() > ends or high < low:
                break
            likely = _roundest(low, high)
            above, below = round(likely * 1.05), round(likely * 0.95)
            if high <= above and low >= below * 0.99:
                break
            wanted = above if high > above else below
        if high >= low:
            likely = _roundest(low, high)
            self.engine = replace(self.engine, max_num_batched_tokens=likely)
            self.notes.append(f"max_num_batched_tokens was measured: {low} to {high}, taken for {likely}")
        else:
            self.notes.append(f"max_num_batched_tokens is unknown, at least {low}: each prompt is taken for one step")

    def _enough(self, sweep: Sweep) -> None:
        """Raises CalibrateError where an axis has too few points."""
        for axis, least in NEEDED.items():
            found = len({s.point for s in sweep.samples if s.axis == axis})
            if found < least:
                left = "; ".join(f"{name}: {why}" for name, why in list(sweep.left_out.items())[:6])
                raise CalibrateError(
                    f"in {self.settings.seconds:g} s only {found} points of {axis} were measured, and {least} are "
                    f"needed: give --seconds more, or --max-prompt less (left out: {left or 'nothing'})"
                )
        if not any(s.axis == "mixed" for s in sweep.samples):
            self.notes.append("no prompt was timed beside others that decode")
        for name, why in sweep.left_out.items():
            self.notes.append(f"not measured: {name} ({why})")

    def _profile(self, fitted: Fit, sweep: Sweep) -> FittedProfile:
        steps = [step for sample in sweep.samples for step in sample.steps]
        return FittedProfile(
            engine=self._scheduling(sweep.samples, fitted),
            date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            coefficients=fitted.coefficients,
            host=fitted.host,
            ranges=Ranges(
                sequences=max(step.n for step in steps),
                context=max(step.context for step in steps),
                tokens=max(step.tokens for step in steps),
                chunk_context=max((c.context + c.tokens for step in steps for c in step.chunks), default=0),
            ),
            error=fitted.error,
            notes=tuple(self.notes),
        )

    def _scheduling(self, samples: Sequence[Sample], fitted: Fit) -> EngineFacts:
        if self.engine.async_scheduling is not None:
            return self.engine
        return replace(self.engine, async_scheduling=_waits_a_step(samples, fitted))


def _roundest(low: int, high: int) -> int:
    """The number from `low` to `high` with the most factors of two, of those the smallest."""
    step = 1
    while -(-low // (2 * step)) * 2 * step <= high:
        step *= 2
    return -(-low // step) * step


def _waits_a_step(samples: Sequence[Sample], fitted: Fit) -> bool | None:
    """Whether a prompt that comes in waits for the step after the one that runs, too: asynchronous scheduling. It waits
    half a step on average where it does not, one and a half where it does. None: no prompt came in."""
    steps, host = fitted.coefficients, fitted.host
    waits = []
    for s in samples:
        if s.waited is not None:
            n, context = s.steps[0].n, s.steps[0].context
            usual = curve_at(steps.curve, n) + steps.per_sequence * n + steps.per_context_token * context
            waits.append((s.waited - host.per_request - host.per_prompt_token * s.arrived) / usual)
    return statistics.median(waits) > 1.0 if waits else None


def _over(found: EngineFacts, given: EngineFacts) -> EngineFacts:
    """`found`, with what was given in its place."""
    names = ("block_size", "kv_tokens", "max_num_seqs", "max_num_batched_tokens", "max_model_len", "async_scheduling")
    return replace(found, **{n: v for n in names if (v := getattr(given, n)) is not None})
