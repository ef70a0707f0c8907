from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from forebay.ledger.database import Database


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """An empty database of each kind."""
    url = "" if request.param == "sqlite" else request.getfixturevalue("postgres").new()
    database = Database(url, tmp_path)
    yield database
    database.close()
