"""`forebay bench compare`: two results of `forebay bench --json` side by side."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from forebay.cli.bench_options import is_terminal
from forebay.plan.load.compare import Comparison, compare, load
from forebay.plan.target import LoadError


def command(
    a: Annotated[str, typer.Argument(metavar="A.json", help="What is compared with.")],
    b: Annotated[str, typer.Argument(metavar="B.json", help="What is compared.")],
    force: Annotated[
        bool, typer.Option("--force", help="Also where model, prompts or settings differ; what differs is said.")
    ] = False,
    html_file: Annotated[str | None, typer.Option("--html", metavar="FILE", help="Write a report of both.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compare two results of forebay bench --json.

    Refused where model, prompts or settings differ, unless forced. A difference counts where the 95 % intervals of both
    do not overlap.

    Exits with 0; 2 where they cannot be compared.
    """
    try:
        found = compare(load(a), load(b), force=force)
        if html_file is not None:
            from forebay.plan.load.page import write_html

            write_html([found.a, found.b], Path(html_file), found)
    except LoadError as e:
        print(f"forebay bench compare: {e}", file=sys.stderr)
        raise typer.Exit(2) from None
    except OSError as e:
        print(f"forebay bench compare: {e.filename}: {e.strerror or e}", file=sys.stderr)
        raise typer.Exit(2) from None
    if as_json:
        print(json.dumps(found.as_json(), indent=2))
    else:
        _show(found)


def _show(found: Comparison) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if is_terminal(sys.stdout) else 120)
    for word, run in (("A", found.a), ("B", found.b)):
        console.print(f"{word}: {run['url']}  {run['model']}: {run['shape']}", markup=False, highlight=False)
    for line in found.differences:
        console.print(f"Mind: {line}.", markup=False, highlight=False, style="yellow")
    table = Table()
    for name in ("", "A", "B", "B against A", ""):
        table.add_column(name, justify="left" if not name else "right")
    words = {1: "[green]better[/]", -1: "[red]worse[/]", 0: "[dim]within noise[/]", None: ""}
    for row in found.rows:
        change = "" if row.change is None else f"{row.change:+.1%}"
        table.add_row(f"{row.name}, {row.unit}", _number(row.a), _number(row.b), change, words[row.better])
    console.print(table)


def _number(x: float | None) -> str:
    return "–" if x is None else f"{x:,.4g}" if abs(x) < 100 else f"{x:,.1f}"
