"""`forebay key`: make, list, rotate, expire, suspend and revoke API keys."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from forebay.cli.main import USAGE
from forebay.cli.reach import ConfigOption, JsonOption, StateOption, fail, owner, pending, reach, say, say_of, show_json
from forebay.errors import shown

COMMAND: Final = "forebay key"
app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Create, list, rotate, expire, suspend and revoke API keys."
)

IdArgument = Annotated[str, typer.Argument(metavar="ID", help="The key's id, as `forebay key list` shows it.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Print the key and nothing else.")]


@app.command()
def create(
    name: Annotated[str, typer.Option("--name", help="What the key is for; unique among the keys of its user.")],
    organisation: Annotated[str, typer.Option(help="The tenant.")] = "default",
    department: Annotated[str | None, typer.Option()] = None,
    project: Annotated[str | None, typer.Option()] = None,
    user: Annotated[str | None, typer.Option()] = None,
    models: Annotated[
        str | None, typer.Option(metavar="A,B", help="Models or aliases it may use, with commas; all where left out.")
    ] = None,
    class_: Annotated[str, typer.Option("--class", help="Priority class: vip, normal or low.")] = "normal",
    may_raise_class: Annotated[
        bool,
        typer.Option("--may-raise-class", help="Let X-Priority and X-User-Tier raise the class, not only lower it."),
    ] = False,
    expires: Annotated[
        str | None, typer.Option(metavar="WHEN", help="A duration like 30d or 12h, or a date or time like 2027-01-31.")
    ] = None,
    quiet: QuietOption = False,
    as_json_: JsonOption = False,
    config: ConfigOption = None,
    state_dir: StateOption = None,
) -> None:
    """Create a key and print it on standard output, once: it cannot be shown again."""
    fields: dict[str, object] = {
        "name": name,
        "organisation": organisation,
        "department": department,
        "project": project,
        "user": user,
        "models": [m.strip() for m in models.split(",")] if models is not None else [],
        "class": class_,
        "may_raise_class": may_raise_class,
        "expires": expires,
    }
    with reach(COMMAND, config, state_dir, make=True) as reached:
        answer = reached.ask("POST", "/keys", {k: v for k, v in fields.items() if v is not None})
    record = answer["record"]
    _show_text(
        answer,
        f"Key {record['id']} ({record['name']}) of {owner(record)}, class {record['class']}",
        f"models: {', '.join(record['models']) or 'all'}; expires: {record['expires'] or 'never'}",
        quiet=quiet,
        as_json=as_json_,
    )


@app.command("list")
def list_(
    everything: Annotated[bool, typer.Option("--all", help="Expired and revoked keys too.")] = False,
    as_json_: JsonOption = False,
    config: ConfigOption = None,
    state_dir: StateOption = None,
) -> None:
    """List the keys in the database. Keys of the configuration file are not among them."""
    with reach(COMMAND, config, state_dir) as reached:
        found = reached.ask("GET", "/keys")["keys"]
    keys = [k for k in found if everything or k["state"] in ("valid", "suspended")]
    if as_json_:
        show_json(keys)
        return
    if keys:
        _table(keys)
    hidden = len(found) - len(keys)
    if hidden or not keys:
        more = f"; {hidden} expired or revoked (--all shows them)" if hidden else ""
        say(f"{len(keys)} key{'s' * (len(keys) != 1)}{more}")


@app.command()
def rotate(
    key_id: IdArgument,
    overlap: Annotated[
        str, typer.Option(metavar="DURATION", help="How long the text it has counts on, like 24h; 0: not at all.")
    ] = "24h",
    quiet: QuietOption = False,
    as_json_: JsonOption = False,
    config: ConfigOption = None,
    state_dir: StateOption = None,
) -> None:
    """Give a key a new text and print it on standard output, once. It stays the same key: its id, name, limits and
    reports go on. The text it has, and those before, count until the overlap ends."""
    answer = _change(config, state_dir, key_id, "rotate", {"overlap": overlap})
    record = answer["record"]
    ends = max((old["ends"] for old in record["old_texts"]), default=None)
    was = f"the one before counts until {ends}" if ends else "the one before does not count any more"
    _show_text(
        answer,
        f"Key {record['id']} ({record['name']}) of {owner(record)} has a new text; {was}.",
        quiet=quiet,
        as_json=as_json_,
    )


@app.command()
def expire(
    key_id: IdArgument,
    when: Annotated[
        str,
        typer.Argument(metavar="WHEN", help="A duration like 30d, a date or time like 2027-01-31, `now`, or `never`."),
    ],
    as_json_: JsonOption = False,
    config: ConfigOption = None,
    state_dir: StateOption = None,
) -> None:
    """Change when a key expires. One that has expired can be given more time."""
    answer = _change(config, state_dir, key_id, "expire", {"expires": when})
    expires = answer["record"]["expires"]
    over = answer["record"]["state"] == "expired"
    what = f"has expired on {expires}" if over else f"expires on {expires}" if expires else "never expires"
    _say_change(answer, what, as_json_)


@app.command()
def suspend(
    key_id: IdArgument, as_json_: JsonOption = False, config: ConfigOption = None, state_dir: StateOption = None
) -> None:
    """Refuse requests with a key until it is resumed. What runs goes on to its end."""
    answer = _change(config, state_dir, key_id, "suspend")
    _say_change(answer, f"is suspended since {answer['record']['suspended']}", as_json_)


@app.command()
def resume(
    key_id: IdArgument, as_json_: JsonOption = False, config: ConfigOption = None, state_dir: StateOption = None
) -> None:
    """Let a suspended key be used again."""
    answer = _change(config, state_dir, key_id, "resume")
    by = answer["record"]["suspended_by"]
    above = f"; its {by} is suspended: `forebay account resume`" if by else ""
    _say_change(answer, f"is not suspended{' itself' if by else ''}{above}", as_json_)


@app.command()
def revoke(
    key_id: IdArgument, as_json_: JsonOption = False, config: ConfigOption = None, state_dir: StateOption = None
) -> None:
    """Revoke a key. Requests with it are refused from then on; it cannot be undone."""
    answer = _change(config, state_dir, key_id, "revoke")
    _say_change(answer, f"is revoked since {answer['record']['revoked']}", as_json_)


def _change(
    config: Path | None, state_dir: Path | None, key_id: str, what: str, body: dict[str, object] | None = None
) -> dict[str, Any]:
    with reach(COMMAND, config, state_dir) as reached:
        if not key_id.isalnum():  # it becomes a part of a path
            fail(COMMAND, f"'{shown(key_id)}' is no id of a key; `forebay key list` shows the ids", USAGE)
        return reached.ask("POST", f"/keys/{key_id}/{what}", body)


def _say_change(answer: dict[str, Any], what: str, as_json: bool) -> None:
    say_of(answer)
    if as_json:
        show_json(answer)
        return
    record = answer["record"]
    say(f"Key {record['id']} ({record['name']}) of {owner(record)} {what}.", *pending(answer))


def _show_text(answer: dict[str, Any], *lines: str, quiet: bool, as_json: bool) -> None:
    if quiet:
        answer.pop("notes", None)
    else:
        say_of(answer)
    if as_json:
        show_json(answer)
        return
    print(answer["key"])
    if not quiet:
        say(*lines, "It is stored as a hash only: keep it now, it cannot be shown again.", *pending(answer))


def _table(keys: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("id", "name", "owner", "class", "models", "state", "created", "expires"):
        table.add_column(column, overflow="fold", no_wrap=column == "id")
    for k in keys:
        models = ", ".join(k["models"]) or "all"
        expires = k["expires"][:16] if k["expires"] else "never"
        class_ = k["class"] + (" (may raise)" if k["may_raise_class"] else "")
        table.add_row(k["id"], k["name"], owner(k), class_, models, _state(k), k["created"][:10], expires)
    # Into a pipe, lines are not folded: other programs read them.
    Console(width=None if sys.stdout.isatty() else 1_000, highlight=False, markup=False).print(table)


def _state(k: dict[str, Any]) -> str:
    if k["revoked"]:
        return f"revoked {k['revoked'][:10]}"
    if k["state"] == "suspended":
        return f"suspended {k['suspended'][:10]}" if k["suspended"] else f"suspended ({k['suspended_by']})"
    return f"{k['state']}, rotating" if k["old_texts"] else str(k["state"])
