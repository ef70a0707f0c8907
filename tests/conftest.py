"""What every test shares. `make test` searches under hypothesis' profile "default", `make fuzz` under "fuzz"."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["postgres_server", "redis_server"]

settings.register_profile("default", deadline=None, max_examples=100, print_blob=True)
settings.register_profile(
    "fuzz", deadline=None, max_examples=20_000, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("default")


def pytest_sessionstart() -> None:
    """A compiled module hides its source: an old one would be tested in its place."""
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    package = Path(__file__).parent.parent / "src" / "forebay"
    for path in package.rglob(f"*{suffix}"):
        source = path.with_name(path.name.removesuffix(suffix) + ".py")
        if not source.exists() or source.stat().st_mtime > path.stat().st_mtime:
            pytest.exit(f"{source} is newer than what was compiled of it: `make compile`, or `make pure`", 4)


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Recorded bytes of real engines."""
    return Path(__file__).parent / "data"
