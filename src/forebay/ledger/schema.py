"""The tables, as SQLAlchemy Core sees them. `migrations/` builds them; a test holds the two together.

The hierarchy is a strict tree: organisation → department → project → user → key. A level that was not given is the
row with the empty name under its parent, so that names are unique within their parent without NULLs in the way, and
sums can be taken at every level. Times are seconds since the Unix epoch.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    text,
)

HEAD = "0001"
"""The newest migration; a test compares it with the scripts."""

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def _level(name: str, parent: str | None) -> Table:
    above: list[Any] = []
    if parent is None:
        above.append(UniqueConstraint("name"))
    else:
        above += [
            Column("parent_id", Integer, ForeignKey(f"{parent}.id"), nullable=False),
            UniqueConstraint("parent_id", "name"),
        ]
    return Table(
        name,
        metadata,
        Column("id", Integer, primary_key=True),
        Column("name", String(128), nullable=False),
        Column("created", Double, nullable=False),
        *above,
    )


organisations = _level("organisations", None)
departments = _level("departments", "organisations")
projects = _level("projects", "departments")
users = _level("users", "projects")

keys = Table(
    "keys",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("user_id", Integer, ForeignKey("users.id"), nullable=False),
    Column("name", String(128), nullable=False),
    Column("sha256", LargeBinary(32), nullable=False, unique=True),
    Column("class", String(16), nullable=False, key="class_"),
    Column("may_raise_class", Boolean(create_constraint=False), nullable=False),
    Column("models", Text, nullable=False),  # a JSON array of names; empty: all
    Column("created", Double, nullable=False),
    Column("expires", Double),
    Column("revoked", Double),
    CheckConstraint("class IN ('vip', 'normal', 'low')", name="class"),
    CheckConstraint("length(sha256) = 32", name="sha256"),
)
# A revoked key gives its name back, so that a key can be rotated under the same name.
live_key_names = Index(
    "uq_keys_live_name",
    keys.c.user_id,
    keys.c.name,
    unique=True,
    sqlite_where=text("revoked IS NULL"),
    postgresql_where=text("revoked IS NULL"),
)

versions = Table(
    "versions",
    metadata,
    Column("name", String(32), primary_key=True),
    Column("value", BigInteger, nullable=False),
)
"""How often a list changed: one row a list, bumped in the transaction that changes it."""
