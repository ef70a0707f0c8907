"""`forebay prices`: what models cost, and what a usage would."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn

import msgspec
import typer

from forebay.cli.main import EX_CONFIG, USAGE
from forebay.cli.reach import JsonOption
from forebay.config.engine import Engine
from forebay.config.enginelist import load_list
from forebay.config.load import load_only
from forebay.config.models import Config
from forebay.config.problems import ConfigError, Problem
from forebay.errors import shown
from forebay.ledger.enginepricing import EnginePrices
from forebay.ledger.money import shown_money
from forebay.ledger.pricebuild import build_book
from forebay.ledger.pricefile import load_prices
from forebay.ledger.pricing import EACH, KV_PRICE, Price, PriceBook
from forebay.ledger.tokens import KINDS, Tokens
from forebay.ledger.usage import exact

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Show and check what models cost.")

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        metavar="FILE",
        help="The configuration that `forebay serve` runs with; engines, models and ledger are read of it.",
        envvar="FOREBAY_CONFIG",
    ),
]
ProviderOption = Annotated[str | None, typer.Option(metavar="NAME", help="Whose price list, as in openai or deepseek.")]
AtOption = Annotated[
    str | None, typer.Option(metavar="WHEN", help="A date or time like 2026-03-01T08:00, in UTC; now where left out.")
]
ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", help="By the name that the engine has for it.")]
UNPRICED: Final = 1
"""Exit code where no price is known."""


@app.command("list")
def list_(
    provider: ProviderOption = None, at: AtOption = None, as_json_: JsonOption = False, config: ConfigOption = None
) -> None:
    """List the prices of the configured engines' models; with --provider, all of its list."""
    when = _moment(at)
    engines, book = _prices(config, when)
    rows = list(_of_provider(book, provider, when) if provider is not None else _of_engines(engines, book, when))
    if as_json_:
        print(json.dumps([_as_json(who, model, price) for who, model, price in rows], ensure_ascii=False, indent=2))
    elif rows:
        _table("engine" if provider is None else "provider", rows)
    elif provider is not None:
        _fail(f"no price list of {shown(provider)} is known; there are {', '.join(_names(book))}", UNPRICED)
    else:
        print(f"No engine lists models. --provider shows a price list: {', '.join(_names(book))}.", file=sys.stderr)


