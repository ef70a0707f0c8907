"""Keys in the database: what may be asked for, and the four things that are done with them.

The text of a key exists once, in the answer of `KeyStore.create`; the database has its SHA-256.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError
from sqlalchemy import Connection, RowMapping, Select, Table, case, func, insert, or_, select, update

from forebay.config.models import Class, Name
from forebay.errors import shown
from forebay.ledger.database import Database
from forebay.ledger.records import KeyRecord, new_key
from forebay.ledger.schema import departments, keys, organisations, projects, users, versions

MAX_KEYS: Final = 100_000
"""Most keys a worker is told of, and most that may be valid at once."""
MAX_MODELS: Final = 256

_NAME = TypeAdapter(Name)
_DURATION = re.compile(r"(\d{1,9})\s*([smhdw])")
_UNITS: Final = MappingProxyType({"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800})
_FAR = datetime(2200, 1, 1, tzinfo=UTC).timestamp()


class BadField(Exception):
    """What was asked for is not possible. `field` is the field's name."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


class UnknownKey(Exception):
    """No key has this id."""


def parse_expiry(value: object, now: float) -> float | None:
    """Seconds since the epoch of `30d`, `2027-01-31` (00:00 UTC), `2027-01-31T12:00+08:00`, or None for never.

    Units: s, m (minutes), h, d, w. A time without an offset is UTC. Raises BadField.
    """
    if value is None:
        return None
    wanted = "write a duration like 30d, 12h or 2w, or a date or time like 2027-01-31 or 2027-01-31T12:00Z"
    if not isinstance(value, str):
        raise BadField("expires", f"{wanted}; not {shown(value)!r}")
    m = _DURATION.fullmatch(value.strip())
    if m is not None:
        when = now + int(m[1]) * _UNITS[m[2]]
    else:
        try:
            parsed = datetime.fromisoformat(value.strip())
            when = (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            raise BadField("expires", f"{wanted}; not {shown(value)!r}") from None
    if when <= now:
        raise BadField("expires", f"{shown(value)!r} is not in the future")
    if when > _FAR:
        raise BadField("expires", f"{shown(value)!r} is after the year 2200; leave it out for a key that never expires")
    return when


def _name(field: str, value: object) -> str:
    try:
        return _NAME.validate_python(value, strict=True)
    except ValidationError:
        raise BadField(
            field,
            f"1 to 128 letters, digits and . _ : / @ + -, starting with a letter or a digit; not {shown(value)!r}",
        ) from None


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key as it is asked for, checked."""

    name: str
    organisation: str = "default"
    department: str | None = None
    project: str | None = None
    user: str | None = None
    models: tuple[str, ...] = ()
    class_: Class = Class.NORMAL
    may_raise_class: bool = False
    expires: float | None = None

    @classmethod
    def check(cls, fields: Mapping[str, object], now: float) -> NewKey:
        """From the fields of a request: `name` and any of the others, `class` spelt so. Raises BadField."""
        known = ("name", *_LEVELS, "models", "class", "may_raise_class", "expires")
        for field in fields:
            if field not in known:
                raise BadField(shown(field), f"is not a field of a key; there are {', '.join(known)}")
        if fields.get("name") is None:
            raise BadField("name", "is missing; give the key a name")
        given = {f: _name(f, fields[f]) for f in _LEVELS if fields.get(f) is not None}
        models = fields.get("models") or ()
        if not isinstance(models, (list, tuple)):
            raise BadField("models", f"must be a list of model names, not {shown(models)!r}")
        if len(models) > MAX_MODELS:
            raise BadField("models", f"at most {MAX_MODELS} models, not {len(models)}")
        class_ = fields.get("class", Class.NORMAL)
        if class_ not in [c.value for c in Class]:
            raise BadField("class", f"one of {', '.join(Class)}; not {shown(class_)!r}")
        may_raise = fields.get("may_raise_class", False)
        if not isinstance(may_raise, bool):
            raise BadField("may_raise_class", f"true or false, not {shown(may_raise)!r}")
        return cls(
            name=_name("name", fields["name"]),
            models=tuple(dict.fromkeys(_name("models", m) for m in models)),
            class_=Class(class_),
            may_raise_class=may_raise,
            expires=parse_expiry(fields.get("expires"), now),
            **given,
        )


_LEVELS = ("organisation", "department", "project", "user")
_TABLES = (organisations, departments, projects, users)


class KeyStore:
    """The keys of one database. Calls block. Every call raises DatabaseError where the database cannot be used."""

    def __init__(self, database: Database, wall: Callable[[], float]) -> None:
        self._database = database
        self._wall = wall

    def create(self, new: NewKey) -> tuple[KeyRecord, str]:
        """The record and the key's text, which nothing can show again. Raises BadField where the name is taken."""
        key_id, text, digest = new_key()
        now = self._wall()
        with self._changing() as connection:
            if _count_valid(connection, now) >= MAX_KEYS:
                raise BadField("name", f"there are {MAX_KEYS:,} valid keys already; revoke some")
            user_id = _place(connection, new, now)
            taken = select(keys.c.id).where(
                keys.c.user_id == user_id, keys.c.name == new.name, keys.c.revoked.is_(None)
            )
            other = connection.execute(taken).scalar()
            if other is not None:
                raise BadField(
                    "name", f"{new.name!r} is taken by key {other} of the same owner; revoke it or choose another"
                )
            connection.execute(
                insert(keys).values(
                    id=key_id,
                    user_id=user_id,
                    name=new.name,
                    sha256=digest,
                    class_=new.class_.value,
                    may_raise_class=new.may_raise_class,
                    models=json.dumps(new.models),
                    created=now,
                    expires=new.expires,
                )
            )
            _bump(connection)
            return _get(connection, key_id), text

    def get(self, key_id: str) -> KeyRecord:
        """Raises UnknownKey."""
        with self._database.read() as connection:
            return _get(connection, key_id)

    def list(self) -> tuple[int, tuple[KeyRecord, ...]]:
        """The list's version and its keys, newest first: the valid ones, then what fits of the expired and revoked."""
        now = self._wall()
        dead = case((or_(keys.c.revoked.is_not(None), keys.c.expires <= now), 1), else_=0)
        with self._database.read() as connection:
            query = _records().order_by(dead, keys.c.created.desc(), keys.c.id).limit(MAX_KEYS)
            return _version(connection), tuple(_record(row) for row in connection.execute(query).mappings())

    def revoke(self, key_id: str) -> KeyRecord:
        """The record with the time of its (first) revocation. Raises UnknownKey."""
        with self._changing() as connection:
            found = _get(connection, key_id)
            if found.revoked is not None:
                return found
            connection.execute(update(keys).where(keys.c.id == key_id).values(revoked=self._wall()))
            _bump(connection)
            return _get(connection, key_id)

    def version(self) -> int:
        """A number that differs after every change of the list."""
        with self._database.read() as connection:
            return _version(connection)

    @contextmanager
    def _changing(self) -> Iterator[Connection]:
        """A transaction that no other change of the list, of whichever host, can overlap."""
        with self._database.write() as connection:
            connection.execute(select(versions).where(versions.c.name == "keys").with_for_update())
            yield connection

    def __repr__(self) -> str:
        return f"<KeyStore {self._database}>"


def _count_valid(connection: Connection, now: float) -> int:
    valid = select(func.count()).where(keys.c.revoked.is_(None), or_(keys.c.expires.is_(None), keys.c.expires > now))
    return connection.execute(valid).scalar_one()


def _place(connection: Connection, new: NewKey, now: float) -> int:
    """The user row the key hangs from; levels are made as they are first named."""
    path = (new.organisation, new.department or "", new.project or "", new.user or "")
    above: int | None = None
    for table, name in zip(_TABLES, path, strict=True):
        above = _find(connection, table, above, name) or _make(connection, table, above, name, now)
    assert above is not None
    return above


def _find(connection: Connection, table: Table, parent: int | None, name: str) -> int | None:
    query = select(table.c.id).where(table.c.name == name)
    if parent is not None:
        query = query.where(table.c.parent_id == parent)
    return connection.execute(query).scalar()


def _make(connection: Connection, table: Table, parent: int | None, name: str, now: float) -> int:
    values: dict[str, Any] = {"name": name, "created": now} | ({} if parent is None else {"parent_id": parent})
    return int(connection.execute(insert(table).values(values).returning(table.c.id)).scalar_one())


def _bump(connection: Connection) -> None:
    connection.execute(update(versions).where(versions.c.name == "keys").values(value=versions.c.value + 1))


def _version(connection: Connection) -> int:
    return int(connection.execute(select(versions.c.value).where(versions.c.name == "keys")).scalar_one())


def _records() -> Select[Any]:
    return select(
        keys,
        organisations.c.name.label("organisation"),
        departments.c.name.label("department"),
        projects.c.name.label("project"),
        users.c.name.label("user"),
    ).select_from(
        keys.join(users, keys.c.user_id == users.c.id)
        .join(projects, users.c.parent_id == projects.c.id)
        .join(departments, projects.c.parent_id == departments.c.id)
        .join(organisations, departments.c.parent_id == organisations.c.id)
    )


def _get(connection: Connection, key_id: str) -> KeyRecord:
    row = connection.execute(_records().where(keys.c.id == key_id)).mappings().one_or_none()
    if row is None:
        raise UnknownKey(f"There is no key with the id '{shown(key_id)}'; `forebay key list` shows the ids.")
    return _record(row)


def _record(row: RowMapping) -> KeyRecord:
    return KeyRecord(
        id=row["id"],
        sha256=bytes(row["sha256"]),
        name=row["name"],
        organisation=row["organisation"],
        department=row["department"] or None,
        project=row["project"] or None,
        user=row["user"] or None,
        models=tuple(json.loads(row["models"])),
        class_=row["class_"],
        may_raise_class=row["may_raise_class"],
        created=row["created"],
        expires=row["expires"],
        revoked=row["revoked"],
    )
