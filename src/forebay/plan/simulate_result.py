"""A finished simulation as its entry of the JSON result, and as rows. What the keys mean: docs/simulator.md."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from math import isnan
from pathlib import Path
from typing import Any, Final

from forebay.plan.simulate_hardware import Hardware
from forebay.plan.written import replacing
from forebay.sim.cluster import Cluster
from forebay.sim.result_summary import curves, summary, tidy
from forebay.sim.results import Outcome, Requests, Slo

MOST_WARNINGS: Final = 20
EACH: Final = 32
"""Engines with totals of their own."""
COUNTED: Final = (
    "steps", "prefill_tokens", "decode_tokens", "preemptions", "prefix_queries", "prefix_hits", "swapped_out",
    "swapped_in",
)  # fmt: skip
COLUMNS: Final = (
    "arrival", "tenant", "class", "prompt_tokens", "output_tokens", "engine", "outcome", "scheduled", "first_token",
    "end", "cached_tokens", "preemptions",
)  # fmt: skip


def entry(
    name: str, settings: dict[str, Any], hardware: Hardware, cluster: Cluster, slo: Slo, notes: Sequence[str]
) -> dict[str, Any]:
    requests, gaps = cluster.record.requests, cluster.record.gaps
    found = summary(requests, gaps, slo, cluster.seconds)
    found["engines"] = _engines(cluster, hardware, found["output_tokens"])
    series = cluster.series.as_dict()
    return {
        "name": name,
        "settings": settings,
        "step_time": {"source": hardware.source, "note": hardware.note},
        "warnings": [*hardware.notes, *hardware.steps.warnings, *notes, *_doubts(found)][:MOST_WARNINGS],
        "summary": found,
        **curves(requests, gaps, slo),
        "series": {key: _tidied(values) for key, values in series.items()},
    }


def _doubts(found: dict[str, Any]) -> list[str]:
    counts = found["requests"]
    doubts = []
    if counts["too_long"]:
        doubts.append(
            f"{counts['too_long']:,} of {counts['arrived']:,} requests were longer than max_model_len or the KV cache: "
            "refused with 400"
        )
    return doubts


def _tidied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _tidied(x) for key, x in value.items()}
    if isinstance(value, list):
        return [_tidied(x) for x in value]
    return tidy(value) if isinstance(value, float) else value


def _engines(cluster: Cluster, hardware: Hardware, output_tokens: int) -> dict[str, Any]:
    engines, seconds = cluster.engines, cluster.seconds
    stats = [engine.stats for engine in engines]
    total: dict[str, Any] = {name: sum(getattr(s, name) for s in stats) for name in COUNTED}
    busy = sum(s.busy_seconds for s in stats)
    values, widths, before = cluster.series.values, [], 0.0
    for now in cluster.series.times:
        widths.append(now - before)
        before = now

    def mean(name: str) -> float | None:
        span = sum(widths)
        return tidy(sum(w * x for w, x in zip(widths, values[name], strict=True)) / span) if span else None

    dollars = None if hardware.price is None else hardware.price * len(engines) * seconds / 3600
    queries = total["prefix_queries"]
    return {
        "count": len(engines),
        **total,
        "busy_seconds": tidy(busy),
        "utilisation": tidy(busy / seconds / len(engines)) if seconds else None,
        "prefix_hit_rate": tidy(total["prefix_hits"] / queries) if queries else None,
        "kv_usage_mean": mean("kv_mean"),
        "kv_usage_max": tidy(max(values["kv_high"])) if values["kv_high"] else None,
        "kv_wasted_mean": mean("kv_wasted"),
        "cost_usd": None if dollars is None else tidy(dollars),
        "cost_usd_per_million": tidy(dollars / output_tokens * 1e6) if dollars and output_tokens else None,
        "each": [
            {name: getattr(s, name) for name in COUNTED} | {"busy_seconds": tidy(s.busy_seconds)} for s in stats[:EACH]
        ],
    }


def write_rows(requests: Requests, path: Path) -> None:
    """A CSV file with a line a request, in order of arrival. Times in seconds of the workload; empty: it never came to
    that."""
    tenants, classes = requests.tenants.names, requests.classes.names
    outcomes = [o.name.lower() for o in Outcome]

    def time(x: float) -> str:
        return "" if isnan(x) else f"{x:.6f}"

    r = requests
    columns = (
        r.arrival, r.tenant, r.cls, r.prompt, r.output, r.engine, r.outcome, r.scheduled, r.first, r.end, r.cached,
        r.preemptions,
    )  # fmt: skip
    with replacing(path, newline="", errors="replace") as f:
        out = csv.writer(f)
        out.writerow(COLUMNS)
        out.writerows(
            (
                time(arrival), _cell(tenants[tenant]), classes[cls], prompt, output, "" if engine < 0 else engine,
                outcomes[outcome], time(scheduled), time(first), time(end), cached, preemptions,
            )
            for arrival, tenant, cls, prompt, output, engine, outcome, scheduled, first, end, cached, preemptions
            in zip(*columns, strict=True)
        )  # fmt: skip


def drop_old_rows(folder: Path, keep: int) -> None:
    """Remove the `requests-N.csv` of an earlier result there whose N is over `keep`: they are of no run of this one."""
    for path in folder.iterdir():
        match = re.fullmatch(r"requests-([1-9]\d{0,8})\.csv", path.name)
        if match is None or int(match[1]) <= keep or path.is_symlink() or not path.is_file():
            continue
        with path.open(encoding="utf-8", errors="replace") as f:
            ours = f.readline(1000).strip() == ",".join(COLUMNS)
        if ours:
            path.unlink()


def _cell(text: str) -> str:
    """A spreadsheet takes a leading sign for a formula."""
    return "'" + text if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text
