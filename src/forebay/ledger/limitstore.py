"""Limits that are kept in the database: beside `quotas` in the configuration, with the same fields and meaning.

A limit is known by its name. `set` changes those fields that are given and leaves the others, so that one can be raised
without being said anew.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError
from sqlalchemy import Connection, delete, func, insert, or_, select, update

from forebay.config.quotas import MEASURES, Quota
from forebay.errors import shown
from forebay.ledger.database import Database, DatabaseError
from forebay.ledger.lists import BadField, Missing, bump, changing, check_name
from forebay.ledger.records import LEVELS, Account, iso, level_of, renamed, shown_account
from forebay.ledger.rules import Rule
from forebay.ledger.schema import departments, keys, limits, organisations, projects, users

MAX_LIMITS: Final = 10_000
ALL: Final = "all"
_FIELDS: Final = tuple(Quota.model_fields)
_NAMES: Final = ("name", *LEVELS, "key", "degrade_model")
_SAFE: Final = re.compile(r"[^A-Za-z0-9._:/@+-]")


class UnknownLimit(Missing):
    """No limit has this name."""

    field = "name"


@dataclass(frozen=True, slots=True)
class Limit:
    """One as it is kept. Times are seconds since the Unix epoch."""

    quota: Quota
    created: float
    changed: float

    @property
    def rule(self) -> Rule:
        """Its `zone` is empty where the configuration's counts: `ledger.in_force`."""
        return Rule.of(self.quota, "")

    def as_json(self) -> dict[str, Any]:
        """The fields that were set, and what it counts together."""
        fields = self.quota.model_dump(mode="json", exclude_unset=True, exclude_none=True)
        return {**fields, "each": self.quota.counted, "created": iso(self.created), "changed": iso(self.changed)}


class LimitStore:
    """The limits of one database. Calls block. Every call raises DatabaseError where the database cannot be used."""

    def __init__(self, database: Database, wall: Callable[[], float]) -> None:
        self._database = database
        self._wall = wall

    def set(self, fields: Mapping[str, object]) -> tuple[Limit, list[str]]:
        """Make a limit, or change one: fields as in `quotas`, None takes one away; without a name it is called by what
        it counts. Returns it and warnings. Raises BadField."""
        name, now = _name_of(fields), self._wall()
        with changing(self._database) as connection:
            found = connection.execute(select(limits.c.rule).where(limits.c.name == name)).scalar()
            kept = {} if found is None else _read(name, found).model_dump(mode="json", exclude_unset=True)
            quota = check({**kept, **fields, "name": name})
            if found is None:
                if connection.execute(select(func.count()).select_from(limits)).scalar_one() >= MAX_LIMITS:
                    raise BadField("name", f"there are {MAX_LIMITS:,} limits already; remove some")
                connection.execute(insert(limits).values(name=name, rule=_text(quota), created=now, changed=now))
            else:
                _write(connection, quota, now)
            bump(connection)
            return self._get(connection, quota.name), _fits_nobody(connection, quota)

    def remove(self, name: str) -> Limit:
        """The limit as it was. Raises UnknownLimit."""
        with changing(self._database) as connection:
            found = self._get(connection, name)
            connection.execute(delete(limits).where(limits.c.name == name))
            bump(connection)
            return found

    def renamed(self, connection: Connection, account: Account, to: str) -> list[str]:
        """Let the limits that name an account follow it, in the transaction that renamed it. Returns a warning for each
        that does not, since it fits others of the old name too."""
        level, warnings = level_of(account), []
        n = LEVELS.index(level)
        for limit in self.listed(connection):
            named = [getattr(limit.quota, x) for x in LEVELS]
            if named[n] != account[n] or any(x not in (None, y) for x, y in zip(named[:n], account, strict=False)):
                continue
            if _any(connection, {x: y for x, y in zip(LEVELS[: n + 1], named, strict=False) if y is not None}):
                warnings.append(
                    f"the limit {limit.quota.name} fits other {level}s called {account[n]} too, so it stays with these "
                    f"and does not count {shown_account(renamed(account, to))} any more"
                )
                continue
            fields = limit.quota.model_dump(mode="json", exclude_unset=True) | {level: to}
            _write(connection, check(fields), self._wall())
        return warnings

    def listed(self, connection: Connection) -> list[Limit]:
        """As `list`, in a transaction that goes on."""
        rows = connection.execute(select(limits).order_by(limits.c.name))
        return [Limit(_read(row.name, row.rule), row.created, row.changed) for row in rows]

    def _get(self, connection: Connection, name: str) -> Limit:
        row = connection.execute(select(limits).where(limits.c.name == name)).one_or_none()
        if row is None:
            raise UnknownLimit(f"There is no limit '{shown(name)}'; `forebay limit list` shows them.")
        return Limit(_read(row.name, row.rule), row.created, row.changed)

    def list(self) -> list[Limit]:
        """By name."""
        with self._database.read() as connection:
            return self.listed(connection)

    def __repr__(self) -> str:
        return f"<LimitStore {self._database}>"


