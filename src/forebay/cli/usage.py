"""`forebay usage`: who used what, and what it cost.

Asked of the running admin process where one answers on its Unix socket, else of the database itself, which is only
read.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn
from urllib.parse import urlencode

import typer
from typer.core import TyperCommand

from forebay.cli.adminsocket import EX_UNAVAILABLE, AdminSocket
from forebay.cli.main import EX_CONFIG, USAGE
from forebay.cli.reach import ConfigOption, StateOption
from forebay.config.load import load_only
from forebay.config.models import Config
from forebay.config.problems import ConfigError
from forebay.errors import shown
from forebay.ledger.asked import Wrong
from forebay.ledger.usage import Report, as_json, cut, from_json
from forebay.plan.written import replacing, to_stdout
from forebay.state.messages import admin_socket, journals

_BARE = ("--day", "--month")


class _Command(TyperCommand):
    """`--month` and `--day` may stand without a value: this one."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        filled = [
            f"{word}=this" if word in _BARE and (i + 1 == len(args) or args[i + 1].startswith("-")) else word
            for i, word in enumerate(args)
        ]
        return super().parse_args(ctx, filled)


app = typer.Typer(add_completion=False, help="Show who used what, and what it cost.")


@app.command(cls=_Command)
def command(
    by: Annotated[
        list[str] | None,
        typer.Option(
            metavar="A,B",
            help="What rows are of: organisation, department, project, user, key, model, served, engine, tier, class, "
            "route, hour, day, week, month, end_user, label:NAME, how, outcome. With commas, or again.",
        ),
    ] = None,
    month: Annotated[
        str | None, typer.Option(metavar="[YYYY-MM]", help="This month, last, or the one given. The default.")
    ] = None,
    day: Annotated[str | None, typer.Option(metavar="[YYYY-MM-DD]", help="Today, yesterday, or the one given.")] = None,
    since: Annotated[
        str | None, typer.Option(metavar="WHEN", help="A date or time, or a time ago like 7d or 12h.")
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="WHEN", help="Not included; now where left out.")] = None,
    zone: Annotated[
        str | None, typer.Option(metavar="NAME", help="Time zone of days and months; ledger.zone where left out.")
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Only of these; may be repeated. Of one name, either will do."),
    ] = None,
    top: Annotated[int | None, typer.Option(min=2, metavar="N", help="The dearest, and the others as one row.")] = None,
    format_: Annotated[Literal["table", "csv", "json"], typer.Option("--format", help="Of standard output.")] = "table",
    chart: Annotated[bool, typer.Option("--chart", help="Draw it in the terminal, too.")] = False,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write a page with charts.")] = None,
    focus: Annotated[
        Path | None,
        typer.Option("--focus", metavar="FILE", help="Write FOCUS 1.2 (FinOps) as CSV, by day; --by hour: by hour."),
    ] = None,
    config: ConfigOption = None,
    state_dir: StateOption = None,
) -> None:
    """Show who used what, and what it cost: this month, by project, where nothing else is asked for."""
    texts = {"month": month, "day": day, "since": since, "until": until, "zone": zone}
    given = {name: [text] for name, text in texts.items() if text is not None}
    if by:
        given["by"] = [_with_names(text) for text in by]
    if where:
        given["where"] = where
    books = _reach(config, state_dir)
    try:
        if focus is not None:
            _focus(books(given | {"focus": ["true"]}), focus)
            if html is None and not chart and format_ == "table":
                return
        report = books(given)
        shown_ = report if top is None else cut(report, top)
        if html is not None:
            from forebay.cli.usage_page import write_html

            write_html(shown_, html)
            _say(f"{html} is written.")
        _print(shown_, format_, chart=chart, quiet=html is not None and format_ == "table" and not chart)
    except Wrong as e:
        _fail(str(e), USAGE)
    except OSError as e:
        _fail(f"{e.filename}: {e.strerror}" if e.filename else str(e), 1)


def _with_names(by: str) -> str:
    """An id says little to people: a key's name goes before it."""
    words = [word.strip() for word in by.split(",")]
    return ",".join("key_name,key" if word == "key" and "key_name" not in words else word for word in words)


