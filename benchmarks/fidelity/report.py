"""The tables and the picture of a fidelity run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from xml.sax.saxutils import escape

from rich.console import Console
from rich.table import Table

from benchmarks.fidelity.runs import Tick
from benchmarks.fidelity.score import METRICS, Figure, samples
from benchmarks.fidelity.study import Study

_REAL = "#9aa5b1"
_MINE = "#1f77b4"
Point = tuple[float, float]


def tables(study: Study, console: Console) -> None:
    """Print what is judged, and all rows in short."""
    judged = study.judged
    console.print(f"{study.run.name}: {study.source}; host {judged.title} requests", style="bold", highlight=False)
    t = Table()
    t.add_column("")
    for name in ("vLLM", "simulated", "error", "bar", ""):
        t.add_column(name, justify="right")
    for i, f in enumerate(judged.figures):
        if i and f.metric != judged.figures[i - 1].metric:
            t.add_section()
        t.add_row(f.name, *_times(f), f"{f.error:+.2%}", f"{f.bar:.0%}", "met" if f.met else "[red]missed[/red]")
    console.print(t)

    short = Table(title="Errors in % of mean / P50 / P90 / P99")
    short.add_column("host, ms a step + ms with prefill: scored on")
    for metric in METRICS:
        short.add_column(metric, justify="right")
    for row in study.rows:
        cells = [
            " ".join(_error(f) for f in row.figures if f.metric == metric) or "–"  # e.g. no TPOT of single tokens
            for metric in METRICS
        ]
        mark = " ←" if row is judged else ""
        short.add_row(row.title + mark, *cells)
    console.print(short)
    setup, engine = study.setup, study.setup.settings
    ranks = "".join(f", {n} {v}" for n, v in (("TP", setup.tp), ("DP", setup.dp), ("EP", setup.ep)) if v > 1)
    found = judged.replay
    lines = [
        f"engine: max_num_seqs {engine.max_num_seqs}, max_num_batched_tokens {engine.max_num_batched_tokens}, "
        f"{engine.num_blocks:,} KV blocks of {engine.block_size}{ranks}",
        f"step times: {study.note}",
        f"simulated: {found.preemptions} preemptions, {found.hits:,} prompt tokens found in the prefix cache",
        *study.notes,
    ]
    for line in lines:
        console.print(f"- {line}", markup=False, highlight=False)
    console.print()


def _times(f: Figure) -> tuple[str, str]:
    if f.metric == "TPOT":
        return f"{f.real * 1e3:.2f} ms", f"{f.simulated * 1e3:.2f} ms"
    return f"{f.real:.3f} s", f"{f.simulated:.3f} s"


def _error(f: Figure) -> str:
    text = f"{f.error * 100:+.1f}"
    return text if f.met else f"[red]{text}[/red]"


# --- the picture -----------------------------------------------------------------------------------------------------

_WIDTH, _HEIGHT, _LEFT, _TOP = 300, 150, 46, 34
_ACROSS = 3


def picture(studies: Sequence[Study]) -> str:
    """An SVG: a row of cumulative distributions and a row of the engine's state a study, vLLM in grey, simulated in
    blue."""
    parts: list[str] = []
    y = 0
    for study in studies:
        title = f"{study.run.name}: {study.source}; host: {study.judged.title}"
        parts.append(f'<text x="10" y="{y + 22}" font-size="15" font-weight="bold">{escape(title)}</text>')
        y += 30
        whole = study.run.requests
        real, mine = samples(whole), samples(study.judged.replay.requests)
        for column, metric in enumerate(METRICS):
            scale = 1e3 if metric == "TPOT" else 1.0
            unit = "ms" if metric == "TPOT" else "s"
            curves = [_cumulative(x[metric], scale) for x in (real, mine)]
            parts.append(_panel(column, y, f"{metric}: share of requests within … {unit}", curves, 1.0))
        y += _HEIGHT + _TOP + 30
        ticks, simulated = study.run.ticks, study.judged.replay.ticks
        for column, (name, read) in enumerate(_STATES):
            curves = [[(k.t, read(k)) for k in x] for x in (ticks, simulated)]
            if name.startswith("KV") and not any(v for _, v in curves[0]):
                name, curves[0] = f"{name} (not recorded by vLLM)", []
            parts.append(_panel(column, y, f"{name}, over seconds", curves, None))
        y += _HEIGHT + _TOP + 40
    parts.append(f'<text x="10" y="{y + 8}" fill="{_REAL}" font-weight="bold">vLLM</text>')
    parts.append(f'<text x="60" y="{y + 8}" fill="{_MINE}" font-weight="bold">simulated</text>')
    width, height = _ACROSS * (_WIDTH + _LEFT + 14), y + 20
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        f'font-size="11">'
        f'<rect width="{width}" height="{height}" fill="white"/>{"".join(parts)}</svg>\n'
    )


_STATES: tuple[tuple[str, Callable[[Tick], float]], ...] = (
    ("running", lambda k: k.running),
    ("waiting", lambda k: k.waiting),
    ("KV blocks held, share", lambda k: k.kv),
)


def _cumulative(values: Sequence[float], scale: float) -> list[Point]:
    ordered = sorted(values)
    return [(v * scale, (i + 1) / len(ordered)) for i, v in enumerate(ordered)]


def _panel(column: int, y: int, title: str, curves: Sequence[Sequence[Point]], top: float | None) -> str:
    x0, y0 = column * (_WIDTH + _LEFT + 14) + _LEFT, y + _TOP
    right = max((x for curve in curves for x, _ in curve), default=1.0) or 1.0
    high = top or max((v for curve in curves for _, v in curve), default=1.0) or 1.0
    parts = [
        f'<text x="{x0}" y="{y0 - 8}">{escape(title)}</text>',
        f'<rect x="{x0}" y="{y0}" width="{_WIDTH}" height="{_HEIGHT}" fill="none" stroke="#d0d7de"/>',
    ]
    for share in (0.0, 0.5, 1.0):
        at = y0 + _HEIGHT * (1 - share)
        parts.append(f'<text x="{x0 - 4}" y="{at + 4:.0f}" text-anchor="end">{high * share:.3g}</text>')
        under = f'x="{x0 + _WIDTH * share:.0f}" y="{y0 + _HEIGHT + 14}" text-anchor="middle"'
        parts.append(f"<text {under}>{right * share:.3g}</text>")
    for colour, curve, width in zip((_REAL, _MINE), curves, (3.5, 1.3), strict=True):
        if curve:
            points = " ".join(f"{x0 + x / right * _WIDTH:.1f},{y0 + _HEIGHT * (1 - v / high):.1f}" for x, v in curve)
            parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="{width}"/>')
    return "".join(parts)
