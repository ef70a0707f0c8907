"""A plan as one self-contained HTML page: the same words as on the terminal, and what they rest on drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, Final

from forebay.errors import shown as printable
from forebay.plan.capacity_view import a_second, answer, change_rows, lines, promise, title
from forebay.plan.report import page
from forebay.plan.report_figures import PALETTE, label
from forebay.plan.report_metrics import dollars, seconds
from forebay.plan.written import replacing

MOST: Final = 4_000
_SLO: Final = "#dc2626"

Figure = dict[str, Any]


def write_html(document: Mapping[str, Any], path: Path) -> None:
    """Raises OSError."""
    text = html(document)
    with replacing(path, errors="replace") as file:
        file.write(text)


def html(document: Mapping[str, Any]) -> str:
    """Of a plan with its curves."""
    return page(
        title=_text(f"Plan for {document['question']['model']}"),
        header=_header(document),
        warnings=_warnings(document),
        cards=_cards(document),
        legend="",
        table=_table(document),
        settings=_formulas(document),
        figures=list(figures(document)),
    )


def _text(text: str) -> str:
    return escape(printable(text, MOST))


def _header(document: Mapping[str, Any]) -> str:
    q = document["question"]
    facts = [
        promise(document),
        f"prompts {q['prompt']['mean']:,.0f} tokens, answers {q['output']['mean']:,.0f}",
        f"binding: {document['replica']['binding']['name']}",
        f"forebay {document['forebay']}",
    ]
    chips = "".join(f"<li>{_text(fact)}</li>" for fact in facts)
    said = f"<p><strong>{_text(answer(document))}</strong></p>"
    return f'<h1>{_text(title(document))}</h1>{said}<ul class="chips">{chips}</ul>'


def _warnings(document: Mapping[str, Any]) -> str:
    rules = [
        f"“{rule['rule']}” is wrong here: it says {rule['says']}; it is {rule['true']}: {rule['why']}"
        for rule in document["rules_of_thumb"]
    ]
    found = [*document["notes"], f"step times: {document['step_time']['note']}", *rules]
    items = "".join(f"<li>{_text(line)}</li>" for line in found)
    return f'<aside class="warnings"><h2>Mind</h2><ul>{items}</ul></aside>'


def _cards(document: Mapping[str, Any]) -> str:
    fleet, replica, cost = document["fleet"], document["replica"], document["cost"]
    money = "–" if cost["hourly"] is None else f"{dollars(cost['million_output'])}"
    cards = (
        (f"{fleet['gpus']:,}", "GPUs", [("replicas", f"{fleet['replicas']:,}"), ("nodes", f"{fleet['nodes']:,}")]),
        (
            a_second(replica["requests_per_s"]),
            "requests/s a replica",
            [
                ("users", f"{replica['users']:,.0f}"),
                ("output", f"{replica['output_tokens_per_s']:,.0f} tokens/s"),
            ],
        ),
        (
            money,
            "a million output tokens",
            [("an hour", "–" if cost["hourly"] is None else dollars(cost["hourly"])), ("prices", cost["gpu_hour_is"])],
        ),
        (
            f"{fleet['headroom_less_one']:+.0%}",
            "headroom when a node dies",
            [("with all nodes", f"{fleet['headroom']:+.0%}"), ("served as promised", f"{fleet['valid']:.1%}")],
        ),
    )
    out = []
    for i, (number, what, facts) in enumerate(cards):
        rows = "".join(f"<div><dt>{_text(k)}</dt><dd>{_text(v)}</dd></div>" for k, v in facts)
        out.append(
            f'<article class="card" style="--run:{PALETTE[i]}"><h3>{_text(what)}</h3>'
            f"<p><strong>{_text(number)}</strong></p><dl>{rows}</dl></article>"
        )
    return "".join(out)


def _table(document: Mapping[str, Any]) -> str:
    rows = []
    for name, found in [*lines(document), ("What to change first", change_rows(document))]:
        rows.append(f'<tr class="section"><th colspan="3">{_text(name)}</th></tr>')
        rows += [
            f'<tr><th scope="row">{_text(what)}</th><td>{_text(number)}</td>'
            f'<td style="text-align:left;white-space:normal">{_text(how)}</td></tr>'
            for what, number, how in found
        ]
    for change in document["no_changes"]:
        rows.append(
            f'<tr><th scope="row">{_text(change["name"])}</th><td>–</td>'
            f'<td style="text-align:left;white-space:normal">{_text(change["why"])}</td></tr>'
        )
    return f"<table><tbody>{''.join(rows)}</tbody></table>"


def _formulas(document: Mapping[str, Any]) -> str:
    found = [*document["memory"]["formulas"], *document["formulas"]]
    rows = "".join(
        f'<tr><th scope="row">{_text(one["name"])}</th><td style="text-align:left">{_text(one["text"])}</td></tr>'
        for one in found
    )
    return f"<table><tbody>{rows}</tbody></table>"


# --- figures ----------------------------------------------------------------------------------------------------------


def figures(document: Mapping[str, Any]) -> Sequence[Figure]:
    """As `report.page` takes them."""
    found = [_memory(document)]
    if document["curves"] is not None:
        slo = document["question"]["slo"]
        found += [
            _latency(document, "ttft", "TTFT over the load of a replica", slo["ttft_s"]),
            _latency(document, "tpot", "TPOT over the load of a replica", slo["tpot_s"]),
        ]
    if document["fleet"]["hours"]:
        found.append(_hours(document))
    if document["changes"]:
        found.append(_changes(document))
    if len(found) % 2:
        found[-1]["wide"] = True
    return found


def _figure(name: str, title_: str, note: str, data: list[Any], layout: dict[str, Any]) -> Figure:
    return {
        "id": name,
        "section": "What it rests on",
        "title": title_,
        "note": note,
        "wide": False,
        "data": data,
        "layout": layout,
    }


def _memory(document: Mapping[str, Any]) -> Figure:
    per = document["memory"]["per_gpu_bytes"]
    parts = {name: per[name] for name in ("weights", "activations", "cuda_graphs", "overhead", "kv")}
    parts["left to others"] = per["total"] - per["usable"]
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "name": name,
            "x": [size / 1e9],
            "y": [""],
            "marker": {"color": PALETTE[i]},
            "text": [f"{name} {size / 1e9:.1f}"],
            "hovertemplate": f"{name}: %{{x:.2f}} GB<extra></extra>",
        }
        for i, (name, size) in enumerate(parts.items())
    ]
    layout = {"barmode": "stack", "xaxis": {"title": {"text": "GB"}}, "yaxis": {"visible": False}}
    return _figure("memory", "Memory of one GPU", "What is left for the KV cache decides over slots.", data, layout)


def _latency(document: Mapping[str, Any], kind: str, name: str, bar: float | None) -> Figure:
    curves, replica = document["curves"], document["replica"]
    percent = document["question"]["slo"]["percent"]
    data: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": which,
            "x": curves["requests_per_s"],
            "y": curves[key],
            "line": {"color": PALETTE[i], "width": 2},
            "hovertemplate": "%{y:.3s}s at %{x:.3g} requests/s<extra>" + which + "</extra>",
        }
        for i, (which, key) in enumerate(((f"P{percent:g}", f"{kind}_s"), ("P50", f"{kind}_p50_s")))
    ]
    if replica["runs"]:
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": "simulated",
                "x": [run["requests_per_s"] for run in replica["runs"]],
                "y": [run[kind] for run in replica["runs"]],
                "marker": {"color": PALETTE[3], "size": 9, "symbol": "diamond"},
                "hovertemplate": "%{y:.3s}s at %{x:.3g} requests/s<extra>simulated</extra>",
            }
        )
    layout: dict[str, Any] = {
        "xaxis": {"title": {"text": "requests/s"}},
        "yaxis": {"type": "log", "exponentformat": "SI", "minexponent": 0, "ticksuffix": "s"},
        "hovermode": "closest",
        "showlegend": True,
    }
    if bar is not None:
        layout["shapes"] = [
            {
                "type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": bar, "y1": bar,
                "line": {"color": _SLO, "width": 1.5, "dash": "dash"},
                "label": {"text": f"promise {seconds(bar)}", "font": {"color": _SLO, "size": 11}},
            }
        ]  # fmt: skip
    return _figure(kind, name, "By formulas; diamonds are simulated.", data, layout)


def _hours(document: Mapping[str, Any]) -> Figure:
    hours = document["fleet"]["hours"]
    each = document["replica"]["gpus"]
    data = [
        {
            "type": "bar",
            "name": "GPUs",
            "x": list(range(24)),
            "y": [hour["replicas"] * each for hour in hours],
            "customdata": [hour["requests_per_s"] for hour in hours],
            "marker": {"color": PALETTE[0]},
            "hovertemplate": "%{x}:00: %{y} GPUs for %{customdata:.3g} requests/s<extra></extra>",
        }
    ]
    layout = {"xaxis": {"title": {"text": "hour"}, "dtick": 3}, "yaxis": {"title": {"text": "GPUs"}}}
    return _figure("hours", "GPUs by hour", "That the promise needs in each.", data, layout)


def _changes(document: Mapping[str, Any]) -> Figure:
    changes = document["changes"][::-1]
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "x": [change["gain"] for change in changes],
            "y": [label(change["name"]) for change in changes],
            "marker": {"color": [PALETTE[2] if change["gain"] >= 0 else PALETTE[4] for change in changes]},
            "hovertemplate": "%{y}: %{x:+.0%} requests/s of one GPU<extra></extra>",
        }
    ]
    layout = {"xaxis": {"tickformat": "+.0%"}, "yaxis": {"automargin": True}, "height": 60 + 28 * len(changes)}
    return _figure("changes", "What each change gives", "Requests/s of one GPU at the promise.", data, layout)
