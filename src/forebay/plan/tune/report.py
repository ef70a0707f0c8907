"""A tuning result for people: one self-contained HTML page, and a summary for the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from forebay.errors import shown
from forebay.plan import report
from forebay.plan.report_figures import colour
from forebay.plan.tune import words
from forebay.plan.tune.figures import figures
from forebay.plan.written import replacing

if TYPE_CHECKING:
    from rich.console import Console

MOST: Final = 400
LINES: Final = 16
"""Rows of a terminal's table at most."""


def write_html(document: Mapping[str, Any], path: Path) -> None:
    """Raises OSError."""
    text = html(document)
    with replacing(path, errors="replace") as file:
        file.write(text)


def html(document: Mapping[str, Any]) -> str:
    return report.page(
        title=_text(_title(document)),
        header=_header(document),
        warnings=_warnings(document),
        cards=_cards(document),
        legend=_legend(document),
        table=_verified(document) + _table(document) + _commands(document),
        settings=_settings(document),
        figures=figures(document),
    )


def _text(text: object) -> str:
    return escape(shown(str(text), 4_000))


def _title(document: Mapping[str, Any]) -> str:
    return f"Tuning {document['model']} on {document['gpus']} × {document['gpu']}"


def facts(document: Mapping[str, Any]) -> list[str]:
    workload, slo, done = document["workload"], document["slo"], document["search"]
    tpot = "" if slo["tpot_s"] is None else f", TPOT ≤ {words.late(slo['tpot_s'])}"
    more = f" + {words.late(slo['per_1k_s'])} per 1,000 prompt tokens" if slo["per_1k_s"] else ""
    return [
        f"{workload['name']}: {workload['prompt_tokens']:,.0f} + {workload['output_tokens']:,.0f} tokens on average, "
        f"{words.share(workload['shared_prefix'])} of the prompts shared, {words.rate(workload['rate_per_s'])}",
        f"SLO: TTFT ≤ {words.late(slo['ttft_s'])}{more}{tpot}, kept by {words.share(slo['attainment'])}",
        f"{done['settings']:,} of {done['combinations']:,} settings in {done['simulations']:,} simulations of "
        f"{done['requests'][0]:,} to {done['requests'][2]:,} requests, {done['seeds']} seeds",
        f"step times: {document['step_time']['source']}",
        f"forebay {document['forebay']}",
    ]


def _header(document: Mapping[str, Any]) -> str:
    chips = "".join(f"<li>{_text(fact)}</li>" for fact in facts(document))
    return f'<h1>{_text(_title(document))}</h1><ul class="chips">{chips}</ul>'


def _warnings(document: Mapping[str, Any]) -> str:
    found = list(document["warnings"])
    if document["interrupted"]:
        found.insert(0, "Interrupted: what follows is what had been found by then.")
    if not found:
        return ""
    lines = "".join(f"<li>{_text(warning)}</li>" for warning in found)
    return f'<aside class="warnings"><h2>Mind</h2><ul>{lines}</ul></aside>'


def _cards(document: Mapping[str, Any]) -> str:
    out = []
    knee = next((row for row in document["frontier"] if row["knee"]), None)
    cards = [("Best at the SLO", document["best"], 0), ("Today", document["current"], 1)]
    for title, row, tint in cards:
        if row is None or row["at_capacity"] is None:
            continue
        at = row["at_capacity"]
        lines = [
            ("setting", row["name"]),
            ("TTFT P95", words.late(at["ttft"]["p95"])),
            ("TPOT P95", words.late(at["tpot"]["p95"])),
            ("output", f"{words.tokens(at['output'])} tokens/s"),
            ("GPUs", f"{words.money(at['dollars_per_million'])}/M tokens"),
            ("a valid request", words.money(at["dollars_per_valid"])),
        ]
        out.append(_card(title, words.plus_minus(row["capacity_per_s"]), "within the SLO", lines, tint))
    if knee is not None:
        p = knee["point"]
        lines = [
            ("setting", knee["name"]),
            ("load", words.rate(p["offered"])),
            ("TTFT P95", words.late(p["ttft"]["p95"])),
            ("TPOT P95", words.late(p["tpot"]["p95"])),
            ("within the SLO", words.share(p["attainment"])),
            ("GPUs", f"{words.money(p['dollars_per_million'])}/M tokens"),
        ]
        out.append(_card("Knee of the frontier", f"{words.tokens(p['output'])}", "output tokens/s", lines, 2))
    return "".join(out)


def _card(title: str, figure: str, what: str, lines: list[tuple[str, str]], tint: int) -> str:
    rows = "".join(f"<div><dt>{_text(k)}</dt><dd>{_text(v)}</dd></div>" for k, v in lines)
    return (
        f'<article class="card" style="--run:{colour(tint)}"><h3>{_text(title)}</h3>'
        f"<p><strong>{_text(figure)}</strong> {_text(what)}</p><dl>{rows}</dl></article>"
    )


