"""What the cells come to: tables, and what fell short of its bar."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table

from benchmarks.placement.scenarios import SCENARIOS

OF_POOLED = 0.95
SAME = 0.005
"""By how much a rival's figure must be better, in its share, to count as better."""
PLACING_US = {64: 150.0, 1_000: 400.0}
"""CPU of one placement, hashing included, at the median, by number of engines."""
BYTES_A_BLOCK = 160.0
GROWTH = 0.02
"""Of RSS after the first fifth of a million unique prompts."""
BARS = {
    "of_pooled": OF_POOLED,
    "balance": {s.name: s.balance for s in SCENARIOS.values()},
    "same": SAME,
    "placing_us": PLACING_US,
    "bytes_a_block": BYTES_A_BLOCK,
    "growth": GROWTH,
}
OURS = "forebay"
SHOWN = ("forebay waiting", "yardstick")
"""Neither judged nor rivals: its placement without its waiting room, and what can be had."""

Cell = dict[str, Any]
Cells = Mapping[tuple[str, str], Cell]


def table(cells: Cells, reference: Mapping[str, Any], name: str, policies: Sequence[str]) -> Table:
    scenario = SCENARIOS[name]
    pooled, ideal = reference["pooled"]["tokens"], reference["infinite"]
    found = Table(
        title=f"{scenario.title}: {reference['requests']:,} requests in {reference['seconds']:.0f} s; one pooled LRU "
        f"of {reference['capacity']:,} tokens finds {pooled:.2%} of the tokens,\nan infinite one {ideal['tokens']:.2%} "
        f"({ideal['blocks']:.2%} of the blocks). max/mean of the engines' work: mean (P95) of {scenario.window:.0f} s "
        "windows"
    )
    for column in (
        "", "hits", "of pooled", "work", "worst", "whole", "prefill", "decode", "TTFT P50", "P90", "P99", "TPOT P99",
        "in SLO", "load",
    ):  # fmt: skip
        found.add_column(column, justify="right" if column else "left")
    for policy in policies:
        cell = cells[name, policy]
        work, ttft = cell["balance"], cell["ttft"]
        found.add_row(
            f"[bold]{policy}[/]" if policy == OURS else policy,
            f"{cell['hit_tokens']:.2%}",
            f"{cell['hit_tokens'] / pooled:.1%}" if pooled else "–",
            _window(work["all"]),
            _ratio(work["all"]["max"]),
            _ratio(work["all"]["whole"]),
            _window(work["prefill"]),
            _window(work["decode"]),
            *(f"{ttft[p]:.2f} s" for p in ("p50", "p90", "p99")),
            f"{1000 * cell['tpot']['p99']:.0f} ms",
            f"{cell['kept']:.2%}",
            f"{cell['load']['prefill']:.2f} + {cell['load']['decode']:.2f}",
        )
    return found


def shortfalls(
    cells: Cells, references: Mapping[str, Mapping[str, Any]], names: Sequence[str], policies: Sequence[str]
) -> Iterator[str]:
    """Every bar that a cell of Forebay's misses, in a sentence."""
    if OURS not in policies:
        return
    for name in names:
        scenario, own = SCENARIOS[name], cells[name, OURS]
        pooled = references[name]["pooled"]["tokens"]
        if scenario.pooled and own["hit_tokens"] < OF_POOLED * pooled:
            yield (
                f"{name}: {own['hit_tokens']:.2%} of the tokens found, {own['hit_tokens'] / pooled:.1%} of one pooled "
                f"cache's {pooled:.2%}; the bar is {OF_POOLED:.0%}"
            )
        figure = "mean" if scenario.pooled else "max"
        ratio = own["balance"]["all"][figure]
        if ratio is not None and ratio > scenario.balance:
            where = f"{name}: max/mean of the engines' work {ratio:.2f} ({figure} of windows)"
            yield f"{where}; the bar is {scenario.balance}"
        for p in ("p50", "p99"):
            better = [
                f"{policy} {cells[name, policy]['ttft'][p]:.3f}"
                for policy in policies
                if policy not in (OURS, *SHOWN) and cells[name, policy]["ttft"][p] < own["ttft"][p] * (1 - SAME)
            ]
            if better:
                yield f"{name}: TTFT {p.upper()} {own['ttft'][p]:.3f} s; shorter have {', '.join(better)}"
        better = [
            f"{policy} {cells[name, policy]['kept']:.2%}"
            for policy in policies
            if policy not in (OURS, *SHOWN) and cells[name, policy]["kept"] > own["kept"] + SAME
        ]
        if better:
            yield f"{name}: {own['kept']:.2%} in SLO; more have {', '.join(better)}"


def micro_table(found: Mapping[str, Any]) -> Table:
    index, flood = found["index"], found["flood"]
    shown = Table(
        title="One placement of a prompt of 8,192 tokens, µs of CPU\n"
        f"Index: {index['alone']['bytes_a_block']} bytes a block, {index['shared']['bytes_a_block']} where two engines "
        f"hold each; {flood['prompts']:,} unique prompts: RSS {flood['rss_fifth'] / 2**20:.0f} MiB after a fifth "
        f"of them, {flood['rss_most'] / 2**20:.0f} MiB at most"
    )
    for column in ("engines", "P50", "P90", "P99", "hashing", "deciding"):
        shown.add_column(column, justify="right")
    for one in found["placing"]:
        figures = ("p50_us", "p90_us", "p99_us", "hashing_p50_us", "deciding_p50_us")
        shown.add_row(f"{one['engines']:,}", *(f"{one[name]:.0f}" for name in figures))
    return shown


def micro_shortfalls(found: Mapping[str, Any]) -> Iterator[str]:
    for one in found["placing"]:
        most = PLACING_US.get(one["engines"])
        if most is not None and one["p50_us"] > most:
            yield f"micro: {one['p50_us']:.0f} µs a placement at {one['engines']:,} engines; the bar is {most:.0f}"
    for name, index in found["index"].items():
        if index["bytes_a_block"] > BYTES_A_BLOCK:
            yield f"micro: {index['bytes_a_block']} bytes a block ({name}); the bar is {BYTES_A_BLOCK:.0f}"
    if found["flood"]["growth"] > GROWTH:
        yield f"micro: RSS grew by {found['flood']['growth']:.1%} under unique prompts; the bar is {GROWTH:.0%}"


def _window(balance: Mapping[str, Any]) -> str:
    return "–" if balance["mean"] is None else f"{balance['mean']:.2f} ({balance['p95']:.2f})"


def _ratio(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
