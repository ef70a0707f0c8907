"""Alembic's scripts. They ship inside the package and are run by `Database.migrate`."""