def _legend(document: Mapping[str, Any]) -> str:
    curves = document["curves"]
    if len(curves) < 2:
        return ""
    names = "".join(
        f'<span><i style="background:{colour(i)}"></i>{_text(curve["name"])}</span>' for i, curve in enumerate(curves)
    )
    return f'<div class="legend">{names}</div>'


_HEAD: Final = (
    "", "instead of", "capacity", "against the best", "", "TTFT P95", "TPOT P95", "output tokens/s", "USD/M tokens",
    "USD a valid request", "KV at most",
)  # fmt: skip


def _rows(document: Mapping[str, Any]) -> list[tuple[str, list[list[str]]]]:
    """Sections of rows of cells."""
    found: list[tuple[str, list[list[str]]]] = []

    best = document["best"]

    def cells(name: str, instead: str, row: Mapping[str, Any]) -> list[str]:
        at = row["at_capacity"] or {}
        ttft, tpot = (at.get(key, {}).get("p95") for key in ("ttft", "tpot"))
        verdict = "" if best is not None and row["name"] == best["name"] else words.verdict(row["loss"])
        return [
            name, instead, words.plus_minus(row["capacity_per_s"]), words.loss(row["loss"]), verdict,
            words.late(ttft), words.late(tpot), words.tokens(at.get("output")),
            words.money(at.get("dollars_per_million")), words.money(at.get("dollars_per_valid")),
            words.share(at.get("kv_high")),
        ]  # fmt: skip

    if best is not None:
        found.append(("The best", [cells(best["name"], "", best)]))
    if document["current"] is not None:
        found.append(("Today", [cells(document["current"]["name"], "", document["current"])]))
    if len(document["layouts"]) > 1:
        rows = [cells(row["name"], "", row) for row in document["layouts"]]
        found.append(("The best of each layout", rows))
    if document["choices"]:
        rows = [
            cells(f"{row['field']} {words.value(row['value'])}", words.value(row["instead_of"]), row)
            for row in document["choices"]
        ]
        found.append(("One choice changed", rows))
    return found


def _table(document: Mapping[str, Any]) -> str:
    head = "".join(f'<th scope="col">{_text(name)}</th>' for name in _HEAD[1:])
    body = []
    for title, rows in _rows(document):
        body.append(f'<tr class="section"><th colspan="{len(_HEAD)}">{_text(title)}</th></tr>')
        for name, *rest in rows:
            body.append(
                f'<tr><th scope="row">{_text(name)}</th>'
                + "".join(f"<td>{_text(cell)}</td>" for cell in rest)
                + "</tr>"
            )
    return _compared(document) + f"<table><thead><tr><td></td>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"


COMPARED: Final = (
    "", "capacity", "TTFT P95", "TPOT P95", "tokens/s", "USD/M", "full: running", "TPOT P50", "tokens/s", "USD/M",
)  # fmt: skip


def _compared_rows(document: Mapping[str, Any]) -> list[list[str]]:
    """Of a comparison: each setting at its capacity, and under more load than it bears."""
    out = []
    for row in document["compared"]:
        at, full = row["at_capacity"] or {}, row["full"] or {}
        ttft, tpot, packed = (
            found.get(key, {}).get(p)
            for found, key, p in ((at, "ttft", "p95"), (at, "tpot", "p95"), (full, "tpot", "p50"))
        )
        out.append(
            [
                row["name"], words.plus_minus(row["capacity_per_s"]), words.late(ttft), words.late(tpot),
                words.tokens(at.get("output")), words.money(at.get("dollars_per_million")),
                words.tokens(full.get("running")), words.late(packed), words.tokens(full.get("output")),
                words.money(full.get("dollars_per_million")),
            ]
        )  # fmt: skip
    return out


def _compared(document: Mapping[str, Any]) -> str:
    if not document["compared"]:
        return ""
    head = "".join(f'<th scope="col">{_text(name)}</th>' for name in COMPARED[1:])
    rows = "".join(
        f'<tr><th scope="row">{_text(name)}</th>' + "".join(f"<td>{_text(cell)}</td>" for cell in rest) + "</tr>"
        for name, *rest in _compared_rows(document)
    )
    return f"<table><thead><tr><td>Side by side</td>{head}</tr></thead><tbody>{rows}</tbody></table>"


VERIFIED: Final = ("", "predicted", "measured", "off by")


def _verified_rows(verified: Mapping[str, Any]) -> list[list[str]]:
    out = []
    for row in verified["rows"]:
        name = row["name"]
        write = words.late if name.endswith("_s") and "per" not in name else words.tokens
        write = words.share if name == "within_slo" else write
        off = "–" if row["off"] is None else f"{row['off']:+.1%}"
        title = name.removesuffix("_s").replace("_per", "/s").replace("_", " ")
        out.append([title, write(row["predicted"]), write(row["measured"]), off])
    return out


