"""The whole gateway killed under load at writes, fsyncs and commits, then its disks and databases taken away; what the
books have of what the engine counted.

Run by `make campaign-crash` (N=500 deaths, SEED=1, RATE=30 requests a second; DATABASES=SQLite,PostgreSQL;
FAULTS=0 leaves the second part out; CHECK=1 exits with 1 where something fell short). Real processes: `forebay serve`,
and clients with five keys that come at their own pace, more than half of them for streams; the engine, which counts, is
in the process of the clients.

1. Deaths by SIGKILL, half of N for each database: three quarters of the worker, alone, before, within or after a write,
   fsync, create or rename of its journal; a tenth of the whole tree at such a point; the rest of the admin process,
   before or after a commit or the removal of a segment. The processes do it themselves (`crash_children`).
2. Databases and disks that fail for a while, nobody killed but PostgreSQL: requests go on, the alarm is set and
   cleared, and every attempt is in the books exactly.

A worker's journal says as it dies what it had in memory only (`crash_books.Death`): that alone may be missing. Of the
first calls that fell short the results have all that is known (`crash_trace`); the lane's folder is kept beside them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from pathlib import Path

from benchmarks.common import RESULTS, BenchError, env_flag, env_int, env_names, run, verdict, write_results
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from crash_books import Found, deaths_of_workers
from crash_children import deaths
from crash_faults import Fault, Outcome, faults_of
from crash_lane import Lane, Plan, Stuck
from postgres_server import Postgres

WORKER_POINTS = [
    (call, when)
    for call in ("write", "sync", "create", "rename", "sync_folder")
    for when in (("before", "half", "after") if call == "write" else ("before", "after"))
]
OFTEN = 4
"""How many times as often a write or fsync is chosen as one that begins a segment."""
ADMIN_POINTS = [(call, when) for call in ("commit", "forget") for when in ("before", "after")]


def plan_of(n: int, seed: int) -> Plan:
    """Every point in turn, at calls that are drawn. A worker that died as it began gets to serve the next time: after
    five in a row that do not, the supervisor would give up."""
    rng = random.Random(seed)
    admins, trees = n * 15 // 100, n // 10
    weighted = [p for p in WORKER_POINTS for _ in range(OFTEN if p[0] in ("write", "sync") else 1)]
    rng.shuffle(weighted)
    order = [weighted[i % len(weighted)] for i in range(n - admins)]
    rng.shuffle(order)
    whole = set(rng.sample(range(n - admins), trees))
    workers = []
    early = False
    for i, (call, when) in enumerate(order):
        often = call in ("write", "sync")
        least = 3 if early and often else 1 if early else 0
        at = rng.randint(least, 40 if often else 2)
        early = at < (3 if often else 1)
        workers.append((call, when, at, i in whole))
    admin = [(*ADMIN_POINTS[i % len(ADMIN_POINTS)], rng.randint(1, 8), False) for i in range(admins)]
    rng.shuffle(admin)
    return {"worker": workers, "admin": admin}


async def kills(lanes: list[Lane], bar: Progress) -> tuple[dict[str, Found], list[str]]:
    found: dict[str, Found] = {}
    wrong: list[str] = []

    async def one(lane: Lane) -> None:
        task = bar.add_task(f"deaths, {lane.name}", total=lane.planned)
        try:
            await lane.start()
            await lane.die(lambda n: bar.advance(task, n))
            found[lane.name], problems = await lane.end()
            wrong.extend(problems)
        except Stuck as e:
            wrong.append(str(e))
        finally:
            await lane.close()

    await asyncio.gather(*map(one, lanes))
    return found, wrong


async def faults(lane: Lane, plan: list[Fault], bar: Progress) -> tuple[list[Outcome], Found | None, list[str]]:
    task = bar.add_task(f"faults, {lane.name}", total=len(plan))
    outcomes: list[Outcome] = []
    wrong: list[str] = []
    found = None
    try:
        await lane.start()
        await asyncio.sleep(2)
        for fault in plan:
            outcome = await fault.run(lane)
            outcomes.append(outcome)
            wrong += outcome.wrong
            bar.advance(task)
        found, problems = await lane.end()
        wrong += problems
    except Stuck as e:
        wrong.append(str(e))
    finally:
        await lane.close()
    return outcomes, found, wrong


def books_table(books: dict[str, Found]) -> Table:
    table = Table(title="What the books have of what the engine counted")
    for name in (
        "books",
        "requests",
        "gave up",
        "engine calls",
        "entries",
        "exact",
        "estimated",
        "at risk",
        "no trace",
    ):
        table.add_column(name, justify="right")
    for name in ("lost", "double", "wrong", "open", "longest unsettled", "longest unsaved"):
        table.add_column(name, justify="right")
    for name, b in books.items():
        numbers = [b.requests, b.gave_up, b.calls, b.entries, b.exact, b.estimated, b.at_risk, b.gone]
        numbers += [len(b.lost), len(b.double), len(b.wrong), b.open]
        table.add_row(
            name,
            *(f"{n:,}" for n in numbers),
            f"{b.window * 1000:.0f} ms",
            f"{max(b.unsaved, default=0) * 1000:.0f} ms",
        )
    return table


def deaths_table(lanes: list[Lane]) -> tuple[Table, Counter[tuple[str, str, str]]]:
    at = Counter((call, when, what) for lane in lanes for _, _, call, when, what in map(str.split, deaths(lane.folder)))
    table = Table(title=f"{at.total():,} deaths by SIGKILL")
    for name in ("call", "when", "worker", "whole tree", "admin"):
        table.add_column(name)
    for call, when in [*WORKER_POINTS, *ADMIN_POINTS]:
        table.add_row(call, when, *(str(at[call, when, what] or "") for what in ("worker", "tree", "admin")))
    return table, at


def faults_table(outcomes: list[Outcome]) -> Table:
    table = Table(title="Databases and disks that fail under load")
    for name in ("what", "lasted", "requests", "not answered", "alarm", "set after", "cleared after"):
        table.add_column(name, justify="right")
    for o in outcomes:
        cells = (f"{o.lasted:.1f} s", f"{o.requests:,}", str(o.failed), o.alarm, _seconds(o.set_after))
        table.add_row(o.name, *cells, _seconds(o.cleared_after))
    return table


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} s"


def _sockets(folder: str, names: list[str]) -> list[str]:
    """Cannot be copied."""
    return [name for name in names if (Path(folder) / name).is_socket()]


async def campaign(here: Path, stack: contextlib.ExitStack, console: Console) -> int:
    n, seed, rate = env_int("N", 500), env_int("SEED", 1), env_int("RATE", 30)
    chosen = env_names("DATABASES", ("SQLite", "PostgreSQL"), ("SQLite", "PostgreSQL"))
    began = time.monotonic()
    urls = {"SQLite": ""}
    if "PostgreSQL" in chosen:
        server = Postgres(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="forebay-pg-"))))
        stack.callback(server.close)
        urls["PostgreSQL"] = server.new()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    outcomes: list[Outcome] = []
    with Progress(*columns, console=console) as bar:
        lanes = [
            Lane(name, here / name, urls[name], plan_of(n // len(chosen), seed + i), rate=rate, seed=seed + i, wait=10)
            for i, name in enumerate(chosen)
        ]
        books, wrong = await kills(lanes, bar)
        if env_flag("FAULTS") is not False:
            for i, name in enumerate(chosen):
                lane, plan = faults_of(name, here, stack, rate=rate, seed=seed + 10 + i)
                found, of, problems = await faults(lane, plan, bar)
                outcomes += found
                wrong += problems
                if of is not None:
                    books[f"{name}, faults"] = of
    by_point, counts = deaths_table(lanes)
    console.print(by_point)
    if outcomes:
        console.print(faults_table(outcomes))
    console.print(books_table(books))
    seconds = time.monotonic() - began
    figures: dict[str, object] = {
        "n": n,
        "seed": seed,
        "rate": rate,
        "seconds": seconds,
        "deaths": {" ".join(where): count for where, count in sorted(counts.items())},
        "deaths_of_workers": {
            lane.name: [(d.at, d.wall, f"{d.when} {d.call}") for d in deaths_of_workers(lane.folder)] for lane in lanes
        },
        "starts_of_the_tree": {lane.name: lane.starts for lane in lanes},
        "books": {name: {f: getattr(b, f) for f in b.__dataclass_fields__} for name, b in books.items()},
        "faults": [{f: getattr(o, f) for f in o.__dataclass_fields__} for o in outcomes],
        "fell_short": wrong,
    }
    console.print(f"{write_results('crash', figures)}, SEED={seed}, {seconds:.0f} s")
    for lane in lanes:
        if any(line.startswith(f"{lane.name}: ") for line in wrong):
            kept = shutil.copytree(
                lane.folder, RESULTS / f"crash-kept-{lane.stem}", dirs_exist_ok=True, ignore=_sockets
            )
            console.print(f"{kept}: its state directory, logs and journals")
    return verdict(wrong)


def main() -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that nothing it started is left running
    with contextlib.ExitStack() as stack:
        here = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fb-crash-")))
        try:
            return asyncio.run(campaign(here, stack, Console(width=int(os.environ.get("COLUMNS") or 150))))
        except AssertionError as e:
            raise BenchError(str(e)) from e


if __name__ == "__main__":
    run(main)
