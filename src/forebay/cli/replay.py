"""`forebay replay`: whether a recorded run of admission would be decided the same again."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

DIFFERENT = 1
UNUSABLE = 2


def command(
    recording: Annotated[Path, typer.Argument(metavar="FILE", help="What admission.record names.")],
    rules: Annotated[
        Path | None,
        typer.Option(metavar="YAML", help="Simulate its requests under this configuration's admission instead."),
    ] = None,
    workload: Annotated[
        Path | None, typer.Option(metavar="JSONL", help="Write its requests as a workload for forebay simulate.")
    ] = None,
    show: Annotated[int, typer.Option(metavar="N", min=0, help="Differences to show.")] = 5,
) -> None:
    """Decide a recorded run again, and compare.

    The gateway's admission is made anew and told, in simulated time, what it was told in the recording; each decision
    must be the same, to the last digit.

    With --rules its requests go to modelled engines, under the recorded rules and under those: how far the former is
    from the live run tells how far the latter can be believed. Engines and step times are those that the recording
    taught the admission.

    Exits with 0; 1 where a decision differs or the file is not what the gateway wrote; 2 where it cannot be read or
    simulated, or the workload cannot be written; 78 for a configuration that cannot be used.
    """
    from forebay import __version__
    from forebay.config.load import load_only
    from forebay.gateway.admitting import rules_of
    from forebay.plan.replay import Verdict, lines
    from forebay.plan.rerun import Outcomes
    from forebay.plan.rerun import table as compared
    from forebay.policy.recording import typed
    from forebay.policy.rules import Rules
    from forebay.sim.recording import RecordingError, Replay, Tape
    from forebay.sim.rerun import LearnedStepTime, Requests, rerun
    from forebay.sim.workloads import write

    new = None
    if rules is not None:
        given = load_only(rules, os.environ, "admission", "placement")
        new = replace(rules_of(given.admission, given.placement), gated=True)
    verdict, live = Verdict(show), Outcomes()
    try:
        tape = Tape(recording)
        replay = Replay(tape)
        requests = Requests(replay.facts)
        for played in replay:
            verdict.add(played)
            live.write(played.live)
            requests.add(played.live)
        if workload is not None:
            with workload.open("wb") as file:
                write(requests.arrivals(), file)
        if new is None:
            _table(("class", "decision", "live", "replayed", "equal"), verdict.texts())
        else:
            steps = {name: LearnedStepTime.of(books.ttft) for name, books in replay.books.items()}
            columns = [live]
            for tried in (typed(tape.begin.rules, Rules), new):
                columns.append(Outcomes())
                rerun(requests, steps, tried, columns[-1])
            _table(("class", "requests", "live", "simulated, its rules", f"simulated, {rules}"), compared(columns))
    except (RecordingError, OSError, ValueError) as e:
        _complain(e)
        raise typer.Exit(UNUSABLE) from None
    print("\n".join(lines(verdict, tape, __version__)))
    if verdict.different or not tape.sound:
        raise typer.Exit(DIFFERENT)


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from forebay.errors import shown

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for i, name in enumerate(columns):
        table.add_column(shown(name), justify="right" if i > 1 else "left")
    for row in rows:
        table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else 120, markup=False).print(table)


def _complain(error: Exception) -> None:
    from forebay.errors import shown

    said = str(error)
    if isinstance(error, OSError) and error.filename:
        said = f"{error.filename}: {error.strerror}"
    print(f"forebay replay: {shown(said, 2000)}", file=sys.stderr)
