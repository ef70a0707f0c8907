from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = ["postgres_server"]


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Recorded bytes of real engines."""
    return Path(__file__).parent / "data"
