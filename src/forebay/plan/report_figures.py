"""The plots of a simulation's report, as plotly figures in plain dicts: made from the JSON result alone.

Colours of text, grid and background are the page's (light or dark) and are set there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import Any, Final

from forebay.sim.result_series import COUNTERS, GAUGES

PALETTE: Final = ("#3b82f6", "#f97316", "#14b8a6", "#a855f7", "#ef4444", "#0ea5e9", "#ca8a04", "#ec4899")
"""A run's colour, in order; runs beyond them start again, dashed."""
DASHES: Final = ("solid", "dash", "dot", "dashdot")
POINTS: Final = 300
"""Of a curve over time; in the JSON result there are up to 2,000."""
MOST_MAPS: Final = 4
"""Runs whose engines are drawn one by one."""
_PERCENT: Final = {"tickformat": ".0%", "range": [0, 1.02]}
_GREY: Final = "#94a3b8"
_SLO: Final = "#dc2626"

Figure = dict[str, Any]


def figures(document: dict[str, Any]) -> list[Figure]:
    """Each a dict of `id`, `title`, `note`, `wide`, `section` and the plotly `data` and `layout`."""
    slo = document["slo"]
    runs = [run | {"series": thinned(run["series"])} for run in document["runs"]]
    found = [*_distributions(runs, slo), *_over_time(runs, slo), *_engines(runs)]
    found += _groups(runs, "classes", "class", "By class")
    found += _groups(runs, "tenants", "tenant", "By tenant")
    for section in dict.fromkeys(f["section"] for f in found):
        narrow = [f for f in found if f["section"] == section and not f["wide"]]
        if len(narrow) % 2:
            narrow[-1]["wide"] = True  # no hole beside it
    return found


def colour(i: int) -> str:
    return PALETTE[i % len(PALETTE)]


def label(text: str) -> str:
    """A user's text as plotly shows it literally."""
    return escape(text if len(text) <= 60 else text[:57] + "…", quote=False)


def _figure(name: str, section: str, title: str, data: list[Any], layout: dict[str, Any], note: str = "") -> Figure:
    return {"id": name, "section": section, "title": title, "note": note, "wide": False, "data": data, "layout": layout}