@app.command()
def show(
    model: ModelArgument,
    provider: ProviderOption = None,
    at: AtOption = None,
    as_json_: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Show a model's price: of the engines that serve it, else of every provider that lists it.

    Exits with 1 where no price is known.
    """
    when = _moment(at)
    engines, book = _prices(config, when)
    rows = list(_of_model(model, provider, engines, book, when))
    if as_json_:
        print(json.dumps([_as_json(who, name, price) for who, name, price in rows], ensure_ascii=False, indent=2))
    else:
        print("\n\n".join(_told(who, name, price) for who, name, price in rows))
    sys.exit(0 if any(price is not None for _, _, price in rows) else UNPRICED)


@app.command()
def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A price file, docs/prices.md.")],
    config: ConfigOption = None,
    as_json_: JsonOption = False,
) -> None:
    """Check a price file and name every problem in it.

    With --config also whether its models and currencies are those of the configuration. Exits with 0 when the file can
    be used (warnings are shown) and with 78 when it cannot.
    """
    wrong = False
    try:
        found = Config() if config is None else _config(config)
        if config is None:
            problems = load_prices(file, found.ledger.currency).warnings
        else:
            ledger = found.ledger.model_copy(update={"prices": file})
            found = found.model_copy(update={"ledger": ledger})
            _, problems = build_book(found, time.time(), engines=_engines(found))
    except ConfigError as e:
        problems, wrong = e.problems, True
    if as_json_:
        print(json.dumps({"ok": not wrong, "problems": [p.as_dict() for p in problems]}, ensure_ascii=False, indent=2))
    else:
        for problem in problems:
            print(problem)
        if not wrong:
            count = len(problems)
            print(f"{file}: can be used" + (f", with {count} warning{'s' * (count > 1)}" if count else ""))
    sys.exit(EX_CONFIG if wrong else 0)


@app.command()
def cost(
    model: ModelArgument,
    usage: Annotated[
        str,
        typer.Argument(metavar="USAGE", help="An engine's usage object, or an answer with one, in JSON; - reads it."),
    ],
    provider: ProviderOption = None,
    at: AtOption = None,
    as_json_: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Tell what an answer with this usage costs, kind by kind.

    Exits with 1 where no price is known.
    """
    tokens, note = _usage(sys.stdin.read() if usage == "-" else usage)
    when = _moment(at)
    engines, book = _prices(config, when)
    rows = [row for row in _of_model(model, provider, engines, book, when) if row[2] is not None]
    answers = [_cost(who, price, tokens) for who, _, price in rows if price is not None]
    if as_json_:
        print(json.dumps({"tokens": _counts(tokens), "note": note, "costs": answers}, ensure_ascii=False, indent=2))
    else:
        print(", ".join(f"{kind} {count:,}" for kind, count in _counts(tokens).items()) or "no tokens")
        if note:
            print(f"corrected: {note}")
        for answer in answers:
            print(f"{answer['of']}: {answer['cost_shown']}" + "".join(f"\n  {line}" for line in answer["lines"]))
    if not any(answer["cost"] is not None for answer in answers):
        if not as_json_:
            print(f"{shown(model)}: unpriced; no price of it is known", file=sys.stderr)
        sys.exit(UNPRICED)


# --- what is asked for ------------------------------------------------------------------------------------------------


def _config(path: Path) -> Config:
    return load_only(path, os.environ, "engines", "engines_file", "models", "ledger")


def _engines(config: Config) -> tuple[Engine, ...]:
    if config.engines_file is None:
        return config.engines
    names = {engine.name for engine in config.engines}
    listed = load_list(config.engines_file, os.environ)
    return (*config.engines, *(engine for engine in listed if engine.name not in names))


def _prices(path: Path | None, at: float) -> tuple[tuple[Engine, ...], PriceBook]:
    try:
        config = Config() if path is None else _config(path)
        engines = _engines(config)
        book, problems = build_book(config, at, engines=engines)
    except ConfigError as e:
        _say(e.problems)
        sys.exit(EX_CONFIG)
    _say(problems)
    return engines, book


def _moment(text: str | None) -> float:
    if text is None:
        return time.time()
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        _fail(f"--at takes a date or time like 2026-03-01T08:00, not '{shown(text)}'", USAGE)
    return (found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp()


def _usage(text: str) -> tuple[Tokens, str]:
    from forebay.api.usage import tokens_of_any

    try:
        found = msgspec.json.decode(text, type=dict[str, Any])
        return tokens_of_any(found)
    except (msgspec.MsgspecError, TypeError, UnicodeDecodeError) as e:
        _fail(f"the usage must be a JSON object such as an engine's answer has: {e}", USAGE)


Row = tuple[str, str, Price | None]
"""Engine or provider, model, its price."""


def _of_engines(engines: tuple[Engine, ...], book: PriceBook, at: float) -> Iterator[Row]:
    for engine in engines:
        prices = EnginePrices(engine, book)
        for model in engine.models or (("*",) if engine.price is not None else ()):
            yield engine.name, model, prices.at(model, at)


def _of_provider(book: PriceBook, provider: str, at: float) -> Iterator[Row]:
    seen: set[str] = set()
    for vendor in (*book.own, *book.vendors):
        if vendor.id != provider:
            continue
        for listed in vendor.models:
            if listed.model not in seen:
                seen.add(listed.model)
                yield provider, listed.model, book.lookup(listed.model, provider, at)


def _of_model(
    model: str, provider: str | None, engines: tuple[Engine, ...], book: PriceBook, at: float
) -> Iterator[Row]:
    if provider is not None:
        yield provider, model, book.lookup(model, provider, at)
        return
    serving = [engine for engine in engines if model in engine.models or (engine.price and not engine.models)]
    for engine in serving:
        yield engine.name, model, EnginePrices(engine, book).at(model, at)
    if serving:
        return
    for vendor in (*book.own, *book.vendors):
        if any(listed.model.lower() == model.lower() for listed in vendor.models):
            yield vendor.id or "the price file", model, book.lookup(model, vendor.id, at)


def _names(book: PriceBook) -> list[str]:
    return list(dict.fromkeys(vendor.id for vendor in (*book.own, *book.vendors) if vendor.id))


# --- what is shown ----------------------------------------------------------------------------------------------------


def _as_json(who: str, model: str, price: Price | None) -> dict[str, Any]:
    return {"of": who, "model": model, "price": json.loads(price.as_json()) if price is not None else None}


def _table(who: str, rows: list[Row]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in (who, "model", "input", "cached", "cache write", "output", "per million", "from", "source"):
        numeric = column in ("input", "cached", "cache write", "output")
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for of, model, price in rows:
        if price is None:
            table.add_row(of, model, "", "", "", "", "unpriced", "", "")
            continue
        prices = price.scales[0].prices
        cells = [_plain(prices.get(kind)) for kind in ("input", "cached", "cache_write", "output")]
        more = f" {price.hours}" if price.hours else ""
        more += f" (to {price.scales[1].above:,} prompt tokens)" if len(price.scales) > 1 else ""
        table.add_row(of, model, *cells, price.currency + more, _day(price.since), price.source)
    # Into a pipe, lines are not folded: other programs read them.
    Console(width=None if sys.stdout.isatty() else 1_000, highlight=False, markup=False).print(table)


def _told(who: str, model: str, price: Price | None) -> str:
    if price is None:
        return f"{model} of {who}: unpriced"
    lines = [f"{model} of {who}: {price.id}", f"  from {price.source}"]
    if price.since is not None or price.until is not None:
        lines.append(f"  in force {_day(price.since) or 'ever'} to {_day(price.until) or 'further notice'} (UTC)")
    if price.hours:
        lines.append(f"  off-peak, {price.hours}")
    if price.currency != price.into:
        since = f" since {_day(price.exchange_since)}" if price.exchange_since is not None else ""
        lines.append(f"  1 {price.currency} is {price.exchange} {price.into}{since}")
    for scale in price.scales:
        if scale.above:
            lines.append(f"  above {scale.above:,} prompt tokens, for all of them:")
        for kind, amount in scale.prices.items():
            lines.append(
                f"  {'  ' if scale.above else ''}{kind:<17}{_plain(amount):>12} {price.currency} {_unit(kind)}"
            )
    return "\n".join(lines)


def _unit(kind: str) -> str:
    if kind in EACH:
        return "each"
    return "per million token-seconds held" if kind == KV_PRICE else "per million"


def _plain(amount: Decimal | None) -> str:
    return f"{amount.normalize():f}" if amount is not None else ""


def _day(at: float | None) -> str:
    if at is None:
        return ""
    found = datetime.fromtimestamp(at, UTC)
    return found.strftime("%Y-%m-%d" if not found.hour and not found.minute else "%Y-%m-%dT%H:%M")


def _counts(tokens: Tokens) -> dict[str, int]:
    return {kind: count for kind in KINDS if (count := getattr(tokens, kind))}


def _cost(who: str, price: Price, tokens: Tokens) -> dict[str, Any]:
    total = price.cost(tokens)
    lines = []
    for kind, count in _counts(tokens).items():
        rate = price.rate_of(kind, tokens.prompt)
        said = f"{count:,} × {rate:f} {price.currency}" if rate is not None else f"{count:,}, no price"
        lines.append(f"{kind}: {said}{'' if kind in EACH or rate is None else ' / 1,000,000'}")
    return {
        "of": who,
        "price": price.id,
        "cost": exact(total) if total is not None else None,
        "cost_shown": shown_money(total, price.into) if total is not None else "unpriced",
        "currency": price.into,
        "lines": lines,
    }


def _say(problems: list[Problem]) -> None:
    for problem in problems:
        print(problem, file=sys.stderr)


def _fail(message: str, code: int) -> NoReturn:
    print(f"forebay prices: {message}", file=sys.stderr)
    sys.exit(code)
