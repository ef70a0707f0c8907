"""A load's result as JSON and as a table."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from forebay.plan.distribution import Distribution
from forebay.plan.load import Plan, Result

PERCENTS = (50.0, 90.0, 95.0, 99.0, 99.9)
LATE = 0.01
"""Seconds of lag at the 99th percentile over which the load generator itself is to be doubted."""
BUSY = 0.9
"""Share of a core, likewise."""


def milliseconds(d: Distribution) -> dict[str, float | None]:
    """Percentiles, mean and largest in milliseconds; None without observations."""
    found: dict[str, float | None] = {f"p{p:g}": d.percentile(p) for p in PERCENTS}
    found |= {"mean": d.mean, "max": d.largest if d.count else None}
    return {name: None if x is None else round(x * 1e3, 3) for name, x in found.items()}


def as_json(url: str, plan: Plan, result: Result) -> dict[str, Any]:
    """One object. Latencies in milliseconds, rates a second."""
    seconds = max(result.seconds, 1e-9)
    return {
        "url": url,
        "model": plan.model,
        "load": {
            "rate": plan.rate,
            "arrivals": plan.arrivals if plan.rate is not None else None,
            "concurrency": plan.concurrency,
            "requests": plan.requests,
            "duration_s": plan.seconds,
            "prompt_tokens": plan.prompt_tokens,
            "max_tokens": plan.max_tokens,
            "seed": plan.seed,
        },
        "seconds": round(result.seconds, 3),
        "interrupted": result.interrupted,
        "sent": result.sent,
        "completed": result.completed,
        "failed": result.failed,
        "errors": dict(sorted(result.errors.items(), key=lambda x: -x[1])),
        "retry_after": {
            "seen": result.retry_after.count,
            "least_s": result.retry_after.least if result.retry_after.count else None,
            "most_s": result.retry_after.largest if result.retry_after.count else None,
        },
        "peak_in_flight": result.peak_in_flight,
        "completed_per_s": round(result.completed / seconds, 3),
        "prompt_tokens": result.prompt_tokens,
        "output_tokens": result.output_tokens,
        "output_tokens_per_s": round(result.output_tokens / seconds, 1),
        "ttft_ms": milliseconds(result.ttft),
        "itl_ms": milliseconds(result.itl),
        "e2e_ms": milliseconds(result.e2e),
        "generator": {
            "cpu_share": round(result.cpu / seconds, 3),
            "lag_ms": milliseconds(result.lag) if plan.rate is not None else None,
        },
    }


def print_table(url: str, plan: Plan, result: Result, console: Console) -> None:
    seconds = max(result.seconds, 1e-9)
    if plan.rate is not None:
        shape = f"open loop, {plan.rate:g} requests/s, {plan.arrivals} arrivals"
    else:
        shape = f"closed loop, {plan.concurrency} at once"
    console.print(f"{url}  {plan.model}: {shape}", markup=False, highlight=False)
    t = Table()
    t.add_column("ms")
    names = [f"p{p:g}" for p in PERCENTS] + ["mean", "max"]
    for name in names:
        t.add_column(name, justify="right")
    for label, d in (
        ("time to first token", result.ttft),
        ("between tokens (ITL)", result.itl),
        ("whole request (E2E)", result.e2e),
    ):
        found = milliseconds(d)
        t.add_row(label, *("–" if (x := found[name]) is None else f"{x:,.1f}" for name in names))
    console.print(t)
    console.print(
        f"{result.sent:,} sent, {result.completed:,} completed, {result.failed:,} failed in {result.seconds:.1f} s; "
        f"{result.completed / seconds:,.1f} requests/s, {result.output_tokens / seconds:,.0f} output tokens/s, "
        f"at most {result.peak_in_flight:,} in flight",
        highlight=False,
    )
    for kind, n in sorted(result.errors.items(), key=lambda x: -x[1]):
        console.print(f"  {n:>8,} × {kind}", markup=False, highlight=False)
    waits = result.retry_after
    if waits.count:
        console.print(
            f"  Retry-After on {waits.count:,} answers: {waits.least:g} to {waits.largest:g} s", highlight=False
        )
    if result.interrupted:
        console.print("Interrupted: requests under way were dropped and not counted as completed or failed.")
    late = result.lag.percentile(99) or 0.0
    if late > LATE or result.cpu > BUSY * result.seconds:
        console.print(
            f"This process may be the bottleneck: it was busy {result.cpu / seconds:.0%} of the time"
            f"{f' and sent requests up to {late * 1e3:,.0f} ms late (p99)' if late > LATE else ''}. Run several.",
            highlight=False,
        )