def check(fields: Mapping[str, object]) -> Quota:
    """Raises BadField."""
    for field in fields:
        if field not in _FIELDS:
            raise BadField(shown(field), f"is not a field of a limit; there are {', '.join(_FIELDS)}")
    given = {field: value for field, value in fields.items() if value is not None}
    for field in _NAMES:
        if field in given:
            check_name(field, given[field])
    if not any(measure in given for measure in MEASURES):
        raise BadField("limit", f"needs at least one of {', '.join(MEASURES)}; `forebay limit remove` takes one away")
    try:
        return Quota.model_validate(given)
    except ValidationError as e:
        wrong = e.errors(include_url=False)[0]
        message = wrong["msg"].removeprefix("Value error, ")
        if not wrong["loc"]:
            raise BadField("limit", message) from None
        raise BadField(
            str(wrong["loc"][0]), f"{message[:1].lower()}{message[1:]}; not {shown(wrong['input'])!r}"
        ) from None


def _name_of(fields: Mapping[str, object]) -> str:
    """The name given, or one made of what the limit counts. Raises BadField."""
    if fields.get("name") is not None:
        return check_name("name", fields["name"])
    parts = [str(fields[level]) for level in (*LEVELS, "key", "end_user") if fields.get(level) is not None]
    deepest = next((x for x in ("end_user", "key", *reversed(LEVELS)) if fields.get(x) is not None), None)
    name = str(fields.get("each") or deepest or ALL)
    if parts:
        name += ":" + "/".join(parts)
    models = fields.get("models")
    if isinstance(models, (list, tuple)) and models:
        name += ":" + "+".join(map(str, models))
    if len(name) > 128 or _SAFE.search(name):
        raise BadField("name", "is missing; what the limit counts makes no name, so give it one")
    return name


def _text(quota: Quota) -> str:
    return quota.model_dump_json(exclude_unset=True, exclude_none=True)


def _write(connection: Connection, quota: Quota, now: float) -> None:
    connection.execute(update(limits).where(limits.c.name == quota.name).values(rule=_text(quota), changed=now))


def _read(name: str, rule: str) -> Quota:
    try:
        return Quota.model_validate_json(rule)
    except ValidationError as e:
        raise DatabaseError(f"the limit {name} in the database cannot be read: {e.errors()[0]['msg']}") from e


def _fits_nobody(connection: Connection, quota: Quota) -> list[str]:
    named = {level: getattr(quota, level) for level in LEVELS if getattr(quota, level) is not None}
    found = []
    if named and not _any(connection, named):
        found.append(f"no account in the database is {' / '.join(named.values())} yet")
    if quota.key is not None and quota.key != "anonymous":
        mine = or_(keys.c.id == quota.key, keys.c.name == quota.key)
        if connection.execute(select(keys.c.id).where(mine).limit(1)).scalar() is None:
            found.append(f"no key in the database has the id or the name {quota.key} yet")
    return found


def _any(connection: Connection, named: Mapping[str, str]) -> bool:
    """Whether there is an account with these names at these levels."""
    tables = (organisations, departments, projects, users)
    depth = max(LEVELS.index(level) for level in named)
    joined: Any = tables[depth]
    for i in range(depth, 0, -1):
        joined = joined.join(tables[i - 1], tables[i].c.parent_id == tables[i - 1].c.id)
    query = select(tables[depth].c.id).select_from(joined).limit(1)
    for level, name in named.items():
        query = query.where(tables[LEVELS.index(level)].c.name == name)
    return connection.execute(query).scalar() is not None
