"""`forebay limit`: limits that are kept in the database, beside `quotas` in the configuration."""

from __future__ import annotations

import json
import re
import sys
from decimal import Decimal
from typing import Annotated, Any, Final

import typer

from forebay.cli.main import USAGE
from forebay.cli.reach import ConfigOption, JsonOption, StateOption, fail, pending, reach, say, say_of, show_json
from forebay.config.amounts import written
from forebay.config.quotas import MEASURES, SELECTORS
from forebay.errors import shown

COMMAND: Final = "forebay limit"
NONE: Final = "none"
_PLAIN: Final = re.compile(r"\d[\d_]*(?:\.\d[\d_]*)?")
app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Limits of requests, tokens and money, kept in the database: set, list and remove them.",
)

Tokens = Annotated[str | None, typer.Option(metavar="N", help="Like 500k or 1M; none takes it away.")]
Money = Annotated[str | None, typer.Option(metavar="AMOUNT", help="In the ledger's currency; none takes it away.")]
Count = Annotated[str | None, typer.Option(metavar="N")]


@app.command("set")
def set_(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="What refusals call it; made of what it counts if left out.")
    ] = None,
    organisation: Annotated[str | None, typer.Option(help="Only its callers; of every one where left out.")] = None,
    department: Annotated[str | None, typer.Option()] = None,
    project: Annotated[str | None, typer.Option()] = None,
    user: Annotated[str | None, typer.Option()] = None,
    key: Annotated[str | None, typer.Option(help="By id or name.")] = None,
    end_user: Annotated[str | None, typer.Option(help="The `user` field of requests.")] = None,
    each: Annotated[
        str | None, typer.Option(metavar="LEVEL", help="Whose use is counted together, like user; each has it all.")
    ] = None,
    models: Annotated[
        str | None, typer.Option(metavar="A,B", help="Only for these, by the engine's own names.")
    ] = None,
    requests_per_minute: Count = None,
    tokens_per_minute: Tokens = None,
    concurrent: Count = None,
    tokens_per_day: Tokens = None,
    tokens_per_month: Tokens = None,
    money_per_day: Money = None,
    money_per_month: Money = None,
    over: Annotated[
        str | None, typer.Option(metavar="WHAT", help="When there is no room: refuse, warn or degrade.")
    ] = None,
    window: Annotated[str | None, typer.Option(metavar="KIND", help="calendar or sliding.")] = None,
    zone: Annotated[str | None, typer.Option(help="Time zone of days and months, like Asia/Shanghai.")] = None,
    other: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="Any other field of an entry under quotas; may be repeated."),
    ] = None,
    as_json_: JsonOption = False,
    config: ConfigOption = None,
    state_dir: StateOption = None,
) -> None:
    """Set a limit. Where there is one of the name, what is given changes and the rest stays."""
    amounts = {
        "requests_per_minute": requests_per_minute,
        "tokens_per_minute": tokens_per_minute,
        "concurrent": concurrent,
        "tokens_per_day": tokens_per_day,
        "tokens_per_month": tokens_per_month,
        "money_per_day": money_per_day,
        "money_per_month": money_per_month,
    }
    texts = {
        "name": name,
        "organisation": organisation,
        "department": department,
        "project": project,
        "user": user,
        "key": key,
        "end_user": end_user,
        "each": each,
        "over": over,
        "window": window,
        "zone": zone,
    }
    fields: dict[str, Any] = {field: text for field, text in texts.items() if text is not None}
    fields |= {field: _amount(field, text) for field, text in amounts.items() if text is not None}
    if models is not None:
        fields["models"] = [m.strip() for m in models.split(",")] if models != NONE else None
    for setting in other or ():
        field, equals, text = setting.partition("=")
        if not equals:
            fail(COMMAND, f"--set takes FIELD=VALUE, not '{shown(setting)}'", USAGE)
        fields[field] = None if text == NONE else _amount(field, text) if field in MEASURES else _value(text)
    with reach(COMMAND, config, state_dir, make=True) as reached:
        answer = reached.ask("POST", "/limits", fields)
    say_of(answer)
    if as_json_:
        show_json(answer)
        return
    limit = answer["limit"]
    say(f"The limit {limit['name']} is set: {_shown(limit)}; counted for {_whom(limit)}.", *pending(answer))


@app.command("list")
def list_(as_json_: JsonOption = False, config: ConfigOption = None, state_dir: StateOption = None) -> None:
    """List the limits in the database. Those of the configuration (`quotas`) are not among them."""
    with reach(COMMAND, config, state_dir) as reached:
        limits = reached.ask("GET", "/limits")["limits"]
    if as_json_:
        show_json(limits)
    elif limits:
        _table(limits)
    else:
        say("There are no limits in the database.")


@app.command()
def remove(
    name: Annotated[str, typer.Argument(metavar="NAME", help="As `forebay limit list` shows it.")],
    as_json_: JsonOption = False,
    config: ConfigOption = None,
    state_dir: StateOption = None,
) -> None:
    """Remove a limit. A quota of that name in the configuration counts again."""
    with reach(COMMAND, config, state_dir) as reached:
        answer = reached.ask("POST", "/limits/remove", {"name": name})
    say_of(answer)
    if as_json_:
        show_json(answer)
        return
    say(f"The limit {answer['limit']['name']} is removed.", *pending(answer))


def _amount(field: str, text: str) -> int | float | None:
    """`1M`, `500k`, `1_000`, `12.50`; None for `none`."""
    if text == NONE:
        return None
    number: Any = written(text)
    if isinstance(number, str):
        try:
            number = float(number) if _PLAIN.fullmatch(number.strip()) else None
        except ValueError:
            number = None
    if number is None:
        option = "--" + field.replace("_", "-")
        fail(COMMAND, f"{option}: write a number like 500, 20k, 1.5M or 2G, or {NONE}; not '{shown(text)}'", USAGE)
    return int(number) if number == int(number) else number


def _value(text: str) -> Any:
    """As JSON, else the text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _shown(limit: dict[str, Any]) -> str:
    return ", ".join(f"{_number(m, limit[m])} {m.replace('_', ' ')}" for m in MEASURES if m in limit)


def _number(measure: str, value: float) -> str:
    if not measure.startswith("money"):
        return f"{value:,}"
    money = Decimal(str(value))
    return (f"{money:,.2f}" if money == round(money, 2) else f"{money:,f}") + " in"


def _whom(limit: dict[str, Any]) -> str:
    named = " / ".join(f"{limit[level]}" for level in SELECTORS if level in limit)
    deepest = next((level for level in reversed(SELECTORS) if level in limit), "all")
    each = limit["each"]
    text = f"{deepest.replace('_', ' ')} {named}" if named else "all callers"
    if each != deepest:
        text = f"each {each.replace('_', ' ')} of {text}"
    return text + (f", models {', '.join(limit['models'])}" if limit.get("models") else "")


def _table(limits: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("name", "counted for", "limit", "over", "window", "changed"):
        table.add_column(column, overflow="fold")
    for limit in limits:
        window = " ".join(x for x in (limit.get("window", "calendar"), limit.get("zone", "")) if x)
        over = limit.get("over", "refuse")
        table.add_row(limit["name"], _whom(limit), _shown(limit), over, window, limit["changed"][:10])
    # Into a pipe, lines are not folded: other programs read them.
    Console(width=None if sys.stdout.isatty() else 1_000, highlight=False, markup=False).print(table)
