"""When engines with a price were there, and which of their hours are reconciled."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "engine_spans",
        sa.Column("host", sa.String(32), nullable=False),
        sa.Column("engine", sa.Text, nullable=False),
        sa.Column("since", sa.Double, nullable=False),
        sa.Column("until", sa.Double),
        sa.Column("seen", sa.Double, nullable=False),
        sa.Column("price", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("host", "engine", "since", name="pk_engine_spans"),
    )
    op.create_table(
        "engine_hours",
        sa.Column("slot", sa.BigInteger, nullable=False),
        sa.Column("engine", sa.Text, nullable=False),
        sa.Column("bill", sa.BigInteger, nullable=False),
        sa.Column("allocated", sa.BigInteger, nullable=False),
        sa.Column("idle", sa.BigInteger, nullable=False),
        sa.Column("spread", sa.SmallInteger, nullable=False),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("again", sa.SmallInteger, nullable=False),
        sa.PrimaryKeyConstraint("slot", "engine", name="pk_engine_hours"),
        sa.CheckConstraint("allocated + idle = bill", name=op.f("ck_engine_hours_whole")),
    )
    op.create_index(
        "ix_engine_hours_again",
        "engine_hours",
        ["slot"],
        sqlite_where=sa.text("again = 1"),
        postgresql_where=sa.text("again = 1"),
    )


def downgrade() -> None:
    """Corrections that were booked stay."""
    op.drop_table("engine_hours")
    op.drop_table("engine_spans")
