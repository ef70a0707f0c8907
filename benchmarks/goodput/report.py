"""What the cells come to: tables, plots, and what fell short of its bar."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.goodput.cells import POLICIES, TUNED
from benchmarks.goodput.workloads import CLASSES, LOADS, TRAFFIC

OF_ORACLE = 0.95
VIP = 0.99
PREEMPTED = 0.001
COVERED = (0.985, 0.995)
SHORTER = 0.95
TUNED_AND_NONE = ("none", *TUNED)
ENOUGH = 2_000
"""Admitted requests of a class in a cell, for its coverage to be judged."""
COLOURS = {
    "none": "#94a3b8",
    "semaphore": "#0ea5e9",
    "vllm": "#14b8a6",
    "llm-d": "#ca8a04",
    "llm-d p": "#ec4899",
    "fifo cap": "#a855f7",
    "forebay": "#f97316",
    "oracle": "#0f172a",
}
BARS = {"of_oracle": OF_ORACLE, "vip": VIP, "preempted": PREEMPTED, "covered": COVERED}

Cell = dict[str, Any]
Cells = Mapping[tuple[str, float, str], Cell]


def compared(cells: Cells, name: str, policies: Sequence[str]) -> Table:
    """Goodput in requests and tokens, share of vip within SLO and their P99 TTFT, mean prompt of those kept."""
    rate = cells[name, LOADS[0], "none"]["rate"]
    unit = "× as recorded" if TRAFFIC[name].kind in ("trace", "spread") else "requests/s"
    arrived = cells[name, LOADS[0], "none"]["mix"]["arrived"]["prompt"]
    table = Table(
        title=f"{TRAFFIC[name].title}; knee at {rate:g} {unit}\nwithin SLO: requests/s, k tokens/s, their mean prompt "
        f"({arrived:.0f} arrived), vip; vip's P99 TTFT"
    )
    table.add_column("")
    for load in LOADS:
        table.add_column(f"{load:g} × knee", justify="right")
    for policy in policies:
        row = [f"[bold]{policy}[/]" if policy == "forebay" else policy]
        for load in LOADS:
            cell = cells[name, load, policy]
            vip = cell["classes"]["vip"]
            kept, mix = cell["all"], cell["mix"]["kept"]["prompt"] or 0
            row.append(
                f"{kept['requests_per_s']:.1f} {kept['tokens_per_s'] / 1000:.1f}k {mix:.0f} "
                f"[bold]{_percent(vip['share'], 0)}[/] {_seconds(vip['ttft_p99'])}"
            )
        table.add_row(*row)
    return table


def detailed(cells: Cells, name: str) -> Table:
    """Forebay beside the oracle."""
    table = Table(title=f"{TRAFFIC[name].title}: Forebay in detail (oracle's in brackets)")
    for column in (
        "× knee", "of oracle, requests", "tokens", "vip", "normal", "low", "preempted", "under bound", "width",
        "precision", "recall", "mix of kept", "arrived",
    ):  # fmt: skip
        table.add_column(column, justify="right")
    for load in LOADS:
        own, best = cells[name, load, "forebay"], cells[name, load, "oracle"]
        bound, refused, mix = own["bound"]["all"], own["rejections"], own["mix"]
        table.add_row(
            f"{load:g}",
            _percent(ratio(own, best, "requests_per_s")),
            _percent(ratio(own, best, "tokens_per_s")),
            *(f"{_percent(own['classes'][c]['share'])} ({_percent(best['classes'][c]['share'])})" for c in CLASSES),
            str(own["preempted"]),
            _percent(bound["covered"], 2),
            "–" if bound["width"] is None else f"{bound['width']:.2f}",
            _percent(refused["precision"]),
            _percent(refused["recall"]),
            *(f"{mix[m]['prompt'] or 0:.0f}+{mix[m]['output'] or 0:.0f}" for m in ("kept", "arrived")),
        )
    return table


def ratio(own: Cell, best: Cell, figure: str, group: str = "all") -> float | None:
    a, b = ((c["all"] if group == "all" else c["classes"][group])[figure] for c in (own, best))
    return a / b if b else None


def shortfalls(cells: Cells, names: Sequence[str]) -> Iterator[str]:
    """Every bar that a cell of Forebay's misses, in a sentence."""
    for name in names:
        for load in LOADS:
            own, best = cells[name, load, "forebay"], cells[name, load, "oracle"]
            where = f"{name} at {load:g} ×"
            for figure, what in (("requests_per_s", "requests"), ("tokens_per_s", "tokens")):
                parts = {group: ratio(own, best, figure, group) for group in ("all", *CLASSES)}
                short = [f"{g} {_percent(p)}" for g, p in parts.items() if p is not None and p < OF_ORACLE]
                if short:
                    yield f"{where}: of the oracle's goodput in {what} {', '.join(short)}; the bar is {OF_ORACLE:.0%}"
            better = [f"{p} {_brief(cells[name, load, p])}" for p in TUNED_AND_NONE if beats(cells[name, load, p], own)]
            if better:
                yield f"{where}: more goodput than Forebay's {_brief(own)} have {', '.join(better)}"
            vip = own["classes"]["vip"]["share"]
            if vip is not None and vip < VIP:
                them = best["classes"]["vip"]["share"]
                yield f"{where}: {vip:.1%} of vip within SLO (the oracle {them:.1%}); the bar is {VIP:.0%}"
            if own["preempted"] > PREEMPTED * own["admitted"] or own["preempted_vip"]:
                yield f"{where}: {own['preempted']} preempted of {own['admitted']}, {own['preempted_vip']} of them vip"
            for cls, bound in own["bound"]["classes"].items():
                if bound["admitted"] >= ENOUGH and not COVERED[0] <= bound["covered"] <= COVERED[1]:
                    yield f"{where}: {bound['covered']:.2%} of {cls} under their bound; the bar is 99 ± 0.5 %"


