"""The hierarchy in the database: organisations, departments, projects and users, and what can be done with one.

A level is made when a key, or `create`, first names it. Its names are unique within their parent.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any, Final

from sqlalchemy import Connection, Row, Select, Table, func, insert, literal, or_, select, update

from forebay.errors import shown
from forebay.ledger.database import Database
from forebay.ledger.lists import BadField, Missing, bump, changing, check_name
from forebay.ledger.records import LEVELS, Account, iso, level_of, renamed, shown_account, suspended_in, with_above
from forebay.ledger.schema import departments, keys, organisations, projects, users

MAX_LABELS: Final = 32
"""Labels of one account."""
MAX_ACCOUNTS: Final = 100_000
"""Most accounts of a level that are made without a key."""
_LABEL = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_TABLES: Final = (organisations, departments, projects, users)


class UnknownAccount(Missing):
    """No such level."""

    field = "organisation"


def check_account(fields: Mapping[str, object]) -> Account:
    """The account that `organisation`, `department`, `project` and `user` name; the organisation is `default` where
    only something in it is named. Raises BadField."""
    given = {level: check_name(level, fields[level]) for level in LEVELS if fields.get(level) is not None}
    if not given:
        raise BadField("organisation", f"name the account, by one or more of {', '.join(LEVELS)}")
    organisation, department, project, user = (given.get(level, "") for level in LEVELS)
    return organisation or "default", department, project, user


def check_labels(value: object) -> dict[str, str | None]:
    """Labels to set; None takes one away. Raises BadField."""
    if not isinstance(value, dict) or not value:
        raise BadField("labels", 'an object of names and values, as in {"cost-centre": "4711"}; null takes one away')
    for name, text in value.items():
        if not isinstance(name, str) or not _LABEL.fullmatch(name):
            raise BadField(
                "labels", f"a name has 1 to 64 letters, digits, dots, dashes and underscores; not {shown(name)!r}"
            )
        if text is None:
            continue
        if not isinstance(text, str) or not 0 < len(text) <= 256 or not text.isprintable():
            raise BadField(
                "labels",
                f"{name}: a value has 1 to 256 characters, none a line break or invisible; not {shown(text)!r}",
            )
    return dict(value)


@dataclass(slots=True)
class Level:
    """One account as it stands. Times are seconds since the Unix epoch."""

    account: Account
    created: float
    suspended: float | None
    labels: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    keys: int = 0
    """Keys in it, or below, that are neither revoked nor expired."""
    suspended_by: str | None = None
    """Which level keeps its keys from being used: its own, or one above."""

    def as_json(self) -> dict[str, Any]:
        names = {level: name or None for level, name in zip(LEVELS, self.account, strict=True)}
        return {
            "level": level_of(self.account),
            **names,
            "created": iso(self.created),
            "suspended": iso(self.suspended),
            "suspended_by": self.suspended_by,
            "labels": dict(self.labels),
            "keys": self.keys,
        }


class AccountStore:
    """The hierarchy of one database. Calls block. Every call raises DatabaseError where the database cannot be used,
    and but for `create` and `list` UnknownAccount."""

    def __init__(self, database: Database, wall: Callable[[], float]) -> None:
        self._database = database
        self._wall = wall

    def create(self, account: Account, labels: Mapping[str, str | None]) -> Level:
        """Raises BadField: there is one already, or there are too many."""
        table, now = _table(account), self._wall()
        with changing(self._database) as connection:
            if _find_all(connection, account)[-1] is not None:
                raise BadField(level_of(account), f"there is an account {shown_account(account)} already")
            if connection.execute(select(func.count()).select_from(table)).scalar_one() >= MAX_ACCOUNTS:
                raise BadField(level_of(account), f"there are {MAX_ACCOUNTS:,} {table.name} already")
            place(connection, account, now)
            self._label(connection, account, labels)
            bump(connection)
            return self._get(connection, account)

    def rename(
        self,
        account: Account,
        name: str,
        follow: Callable[[Connection, Account, str], list[str]] = lambda connection, account, name: [],
    ) -> tuple[Level, list[str]]:
        """The account under its new name; its keys go with it. `follow` is called in the transaction, for what else
        names it, with the old account and the new name; its warnings are returned. Raises BadField: the name is
        taken."""
        n = LEVELS.index(level_of(account))
        after = renamed(account, name)
        warnings: list[str] = []
        with changing(self._database) as connection:
            table, row = self._row(connection, account)
            if name != account[n]:
                if _find_all(connection, after)[-1] is not None:
                    raise BadField("to", f"there is an account {shown_account(after)} already; two cannot be merged")
                connection.execute(update(table).where(table.c.id == row).values(name=name))
                warnings = follow(connection, account, name)
                bump(connection)
            return self._get(connection, after), warnings

    def suspend(self, account: Account) -> Level:
        """Keeps the time of the first call since the last `resume`."""
        return self._set_suspended(account, self._wall())

    def resume(self, account: Account) -> Level:
        return self._set_suspended(account, None)

    def label(self, account: Account, labels: Mapping[str, str | None]) -> Level:
        """Set labels, and take those away that are None. Raises BadField: too many."""
        with changing(self._database) as connection:
            self._label(connection, account, labels)
            bump(connection)
            return self._get(connection, account)

    def suspended(self, connection: Connection) -> frozenset[Account]:
        """The accounts that are suspended by themselves."""
        found: set[Account] = set()
        for n, table in enumerate(_TABLES):
            found |= {_account(row) for row in connection.execute(_named(n).where(table.c.suspended.is_not(None)))}
        return frozenset(found)

    def _set_suspended(self, account: Account, when: float | None) -> Level:
        with changing(self._database) as connection:
            table, row = self._row(connection, account)
            now = connection.execute(select(table.c.suspended).where(table.c.id == row)).scalar()
            if (now is None) != (when is None):
                connection.execute(update(table).where(table.c.id == row).values(suspended=when))
                bump(connection)
            return self._get(connection, account)

    def _label(self, connection: Connection, account: Account, labels: Mapping[str, str | None]) -> None:
        table, row = self._row(connection, account)
        found: dict[str, str] = json.loads(
            connection.execute(select(table.c.labels).where(table.c.id == row)).scalar_one()
        )
        wanted = {name: value for name, value in {**found, **labels}.items() if value is not None}
        if len(wanted) > MAX_LABELS:
            raise BadField("labels", f"at most {MAX_LABELS} of an account, not {len(wanted)}")
        text = json.dumps(dict(sorted(wanted.items())), ensure_ascii=False)
        connection.execute(update(table).where(table.c.id == row).values(labels=text))

    def _row(self, connection: Connection, account: Account) -> tuple[Table, int]:
        found = _find_all(connection, account)
        if found[-1] is not None:
            return _table(account), found[-1]
        missing = found.index(None)
        raise _unknown(connection, account, missing, found[missing - 1] if missing else None)

    def _get(self, connection: Connection, account: Account) -> Level:
        return next(level for level in self._levels(connection, account[0]) if level.account == account)

    def _levels(self, connection: Connection, organisation: str | None = None) -> list[Level]:
        """All levels, or those of an organisation."""
        within = organisations.c.name == organisation if organisation is not None else None
        found: list[Level] = []
        for n, table in enumerate(_TABLES):
            query = _named(n, table.c.created, table.c.suspended, table.c.labels).where(table.c.name != "")
            for row in connection.execute(query if within is None else query.where(within)):
                created, suspended, labels = row[4:]
                found.append(Level(_account(row), created, suspended, json.loads(labels)))
        live = or_(keys.c.expires.is_(None), keys.c.expires > self._wall())
        count = _named(3, func.count(keys.c.id)).join(keys, keys.c.user_id == users.c.id)
        count = count.where(keys.c.revoked.is_(None), live)
        counted: Counter[Account] = Counter()
        for row in connection.execute(
            (count if within is None else count.where(within)).group_by(*(t.c.name for t in _TABLES))
        ):
            account = _account(row)
            for above in set(with_above(account)):
                counted[above] += row[4]
        suspended_ones = {level.account for level in found if level.suspended is not None}
        for level in found:
            by = suspended_in(level.account, suspended_ones)
            level.keys, level.suspended_by = counted[level.account], level_of(by) if by is not None else None
        return sorted(found, key=lambda level: level.account)

    def list(self) -> list[Level]:
        """Every account, parents first."""
        with self._database.read() as connection:
            return self._levels(connection)

    def __repr__(self) -> str:
        return f"<AccountStore {self._database}>"


def place(connection: Connection, account: Account, now: float) -> int:
    """The row of the user that keys of the account hang from; levels are made as they are first named."""
    above: int | None = None
    for table, name in zip(_TABLES, account, strict=True):
        above = _find(connection, table, above, name) or _make(connection, table, above, name, now)
    assert above is not None
    return above


def _table(account: Account) -> Table:
    return _TABLES[LEVELS.index(level_of(account))]


def _find_all(connection: Connection, account: Account) -> list[int | None]:
    """The rows from the organisation down to the account; the first that is missing, and all below, are None."""
    found: list[int | None] = []
    for n in range(LEVELS.index(level_of(account)) + 1):
        above = found[-1] if found else None
        found.append(None if n and above is None else _find(connection, _TABLES[n], above, account[n]))
    return found


def _find(connection: Connection, table: Table, parent: int | None, name: str) -> int | None:
    query = select(table.c.id).where(table.c.name == name)
    if parent is not None:
        query = query.where(table.c.parent_id == parent)
    return connection.execute(query).scalar()


def _make(connection: Connection, table: Table, parent: int | None, name: str, now: float) -> int:
    values: dict[str, Any] = {"name": name, "created": now} | ({} if parent is None else {"parent_id": parent})
    return int(connection.execute(insert(table).values(values).returning(table.c.id)).scalar_one())


def _unknown(connection: Connection, account: Account, missing: int, parent: int | None) -> UnknownAccount:
    table = _TABLES[missing]
    query = select(table.c.name).where(table.c.name != "").limit(1_000)
    if parent is not None:
        query = query.where(table.c.parent_id == parent)
    name = account[missing]
    near = get_close_matches(name, connection.execute(query).scalars(), n=1)
    where = f" in {shown_account(with_above(account)[missing - 1])}" if missing else ""
    what = f"There is no {LEVELS[missing]} '{name}'{where}" if name else f"There is no such account{where}"
    advice = f"did you mean '{near[0]}'? " if near else ""
    error = UnknownAccount(f"{what}; {advice}`forebay account list` shows them, `forebay account create` makes one.")
    error.field = LEVELS[missing]
    return error


def _named(n: int, *columns: Any) -> Select[Any]:
    """The names from the organisation down to level `n`, "" below it, and columns."""
    names = [t.c.name if i <= n else literal("") for i, t in enumerate(_TABLES)]
    joined: Any = _TABLES[n]
    for i in range(n, 0, -1):
        joined = joined.join(_TABLES[i - 1], _TABLES[i].c.parent_id == _TABLES[i - 1].c.id)
    return select(*names, *columns).select_from(joined)


def _account(row: Row[Any]) -> Account:
    names: tuple[str, ...] = tuple(row)
    organisation, department, project, user = names[:4]
    return organisation, department, project, user
