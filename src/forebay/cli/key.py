"""`forebay key`: make, list and revoke API keys.

Through the running admin process where one answers on its Unix socket, else in the database itself, under the lock that
keeps two writers apart.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn, TypeVar

import typer

from forebay.cli.adminsocket import ANSWER, EX_UNAVAILABLE, AdminSocket
from forebay.cli.main import EX_CONFIG, USAGE
from forebay.config.load import load_only
from forebay.config.models import Config
from forebay.config.problems import ConfigError
from forebay.errors import shown
from forebay.ledger.records import as_json
from forebay.state.messages import SetKeys, admin_socket, worker_socket

WAIT: Final = 20.0
"""Seconds to wait for another process that has the database."""

T = TypeVar("T")
app = typer.Typer(no_args_is_help=True, add_completion=False, help="Create, list and revoke API keys.")

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
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the key and nothing else.")] = False,
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
    with _reach(config, state_dir, make=True) as keys:
        answer = keys.create({k: v for k, v in fields.items() if v is not None})
    record = answer["record"]
    notes = answer.pop("notes", ())
    if not quiet:
        _say(*notes, *(f"warning: {warning}" for warning in answer["warnings"]))
    if as_json_:
        print(json.dumps(answer, ensure_ascii=False, indent=2))
        return
    print(answer["key"])
    if quiet:
        return
    say = [f"Key {record['id']} ({record['name']}) of {_owner(record)}, class {record['class']}"]
    say.append(f"models: {', '.join(record['models']) or 'all'}; expires: {record['expires'] or 'never'}")
    say.append("It is stored as a hash only: keep it now, it cannot be shown again.")
    _say(*say, *_pending(answer))


@app.command("list")
def list_(
    everything: Annotated[bool, typer.Option("--all", help="Expired and revoked keys too.")] = False,
    as_json_: JsonOption = False,
    config: ConfigOption = None,
    state_dir: StateOption = None,
) -> None:
    """List the keys in the database. Keys of the configuration file are not among them."""
    with _reach(config, state_dir, make=False) as reached:
        found = reached.list()
    keys = [k for k in found if everything or k["state"] == "valid"]
    if as_json_:
        print(json.dumps(keys, ensure_ascii=False, indent=2))
        return
    if keys:
        _table(keys)
    hidden = len(found) - len(keys)
    if hidden or not keys:
        more = f"; {hidden} expired or revoked (--all shows them)" if hidden else ""
        _say(f"{len(keys)} key{'s' * (len(keys) != 1)}{more}")


@app.command()
def revoke(
    key_id: Annotated[str, typer.Argument(metavar="ID", help="The key's id, as `forebay key list` shows it.")],
    as_json_: JsonOption = False,
    config: ConfigOption = None,
    state_dir: StateOption = None,
) -> None:
    """Revoke a key. Requests with it are refused from then on; it cannot be undone."""
    with _reach(config, state_dir, make=False) as keys:
        answer = keys.revoke(key_id)
    if as_json_:
        print(json.dumps(answer, ensure_ascii=False, indent=2))
        return
    record = answer["record"]
    _say(f"Key {record['id']} ({record['name']}) of {_owner(record)} is revoked since {record['revoked']}.")
    _say(*_pending(answer))


def _owner(record: dict[str, Any]) -> str:
    levels = (record["organisation"], record["department"], record["project"], record["user"])
    return " / ".join(level for level in levels if level)


def _pending(answer: dict[str, Any]) -> list[str]:
    match answer["workers"]:
        case "pending":
            return ["Not every worker has confirmed it yet; it is in the database, and they will be told."]
        case "not running":
            return ["No gateway runs with this state directory; the next one starts with it."]
        case _:
            return []


def _table(keys: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("id", "name", "owner", "class", "models", "state", "created", "expires"):
        table.add_column(column, overflow="fold", no_wrap=column == "id")
    for k in keys:
        state = f"revoked {k['revoked'][:10]}" if k["revoked"] else k["state"]
        models = ", ".join(k["models"]) or "all"
        expires = k["expires"][:16] if k["expires"] else "never"
        class_ = k["class"] + (" (may raise)" if k["may_raise_class"] else "")
        table.add_row(k["id"], k["name"], _owner(k), class_, models, state, k["created"][:10], expires)
    # Into a pipe, lines are not folded: other programs read them.
    Console(width=None if sys.stdout.isatty() else 1_000, highlight=False, markup=False).print(table)


def _say(*lines: str) -> None:
    for line in lines:
        print(line, file=sys.stderr)


def _fail(message: str, code: int) -> NoReturn:
    _say(f"forebay key: {message}")
    sys.exit(code)


# --- the two ways to the keys ----------------------------------------------------------------------------------------


class _Admin(AdminSocket):
    """The key API of the running admin process."""

    def create(self, fields: dict[str, object]) -> dict[str, Any]:
        return self.ask("POST", "/keys", fields)

    def list(self) -> list[dict[str, Any]]:
        keys: list[dict[str, Any]] = self.ask("GET", "/keys")["keys"]
        return keys

    def revoke(self, key_id: str) -> dict[str, Any]:
        if not key_id.isalnum():  # it becomes a part of a path
            _fail(f"'{shown(key_id)}' is no id of a key; `forebay key list` shows the ids", USAGE)
        return self.ask("POST", f"/keys/{key_id}/revoke")


class _Direct:
    """The database itself; the caller holds its lock."""

    def __init__(self, config: Config) -> None:
        self._config = config

    def create(self, fields: dict[str, object]) -> dict[str, Any]:
        from forebay.ledger.database import Database
        from forebay.ledger.keystore import NewKey

        notes: list[str] = []

        def call(store: Any) -> dict[str, Any]:
            record, text = store.create(NewKey.check(fields, time.time()))
            return {
                "key": text,
                "record": as_json(record, time.time()),
                "workers": self._publish(store),
                "warnings": [],
                "notes": notes,
            }

        def opened(database: Database) -> None:
            if database.file is not None and not database.file.exists():
                notes.append(f"A new database was made: {database.file}")

        return self._with_store(call, opened)

    def list(self) -> list[dict[str, Any]]:
        return self._with_store(lambda store: [as_json(r, time.time()) for r in store.list()[1]], _must_exist)

    def revoke(self, key_id: str) -> dict[str, Any]:
        def call(store: Any) -> dict[str, Any]:
            return {"record": as_json(store.revoke(key_id), time.time()), "workers": self._publish(store)}

        return self._with_store(call, _must_exist)

    def _publish(self, store: Any) -> str:
        """Leave the changed list where workers start from; returns how far it is known."""
        from forebay.admin.snapshot import write_snapshot

        try:
            write_snapshot(self._config.state_dir, SetKeys(*store.list()))
        except OSError as e:
            _say(
                f"warning: keys.snapshot in {self._config.state_dir} cannot be written ({e.strerror}): a gateway that "
                "starts without its database goes on with the list before this change"
            )
        # An admin process that does not answer may be between two lives, and its workers live on.
        return "pending" if _listens(worker_socket(self._config.state_dir, 0)) else "not running"

    def _with_store(self, call: Callable[[Any], T], opened: Callable[[Any], None]) -> T:
        from forebay.ledger.database import Database, DatabaseError, DatabaseUrl
        from forebay.ledger.keystore import BadField, KeyStore, UnknownKey

        try:
            database = Database(self._config.database, self._config.state_dir)
            opened(database)
            try:
                database.migrate()
                return call(KeyStore(database, time.time))
            finally:
                database.close()
        except BadField as e:
            _fail(f"{e}", USAGE)
        except UnknownKey as e:
            _fail(str(e), 1)
        except DatabaseUrl as e:
            _fail(str(e), EX_CONFIG)
        except DatabaseError as e:
            _fail(str(e), EX_UNAVAILABLE)


def _must_exist(database: Any) -> None:
    if database.file is not None and not database.file.exists():
        _fail(f"there is no database {database.file}; is --config or --state-dir the right one?", EX_UNAVAILABLE)


def _listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(ANSWER)
        return sock.connect_ex(str(path)) == 0


def _where(config: Path | None, state_dir: Path | None) -> Config:
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
                _say(*map(str, e.problems))
                _fail(
                    "so the database is not known; for the one in --state-dir give neither --config nor FOREBAY_CONFIG",
                    EX_CONFIG,
                )
    return found if state_dir is None else found.model_copy(update={"state_dir": state_dir.absolute()})


@contextmanager
def _reach(config: Path | None, state_dir: Path | None, *, make: bool) -> Iterator[_Admin | _Direct]:
    """The admin process where one answers, else the database with its lock taken. `make`: it may be a new one."""
    from forebay.ledger.database import DatabaseGone, DatabaseLock

    loaded = _where(config, state_dir)
    if not make and not loaded.state_dir.is_dir():
        _fail(f"there is no {loaded.state_dir}; is --config or --state-dir the right one?", EX_UNAVAILABLE)
    admin = _Admin(admin_socket(loaded.state_dir), "forebay key")
    deadline = time.monotonic() + WAIT
    with DatabaseLock(loaded.state_dir) as lock:
        try:
            while not admin.answers():
                if lock.take(0.2):
                    yield _Direct(loaded)
                    return
                if time.monotonic() > deadline:
                    _fail(
                        f"another process holds {lock.path}, and none answers on {admin_socket(loaded.state_dir)}; "
                        "try again once it has finished",
                        EX_UNAVAILABLE,
                    )
        except DatabaseGone as e:
            _fail(str(e), EX_UNAVAILABLE)
        yield admin
