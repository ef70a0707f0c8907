"""A run on the terminal, out of its JSON."""

from __future__ import annotations

from typing import Any, Final

from rich.console import Console
from rich.table import Table

from forebay.errors import shown

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
    table = Table()
    table.add_column("ms", no_wrap=True)
    names = list(found["ttft_ms"])
    for name in names:
        table.add_column(name, justify="right")
    for key, label in _NAMES:
        table.add_row(label, *(_number(found[f"{key}_ms"][name]) for name in names))
        sure = found["intervals"][f"{key}_ms"]
        if any(sure.get(name) for name in names):
            table.add_row("  95 %", *(_between(sure.get(name)) for name in names), style="dim")
    console.print(table)
    console.print(
        f"{found['sent']:,} sent, {found['completed']:,} completed, {found['failed']:,} failed in "
        f"{found['seconds']:.1f} s; {found['completed_per_s']:,.1f} requests/s, "
        f"{found['output_tokens_per_s']:,.0f} output tokens/s, at most {found['peak_in_flight']:,} in flight",
        highlight=False,
    )
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
    table = Table()
    table.add_column(word)
    for name in ("sent", "completed", "failed", "good", "TTFT p50", "TTFT p99", "TPOT p50", "E2E p50"):
        table.add_column(name, justify="right")
    order = sorted(groups.items(), key=lambda x: -x[1]["sent"])
    for name, one in order[:MOST_ROWS]:
        table.add_row(
            shown(name or "(none)", 40).replace("[", "\\["),
            *(f"{one[key]:,}" for key in ("sent", "completed", "failed", "good")),
            *(_number(one[key][p]) for key, p in _CELLS),
        )
    console.print(table)
    if len(order) > MOST_ROWS:
        console.print(f"and {len(order) - MOST_ROWS:,} more", highlight=False)


_CELLS: Final = (("ttft_ms", "p50"), ("ttft_ms", "p99"), ("tpot_ms", "p50"), ("e2e_ms", "p50"))


def _number(x: float | None) -> str:
    return "–" if x is None else f"{x:,.1f}" if x < 1_000 else f"{x:,.0f}"


def _between(x: list[float | None] | None) -> str:
    if x is None:
        return ""
    low, high = x
    return f"{_number(low)}…{'?' if high is None else _number(high)}"
