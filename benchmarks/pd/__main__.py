"""make bench-pd: what floods of long prompts do to those who are being answered, on one pool and on prefill and decode
engines of as many GPUs."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.common import RESULTS, env_flag, env_int, run, verdict, write_results
from benchmarks.pd.live import SPLIT as SPLIT_LIVE
from benchmarks.pd.live import measure
from benchmarks.pd.simulated import CHATS, ENGINES, EVERY, FLOODS, GPU, LAYOUTS, MODEL, SECONDS, SPLIT, simulate

BAR = 1.2
"""Times the ITL P99 without floods."""
COLOURS = ("#3b82f6", "#0ea5e9", "#f97316", "#a855f7", "#14b8a6")


def main() -> int:
    began = time.monotonic()
    seed = env_int("SEED", 0, least=0)
    pairs = list(product(LAYOUTS, FLOODS))
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        cells = list(pool.map(simulate, [a for a, _ in pairs], [b for _, b in pairs], [seed] * len(pairs)))
    quiet = {c["layout"]: c["itl_ms"]["99"] for c in cells if c["flood"] == FLOODS[0].name}
    for cell in cells:
        cell["times_undisturbed"] = round(cell["itl_ms"]["99"] / quiet[cell["layout"]], 3)
    say = Console(width=None if sys.stdout.isatty() else 150)
    say.print(_table(cells))
    fell = [
        f"{c['layout']}, flood {c['flood']}: ITL P99 is {c['times_undisturbed']:.3f} × the undisturbed, bar {BAR}"
        for c in cells
        if c["layout"] == SPLIT and c["times_undisturbed"] > BAR
    ]
    live = (
        [measure(split=a, flood=b) for a, b in product((False, True), repeat=2)]
        if env_flag("LIVE") is not False
        else []
    )
    if live:
        say.print(_live_table(live))
        before, after = (c["itl_ms"][99] for c in live if c["engines"] == SPLIT_LIVE)
        if after > BAR * before:
            fell.append(f"live, {SPLIT_LIVE}: ITL P99 is {after / before:.3f} × the undisturbed, bar {BAR}")
    took = round(time.monotonic() - began, 1)
    setting = {
        "model": MODEL, "gpu": GPU, "gpus": ENGINES, "chats_per_s": CHATS, "seconds": SECONDS, "every_s": EVERY,
        "seed": seed,
    }  # fmt: skip
    path = write_results(
        "pd",
        {
            "bars": {"times_undisturbed": BAR},
            "setting": setting,
            "seconds": took,
            "fell_short": fell,
            "cells": cells,
            "live": live,
        },
    )
    page = draw(cells)
    say.print(f"{path}, {page}; {len(cells)} runs in {took:.0f} s", highlight=False)
    return verdict(fell)


def _table(cells: Sequence[dict[str, Any]]) -> Table:
    table = Table(title=f"{MODEL} on {ENGINES} × {GPU}, {CHATS:g} chats/s, a flood every {EVERY:g} s")
    table.add_column("engines", no_wrap=True)
    table.add_column("flood", no_wrap=True)
    for column in (
        "ITL P50",
        "P99",
        "P99.9 ms",
        "× undisturbed",
        "chat TTFT P50",
        "P99 s",
        "flood TTFT P50",
        "P99 s",
        "split",
    ):
        table.add_column(column, justify="right")
    for c in cells:
        itl, ttft = c["itl_ms"], c["ttft_s"]
        flood = ttft.get("flood", {})
        table.add_row(
            c["layout"],
            c["flood"],
            f"{itl['50']:.1f}",
            f"{itl['99']:.1f}",
            f"{itl['99.9']:.1f}",
            f"{c['times_undisturbed']:.2f}",
            f"{ttft['chat'][50]:.3f}",
            f"{ttft['chat'][99]:.2f}",
            f"{flood[50]:.2f}" if flood else "",
            f"{flood[99]:.2f}" if flood else "",
            f"{100 * c['split'] / c['requests']:.0f} %",
            end_section=c["flood"] == FLOODS[-1].name,
        )
    return table


def _live_table(found: Sequence[dict[str, Any]]) -> Table:
    table = Table(title="forebay serve, two emulated engines, 12 chats that stream")
    for column in ("engines", "flood", "ITL P50", "P90", "P99 ms", "flood TTFT P50 s", "split"):
        table.add_column(column, no_wrap=True)
    for c in found:
        itl, first = c["itl_ms"], c["flood_ttft_s"]
        row = (
            c["engines"],
            c["flood"],
            *(f"{itl[p]:.1f}" for p in (50, 90, 99)),
            "" if first is None else f"{first:.2f}",
        )
        table.add_row(*row, str(c["split"]))
    return table


def draw(cells: Sequence[dict[str, Any]]) -> Path:
    """The distribution of ITL, a plot a flood; plotly.js is in the page, which asks the network for nothing."""
    from plotly.offline import get_plotlyjs

    plots = []
    for flood in FLOODS:
        data = [
            {
                "type": "scatter",
                "mode": "lines",
                "name": c["layout"],
                "x": c["cdf"]["ms"],
                "y": [max(1e-5, 1 - y) for y in c["cdf"]["fraction"]],
                "line": {"color": COLOURS[i % len(COLOURS)], "width": 2, "shape": "hv"},
            }
            for i, c in enumerate(c for c in cells if c["flood"] == flood.name)
        ]
        layout = {
            "title": {"text": f"ITL, flood: {flood.name}"},
            "xaxis": {"title": {"text": "ms"}, "type": "log"},
            "yaxis": {"title": {"text": "share of gaps that are longer"}, "type": "log", "range": [-4.2, 0.05]},
            "height": 420,
        }
        plots.append({"data": data, "layout": layout})
    script = str(get_plotlyjs()).replace("</script", "<\\/script")
    figures = json.dumps(plots).replace("</", "<\\/")
    page = (
        f"<!doctype html><meta charset=utf-8><title>Prefill and decode apart</title><script>{script}</script>"
        f"<body><script>for(const f of {figures}){{const d=document.body.appendChild(document.createElement('div'));"
        "Plotly.newPlot(d,f.data,f.layout,{responsive:true})}</script>"
    )
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / "pd.html"
    path.write_text(page)
    return path


if __name__ == "__main__":
    run(main)