def _print(report: Report, format_: str, *, chart: bool, quiet: bool) -> None:
    from forebay.cli.usage_view import print_chart, print_table, remarks

    if format_ == "json":
        to_stdout(json.dumps(as_json(report), ensure_ascii=False, indent=2) + "\n")
        return
    if format_ == "csv":
        from io import StringIO

        from forebay.ledger.exports import write_csv

        text = StringIO(newline="")
        write_csv(report, text)
        to_stdout(text.getvalue())
    elif report.lines and not quiet:
        from rich.console import Console

        # Into a pipe, lines are not folded: other programs read them.
        wide = sys.stdout.isatty()
        console = Console(width=None if wide else 1_000, highlight=False, markup=False, emoji=False)
        _say(_heading(report))
        if chart:
            print_chart(report, console if wide else Console(width=100, highlight=False, markup=False, emoji=False))
            console.print()
        print_table(report, console)
    elif not report.lines:
        _say(f"Nothing was used: {_heading(report)}.")
    sys.stdout.flush()
    _say(*(f"note: {remark}" for remark in remarks(report)))


def _heading(report: Report) -> str:
    of = "".join(f", {name} {shown(value) or 'none'}" for name, value in report.where)
    return f"{report.period} ({report.zone}), by {', '.join(map(shown, report.by))}{of}"


def _focus(report: Report, path: Path) -> None:
    from forebay.ledger.focus import write_focus

    with replacing(path, errors="replace", newline="") as file:
        write_focus(report, file)
    unpriced = report.total.unpriced
    _say(f"{path} is written: FOCUS 1.2, {report.period} ({report.zone}).")
    if unpriced:
        what = (
            "1 attempt has no known price: its row has the BilledCost 0 and says so"
            if unpriced == 1
            else f"{unpriced:,} attempts have no known price: their rows have the BilledCost 0 and say so"
        )
        _say(f"note: {what} (x_Settlement is unpriced).")


# --- the two ways to the books ----------------------------------------------------------------------------------------

Books = Callable[[dict[str, list[str]]], Report]


def _reach(config: Path | None, state_dir: Path | None) -> Books:
    where = configured(config, state_dir)
    admin = AdminSocket(admin_socket(where.state_dir), "forebay usage")
    if not admin.answers():
        return lambda given: _read(where, given)

    def ask(given: dict[str, list[str]]) -> Report:
        query = urlencode([(name, text) for name, texts in given.items() for text in texts])
        answer: dict[str, Any] = admin.ask("GET", f"/usage?{query}")
        return from_json(answer)

    return ask


def _read(config: Config, given: dict[str, list[str]]) -> Report:
    from forebay.ledger.database import Database, DatabaseError, DatabaseUrl
    from forebay.ledger.usage_books import answer

    try:
        database = Database(config.database, config.state_dir)
        if database.file is not None and not database.file.exists():
            _fail(f"there is no database {database.file}; is --config or --state-dir the right one?", EX_UNAVAILABLE)
        try:
            database.check()
            return answer(database, given, config.ledger, time.time(), journals(config.state_dir))
        finally:
            database.close()
    except DatabaseUrl as e:
        _fail(str(e), EX_CONFIG)
    except DatabaseError as e:
        _fail(str(e), EX_UNAVAILABLE)


def configured(config: Path | None, state_dir: Path | None) -> Config:
    """A configuration in which only state_dir, database and ledger count. Raises ConfigError."""
    if config is None:
        found = Config()
    else:
        try:
            found = load_only(config, os.environ, "state_dir", "database", "ledger")
        except ConfigError:
            if state_dir is None:
                raise
            found = load_only(config, os.environ, "database", "ledger")
    return found if state_dir is None else found.model_copy(update={"state_dir": state_dir.absolute()})


def _say(*lines: str) -> None:
    for line in lines:
        print(line, file=sys.stderr)


def _fail(message: str, code: int) -> NoReturn:
    _say(f"forebay usage: {message}")
    sys.exit(code)
