from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from forebay.ledger.database import Database
from journals import Live, Lives


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """An empty database of each kind."""
    url = "" if request.param == "sqlite" else request.getfixturevalue("postgres").new()
    database = Database(url, tmp_path)
    yield database
    database.close()


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    """Lets a worker live and die on a folder; returns what it was told."""
    with Lives() as lives:
        yield lives
