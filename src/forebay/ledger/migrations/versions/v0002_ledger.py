"""The ledger: reservations, entries, adjustments, and their sums."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_KINDS = (
    "input",
    "cached",
    "cache_write",
    "cache_write_long",
    "output",
    "reasoning",
    "audio_input",
    "audio_output",
    "image_input",
    "images",
)
_ACCOUNT = ("key", "key_name", "organisation", "department", "project", "user")
_SHAPE = ("route", "model", "served", "engine", "tier", "class", "end_user")
_SUMS = ("attempts", "requests", *_KINDS, "cost", "adjusted", "avoided", "kv", "corrections")
_APPEND_ONLY = ("entries", "adjustments")
_TABLES = (
    "accounts",
    "dimensions",
    "dimension_labels",
    "prices",
    "journals",
    "journal_names",
    "reservations",
    "entries",
    "adjustments",
    "rollups",
)


def _int(name: str) -> sa.Column[Any]:
    return sa.Column(name, sa.Integer, nullable=False)


def _big(name: str) -> sa.Column[Any]:
    return sa.Column(name, sa.BigInteger, nullable=False)


def _time(name: str) -> sa.Column[Any]:
    return sa.Column(name, sa.Double, nullable=False)


def _text(name: str, most: int | None = None) -> sa.Column[Any]:
    return sa.Column(name, sa.Text if most is None else sa.String(most), nullable=False)


def _table(name: str, *columns: Any, key: tuple[str, ...], refers: dict[str, str] | None = None) -> None:
    op.create_table(
        name,
        *columns,
        sa.PrimaryKeyConstraint(*key, name=f"pk_{name}"),
        *(
            sa.ForeignKeyConstraint([column], [f"{to}.id"], name=f"fk_{name}_{column}")
            for column, to in (refers or {}).items()
        ),
        sqlite_with_rowid=key == ("id",) or name == "dimension_labels",
    )


def _interned(name: str, *columns: Any, refers: dict[str, str] | None = None) -> None:
    """Rows that others name by number, each once: `digest` is over what they say."""
    digest = sa.Column("digest", sa.LargeBinary(16), nullable=False)
    unique = sa.UniqueConstraint("digest", name=f"uq_{name}_digest")
    _table(name, _int("id"), digest, *columns, unique, key=("id",), refers=refers)


def upgrade() -> None:
    _interned("accounts", *map(_text, _ACCOUNT))
    _interned("dimensions", _int("account_id"), *map(_text, _SHAPE), _text("labels"), refers={"account_id": "accounts"})
    op.create_index("ix_dimensions_account_id", "dimensions", ["account_id"])
    _table(
        "dimension_labels",
        _int("dimension_id"),
        _text("name", 64),
        _text("value"),
        key=("dimension_id", "name"),
        refers={"dimension_id": "dimensions"},
    )
    _interned("prices", _text("price"))
    _table(
        "journals",
        _int("id"),
        _text("owner", 32),
        _text("boot", 64),
        _time("booted"),
        _big("segment"),
        _big("position"),
        _big("next_seq"),
        _text("currency", 3),
        _time("seen"),
        sa.UniqueConstraint("owner", name="uq_journals_owner"),
        key=("id",),
    )
    _table(
        "journal_names",
        _int("journal_id"),
        _text("kind", 1),
        _big("n"),
        _int("ref"),
        key=("journal_id", "kind", "n"),
        refers={"journal_id": "journals"},
    )
    attempt = {"journal_id": "journals", "dimension_id": "dimensions"}
    _table(
        "reservations",
        _int("journal_id"),
        _big("seq"),
        _big("request"),
        _time("reserved"),
        _text("request_id"),
        _int("dimension_id"),
        sa.Column("end_user", sa.Text),
        sa.Column("labels", sa.Text),
        _big("prompt"),
        _big("most"),
        _big("held"),
        sa.Column("price_id", sa.Integer),
        _text("boot", 64),
        _big("progress"),
        key=("journal_id", "seq"),
        refers=attempt | {"price_id": "prices"},
    )
    _table(
        "entries",
        _int("journal_id"),
        _big("seq"),
        _big("request"),
        _time("reserved"),
        _time("at"),
        _text("request_id"),
        _int("dimension_id"),
        _text("how", 16),
        _text("outcome", 32),
        *map(_big, _KINDS),
        sa.Column("cost", sa.BigInteger),
        sa.Column("price_id", sa.Integer),
        _time("ttft"),
        _time("seconds"),
        _big("kv"),
        _big("avoided"),
        _text("note"),
        sa.Column("survivor", sa.SmallInteger, nullable=False),
        sa.Column("end_user", sa.Text),
        sa.Column("labels", sa.Text),
        sa.CheckConstraint("(cost IS NULL) = (how = 'unpriced')", name=op.f("ck_entries_unpriced")),
        key=("journal_id", "seq"),
        refers=attempt | {"price_id": "prices"},
    )
    op.create_index("ix_entries_at", "entries", ["at"])
    _table(
        "adjustments",
        _int("journal_id"),
        _big("seq"),
        _time("at"),
        _time("counts_at"),
        _big("adjusts"),
        _int("dimension_id"),
        _text("how", 16),
        _text("outcome", 32),
        *map(_big, _KINDS),
        _big("cost"),
        _big("kv"),
        _text("reason"),
        _time("since"),
        _time("until"),
        key=("journal_id", "seq"),
        refers=attempt,
    )
    op.create_index("ix_adjustments_counts_at", "adjustments", ["counts_at"])
    _table(
        "rollups",
        _int("grain"),
        _big("slot"),
        _int("dimension_id"),
        _text("how", 16),
        _text("outcome", 32),
        *map(_big, _SUMS),
        key=("grain", "slot", "dimension_id", "how", "outcome"),
        refers={"dimension_id": "dimensions"},
    )
    _forbid_changes()


def _forbid_changes() -> None:
    if op.get_bind().dialect.name == "sqlite":
        for table in _APPEND_ONLY:
            for change in ("UPDATE", "DELETE"):
                op.execute(
                    f"CREATE TRIGGER {table}_no_{change.lower()} BEFORE {change} ON {table} "
                    f"BEGIN SELECT RAISE(ABORT, '{table} are append-only'); END"
                )
        return
    op.execute(
        "CREATE FUNCTION forebay_append_only() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION '% are append-only', TG_TABLE_NAME; END $$"
    )
    for table in _APPEND_ONLY:
        op.execute(
            f"CREATE TRIGGER {table}_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} "
            "FOR EACH STATEMENT EXECUTE FUNCTION forebay_append_only()"
        )


def downgrade() -> None:
    for table in reversed(_TABLES):
        op.drop_table(table)  # and its triggers
    if op.get_bind().dialect.name != "sqlite":
        op.execute("DROP FUNCTION forebay_append_only()")
