"""What every test shares. `make test` searches under hypothesis' profile "default", `make fuzz` under "fuzz"."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["postgres_server"]

settings.register_profile("default", deadline=None, max_examples=100, print_blob=True)
settings.register_profile(
    "fuzz", deadline=None, max_examples=20_000, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("default")


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Recorded bytes of real engines."""
    return Path(__file__).parent / "data"
