"""The cells as one SVG for the documentation: goodput in requests and in tokens, and vip within SLO, against load."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from benchmarks.goodput.workloads import LOADS, TRAFFIC

Cell = dict[str, Any]
WIDTH, HEIGHT, LEFT, TOP, GAP = 300, 150, 56, 40, 54
PANELS: Sequence[tuple[str, Callable[[Cell], float]]] = (
    ("requests/s in SLO", lambda c: c["all"]["requests_per_s"]),
    ("k tokens/s in SLO", lambda c: c["all"]["tokens_per_s"] / 1000),
    ("vip within SLO, %", lambda c: 100 * (c["classes"]["vip"]["share"] or 0)),
)


def drawn(
    cells: Mapping[tuple[str, float, str], Cell],
    names: Sequence[str],
    policies: Sequence[str],
    colours: Mapping[str, str],
) -> str:
    """One row a traffic; the horizontal axis is load in knees."""
    width = LEFT + len(PANELS) * (WIDTH + GAP)
    height = TOP + len(names) * (HEIGHT + GAP) + 10
    parts = [f'<rect width="{width}" height="{height}" fill="white"/>']
    for i, policy in enumerate(policies):
        x = LEFT + i * 115
        dash = ' stroke-dasharray="3 3"' if policy == "oracle" else ""
        parts.append(f'<path d="M{x} 16h24" stroke="{colours[policy]}" stroke-width="{_weight(policy)}"{dash}/>')
        parts.append(f'<text x="{x + 30}" y="20">{escape(policy)}</text>')
    for row, name in enumerate(names):
        y = TOP + row * (HEIGHT + GAP)
        for column, (title, figure) in enumerate(PANELS):
            x = LEFT + column * (WIDTH + GAP)
            values = {p: [figure(cells[name, load, p]) for load in LOADS] for p in policies}
            top = 100.0 if column == 2 else 1.08 * max(max(v) for v in values.values()) or 1.0
            parts.append(f'<rect x="{x}" y="{y + 14}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#cbd5e1"/>')
            parts.append(f'<text x="{x}" y="{y + 8}">{escape(TRAFFIC[name].title)}: {escape(title)}</text>')
            for share in (0, 0.5, 1):
                at = y + 14 + HEIGHT * (1 - share)
                parts.append(f'<text x="{x - 5}" y="{at + 4:.0f}" text-anchor="end">{top * share:.3g}</text>')
            for load in LOADS:
                at = _across(x, load)
                parts.append(f'<text x="{at:.0f}" y="{y + 28 + HEIGHT}" text-anchor="middle">{load:g} ×</text>')
            for policy, found in values.items():
                points = " ".join(
                    f"{_across(x, load):.1f},{y + 14 + HEIGHT * (1 - v / top):.1f}"
                    for load, v in zip(LOADS, found, strict=True)
                )
                dash = ' stroke-dasharray="3 3"' if policy == "oracle" else ""
                parts.append(
                    f'<polyline points="{points}" fill="none" stroke="{colours[policy]}" '
                    f'stroke-width="{_weight(policy)}"{dash}/>'
                )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        f'font-size="12">{"".join(parts)}</svg>\n'
    )


def _across(x: float, load: float) -> float:
    return x + 12 + (WIDTH - 24) * (load - LOADS[0]) / (LOADS[-1] - LOADS[0])


def _weight(policy: str) -> float:
    return 3.0 if policy == "forebay" else 1.5
