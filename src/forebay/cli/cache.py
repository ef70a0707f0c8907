"""`forebay cache`: what caches of answers are worth, what is in them, and taking it out."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import urlencode

import typer

from forebay.cli import cache_eval, cache_prefix
from forebay.cli.adminsocket import EX_UNAVAILABLE, AdminSocket
from forebay.cli.main import USAGE
from forebay.cli.reach import ConfigOption, JsonOption, StateOption
from forebay.config.load import load_only
from forebay.config.models import Config
from forebay.errors import shown
from forebay.state.messages import admin_socket

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Caches: what they save, what they hold, how often they are wrong; forget some; prompt caches.",
)
app.command("fit")(cache_eval.fit)
app.command("eval")(cache_eval.evaluate)
app.command("prefix")(cache_prefix.command)
_COMMAND: Final = "forebay cache"
_AT_LEAST: Final = 0.9

PartitionOption = Annotated[
    str,
    typer.Option(
        "--partition",
        "-p",
        metavar="NAME",
        help="Of whom: the organisation, or it and more, as organisation/department/project/model.",
    ),
]
LikeOption = Annotated[str, typer.Option("--like", metavar="QUESTION", help="Questions that mean about the same.")]


@app.command()
def stats(
    partition: PartitionOption = "",
    most: Annotated[int, typer.Option("--most", min=1, max=1_000, metavar="N", help="Partitions shown.")] = 20,
    as_json_: JsonOption = False,
    config: ConfigOption = None,
    state_dir: StateOption = None,
) -> None:
    """Show how many requests were answered from caches, what that saved, and how many of the hits may be wrong.

    Models, answers and memory are counted by workers, for all together; partitions, languages and wrong hits by the
    helper process: these alone with --partition.
    """
    admin = _reach(config, state_dir)
    found = admin.ask("GET", f"/cache?{urlencode({'partition': partition, 'most': most})}")
    if as_json_:
        print(json.dumps(found, ensure_ascii=False, indent=2))
        return
    from forebay.cli.cache_view import show_stats

    show_stats(found, partition)


@app.command()
def inspect(
    entry: Annotated[str, typer.Argument(metavar="[ENTRY]", help="As x-forebay-cache-entry says it.")] = "",
    partition: PartitionOption = "",
    like: LikeOption = "",
    most: Annotated[int, typer.Option("--most", min=1, max=1_000, metavar="N", help="Entries shown.")] = 20,
    as_json_: JsonOption = False,
    config: ConfigOption = None,
    state_dir: StateOption = None,
) -> None:
    """Show what is kept: one entry whole, those most like a question, or some. Exits with 1 where there is none."""
    if entry and like:
        _fail("give an entry or --like, not both", USAGE)
    admin = _reach(config, state_dir)
    asked = {"entry": entry, "partition": partition, "like": like, "most": most}
    entries: list[dict[str, Any]] = admin.ask("GET", f"/cache/entries?{urlencode(asked)}")["entries"]
    if as_json_:
        print(json.dumps({"entries": entries}, ensure_ascii=False, indent=2))
    elif entries:
        from forebay.cli.cache_view import show_entries, show_entry

        if entry:
            show_entry(entries[0])
        else:
            show_entries(entries)
    if not entries:
        _fail(f"there is no entry {shown(entry)}" if entry else "no entry fits", 1)


@app.command()
def purge(
    entry: Annotated[str, typer.Option("--entry", metavar="ID", help="This one.")] = "",
    tag: Annotated[str, typer.Option("--tag", metavar="TAG", help="With this tag (X-Forebay-Cache-Tags).")] = "",
    source: Annotated[
        str, typer.Option("--source", metavar="ID", help="That rest on this source (X-Forebay-Cache-Sources).")
    ] = "",
    partition: PartitionOption = "",
    model: Annotated[str, typer.Option("--model", metavar="NAME", help="Of this model, by the name asked for.")] = "",
    version: Annotated[str, typer.Option("--version", metavar="VERSION", help="Of this version.")] = "",
    like: LikeOption = "",
    at_least: Annotated[
        float | None,
        typer.Option(
            "--at-least", min=0.01, max=1.0, metavar="COSINE", help=f"How alike, with --like.  [default: {_AT_LEAST}]"
        ),
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="Everything.")] = False,
    as_json_: JsonOption = False,
    config: ConfigOption = None,
    state_dir: StateOption = None,
) -> None:
    """Forget answers that fit all of the options, everywhere, at once. `forebay cache inspect` shows what would go."""
    asked: dict[str, Any] = {
        name: value
        for name, value in (
            ("entry", entry),
            ("tag", tag),
            ("source", source),
            ("partition", partition),
            ("model", model),
            ("version", version),
            ("like", like),
        )
        if value
    }
    if not asked and not all_:
        _fail("say what is to be forgotten, by one or more options, or --all", USAGE)
    if asked and all_:
        _fail(f"--all is everything, but --{next(iter(asked))} is given, too", USAGE)
    if at_least is not None and not like:
        _fail("--at-least says how alike to what: give --like, too", USAGE)
    admin = _reach(config, state_dir)
    body = {"all": True} if all_ else {**asked, "at_least": _AT_LEAST if at_least is None else at_least}
    answer = admin.ask("POST", "/cache/purge", body)
    if as_json_:
        print(json.dumps(answer))
        return
    count = answer["purged"]
    if count is None:
        print("Workers' memory, where all answers are, has forgotten what fits.", file=sys.stderr)
        return
    print(f"{count:,} answer{' is' if count == 1 else 's are'} forgotten.", file=sys.stderr)


def _reach(config: Path | None, state_dir: Path | None) -> AdminSocket:
    """The running admin process."""
    if state_dir is None:
        found = Config() if config is None else load_only(config, os.environ, "state_dir")
        state_dir = found.state_dir
    admin = AdminSocket(admin_socket(state_dir.absolute()), _COMMAND)
    if not admin.answers():
        where = "" if config is not None else "; --config names another's configuration"
        admin.fail(
            f"no gateway runs with the state directory {state_dir}: nothing answers on {admin.path}{where}",
            EX_UNAVAILABLE,
        )
    return admin


def _fail(message: str, code: int) -> None:
    print(f"{_COMMAND}: {message}", file=sys.stderr)
    sys.exit(code)
