"""Keys in the database: what may be asked for, and what is done with them.

The text of a key exists once, in the answer of `KeyStore.create` or `rotate`; the database has its SHA-256.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, RowMapping, Select, case, delete, func, insert, or_, select, update

from forebay.config.models import Class
from forebay.errors import shown
from forebay.ledger.accounts import place
from forebay.ledger.database import Database
from forebay.ledger.lists import (
    BadField,
    Missing,
    bump,
    changing,
    check_name,
    parse_duration,
    parse_expiry,
    version_of,
)
from forebay.ledger.records import LEVELS, KeyRecord, OldText, new_key, new_text
from forebay.ledger.schema import departments, keys, old_texts, organisations, projects, users

MAX_KEYS: Final = 100_000
"""Most keys a worker is told of, and most that may be valid at once."""
MAX_MODELS: Final = 256

MAX_OLD: Final = 8
"""Earlier texts of a key that are remembered, and so most that count at once."""
OVERLAP: Final = 86_400
"""Seconds that the old text of a rotated key counts on, where nobody says otherwise."""
MAX_OVERLAP: Final = 52 * 7 * 86_400


class UnknownKey(Missing):
    """No key has this id."""


def parse_overlap(value: object) -> int:
    """Seconds of `24h`, `0` and the like, at most a year; None is a day. Raises BadField."""
    if value is None:
        return OVERLAP
    seconds = 0 if value == "0" else parse_duration(value) if isinstance(value, str) else None
    if seconds is None:
        raise BadField("overlap", f"write a duration like 24h, 30m or 7d, or 0 for none; not {shown(value)!r}")
    if seconds > MAX_OVERLAP:
        raise BadField("overlap", f"at most a year (52w), not {shown(value)!r}")
    return seconds


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
        known = ("name", *LEVELS, "models", "class", "may_raise_class", "expires")
        for field in fields:
            if field not in known:
                raise BadField(shown(field), f"is not a field of a key; there are {', '.join(known)}")
        if fields.get("name") is None:
            raise BadField("name", "is missing; give the key a name")
        given = {f: check_name(f, fields[f]) for f in LEVELS if fields.get(f) is not None}
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
            name=check_name("name", fields["name"]),
            models=tuple(dict.fromkeys(check_name("models", m) for m in models)),
            class_=Class(class_),
            may_raise_class=may_raise,
            expires=parse_expiry(fields.get("expires"), now),
            **given,
        )


class KeyStore:
    """The keys of one database. Calls block. Every call raises DatabaseError where the database cannot be used."""

    def __init__(self, database: Database, wall: Callable[[], float]) -> None:
        self._database = database
        self._wall = wall

    def create(self, new: NewKey) -> tuple[KeyRecord, str]:
        """The record and the key's text, which nothing can show again. Raises BadField where the name is taken."""
        key_id, text, digest = new_key()
        now = self._wall()
        with changing(self._database) as connection:
            _check_room(connection, now, "name")
            user_id = place(
                connection, (new.organisation, new.department or "", new.project or "", new.user or ""), now
            )
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
            bump(connection)
            return _get(connection, key_id), text

    def get(self, key_id: str) -> KeyRecord:
        """Raises UnknownKey."""
        with self._database.read() as connection:
            return _get(connection, key_id)

    def list(self) -> tuple[int, tuple[KeyRecord, ...]]:
        """The list's version and its keys, newest first: the valid ones, then what fits of the expired and revoked."""
        with self._database.read() as connection:
            return version_of(connection), self.records(connection)

    def records(self, connection: Connection) -> tuple[KeyRecord, ...]:
        """As `list`, in a transaction that goes on."""
        dead = case((or_(keys.c.revoked.is_not(None), keys.c.expires <= self._wall()), 1), else_=0)
        query = _records().order_by(dead, keys.c.created.desc(), keys.c.id).limit(MAX_KEYS)
        old = _old_texts(connection)
        return tuple(_record(row, old.get(row["id"], ())) for row in connection.execute(query).mappings())

    def revoke(self, key_id: str) -> KeyRecord:
        """The record with the time of its (first) revocation. Raises UnknownKey."""
        with changing(self._database) as connection:
            found = _get(connection, key_id)
            if found.revoked is not None:
                return found
            connection.execute(update(keys).where(keys.c.id == key_id).values(revoked=self._wall()))
            bump(connection)
            return _get(connection, key_id)

    def rotate(self, key_id: str, overlap: float) -> tuple[KeyRecord, str]:
        """The record and the key's new text. The text it had, and all before that, count for `overlap` seconds more at
        most. Raises UnknownKey, and BadField for a key that no text helps, or with too many texts."""
        now = self._wall()
        with changing(self._database) as connection:
            found = _changeable(connection, key_id)
            if found.expires is not None and found.expires <= now:
                raise BadField("id", f"key {key_id} has expired; `forebay key expire {key_id} WHEN` gives it more time")
            ends = now + overlap
            mine = old_texts.c.key_id == key_id
            connection.execute(update(old_texts).where(mine, old_texts.c.ends > ends).values(ends=ends))
            kept = [old.sha256 for old in found.old[: MAX_OLD - 1]]
            if overlap and len(found.old) >= MAX_OLD and found.old[MAX_OLD - 1].ends > now:
                raise BadField(
                    "overlap",
                    f"{MAX_OLD} earlier texts of key {key_id} count still; wait, or rotate it with an overlap of 0, "
                    "which ends them all",
                )
            connection.execute(delete(old_texts).where(mine, old_texts.c.sha256.not_in(kept)))
            connection.execute(insert(old_texts).values(key_id=key_id, sha256=found.sha256, ends=ends))
            text, digest = new_text(key_id)
            connection.execute(update(keys).where(keys.c.id == key_id).values(sha256=digest, rotated=now))
            bump(connection)
            return _get(connection, key_id), text

    def expire(self, key_id: str, expires: float | None) -> KeyRecord:
        """Let a key expire at another time; None: never. Raises UnknownKey, BadField."""
        now = self._wall()
        with changing(self._database) as connection:
            found = _changeable(connection, key_id)
            was_over = found.expires is not None and found.expires <= now
            if was_over and (expires is None or expires > now):
                _check_room(connection, now, "expires")
            return self._set(connection, key_id, expires=expires)

    def suspend(self, key_id: str) -> KeyRecord:
        """Keeps the time of the first call since the last `resume`. Raises UnknownKey, BadField."""
        with changing(self._database) as connection:
            found = _changeable(connection, key_id)
            return found if found.suspended is not None else self._set(connection, key_id, suspended=self._wall())

    def resume(self, key_id: str) -> KeyRecord:
        """Raises UnknownKey, BadField."""
        with changing(self._database) as connection:
            found = _changeable(connection, key_id)
            return found if found.suspended is None else self._set(connection, key_id, suspended=None)

    def _set(self, connection: Connection, key_id: str, **values: float | None) -> KeyRecord:
        connection.execute(update(keys).where(keys.c.id == key_id).values(values))
        bump(connection)
        return _get(connection, key_id)

    def version(self) -> int:
        """A number that differs after every change of the list."""
        with self._database.read() as connection:
            return version_of(connection)

    def __repr__(self) -> str:
        return f"<KeyStore {self._database}>"