def _line(i: int, run: dict[str, Any], x: Sequence[Any], y: Sequence[Any], unit: str, **more: Any) -> dict[str, Any]:
    line = {"color": colour(i), "width": 2, "dash": DASHES[i // len(PALETTE) % len(DASHES)]} | more.pop("line", {})
    return {
        "type": "scatter",
        "mode": "lines",
        "name": label(run["name"]),
        "legendgroup": str(i),
        "x": x,
        "y": y,
        "line": line,
        "hovertemplate": f"%{{y}} {unit}<extra>%{{fullData.name}}</extra>",
    } | more


def _seconds_axis(title: str, **more: Any) -> dict[str, Any]:
    si = {"exponentformat": "SI", "minexponent": 0, "ticksuffix": "s"}
    return {"title": {"text": title}, "type": "log", "dtick": "D2"} | si | more


def _slo_line(axis: str, at: float) -> dict[str, Any]:
    """Across the plot at `at` seconds on `axis`, "x" or "y"."""
    other = "y" if axis == "x" else "x"
    shape: dict[str, Any] = {
        "type": "line", axis + "0": at, axis + "1": at, other + "0": 0, other + "1": 1, other + "ref": "paper",
        "line": {"color": _SLO, "width": 1.5, "dash": "dash"}, "layer": "above",
        "label": {
            "text": f"SLO {at:g} s", "font": {"color": _SLO, "size": 11}, "textposition": "end", "textangle": 0,
            "xanchor": "left" if axis == "x" else "right", "yanchor": "top" if axis == "x" else "bottom",
        },
    }  # fmt: skip
    return {"shapes": [shape]}


def _distributions(runs: list[Any], slo: dict[str, Any]) -> Iterable[Figure]:
    kinds = (
        ("ttft", "Time to first token (TTFT)", slo["ttft_s"]),
        ("itl", "Time between tokens (ITL)", None),
        ("tpot", "Time per output token of a request (TPOT)", slo["tpot_s"]),
        ("e2e", "Arrival to last token (E2E)", None),
    )
    for kind, title, bar in kinds:
        data = []
        for i, run in enumerate(runs):
            curve = run["distributions"][kind]
            data.append(
                _line(i, run, curve["seconds"], curve["fraction"], "", hovertemplate=(
                    "%{y:.2%} within %{x:.4~s}s<extra>%{fullData.name}</extra>"
                ))
            )  # fmt: skip
        layout = {
            "xaxis": _seconds_axis(""),
            "yaxis": {"title": {"text": "gaps" if kind == "itl" else "requests"}} | _PERCENT,
            "hovermode": "closest",
        }
        note = "Fraction that took no longer."
        if bar is not None:
            layout |= _slo_line("x", bar)
        if kind == "ttft" and slo["per_1k_s"]:
            note += f" The SLO adds {slo['per_1k_s']:g} s per 1,000 prompt tokens."
        yield _figure(kind, "Latency", title, data, layout, note)


def thinned(series: dict[str, Any]) -> dict[str, Any]:
    """At most POINTS samples, what a plot can show: gauges are averaged (kv_low, kv_high kept), counters added."""
    times = series["time"]
    k = -(-len(times) // POINTS)
    if k <= 1:
        return series
    starts = range(0, len(times), k)
    pick = dict.fromkeys(GAUGES, _mean) | dict.fromkeys(COUNTERS, sum) | {"kv_low": min, "kv_high": max}
    found: dict[str, Any] = {name: [how(series[name][i : i + k]) for i in starts] for name, how in pick.items()}
    found["time"] = [times[min(i + k, len(times)) - 1] for i in starts]
    found["engines"] = [
        {name: [_mean(values[i : i + k]) for i in starts] for name, values in engine.items()}
        for engine in series["engines"]
    ]
    return found


def _mean(values: Sequence[float]) -> float:
    return float(f"{sum(values) / len(values):.5g}")


def _time_axis(runs: list[Any]) -> tuple[float, str]:
    """What divides seconds, and the unit's name: so that a day is not shown as 86,400."""
    span = max((run["summary"]["seconds"] for run in runs), default=0.0)
    if span > 3 * 86_400:
        return 86_400.0, "days"
    if span > 3 * 3_600:
        return 3_600.0, "hours"
    return (60.0, "minutes") if span > 600 else (1.0, "seconds")


def _over_time(runs: list[Any], slo: dict[str, Any]) -> Iterable[Figure]:
    divide, unit = _time_axis(runs)

    def x(times: Sequence[float]) -> list[float]:
        return [float(f"{t / divide:.6g}") for t in times]

    def layout(title: str, **y: Any) -> dict[str, Any]:
        return {
            "xaxis": {"title": {"text": f"simulated {unit}"}, "rangemode": "tozero"},
            "yaxis": {"title": {"text": title}, "rangemode": "tozero"} | y,
            "hovermode": "x unified",
        }

    offered = []
    if runs:
        curve = runs[0]["arrivals"]
        grey = {"color": _GREY, "width": 1.5, "dash": "dot"}
        offered = [_line(0, runs[0], x(curve["time"]), curve["offered_per_s"], "requests/s", name="offered", line=grey)]
        offered[0] |= {"legendgroup": "offered"}
    data = offered + [
        _line(i, run, x(run["arrivals"]["time"]), run["arrivals"]["goodput_per_s"], "requests/s")
        for i, run in enumerate(runs)
    ]
    note = "Requests that met the SLO, at the time of their arrival, beside all that arrived."
    yield _figure("goodput", "Over time", "Goodput", data, layout("requests/s"), note) | {"wide": True}

    data = []
    for i, run in enumerate(runs):
        arrivals = run["arrivals"]
        data.append(_line(i, run, x(arrivals["time"]), arrivals["ttft_p99_s"], "s", connectgaps=False))
        dotted = {"width": 1, "dash": "dot"}
        data.append(
            _line(i, run, x(arrivals["time"]), arrivals["ttft_p50_s"], "s", line=dotted, showlegend=False)
            | {"name": label(run["name"]) + " P50"}
        )
    yield _figure(
        "ttft-time", "Over time", "TTFT by time of arrival", data,
        layout("") | {"yaxis": _seconds_axis("")} | _slo_line("y", slo["ttft_s"]), "P99, and P50 dotted.",
    )  # fmt: skip
    yield _kv(runs, x, layout)
    for name, title, note in (
        ("running", "Requests running", "Over all engines."),
        ("waiting", "Requests waiting in the engines", "Over all engines."),
    ):
        data = [_line(i, run, x(run["series"]["time"]), run["series"][name], "") for i, run in enumerate(runs)]
        yield _figure(name, "Over time", title, data, layout("requests"), note)
    for name, title, axis in (
        ("preemptions", "Preemptions", "a second"),
        ("decode_tokens", "Output tokens", "tokens/s"),
        ("prefill_tokens", "Prompt tokens computed", "tokens/s"),
    ):
        if name == "preemptions" and not any(sum(run["series"][name]) for run in runs):
            continue
        data = [_line(i, run, x(run["series"]["time"]), _rate(run["series"], name), axis) for i, run in enumerate(runs)]
        yield _figure(name, "Over time", title, data, layout(axis), "Over all engines.")
    if any(sum(run["series"]["prefix_hits"]) for run in runs):
        data = [_line(i, run, x(run["series"]["time"]), _hit_rate(run["series"]), "") for i, run in enumerate(runs)]
        note = "Prompt tokens found in the prefix cache, of those looked up."
        yield _figure("hits", "Over time", "Prefix cache hit rate", data, layout("", tickformat=".0%"), note)


def _kv(runs: list[Any], x: Any, layout: Any) -> Figure:
    data: list[Any] = []
    for i, run in enumerate(runs):
        series = run["series"]
        if run["summary"]["engines"]["count"] > 1:
            edge = {"width": 0}
            silent = {"showlegend": False, "hoverinfo": "skip", "hovertemplate": None, "line": edge}
            data.append(_line(i, run, x(series["time"]), series["kv_low"], "", **silent))
            fill = {"fill": "tonexty", "fillcolor": colour(i) + "22"}
            data.append(_line(i, run, x(series["time"]), series["kv_high"], "", **silent, **fill))
        data.append(_line(i, run, x(series["time"]), series["kv_mean"], ""))
    note = "Mean of the engines; the band reaches from the emptiest to the fullest."
    return _figure("kv", "Over time", "KV cache use", data, layout("", **_PERCENT), note)


def _rate(series: dict[str, Any], name: str) -> list[float]:
    before, found = 0.0, []
    for now, count in zip(series["time"], series[name], strict=True):
        found.append(float(f"{count / max(now - before, 1e-9):.6g}"))
        before = now
    return found


def _hit_rate(series: dict[str, Any]) -> list[float | None]:
    return [
        float(f"{hits / asked:.4g}") if asked else None
        for hits, asked in zip(series["prefix_hits"], series["prefix_queries"], strict=True)
    ]


def _engines(runs: list[Any]) -> Iterable[Figure]:
    """KV use of each engine over time, a map a run."""
    divide, unit = _time_axis(runs)
    for i, run in enumerate(runs[:MOST_MAPS]):
        series = run["series"]
        if len(series["engines"]) < 2 or not series["time"]:
            continue
        data = [
            {
                "type": "heatmap",
                "x": [float(f"{t / divide:.6g}") for t in series["time"]],
                "y": [str(k) for k in range(len(series["engines"]))],
                "z": [engine["kv"] for engine in series["engines"]],
                "zmin": 0,
                "zmax": 1,
                "colorscale": [[0, "#f1f5f900"], [0.5, "#60a5fa"], [0.9, "#1d4ed8"], [1, "#b91c1c"]],
                "colorbar": {"tickformat": ".0%", "thickness": 10, "outlinewidth": 0},
                "hovertemplate": "engine %{y}: %{z:.1%}<extra></extra>",
            }
        ]
        layout = {
            "xaxis": {"title": {"text": f"simulated {unit}"}},
            "yaxis": {"title": {"text": "engine"}, "type": "category", "showgrid": False},
            "hovermode": "closest",
        }
        note = "" if len(series["engines"]) == run["summary"]["engines"]["count"] else "The first engines only."
        title = "KV cache use by engine" + (f": {run['name']}" if len(runs) > 1 else "")
        yield _figure(f"map-{i}", "Engines", title, data, layout, note)


def _groups(runs: list[Any], key: str, word: str, section: str) -> list[Figure]:
    """Bars a class or a tenant. Nothing where there is only one of them."""
    names: list[str] = []
    for run in runs:
        for group in run["summary"][key]:
            if (name := _group_name(group)) not in names:
                names.append(name)
    if len(names) < 2:
        return []
    seconds = {"exponentformat": "SI", "minexponent": 0, "ticksuffix": "s"}
    kinds: tuple[tuple[str, str, Callable[[Any], Any], dict[str, Any]], ...] = (
        ("attainment", "SLO attainment", lambda g: g["slo_attainment"], {"tickformat": ".0%", "range": [0, 1]}),
        ("ttft", "TTFT P99", lambda g: g["ttft_s"]["p99"], seconds),
        ("requests", "Requests", lambda g: g["requests"]["arrived"], {}),
    )
    found = []
    for kind, title, value, axis in kinds:
        shown = runs[:1] if kind == "requests" else runs
        data = []
        for i, run in enumerate(shown):
            groups = {_group_name(group): group for group in run["summary"][key]}
            data.append(
                {
                    "type": "bar",
                    "name": label(run["name"]),
                    "legendgroup": str(i),
                    "x": [label(name) for name in names],
                    "y": [value(groups[name]) if name in groups else None for name in names],
                    "marker": {"color": colour(i) if kind != "requests" else _GREY},
                    "showlegend": kind != "requests",
                    "hovertemplate": "%{x}: %{y}<extra>%{fullData.name}</extra>",
                }
            )
        layout = {"xaxis": {"type": "category"}, "yaxis": {"rangemode": "tozero"} | axis, "barmode": "group"}
        found.append(_figure(f"{key}-{kind}", section, f"{title} by {word}", data, layout | {"hovermode": "closest"}))
    return found


def _group_name(group: dict[str, Any]) -> str:
    if group["name"] is None:
        return f"{group['tenants']:,} others"
    return group["name"] or "(none)"
