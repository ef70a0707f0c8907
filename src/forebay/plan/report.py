"""A simulation's JSON result for people: one self-contained HTML page, and a summary for the terminal."""

from __future__ import annotations

import json
from html import escape
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from forebay.errors import shown as printable
from forebay.plan import report_figures
from forebay.plan.report_metrics import difference, dollars, seconds, shown
from forebay.plan.written import replacing

if TYPE_CHECKING:
    from rich.console import Console

MOST: Final = 400
"""Characters of a name or a note on a terminal."""
MOST_TEXT: Final = 4_000
"""Of one on a page."""
BESIDE: Final = 5
"""Runs beside one another in a terminal's table; more go below."""
_TREND: Final = MappingProxyType({1: "better", -1: "worse", 0: "even"})


def html(document: dict[str, Any]) -> str:
    """The whole page, plotly.js in it: it asks the network for nothing, and its policy forbids it to."""
    return page(
        title=_text(_title(document)),
        header=_header(document),
        warnings=_warnings(document),
        cards=_cards(document),
        legend=_legend(document),
        table=_table(document),
        settings=_settings(document),
        figures=report_figures.figures(document),
    )


def page(*, figures: list[dict[str, Any]], **parts: str) -> str:
    """A report's page of `title`, `header`, `warnings`, `cards`, `legend`, `table` and `settings` as HTML, and of
    figures as `report_figures` makes them."""
    from plotly.offline import get_plotlyjs

    template = files("forebay.plan").joinpath("report_page.html").read_text(encoding="utf-8")
    parts |= {"figures": _script_json(figures), "plotly": get_plotlyjs().replace("</script", "<\\/script")}
    head, *rest = template.split("{{")
    out = [head]
    for part in rest:
        name, text = part.split("}}", 1)
        out += [parts[name], text]
    return "".join(out)


def write_html(document: dict[str, Any], path: Path) -> None:
    """Raises OSError."""
    text = html(document)
    with replacing(path, errors="replace") as file:
        file.write(text)


def _text(text: str) -> str:
    """As HTML, without what a page would not show as it is."""
    return escape(printable(text, MOST_TEXT))


