"""Run by alembic for every command; the connection, inside its transaction, comes from `Database.migrate`."""

from __future__ import annotations

from alembic import context

from forebay.ledger.schema import metadata

# SQLite's own DDL is transactional; alembic assumes not, because the driver's default mode hides it.
context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    transactional_ddl=True,
)
context.run_migrations()
