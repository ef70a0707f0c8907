"""`forebay ledger`: whether the books are right, how far they are, and corrections of them.

All go straight to the database: a gateway may run beside them, or be broken.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

import typer

from forebay.cli.adminsocket import EX_UNAVAILABLE
from forebay.cli.main import EX_CONFIG, USAGE
from forebay.cli.reach import ConfigOption, JsonOption, StateOption
from forebay.config.load import load_only
from forebay.config.models import Config
from forebay.config.problems import ConfigError
from forebay.errors import shown
from forebay.ledger.money import shown_money
from forebay.state.messages import journals

if TYPE_CHECKING:
    from forebay.ledger.database import Database
    from forebay.ledger.invoices import Plan
    from forebay.ledger.stand import JournalStand

SHOWN_PARTS: Final = 50
"""Accounts that a correction is shown of, one by one."""

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Look at the ledger's books, and correct them.")


@app.command()
def verify(config: ConfigOption = None, state_dir: StateOption = None, as_json_: JsonOption = False) -> None:
    """Add up every sum of the books again, and name every difference. Exits with 1 where there is one.

    Sums by hour and day are taken again from the entries, costs from the prices that the entries name, and the journals
    on this host are compared with what is booked. The gateway may run.
    """
    from forebay.ledger.usage import exact
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
            "cost": exact(found.cost),
            "adjustments": found.adjustments,
            "adjusted": exact(found.adjusted),
            "total": exact(found.total),
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
                    _behind(j),
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


@app.command()
def adjust(
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why, such as the invoice's number; kept with it.")],
    total: Annotated[
        str | None, typer.Option(metavar="AMOUNT", help="What the invoice says that it all came to.")
    ] = None,
    amount: Annotated[
        str | None, typer.Option(metavar="AMOUNT", help="What is to be added; below 0, what is credited.")
    ] = None,
    provider: Annotated[
        str, typer.Option(metavar="NAME", help="Of engines that were priced by this provider's prices.")
    ] = "",
    where: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Only of these, as of `forebay usage`.")
    ] = None,
    key: Annotated[str, typer.Option(metavar="ID", help="The amount is this key's alone, and not shared out.")] = "",
    month: Annotated[str | None, typer.Option(metavar="YYYY-MM", help="Of this month; or last.")] = None,
    day: Annotated[str | None, typer.Option(metavar="YYYY-MM-DD", help="Of this day; or yesterday.")] = None,
    since: Annotated[str | None, typer.Option(metavar="WHEN", help="From this date or time.")] = None,
    until: Annotated[str | None, typer.Option(metavar="WHEN", help="Until before it.")] = None,
    zone: Annotated[
        str | None, typer.Option(metavar="NAME", help="Time zone of these; ledger.zone where left out.")
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Also where an amount is booked for the same time and reason.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be booked.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    config: ConfigOption = None,
    state_dir: StateOption = None,
) -> None:
    """Correct what is booked: to an invoice's total, or by an amount.

    It is shared out by what each paid in that time, to the last digit, and booked as adjustments. What will be booked
    is shown, and asked for, before anything is.
    """
    from forebay.ledger.asked import Wrong, asked
    from forebay.ledger.book import Book
    from forebay.ledger.invoices import Wanted, amount_of, book, engines_of, plan

    texts = {"month": month, "day": day, "since": since, "until": until, "zone": zone}
    given = {name: [text] for name, text in texts.items() if text is not None}
    try:
        if not given.keys() & {"month", "day", "since", "until"}:
            raise Wrong("month", "is needed, or day, or since and until: the time that the correction is of")
        with _books(config, state_dir) as (loaded, database):
            now, currency = time.time(), loaded.ledger.currency
            of = asked(given | {"where": where or []}, now, loaded.ledger.zone)
            engines: frozenset[str] = frozenset()
            if provider:
                with database.read() as connection:
                    engines = engines_of(connection, provider, of.since, of.until)
            wanted = Wanted(
                of,
                reason,
                amount_of("total", total) if total is not None else None,
                amount_of("amount", amount) if amount is not None else None,
                provider,
                engines,
                key,
                again,
            )
            books = Book(database, currency)
            with books.trial() as (connection, names):
                found = plan(connection, names, wanted, currency, now)
            _show_plan(found, of.period, currency, alone=bool(key))
            if dry_run or not found.corrections:
                print("Nothing was booked.", file=sys.stderr)
                return
            if not yes and not _agreed():
                _fail("nothing was booked; --yes books it without asking", 1)
            book(books, wanted, now, found)
            count = len(found.corrections)
            print(f"{count:,} adjustment{'s are' if count != 1 else ' is'} booked.", file=sys.stderr)
    except Wrong as e:
        _fail(str(e), USAGE)


def _agreed() -> bool:
    return sys.stdin.isatty() and typer.confirm("Book it?", err=True)


def _show_plan(found: Plan, period: str, currency: str, *, alone: bool) -> None:
    """`alone`: the amount is one key's, whatever is booked of it."""

    def money(nanos: int) -> str:
        return shown_money(nanos, currency).rpartition(" ")[0]

    def row(who: tuple[str, ...], booked: int, added: int) -> tuple[str, ...]:
        return *who, *((money(added),) if alone else (money(booked), money(added), money(booked + added)))

    rows = [row(_who(part.account), part.booked, part.added) for part in found.parts[:SHOWN_PARTS]]
    if more := found.parts[SHOWN_PARTS:]:
        rows.append(row((f"{len(more):,} more", "", "", ""), sum(p.booked for p in more), sum(p.added for p in more)))
    rows.append(row(("total", "", "", ""), found.booked, found.added))
    print(f"{period}, in {currency}", file=sys.stderr)
    numbers = ("adjustment",) if alone else ("booked", "adjustment", "then")
    _table(("organisation", "department", "project", "key", *numbers), rows)
    if found.unpriced:
        have = "attempt has" if found.unpriced == 1 else "attempts have"
        print(f"note: {found.unpriced:,} {have} no known price; nothing is laid on them.", file=sys.stderr)


def _who(account: tuple[str, ...]) -> tuple[str, str, str, str]:
    _, key_name, organisation, department, project, _ = account
    return shown(organisation), shown(department), shown(project), shown(key_name)


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


def _behind(journal: JournalStand) -> str:
    if not journal.folder:
        return ""
    if not journal.behind:
        return "nothing"
    return f"{journal.behind:,} B" + (f" in {journal.records:,} records" if journal.records else "")


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