def _check_room(connection: Connection, now: float, field: str) -> None:
    """That one more key may be valid. Raises BadField."""
    valid = select(func.count()).where(keys.c.revoked.is_(None), or_(keys.c.expires.is_(None), keys.c.expires > now))
    if connection.execute(valid).scalar_one() >= MAX_KEYS:
        raise BadField(field, f"there are {MAX_KEYS:,} valid keys already; revoke some")


def _old_texts(connection: Connection, key_id: str | None = None) -> dict[str, tuple[OldText, ...]]:
    """By key, the last to end first; of all keys, or of one."""
    query = select(old_texts.c.key_id, old_texts.c.sha256, old_texts.c.ends)
    if key_id is not None:
        query = query.where(old_texts.c.key_id == key_id)
    found: dict[str, list[OldText]] = defaultdict(list)
    for owner, digest, ends in connection.execute(query.order_by(old_texts.c.ends.desc(), old_texts.c.sha256)):
        found[owner].append(OldText(bytes(digest), ends))
    return {owner: tuple(texts) for owner, texts in found.items()}


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


def _changeable(connection: Connection, key_id: str) -> KeyRecord:
    """Raises UnknownKey; BadField for a key whose life is over."""
    found = _get(connection, key_id)
    if found.revoked is not None:
        raise BadField("id", f"key {key_id} is revoked, which is final; create another")
    return found


def _get(connection: Connection, key_id: str) -> KeyRecord:
    row = connection.execute(_records().where(keys.c.id == key_id)).mappings().one_or_none()
    if row is None:
        raise UnknownKey(f"There is no key with the id '{shown(key_id)}'; `forebay key list` shows the ids.")
    return _record(row, _old_texts(connection, key_id).get(key_id, ()))


def _record(row: RowMapping, old: tuple[OldText, ...]) -> KeyRecord:
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
        suspended=row["suspended"],
        rotated=row["rotated"],
        old=old,
    )
