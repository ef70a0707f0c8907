"""The plots of a tuning report, as plotly figures in plain dicts: made from the JSON result alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from forebay.plan.report_figures import DASHES, PALETTE, Figure, colour, label
from forebay.plan.tune import words
from forebay.plan.tune.result import measures

_GREY: Final = "#94a3b8"
_SLO: Final = "#dc2626"
TITLES: Final[Mapping[str, str]] = {"e2e": "arrival to last token", "ttft": "TTFT", "tpot": "TPOT"}
_CURVES: Final = (
    ("ttft", "TTFT P95", "Up to the first token; the SLO is the dashed line."),
    ("tpot", "TPOT P95", "A token of the answer after the first."),
    ("output", "Output tokens a second", "Of all engines, while the middle 80 % of the requests ended."),
    ("dollars_per_million", "USD a million output tokens", "GPUs at the price of the hour, busy or not."),
    ("attainment", "Requests within the SLO", "Of all that arrived; the dashed line is what must be reached."),
    ("dollars_per_valid", "USD a request within the SLO", "What misses the SLO is paid for by what keeps it."),
)


def figures(document: Mapping[str, Any]) -> list[Figure]:
    """Each a dict of `id`, `title`, `note`, `wide`, `section` and the plotly `data` and `layout`."""
    return [*_frontier(document), *_curves(document), *_choices(document)]


def _figure(name: str, section: str, title: str, data: list[Any], layout: dict[str, Any], note: str) -> Figure:
    return {"id": name, "section": section, "title": title, "note": note, "wide": False, "data": data, "layout": layout}


def _frontier(document: Mapping[str, Any]) -> list[Figure]:
    rows = document["frontier"]
    if not rows:
        return []
    of, metric = measures(document["latency"]), TITLES[document["latency"]]
    cloud = [p for curve in document["curves"] for p in curve["points"] if p["keeps_up"]]
    cloud += [t["at_capacity"] for t in document["trials"] if t["at_capacity"]]
    found = []
    for name, title, which, note in (
        ("throughput", "Latency and throughput", 1, "output tokens a second"),
        ("cost", "Latency and cost", 2, "USD a million output tokens"),
    ):
        if which == 2 and not any(of(row["point"])[2] for row in rows):
            continue
        data = [
            {
                "type": "scatter", "mode": "markers", "name": "measured",
                "x": [of(p)[0] for p in cloud if _whole(of(p))], "y": [of(p)[which] for p in cloud if _whole(of(p))],
                "marker": {"color": _GREY, "size": 4, "opacity": 0.45}, "hoverinfo": "skip",
            },
            {
                "type": "scatter", "mode": "lines+markers", "name": "frontier",
                "x": [of(row["point"])[0] for row in rows], "y": [of(row["point"])[which] for row in rows],
                "text": [_hover(row) for row in rows], "hovertemplate": "%{text}<extra></extra>",
                "line": {"color": colour(0), "width": 2}, "marker": {"size": 7},
            },
        ]  # fmt: skip
        marks = [("knee", row["point"], 1, "diamond") for row in rows if row["knee"]]
        if document["best"] and document["best"]["at_capacity"]:
            marks.append(("best at the SLO", document["best"]["at_capacity"], 4, "star"))
        if document["current"] and document["current"]["at_capacity"]:
            marks.append(("today", document["current"]["at_capacity"], 3, "x"))
        for text, point, tint, symbol in marks:
            data.append(
                {
                    "type": "scatter", "mode": "markers+text", "name": text, "text": [text],
                    "textposition": "top center",
                    "x": [of(point)[0]], "y": [of(point)[which]], "hoverinfo": "skip",
                    "marker": {"color": PALETTE[tint], "size": 14, "symbol": symbol},
                }
            )  # fmt: skip
        y: dict[str, Any] = {"title": {"text": note}}
        y |= {"type": "log"} if which == 2 else {"rangemode": "tozero"}  # one at a time costs a thousand times as much
        layout = {
            "xaxis": _seconds(f"{metric}, P95"),
            "yaxis": y,
            "height": 420,
        }
        text = (
            "Each point is a setting under a load. Nothing measured is better in latency, throughput and cost at once."
        )
        found.append(_figure(name, "Frontier", title, data, layout, text))
    return found


def _whole(numbers: Sequence[float]) -> bool:
    return all(math.isfinite(x) for x in numbers) and numbers[0] > 0


def _hover(row: Mapping[str, Any]) -> str:
    p = row["point"]
    facts = [
        label(row["name"]),
        f"{words.rate(p['offered'])} arrive, {words.share(p['attainment'])} within the SLO",
        f"TTFT P95 {words.late(p['ttft']['p95'])}, TPOT P95 {words.late(p['tpot']['p95'])}",
        f"{words.tokens(p['output'])} output tokens/s, {words.money(p['dollars_per_million'])} a million",
    ]
    return "<br>".join(facts)


def _curves(document: Mapping[str, Any]) -> list[Figure]:
    curves = document["curves"]
    found = []
    for key, title, note in _CURVES:
        lines = []
        for i, curve in enumerate(curves):
            pairs = [(p["offered"], p[key]["p95"] if key in TITLES else p[key]) for p in curve["points"]]
            pairs = [(x, y) for x, y in pairs if x is not None and y is not None]
            if not pairs:
                continue
            lines.append(
                {
                    "type": "scatter", "mode": "lines+markers", "name": label(curve["name"]), "marker": {"size": 5},
                    "x": [x for x, _ in pairs], "y": [y for _, y in pairs],
                    "line": {"color": colour(i), "width": 2, "dash": DASHES[i // len(PALETTE) % len(DASHES)]},
                    "hovertemplate": "%{x:.3g}/s: %{y:.4g}<extra>%{fullData.name}</extra>",
                }
            )  # fmt: skip
        if not lines:
            continue
        layout: dict[str, Any] = {
            "xaxis": {"title": {"text": "requests a second that arrive"}, "rangemode": "tozero"},
            "yaxis": {"rangemode": "tozero"},
        }
        if key in ("ttft", "tpot"):
            layout["yaxis"] = _seconds("")
        if key == "attainment":
            layout["yaxis"] = {"tickformat": ".0%", "range": [0, 1.02]}
        if key == "dollars_per_valid":
            layout["yaxis"] = {"type": "log"}
        limit = {
            "ttft": document["slo"]["ttft_s"],
            "tpot": document["slo"]["tpot_s"],
            "attainment": document["slo"]["attainment"],
        }.get(key)
        if limit is not None:
            layout["shapes"] = [
                {
                    "type": "line",
                    "xref": "paper",
                    "x0": 0,
                    "x1": 1,
                    "y0": limit,
                    "y1": limit,
                    "line": {"color": _SLO, "width": 1.5, "dash": "dash"},
                }
            ]
        found.append(_figure(f"load-{key}", "Over all loads", title, lines, layout, note))
    return found


def _choices(document: Mapping[str, Any]) -> list[Figure]:
    """What each choice costs against the best, with its interval."""
    rows = [
        *((f"layout: {row['layout']}", row["loss"]) for row in document["layouts"]),
        *((f"{row['field']} {words.value(row['value'])}", row["loss"]) for row in document["choices"]),
    ]
    rows = [(name, found) for name, found in rows if found["mean"] is not None][::-1]
    if not rows:
        return []
    error = [0 if found["high"] is None else found["high"] - found["mean"] for _, found in rows]
    data = [
        {
            "type": "bar", "orientation": "h", "marker": {"color": colour(0)},
            "y": [label(name) for name, _ in rows], "x": [found["mean"] for _, found in rows],
            "error_x": {"type": "data", "array": error, "color": _GREY, "thickness": 1.2},
            "hovertemplate": "%{y}: %{x:.1%} less capacity<extra></extra>",
        }
    ]  # fmt: skip
    layout = {
        "xaxis": {"tickformat": ".0%", "title": {"text": "capacity lost against the best"}},
        "yaxis": {},
        "height": max(240, 90 + 20 * len(rows)),
    }
    note = "The same seeds one by one; the lines are 95 % intervals."
    return [_figure("choices", "What each choice costs", "Against the best", data, layout, note) | {"wide": True}]


def _seconds(title: str) -> dict[str, Any]:
    return {
        "title": {"text": title},
        "type": "log",
        "dtick": "D2",
        "exponentformat": "SI",
        "minexponent": 0,
        "ticksuffix": "s",
    }
