from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from forebay.ledger.database import Database
from journals import Live, Lives
from postgres_server import Postgres


@pytest.fixture(scope="session")
def emptied(postgres: Postgres) -> str:
    """The URL of a database that one test after another has to itself: to create one takes longer than most tests."""
    return postgres.new()


def _empty(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        connection.execute("SET client_min_messages = warning; DROP SCHEMA public CASCADE; CREATE SCHEMA public")


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """An empty database of each kind."""
    url = "" if request.param == "sqlite" else request.getfixturevalue("emptied")
    if url:
        _empty(url)
    database = Database(url, tmp_path)
    yield database
    database.close()


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    """Lets a worker live and die on a folder; returns what it was told."""
    with Lives() as lives:
        yield lives