def beats(theirs: Cell, ours: Cell) -> bool:
    """Whether a baseline keeps more requests, unless it does so with shorter prompts and keeps fewer tokens."""
    if theirs["all"]["requests_per_s"] <= ours["all"]["requests_per_s"]:
        return False
    shorter = theirs["mix"]["kept"]["prompt"] < SHORTER * ours["mix"]["kept"]["prompt"]
    return not (shorter and theirs["all"]["tokens_per_s"] <= ours["all"]["tokens_per_s"])


def _brief(cell: Cell) -> str:
    return f"{cell['all']['requests_per_s']:.2f}/s ({cell['all']['tokens_per_s']:,.0f} tokens/s)"


def page(cells: Cells, names: Sequence[str], policies: Sequence[str], path: Path) -> None:
    """Goodput and vip's P99 TTFT against load; plotly.js is in the page, which asks the network for nothing."""
    from plotly.offline import get_plotlyjs

    figures: list[dict[str, Any]] = []
    for name in names:
        for figure, title, log in (
            (lambda c: c["all"]["requests_per_s"], "goodput, requests/s", False),
            (lambda c: c["all"]["tokens_per_s"], "goodput, tokens/s", False),
            (lambda c: c["classes"]["vip"]["ttft_p99"], "vip P99 TTFT, s", True),
        ):
            data = [
                {
                    "type": "scatter",
                    "mode": "lines+markers",
                    "name": policy,
                    "x": LOADS,
                    "y": [figure(cells[name, load, policy]) for load in LOADS],
                    "line": {
                        "color": COLOURS[policy],
                        "width": 3.5 if policy == "forebay" else 1.8,
                        "dash": "dot" if policy == "oracle" else "solid",
                    },
                }
                for policy in policies
            ]
            layout: dict[str, Any] = {
                "title": {"text": f"{TRAFFIC[name].title}: {title}", "font": {"size": 14}},
                "xaxis": {"title": {"text": "load, × knee"}},
                "yaxis": {"title": {"text": title}, "type": "log"}
                if log
                else {"title": {"text": title}, "rangemode": "tozero"},
                "margin": {"l": 60, "r": 10, "t": 40, "b": 45},
                "height": 360,
            }
            if log:
                slo = TRAFFIC[name].promise.ttft
                layout["shapes"] = [
                    {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": slo, "y1": slo,
                     "line": {"color": "#dc2626", "width": 1, "dash": "dash"}}
                ]  # fmt: skip
            figures.append({"data": data, "layout": layout})
    safe = json.dumps(figures).replace("</", "<\\/")
    script = str(get_plotlyjs()).replace("</script", "<\\/script")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        f"<title>{escape('Goodput against load')}</title>"
        "<style>body{font:15px system-ui,sans-serif;margin:20px auto;max-width:1700px}"
        "main{display:grid;grid-template-columns:repeat(3,minmax(0,1fr));gap:12px}</style>"
        f"<h1>Goodput against load</h1><main></main><script>{script}</script><script>"
        f"for (const f of {safe}) {{const d = document.createElement('div');"
        "document.querySelector('main').append(d); Plotly.newPlot(d, f.data, f.layout, {responsive: true});}"
        "</script></html>\n"
    )


def _percent(value: float | None, digits: int = 1) -> str:
    return "–" if value is None else f"{value:.{digits}%}"


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f} s"


__all__ = ["BARS", "POLICIES", "compared", "detailed", "page", "shortfalls"]
