"""`forebay account`: the hierarchy that keys, limits and reports hang from: organisation, department, project, user."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from forebay.cli.main import USAGE
from forebay.cli.reach import ConfigOption, JsonOption, StateOption, fail, owner, pending, reach, say, say_of, show_json
from forebay.errors import shown
from forebay.ledger.records import LEVELS

COMMAND: Final = "forebay account"
app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Organisations, departments, projects and users: list, create, rename, label and suspend them.",
)

Organisation = Annotated[str | None, typer.Option(help="The tenant; `default` where only what is in it is named.")]
Department = Annotated[str | None, typer.Option(help="In the organisation.")]
Project = Annotated[str | None, typer.Option(help="In the department, or in none.")]
User = Annotated[str | None, typer.Option(help="In the project, or in none.")]
Labels = Annotated[
    list[str] | None, typer.Option("--label", metavar="NAME=VALUE", help="NAME= takes one away. May be repeated.")
]


@app.command("list")
def list_(as_json_: JsonOption = False, config: ConfigOption = None, state_dir: StateOption = None) -> None:
    """Show every account as a tree, with its valid keys, labels, and whether it is suspended. Those that only keys of
    the configuration file name are not among them."""
    with reach(COMMAND, config, state_dir) as reached:
        accounts = reached.ask("GET", "/accounts")["accounts"]
    if as_json_:
        show_json(accounts)
    elif accounts:
        _tree(accounts)
    else:
        say("There are no accounts; they are made as keys name them, or by `forebay account create`.")


@app.command()
def create(
    organisation: Organisation = None,
    department: Department = None,
    project: Project = None,
    user: User = None,
    label: Labels = None,
    as_json_: JsonOption = False,
    config: ConfigOption = None,
    state_dir: StateOption = None,
) -> None:
    """Make an account before a key names it: for labels, or to suspend it."""
    fields: dict[str, Any] = _names(organisation, department, project, user)
    if label:
        fields["labels"] = {name: value for name, value in _labels(label).items() if value is not None}
    with reach(COMMAND, config, state_dir, make=True) as reached:
        answer = reached.ask("POST", "/accounts", fields)
    _say_change(answer, "is made", as_json_)


@app.command()
def rename(
    to: Annotated[str, typer.Argument(metavar="NAME", help="Its new name.")],
    organisation: Organisation = None,
    department: Department = None,
    project: Project = None,
    user: User = None,
    as_json_: JsonOption = False,
    config: ConfigOption = None,
    state_dir: StateOption = None,
) -> None:
    """Rename the account that the options name. Its keys, and the limits that name it, go with it; what was booked
    stays under the old name."""
    fields = {**_names(organisation, department, project, user), "to": to}
    answer = _ask(config, state_dir, "rename", fields)
    _say_change(answer, "is its name from now on", as_json_)


@app.command()
def suspend(
    organisation: Organisation = None,
    department: Department = None,
    project: Project = None,
    user: User = None,
    as_json_: JsonOption = False,
    config: ConfigOption = None,
    state_dir: StateOption = None,
) -> None:
    """Refuse requests of every key in an account, also of the configuration's, until it is resumed. What runs goes on
    to its end."""
    answer = _ask(config, state_dir, "suspend", _names(organisation, department, project, user))
    _say_change(answer, f"is suspended since {answer['account']['suspended']}", as_json_)


@app.command()
def resume(
    organisation: Organisation = None,
    department: Department = None,
    project: Project = None,
    user: User = None,
    as_json_: JsonOption = False,
    config: ConfigOption = None,
    state_dir: StateOption = None,
) -> None:
    """Let the keys of a suspended account be used again, but for those suspended themselves or by another level."""
    answer = _ask(config, state_dir, "resume", _names(organisation, department, project, user))
    by = answer["account"]["suspended_by"]
    what = f"is not suspended itself; its {by} is" if by else "is not suspended"
    _say_change(answer, what, as_json_)


@app.command()
def label(
    labels: Annotated[list[str], typer.Argument(metavar="NAME=VALUE…", help="NAME= takes one away.")],
    organisation: Organisation = None,
    department: Department = None,
    project: Project = None,
    user: User = None,
    as_json_: JsonOption = False,
    config: ConfigOption = None,
    state_dir: StateOption = None,
) -> None:
    """Set labels of the account that the options name: a cost centre, an owner, a contract."""
    fields = {**_names(organisation, department, project, user), "labels": _labels(labels)}
    answer = _ask(config, state_dir, "labels", fields)
    _say_change(answer, f"has the labels {_shown_labels(answer['account']) or 'none'}", as_json_)


def _names(*names: str | None) -> dict[str, Any]:
    return {level: name for level, name in zip(LEVELS, names, strict=True) if name is not None}


def _labels(given: list[str]) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals:
            fail(COMMAND, f"a label is NAME=VALUE, or NAME= to take it away; not '{shown(text)}'", USAGE)
        found[name] = value or None
    return found


def _ask(config: Path | None, state_dir: Path | None, what: str, fields: dict[str, Any]) -> dict[str, Any]:
    with reach(COMMAND, config, state_dir) as reached:
        return reached.ask("POST", f"/accounts/{what}", fields)


def _say_change(answer: dict[str, Any], what: str, as_json: bool) -> None:
    say_of(answer)
    if as_json:
        show_json(answer)
        return
    account = answer["account"]
    say(f"The {account['level']} {owner(account)} {what}.", *pending(answer))


def _shown_labels(account: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in account["labels"].items())


def _tree(accounts: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.text import Text
    from rich.tree import Tree

    root = Tree("", hide_root=True)
    nodes: dict[tuple[str, ...], Tree] = {}
    for account in accounts:  # parents come first
        names = tuple(account[level] or "" for level in LEVELS)
        depth = LEVELS.index(account["level"])
        above = next((nodes[names[:n]] for n in range(depth, 0, -1) if names[:n] in nodes), root)
        text = Text(names[depth], style="bold" if depth == 0 else "")
        keys = account["keys"]
        text.append(f"  {account['level']}, {keys:,} key{'s' * (keys != 1)}", style="dim")
        if account["labels"]:
            text.append(f"  {_shown_labels(account)}", style="dim")
        if account["suspended"]:
            text.append(f"  suspended since {account['suspended'][:16]}", style="red")
        nodes[names[: depth + 1]] = above.add(text)
    # Into a pipe, lines are not folded: other programs read them.
    Console(width=None if sys.stdout.isatty() else 1_000, highlight=False, markup=False).print(root)
