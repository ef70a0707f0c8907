"""Keys and the hierarchy above them."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def _level(name: str, parent: str | None) -> None:
    above: list[Any] = []
    if parent is None:
        above.append(sa.UniqueConstraint("name", name=f"uq_{name}_name"))
    else:
        above += [
            sa.Column(
                "parent_id", sa.Integer, sa.ForeignKey(f"{parent}.id", name=f"fk_{name}_parent_id"), nullable=False
            ),
            sa.UniqueConstraint("parent_id", "name", name=f"uq_{name}_parent_id_name"),
        ]
    op.create_table(
        name,
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("name", sa.String(128), nullable=False),
        sa.Column("created", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("id", name=f"pk_{name}"),
        *above,
    )


def upgrade() -> None:
    _level("organisations", None)
    _level("departments", "organisations")
    _level("projects", "departments")
    _level("users", "projects")
    op.create_table(
        "keys",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("user_id", sa.Integer, sa.ForeignKey("users.id", name="fk_keys_user_id"), nullable=False),
        sa.Column("name", sa.String(128), nullable=False),
        sa.Column("sha256", sa.LargeBinary(32), nullable=False),
        sa.Column("class", sa.String(16), nullable=False),
        sa.Column("may_raise_class", sa.Boolean(create_constraint=False), nullable=False),
        sa.Column("models", sa.Text, nullable=False),
        sa.Column("created", sa.Double, nullable=False),
        sa.Column("expires", sa.Double),
        sa.Column("revoked", sa.Double),
        sa.PrimaryKeyConstraint("id", name="pk_keys"),
        sa.UniqueConstraint("sha256", name="uq_keys_sha256"),
        sa.CheckConstraint("class IN ('vip', 'normal', 'low')", name=op.f("ck_keys_class")),
        sa.CheckConstraint("length(sha256) = 32", name=op.f("ck_keys_sha256")),
    )
    op.create_index(
        "uq_keys_live_name",
        "keys",
        ["user_id", "name"],
        unique=True,
        sqlite_where=sa.text("revoked IS NULL"),
        postgresql_where=sa.text("revoked IS NULL"),
    )
    versions = op.create_table(
        "versions",
        sa.Column("name", sa.String(32), nullable=False),
        sa.Column("value", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_versions"),
    )
    op.bulk_insert(versions, [{"name": "keys", "value": 1}])


def downgrade() -> None:
    for table in ("versions", "keys", "users", "projects", "departments", "organisations"):
        op.drop_table(table)
