"""Sums by account and by use, down to quarters of an hour; those of four hours go.

Quarters are summed from the entries: one to two minutes for ten million of them.
"""

# ruff: noqa: S608 - names from below

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
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
_SUMS = ("attempts", "requests", *_KINDS, "cost", "adjusted", "avoided", "kv", "corrections")
_HOWS = ("exact", "estimated", "unpriced", "cache")
_COUNTS = (*_SUMS, "succeeded", *_HOWS)
_ABOVE = ("organisation", "department", "project")
_SHAPE = ("route", "model", "served", "tier", "class", "labels")
_USE = (*_ABOVE, *_SHAPE)
_QUARTER, _HOUR, _PART, _DAY = 900, 3_600, 14_400, 86_400
_COARSE = {"account_rollups": ("accounts", "account_id"), "use_rollups": ("uses", "use_id")}


def upgrade() -> None:
    if op.get_bind().dialect.name != "sqlite":
        op.execute("SET LOCAL statement_timeout = 0")
    op.create_table(
        "uses",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("digest", sa.LargeBinary(16), nullable=False),
        *(sa.Column(name, sa.Text, nullable=False) for name in _USE),
        sa.UniqueConstraint("digest", name="uq_uses_digest"),
    )
    op.create_table(
        "use_labels",
        sa.Column("use_id", sa.Integer, sa.ForeignKey("uses.id", name="fk_use_labels_use_id"), nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("value", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("use_id", "name", name="pk_use_labels"),
    )
    # In one statement, which alembic takes for two: SQLite adds no constraint to a table that is there.
    op.execute("ALTER TABLE dimensions ADD COLUMN use_id INTEGER CONSTRAINT fk_dimensions_use_id REFERENCES uses (id)")
    for name, (by, _) in _COARSE.items():
        op.create_table(
            name,
            sa.Column("grain", sa.Integer, nullable=False),
            sa.Column("slot", sa.BigInteger, nullable=False),
            sa.Column("of_id", sa.Integer, sa.ForeignKey(f"{by}.id", name=f"fk_{name}_of_id"), nullable=False),
            *(sa.Column(count, sa.BigInteger, nullable=False) for count in _COUNTS),
            sa.PrimaryKeyConstraint("grain", "slot", "of_id", name=f"pk_{name}"),
            sqlite_with_rowid=False,
        )
    _name_uses()
    for name, (_, column) in _COARSE.items():
        _sum_quarters(name, column)
        _sum_quarters_up(name, _HOUR)
        _sum_quarters_up(name, _DAY)
    op.execute(f"DELETE FROM rollups WHERE grain = {_PART}")


def _name_uses() -> None:
    connection = op.get_bind()
    columns = ", ".join([f"a.{name}" for name in _ABOVE] + [f"d.{name}" for name in _SHAPE])
    found = connection.exec_driver_sql(
        f"SELECT DISTINCT {columns} FROM dimensions d JOIN accounts a ON a.id = d.account_id"
    )
    rows: list[dict[str, Any]] = []
    for texts in map(tuple, found):
        digest = hashlib.blake2b(msgspec.msgpack.encode(texts), digest_size=16).digest()
        rows.append({"digest": digest} | dict(zip(_USE, texts, strict=True)))
    table = sa.table("uses", sa.column("digest"), *map(sa.column, _USE))
    if rows:
        connection.execute(sa.insert(table), rows)
    same = " AND ".join([f"u.{n} = a.{n}" for n in _ABOVE] + [f"u.{n} = dimensions.{n}" for n in _SHAPE])
    op.execute(
        f"UPDATE dimensions SET use_id = u.id FROM accounts a, uses u WHERE a.id = dimensions.account_id AND {same}"
    )
    op.execute(
        "INSERT INTO use_labels (use_id, name, value) SELECT DISTINCT d.use_id, l.name, l.value "
        "FROM dimension_labels l JOIN dimensions d ON d.id = l.dimension_id"
    )


def _sum_quarters(name: str, column: str) -> None:
    zero = dict.fromkeys(_COUNTS, "0")
    by_how = {how: f"CASE WHEN e.how = '{how}' THEN 1 ELSE 0 END" for how in _HOWS}
    kinds = {kind: f"e.{kind}" for kind in (*_KINDS, "kv")}
    settled = zero | kinds | by_how
    settled |= {
        "attempts": "1",
        "requests": "CASE WHEN e.request = e.seq THEN 1 ELSE 0 END",
        "cost": "COALESCE(e.cost, 0)",
        "avoided": "e.avoided",
        "succeeded": "CASE WHEN e.outcome IN ('ok', 'hit') THEN 1 ELSE 0 END",
    }
    corrected = zero | kinds | {"adjusted": "e.cost", "corrections": "1"}
    both = " UNION ALL ".join(
        f"SELECT {_quarter(at)} AS slot, d.{column} AS of_id, {', '.join(f'{counts[n]} AS {n}' for n in _COUNTS)} "
        f"FROM {table} e JOIN dimensions d ON d.id = e.dimension_id"
        for table, at, counts in (("entries", "e.at", settled), ("adjustments", "e.counts_at", corrected))
    )
    _insert(name, f"SELECT {_QUARTER}, slot, of_id, {_added()} FROM ({both}) AS x GROUP BY slot, of_id")


def _sum_quarters_up(name: str, grain: int) -> None:
    _insert(
        name,
        f"SELECT {grain}, slot - slot % {grain}, of_id, {_added()} FROM {name} WHERE grain = {_QUARTER} "
        f"GROUP BY slot - slot % {grain}, of_id",
    )


def _insert(name: str, query: str) -> None:
    op.execute(f"INSERT INTO {name} (grain, slot, of_id, {', '.join(_COUNTS)}) {query}")


def _added() -> str:
    return ", ".join(f"SUM({count})" for count in _COUNTS)


def _quarter(at: str) -> str:
    """A time is never negative: SQLite's CAST cuts, where PostgreSQL's rounds."""
    whole = f"CAST({at} AS INTEGER)" if op.get_bind().dialect.name == "sqlite" else f"CAST(FLOOR({at}) AS BIGINT)"
    return f"{whole} - {whole} % {_QUARTER}"


def downgrade() -> None:
    if op.get_bind().dialect.name != "sqlite":
        op.execute("SET LOCAL statement_timeout = 0")
    for name in _COARSE:
        op.drop_table(name)
    op.drop_column("dimensions", "use_id")
    op.drop_table("use_labels")
    op.drop_table("uses")
    key = "dimension_id, how, outcome"
    op.execute(
        f"INSERT INTO rollups (grain, slot, {key}, {', '.join(_SUMS)}) "
        f"SELECT {_PART}, slot - slot % {_PART}, {key}, {', '.join(f'SUM({name})' for name in _SUMS)} "
        f"FROM rollups WHERE grain = {_HOUR} GROUP BY slot - slot % {_PART}, {key}"
    )
