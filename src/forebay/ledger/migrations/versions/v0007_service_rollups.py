"""Sums by what was called and how it went, down to quarters of an hour.

Quarters are summed from the entries: a minute or two for ten million of them.
"""

# ruff: noqa: S608 - names from below

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
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
_SERVICE = ("route", "model", "served", "engine", "tier", "class")
_QUARTER, _HOUR, _DAY = 900, 3_600, 86_400


def upgrade() -> None:
    if op.get_bind().dialect.name != "sqlite":
        op.execute("SET LOCAL statement_timeout = 0")
    op.create_table(
        "services",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("digest", sa.LargeBinary(16), nullable=False),
        *(sa.Column(name, sa.Text, nullable=False) for name in _SERVICE),
        sa.UniqueConstraint("digest", name="uq_services_digest"),
    )
    # In one statement, which alembic takes for two: SQLite adds no constraint to a table that is there.
    op.execute(
        "ALTER TABLE dimensions ADD COLUMN service_id INTEGER "
        "CONSTRAINT fk_dimensions_service_id REFERENCES services (id)"
    )
    op.create_table(
        "service_rollups",
        sa.Column("grain", sa.Integer, nullable=False),
        sa.Column("slot", sa.BigInteger, nullable=False),
        sa.Column("of_id", sa.Integer, sa.ForeignKey("services.id", name="fk_service_rollups_of_id"), nullable=False),
        sa.Column("how", sa.String(16), nullable=False),
        sa.Column("outcome", sa.String(32), nullable=False),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in _SUMS),
        sa.PrimaryKeyConstraint("grain", "slot", "of_id", "how", "outcome", name="pk_service_rollups"),
        sqlite_with_rowid=False,
    )
    _name_services()
    _sum_quarters()
    _sum_up(_HOUR, _QUARTER)
    _sum_up(_DAY, _HOUR)


def _name_services() -> None:
    connection = op.get_bind()
    found = connection.exec_driver_sql(f"SELECT DISTINCT {', '.join(_SERVICE)} FROM dimensions")
    rows: list[dict[str, Any]] = []
    for texts in map(tuple, found):
        digest = hashlib.blake2b(msgspec.msgpack.encode(texts), digest_size=16).digest()
        rows.append({"digest": digest} | dict(zip(_SERVICE, texts, strict=True)))
    if rows:
        connection.execute(sa.insert(sa.table("services", sa.column("digest"), *map(sa.column, _SERVICE))), rows)
    same = " AND ".join(f"s.{name} = dimensions.{name}" for name in _SERVICE)
    op.execute(f"UPDATE dimensions SET service_id = s.id FROM services s WHERE {same}")


def _sum_quarters() -> None:
    zero = dict.fromkeys(_SUMS, "0")
    counts = {kind: f"e.{kind}" for kind in (*_KINDS, "kv")}
    settled = {
        "attempts": "1",
        "requests": "CASE WHEN e.request = e.seq THEN 1 ELSE 0 END",
        "cost": "COALESCE(e.cost, 0)",
        "avoided": "e.avoided",
    }
    corrected = {"adjusted": "e.cost", "corrections": "1"}
    both = " UNION ALL ".join(
        f"SELECT {_quarter(at)} AS slot, d.service_id AS of_id, e.how AS how, e.outcome AS outcome, "
        + ", ".join(f"{(zero | counts | more)[name]} AS {name}" for name in _SUMS)
        + f" FROM {table} e JOIN dimensions d ON d.id = e.dimension_id"
        for table, at, more in (("entries", "e.at", settled), ("adjustments", "e.counts_at", corrected))
    )
    _insert(f"SELECT {_QUARTER}, slot, of_id, how, outcome, {_added()} FROM ({both}) AS x", "slot")


def _sum_up(grain: int, finer: int) -> None:
    slot = f"slot - slot % {grain}"
    _insert(f"SELECT {grain}, {slot}, of_id, how, outcome, {_added()} FROM service_rollups WHERE grain = {finer}", slot)


def _insert(query: str, slot: str) -> None:
    op.execute(
        f"INSERT INTO service_rollups (grain, slot, of_id, how, outcome, {', '.join(_SUMS)}) {query} "
        f"GROUP BY {slot}, of_id, how, outcome"
    )


def _added() -> str:
    return ", ".join(f"SUM({name})" for name in _SUMS)


def _quarter(at: str) -> str:
    """A time is never negative: SQLite's CAST cuts, where PostgreSQL's rounds."""
    whole = f"CAST({at} AS INTEGER)" if op.get_bind().dialect.name == "sqlite" else f"CAST(FLOOR({at}) AS BIGINT)"
    return f"{whole} - {whole} % {_QUARTER}"


def downgrade() -> None:
    op.drop_table("service_rollups")
    op.drop_column("dimensions", "service_id")
    op.drop_table("services")
