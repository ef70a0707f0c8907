"""A run as one JSON object: what was asked, what came of it, how sure that is, and the curves to draw."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import forebay
from forebay.plan.distribution import Distribution
from forebay.plan.load.asks import Survey
from forebay.plan.load.plan import Plan
from forebay.plan.load.result import Group, Result
from forebay.plan.load.sample import Interval, Sample, share_interval

FORM: Final = "forebay-bench/1"
PERCENTS: Final = (50.0, 90.0, 95.0, 99.0, 99.9)
LATE: Final = 0.01
"""Seconds of lag at the 99th percentile over which the load generator itself is to be doubted."""
BUSY: Final = 0.9
"""Share of a core, likewise."""
IDLE: Final = 0.3
"""Share of a core up to which requests that leave late are not this process's doing."""
OFF: Final = 0.1
"""Share by which prompts may differ from what was asked before that is said."""


@dataclass
class Facts:
    """What surrounds a run."""

    url: str
    survey: Survey = field(default_factory=Survey)
    cost: Mapping[str, Any] | None = None
    """As `money` makes it."""
    notes: list[str] = field(default_factory=list)
    warmup: int = 0
    """Requests sent before it."""
    started: str = ""
    """UTC, ISO 8601."""


def milliseconds(d: Distribution) -> dict[str, float | None]:
    """Percentiles, mean and largest in milliseconds; None without observations."""
    found: dict[str, float | None] = {f"p{p:g}": d.percentile(p) for p in PERCENTS}
    found |= {"mean": d.mean, "max": d.largest if d.count else None}
    return {name: _ms(x) for name, x in found.items()}


def intervals(sample: Sample) -> dict[str, list[float | None] | None]:
    """95 % intervals in milliseconds; an end that the run is too short to bound is None."""
    found: dict[str, Interval | None] = {f"p{p:g}": sample.interval(p) for p in PERCENTS}
    found["mean"] = sample.mean_interval()
    return {name: None if x is None else [_ms(x.low), _ms(x.high)] for name, x in found.items()}


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e3, 3)


def settings(plan: Plan, survey: Survey) -> dict[str, Any]:
    """What decides whether two runs may be compared: all but the server's address."""
    texts = plan.texts
    return {
        "model": plan.model,
        "endpoint": plan.path,
        "rate": plan.rate,
        "arrivals": plan.arrivals if plan.rate is not None else None,
        "cv": plan.cv if plan.rate is not None and plan.arrivals == "gamma" else None,
        "concurrency": plan.concurrency,
        "workload": plan.workload.name if plan.workload is not None else None,
        "speed": plan.speed if plan.workload is not None else None,
        "requests": plan.requests,
        "duration_s": plan.seconds,
        "prompt_tokens": plan.prompt_tokens if plan.lengths is None and plan.workload is None else None,
        "max_tokens": plan.max_tokens if plan.lengths is None and plan.workload is None else None,
        "lengths": None if plan.lengths is None else [repr(d) for d in plan.lengths],
        "shared_prefix": plan.shared_prefix or None,
        "prefix_groups": plan.prefix_groups if plan.shared_prefix else None,
        "texts": None if texts is None else {"prompts": len(texts.prompts), "fingerprint": texts.fingerprint},
        "load_fingerprint": survey.fingerprint,
        "same_words": plan.same_words,
        "words": list(plan.words),
        "extra": dict(plan.extra),
        "slo": {
            "ttft_s": plan.slo.ttft,
            "per_1k_s": plan.slo.ttft_per_1k,
            "tpot_s": plan.slo.tpot,
            "e2e_s": plan.slo.e2e,
        },
        "retries": plan.retries,
        "timeout_s": plan.timeout,
        "seed": plan.seed,
    }


