"""The table, the verdict and the picture of an overhead run."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from rich.console import Console
from rich.table import Table

from benchmarks.overhead.measure import LOADS, Load, Sample

YARDSTICK = "nginx"
LABELS = {
    "admission": "forebay, admission",
    "bare": "bare python proxy",
    "cache": "forebay, admission, ledger, cache: misses",
    "cache-hits": "the same: exact hits",
    "cache-memory": "the same, in memory only: misses",
    "ledger": "forebay, admission, ledger",
    "ledger-only": "forebay, ledger",
}


@dataclass(frozen=True)
class Line:
    """A subject under a load, over all rounds."""

    subject: str
    load: str
    cpu_us: float
    """Median."""
    ratio: float
    """Median over the rounds of (subject / nginx in the same round)."""
    low: float
    high: float
    rate: float
    foreign: float


def lines(samples: Sequence[Sample], load: Load) -> list[Line]:
    """One a subject, in the order of first appearance."""
    mine = [s for s in samples if s.load == load.name]
    nginx = {s.round: s.cpu_us for s in mine if s.subject == YARDSTICK}
    found = []
    for subject in dict.fromkeys(s.subject for s in mine):
        own = [s for s in mine if s.subject == subject]
        ratios = [s.cpu_us / nginx[s.round] for s in own]
        found.append(
            Line(
                subject=subject,
                load=load.name,
                cpu_us=statistics.median(s.cpu_us for s in own),
                ratio=statistics.median(ratios),
                low=min(ratios),
                high=max(ratios),
                rate=statistics.median(s.rate for s in own),
                foreign=statistics.median(s.foreign for s in own),
            )
        )
    return found


def table(
    by_load: dict[str, list[Line]], idle: dict[str, float], failed: dict[str, str], console: Console | None = None
) -> None:
    """Print it."""
    t = Table(title="CPU time of the gateway's processes")
    t.add_column("load")
    t.add_column("subject")
    for name in ("CPU µs a request", "× nginx", "spread", "requests/s", "core shared", "idle CPU ms/s"):
        t.add_column(name, justify="right")
    for load, found in by_load.items():
        for x in found:
            spread = f"{_short(x.low)}–{_short(x.high)}"
            rest = f"{idle[x.subject]:.1f}" if x.subject in idle else "–"
            cells = (f"{x.cpu_us:,.1f}", _short(x.ratio), spread, f"{x.rate:,.0f}", f"{x.foreign:.0%}", rest)
            t.add_row(load, LABELS.get(x.subject, x.subject), *cells)
        t.add_section()
    console = console or Console()
    console.print(t)
    for subject, why in failed.items():
        console.print(f"{subject}: {why}", markup=False)
    noisy = max((x.foreign for found in by_load.values() for x in found), default=0.0)
    if noisy > 0.1:
        console.print(f"The subject's core was shared with other work (up to {noisy:.0%}): repeat on a quiet machine.")


def _short(x: float) -> str:
    return f"{x:.2f}" if x < 100 else f"{x:,.0f}"


def shortfalls(by_load: dict[str, list[Line]]) -> list[str]:
    """What Forebay costs above its bars."""
    found = []
    for name, own in by_load.items():
        load = LOADS[name]
        bars = {"forebay": load.bar, "admission": load.admission_bar, "ledger": load.ledger_bar}
        bars["cache-memory"] = load.ledger_bar
        found += [
            f"{x.subject}, {name}: {x.ratio:.2f} × nginx, the bar is {bars[x.subject]:.1f} × "
            f"({x.cpu_us:.1f} µs a request)"
            for x in own
            if x.ratio > bars.get(x.subject, math.inf)
        ]
    return found


def picture(by_load: dict[str, list[Line]]) -> str:
    """An SVG: bars of CPU time a request on a logarithmic scale, one panel a load."""
    row, left, width = 26, 190, 520
    y = 10
    parts = []
    for name, found in by_load.items():
        if not found:
            continue
        floor = 10 ** math.floor(math.log10(min(x.cpu_us for x in found) * 0.8))
        decades = math.log10(max(x.cpu_us for x in found) / floor)
        y += 24
        parts.append(f'<text x="10" y="{y}" font-weight="bold">{name}: CPU µs a request (log scale)</text>')
        y += 10
        for x in found:
            label = escape(LABELS.get(x.subject, x.subject))
            w = max(2.0, math.log10(x.cpu_us / floor) / max(decades, 1e-9) * width)
            colour = "#1f77b4" if x.subject == "forebay" else "#b8c4ce"
            parts.append(f'<text x="{left - 8}" y="{y + 16}" text-anchor="end">{label}</text>')
            parts.append(f'<rect x="{left}" y="{y + 3}" width="{w:.1f}" height="{row - 8}" fill="{colour}"/>')
            text = f"{x.cpu_us:,.0f} µs · {_short(x.ratio)} ×"
            parts.append(f'<text x="{left + w + 6:.1f}" y="{y + 16}">{text}</text>')
            y += row
    total = left + width + 160
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {total} {y + 12}" font-family="sans-serif" '
        f'font-size="13"><rect width="{total}" height="{y + 12}" fill="white"/>{"".join(parts)}</svg>\n'
    )
