"""The highest rate at which a server keeps its promise, by a bounded search: doubled (or halved) until one rate is kept
and another is not, then halved between them in proportion."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from forebay.plan.load.plan import Slo
from forebay.plan.load.result import Result
from forebay.plan.load.run import Load
from forebay.plan.load.sample import share_interval
from forebay.plan.target import LoadError

SLACK_TTFT: Final = 5.0
SLACK_TPOT: Final = 2.0
"""Without an SLO: how many times the lightest step's medians a first token, and the tokens after it, may take."""
LEAST: Final = 0.02
MOST: Final = 1e5
"""Requests a second, between which is searched."""


@dataclass(frozen=True)
class Search:
    """Raises LoadError for what makes no sense."""

    start: float
    """Requests a second of the first step."""
    least_share: float = 0.95
    """Of the requests that must be good."""
    precision: float = 0.1
    """The search ends when the rate that is not kept is at most this share above the one that is."""
    steps: int = 12
    """Most of them."""

    def __post_init__(self) -> None:
        if not 0 < self.least_share <= 1:
            raise LoadError(f"knee-share must be over 0 and at most 1, not {self.least_share:g}")
        if not 0.005 <= self.precision <= 1:
            raise LoadError(f"knee-precision must be from 0.005 to 1, not {self.precision:g}")
        if not 2 <= self.steps <= 50:
            raise LoadError(f"knee-steps must be from 2 to 50, not {self.steps}")
        if not LEAST <= self.start <= MOST:
            raise LoadError(f"the search begins at a rate from {LEAST:g} to {MOST:g}, not {self.start:g}")


@dataclass(frozen=True)
class Step:
    rate: float
    result: Result
    share: float
    kept: bool
    why: str
    """Why it was not kept."""


@dataclass(frozen=True)
class Knee:
    slo: Slo
    """What was searched with."""
    drawn: bool
    """Whether the SLO comes from the lightest step."""
    steps: tuple[Step, ...]
    """In the order in which they were made."""

    @property
    def best(self) -> Step | None:
        kept = [step for step in self.steps if step.kept]
        return max(kept, key=lambda step: step.rate) if kept else None

    @property
    def worst(self) -> Step | None:
        """The lowest rate that was not kept; of one that was interrupted nobody knows."""
        broken = [step for step in self.steps if not step.kept and not step.result.interrupted]
        return min(broken, key=lambda step: step.rate) if broken else None

    @property
    def interrupted(self) -> bool:
        return any(step.result.interrupted for step in self.steps)

    def as_json(self) -> dict[str, Any]:
        best, worst = self.best, self.worst
        return {
            "rate": None if best is None else _short(best.rate),
            "not_kept_at": None if worst is None else _short(worst.rate),
            "slo": str(self.slo),
            "slo_from_lightest_step": self.drawn,
            "steps": [_step(step) for step in sorted(self.steps, key=lambda step: step.rate)],
        }


async def find(
    run: Callable[[float, Slo, Callable[[Load], str] | None], Awaitable[Result]],
    slo: Slo,
    search: Search,
    expected: Callable[[float], int],
    on_step: Callable[[Step], None],
) -> Knee:
    """`run` loads the server at a rate and judges by an SLO; `expected` is how many requests that will be. Ends early
    where a run was interrupted."""
    steps: list[Step] = []
    drawn = not slo
    low = high = 0.0
    rate = search.start
    while len(steps) < search.steps:
        hopeless = _hopeless(expected(rate), search.least_share) if slo else None
        result = await run(rate, slo, hopeless)
        if drawn and not steps and not result.interrupted:
            slo = _from(result)
        steps.append(step := _judged(rate, result, search.least_share))
        on_step(step)
        if result.interrupted:
            break
        if step.kept:
            low = max(low, rate)
        else:
            high = min(high, rate) if high else rate
        if low and high:
            if high <= low * (1 + search.precision):
                break
            rate = (low * high) ** 0.5
        elif low:
            rate = low * 2
        else:
            rate = high / 2
        if not LEAST <= rate <= MOST:
            break
    return Knee(slo, drawn, tuple(steps))


def _judged(rate: float, result: Result, least: float) -> Step:
    ended = result.completed + result.failed
    share = result.good / ended if ended else 0.0
    if result.given_up:
        return Step(rate, result, share, False, result.given_up)
    if result.interrupted or not ended:
        return Step(rate, result, share, False, "interrupted" if result.interrupted else "nothing ended")
    if share < least:
        return Step(rate, result, share, False, f"{share:.1%} of the requests were good, {least:.1%} were to be")
    return Step(rate, result, share, True, "")


def _from(result: Result) -> Slo:
    """What a server that is hardly loaded does, with slack. Raises LoadError where nothing completed."""
    ttft, tpot = result.ttft.percentile(50), result.tpot.percentile(50)
    if ttft is None or not result.completed:
        kind = max(result.errors, key=lambda k: result.errors[k], default="interrupted")
        raise LoadError(f"no request completed at the first rate of the search: {kind}")
    return Slo(
        ttft=float(f"{max(ttft, 0.001) * SLACK_TTFT:.3g}"),
        tpot=None if not tpot else float(f"{tpot * SLACK_TPOT:.3g}"),
    )


def _hopeless(expected: int, least: float) -> Callable[[Load], str]:
    """Ends a step once too many have missed for it ever to be kept."""
    allowed = (1 - least) * expected

    def judge(load: Load) -> str:
        result = load.result
        missed = result.failed + result.completed - result.good + load.overdue()
        if missed <= allowed + 1:
            return ""
        return f"{missed:,} requests of about {expected:,} had missed the SLO by then"

    return judge


def _step(step: Step) -> dict[str, Any]:
    result = step.result
    ended = result.completed + result.failed
    sure = share_interval(result.good, ended)
    return {
        "rate": _short(step.rate),
        "kept": step.kept,
        "why_not": step.why or None,
        "share": round(step.share, 5),
        "share_interval": None if sure is None else [round(sure.low, 5), round(sure.high or 1.0, 5)],
        "sent": result.sent,
        "completed": result.completed,
        "failed": result.failed,
        "completed_per_s": round(result.completed / max(result.seconds, 1e-9), 4),
        "goodput_per_s": round(result.good / max(result.seconds, 1e-9), 4),
        "output_tokens_per_s": round(result.output_tokens / max(result.seconds, 1e-9), 2),
        "ttft_p50_ms": _ms(result.ttft.percentile(50)),
        "ttft_p99_ms": _ms(result.ttft.percentile(99)),
        "tpot_p50_ms": _ms(result.tpot.percentile(50)),
        "e2e_p50_ms": _ms(result.e2e.percentile(50)),
    }


def _short(x: float) -> float:
    return float(f"{x:.4g}")


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e3, 3)