def _verified(document: Mapping[str, Any]) -> str:
    if (verified := document.get("verified")) is None:
        return ""
    head = "".join(f'<th scope="col">{_text(name)}</th>' for name in VERIFIED[1:])
    rows = "".join(
        f'<tr><th scope="row">{_text(name)}</th>' + "".join(f"<td>{_text(cell)}</td>" for cell in rest) + "</tr>"
        for name, *rest in _verified_rows(verified)
    )
    notes = "".join(f'<tr><th scope="row">{_text(note)}</th></tr>' for note in verified["notes"])
    title = f"<td>{_text(verified['url'])}</td>"
    return f"<table><thead><tr>{title}{head}</tr></thead><tbody>{rows}{notes}</tbody></table>"


def _commands(document: Mapping[str, Any]) -> str:
    out = []
    for command in document.get("commands", ()):
        notes = "".join(f"<br>{_text(note)}" for note in command["notes"])
        out.append(
            f'<tr><th scope="row">{_text(command["engine"])} {_text(command["role"])}</th>'
            f'<td style="white-space:pre-wrap;text-align:left"><code>{_text(command["command"] or "–")}</code>'
            f"{notes}</td></tr>"
        )
    return (
        f"<table><thead><tr><td>Start it</td><td></td></tr></thead><tbody>{''.join(out)}</tbody></table>" if out else ""
    )


def _settings(document: Mapping[str, Any]) -> str:
    named = [("best", document["best"]), ("today", document["current"])]
    tables = [(name, row["setting"]) for name, row in named if row is not None]
    if not tables:
        return "<table></table>"
    head = "".join(f'<th scope="col">{name}</th>' for name, _ in tables)
    rows = []
    for key in tables[0][1]:
        values = [words.value(table[key]) for _, table in tables]
        differs = ' class="differs"' if len(set(values)) > 1 else ""
        rows.append(
            f'<tr{differs}><th scope="row">{_text(key)}</th>{"".join(f"<td>{_text(v)}</td>" for v in values)}</tr>'
        )
    return f"<table><thead><tr><td></td>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def print_summary(document: Mapping[str, Any], console: Console) -> None:
    from rich.markup import escape as literal
    from rich.table import Table

    def say(text: str, style: str | None = None) -> None:
        console.print(shown(text, 2_000), markup=False, highlight=False, style=style, soft_wrap=True)

    say(_title(document), "bold")
    for fact in facts(document)[:3]:
        say(fact)
    if document["compared"]:
        table = Table(
            title="Side by side: at the most load that keeps the SLO, and full",
            title_justify="left",
            title_style="bold",
        )
        for i, column in enumerate(COMPARED):
            table.add_column(column, justify="right" if i else "left", overflow="fold")
        for row in _compared_rows(document):
            table.add_row(*(literal(shown(cell, MOST)) for cell in row))
        console.print(table)
    columns = (0, 2, 3, 4, 5, 6, 7, 8)
    for title, rows in _rows(document):
        table = Table(title=title, title_justify="left", title_style="bold")
        for i in columns:
            table.add_column(_HEAD[i], justify="left" if i in (0, 4) else "right", overflow="fold")
        for row in rows[:LINES]:
            table.add_row(*(literal(shown(row[i], MOST)) for i in columns))
        if len(rows) > LINES:
            table.add_row(f"… {len(rows) - LINES} more in the report")
        console.print(table)
    best = document["best"]
    knee = next((row for row in document["frontier"] if row["knee"]), None)
    if knee is not None:
        p = knee["point"]
        say(
            f"knee of the frontier: {knee['name']} at {words.rate(p['offered'])}: {words.tokens(p['output'])} output "
            f"tokens/s, TTFT P95 {words.late(p['ttft']['p95'])}, TPOT P95 {words.late(p['tpot']['p95'])}, "
            f"{words.money(p['dollars_per_million'])} a million"
        )
    if best is not None and best.get("here"):
        p = best["here"]
        line = f"at {words.rate(p['offered'])}, the traffic as it is: {words.share(p['attainment'])} within the SLO"
        if (fewest := best.get("fewest")) is not None:
            engines, gpus = fewest["setting"]["engines"], fewest["setting"]["gpus"]
            many = f"{engines} engine{'s' * (engines != 1)} ({gpus} GPU{'s' * (gpus != 1)})"
            line += f"; {many} {'are' if engines != 1 else 'is'} enough for it"
        say(line)
    if (verified := document.get("verified")) is not None:
        table = Table(title=f"Predicted and measured, {verified['url']}", title_justify="left", title_style="bold")
        for column in VERIFIED:
            table.add_column(column, justify="right" if column else "left")
        for cells in _verified_rows(verified):
            table.add_row(*(literal(shown(cell, MOST)) for cell in cells))
        console.print(table)
        for note in verified["notes"]:
            say(f"note: {note}", "yellow")
    for command in document.get("commands", ()):
        say(f"{command['engine']} {command['role']}:", "bold")
        if command["command"]:
            say(f"  {command['command']}")
        for note in command["notes"]:
            say(f"  {note}", "yellow")
    say(f"step time: {document['step_time']['note']}")
    for warning in document["warnings"]:
        say(f"note: {warning}", "yellow")
