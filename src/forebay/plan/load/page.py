"""Runs as one self-contained HTML page, out of their JSON."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from forebay.errors import shown
from forebay.plan.load.table import cost_lines, knee_line
from forebay.plan.report import page
from forebay.plan.report_figures import colour, label
from forebay.plan.written import replacing

if TYPE_CHECKING:
    from forebay.plan.load.compare import Comparison

MOST: Final = 4_000
_SLO: Final = "#dc2626"
_KINDS: Final = (
    ("ttft", "Time to first token (TTFT)"),
    ("itl", "Time between tokens (ITL)"),
    ("tpot", "Time per output token of a request (TPOT)"),
    ("e2e", "Whole request (E2E)"),
)


def write_html(runs: list[dict[str, Any]], path: Path, comparison: Comparison | None = None) -> None:
    """Raises OSError."""
    text = html(runs, comparison)
    with replacing(path, errors="replace") as file:
        file.write(text)


def html(runs: list[dict[str, Any]], comparison: Comparison | None = None) -> str:
    """The page of one run, or of two and what differs."""
    title = f"Load of {runs[0]['model']} at {runs[0]['url']}" if len(runs) == 1 else "Two runs compared"
    return page(
        title=_text(title),
        header=_header(title, runs),
        warnings=_warnings(runs, comparison),
        cards="".join(_card(i, run, _name(i, run, runs)) for i, run in enumerate(runs)),
        legend=_legend(runs),
        table=_table(runs, comparison),
        settings=_settings(runs),
        figures=_figures(runs),
    )


def _text(text: object) -> str:
    return escape(shown(text, MOST))


def _name(i: int, run: dict[str, Any], runs: list[dict[str, Any]]) -> str:
    return run["url"] if len(runs) == 1 else f"{'AB'[i]}: {run['url']}"


def _header(title: str, runs: list[dict[str, Any]]) -> str:
    run = runs[0]
    facts = [
        run["shape"],
        f"{run['sent']:,} requests in {run['seconds']:,.1f} s",
        f"SLO: {run['goodput']['slo']}",
        run["started"].replace("T", " ").replace("+00:00", " UTC"),
        f"forebay {run['forebay']}",
    ]
    chips = "".join(f"<li>{_text(fact)}</li>" for fact in facts)
    return f'<h1>{_text(title)}</h1><ul class="chips">{chips}</ul>'


def _warnings(runs: list[dict[str, Any]], comparison: Comparison | None) -> str:
    lines = [] if comparison is None else [f"Not the same load: {line}." for line in comparison.differences]
    for i, run in enumerate(runs):
        lines += [note if len(runs) == 1 else f"{'AB'[i]}: {note}" for note in run["notes"]]
    if not lines:
        return ""
    items = "".join(f"<li>{_text(line)}</li>" for line in lines)
    return f'<aside class="warnings"><h2>Mind</h2><ul>{items}</ul></aside>'


def _card(i: int, run: dict[str, Any], name: str) -> str:
    good = run["goodput"]
    if "knee" in run:
        rate = run["knee"]["rate"]
        strong, words = ("–" if rate is None else f"{rate:g}/s"), "is the knee"
    elif good["slo"] != "none" and good["share"] is not None:
        strong, words = f"{good['share']:.1%}", "met the SLO"
    else:
        strong, words = f"{run['completed']:,}", "completed"
    facts = [
        ("TTFT P50, P99", f"{_ms(run['ttft_ms']['p50'])}, {_ms(run['ttft_ms']['p99'])}"),
        ("TPOT P50", _ms(run["tpot_ms"]["p50"])),
        ("goodput", f"{good['per_s']:,.3g}/s"),
        ("output", f"{run['output_tokens_per_s']:,.0f} tokens/s"),
        ("failed", f"{run['failed']:,}"),
    ]
    rows = "".join(f"<div><dt>{_text(k)}</dt><dd>{_text(v)}</dd></div>" for k, v in facts)
    return (
        f'<article class="card" style="--run:{colour(i)}"><h3>{_text(name)}</h3>'
        f"<p><strong>{_text(strong)}</strong> {words}</p><dl>{rows}</dl></article>"
    )


def _legend(runs: list[dict[str, Any]]) -> str:
    if len(runs) < 2:
        return ""
    names = "".join(
        f'<span><i style="background:{colour(i)}"></i>{_text(_name(i, run, runs))}</span>' for i, run in enumerate(runs)
    )
    return f'<div class="legend">{names}</div>'


def _table(runs: list[dict[str, Any]], comparison: Comparison | None) -> str:
    if comparison is not None:
        return _compared(comparison)
    run = runs[0]
    names = list(run["ttft_ms"])
    head = "".join(f'<th scope="col">{_text(name)}</th>' for name in names)
    rows = []
    for key, title in _KINDS:
        sure = run["intervals"][f"{key}_ms"]
        cells = "".join(f"<td>{_ms(run[f'{key}_ms'][name])}{_between(sure.get(name))}</td>" for name in names)
        rows.append(f'<tr><th scope="row">{_text(title)}</th>{cells}</tr>')
    for name, value in _others(run):
        rows.append(
            f'<tr><th scope="row">{_text(name)}</th><td colspan="{len(names)}" style="text-align:left">{_text(value)}'
            "</td></tr>"
        )
    return f"<table><thead><tr><td></td>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _others(run: dict[str, Any]) -> list[tuple[str, str]]:
    good, waits = run["goodput"], run["retry_after"]
    found = [("requests/s completed", f"{run['completed_per_s']:,.2f}")]
    if good["share"] is not None:
        low, high = good["share_interval"]
        found.append(
            (
                "goodput",
                f"{good['per_s']:,.2f}/s; {good['share']:.2%} (95 %: {low:.2%} to {high:.2%}), SLO: {good['slo']}",
            )
        )
    found += [(f"failed: {kind}", f"{n:,}") for kind, n in run["errors"].items()]
    if waits["seen"]:
        obeyed = (
            f"obeyed {waits['retried']:,} times, {waits['rescued']:,} completed so"
            if waits["honoured"]
            else "not obeyed"
        )
        found.append(
            ("Retry-After", f"{waits['seen']:,} answers, {waits['least_s']:g} to {waits['most_s']:g} s; {obeyed}")
        )
    if run["cost"] is not None:
        found += [("cost", line) for line in cost_lines(run["cost"])]
    lag = run["generator"]["lag_ms"]
    busy = f"busy {run['generator']['cpu_share']:.0%} of a core"
    found.append(
        ("the generator", busy if lag is None else f"{busy}; late by {_ms(lag['p50'])} (P50), {_ms(lag['p99'])} (P99)")
    )
    return found


def _compared(comparison: Comparison) -> str:
    rows = []
    words = {1: ("better", "better"), -1: ("worse", "worse"), 0: ("within noise", "even"), None: ("", "even")}
    for row in comparison.rows:
        word, kind = words[row.better]
        change = "" if row.change is None else f"{row.change:+.1%}"
        rows.append(
            f'<tr><th scope="row">{_text(row.name)}, {_text(row.unit)}</th><td>{_number(row.a)}</td>'
            f'<td>{_number(row.b)}</td><td>{change} <small class="{kind}">{word}</small></td></tr>'
        )
    head = "".join(f'<th scope="col">{name}</th>' for name in ("A", "B", "B against A"))
    return f"<table><thead><tr><td></td>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _settings(runs: list[dict[str, Any]]) -> str:
    head = "".join(f'<th scope="col">{_text(_name(i, run, runs))}</th>' for i, run in enumerate(runs))
    rows = []
    for key in dict.fromkeys(key for run in runs for key in run["load"]):
        values = [run["load"].get(key) for run in runs]
        if all(value is None for value in values):
            continue
        differs = ' class="differs"' if any(value != values[0] for value in values) else ""
        cells = "".join(f"<td>{_text('–' if value is None else value)}</td>" for value in values)
        rows.append(f'<tr{differs}><th scope="row">{_text(key)}</th>{cells}</tr>')
    return f"<table><thead><tr><td></td>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


# --- figures ----------------------------------------------------------------------------------------------------------


def _figures(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found = [_knee(runs[0])] if "knee" in runs[0] and len(runs) == 1 else []
    found += [_curve(runs, key, title) for key, title in _KINDS]
    found += [
        _over_time(runs, "rate", "Requests by the time of their arrival", "requests/s"),
        _over_time(runs, "ttft", "TTFT by the time of arrival", "ms"),
        _over_time(runs, "in_flight", "Requests in flight", "requests"),
        _over_time(runs, "tokens", "Output tokens", "tokens/s"),
    ]
    if len(runs) == 1:
        found += [_groups(runs[0], key, word) for key, word in (("classes", "class"), ("tenants", "tenant"))
                  if len(runs[0][key]) > 1]  # fmt: skip
    return found


def _figure(name: str, section: str, title: str, data: list[Any], layout: dict[str, Any], note: str) -> dict[str, Any]:
    return {"id": name, "section": section, "title": title, "note": note, "wide": False, "data": data, "layout": layout}


def _line(i: int, name: str, x: list[Any], y: list[Any], **more: Any) -> dict[str, Any]:
    line = {"color": colour(i), "width": 2} | more.pop("line", {})
    return {"type": "scatter", "mode": "lines", "name": label(name), "x": x, "y": y, "line": line} | more


def _curve(runs: list[dict[str, Any]], key: str, title: str) -> dict[str, Any]:
    data = [
        _line(i, _name(i, run, runs), run["curves"][key]["ms"], run["curves"][key]["share"],
              hovertemplate="%{y:.2%} within %{x:.4g} ms<extra>%{fullData.name}</extra>")
        for i, run in enumerate(runs)
    ]  # fmt: skip
    layout: dict[str, Any] = {
        "xaxis": {"type": "log", "title": {"text": "ms"}},
        "yaxis": {"tickformat": ".0%", "range": [0, 1.02], "title": {"text": "gaps" if key == "itl" else "requests"}},
        "hovermode": "closest",
    }
    bar = runs[0]["load"]["slo"].get(f"{key}_s")
    if bar is not None:
        layout["shapes"] = [
            {"type": "line", "x0": bar * 1e3, "x1": bar * 1e3, "y0": 0, "y1": 1, "yref": "paper",
             "line": {"color": _SLO, "width": 1.5, "dash": "dash"}}
        ]  # fmt: skip
    return _figure(key, "Latency", title, data, layout, "Fraction that took no longer.")


def _over_time(runs: list[dict[str, Any]], kind: str, title: str, unit: str) -> dict[str, Any]:
    data: list[Any] = []
    note = ""
    for i, run in enumerate(runs):
        times, name = run["timeline"], _name(i, run, runs)
        width = times["width_s"]
        x = [round(n * width, 4) for n in range(len(times["arrived"]))]
        thin = {"width": 1, "dash": "dot"}
        if kind == "rate":
            note = "Good ones, and all that arrived, dotted."
            data.append(_line(i, name, x, [n / width for n in times["good"]]))
            data.append(_line(i, f"{name}, arrived", x, [n / width for n in times["arrived"]], line=thin))
        elif kind == "ttft":
            note = "P99, and P50 dotted."
            data.append(_line(i, name, x, times["ttft_p99_ms"]))
            data.append(_line(i, f"{name}, P50", x, times["ttft_p50_ms"], line=thin))
        elif kind == "tokens":
            data.append(_line(i, name, x, [n / width for n in times["tokens"]]))
        else:
            data.append(_line(i, name, x, times[kind]))
    axis: dict[str, Any] = {"title": {"text": unit}} | ({"type": "log"} if kind == "ttft" else {"rangemode": "tozero"})
    layout = {"xaxis": {"title": {"text": "seconds"}}, "yaxis": axis, "hovermode": "x unified"}
    return _figure(f"time-{kind}", "Over time", title, data, layout, note)


def _knee(run: dict[str, Any]) -> dict[str, Any]:
    found = run["knee"]
    steps = found["steps"]
    rates = [step["rate"] for step in steps]
    data = [
        _line(0, "TTFT P99", rates, [step["ttft_p99_ms"] for step in steps], mode="lines+markers"),
        _line(1, "TTFT P50", rates, [step["ttft_p50_ms"] for step in steps], mode="lines+markers"),
        _line(2, "TPOT P50", rates, [step["tpot_p50_ms"] for step in steps], mode="lines+markers"),
    ]
    layout: dict[str, Any] = {
        "xaxis": {"type": "log", "title": {"text": "requests/s"}},
        "yaxis": {"type": "log", "title": {"text": "ms"}},
        "showlegend": True,
        "hovermode": "x unified",
    }
    if found["rate"] is not None:
        layout["shapes"] = [
            {"type": "line", "x0": found["rate"], "x1": found["rate"], "y0": 0, "y1": 1, "yref": "paper",
             "line": {"color": _SLO, "width": 1.5, "dash": "dash"}}
        ]  # fmt: skip
    note = f"{knee_line(found)}."
    return _figure("knee", "The knee", "Latency by rate", data, layout, note) | {"wide": True}


def _groups(run: dict[str, Any], key: str, word: str) -> dict[str, Any]:
    groups = sorted(run[key].items(), key=lambda x: -x[1]["sent"])[:30]
    names = [label(name or "(none)") for name, _ in groups]
    data = [
        {"type": "bar", "name": p.upper(), "x": names, "y": [one["ttft_ms"][p] for _, one in groups],
         "marker": {"color": colour(i)}}
        for i, p in enumerate(("p50", "p99"))
    ]  # fmt: skip
    layout = {"xaxis": {"type": "category"}, "yaxis": {"title": {"text": "ms"}}, "barmode": "group", "showlegend": True}
    return _figure(f"by-{word}", "By class and tenant", f"TTFT by {word}", data, layout, "P50 and P99.")


def _ms(x: float | None) -> str:
    return "–" if x is None else f"{x:,.1f} ms" if x < 10_000 else f"{x / 1e3:,.1f} s"


def _number(x: float | None) -> str:
    return "–" if x is None else f"{x:,.4g}" if abs(x) < 100 else f"{x:,.1f}"


def _between(x: list[float | None] | None) -> str:
    if x is None:
        return ""
    low, high = x
    return f"<br><small>{_ms(low)} … {'?' if high is None else _ms(high)}</small>"
