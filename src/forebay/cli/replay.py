"""`forebay replay`: whether a recorded run of admission would be decided the same again."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from forebay.plan.replay import Verdict

DIFFERENT = 1
UNUSABLE = 2


def command(
    recording: Annotated[Path, typer.Argument(metavar="FILE", help="What admission.record names.")],
    show: Annotated[int, typer.Option(metavar="N", min=0, help="Differences to show.")] = 5,
) -> None:
    """Decide a recorded run again, and compare.

    The gateway's admission is made anew and told, in simulated time, what it was told in the recording; each decision
    must be the same, to the last digit.

    Exits with 0; 1 where a decision differs or the file is not what the gateway wrote; 2 where it cannot be read.
    """
    from forebay import __version__
    from forebay.plan.replay import Verdict, lines
    from forebay.sim.recording import RecordingError, Replay, Tape

    verdict = Verdict(show)
    try:
        tape = Tape(recording)
        for played in Replay(tape):
            verdict.add(played)
    except (RecordingError, OSError) as e:
        _complain(e)
        raise typer.Exit(UNUSABLE) from None
    _table(verdict)
    print("\n".join(lines(verdict, tape, __version__)))
    if verdict.different or not tape.sound:
        raise typer.Exit(DIFFERENT)


def _table(verdict: Verdict) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("class", "decision", "live", "replayed", "equal"):
        table.add_column(name, justify="left" if name in ("class", "decision") else "right")
    for row in verdict.rows():
        table.add_row(row.cls.value, row.kind, *(f"{n:,}" for n in (row.live, row.replayed, row.equal)))
    console = Console(width=None if sys.stdout.isatty() else 120, markup=False)
    console.print(table)


def _complain(error: Exception) -> None:
    from forebay.errors import shown

    said = str(error)
    if isinstance(error, OSError) and error.filename:
        said = f"{error.filename}: {error.strerror}"
    print(f"forebay replay: {shown(said, 2000)}", file=sys.stderr)
