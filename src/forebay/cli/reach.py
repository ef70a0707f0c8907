"""The two ways of a command to keys, accounts and limits.

Through the running admin process where one answers on its Unix socket, else in the database itself, under the lock that
keeps two writers apart.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn, Protocol

import typer

from forebay.cli.adminsocket import ANSWER, EX_UNAVAILABLE, AdminSocket
from forebay.cli.main import EX_CONFIG, USAGE
from forebay.config.load import load_only
from forebay.config.models import Config
from forebay.config.problems import ConfigError
from forebay.ledger.operations import find
from forebay.state.messages import SetKeys, admin_socket, worker_socket

WAIT: Final = 20.0
"""Seconds to wait for another process that has the database."""

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        metavar="FILE",
        help="The configuration that `forebay serve` runs with; state_dir and database are read of it.",
        envvar="FOREBAY_CONFIG",
    ),
]
StateOption = Annotated[
    Path | None,
    typer.Option("--state-dir", metavar="DIR", help="The state directory, where it is not the configured one."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


class Reached(Protocol):
    def ask(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        """The answer of one of `ledger.operations`; `notes` are for people. Ends the process where there is none."""


class _Direct:
    """The database itself; the caller holds its lock. `command` stands before what is said of a failure."""

    def __init__(self, config: Config, command: str) -> None:
        self._config = config
        self._command = command

    def ask(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        from forebay.ledger.database import Database, DatabaseError, DatabaseUrl
        from forebay.ledger.directory import Directory
        from forebay.ledger.lists import BadField, Missing

        found = find(method, path)
        assert found is not None, path
        operation, key_id = found
        fields: Mapping[str, object] = body if isinstance(body, Mapping) else {}
        notes: list[str] = []
        try:
            database = Database(self._config.database, self._config.state_dir)
            if database.file is not None and not database.file.exists():
                if not operation.makes:
                    self._fail(
                        f"there is no database {database.file}; is --config or --state-dir the right one?",
                        EX_UNAVAILABLE,
                    )
                notes.append(f"A new database was made: {database.file}")
            try:
                database.migrate()
                directory = Directory(database, time.time)
                answer = directory.run(operation, fields, key_id)
                if operation.changes:
                    answer |= {"workers": self._publish(directory), "notes": notes}
                return answer
            finally:
                database.close()
        except BadField as e:
            self._fail(f"{e}", USAGE)
        except Missing as e:
            self._fail(str(e), 1)
        except DatabaseUrl as e:
            self._fail(str(e), EX_CONFIG)
        except DatabaseError as e:
            self._fail(str(e), EX_UNAVAILABLE)

    def _publish(self, directory: Any) -> str:
        """Leave the changed list where workers start from; returns how far it is known."""
        from forebay.admin.snapshot import write_snapshot

        try:
            write_snapshot(self._config.state_dir, SetKeys(*directory.known()))
        except OSError as e:
            say(
                f"warning: keys.snapshot in {self._config.state_dir} cannot be written ({e.strerror}): a gateway that "
                "starts without its database goes on with the list before this change"
            )
        # An admin process that does not answer may be between two lives, and its workers live on.
        return "pending" if _listens(worker_socket(self._config.state_dir, 0)) else "not running"

    def _fail(self, message: str, code: int) -> NoReturn:
        fail(self._command, message, code)


def say(*lines: str) -> None:
    for line in lines:
        print(line, file=sys.stderr)


def fail(command: str, message: str, code: int) -> NoReturn:
    say(f"{command}: {message}")
    sys.exit(code)


def say_of(answer: dict[str, Any]) -> None:
    """What people should know of a change, on standard error."""
    say(*answer.pop("notes", ()), *(f"warning: {warning}" for warning in answer.get("warnings", ())))


def show_json(answer: object) -> None:
    print(json.dumps(answer, ensure_ascii=False, indent=2))


def pending(answer: dict[str, Any]) -> list[str]:
    match answer["workers"]:
        case "pending":
            return ["Not every worker has confirmed it yet; it is in the database, and they will be told."]
        case "not running":
            return ["No gateway runs with this state directory; the next one starts with it."]
        case _:
            return []


def owner(record: dict[str, Any]) -> str:
    levels = (record["organisation"], record["department"], record["project"], record["user"])
    return " / ".join(level for level in levels if level)


def _listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(ANSWER)
        return sock.connect_ex(str(path)) == 0


def _where(command: str, config: Path | None, state_dir: Path | None) -> Config:
    """A configuration in which only state_dir and database count. Raises ConfigError."""
    if config is None:
        found = Config()
    elif state_dir is None:
        found = load_only(config, os.environ, "state_dir", "database")
    else:
        try:
            found = load_only(config, os.environ, "database")
        except ConfigError as e:
            if not any(p.key == "database" for p in e.problems):
                raise
            found = Config()
            if not _listens(admin_socket(state_dir)):  # which has the database open
                say(*map(str, e.problems))
                fail(
                    command,
                    "so the database is not known; for the one in --state-dir give neither --config nor FOREBAY_CONFIG",
                    EX_CONFIG,
                )
    return found if state_dir is None else found.model_copy(update={"state_dir": state_dir.absolute()})


@contextmanager
def reach(command: str, config: Path | None, state_dir: Path | None, *, make: bool = False) -> Iterator[Reached]:
    """The admin process where one answers, else the database with its lock taken. `make`: it may be a new one.
    `command` stands before what is said of a failure, which ends the process."""
    from forebay.ledger.database import DatabaseGone, DatabaseLock

    loaded = _where(command, config, state_dir)
    if not make and not loaded.state_dir.is_dir():
        fail(command, f"there is no {loaded.state_dir}; is --config or --state-dir the right one?", EX_UNAVAILABLE)
    admin = AdminSocket(admin_socket(loaded.state_dir), command)
    deadline = time.monotonic() + WAIT
    with DatabaseLock(loaded.state_dir) as lock:
        try:
            while not admin.answers():
                if lock.take(0.2):
                    yield _Direct(loaded, command)
                    return
                if time.monotonic() > deadline:
                    fail(
                        command,
                        f"another process holds {lock.path}, and none answers on {admin_socket(loaded.state_dir)}; "
                        "try again once it has finished",
                        EX_UNAVAILABLE,
                    )
        except DatabaseGone as e:
            fail(command, str(e), EX_UNAVAILABLE)
        yield admin
