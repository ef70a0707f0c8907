"""`forebay cache prefix`: how much of prompts engines find cached, how much they could, and what breaks it."""

from __future__ import annotations

import json
import os
import sys
from typing import Annotated, Any

import typer

from forebay.cli.adminsocket import EX_UNAVAILABLE, AdminSocket
from forebay.cli.reach import ConfigOption, JsonOption, StateOption
from forebay.config.load import load_only
from forebay.config.models import Config
from forebay.state.messages import admin_socket

_COMMAND = "forebay cache prefix"
_BREAKS = 3
"""What breaks it: so many are shown of a group, which lose the most."""


def command(
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only this model, by the engine's own name.")
    ] = None,
    organisation: Annotated[
        str | None, typer.Option("--organisation", metavar="NAME", help="Only this organisation.")
    ] = None,
    as_json_: JsonOption = False,
    config: ConfigOption = None,
    state_dir: StateOption = None,
) -> None:
    """Show how much of prompts engines find cached, how much they could, and what breaks it. Needs cache.prefix.watch.

    Figures are of the last ten to twenty minutes (cache.prefix.window). What was asked is never shown: of what varies
    only its place and its shape, digits as 0 and letters as x.
    """
    if state_dir is None:
        found = Config() if config is None else load_only(config, os.environ, "state_dir")
        state_dir = found.state_dir
    admin = AdminSocket(admin_socket(state_dir.absolute()), _COMMAND)
    if not admin.answers():
        admin.fail(f"no gateway runs with the state directory {state_dir}: nothing answers", EX_UNAVAILABLE)
    answer = admin.ask("GET", "/cache/prefix")
    rows = [
        row
        for row in answer["groups"]
        if (model is None or row["model"] == model) and (organisation is None or row["organisation"] == organisation)
    ]
    if as_json_:
        print(json.dumps({**answer, "groups": rows}, ensure_ascii=False, indent=2))
        return
    for why in answer["silent"]:
        print(f"{_COMMAND}: {why}", file=sys.stderr)
    if not answer["watched"] and not answer["silent"]:
        admin.fail("prompts are not watched; set cache.prefix.watch: true, and reload the gateway (SIGHUP)", 1)
    if not rows:
        print("Nothing was asked in this time.", file=sys.stderr)
        return
    show(rows)


def show(rows: list[dict[str, Any]]) -> None:
    """A line a group; below it what may be done, what breaks it, and what is not known."""
    _table(rows)
    for row in rows:
        breaks = [f"{_percent(one['lost'])} lost: {one['words']}{_ago(one)}" for one in row["breaks"][:_BREAKS]]
        for line in (row["advice"], *breaks, *row["notes"]):
            if line:
                print(f"\n{row['model']}, {row['organisation']}: {line}")


def _table(rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("model", "organisation"):
        table.add_column(column, overflow="fold", min_width=len(column))
    for column in ("requests", "tokens", "cached", "as sent", "could be", "compared"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        shares = [_percent(row[name]) for name in ("reported", "as_sent", "could_be")]
        counts = (f"{row['requests']:,}", f"{row['prompt_tokens']:,}")
        table.add_row(row["model"], row["organisation"], *counts, *shares, f"{row['compared']:,}")
    # Into a pipe, lines are not folded: other programs read them.
    Console(width=None if sys.stdout.isatty() else 1_000, highlight=False, markup=False).print(table)


def _ago(one: dict[str, Any]) -> str:
    seconds = one["seconds_ago"]
    return f", last {seconds // 60:,} min ago" if seconds >= 60 else ""


def _percent(found: float | None) -> str:
    return "-" if found is None else f"{found:.1%}"
