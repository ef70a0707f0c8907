"""Rotation and suspension of keys, suspension and labels of accounts, limits that are kept here."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_LEVELS = ("organisations", "departments", "projects", "users")


def upgrade() -> None:
    for level in _LEVELS:
        op.add_column(level, sa.Column("suspended", sa.Double))
        op.add_column(level, sa.Column("labels", sa.Text, nullable=False, server_default="{}"))
    op.add_column("keys", sa.Column("suspended", sa.Double))
    op.add_column("keys", sa.Column("rotated", sa.Double))
    op.create_table(
        "old_texts",
        sa.Column("sha256", sa.LargeBinary(32), nullable=False),
        sa.Column("key_id", sa.String(32), sa.ForeignKey("keys.id", name="fk_old_texts_key_id"), nullable=False),
        sa.Column("ends", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("sha256", name="pk_old_texts"),
        sa.CheckConstraint("length(sha256) = 32", name=op.f("ck_old_texts_sha256")),
    )
    op.create_index("ix_old_texts_key_id", "old_texts", ["key_id"])
    op.create_table(
        "limits",
        sa.Column("name", sa.String(128), nullable=False),
        sa.Column("rule", sa.Text, nullable=False),
        sa.Column("created", sa.Double, nullable=False),
        sa.Column("changed", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_limits"),
    )


def downgrade() -> None:
    """Old texts end, and what is suspended counts again."""
    op.drop_table("limits")
    op.drop_table("old_texts")
    op.drop_column("keys", "rotated")
    op.drop_column("keys", "suspended")
    for level in _LEVELS:
        op.drop_column(level, "labels")
        op.drop_column(level, "suspended")