def as_json(facts: Facts, plan: Plan, result: Result) -> dict[str, Any]:
    """One object. Latencies in milliseconds, rates a second."""
    seconds = max(result.seconds, 1e-9)
    whole = {name: getattr(result, name).whole() for name in ("ttft", "itl", "tpot", "e2e")}
    return {
        "form": FORM,
        "forebay": forebay.__version__,
        "started": facts.started,
        "url": facts.url,
        "model": plan.model,
        "shape": str(plan),
        "load": settings(plan, facts.survey) | {"warmup": facts.warmup},
        "notes": [*facts.notes, *_notes(plan, result)],
        "seconds": round(result.seconds, 3),
        "interrupted": result.interrupted,
        "given_up": result.given_up or None,
        "sent": result.sent,
        "completed": result.completed,
        "failed": result.failed,
        "errors": dict(sorted(result.errors.items(), key=lambda x: -x[1])),
        "retry_after": {
            "seen": result.retry_after.count,
            "least_s": result.retry_after.least if result.retry_after.count else None,
            "most_s": result.retry_after.largest if result.retry_after.count else None,
            "honoured": plan.retries > 0,
            "retried": result.retried,
            "rescued": result.rescued,
            "told_not_to": result.denied,
        },
        "peak_in_flight": result.peak_in_flight,
        "completed_per_s": round(result.completed / seconds, 4),
        "prompt_tokens": result.prompt_tokens,
        "cached_tokens": result.cached_tokens,
        "output_tokens": result.output_tokens,
        "output_tokens_per_s": round(result.output_tokens / seconds, 2),
        "total_tokens_per_s": round((result.output_tokens + result.prompt_tokens) / seconds, 2),
        "goodput": _goodput(plan, result, seconds),
        **{f"{name}_ms": milliseconds(d) for name, d in whole.items()},
        "intervals": {
            "confidence": 0.95,
            **{f"{name}_ms": intervals(getattr(result, name)) for name in whole},
        },
        "cost": facts.cost,
        "classes": {name: _group(one) for name, one in sorted(result.classes.items())},
        "tenants": {name: _group(one) for name, one in sorted(result.tenants.items())},
        "generator": {
            "cpu_share": round(result.cpu / seconds, 3),
            "lag_ms": milliseconds(result.lag) if plan.open else None,
            "loop_lag_ms": milliseconds(result.loop_lag),
        },
        "curves": {name: _curve(d) for name, d in whole.items()},
        "timeline": _timeline(result),
    }


def _goodput(plan: Plan, result: Result, seconds: float) -> dict[str, Any]:
    ended = result.completed + result.failed
    sure = share_interval(result.good, ended)
    return {
        "slo": str(plan.slo),
        "good": result.good,
        "per_s": round(result.good / seconds, 4),
        "share": round(result.good / ended, 5) if ended else None,
        "share_interval": None if sure is None else [round(sure.low, 5), round(sure.high or 1.0, 5)],
    }


def _group(one: Group) -> dict[str, Any]:
    return {
        "sent": one.sent,
        "completed": one.completed,
        "failed": one.failed,
        "good": one.good,
        "output_tokens": one.output_tokens,
        "ttft_ms": milliseconds(one.ttft),
        "tpot_ms": milliseconds(one.tpot),
        "e2e_ms": milliseconds(one.e2e),
    }


def _curve(d: Distribution) -> dict[str, list[float]]:
    xs, ys = d.curve()
    return {"ms": [float(f"{x * 1e3:.5g}") for x in xs], "share": [round(y, 5) for y in ys]}


def _timeline(result: Result) -> dict[str, Any]:
    slices, width = result.timeline.slices, result.timeline.width
    found: dict[str, Any] = {
        name: [getattr(one, name) for one in slices]
        for name in ("arrived", "completed", "good", "failed", "tokens", "in_flight")
    }
    found["ttft_p50_ms"] = [_ms(one.ttft.percentile(50)) for one in slices]
    found["ttft_p99_ms"] = [_ms(one.ttft.percentile(99)) for one in slices]
    return {"width_s": width, **found}


def _notes(plan: Plan, result: Result) -> list[str]:
    """What a reader must mind."""
    notes = []
    late, slow = result.lag.percentile(99) or 0.0, result.loop_lag.percentile(99) or 0.0
    busy = result.cpu / max(result.seconds, 1e-9)
    if late > LATE or slow > LATE or busy > BUSY:
        said = [
            f"{did} up to {x * 1e3:,.0f} ms late (p99)"
            for did, x in (("sent requests", late), ("read answers", slow))
            if x > LATE
        ]
        advice = "Run several." if busy > IDLE else "The machine has other work: run it on an idle one."
        what = ", ".join([f"it was busy {busy:.0%} of the time", *said])
        notes.append(f"This process may be the bottleneck: {what}. {advice}")
    asked, got = result.asked_prompt_tokens, result.prompt_tokens
    if plan.texts is None and asked and abs(got / asked - 1) > OFF:
        notes.append(
            f"Prompts have {got / result.completed:,.0f} tokens by the server's count, and "
            f"{asked / result.completed:,.0f} were asked for; --fit-lengths asks the server first how many a word has."
        )
    if result.interrupted:
        notes.append("Interrupted: requests under way were dropped and not counted as completed or failed.")
    if result.given_up:
        notes.append(f"Ended early: {result.given_up}.")
    if plan.texts is not None and result.sent > (n := len(plan.texts.prompts)):
        notes.append(
            f"The {n:,} prompts were sent {result.sent / n:.1f} times over; a prefix cache knows them the second time."
        )
    return notes
