"""A run on the terminal, out of its JSON."""

from __future__ import annotations

from typing import Any, Final

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from forebay.errors import shown

_FIRST_TO_GO: Final = ("p99.9", "p95", "max", "mean", "p90", "p99")
"""Where there is no room for all."""
MOST: Final = 300
"""Characters of a name or a note."""
MOST_ROWS: Final = 12
"""Tenants shown."""
_NAMES: Final = (
    ("ttft", "time to first token"),
    ("itl", "between tokens (ITL)"),
    ("tpot", "per output token (TPOT)"),
    ("e2e", "whole request (E2E)"),
)


def print_table(found: dict[str, Any], console: Console) -> None:
    console.print(f"{found['url']}  {found['model']}: {found['shape']}", markup=False, highlight=False)
    console.print(_latencies(found, console.width))
    console.print(
        f"{found['sent']:,} sent, {found['completed']:,} completed, {found['failed']:,} failed in "
        f"{found['seconds']:.1f} s; {found['completed_per_s']:,.1f} requests/s, "
        f"{found['output_tokens_per_s']:,.0f} output tokens/s, at most {found['peak_in_flight']:,} in flight",
        highlight=False,
    )
    if "knee" in found:
        console.print(f"knee: {knee_line(found['knee'])}", markup=False, highlight=False)
    good = found["goodput"]
    if good["slo"] != "none" and good["share"] is not None:
        low, high = good["share_interval"]
        console.print(
            f"goodput: {good['per_s']:,.2f} requests/s, {good['share']:.1%} within {good['slo']} (95 %: {low:.1%} to "
            f"{high:.1%})",
            markup=False,
            highlight=False,
        )
    for kind, n in found["errors"].items():
        console.print(f"  {n:>8,} × {kind}", markup=False, highlight=False)
    _retries(found["retry_after"], console)
    if found["cost"] is not None:
        for line in cost_lines(found["cost"]):
            console.print(line, markup=False, highlight=False)
    for key, word in (("classes", "class"), ("tenants", "tenant")):
        if len(found[key]) > 1:
            _groups(found[key], word, console)
    for note in found["notes"]:
        console.print(shown(note, MOST), markup=False, highlight=False, style="yellow")


def _latencies(found: dict[str, Any], width: int) -> Table:
    """As many percentiles as there is room for, at least the median."""
    names, short = list(found["ttft_ms"]), False
    table = _of_columns(found, names, short=short)
    while _width(table) > width and not (short and len(names) == 1):
        if short:
            names.remove(next(name for name in _FIRST_TO_GO if name in names))
        short = True
        table = _of_columns(found, names, short=short)
    return table


def _of_columns(found: dict[str, Any], names: list[str], *, short: bool) -> Table:
    table = Table()
    table.add_column("ms", no_wrap=True)
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    for key, label in _NAMES:
        table.add_row(key.upper() if short else label, *(_number(found[f"{key}_ms"][name]) for name in names))
        sure = found["intervals"][f"{key}_ms"]
        if any(sure.get(name) for name in names):
            table.add_row(" 95 %" if short else "  95 %", *(_between(sure.get(name)) for name in names), style="dim")
    return table


def _width(table: Table) -> int:
    """Characters that it takes unless it is squeezed."""
    console = Console(width=1_000)
    return Measurement.get(console, console.options, table).maximum


def knee_line(knee: dict[str, Any]) -> str:
    """What a search for the knee found, in a sentence."""
    rate, broken, n = knee["rate"], knee["not_kept_at"], len(knee["steps"])
    kept = "no rate was kept" if rate is None else f"{rate:g} requests/s were kept"
    beyond = "" if broken is None else f", {broken:g} were not"
    return f"{kept}{beyond}; {knee['least_share']:.1%} of the requests within {knee['slo']}, {n} rates tried"


def cost_lines(cost: dict[str, Any]) -> list[str]:
    """What a run cost, in sentences."""
    lines = []
    for one in cost["by"]:
        each = one["per_valid_request"]
        per_million = one["per_million_output_tokens"]
        text = f"cost by {one['name']}: {one['total']} {cost['currency']}"
        text += ", no valid request" if each is None else f", {each} a valid request"
        if per_million is not None:
            text += f", {per_million} a million output tokens"
        lines.append(text + (f" ({one['note']})" if one["note"] else ""))
    return lines


def _retries(waits: dict[str, Any], console: Console) -> None:
    if not waits["seen"]:
        return
    text = f"  Retry-After on {waits['seen']:,} answers: {waits['least_s']:g} to {waits['most_s']:g} s"
    if waits["honoured"]:
        text += f"; obeyed {waits['retried']:,} times, {waits['rescued']:,} requests completed so"
    else:
        text += "; not obeyed (--retries N)"
    if waits["told_not_to"]:
        text += f"; {waits['told_not_to']:,} said not to try again"
    console.print(text, highlight=False)


def _groups(groups: dict[str, Any], word: str, console: Console) -> None:
    order = sorted(groups.items(), key=lambda x: -x[1]["sent"])
    cells = list(_CELLS)
    while _width(table := _of_groups(order[:MOST_ROWS], word, cells)) > console.width and len(cells) > 1:
        cells.pop()
    console.print(table)
    if len(order) > MOST_ROWS:
        console.print(f"and {len(order) - MOST_ROWS:,} more", highlight=False)


_CELLS: Final = (
    ("sent", ""),
    ("completed", ""),
    ("failed", ""),
    ("good", ""),
    ("ttft_ms", "p50"),
    ("ttft_ms", "p99"),
    ("tpot_ms", "p50"),
    ("e2e_ms", "p50"),
)


def _of_groups(order: list[tuple[str, dict[str, Any]]], word: str, cells: list[tuple[str, str]]) -> Table:
    table = Table()
    table.add_column(word)
    for key, p in cells:
        table.add_column(f"{key.removesuffix('_ms').upper()} {p}" if p else key, justify="right", no_wrap=True)
    for name, one in order:
        values = (_number(one[key][p]) if p else f"{one[key]:,}" for key, p in cells)
        table.add_row(shown(name or "(none)", 40).replace("[", "\\["), *values)
    return table


def _number(x: float | None) -> str:
    return "–" if x is None else f"{x:,.1f}" if x < 1_000 else f"{x:,.0f}"


def _between(x: list[float | None] | None) -> str:
    if x is None:
        return ""
    low, high = x
    return f"{_number(low)}…{'?' if high is None else _number(high)}"
