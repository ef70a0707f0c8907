"""What keys, accounts and limits have in common: one list with one version, changed one transaction at a time; and
how what is asked for is checked."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Final

from pydantic import TypeAdapter, ValidationError
from sqlalchemy import Connection, select, update

from forebay.config.models import Name
from forebay.errors import shown
from forebay.ledger.database import Database
from forebay.ledger.schema import versions

_NAME = TypeAdapter(Name)
_DURATION = re.compile(r"(\d{1,9})\s*([smhdw])")
_UNITS: Final = MappingProxyType({"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800})
_FAR = datetime(2200, 1, 1, tzinfo=UTC).timestamp()


class BadField(Exception):
    """What was asked for is not possible. `field` is the field's name."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


class Missing(Exception):
    """What was named does not exist. `field` is the field that named it."""

    field = "id"


def check_name(field: str, value: object) -> str:
    """Raises BadField."""
    try:
        return _NAME.validate_python(value, strict=True)
    except ValidationError:
        raise BadField(
            field,
            f"1 to 128 letters, digits and . _ : / @ + -, starting with a letter or a digit; not {shown(value)!r}",
        ) from None


def parse_duration(text: str) -> int | None:
    """Seconds of `90s`, `30m`, `12h`, `30d`, `2w`; None for anything else."""
    m = _DURATION.fullmatch(text.strip())
    return None if m is None else int(m[1]) * _UNITS[m[2]]


def parse_expiry(value: object, now: float) -> float | None:
    """Seconds since the epoch of `30d`, `2027-01-31` (00:00 UTC), `2027-01-31T12:00+08:00`, or None for never.

    Units: s, m (minutes), h, d, w. A time without an offset is UTC. Raises BadField.
    """
    if value is None:
        return None
    wanted = "write a duration like 30d, 12h or 2w, or a date or time like 2027-01-31 or 2027-01-31T12:00Z"
    if not isinstance(value, str):
        raise BadField("expires", f"{wanted}; not {shown(value)!r}")
    after = parse_duration(value)
    if after is not None:
        when = now + after
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


@contextmanager
def changing(database: Database) -> Iterator[Connection]:
    """A transaction that no other change of the list, of whichever host, can overlap. Raises DatabaseError."""
    with database.write() as connection:
        connection.execute(select(versions).where(versions.c.name == "keys").with_for_update())
        yield connection


def bump(connection: Connection) -> None:
    """Say that the list changed."""
    connection.execute(update(versions).where(versions.c.name == "keys").values(value=versions.c.value + 1))


def version_of(connection: Connection) -> int:
    return int(connection.execute(select(versions.c.value).where(versions.c.name == "keys")).scalar_one())