def _script_json(value: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _title(document: dict[str, Any]) -> str:
    return f"Simulation of {document['workload']['name']}"


def _header(document: dict[str, Any]) -> str:
    workload, slo, first = document["workload"], document["slo"], document["runs"][0]
    facts = [
        f"{first['summary']['requests']['arrived']:,} requests",
        f"SLO: TTFT ≤ {seconds(slo['ttft_s'])}"
        + (f" + {seconds(slo['per_1k_s'])} per 1,000 prompt tokens" if slo["per_1k_s"] else "")
        + (f", TPOT ≤ {seconds(slo['tpot_s'])}" if slo["tpot_s"] is not None else ""),
        f"seed {workload['seed']}",
        f"forebay {document['forebay']}",
    ]
    chips = "".join(f"<li>{_text(fact)}</li>" for fact in facts)
    return f'<h1>{_text(_title(document))}</h1><ul class="chips">{chips}</ul>'


def _warnings(document: dict[str, Any]) -> str:
    """Each once, with the runs it holds for."""
    found: dict[str, list[str]] = {}
    for run in document["runs"]:
        for warning in run["warnings"]:
            found.setdefault(warning, []).append(run["name"])
    if document["interrupted"]:
        found = {"Interrupted: what follows covers only what had been simulated by then.": []} | found
    if not found:
        return ""
    lines = []
    for warning, names in found.items():
        some = 0 < len(names) < len(document["runs"])
        lines.append(f"<li>{_text(warning)}" + (f" <em>({_text(', '.join(names))})</em>" if some else "") + "</li>")
    return f'<aside class="warnings"><h2>Mind</h2><ul>{"".join(lines)}</ul></aside>'


def _cards(document: dict[str, Any]) -> str:
    out = []
    for i, run in enumerate(document["runs"]):
        summary = run["summary"]
        share, p99 = summary["slo_attainment"], summary["ttft_s"]["p99"]
        cost = summary["engines"]["cost_usd_per_million"]
        facts = [
            ("TTFT P99", seconds(p99) if p99 is not None else "–"),
            ("goodput", f"{summary['goodput_per_s']:.3g}/s"),
            ("output", f"{summary['output_tokens_per_s']:,.0f} tokens/s"),
        ]
        if cost is not None:
            facts.append(("GPUs", f"{dollars(cost)}/M tokens"))
        rows = "".join(f"<div><dt>{_text(k)}</dt><dd>{_text(v)}</dd></div>" for k, v in facts)
        out.append(
            f'<article class="card" style="--run:{report_figures.colour(i)}"><h3>{_text(run["name"])}</h3>'
            f"<p><strong>{'–' if share is None else f'{share:.1%}'}</strong> met the SLO</p><dl>{rows}</dl></article>"
        )
    return "".join(out)


def _legend(document: dict[str, Any]) -> str:
    """Stays in sight beside the plots; a single run needs none."""
    runs = document["runs"]
    if len(runs) < 2:
        return ""
    names = "".join(
        f'<span><i style="background:{report_figures.colour(i)}"></i>{_text(run["name"])}</span>'
        for i, run in enumerate(runs)
    )
    return f'<div class="legend">{names}</div>'


def _table(document: dict[str, Any]) -> str:
    runs = document["runs"]
    head = "".join(
        f'<th scope="col"><i style="background:{report_figures.colour(i)}"></i>{_text(run["name"])}</th>'
        for i, run in enumerate(runs)
    )
    rows, section = [], ""
    for metric in shown(runs):
        if metric.section != section:
            section = metric.section
            rows.append(f'<tr class="section"><th colspan="{len(runs) + 1}">{_text(section)}</th></tr>')
        values = [metric.value(run) for run in runs]
        cells = []
        for i, value in enumerate(values):
            text = "–" if value is None else metric.write(value)
            change, trend = difference(metric, values[0], value) if i else ("", 0)
            note = f' <small class="{_TREND[trend]}">{_text(change)}</small>' if change else ""
            cells.append(f"<td>{_text(text)}{note}</td>")
        rows.append(f'<tr><th scope="row">{_text(metric.name)}</th>{"".join(cells)}</tr>')
    return f"<table><thead><tr><td></td>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _settings(document: dict[str, Any]) -> str:
    """What was simulated; where runs differ, the row is marked."""
    runs = document["runs"]
    head = "".join(f'<th scope="col">{_text(run["name"])}</th>' for run in runs)
    rows = []
    tables = [
        run["settings"] | {"step time": run["step_time"]["source"], "step time made of": run["step_time"]["note"]}
        for run in runs
    ]
    for key in dict.fromkeys(key for table in tables for key in table):
        values = ["–" if table.get(key) is None else str(table[key]) for table in tables]
        differs = ' class="differs"' if len(set(values)) > 1 else ""
        cells = "".join(f"<td>{_text(value)}</td>" for value in values)
        rows.append(f'<tr{differs}><th scope="row">{_text(key)}</th>{cells}</tr>')
    return f"<table><thead><tr><td></td>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def print_summary(document: dict[str, Any], console: Console) -> None:
    from rich.markup import escape as literal
    from rich.table import Table

    runs, workload, slo = document["runs"], document["workload"], document["slo"]
    name = printable(workload["name"], MOST)
    line = f"{name}: {runs[0]['summary']['requests']['arrived']:,} requests, SLO TTFT ≤ {slo['ttft_s']:g} s"
    if slo["per_1k_s"]:
        line += f" + {slo['per_1k_s']:g} s per 1,000 prompt tokens"
    if slo["tpot_s"] is not None:
        line += f", TPOT ≤ {slo['tpot_s']:g} s"
    console.print(line, markup=False, highlight=False)
    colours = {1: "green", -1: "red", 0: "dim"}
    metrics = shown(runs, brief=True)
    for start in range(0, len(runs), BESIDE):
        table = Table()
        table.add_column("")
        for run in runs[start : start + BESIDE]:
            table.add_column(literal(printable(run["name"], MOST)), justify="right", overflow="fold")
        for metric in metrics:
            base = metric.value(runs[0])
            cells = []
            for i, run in enumerate(runs[start : start + BESIDE], start):
                value = metric.value(run)
                text = "–" if value is None else metric.write(value)
                change, trend = difference(metric, base, value) if i else ("", 0)
                cells.append(text + (f" [{colours[trend]}]{change}[/]" if change else ""))
            table.add_row(metric.name, *cells)
        console.print(table)
    notes = list(dict.fromkeys(run["step_time"]["note"] for run in runs))
    for note in notes:
        console.print(f"step time: {printable(note, MOST)}", markup=False, highlight=False)
    for warning in dict.fromkeys(warning for run in runs for warning in run["warnings"]):
        if not warning.endswith(tuple(notes)):
            console.print(f"note: {printable(warning, MOST)}", markup=False, highlight=False, style="yellow")
