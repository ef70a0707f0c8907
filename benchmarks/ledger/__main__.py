"""make bench-ledger: booking in a worker, settlements a second into SQLite, reports over a month."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.common import RESULTS, env_int, env_names, run, verdict, write_results
from benchmarks.ledger import books, journal, month
from benchmarks.overhead.subjects import postgres

PARTS = ("journal", "books", "month")
DATABASES = ("sqlite", "postgresql")
CALLS = 6.0
"""Most microseconds of the loop that an attempt's calls may take."""
COMMIT = 50.0
"""Most milliseconds, P99, until a reservation is on disk."""
SETTLED = 5_000
REPORT = 2.0
"""Most seconds of any report."""


def main() -> int:
    parts = env_names("PARTS", PARTS, PARTS)
    rate = env_int("RATE", 6_000)
    seconds = env_int("SECONDS", 20)
    count = env_int("ENTRIES", 10_000_000, least=1_000)
    users = env_int("END_USERS", 0, least=0)
    data = os.environ.get("DATA")
    RESULTS.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="bench-ledger-", dir=data or RESULTS))
    console = Console()
    figures: dict[str, Any] = {}
    short: list[str] = []
    try:
        if "journal" in parts:
            figures["journal"] = [journal.measure(folder / f"rate-{r}", r, 5.0) for r in (1_000, 5_000)]
            _show_journal(console, figures["journal"], short)
        if "books" in parts:
            (folder / "books").mkdir()
            figures["books"] = found = books.measure(folder / "books", rate, float(seconds))
            console.print(
                f"books: {found['a_second']:,.0f} settlements a second for {found['seconds']:.0f} s, of {rate:,} "
                f"offered; {found['cpu_us']:.0f} µs of CPU each; the last {found['drained_after']:.1f} s after the "
                "worker's end"
            )
            if found["a_second"] < SETTLED:
                short.append(f"books: {found['a_second']:,.0f} settlements a second; the bar is {SETTLED:,}")
        if "month" in parts:
            figures["month"] = {}
            for name in env_names("DATABASES", DATABASES, DATABASES):
                (folder / name).mkdir()
                with postgres() if name == "postgresql" else nullcontext("") as url:
                    figures["month"][name] = found = month.measure(folder / name, url, count, users, console.print)
                shutil.rmtree(folder / name)
                _show_month(console, name, found, short)
    finally:
        shutil.rmtree(folder)
    path = write_results("ledger", figures)
    console.print(f"figures: {path}")
    return verdict(short)


def _show_journal(console: Console, found: list[dict[str, Any]], short: list[str]) -> None:
    table = Table(title="An attempt's reservation and settlement, over the same load without a journal")
    for name in ("attempts/s", "µs in calls", "µs loop thread", "µs all threads", "fsyncs/s", "ms to disk P50", "P99"):
        table.add_column(name, justify="right")
    for one in found:
        table.add_row(
            f"{one['rate']:,}",
            *(f"{one[name]:.1f}" for name in ("calls_us", "loop_us", "all_us")),
            f"{one['fsyncs_a_second']:.0f}",
            f"{one['commit_ms']['p50']:.1f}",
            f"{one['commit_ms']['p99']:.1f}",
        )
        if one["commit_ms"]["p99"] > COMMIT:
            short.append(
                f"journal: P99 of {one['commit_ms']['p99']:.0f} ms to disk at {one['rate']:,}/s; the bar is {COMMIT:g}"
            )
    if found[-1]["calls_us"] > CALLS:
        short.append(f"journal: {found[-1]['calls_us']:.1f} µs of calls an attempt; the bar is {CALLS:g}")
    console.print(table)


def _show_month(console: Console, database: str, found: dict[str, Any], short: list[str]) -> None:
    sums = ", ".join(f"{count:,} {name}" for name, count in found["sums"].items())
    table = Table(title=f"{database}: a month of {found['entries']:,} entries ({sums})")
    table.add_column("report")
    for column in ("rows", "slowest, s", "CPU of this process, s"):
        table.add_column(column, justify="right")
    for name, times in found["seconds"].items():
        barred = name in found["barred"]
        title = name if barred else f"{name} (no bar)"
        table.add_row(title, f"{found['rows'][name]:,}", f"{max(times):.2f}", f"{min(found['cpu'][name]):.2f}")
        if barred and max(times) > REPORT:
            short.append(f"month on {database}: {name} takes {max(times):.2f} s; the bar is {REPORT:g}")
    console.print(table)


if __name__ == "__main__":
    run(main)
