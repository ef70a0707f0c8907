"""`forebay alerts`: which alerts there were, and whether their receivers can be reached."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from forebay.cli.adminsocket import EX_UNAVAILABLE, AdminSocket
from forebay.cli.main import USAGE
from forebay.cli.reach import ConfigOption, JsonOption, StateOption
from forebay.config.load import load_only
from forebay.config.models import Config
from forebay.errors import shown
from forebay.state.messages import admin_socket

app = typer.Typer(no_args_is_help=True, add_completion=False, help="List alerts, and test the receivers of alerts.")


@app.command("list")
def list_(as_json_: JsonOption = False, config: ConfigOption = None, state_dir: StateOption = None) -> None:
    """List the alerts that were raised, the newest first, and who has still to get them."""
    where = state_dir or _read(config, "state_dir").state_dir
    admin = AdminSocket(admin_socket(where.absolute()), "forebay alerts")
    if not admin.answers():
        _fail(f"no gateway runs with the state directory {where}: nothing answers on {admin.path}", EX_UNAVAILABLE)
    answer = admin.ask("GET", "/alerts")
    if as_json_:
        print(json.dumps(answer, ensure_ascii=False, indent=2))
        return
    if answer["alerts"]:
        _table(answer["alerts"])
    else:
        print("There was no alert.", file=sys.stderr)
    for receiver in answer["receivers"]:
        if receiver["waiting"] or receiver["why"]:
            why = f": {receiver['why']}" if receiver["why"] else ""
            print(f"{receiver['name']}: {receiver['waiting']:,} waiting{why}", file=sys.stderr)
    if answer["why"]:
        _fail(f"past alerts cannot be read: {answer['why']}", EX_UNAVAILABLE)


@app.command()
def test(
    receiver: Annotated[
        list[str] | None, typer.Option("--receiver", metavar="NAME", help="Only this one; may be repeated.")
    ] = None,
    as_json_: JsonOption = False,
    config: ConfigOption = None,
    state_dir: StateOption = None,
) -> None:
    """Send a test to each receiver, and say what came back. Exits with 1 where one did not take it.

    It is sent by the running gateway, as it is configured; by this command itself where none runs."""
    names = receiver or []
    where = state_dir or _read(config, "state_dir").state_dir
    admin = AdminSocket(admin_socket(where.absolute()), "forebay alerts")
    if admin.answers():
        tests: list[dict[str, Any]] = admin.ask("POST", "/alerts/test", {"receivers": names})["tests"]
        by = "by the running gateway"
    else:
        tests, by = _send(config, names), "by this command, for no gateway runs"
    if as_json_:
        print(json.dumps({"tests": tests}, ensure_ascii=False, indent=2))
    else:
        for row in tests:
            how = "delivered" if row["delivered"] else "NOT delivered"
            print(f"{row['receiver']} ({row['kind']}, {row['host']}): {how} in {row['seconds']:g} s: {row['answer']}")
        print(f"{len(tests)} sent {by}." if tests else "alerts.receivers is empty.", file=sys.stderr)
    if not tests or not all(row["delivered"] for row in tests):
        sys.exit(1)


def _send(config: Path | None, names: list[str]) -> list[dict[str, Any]]:
    from forebay.admin.alerting import pick, send_tests
    from forebay.clock import SystemClock

    alerts = _read(config, "alerts").alerts
    try:
        chosen = pick(alerts.receivers, names)
    except KeyError as e:
        _fail(str(e.args[0]), USAGE)
    return asyncio.run(send_tests(chosen, alerts, SystemClock()))


def _read(config: Path | None, *sections: str) -> Config:
    """Raises ConfigError."""
    return Config() if config is None else load_only(config, os.environ, *sections)


def _table(alerts: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("time", "severity", "type", "alert", "waits for"):
        table.add_column(column, overflow="fold", no_wrap=column != "alert")
    for alert in alerts:
        waits = ", ".join(alert["waits_for"])
        table.add_row(alert["time"][:16], alert["severity"], alert["type"], shown(alert["title"], 200), waits)
    # Into a pipe, lines are not folded: other programs read them.
    Console(width=None if sys.stdout.isatty() else 1_000, highlight=False, markup=False).print(table)


def _fail(message: str, code: int) -> NoReturn:
    print(f"forebay alerts: {message}", file=sys.stderr)
    sys.exit(code)
