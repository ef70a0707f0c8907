"""The cells as pictures: an SVG for the documentation and a page that can be looked into."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from benchmarks.placement.scenarios import SCENARIOS

Cell = Mapping[str, Any]
Cells = Mapping[tuple[str, str], Cell]
References = Mapping[str, Mapping[str, Any]]
COLOURS = {
    "random": "#cbd5e1",
    "round robin": "#94a3b8",
    "least requests": "#64748b",
    "sglang": "#0ea5e9",
    "vllm": "#14b8a6",
    "aibrix": "#ca8a04",
    "dynamo": "#22c55e",
    "llm-d": "#a855f7",
    "llm-d long": "#d8b4fe",
    "forebay": "#f97316",
    "forebay waiting": "#fdba74",
    "yardstick": "#0f172a",
}
LEFT, TOP, WIDTH, BAR, GAP = 110, 22, 210, 14, 34
PANELS: Sequence[tuple[str, Callable[[Cell], float | None], float]] = (
    ("hits, % of tokens", lambda c: 100 * c["hit_tokens"], 100.0),
    ("busiest engine / mean", lambda c: c["balance"]["all"]["mean"], 3.0),
    ("TTFT P50, s", lambda c: c["ttft"]["p50"], 3.0),
    ("TTFT P99, s", lambda c: c["ttft"]["p99"], 30.0),
    ("in SLO, %", lambda c: 100 * c["kept"], 100.0),
)
"""Titles, figures, and where an axis ends at most: what is off it is written there."""


def drawn(cells: Cells, references: References, names: Sequence[str], policies: Sequence[str]) -> str:
    """A row a scenario, a panel a figure, a bar a policy. The dashed line among the hits is the pooled cache."""
    height = TOP + len(names) * (len(policies) * BAR + TOP + GAP)
    width = LEFT + len(PANELS) * (WIDTH + GAP)
    parts = [f'<rect width="{width}" height="{height}" fill="white"/>']
    y = TOP
    for name in names:
        parts.append(f'<text x="8" y="{y}" font-weight="bold">{escape(SCENARIOS[name].title)}</text>')
        y += TOP
        for column, (title, figure, end) in enumerate(PANELS):
            x = LEFT + column * (WIDTH + GAP)
            values = [figure(cells[name, policy]) or 0.0 for policy in policies]
            pooled = 100 * references[name]["pooled"]["tokens"] if column == 0 else 0.0
            top = min(end, 1.1 * max(*values, pooled)) or 1.0
            parts.append(f'<text x="{x}" y="{y - 4}">{escape(title)}</text>')
            for i, (policy, value) in enumerate(zip(policies, values, strict=True)):
                at = y + i * BAR
                if column == 0:
                    weight = ' font-weight="bold"' if policy == "forebay" else ""
                    parts.append(f'<text x="{x - 6}" y="{at + 11}" text-anchor="end"{weight}>{escape(policy)}</text>')
                length = WIDTH * min(value, top) / top
                parts.append(
                    f'<rect x="{x}" y="{at + 1}" width="{length:.1f}" height="{BAR - 3}" fill="{COLOURS[policy]}"/>'
                )
                inside = length > WIDTH - 45
                where = f'x="{x + length - 4:.1f}" text-anchor="end"' if inside else f'x="{x + length + 4:.1f}"'
                ink = ' fill="white"' if inside and policy not in PALE else ""
                parts.append(f'<text {where} y="{at + 11}"{ink}>{value:.4g}</text>')
            if pooled:
                at = x + WIDTH * pooled / top
                parts.append(f'<path d="M{at:.1f} {y}v{len(policies) * BAR}" stroke="#dc2626" stroke-dasharray="4 3"/>')
        y += len(policies) * BAR + GAP
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        f'font-size="11">{"".join(parts)}</svg>\n'
    )


PALE = ("random", "llm-d long", "forebay waiting")


def page(cells: Cells, references: References, names: Sequence[str], policies: Sequence[str], path: Path) -> None:
    """Bars of each figure, and max/mean of the engines' work window by window; plotly.js is in the page."""
    from plotly.offline import get_plotlyjs

    figures: list[dict[str, Any]] = []
    for name in names:
        scenario = SCENARIOS[name]
        for column, (title, figure, _) in enumerate(PANELS):
            layout = _layout(f"{scenario.title}: {title}")
            if column == 0:
                layout["shapes"] = [_line(100 * references[name]["pooled"]["tokens"])]
            if column == 1:
                layout["shapes"] = [_line(scenario.balance)]
            values = [figure(cells[name, policy]) for policy in policies]
            bars = {"type": "bar", "x": list(policies), "y": values}
            figures.append({"data": [{**bars, "marker": {"color": [COLOURS[p] for p in policies]}}], "layout": layout})
        lines = [
            {
                "type": "scatter",
                "mode": "lines",
                "name": policy,
                "x": [scenario.ramp + scenario.window * (i + 1) for i in range(len(cells[name, policy]["ratios"]))],
                "y": cells[name, policy]["ratios"],
                "line": {"color": COLOURS[policy], "width": 3 if policy == "forebay" else 1.5},
            }
            for policy in policies
        ]
        layout = _layout(f"{scenario.title}: busiest engine / mean, {scenario.window:.0f} s windows")
        layout["shapes"] = [_line(scenario.balance)]
        figures.append({"data": lines, "layout": layout})
    safe = json.dumps(figures).replace("</", "<\\/")
    script = str(get_plotlyjs()).replace("</script", "<\\/script")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Placement</title>'
        "<style>body{font:15px system-ui,sans-serif;margin:20px auto;max-width:1700px}"
        "main{display:grid;grid-template-columns:repeat(3,minmax(0,1fr));gap:12px}</style>"
        f"<h1>Placement</h1><main></main><script>{script}</script><script>"
        f"for (const f of {safe}) {{const d = document.createElement('div');"
        "document.querySelector('main').append(d); Plotly.newPlot(d, f.data, f.layout, {responsive: true});}"
        "</script></html>\n",
        encoding="utf-8",
    )


def _layout(title: str) -> dict[str, Any]:
    return {
        "title": {"text": title, "font": {"size": 13}},
        "margin": {"l": 50, "r": 10, "t": 40, "b": 70},
        "height": 340,
    }


def _line(y: float) -> dict[str, Any]:
    line = {"color": "#dc2626", "width": 1, "dash": "dash"}
    return {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": y, "y1": y, "line": line}
