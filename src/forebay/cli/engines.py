"""`forebay engines`: the engines behind the running gateway; add, drain and remove them."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from forebay.cli.adminsocket import EX_UNAVAILABLE, AdminSocket
from forebay.cli.main import USAGE
from forebay.cli.reach import ConfigOption, JsonOption, StateOption
from forebay.config.load import load_only
from forebay.config.models import Config
from forebay.errors import shown
from forebay.state.messages import admin_socket

app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="List, add, drain and remove engines of the running gateway."
)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The engine, as `forebay engines list` shows it.")]


@app.command("list")
def list_(as_json_: JsonOption = False, config: ConfigOption = None, state_dir: StateOption = None) -> None:
    """List the engines, what state each is in, and the requests running on it."""
    rows: list[dict[str, Any]] = _reach(config, state_dir).ask("GET", "/engines")["engines"]
    if as_json_:
        print(json.dumps(rows, ensure_ascii=False, indent=2))
    elif rows:
        _table(rows)
    else:
        print("There are no engines.", file=sys.stderr)


@app.command()
def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its label in metrics and logs.")],
    url: Annotated[str, typer.Argument(metavar="URL", help="http:// or https:// and a host, without /v1.")],
    kind: Annotated[str | None, typer.Option(help="What it is, as under engines in forebay.yaml.")] = None,
    models: Annotated[
        str | None, typer.Option(metavar="A,B", help="Models it serves, with commas; asked of it where left out.")
    ] = None,
    api_key: Annotated[
        str | None, typer.Option(metavar="'${VAR}'", help="A variable in the environment of `forebay serve`.")
    ] = None,
    discover: Annotated[
        str | None, typer.Option(metavar="dns", help="dns, dns4 or dns6: an engine for each address of the name.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="FIELD=VALUE", help="Any other field of an entry under engines; may be repeated."
        ),
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace one of the name that was added before.")] = False,
    as_json_: JsonOption = False,
    config: ConfigOption = None,
    state_dir: StateOption = None,
) -> None:
    """Add an engine. It is kept over restarts of the gateway, until it is removed."""
    fields: dict[str, Any] = {"name": name, "url": url, "kind": kind, "api_key": api_key, "discover": discover}
    if models is not None:
        fields["models"] = [m.strip() for m in models.split(",")]
    for setting in set_ or ():
        field, equals, text = setting.partition("=")
        if not equals:
            _fail(f"--set takes FIELD=VALUE, not '{shown(setting)}'", USAGE)
        *above, last = field.split(".")
        into = fields
        for part in above:
            into = into.setdefault(part, {})
            if not isinstance(into, dict):
                _fail(f"--set {shown(field)}: {shown(part)} has no fields", USAGE)
        into[last] = _value(text)
    path = "/engines?replace=true" if replace else "/engines"
    answer = _reach(config, state_dir).ask("POST", path, {k: v for k, v in fields.items() if v is not None})
    _say(answer, "is added", as_json_)


@app.command()
def drain(
    name: NameArgument, as_json_: JsonOption = False, config: ConfigOption = None, state_dir: StateOption = None
) -> None:
    """Send an engine no new requests; those running finish. Kept over restarts, until it is resumed."""
    answer = _reach(config, state_dir).ask("POST", f"/engines/{_path(name)}/drain")
    _say(answer, "drains; `forebay engines list` shows what still runs there", as_json_)


@app.command()
def resume(
    name: NameArgument, as_json_: JsonOption = False, config: ConfigOption = None, state_dir: StateOption = None
) -> None:
    """Send a drained engine requests again."""
    answer = _reach(config, state_dir).ask("POST", f"/engines/{_path(name)}/resume")
    _say(answer, "takes requests again", as_json_)


@app.command()
def remove(
    name: NameArgument, as_json_: JsonOption = False, config: ConfigOption = None, state_dir: StateOption = None
) -> None:
    """Remove an engine that was added. What runs there finishes."""
    answer = _reach(config, state_dir).ask("DELETE", f"/engines/{_path(name)}")
    _say(answer, "is removed", as_json_)


def _value(text: str) -> Any:
    """As YAML would read it: a number, true, false, a list in JSON, else the text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _path(name: str) -> str:
    return quote(name, safe="@:/")


def _say(answer: dict[str, Any], what: str, as_json_: bool) -> None:
    if as_json_:
        print(json.dumps(answer, ensure_ascii=False, indent=2))
        return
    print(f"Engine {answer['engine']} {what}.", file=sys.stderr)
    if answer["workers"] == "pending":
        print("Not every worker has confirmed it yet; it is kept, and they will be told.", file=sys.stderr)


def _table(rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("name", "url", "kind", "state", "in flight", "models", "from", "why"):
        table.add_column(column, overflow="fold", no_wrap=column == "name")
    for row in rows:
        models = ", ".join(row["models"])
        cells = (row["name"], row["url"], row.get("kind", ""), row["state"], str(row["in_flight"]), models)
        table.add_row(*cells, row["source"], row.get("why", ""))
    # Into a pipe, lines are not folded: other programs read them.
    Console(width=None if sys.stdout.isatty() else 1_000, highlight=False, markup=False).print(table)


def _reach(config: Path | None, state_dir: Path | None) -> AdminSocket:
    """The running admin process."""
    if state_dir is None:
        found = Config() if config is None else load_only(config, os.environ, "state_dir")
        state_dir = found.state_dir
    admin = AdminSocket(admin_socket(state_dir.absolute()), "forebay engines")
    if not admin.answers():
        where = "" if config is not None else "; --config names another's configuration"
        said = f"no gateway runs with the state directory {state_dir}: nothing answers on {admin.path}"
        _fail(said + where, EX_UNAVAILABLE)
    return admin


def _fail(message: str, code: int) -> None:
    print(f"forebay engines: {message}", file=sys.stderr)
    sys.exit(code)
