"""`forebay ledger`: whether the books are right, and how far they are.

Both only read, and go straight to the database: a gateway may run beside them, or be broken.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from forebay.cli.adminsocket import EX_UNAVAILABLE
from forebay.cli.main import EX_CONFIG
from forebay.config.load import load_only
from forebay.config.models import Config
from forebay.config.problems import ConfigError
from forebay.ledger.money import shown_money
from forebay.state.messages import journals

if TYPE_CHECKING:
    from forebay.ledger.database import Database

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Look at the ledger's books.")

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        metavar="FILE",
        help="The configuration that `forebay serve` runs with; state_dir, database and ledger are read of it.",
        envvar="FOREBAY_CONFIG",
    ),
]
StateOption = Annotated[
    Path | None,
    typer.Option("--state-dir", metavar="DIR", help="The state directory, where it is not the configured one."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def verify(config: ConfigOption = None, state_dir: StateOption = None, as_json_: JsonOption = False) -> None:
    """Add up every sum of the books again, and name every difference. Exits with 1 where there is one.

    Sums by hour and day are taken again from the entries, costs from the prices that the entries name, and the journals
    on this host are compared with what is booked. The gateway may run.
    """
    from forebay.ledger.money import units
    from forebay.ledger.verify import SHOWN
    from forebay.ledger.verify import verify as verify_

    with _books(config, state_dir) as (loaded, database):
        found = verify_(database, journals(loaded.state_dir))
    currency = loaded.ledger.currency
    if as_json_:
        answer = {
            "database": str(database),
            "currency": currency,
            "entries": found.entries,
            "by_how": found.by_how,
            "tokens": found.tokens.total,
            "cost": str(units(found.cost)),
            "adjustments": found.adjustments,
            "adjusted": str(units(found.adjusted)),
            "total": str(units(found.total)),
            "open": found.open,
            "differences": found.differences,
            "checks": [
                {"name": c.name, "looked_at": c.looked_at, "differences": c.count, "first": c.differences}
                for c in found.checks
            ],
        }
        print(json.dumps(answer, ensure_ascii=False, indent=2))
        sys.exit(1 if found.differences else 0)
    how = ", ".join(f"{count:,} {name}" for name, count in sorted(found.by_how.items()))
    print(f"{database}")
    print(f"  {found.entries:,} entries{f' ({how})' if how else ''}: {shown_money(found.cost, currency)}")
    print(f"  {found.adjustments:,} adjustments: {shown_money(found.adjusted, currency)}")
    print(f"  together {shown_money(found.total, currency)}, {found.tokens.total:,} tokens")
    print(f"  {found.open:,} attempts under way, {shown_money(found.held, currency)} held for them")
    for check in found.checks:
        print(f"{'DIFFERS' if check.count else 'ok':8}{check.name}: {check.looked_at:,} looked at")
        for difference in check.differences:
            print(f"        {difference}")
        if check.count > SHOWN:
            print(f"        … and {check.count - SHOWN:,} more")
    if found.differences:
        print(f"{found.differences:,} differences", file=sys.stderr)
        sys.exit(1)


@app.command()
def status(config: ConfigOption = None, state_dir: StateOption = None, as_json_: JsonOption = False) -> None:
    """Show how far the journals of this host are in the database. Exits with 1 where one cannot be read."""
    from forebay.ledger.stand import stand

    with _books(config, state_dir) as (loaded, database):
        found = stand(database, journals(loaded.state_dir))
    if as_json_:
        print(json.dumps([{f: getattr(j, f) for f in j.__dataclass_fields__} for j in found], indent=2))
    elif found:
        _table(
            ("journal", "here", "on disk", "not booked", "open", "last seen", ""),
            [
                (
                    j.owner or "-",
                    j.folder or "another host",
                    f"{j.bytes:,} B" if j.folder else "",
                    "" if not j.folder else f"{j.behind:,} B in {j.records:,} records" if j.behind else "nothing",
                    f"{j.open:,}",
                    j.seen.replace("+00:00", "Z") or "never",
                    j.why,
                )
                for j in found
            ],
        )
    else:
        print("There is no journal yet: nothing was booked.", file=sys.stderr)
    sys.exit(1 if any(j.why for j in found) else 0)


@contextmanager
def _books(config: Path | None, state_dir: Path | None) -> Iterator[tuple[Config, Database]]:
    from forebay.ledger.database import Database, DatabaseError, DatabaseUrl

    try:
        loaded = Config() if config is None else load_only(config, os.environ, "state_dir", "database", "ledger")
    except ConfigError as e:
        for problem in e.problems:
            print(problem, file=sys.stderr)
        sys.exit(EX_CONFIG)
    if state_dir is not None:
        loaded = loaded.model_copy(update={"state_dir": state_dir.absolute()})
    try:
        database = Database(loaded.database, loaded.state_dir)
        if database.file is not None and not database.file.exists():
            _fail(f"there is no database {database.file}; is --config or --state-dir the right one?", EX_UNAVAILABLE)
        try:
            database.check()
            yield loaded, database
        finally:
            database.close()
    except DatabaseUrl as e:
        _fail(str(e), EX_CONFIG)
    except (DatabaseError, OSError) as e:
        _fail(str(e), EX_UNAVAILABLE)


def _table(head: tuple[str, ...], rows: list[tuple[Any, ...]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in head:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*row)
    # Into a pipe, lines are not folded: other programs read them.
    Console(width=None if sys.stdout.isatty() else 1_000, highlight=False, markup=False).print(table)


def _fail(message: str, code: int) -> NoReturn:
    print(f"forebay ledger: {message}", file=sys.stderr)
    sys.exit(code)
