"""Which numbers of a simulation's result a table shows, how they are written, and whether more is better."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Metric:
    name: str
    value: Callable[[dict[str, Any]], float | None]
    """From a run of the JSON result."""
    write: Callable[[float], str]
    better: int
    """1: more is better; -1: less is; 0: neither."""
    section: str
    brief: bool = False
    """Whether the terminal's table has it too."""


def _fraction(x: float) -> str:
    return f"{x:.1%}"


def _count(x: float) -> str:
    return f"{x:,.0f}"


def _rate(x: float) -> str:
    return f"{x:,.0f}" if x >= 1000 else f"{x:.3g}"


def seconds(x: float) -> str:
    """With the unit that leaves three digits."""
    if x < 0.9995:
        return f"{x * 1e3:.3g} ms"
    return f"{x:.3g} s" if x < 1000 else f"{x:,.0f} s"


def dollars(x: float) -> str:
    return f"${x:,.2f}" if x >= 1 else f"${x:.3g}"


def _of(*path: str) -> Callable[[dict[str, Any]], float | None]:
    def value(run: dict[str, Any]) -> float | None:
        found: Any = run["summary"]
        for key in path:
            found = found.get(key) if found is not None else None
        return found if isinstance(found, int | float) else None

    return value


def _latency(kind: str, name: str, *stats: str) -> tuple[Metric, ...]:
    brief = {"ttft_s": ("p50", "p99"), "itl_s": ("p50", "p99"), "e2e_s": ("p50", "p99"), "tpot_s": ("p50",)}
    return tuple(
        Metric(
            f"{name} {stat.upper() if stat[0] == 'p' else stat}",
            _of(kind, stat), seconds, -1, "Latency", stat in brief.get(kind, ()),
        )
        for stat in stats
    )  # fmt: skip


METRICS: Final = (
    Metric("SLO attainment", _of("slo_attainment"), _fraction, 1, "Goodput", True),
    Metric("Goodput, requests/s", _of("goodput_per_s"), _rate, 1, "Goodput", True),
    Metric("Goodput, output tokens/s", _of("goodput_output_tokens_per_s"), _rate, 1, "Goodput"),
    Metric("Fairness over tenants (Jain)", _of("fairness_jain"), lambda x: f"{x:.3f}", 1, "Goodput"),
    Metric("Arrived", _of("requests", "arrived"), _count, 0, "Requests", True),
    Metric("Finished", _of("requests", "finished"), _count, 1, "Requests", True),
    Metric("Too long (400)", _of("requests", "too_long"), _count, -1, "Requests"),
    Metric("Queue full (503)", _of("requests", "queue_full"), _count, -1, "Requests"),
    Metric("Refused (429)", _of("requests", "refused"), _count, -1, "Requests"),
    Metric("Abandoned", _of("requests", "abandoned"), _count, -1, "Requests"),
    Metric("Unfinished at the end", _of("requests", "unfinished"), _count, -1, "Requests"),
    *_latency("ttft_s", "TTFT", "mean", "p50", "p90", "p95", "p99", "max"),
    *_latency("tpot_s", "TPOT", "mean", "p50", "p90", "p95", "p99"),
    *_latency("itl_s", "ITL", "mean", "p50", "p90", "p95", "p99", "max"),
    *_latency("e2e_s", "E2E", "mean", "p50", "p90", "p95", "p99"),
    *_latency("queue_s", "Queue", "mean", "p99"),
    Metric("Simulated time", _of("seconds"), seconds, 0, "Work"),
    Metric("Requests/s", _of("requests_per_s"), _rate, 1, "Work"),
    Metric("Output tokens/s", _of("output_tokens_per_s"), _rate, 1, "Work", True),
    Metric("Prefix cache hit rate", _of("engines", "prefix_hit_rate"), _fraction, 1, "Work", True),
    Metric("Preemptions", _of("preemptions"), _count, -1, "Work", True),
    Metric("KV cache use, mean", _of("engines", "kv_usage_mean"), _fraction, 0, "Work", True),
    Metric("KV cache use, highest", _of("engines", "kv_usage_max"), _fraction, 0, "Work"),
    Metric("Engines busy", _of("engines", "utilisation"), _fraction, 0, "Work", True),
    Metric("GPU cost", _of("engines", "cost_usd"), dollars, -1, "Work"),
    Metric("GPU cost per million output tokens", _of("engines", "cost_usd_per_million"), dollars, -1, "Work"),
)  # fmt: skip
"""In the order of the table. One that no run has a value for, or that is 0 requests in all, is left out."""


def shown(runs: list[dict[str, Any]], *, brief: bool = False) -> list[Metric]:
    """The metrics worth a row for these runs."""
    found = []
    for metric in METRICS:
        values = [metric.value(run) for run in runs]
        if all(x is None for x in values):
            continue
        counts_trouble = metric.write is _count and metric.better < 0
        if counts_trouble and not any(values):
            continue
        if brief and not (metric.brief or (counts_trouble and metric.section == "Requests")):
            continue
        found.append(metric)
    return found


def difference(metric: Metric, base: float | None, value: float | None) -> tuple[str, int]:
    """How a value differs from the first run's, and whether that is better (1), worse (-1) or neither (0)."""
    if base is None or value is None or base == value:
        return "", 0
    if metric.write is _fraction:
        text = f"{(value - base) * 100:+.1f} pp"
    elif base == 0:
        return "", metric.better * (1 if value > 0 else -1)
    else:
        change = value / base - 1
        text = f"{change:+.1%}" if abs(change) < 9.995 else f"× {value / base:,.0f}"
    if text.strip("+-.0 %p") == "":
        return "±0", 0
    return text, metric.better * (1 if value > base else -1)
